"""Two traces → what differs between them, with the time that each difference explains.

A single trace has no spread between runs, so this gives no verdict: it says where the time went.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelperf.compare.comparison import KernelChange
from kernelperf.compare.kernels import changed_kernels
from kernelperf.errors import NotMeasurable, UnusableInput
from kernelperf.kernel_list import kernel_records
from kernelperf.trace import Step, Trace
from kernelperf.trace.evidence import launched
from kernelperf.trace.roles import portable_name
from kernelperf.trace.summary import busy_ns, op_totals, ops_known, used_devices

_GRAPH_HASH = re.compile(r"## Call CompiledFxGraph \S+ ##")


@dataclass(frozen=True, slots=True)
class CallChange:
    """A host row or a runtime call that one side makes more often, appeared or vanished.

    ``delta_ns`` is the GPU time of what was launched inside it; rows nest, so these don't add up.
    """

    name: str
    before: int
    now: int
    delta_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """What differs between two traces: a step each, where both mark steps, else the whole.

    Times are of the GPU: the sum of kernels, memsets and memcpys, each the median over the steps that launch
    the same; None where a trace's times can't be used.  ``kernel_changes`` and ``rest`` together add up to
    the difference.  Ops are None where they can't be known (no host rows, or a CUDA graph).
    """

    what: str
    notes: tuple[str, ...]
    base_ns: float | None
    now_ns: float | None
    base_busy_ns: float | None
    now_busy_ns: float | None
    kernel_changes: tuple[KernelChange, ...]
    rest: tuple[tuple[str, float], ...]
    count_changes: tuple[CallChange, ...]
    op_changes: tuple[CallChange, ...] | None
    call_changes: tuple[CallChange, ...]

    @property
    def same_structure(self) -> bool:
        """Whether both launch the same kernels, launched alike."""
        return {change.kind for change in self.kernel_changes} <= {"slower", "faster"}

    @property
    def delta_ns(self) -> float | None:
        """How much longer now takes."""
        return None if self.base_ns is None or self.now_ns is None else self.now_ns - self.base_ns

    @property
    def ratio(self) -> float | None:
        """Now over base."""
        return None if not self.base_ns or self.now_ns is None else self.now_ns / self.base_ns


@dataclass(frozen=True, slots=True)
class _Side:
    """One trace's steps that launch the same, or the whole of it as one step."""

    steps: tuple[Step, ...]
    notes: tuple[str, ...]
    timed: bool

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def transfers_ns(self) -> float:
        return statistics.median(sum(each.duration_ns for each in step.transfers) for step in self.steps)

    @property
    def busy_ns(self) -> float:
        return statistics.median(busy_ns(step.kernels) for step in self.steps)


def compare_traces(base: Trace, now: Trace) -> TraceComparison:
    """Say what differs between two traces.

    Raises `NotMeasurable` for a trace without kernels or one that lost some, `UnusableInput` where only one
    of them marks steps.
    """
    _check(base, now)
    before, after = _side("the base", base), _side("now", now)
    changes, kernels_ns = changed_kernels(kernel_records(before.steps), kernel_records(after.steps))
    timed = before.timed and after.timed
    if not timed:
        changes = tuple(_untimed(change) for change in changes if change.kind not in ("slower", "faster"))
    transfers_ns = after.transfers_ns - before.transfers_ns
    rest = (
        ("kernels that changed too little to list", kernels_ns - sum(change.delta_ns for change in changes)),
        ("memsets and memcpys", transfers_ns),
    )
    known = all(ops_known(side.last.ops, side.last.kernels) for side in (before, after))
    return TraceComparison(
        what="a step" if base.steps else "the whole trace",
        notes=(*_other_gpus(base, now), *before.notes, *after.notes),
        base_ns=_total_ns(before) if timed else None,
        now_ns=_total_ns(after) if timed else None,
        base_busy_ns=before.busy_ns if timed else None,
        now_busy_ns=after.busy_ns if timed else None,
        kernel_changes=changes,
        rest=rest if timed else (),
        count_changes=_changed(_counts(before.last), _counts(after.last)),
        op_changes=_op_changes(before.last, after.last) if known else None,
        call_changes=_changed(_calls(before.last), _calls(after.last)),
    )


