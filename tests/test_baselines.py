"""A recording becomes the baseline whole or not at all, and only where nothing speaks against it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelperf.baselines import accept, check_acceptable, find_baseline
from kernelperf.compare.comparison import Code, Verdict
from kernelperf.errors import UnusableInput
from kernelperf.recording import (
    TIMINGS,
    TRACE,
    FactOutcome,
    WorkloadRecording,
    read_recording,
    read_workload,
    write_workload,
)
from tests import builders


def write(folder: Path, *workloads: WorkloadRecording) -> Any:
    return read_recording(builders.write(folder, *workloads))


def both(us: float = 206.8) -> tuple[WorkloadRecording, WorkloadRecording]:
    return builders.recording(runs=builders.runs(us)), builders.recording(
        "geglu_eager", runs=builders.runs(us)
    )


def files(folder: Path) -> dict[str, bytes]:
    """Everything under a folder, hidden files too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def baselines(tmp_path: Path) -> Path:
    """Baselines with an accepted recording of two workloads."""
    accept(write(tmp_path / "first", *both()), tmp_path / "baselines", reason="first")
    return tmp_path / "baselines"


def failing_replace(monkeypatch: pytest.MonkeyPatch, nth: int, error: BaseException) -> list[str]:
    """Let the nth rename from now on raise."""
    real, calls = os.replace, []

    def replaced(source: Any, target: Any, **kwargs: Any) -> None:
        calls.append(Path(target).name)
        if len(calls) == nth:
            raise error
        real(source, target, **kwargs)

    monkeypatch.setattr(os, "replace", replaced)
    return calls


def test_an_accepted_recording_is_found_by_its_hardware(baselines: Path) -> None:
    assert find_baseline(baselines, builders.H200) == baselines / "nvidia-h200"
    accepted = read_recording(baselines / "nvidia-h200").workloads
    assert [rec.id for rec in accepted] == ["geglu_compiled-bf16", "geglu_eager-bf16"]
    assert sorted(path.name for path in baselines.iterdir()) == ["nvidia-h200"]


@pytest.mark.parametrize(
    "change", [{"sm_count": 114}, {"memory_bytes": 2**36}, {"mig": "1g.18gb"}, {"power_limit_w": 600}]
)
def test_other_hardware_has_no_baseline(baselines: Path, change: dict[str, Any]) -> None:
    assert find_baseline(baselines, replace(builders.H200, **change)) is None


def test_lanes_are_kept_apart(baselines: Path, tmp_path: Path) -> None:
    nightly = builders.recording(environment=builders.environment(lane="nightly"))
    done = accept(write(tmp_path / "nightly", nightly), baselines, reason="nightly")
    assert done.folder == baselines / "nvidia-h200@nightly"
    assert find_baseline(baselines, builders.H200, "nightly") == baselines / "nvidia-h200@nightly"
    assert find_baseline(baselines, builders.H200) == baselines / "nvidia-h200"
    assert find_baseline(baselines, builders.H200, "stable") is None


def test_two_hardwares_of_one_slug_get_two_folders(baselines: Path, tmp_path: Path) -> None:
    capped = replace(builders.H200, power_limit_w=600)
    rec = builders.recording(environment=builders.environment(hardware=capped))
    done = accept(write(tmp_path / "capped", rec), baselines, reason="a capped card")
    assert done.folder.name == "nvidia-h200-600w"
    assert find_baseline(baselines, capped) == done.folder
    assert find_baseline(baselines, builders.H200) == baselines / "nvidia-h200"
    again = accept(write(tmp_path / "again", rec), baselines, reason="again")
    assert again.folder == done.folder


def test_without_baselines_there_is_none(tmp_path: Path) -> None:
    assert find_baseline(tmp_path / "nowhere", builders.H200) is None
    (tmp_path / "notes").mkdir()
    assert find_baseline(tmp_path, builders.H200) is None


def test_a_corrupt_baseline_is_an_error_not_an_absent_one(baselines: Path) -> None:
    (baselines / "nvidia-h200" / "geglu_eager-bf16" / "timings.json").write_text("")
    with pytest.raises(UnusableInput, match=r"geglu_eager-bf16/timings\.json is empty"):
        find_baseline(baselines, builders.H200)


def test_a_baseline_of_two_hardwares_is_an_error(baselines: Path) -> None:
    capped = builders.environment(hardware=replace(builders.H200, power_limit_w=600))
    builders.write(baselines / "nvidia-h200", builders.recording("geglu_liger", environment=capped))
    with pytest.raises(UnusableInput, match="mixes hardware or lanes"):
        find_baseline(baselines, builders.H200)


