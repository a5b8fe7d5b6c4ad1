"""A recording → a baseline under ``baselines/<gpu>/``: which is a GPU's, and what may become one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from kernelperf.compare import Suite, compare
from kernelperf.compare.card_state import disturbed_runs
from kernelperf.compare.comparison import DEFAULT_TOLERANCE_FRACTION, Comparison
from kernelperf.compare.estimate import spread_fraction
from kernelperf.compare.verdict import STRUCTURE, by_launch_config, spread_limit, values_of
from kernelperf.environment import Environment, Hardware
from kernelperf.errors import UnusableInput
from kernelperf.recording import (
    REPLACED_SUFFIX,
    read_environment,
    read_workload,
    trace_path,
    workload_folders,
    write_workload,
)
from kernelperf.recording.records import Recording, WorkloadRecording

MIN_RUNS = 5
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became the baseline: its folder, and each workload old → new (NO_BASELINE: it is new)."""

    folder: Path
    rows: tuple[Comparison, ...]
    reason: str
    accepted_at: str


def find_baseline(baselines: Path, hardware: Hardware, lane: str = "") -> Path | None:
    """Return the baseline's folder for exactly this hardware and lane, None where there is none."""
    for folder in baseline_folders(baselines):
        if _key(folder) == (hardware, lane):
            return folder
    return None


def check_acceptable(
    recording: Recording, *, only: Sequence[str] = (), min_runs: int = MIN_RUNS
) -> tuple[WorkloadRecording, ...]:
    """Return the workloads to accept, all or those that ``only`` names by id or declaration.

    Raises `UnusableInput` with every reason for which one of them can't be a baseline.
    """
    chosen = _chosen(recording, only)
    refusals = [f"{rec.id}: {why}" for rec in chosen for why in _refusals(rec, min_runs)]
    refusals += _mixed(chosen)
    if refusals:
        raise UnusableInput(
            f"{recording.folder} can't become the baseline; nothing was changed:\n  " + "\n  ".join(refusals)
        )
    return chosen


def accept(
    recording: Recording,
    baselines: Path,
    *,
    only: Sequence[str] = (),
    reason: str,
    min_runs: int = MIN_RUNS,
) -> Acceptance:
    """Make a recording, or the workloads of it that ``only`` names, the baseline of its hardware and lane.

    All of the chosen workloads or none: everything is checked and written aside before the first folder is
    exchanged, and what was exchanged is put back if a later exchange fails.

    Raises `UnusableInput` for what `check_acceptable` refuses, for an empty reason, and for a workload that
    would lose its times.
    """
    if not reason.strip():
        raise UnusableInput('--reason is empty; say why the baseline changes, such as --reason "torch 2.12"')
    chosen = check_acceptable(recording, only=only, min_runs=min_runs)
    environment = chosen[0].environment
    accepted_at = datetime.now(UTC).isoformat(timespec="seconds")
    named = tuple(replace(rec, reason=reason.strip(), accepted_at=accepted_at) for rec in chosen)
    folder = baselines
    try:
        with _one_update_at_a_time(baselines):
            folder = find_baseline(baselines, environment.hardware, environment.lane) or _new_folder(
                baselines, environment.hardware, environment.lane
            )
            old = _read_old(folder, chosen)
            rows = _old_to_new(old, chosen)
            _install(named, _traces(recording, chosen, old, folder), folder)
    except OSError as error:
        raise UnusableInput(
            f"{folder} can't be written ({error}); the old baseline stands unchanged"
        ) from error
    return Acceptance(folder, rows, reason.strip(), accepted_at)


def _chosen(recording: Recording, only: Sequence[str]) -> tuple[WorkloadRecording, ...]:
    known = {rec.id for rec in recording.workloads} | {rec.name for rec in recording.workloads}
    unknown = [name for name in only if name not in known]
    if unknown:
        ids = ", ".join(rec.id for rec in recording.workloads)
        raise UnusableInput(f"{recording.folder} holds no workload {unknown[0]!r}; it holds {ids}")
    return tuple(rec for rec in recording.workloads if not only or {rec.id, rec.name} & set(only))


