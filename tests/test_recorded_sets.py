"""The rule on real runs: unchanged workloads never fail, planted slowdowns do, and the culprit is named."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelperf.compare import Verdict

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def studies() -> Any:
    """The studies' own modules, which the scripts import as neighbours."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = ("sets", "power", "false_alarms", "record_sets")
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def cards(studies: Any) -> Any:
    return studies["sets"].read_cards()


def test_unchanged_sets_never_fail(studies: Any, cards: Any) -> None:
    pairs = [(base, now) for base in cards for now in cards]
    found = studies["false_alarms"].tally(pairs)
    assert found.sessions > 20
    assert found.false_alarms == 0


def test_a_slowdown_of_every_run_is_found(studies: Any, cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sessions with one workload's times raised: what above finds none can find one."""
    sets = studies["sets"]
    read = sets._run

    def slowed(row: Any, *rest: Any) -> Any:
        times = [ns * (1.06 if row["workload"] == "geglu_eager-bf16" else 1) for ns in row["rounds_ns"]]
        return read({**row, "rounds_ns": times}, *rest)

    monkeypatch.setattr(sets, "_run", slowed)
    (now, *_) = sets.read_cards()
    before = sets.recordings(cards[0], cards[0].sets[:5], cards[0].suite)
    found = sets.session(before, now, now.sets[5:], now.suite)
    assert [name for name, each in found.items() if each.verdict is Verdict.SLOWER] == ["geglu_eager-bf16"]


@pytest.mark.parametrize(
    "name", ["planted_strided_bias", "planted_unfused", "planted_clone", "planted_xblock-512"]
)
def test_a_planted_slowdown_is_found_and_its_culprit_named(studies: Any, cards: Any, name: str) -> None:
    power = studies["power"]
    (plant,) = [each for each in power.plants() if each.workload == name]
    known = [card for card in cards if len(card.sets) > 5 and power.holds(plant, card)]
    found = power.power(plant, "same card", known)
    assert found.sessions >= 5
    assert found.found == found.named == found.sessions


def test_the_model_judges_as_the_engine_does(studies: Any, cards: Any) -> None:
    assert studies["false_alarms"].check_rule(cards) > 100


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (["--sets", "3", "--at-once", "2", "--suite-only", "--streams", "--peers", "1"], 9),
        (["--sets", "1"], 9 + 6 + 3 * 6),
    ],
)
def test_sets_are_recorded_and_read_back(
    studies: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], steps: int
) -> None:
    """With scripted workers: a GPU is needed for real ones."""
    (tmp_path / "script.json").write_text("{}")
    command = (sys.executable, str(Path(__file__).with_name("scripted_worker.py")), str(tmp_path))
    monkeypatch.setattr(studies["record_sets"], "WORKER", command)
    output = tmp_path / "sets-1.json.gz"
    studies["record_sets"].main([*arguments, "-o", str(output)], standalone_mode=False)
    (card,) = studies["sets"].read_cards(tmp_path)
    assert len(card.sets) == int(arguments[1])
    assert {len(one.runs) for one in card.sets} == {steps}
    assert len(card.suite) == 9
    run = card.sets[0].runs["linear_eager-8192x768x3072-bf16"]
    assert len(run.gpu_time_ns) == 15
    assert run.yardsticks is not None
    assert bool(card.sets[0].peers_ns) is ("--peers" in arguments)
