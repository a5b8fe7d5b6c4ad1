"""All comparisons of a session → the same, with a shift that they share named as the reason."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from kernelperf.compare.comparison import Code, Comparison, Reason, Verdict

# Of one or two workloads nobody can say that all moved.
_ENOUGH = 3
# All count as moved alike when each moved by at least this share of the median move.
_ALIKE_SHARE = 0.5


def judge_suite(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Name a shift that all workloads share as the reason of those that it alone makes SLOWER.

    Verdicts stay: a slowdown of everything is still one.  Only comparisons of one metric share a shift.
    """
    shift = common_shift(comparisons)
    if shift is None:
        return tuple(comparisons)
    return tuple(_reasoned(comparison, comparisons, shift) for comparison in comparisons)


def common_shift(comparisons: Sequence[Comparison]) -> float | None:
    """Return the median log ratio of the measured workloads if all became slower alike, else None."""
    logs = [math.log(c.ratio) for c in comparisons if c.ratio is not None and c.metric == "gpu_time"]
    if len(logs) < _ENOUGH:
        return None
    middle = statistics.median(logs)
    smallest = min(c.tolerance_fraction for c in comparisons)
    if middle < smallest / 2 or min(logs) < _ALIKE_SHARE * middle:
        return None
    return middle


def others_shift(comparison: Comparison, others: Sequence[Comparison]) -> tuple[int, float] | None:
    """Return how many other workloads were measured, and their median ratio less 1."""
    ratios = [
        other.ratio
        for other in others
        if other.workload != comparison.workload
        and other.metric == comparison.metric
        and other.ratio is not None
    ]
    return (len(ratios), statistics.median(ratios) - 1) if ratios else None


def _reasoned(comparison: Comparison, comparisons: Sequence[Comparison], shift: float) -> Comparison:
    if (
        comparison.verdict is not Verdict.SLOWER
        or comparison.ratio is None
        or comparison.metric != "gpu_time"
    ):
        return comparison
    if math.log(comparison.ratio) - shift >= math.log1p(comparison.tolerance_fraction):
        return comparison  # slower than the shift makes it: its own reason stands
    if comparison.counts_rose:
        return comparison
    moved = sum(1 for c in comparisons if c.ratio is not None and c.metric == "gpu_time")
    sentence = (
        f"all {moved} workloads moved, by {math.expm1(shift):+.1%} in the middle: the card or the stack, not "
        "this workload; measure the base revision on this card to tell"
    )
    return replace(comparison, reason=Reason(Code.COMMON_SHIFT, sentence))