def _refusals(rec: WorkloadRecording, min_runs: int) -> Iterator[str]:
    if rec.facts is None:
        yield "the session that recorded it did not end, so its facts are unknown; record it again"
    failed = [fact.test for fact in rec.facts or () if fact.outcome == "failed"]
    if failed:
        yield f"{len(failed)} of its facts failed, {failed[0]} first; a baseline holds its facts: mend them"
    configs = by_launch_config(rec.runs)
    if len(configs) > 1:
        times = ", ".join(str(len(runs)) for runs in configs.values())
        yield f"its runs took {len(configs)} different launch configs ({times} runs); record again"
    if rec.timed:
        yield from _timing_refusals(rec, min_runs)


def _timing_refusals(rec: WorkloadRecording, min_runs: int) -> Iterator[str]:
    if len(rec.runs) < min_runs:
        yield (
            f"number of runs is {len(rec.runs)}, expected at least {min_runs}; measure it with "
            f"`pytest --kperf-update-baselines`"
        )
    values_ns = values_of(rec.runs, "gpu_time")
    spread, limit = spread_fraction(values_ns), spread_limit("gpu_time", rec.runs)
    if spread > limit:
        yield (
            f"its runs differ by {spread:.1%} in gpu_time (robust CV), expected at most {limit:.1%}; "
            "record again on a quiet GPU"
        )
    yield from _disturbances(rec)
    dry = sum(not run.queue_held for run in rec.runs)
    if dry:
        yield f"the GPU's queue ran dry in {dry} of its {len(rec.runs)} runs; record again on a quiet host"


def _disturbances(rec: WorkloadRecording) -> Iterator[str]:
    """Tell the runs in which the card was worse off than in the best of them, and runs of several cards."""
    for number, found in disturbed_runs(rec.runs):
        yield f"the card was disturbed in run {number}: {found}; record again on a quiet GPU"
    cards = {run.card for run in rec.runs}
    if len(cards) > 1:
        yield f"its runs were made on {len(cards)} different cards; record all of them on one"


def _mixed(chosen: Sequence[WorkloadRecording]) -> list[str]:
    """Refuse workloads of two sessions or two machines that were put into one folder."""
    first = chosen[0]
    different = []
    for rec in chosen[1:]:
        for what, ours, theirs in _parts(first.environment, rec.environment):
            if ours != theirs:
                different.append(
                    f"{rec.id}: its {what} is {theirs!r}, that of {first.id} is {ours!r}; "
                    "record both in one session"
                )
    return different


def _parts(ours: Environment, theirs: Environment) -> Iterator[tuple[str, object, object]]:
    """Pair what must agree: of the stack, what both have, since each lists only what its worker imported."""
    yield "hardware", ours.hardware, theirs.hardware
    yield "lane", ours.lane, theirs.lane
    their_stack = dict(theirs.stack)
    for package, version in ours.stack:
        if package in their_stack:
            yield package, version, their_stack[package]


