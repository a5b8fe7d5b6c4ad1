"""Runs of a workload, grouped by launch config → the verdict of each group against the baseline's runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelperf.compare import card_state
from kernelperf.compare.comparison import Code, Policy, Verdict
from kernelperf.compare.estimate import (
    Estimate,
    Margins,
    card_margin,
    error_quantile,
    estimate,
    run_value,
    spread_fraction,
)
from kernelperf.recording.records import Run

STRUCTURE = "structure"
# Runs of an unchanged workload that differ by this many of their usual standard deviations (robust CV) say
# that the machine was disturbed.
SPREAD_LIMIT_SDS = 4.0
# What it takes to start a kernel varies from process to process, by a time: 48–91 ns a kernel in four
# workloads of one or two kernels of 1.2 to 2.7 µs, 16–35 fresh processes each on up to three H200s (standard
# deviation; 75 ns in root mean square).  All of a step's kernels share it.
LAUNCH_SD_NS = 75.0


@dataclass(frozen=True, slots=True)
class Metric:
    """How to read a metric from a run, and the least spread between runs that it is credited with."""

    values_ns: Callable[[Run], Sequence[float]]
    floor_sd: float


# gpu_time: 0.10–0.31 % in six large workloads, of which the starts of their kernels are about half (26 fresh
# processes each on three H200s), up to 0.67 % in an earlier study of five runs.  wall_time: the median of 16
# CVs on two H200s, 0.2–18 %, is 2.4 %.  kernel_time: the largest CV of a single kernel.  compile_time:
# 18–28 s for the same graphs in 18 processes.
METRICS: Mapping[str, Metric] = {
    "gpu_time": Metric(lambda run: run.gpu_time_ns, 0.003),
    "wall_time": Metric(lambda run: run.wall_time_ns, 0.024),
    "kernel_time": Metric(lambda run: kernel_time_ns(run), 0.008),
    "compile_time": Metric(lambda run: (run.first_call_s * 1e9,), 0.13),
}


def kernel_time_ns(run: Run) -> tuple[float, ...]:
    """Return the time of a run's kernels together; none where it launched none."""
    return (sum(kernel.duration_ns for kernel in run.kernels),) if run.kernels else ()


LaunchConfig = tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one launch config beside the base runs that they are held against, and what that came to."""

    base: tuple[Run, ...]
    now: tuple[Run, ...]
    verdict: Verdict
    code: Code
    estimate: Estimate | None = None

    @property
    def relaunched(self) -> bool:
        """Whether now launches its kernels otherwise than base, or launches others."""
        return self.base[0].launch_config != self.now[0].launch_config


def judged_groups(base: Sequence[Run], now: Sequence[Run], policy: Policy) -> tuple[Group, ...]:
    """Judge each launch config of now by itself: runs of different launch configs are never pooled.

    A group is held against the base runs of its own launch config, else against base's most frequent one.
    """
    base_groups = by_launch_config(base)
    groups = []
    for launch_config, runs in by_launch_config(now).items():
        against = base_groups.get(launch_config) or max(base_groups.values(), key=len)
        groups.append(_judged(against, runs, policy))
    return tuple(groups)


def by_launch_config(runs: Sequence[Run]) -> dict[LaunchConfig, tuple[Run, ...]]:
    """Return the runs by how they launched their kernels, in order of first appearance."""
    groups: dict[LaunchConfig, tuple[Run, ...]] = {}
    for run in runs:
        groups[run.launch_config] = (*groups.get(run.launch_config, ()), run)
    return groups


def values_of(runs: Sequence[Run], metric: str) -> list[float]:
    """Return the value of each run that has samples of the metric, in ns; none for ``structure``."""
    if metric == STRUCTURE:
        return []
    samples = (METRICS[metric].values_ns(run) for run in runs)
    return [run_value(rounds) for rounds in samples if rounds]


def usable(values_ns: Sequence[float]) -> bool:
    """Whether there are values, and each is a real duration."""
    return bool(values_ns) and all(math.isfinite(value) and value > 0 for value in values_ns)


def spread_limit(metric: str, runs: Sequence[Run]) -> float:
    """Return the spread between runs above which a metric decides nothing, as a fraction."""
    return SPREAD_LIMIT_SDS * run_sd(Policy(metric=metric), runs)


def run_sd(policy: Policy, runs: Sequence[Run]) -> float:
    """Return the least spread between runs to assume, as a fraction."""
    known = METRICS[policy.metric].floor_sd if policy.run_sd is None else policy.run_sd
    return math.hypot(known, _of_launches(policy.metric, runs, LAUNCH_SD_NS))


def launch_share(runs: Sequence[Run]) -> float:
    """Return what the starts of a step's kernels make its runs vary by, as a fraction."""
    return _of_launches("gpu_time", runs, LAUNCH_SD_NS)


