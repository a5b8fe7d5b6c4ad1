"""Two variants of one recording → how much faster one is, refused where they don't compute the same."""

from __future__ import annotations

import math
import statistics

from kernelperf.compare.verdict import by_launch_config, usable, values_of
from kernelperf.errors import NotMeasurable
from kernelperf.protocol import Observations
from kernelperf.recording.records import WorkloadRecording

# Two float64 references of one computation differ by less than this, whatever the order of summation.
_SAME_NORM = 1e-6


def speed_ratio(a: WorkloadRecording, b: WorkloadRecording, tolerance: float) -> float:
    """Return the gpu time of ``a`` over that of ``b``: above 1, ``b`` is the faster.

    Raises `NotMeasurable` unless both compute the same: each output within ``tolerance`` (relative norm) of
    its float64 reference, and the references equal.
    """
    for rec in (a, b):
        _check_error(rec, tolerance)
    _check_references(a, b)
    if a.environment.hardware != b.environment.hardware:
        raise NotMeasurable(
            f"{a.id!r} and {b.id!r} were recorded on different hardware; record both in one session"
        )
    return _gpu_time_ns(a) / _gpu_time_ns(b)


def _check_error(rec: WorkloadRecording, tolerance: float) -> None:
    for run in rec.runs:
        error = run.observations.relative_error
        if error is None:
            raise NotMeasurable(
                f"no speed comparison: {rec.id!r} has no relative error: give its Subject a float64 "
                "reference, and see that its output is finite"
            )
        if not error <= tolerance:  # also refuses NaN
            raise NotMeasurable(
                f"no speed comparison: {rec.id!r} is off its float64 reference by {error:.3g} (relative "
                f"norm), expected at most {tolerance:.3g}; make it compute the same before timing it"
            )


def _check_references(a: WorkloadRecording, b: WorkloadRecording) -> None:
    left, right = a.runs[0].observations, b.runs[0].observations
    if not _same_reference(left, right):
        raise NotMeasurable(
            f"no speed comparison: {a.id!r} and {b.id!r} don't compute the same: their float64 references "
            f"have digests {left.reference_digest!r} and {right.reference_digest!r}, norms "
            f"{left.reference_norm!r} and {right.reference_norm!r}; give both the same weights and inputs"
        )


def _same_reference(left: Observations, right: Observations) -> bool:
    if left.reference_digest and right.reference_digest:
        return left.reference_digest == right.reference_digest
    if left.reference_norm is None or right.reference_norm is None:
        return False
    return math.isclose(left.reference_norm, right.reference_norm, rel_tol=_SAME_NORM)


def _gpu_time_ns(rec: WorkloadRecording) -> float:
    """The geometric mean of the runs that took the most frequent launch config."""
    runs = max(by_launch_config(rec.runs).values(), key=len)
    values_ns = values_of(runs, "gpu_time")
    if not usable(values_ns):
        raise NotMeasurable(f"no speed comparison: {rec.id!r} has no gpu_time; record it with timing on")
    return statistics.geometric_mean(values_ns)