@contextlib.contextmanager
def _one_update_at_a_time(baselines: Path) -> Iterator[None]:
    """Hold the folder against other updates of it on this host; the second waits for the first."""
    baselines.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # on Windows nobody records, and each exchange is still whole
        yield
        return
    descriptor = os.open(baselines, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_old(folder: Path, chosen: Sequence[WorkloadRecording]) -> dict[str, WorkloadRecording]:
    paths = dict(workload_folders(folder))
    return {rec.id: read_workload(paths[rec.id]) for rec in chosen if rec.id in paths}


def _old_to_new(
    old: Mapping[str, WorkloadRecording], chosen: Sequence[WorkloadRecording]
) -> tuple[Comparison, ...]:
    suite = Suite(tuple(old.values()), chosen, looks=1)
    return tuple(_row(old.get(rec.id), rec, suite) for rec in chosen)


def _traces(
    recording: Recording,
    chosen: Sequence[WorkloadRecording],
    old: Mapping[str, WorkloadRecording],
    folder: Path,
) -> dict[str, Path]:
    """Return the trace to keep of each: the old one where the new one would only repeat it, in new bytes."""
    recorded, stored = dict(workload_folders(recording.folder)), dict(workload_folders(folder))
    return {
        rec.id: trace_path(
            stored[rec.id] if rec.id in old and _launches_alike(old[rec.id], rec) else recorded[rec.id]
        )
        for rec in chosen
    }


def _launches_alike(old: WorkloadRecording, new: WorkloadRecording) -> bool:
    """Whether both launch the same from the same stack and sources: the traces differ by times alone."""
    first, second = old.runs[0], new.runs[0]
    return (
        first.launch_config == second.launch_config
        and first.counts == second.counts
        and old.environment.stack == new.environment.stack
        and old.sources == new.sources
        and old.about == new.about
    )


def _row(old: WorkloadRecording | None, rec: WorkloadRecording, suite: Suite) -> Comparison:
    if old is not None and old.timed and not rec.timed:
        raise UnusableInput(
            f"{rec.id}: its baseline holds times, this recording doesn't; record it with timing on. "
            "Nothing was changed"
        )
    metric = "gpu_time" if rec.timed else STRUCTURE
    return compare(
        old, rec, suite.policy(rec.id, tolerance_fraction=DEFAULT_TOLERANCE_FRACTION, metric=metric)
    )


def baseline_folders(baselines: Path) -> tuple[Path, ...]:
    """Return the folders under ``baselines/``, one a GPU and lane."""
    if not baselines.is_dir():
        return ()
    return tuple(child for child in sorted(baselines.iterdir()) if child.name[0] != "." and child.is_dir())


def _key(folder: Path) -> tuple[Hardware, str] | None:
    found = workload_folders(folder)
    if not found:
        return None
    keys = {}
    for name, path in found:
        environment = read_environment(path)
        keys[environment.hardware, environment.lane] = name
    if len(keys) > 1:
        first, second = list(keys.values())[:2]
        raise UnusableInput(
            f"{folder} mixes hardware or lanes: {first!r} and {second!r} are not of the same; a baseline is "
            "of one GPU: restore the folder from version control"
        )
    return next(iter(keys))


def _new_folder(baselines: Path, hardware: Hardware, lane: str) -> Path:
    """Return a name that is free: the slug, and what tells this hardware from the one that has it."""
    suffix = f"@{lane}" if lane else ""
    folder = baselines / f"{hardware.slug}{suffix}"
    if not folder.exists():
        return folder
    taken = _key(folder)
    if taken is None:
        return folder
    label = "-".join(_labels(hardware, taken[0]))
    named = baselines / f"{hardware.slug}-{label}{suffix}"
    if label and not named.exists():
        return named
    digest = hashlib.sha256(repr(hardware).encode()).hexdigest()[:8]
    return baselines / f"{hardware.slug}-{digest}{suffix}"


def _labels(hardware: Hardware, other: Hardware) -> Iterator[str]:
    labels = {
        "sm_count": f"{hardware.sm_count}sm",
        "memory_bytes": f"{hardware.memory_bytes / _GIB:.0f}gib",
        "mig": hardware.mig or "whole",
        "power_limit_w": f"{hardware.power_limit_w}w",
    }
    for field in fields(Hardware):
        if field.name in labels and getattr(hardware, field.name) != getattr(other, field.name):
            yield labels[field.name]


def _install(chosen: Sequence[WorkloadRecording], traces: Mapping[str, Path], folder: Path) -> None:
    """Write every workload aside, then exchange their folders one by one; undo all if one fails."""
    fresh = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".staging-"))
    exchanged: list[Path] = []
    try:
        for rec in chosen:
            write_workload(rec, staging / rec.id, traces[rec.id])
        _restore_leftovers(folder)
        for rec in chosen:
            _exchange(staging / rec.id, folder / rec.id)
            exchanged.append(folder / rec.id)
    except BaseException:
        for target in reversed(exchanged):
            _undo(target)
        if fresh:
            folder.rmdir()
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    for target in exchanged:
        shutil.rmtree(_replaced(target), ignore_errors=True)


def _exchange(new: Path, target: Path) -> None:
    """Put ``new`` in the place of ``target``; between the two renames the old one is still readable."""
    if not target.exists():
        new.replace(target)
        return
    target.replace(_replaced(target))
    try:
        new.replace(target)
    except BaseException:
        _replaced(target).rename(target)
        raise


def _undo(target: Path) -> None:
    """Take back an exchange that succeeded."""
    shutil.rmtree(target)
    old = _replaced(target)
    if old.exists():
        old.rename(target)


def _restore_leftovers(folder: Path) -> None:
    """Finish what a kill left: put an old folder back where none stands, remove it where the new one does."""
    for old in folder.glob(f".*{REPLACED_SUFFIX}"):
        target = folder / old.name.removeprefix(".").removesuffix(REPLACED_SUFFIX)
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(target)


def _replaced(target: Path) -> Path:
    return target.with_name(f".{target.name}{REPLACED_SUFFIX}")