def _of_launches(metric: str, runs: Sequence[Run], ns: float) -> float:
    """A time a kernel, as a fraction of a step; no kernel's own time and no compilation holds it."""
    if metric not in ("gpu_time", "wall_time"):
        return 0.0
    return len(runs[0].kernels) * ns / statistics.fmean(values_of(runs, metric))


def _judged(base: Sequence[Run], now: Sequence[Run], policy: Policy) -> Group:
    if policy.metric == STRUCTURE:
        return Group(tuple(base), tuple(now), Verdict.SAME, Code.WITHIN_TOLERANCE)
    base, now = held(base), undisturbed(base, held(now))
    base_ns, now_ns = values_of(base, policy.metric), values_of(now, policy.metric)
    found = estimate(base_ns, now_ns, _margins(base, now, policy))
    verdict, code = _decided(found, policy)
    if verdict is Verdict.SLOWER and policy.metric == "gpu_time" and _ran_dry_once(base, now):
        verdict, code = Verdict.UNDECIDED, Code.QUEUE_RAN_DRY
    if policy.metric in _OF_THE_CARD and _may_be_the_cards(verdict, base, now, found.ratio, policy):
        verdict, code = Verdict.UNDECIDED, Code.CARD_DISTURBED
    limit = spread_limit(policy.metric, base)
    noisy = max(spread_fraction(base_ns), spread_fraction(now_ns)) > limit
    if noisy and verdict is not Verdict.SLOWER and code is not Code.CARD_DISTURBED:
        verdict, code = Verdict.UNDECIDED, Code.NOISY
    return Group(base, now, verdict, code, found)


# Metrics that a slower card slows.
_OF_THE_CARD = frozenset({"gpu_time", "kernel_time", "wall_time"})


def _may_be_the_cards(
    verdict: Verdict, base: Sequence[Run], now: Sequence[Run], ratio: float, policy: Policy
) -> bool:
    """Whether a slowdown may be a disturbed card's, or one may be hidden by a card that is better off now."""
    if verdict is Verdict.SLOWER:
        return card_state.excused(base, now, ratio, policy.tolerance_fraction)
    return verdict in (Verdict.SAME, Verdict.FASTER) and bool(card_state.slower_baseline(base, now))


def _margins(base: Sequence[Run], now: Sequence[Run], policy: Policy) -> Margins:
    quantile = error_quantile(suite_size=policy.suite_size, looks=policy.looks)
    if card_state.same_card(base, now):
        return Margins(run_sd(policy, base), quantile)
    known = policy.card is not None
    return Margins(
        run_sd(policy, base),
        quantile,
        card_margin=card_margin(suite_size=policy.suite_size, shift_known=known),
        card_log=policy.card.log if policy.card is not None else 0.0,
    )


def _decided(found: Estimate, policy: Policy) -> tuple[Verdict, Code]:
    """SLOWER needs both: an estimate of at least the tolerance, and a lower bound above no change."""
    slow = 1 + policy.tolerance_fraction
    if found.ratio >= slow:
        if found.lower > 1:
            return Verdict.SLOWER, Code.UNEXPLAINED
        return Verdict.UNDECIDED, Code.INTERVAL_INCLUDES_ZERO
    if found.ratio <= 1 / slow and found.upper < 1:
        return Verdict.FASTER, Code.BEYOND_TOLERANCE
    return Verdict.SAME, Code.WITHIN_TOLERANCE


def held(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Leave out the runs in which the queue ran dry and the host was timed, where others are left."""
    return tuple(run for run in runs if run.queue_held) or tuple(runs)


def undisturbed(base: Sequence[Run], now: Sequence[Run]) -> tuple[Run, ...]:
    """Leave out the runs in which the card was disturbed, as base's wasn't, where others are left."""
    return tuple(run for run in now if not card_state.disturbance(base, [run])) or tuple(now)


def _ran_dry_once(base: Sequence[Run], now: Sequence[Run]) -> bool:
    """Whether now is a single run whose queue ran dry, as base's didn't.

    In one run that is an accident; in every fresh worker it is what the code does, and counts.
    """
    return len(now) == 1 and not now[0].queue_held and base[0].queue_held
