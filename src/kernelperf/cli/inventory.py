"""Declared workloads and stored baselines → a table of what is gated, by what, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from kernelperf.baselines import baseline_folders
from kernelperf.cli.listing import Listed, declared
from kernelperf.compare.comparison import DEFAULT_TOLERANCE_FRACTION
from kernelperf.recording import read_recording, workload_folders
from kernelperf.recording.records import WorkloadRecording
from kernelperf.render.tables import table

_HEAD = ("workload", "gated", "tolerance", "baseline", "runs", "age", "reason")
_DEFAULT_TESTS = "perf_tests"
_PROJECT_FILES = ("pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg", "conftest.py")


def inventory_table(root: Path, baselines: Path, paths: Sequence[str] = ()) -> str:
    """Return a row for each workload in each baseline, and for each that is declared without one.

    ``paths`` are the tests to collect; without any, ``perf_tests`` where it exists.  Outside a project only
    the baselines are shown.
    """
    known = {row.id: row for row in _declared(root, paths)}
    stored = _stored(baselines)
    rows = [_row(rec.id, known, (folder, rec)) for folder, rec in stored]
    bare = known.keys() - {rec.id for _, rec in stored}
    rows += [_row(name, known, None) for name in sorted(bare)]
    if not rows:
        return f"no workloads: none in {baselines}, none declared in the tests under {root}"
    return table(_HEAD, sorted(rows), right=(4, 5))


def _declared(root: Path, paths: Sequence[str]) -> tuple[Listed, ...]:
    if not paths and not any((root / name).exists() for name in _PROJECT_FILES):
        return ()
    default = [_DEFAULT_TESTS] if (root / _DEFAULT_TESTS).is_dir() else []
    return declared(root, list(paths) or default)


def _stored(baselines: Path) -> list[tuple[str, WorkloadRecording]]:
    return [
        (folder.name, rec)
        for folder in baseline_folders(baselines)
        if workload_folders(folder)
        for rec in read_recording(folder).workloads
    ]


def _row(
    name: str, known: dict[str, Listed], stored: tuple[str, WorkloadRecording] | None
) -> tuple[str, ...]:
    listed = known.get(name)
    if stored is None:
        return (name, _gated(listed, None), _tolerance(listed, None), "none", "", "", "")
    folder, rec = stored
    return (
        name,
        _gated(listed, rec),
        _tolerance(listed, rec),
        folder,
        str(len(rec.runs)),
        _age(rec.accepted_at or rec.recorded_at),
        rec.reason,
    )


def _gated(listed: Listed | None, rec: WorkloadRecording | None) -> str:
    if listed is None:
        return "gpu_time, structure" if rec and rec.timed else "structure"
    return ", ".join(listed.gated) if listed.selected else "not selected"


def _tolerance(listed: Listed | None, rec: WorkloadRecording | None) -> str:
    stored = (rec.tolerance_fraction if rec else None) or DEFAULT_TOLERANCE_FRACTION
    fractions = (listed.tolerance_fractions if listed else []) or [stored]
    return ", ".join(f"{fraction * 100:g} %" for fraction in fractions)


def _age(moment: str) -> str:
    try:
        then = datetime.fromisoformat(moment)
    except ValueError:
        return "?"
    days = (datetime.now(UTC) - (then if then.tzinfo else then.replace(tzinfo=UTC))).days
    return f"{days} d"