def test_the_reason_is_stored_with_its_date(baselines: Path) -> None:
    rec = read_workload(baselines / "nvidia-h200" / "geglu_eager-bf16")
    assert rec.reason == "first"
    assert rec.accepted_at.startswith("20")
    assert rec.accepted_at.endswith("+00:00")


@pytest.mark.parametrize("reason", ["", "  "])
def test_a_reason_must_be_given(baselines: Path, tmp_path: Path, reason: str) -> None:
    with pytest.raises(UnusableInput, match="--reason is empty"):
        accept(write(tmp_path / "rec", *both()), baselines, reason=reason)


def test_old_and_new_are_compared(baselines: Path, tmp_path: Path) -> None:
    slower = builders.recording(runs=builders.runs(224.6))
    new = builders.recording("geglu_liger")
    rows = accept(write(tmp_path / "rec", slower, new), baselines, reason="slower").rows
    assert [(row.workload, row.verdict) for row in rows] == [
        ("geglu_compiled-bf16", Verdict.SLOWER),
        ("geglu_liger-bf16", Verdict.NO_BASELINE),
    ]
    assert rows[0].ratio == pytest.approx(224.6 / 206.8, rel=1e-3)
    assert rows[1].reason.code is Code.NOT_RECORDED


@pytest.mark.parametrize("name", ["geglu_eager", "geglu_eager-bf16"])
def test_only_the_named_workloads_change(baselines: Path, tmp_path: Path, name: str) -> None:
    before = files(baselines)
    accept(write(tmp_path / "rec", *both(190.0)), baselines, only=[name], reason="faster")
    after = files(baselines)
    assert {path for path in before if before[path] != after[path]} == {
        "nvidia-h200/geglu_eager-bf16/timings.json"
    }
    assert before.keys() == after.keys()


def test_an_unknown_name_lists_what_there_is(baselines: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UnusableInput, match=r"no workload 'geglu'; it holds geglu_compiled-bf16, geglu_eager-bf16"
    ):
        accept(write(tmp_path / "rec", *both()), baselines, only=["geglu"], reason="x")


def failed_fact(rec: WorkloadRecording) -> WorkloadRecording:
    return replace(rec, facts=(FactOutcome("t::ok", "passed"), FactOutcome("t::broken", "failed")))


def spread(rec: WorkloadRecording) -> WorkloadRecording:
    return replace(rec, runs=tuple(builders.run(us) for us in (200.0, 203.0, 206.0, 209.0, 212.0)))


def two_configs(rec: WorkloadRecording) -> WorkloadRecording:
    narrow = builders.run(kernels=builders.geglu_kernels(builders.NARROW))
    return replace(rec, runs=(*builders.runs(number=4), narrow))


def dry(rec: WorkloadRecording) -> WorkloadRecording:
    return replace(rec, runs=(*builders.runs(number=4), builders.run(queue_held=False)))


def four_runs(rec: WorkloadRecording) -> WorkloadRecording:
    return replace(rec, runs=builders.runs(number=4))


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (lambda rec: replace(rec, facts=None), "the session that recorded it did not end"),
        (failed_fact, r"1 of its facts failed, t::broken first"),
        (four_runs, "number of runs is 4, expected at least 5"),
        (spread, r"its runs differ by 2\.2% in gpu_time \(robust CV\), expected at most 1\.3%"),
        (two_configs, r"its runs took 2 different launch configs \(4, 1 runs\)"),
        (dry, "the GPU's queue ran dry in 1 of its 5 runs"),
    ],
)
def test_a_doubtful_workload_is_refused_and_nothing_changes(
    baselines: Path,
    tmp_path: Path,
    spoiled: Callable[[WorkloadRecording], WorkloadRecording],
    message: str,
) -> None:
    before = files(baselines)
    good, bad = both(190.0)
    recording = write(tmp_path / "rec", good, spoiled(bad))
    with pytest.raises(UnusableInput, match=rf"nothing was changed:\n  geglu_eager-bf16: {message}"):
        accept(recording, baselines, reason="x")
    assert files(baselines) == before
    accept(recording, baselines, only=[good.id], reason="the other one is fine")
    assert files(baselines) != before


def test_every_reason_is_told_at_once(tmp_path: Path) -> None:
    bad = failed_fact(builders.recording(runs=builders.runs(number=3)))
    with pytest.raises(UnusableInput, match=r"t::broken first[\s\S]*number of runs is 3"):
        check_acceptable(write(tmp_path / "rec", bad))


