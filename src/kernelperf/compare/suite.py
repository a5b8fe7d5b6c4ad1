"""All workloads of a session: what each is judged by because of the others, and a shift that they share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from kernelperf.compare.cards import card_shift, learned_sd
from kernelperf.compare.comparison import LOOKS, Code, Comparison, Policy, Reason, Verdict
from kernelperf.recording.records import WorkloadRecording

# Of one or two workloads nobody can say that all moved.
_ENOUGH = 3
# All count as moved alike when each moved by at least this share of the median move.
_ALIKE_SHARE = 0.5


class Suite:
    """A baseline's workloads and those held against it; one workload's policy depends on all of them."""

    def __init__(
        self,
        base: Sequence[WorkloadRecording],
        now: Sequence[WorkloadRecording],
        looks: int = LOOKS,
        judgements: int = 0,
    ) -> None:
        self._base = {rec.id: rec for rec in base}
        self._now = tuple(now)
        self._sd = learned_sd(base)
        self._looks = looks
        self._judgements = judgements

    @property
    def size(self) -> int:
        """How many judgements the error is held over: one a workload compared by its times, or as told."""
        return max(self._judgements, sum(rec.timed and rec.id in self._base for rec in self._now))

    def policy(self, name: str, *, tolerance_fraction: float, metric: str = "gpu_time") -> Policy:
        """Return what a workload is judged by."""
        return Policy(
            tolerance_fraction=tolerance_fraction,
            metric=metric,
            suite_size=self.size,
            looks=self._looks,
            run_sd=self._sd if metric == "gpu_time" else None,
            card=card_shift(name, self._base, self._now) if metric == "gpu_time" else None,
        )


def judge_suite(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Name a shift that all workloads share as the reason of those that it alone makes SLOWER.

    Verdicts stay: a slowdown of everything is still one.  Only comparisons of one metric share a shift.
    """
    shift = common_shift(comparisons)
    if shift is None:
        return tuple(comparisons)
    return tuple(_reasoned(comparison, comparisons, shift) for comparison in comparisons)


def common_shift(comparisons: Sequence[Comparison]) -> float | None:
    """Return the median log ratio of the measured workloads if all became slower alike, else None.

    As measured: nothing that another card may be credited with is taken off.
    """
    logs = [math.log(c.raw_ratio) for c in comparisons if c.raw_ratio is not None and c.metric == "gpu_time"]
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
        other.raw_ratio
        for other in others
        if other.workload != comparison.workload
        and other.metric == comparison.metric
        and other.raw_ratio is not None
    ]
    return (len(ratios), statistics.median(ratios) - 1) if ratios else None


def _reasoned(comparison: Comparison, comparisons: Sequence[Comparison], shift: float) -> Comparison:
    if (
        comparison.verdict is not Verdict.SLOWER
        or comparison.ratio is None
        or comparison.metric != "gpu_time"
    ):
        return comparison
    if math.log(comparison.raw_ratio or 1.0) - shift >= math.log1p(comparison.tolerance_fraction):
        return comparison  # slower than the shift makes it: its own reason stands
    if comparison.reason.code not in (Code.UNEXPLAINED, Code.KERNEL_TIME):
        return comparison  # what changed in the workload itself is a better reason
    moved = sum(1 for c in comparisons if c.ratio is not None and c.metric == "gpu_time")
    blamed = _blamed(comparison, shift)
    sentence = f"all {moved} workloads moved, by {math.expm1(shift):+.1%} in the middle: {blamed}"
    return replace(comparison, reason=Reason(Code.COMMON_SHIFT, sentence))


def _blamed(comparison: Comparison, shift: float) -> str:
    """Say what the yardsticks know of a common shift; no change of code slows them."""
    # The GEMM is the library's: on another stack it is under test itself.
    trusted = {n: r for n, r in comparison.yardsticks if n != "gemm" or not comparison.stack_changes}
    told = ", ".join(f"{name} {ratio - 1:+.1%}" for name, ratio in trusted.items())
    if not told:
        return "the card or the stack, not this workload; measure the base revision on this card to tell"
    slowest = max(math.log(ratio) for ratio in trusted.values())
    if slowest >= _ALIKE_SHARE * shift:
        return f"the yardsticks did too ({told}), so the card; measure the base revision on this card to tell"
    return f"the yardsticks did not ({told}), so the stack or code that all of them share"
