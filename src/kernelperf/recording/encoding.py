"""A workload's recording → the text of its ``timings.json``, laid out to be reviewed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from pytest_benchmark.stats import Stats

from kernelperf.compare.estimate import kept_rounds
from kernelperf.environment import GpuState
from kernelperf.recording.layout import Record, Rows, dump, rounded
from kernelperf.recording.records import Run, WorkloadRecording
from kernelperf.recording.schema import SCHEMA_KEY, SCHEMA_VERSION, check_samples

# The oldest pytest-benchmark whose reader this layout is tested with.
BENCHMARK_VERSION = "5.2.3"

_T = TypeVar("_T")
_new_stats: Callable[[], Any] = Stats  # pytest-benchmark is untyped here


def encode(rec: WorkloadRecording, trace_sha256: str) -> str:
    """Return the text of ``timings.json``; raises `NotMeasurable` for samples that prove nothing."""
    check_samples(rec)
    machine = {**msgspec.to_builtins(rec.environment), "stack": dict(rec.environment.stack)}
    return dump(
        {
            "benchmarks": _benchmarks(rec, _extra_info(rec, trace_sha256)),
            "commit_info": {},
            "datetime": rec.recorded_at,
            "machine_info": machine,
            "version": BENCHMARK_VERSION,
        }
    )


def _extra_info(rec: WorkloadRecording, trace_sha256: str) -> dict[str, Any]:
    launches, launch_of = _distinct([_launches(run) for run in rec.runs])
    observations, observation_of = _distinct([_observed(run) for run in rec.runs])
    return {
        SCHEMA_KEY: SCHEMA_VERSION,
        "trace_sha256": trace_sha256,
        "id": rec.id,
        "name": rec.name,
        "params": dict(rec.params),
        "mode": rec.mode,
        "declared_in": rec.declared_in,
        "about": dict(rec.about),
        "sources": dict(rec.sources),
        "cache_policy": rec.cache_policy,
        "definition": rec.definition,
        "facts": None if rec.facts is None else [msgspec.to_builtins(fact) for fact in rec.facts],
        "reason": rec.reason,
        "accepted_at": rec.accepted_at,
        "tolerance_fraction": rec.tolerance_fraction,
        "runs": [
            {
                "card": run.card,
                "first_call_s": rounded(run.first_call_s),
                "launches": launch_of[number],
                "observations": observation_of[number],
                "queue_held": run.queue_held,
                "repeats": run.repeats,
            }
            for number, run in enumerate(rec.runs)
        ],
        "launches": launches,
        "kernel_time_ns": [[rounded(kernel.duration_ns) for kernel in run.kernels] for run in rec.runs],
        "counts": [msgspec.to_builtins(run.counts) for run in rec.runs],
        "states": [msgspec.to_builtins(run.state) for run in rec.runs],
        "observations": observations,
        "yardsticks_ns": [_yardsticks_ns(run) for run in rec.runs],
        "yardstick_states": [_yardstick_state(run) for run in rec.runs],
    }


def _yardsticks_ns(run: Run) -> dict[str, float]:
    return {name: rounded(ns) for name, ns in run.yardsticks.times_ns} if run.yardsticks else {}


def _yardstick_state(run: Run) -> object:
    return msgspec.to_builtins(run.yardsticks.state if run.yardsticks else GpuState())


def _launches(run: Run) -> list[dict[str, Any]]:
    rows = [msgspec.to_builtins(kernel) for kernel in run.kernels]
    return [{key: value for key, value in row.items() if key != "duration_ns"} for row in rows]


def _observed(run: Run) -> object:
    """The observations; a relative error that is no number becomes null, as JSON wants it."""
    return msgspec.json.decode(msgspec.json.encode(run.observations))


def _distinct(values: Iterable[_T]) -> tuple[list[_T], list[int]]:
    """Return the values that differ, and for each value its position among them."""
    found: list[_T] = []
    positions = []
    for value in values:
        if value not in found:
            found.append(value)
        positions.append(found.index(value))
    return found, positions


def _benchmarks(rec: WorkloadRecording, extra_info: dict[str, Any]) -> list[dict[str, Any]]:
    if not rec.timed:
        return [_benchmark(rec, "kernel_time", extra_info, lambda run: (_kernel_time_ns(run),))]
    gpu_ns = [tuple(map(rounded, run.gpu_time_ns)) for run in rec.runs]
    benchmarks = [
        _benchmark(
            rec, "gpu_time", {**extra_info, "runs_ns": gpu_ns}, lambda run: kept_rounds(run.gpu_time_ns)
        )
    ]
    if rec.runs[0].wall_time_ns:
        wall_ns = [tuple(map(rounded, run.wall_time_ns)) for run in rec.runs]
        benchmarks.append(
            _benchmark(rec, "wall_time", {"runs_ns": wall_ns}, lambda run: kept_rounds(run.wall_time_ns))
        )
    return benchmarks


def _benchmark(
    rec: WorkloadRecording,
    metric: str,
    extra_info: dict[str, Any],
    samples_ns: Callable[[Run], Sequence[float]],
) -> dict[str, Any]:
    rows = tuple(tuple(rounded(ns / 1e9) for ns in samples_ns(run)) for run in rec.runs)
    stats = _new_stats()
    for sample_s in (sample_s for row in rows for sample_s in row):
        stats.update(sample_s)
    fields = {
        key: rounded(value) if isinstance(value, float) else value for key, value in stats.as_dict().items()
    }
    return {
        "extra_info": extra_info,
        "fullname": f"{rec.id}[{metric}]",
        "group": metric,
        "name": rec.id,
        "options": {"timer": "kernelperf"},
        "param": None,
        "params": None,
        "stats": Record({"data": Rows(rows), **fields, "iterations": max(1, rec.runs[0].repeats)}),
    }


def _kernel_time_ns(run: Run) -> float:
    return sum(kernel.duration_ns for kernel in run.kernels)