def test_a_spread_of_unchanged_runs_is_accepted(tmp_path: Path) -> None:
    """Five fresh processes on an H200 pass the limit that a disturbed machine doesn't."""
    real = [builders.real_recording(name, "a", slice(5)) for name in ("mlp_compiled", "linear_eager")]
    assert len(check_acceptable(write(tmp_path / "rec", *real))) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hardware": replace(builders.H200, sm_count=114)},
            "its hardware is Hardware.*that of geglu_compiled-bf16 is",
        ),
        ({"lane": "nightly"}, "its lane is 'nightly', that of geglu_compiled-bf16 is ''"),
        (
            {"stack": (("torch", "2.12.0"),)},
            r"its torch is '2\.12\.0', that of geglu_compiled-bf16 is '2\.11\.0'",
        ),
    ],
)
def test_two_machines_in_one_folder_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    ours, theirs = both()
    mixed = write(tmp_path / "rec", ours, replace(theirs, environment=builders.environment(**change)))
    with pytest.raises(UnusableInput, match=message):
        check_acceptable(mixed)


def test_a_package_that_only_one_worker_imported_is_no_difference(tmp_path: Path) -> None:
    ours, theirs = both()
    stack = (("liger-kernel", "0.8.5"), *theirs.environment.stack)
    liger = replace(theirs, environment=builders.environment(stack=stack))
    assert len(check_acceptable(write(tmp_path / "rec", ours, liger))) == 2


@pytest.mark.parametrize(("scale", "accepted"), [(1e-2, True), (1.0, False)])
def test_a_step_of_microseconds_may_spread_by_a_time(tmp_path: Path, scale: float, accepted: bool) -> None:
    """3 % of 2 µs is what an H200 does undisturbed; 3 % of 200 µs is not."""
    runs = tuple(
        builders.run(gpu_time_ns=(value * scale,) * 15) for value in (200e3, 206e3, 194e3, 206e3, 194e3)
    )
    rec = builders.recording(runs=runs)
    if accepted:
        assert check_acceptable(write(tmp_path / "rec", rec))
    else:
        with pytest.raises(UnusableInput, match="robust CV"):
            check_acceptable(write(tmp_path / "rec", rec))


def test_structure_alone_is_accepted_from_one_run(tmp_path: Path) -> None:
    rec = builders.recording(runs=(builders.untimed(builders.run()),))
    done = accept(write(tmp_path / "rec", rec), tmp_path / "baselines", reason="structure")
    assert not read_workload(done.folder / rec.id).timed
    assert done.rows[0].metric == "structure"


def test_structure_alone_never_replaces_times(baselines: Path, tmp_path: Path) -> None:
    before = files(baselines)
    rec = builders.recording(runs=(builders.untimed(builders.run()),))
    with pytest.raises(UnusableInput, match="its baseline holds times, this recording doesn't"):
        accept(write(tmp_path / "rec", rec), baselines, reason="structure")
    assert files(baselines) == before


# Accepting two workloads renames: 2 × (trace, timings) into the staging folder, then 2 × (old away, new in).
@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (OSError(errno.ENOSPC, "No space left on device"), UnusableInput),
    ],
)
def test_an_update_that_breaks_off_leaves_the_old_baseline(
    baselines: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
    error: BaseException,
    raised: type[BaseException],
) -> None:
    recording = write(tmp_path / "rec", *both(190.0))
    before = files(baselines)
    calls = failing_replace(monkeypatch, nth, error)
    with pytest.raises(raised):
        accept(recording, baselines, reason="x")
    assert len(calls) == nth
    assert files(baselines) == before
    assert sorted(path.name for path in baselines.iterdir()) == ["nvidia-h200"]


