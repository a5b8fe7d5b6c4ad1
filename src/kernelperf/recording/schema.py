"""The layout of ``timings.json``: pytest-benchmark's JSON, and what of it is ours.

``machine_info`` is the Environment; the benchmarks are ``gpu_time`` and ``wall_time``; the first one's
``extra_info`` holds all else.  Where nothing was timed, a benchmark ``kernel_time`` from the trace holds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from kernelperf.environment import GpuState, Hardware
from kernelperf.errors import NotMeasurable
from kernelperf.protocol import Observations
from kernelperf.recording.records import Counts, FactOutcome, WorkloadRecording

SCHEMA_VERSION = 1
SCHEMA_KEY = "schema_version"


class Launch(msgspec.Struct):
    """One kernel of the step, without its time."""

    name: str
    role: str
    op: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int
    config: str


class RunRow(msgspec.Struct):
    """One run; ``launches`` and ``observations`` are positions in the lists of those that differ."""

    card: str
    first_call_s: float
    launches: Annotated[int, msgspec.Meta(ge=0)]
    observations: Annotated[int, msgspec.Meta(ge=0)]
    queue_held: bool
    repeats: int


class ExtraInfo(msgspec.Struct):
    """What the first benchmark carries of the workload."""

    schema_version: int
    trace_sha256: str
    id: str
    name: str
    params: dict[str, Any]
    mode: str
    declared_in: str
    about: dict[str, str]
    sources: dict[str, str]
    cache_policy: str
    definition: str
    facts: list[FactOutcome] | None
    reason: str
    accepted_at: str
    tolerance_fraction: float | None
    runs: list[RunRow]
    launches: list[list[Launch]]
    kernel_time_ns: list[list[float]]
    counts: list[Counts]
    states: list[GpuState]
    observations: list[Observations]
    runs_ns: list[list[float]] = []
    # One entry a run, empty where its yardsticks failed; no entries in recordings older than they are.
    yardsticks_ns: list[dict[str, float]] = []
    yardstick_states: list[GpuState] = []


class WallInfo(msgspec.Struct):
    """What the second one carries."""

    runs_ns: list[list[float]]


class Benchmark(msgspec.Struct):
    """One of pytest-benchmark's benchmarks, as far as it matters here."""

    group: str
    extra_info: dict[str, Any]


class Machine(msgspec.Struct):
    """The Environment."""

    hardware: Hardware
    card: str
    stack: dict[str, str]
    lane: str


class Document(msgspec.Struct):
    """The file, as far as it matters here."""

    machine_info: dict[str, Any]
    benchmarks: list[Benchmark]
    datetime: str


def check_samples(rec: WorkloadRecording) -> None:
    """Raise `NotMeasurable` unless there are runs, timed all or none, and every sample is a real duration."""
    if not rec.runs:
        raise NotMeasurable(f"workload {rec.id!r} has no runs; expected at least one")
    for metric in ("gpu_time_ns", "wall_time_ns"):
        rows: list[tuple[float, ...]] = [getattr(run, metric) for run in rec.runs]
        empty = [number for number, row in enumerate(rows, 1) if not row]
        if empty and len(empty) < len(rows):
            raise NotMeasurable(
                f"workload {rec.id!r}: {metric} is empty in run {_listed(empty)} of {len(rows)}, "
                "not in the others"
            )
        bad = [value for row in rows for value in row if not (math.isfinite(value) and value > 0)]
        if bad:
            raise NotMeasurable(f"workload {rec.id!r}: {metric} holds {bad[0]!r}; expected durations above 0")
    if rec.runs[0].wall_time_ns and not rec.runs[0].gpu_time_ns:
        raise NotMeasurable(f"workload {rec.id!r} has wall_time_ns but no gpu_time_ns")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
