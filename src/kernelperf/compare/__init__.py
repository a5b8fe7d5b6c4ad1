"""Two recordings of a workload → a Comparison: ratio, interval, verdict, and what changed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace

from kernelperf.compare import card_state, changes
from kernelperf.compare.comparison import (
    Code,
    Comparison,
    KernelChange,
    Policy,
    Reason,
    Verdict,
)
from kernelperf.compare.estimate import spread_fraction
from kernelperf.compare.speed import speed_ratio
from kernelperf.compare.suite import Suite, judge_suite
from kernelperf.compare.verdict import (
    METRICS,
    STRUCTURE,
    Group,
    judged_groups,
    spread_limit,
    usable,
    values_of,
)
from kernelperf.errors import NotMeasurable, UnusableInput
from kernelperf.recording.records import Run, WorkloadRecording

__all__ = [
    "Code",
    "Comparison",
    "KernelChange",
    "Policy",
    "Reason",
    "Suite",
    "Verdict",
    "compare",
    "judge_suite",
    "speed_ratio",
    "wants_more_runs",
]

# Share of the difference that the kernels must account for, to be named as its cause.
EXPLAINED_SHARE = 0.5
_COPY_COUNTS = frozenset({"memcpys"})
_HOST_COUNTS = frozenset({"host_ops", "runtime_calls"})
_COMPILE_COUNTS = frozenset({"dynamo_graphs", "graph_breaks", "recompiles"})
_MEMORY_COUNTS = frozenset({"peak_memory_bytes"})
_ACCEPT = "record it and accept it: `pytest --kperf-update-baselines`, or `kernelperf accept RECORDING`"
_MORE_RUNS = "more runs narrow the interval: raise `--kperf-runs`"
_QUIET = "record again on a quiet GPU"


def compare(base: WorkloadRecording | None, now: WorkloadRecording, policy: Policy) -> Comparison:
    """Judge a workload against its baseline.

    Raises `UnusableInput` where the two are of different hardware or the metric is unknown, and
    `NotMeasurable` where now holds no samples of the metric.
    """
    _check_now(now, policy)
    if base is None:
        return _no_baseline(now, policy, Reason(Code.NOT_RECORDED, "the baseline holds no such workload"))
    _check_hardware(base, now)
    if base.definition != now.definition:
        changed = "its parameters or mode are not those of the baseline"
        return _no_baseline(now, policy, Reason(Code.DEFINITION_CHANGED, changed))
    if policy.metric != STRUCTURE and not usable(values_of(base.runs, policy.metric)):
        return _no_baseline(now, policy, Reason(Code.NOT_TIMED, f"the baseline holds no {policy.metric}"))
    groups = judged_groups(_timed(base.runs, policy), _timed(now.runs, policy), policy)
    described = [_described(base, now, policy, group) for group in groups]
    return _noting_others(max(described, key=_gravity), groups)


def _timed(runs: Sequence[Run], policy: Policy) -> tuple[Run, ...]:
    """The runs that have samples of the metric; all of them where none is needed."""
    return tuple(run for run in runs if policy.metric == STRUCTURE or values_of([run], policy.metric))


def _gravity(comparison: Comparison) -> tuple[int, int]:
    """Of several launch configs the worst verdict speaks for the workload, then the most runs."""
    severity = {Verdict.SLOWER: 2, Verdict.UNDECIDED: 1}
    return severity.get(comparison.verdict, 0), comparison.now_runs


def wants_more_runs(comparison: Comparison) -> bool:
    """Whether more runs could change the verdict, or are needed before the result can be accepted."""
    if comparison.metric == STRUCTURE:
        return False
    if comparison.verdict is not Verdict.SAME:
        return True
    return comparison.ratio is not None and comparison.ratio - 1 >= comparison.tolerance_fraction / 2


def _check_now(now: WorkloadRecording, policy: Policy) -> None:
    known = (*METRICS, STRUCTURE)
    if policy.metric not in known:
        raise UnusableInput(f"metric {policy.metric!r} is unknown; use one of {', '.join(known)}")
    values_ns = values_of(now.runs, policy.metric)
    if policy.metric != STRUCTURE and not usable(values_ns):
        raise NotMeasurable(
            f"workload {now.id!r} has no usable samples of {policy.metric}: expected durations above 0, "
            f"found {values_ns!r}; record it with timing on"
        )


def _check_hardware(base: WorkloadRecording, now: WorkloadRecording) -> None:
    if base.environment.hardware != now.environment.hardware:
        raise UnusableInput(
            f"workload {now.id!r} was recorded on {now.environment.hardware}, its baseline on "
            f"{base.environment.hardware}; only recordings of equal hardware are compared: name another one"
        )


def _no_baseline(now: WorkloadRecording, policy: Policy, reason: Reason) -> Comparison:
    values_ns = values_of(now.runs, policy.metric)
    return Comparison(
        workload=now.id,
        metric=policy.metric,
        verdict=Verdict.NO_BASELINE,
        reason=reason,
        tolerance_fraction=policy.tolerance_fraction,
        now_ns=statistics.geometric_mean(values_ns) if values_ns else None,
        now_runs=len(now.runs),
        now_spread_fraction=_spread(values_ns),
        undecided_hint=_ACCEPT,
    )


def _described(base: WorkloadRecording, now: WorkloadRecording, policy: Policy, group: Group) -> Comparison:
    kernels, kernel_delta_ns = changes.kernel_changes(group.base, group.now)
    counts = changes.count_changes(group.base, group.now)
    stack = changes.stack_changes(_stack(base), _stack(now))
    found = group.estimate
    described = Comparison(
        workload=now.id,
        metric=policy.metric,
        verdict=group.verdict,
        reason=Reason(group.code, ""),
        tolerance_fraction=policy.tolerance_fraction,
        base_ns=found.base_ns if found else None,
        now_ns=found.now_ns if found else None,
        ratio=found.ratio if found else None,
        lower=found.lower if found else None,
        upper=found.upper if found else None,
        base_runs=len(group.base),
        now_runs=len(group.now),
        kernel_changes=kernels,
        count_changes=counts,
        stack_changes=stack,
        state_changes=(*card_state.state_changes(group.base, group.now), *_dry(group.base, group.now)),
        base_spread_fraction=_spread(values_of(group.base, policy.metric)),
        now_spread_fraction=_spread(values_of(group.now, policy.metric)),
        kernel_delta_ns=kernel_delta_ns,
        counts_rose=bool(changes.risen(counts)) and changes.same_stack(base, now),
        card_shift=_taken_off(group, policy),
        yardsticks=card_state.yardstick_ratios(group.base, group.now),
        machine=card_state.machine_summary(group.base, group.now),
    )
    return _reasoned(described, group)


def _stack(rec: WorkloadRecording) -> tuple[tuple[str, str], ...]:
    """Versions, and what the workload tells of itself: both are shown, the versions alone decide."""
    return (*rec.environment.stack, *rec.about)


def _spread(values_ns: Sequence[float]) -> float | None:
    return spread_fraction(values_ns) if len(values_ns) > 1 else None


def _dry(base: Sequence[Run], now: Sequence[Run]) -> tuple[str, ...]:
    sides = (("the baseline", base), ("this recording", now))
    dry = [name for name, runs in sides if not runs[0].queue_held]
    return tuple(f"the GPU's queue ran dry in {name}: host time is part of its gpu_time" for name in dry)


def _taken_off(group: Group, policy: Policy) -> float | None:
    """The other workloads' ratio, where it was taken off this one's."""
    if policy.card is None or group.estimate is None or card_state.same_card(group.base, group.now):
        return None
    return math.exp(policy.card.log)


def _reasoned(comparison: Comparison, group: Group) -> Comparison:
    """Give the verdict its reason; a count that rose on the same stack makes one of its own."""
    verdict, code = comparison.verdict, Code(comparison.reason.code)
    if verdict is Verdict.SLOWER:
        code = _cause(comparison, group)
    elif comparison.counts_rose and verdict is not Verdict.FASTER:
        verdict, code = Verdict.SLOWER, Code.COUNTS
    elif verdict is Verdict.SAME and group.relaunched:
        code = _relaunch_code(group)
    hint = ""
    if verdict is Verdict.UNDECIDED:
        hint = _MORE_RUNS if code is Code.INTERVAL_INCLUDES_ZERO else _QUIET
    said_by_runs = {Code.CARD_DISTURBED: _disturbed, Code.NOISY: _noisy}.get(code)
    sentence = said_by_runs(group, comparison) if said_by_runs else _sentence(code, comparison)
    return replace(comparison, verdict=verdict, reason=Reason(code, sentence), undecided_hint=hint)


def _disturbed(group: Group, comparison: Comparison) -> str:
    change = "" if comparison.ratio is None else f"{comparison.ratio - 1:+.1%}, but "
    now_worse = card_state.disturbance(group.base, group.now)
    if now_worse:
        return f"{change}the card was disturbed: {now_worse}"
    base_worse = card_state.slower_baseline(group.base, group.now)
    return f"{change}the baseline was recorded on a slower clock: {base_worse}"


def _noisy(group: Group, comparison: Comparison) -> str:
    spreads = [spread or 0.0 for spread in (comparison.base_spread_fraction, comparison.now_spread_fraction)]
    limit = spread_limit(comparison.metric, group.base)
    return f"runs differ by {max(spreads):.1%} (robust CV), more than {limit:.1%}: the GPU was disturbed"


def _cause(comparison: Comparison, group: Group) -> Code:
    """The layer that is to blame: what changes what is launched before what launches it slower."""
    counted = _counted_cause(comparison)
    if counted in (Code.EAGER_FALLBACK, Code.RECOMPILE):
        return counted
    if group.relaunched:
        return _relaunch_code(group)
    if comparison.metric in ("gpu_time", "kernel_time") and _explained(comparison):
        return Code.KERNEL_TIME
    if counted is not None:
        return counted
    return Code.COUNTS if comparison.counts_rose else Code.UNEXPLAINED


def _counted_cause(comparison: Comparison) -> Code | None:
    """What the counts alone tell, the gravest first; None where they tell nothing."""
    moved = {name: (before, now) for name, before, now in comparison.count_changes}
    rose = {name for name, (before, now) in moved.items() if now > before}
    if moved.get("dynamo_graphs", (0, 1))[1] == 0:
        return Code.EAGER_FALLBACK
    if rose & _COMPILE_COUNTS:
        return Code.RECOMPILE
    if rose & _COPY_COUNTS:
        return Code.COPIES
    if rose & _HOST_COUNTS:
        return Code.HOST_OPS
    return Code.MEMORY if rose & _MEMORY_COUNTS else None


def _relaunch_code(group: Group) -> Code:
    names = [[launched[0] for launched in runs[0].launch_config] for runs in (group.base, group.now)]
    return Code.LAUNCH_CONFIG if names[0] == names[1] else Code.KERNELS


def _explained(comparison: Comparison) -> bool:
    delta_ns, kernel_delta_ns = comparison.delta_ns, comparison.kernel_delta_ns
    return (
        delta_ns is not None and kernel_delta_ns is not None and kernel_delta_ns >= EXPLAINED_SHARE * delta_ns
    )


def _sentence(code: Code, comparison: Comparison) -> str:
    change = f"{comparison.ratio - 1:+.1%}" if comparison.ratio is not None else "no time taken"
    rose = ", ".join(
        f"{name} {before} → {now}" for name, before, now in changes.risen(comparison.count_changes)
    )
    return {
        Code.WITHIN_TOLERANCE: "within the tolerance",
        Code.BEYOND_TOLERANCE: f"{change}: accept it to guard the gain",
        Code.LAUNCH_CONFIG: f"the same kernels take another launch config: {change}",
        Code.KERNELS: f"other kernels are launched: {change}",
        Code.KERNEL_TIME: f"the same kernels, launched alike, take longer: {change}",
        Code.COUNTS: f"a count rose on the same stack: {rose}",
        Code.COPIES: f"it copies more between buffers: {_moves(comparison, _COPY_COUNTS)}",
        Code.HOST_OPS: f"the host does more for a step: {_moves(comparison, _HOST_COUNTS)}",
        Code.RECOMPILE: f"the compiler does not keep one graph: {_moves(comparison, _COMPILE_COUNTS)}",
        Code.EAGER_FALLBACK: f"it was compiled, and runs eager now: {_moves(comparison, _COMPILE_COUNTS)}",
        Code.MEMORY: f"{change}, in no kernel; more memory is held: {_moves(comparison, _MEMORY_COUNTS)}",
        Code.UNEXPLAINED: f"no kernel explains the difference: {change}",
        Code.INTERVAL_INCLUDES_ZERO: f"{change}, but the interval includes no change",
        Code.QUEUE_RAN_DRY: "the GPU's queue ran dry, so host time was measured",
    }[code]


def _moves(comparison: Comparison, names: Collection[str]) -> str:
    return ", ".join(
        f"{name} {before} → {now}" for name, before, now in comparison.count_changes if name in names
    )


def _noting_others(comparison: Comparison, groups: Sequence[Group]) -> Comparison:
    if len(groups) == 1:
        return comparison
    runs = sum(len(group.now) for group in groups)
    note = f"{comparison.now_runs} of {runs} runs; the others took another launch config and are not pooled"
    reason = Reason(comparison.reason.code, f"{comparison.reason.sentence} (in {note})")
    return replace(comparison, reason=reason)