def test_a_full_disk_is_told(baselines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_replace(monkeypatch, 5, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(UnusableInput, match=r"No space left on device.*the old baseline stands unchanged"):
        accept(write(tmp_path / "rec", *both(190.0)), baselines, reason="x")


def test_a_first_baseline_that_breaks_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = write(tmp_path / "rec", *both())
    failing_replace(monkeypatch, 6, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        accept(recording, tmp_path / "baselines", reason="x")
    assert list((tmp_path / "baselines").iterdir()) == []


def test_a_kill_between_two_renames_loses_nothing(baselines: Path, tmp_path: Path) -> None:
    """The old folder waits under a hidden name, is read in place of the missing one, and is put back."""
    folder = baselines / "nvidia-h200"
    before = read_workload(folder / "geglu_eager-bf16")
    (folder / "geglu_eager-bf16").rename(folder / ".geglu_eager-bf16.replaced")
    assert before in read_recording(folder).workloads
    assert find_baseline(baselines, builders.H200) == folder
    accept(write(tmp_path / "rec", both(190.0)[0]), baselines, reason="x")
    assert read_workload(folder / "geglu_eager-bf16") == before
    assert sorted(path.name for path in folder.iterdir()) == ["geglu_compiled-bf16", "geglu_eager-bf16"]


def test_a_kill_after_both_renames_leaves_the_new_one(baselines: Path, tmp_path: Path) -> None:
    folder = baselines / "nvidia-h200"
    stale = builders.write(tmp_path / "old", builders.recording(runs=builders.runs(999.0)))
    (stale / "geglu_compiled-bf16").rename(folder / ".geglu_compiled-bf16.replaced")
    assert read_recording(folder).workloads[0].runs[0].gpu_time_ns[3] == pytest.approx(205_770)
    accept(write(tmp_path / "rec", both()[1]), baselines, reason="x")
    assert not (folder / ".geglu_compiled-bf16.replaced").exists()


# --- updates of an unchanged machine, and two at once


def rerun(factor: float = 1.001, **changed: Any) -> WorkloadRecording:
    """The same workload measured again: other times, everything else as it was."""
    return builders.recording(runs=builders.runs(206.8 * factor), **changed)


def accepted(folder: Path, baselines: Path, rec: WorkloadRecording, trace: str) -> None:
    write_workload(rec, folder / rec.id, builders.trace_file(folder.parent / "traces", trace))
    accept(read_recording(folder), baselines, reason="again")


def test_an_unchanged_machine_gives_a_small_diff(tmp_path: Path) -> None:
    baselines = tmp_path / "baselines"
    accepted(tmp_path / "one", baselines, rerun(1.0), "one")
    stored = baselines / "nvidia-h200" / "geglu_compiled-bf16"
    before = [(stored / name).read_bytes() for name in (TIMINGS, TRACE)]
    accepted(tmp_path / "two", baselines, rerun(), "two")
    after = [(stored / name).read_bytes() for name in (TIMINGS, TRACE)]
    assert before[1] == after[1]
    lines = [content.decode().splitlines() for content in (before[0], after[0])]
    changed = [new for old, new in zip(*lines, strict=True) if old != new]
    # one line a run for samples of each metric and for what they were taken from, and the statistics
    assert 0 < len(changed) <= 5 * 4 + 8


@pytest.mark.parametrize(
    "changed",
    [
        {"environment": builders.environment(stack=(("torch", "2.12.0"),))},
        {"sources": (("fixtures/geglu.py", "cd" * 32),)},
        {"about": (("layer", "another"),)},
        {"runs": builders.runs(kernels=builders.geglu_kernels(builders.NARROW))},
    ],
)
def test_a_trace_of_anything_else_replaces_the_old_one(tmp_path: Path, changed: dict[str, Any]) -> None:
    baselines = tmp_path / "baselines"
    accepted(tmp_path / "one", baselines, rerun(1.0), "one")
    stored = baselines / "nvidia-h200" / "geglu_compiled-bf16" / TRACE
    before = stored.read_bytes()
    accepted(tmp_path / "two", baselines, builders.recording(**changed), "two")
    assert stored.read_bytes() != before


_SLOW_UPDATE = """
import sys, time
from pathlib import Path
from kernelperf import baselines
from kernelperf.recording import read_recording
exchange = baselines._exchange
def slow(new, target):
    exchange(new, target)
    print("exchanged", flush=True)
    time.sleep(0.3)
baselines._exchange = slow
baselines.accept(read_recording(Path(sys.argv[1])), Path(sys.argv[2]), reason="first")
"""


def test_a_second_update_waits_for_the_first(baselines: Path, tmp_path: Path) -> None:
    first = builders.write(tmp_path / "one", *both(210.0))
    second = write(tmp_path / "two", *both(220.0))
    command = [sys.executable, "-c", _SLOW_UPDATE, str(first), str(baselines)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as update:
        assert update.stdout is not None
        assert update.stdout.readline() == "exchanged\n"
        accept(second, baselines, reason="second")
        assert update.wait(60) == 0
    stored = read_recording(baselines / "nvidia-h200")
    assert [rec.reason for rec in stored.workloads] == ["second"] * 2
    assert [path.name for path in baselines.iterdir()] == ["nvidia-h200"]


def test_a_run_on_a_disturbed_card_is_refused(tmp_path: Path) -> None:
    calm = builders.runs()
    slow = replace(calm[2], state=replace(calm[2].state, sm_clock_mhz=1650))
    rec = builders.recording(runs=(*calm[:2], slow, *calm[3:]))
    folder = builders.write(tmp_path / "rec", rec)
    message = r"the card was disturbed in run 3: SM clock 1980 → 1650 MHz; record again on a quiet GPU"
    with pytest.raises(UnusableInput, match=message):
        accept(read_recording(folder), tmp_path / "baselines", reason="x")


def test_runs_of_two_cards_are_refused(tmp_path: Path) -> None:
    runs = builders.runs()
    rec = builders.recording(runs=(replace(runs[0], card="other"), *runs[1:]))
    folder = builders.write(tmp_path / "rec", rec)
    with pytest.raises(
        UnusableInput, match="its runs were made on 2 different cards; record all of them on one"
    ):
        accept(read_recording(folder), tmp_path / "baselines", reason="x")
