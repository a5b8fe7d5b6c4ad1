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
        yield {name: importlib.import_module(name) for name in ("sets", "power", "false_alarms")}
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
