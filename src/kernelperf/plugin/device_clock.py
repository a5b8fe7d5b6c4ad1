"""Recorded round values → pytest-benchmark: a clock that the values advance, instead of time passing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kernelperf.compare.comparison import Comparison
from kernelperf.compare.estimate import kept_rounds
from kernelperf.compare.verdict import METRICS
from kernelperf.recording.records import WorkloadRecording

TIMING_FIXTURE = "gpu_benchmark"


class DeviceClock:
    """A timer for pytest-benchmark that shows what was measured on the GPU."""

    __name__ = "kernelperf"  # pytest-benchmark stores it as the timer's name

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        """Return the clock's time, in seconds."""
        return self._now_s

    def reset(self) -> None:
        """Start from zero: only then is a difference exactly the value."""
        self._now_s = 0.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds


CLOCK = DeviceClock()


def set_clock(item: pytest.Item) -> None:
    """Let an item that uses ``gpu_benchmark`` be timed by the device clock.

    pytest-benchmark reads the closest mark ``benchmark`` only, so what the user's marks say is repeated.
    """
    if TIMING_FIXTURE not in getattr(item, "fixturenames", ()):
        return
    keywords: dict[str, Any] = {}
    for mark in item.iter_markers("benchmark"):
        keywords = {**mark.kwargs, **keywords}
    item.add_marker(pytest.mark.benchmark(**{**keywords, "timer": CLOCK}), append=False)


def samples_s(rec: WorkloadRecording, metric: str) -> tuple[float, ...]:
    """Return the values of the rounds that count, of all runs, in seconds."""
    rounds = (kept_rounds(METRICS[metric].values_ns(run)) for run in rec.runs)
    return tuple(ns / 1e9 for values_ns in rounds for ns in values_ns)


def feed(
    benchmark: Any,
    values_s: Sequence[float],
    *,
    group: str,
    params: Mapping[str, Any],
    extra_info: Mapping[str, Any],
) -> None:
    """Give pytest-benchmark the values as if it had timed them, one a round.

    ``params`` stand for pytest's own, which are no JSON.
    """
    benchmark.group = benchmark.group or group
    benchmark.params = dict(params)
    remaining = iter(values_s)

    def step() -> None:
        CLOCK.advance(next(remaining, 0.0))  # --benchmark-cprofile calls once more

    benchmark.pedantic(step, setup=CLOCK.reset, rounds=len(values_s))
    benchmark.extra_info.update(extra_info)


def told(comparison: Comparison) -> dict[str, Any]:
    """Return what a comparison came to, for pytest-benchmark's ``extra_info``."""
    return {
        "workload": comparison.workload,
        "metric": comparison.metric,
        "verdict": comparison.verdict.value,
        "reason": comparison.reason.code.value,
        "ratio": comparison.ratio,
        "interval": [comparison.lower, comparison.upper],
    }


def forgive_unused(item: pytest.Item) -> None:
    """Keep pytest-benchmark from warning that a test which failed early didn't use it."""
    benchmark = getattr(item, "funcargs", {}).get("benchmark")
    if benchmark is not None:
        benchmark.skipped = True  # what pytest-benchmark itself sets for a test that skips