def _check(base: Trace, now: Trace) -> None:
    for name, trace in (("the base", base), ("now", now)):
        lost = "; ".join(problem.message for problem in trace.problems_of("trace"))
        if lost:
            raise NotMeasurable(f"{name} isn't whole: {lost}; record it again")
    if bool(base.steps) != bool(now.steps):
        marked, bare = ("the base", "now") if base.steps else ("now", "the base")
        raise UnusableInput(
            f"{marked} has {len(base.steps or now.steps)} marked steps, {bare} has none: they can't be "
            "aligned; name an annotation that is in both with --mark, or record both alike"
        )


def _other_gpus(base: Trace, now: Trace) -> tuple[str, ...]:
    gpus = [", ".join(device.name or "unknown" for device in used_devices(trace)) for trace in (base, now)]
    return (f"another GPU: {gpus[0]} → {gpus[1]}",) if gpus[0] != gpus[1] else ()


def _side(name: str, trace: Trace) -> _Side:
    unusable = trace.problems_of("timing")
    told = [problem.message for problem in trace.problems if problem.code != "steps-differ"]
    notes = tuple(f"{name}: {message}" for message in told)
    if not trace.steps:
        return _Side((_whole(trace),), notes, not unusable)
    kinds = Counter(launched(step) for step in trace.steps)
    commonest, number = kinds.most_common(1)[0]
    steps = tuple(step for step in trace.steps if launched(step) == commonest)
    if len(kinds) > 1:
        notes += (f"{name}: {number} of {len(trace.steps)} steps, which launch the same; the others differ",)
    return _Side(steps, notes, not unusable)


def _whole(trace: Trace) -> Step:
    return Step(
        index=0,
        name="the whole trace",
        start_ns=0,
        duration_ns=0,
        ops=trace.ops,
        kernels=trace.kernels,
        transfers=trace.transfers,
        runtime_calls=trace.runtime_calls,
    )


def _untimed(change: KernelChange) -> KernelChange:
    return replace(change, delta_ns=0.0, before_ns=0.0, now_ns=0.0)


def _total_ns(side: _Side) -> float:
    return sum(record.duration_ns for record in kernel_records(side.steps)) + side.transfers_ns


def _counts(step: Step) -> Counter[str]:
    kinds = Counter(f"{transfer.kind}s" for transfer in step.transfers)
    totals = {"kernels": len(step.kernels), "runtime calls": len(step.runtime_calls)}
    return Counter({**totals, **kinds, "host rows": len(step.ops)})


def _calls(step: Step) -> Counter[str]:
    return Counter(call.name for call in step.runtime_calls)


def _op_changes(before: Step, now: Step) -> tuple[CallChange, ...]:
    calls: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    times_ns: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for side, step in enumerate((before, now)):
        for row in op_totals(step.ops, step.kernels, step.transfers):
            calls[side][_portable_op(row.name)] += row.calls
            times_ns[side][_portable_op(row.name)] += row.gpu_time_ns
    return tuple(
        CallChange(
            change.name,
            change.before,
            change.now,
            times_ns[1][change.name] - times_ns[0][change.name],
        )
        for change in _changed(*calls)
    )


def _portable_op(name: str) -> str:
    """Return an op's name without what another compilation would change: a graph's hash, a kernel's index."""
    return _GRAPH_HASH.sub("## Call CompiledFxGraph ##", portable_name(name))


def _changed(before: Counter[str], now: Counter[str]) -> tuple[CallChange, ...]:
    names: Sequence[str] = list(dict.fromkeys([*before, *now]))
    return tuple(CallChange(name, before[name], now[name]) for name in names if before[name] != now[name])
