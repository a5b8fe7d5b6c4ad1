"""What a trace holds → what is wrong with it, each problem with its scope: trace, timing or step."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from itertools import pairwise

from kernelperf.trace import Kernel, Problem, Step
from kernelperf.trace.evidence import SHOWN, Evidence, Launched, Marks, launched, several
from kernelperf.trace.losses import losses

# Those that may let their kernel begin before the one before it ends (programmatic dependent launch).
_MAY_BEGIN_EARLY = re.compile(r"(?:cuda|cu)LaunchKernelEx\w*")
# The profiler's clock counts in steps of 32 ns on an H200; in its traces no other kernels overlapped at all.
_CLOCK_ERROR_NS = 64


def problems(found: Evidence) -> tuple[Problem, ...]:
    """Return every problem found, the gravest scope first."""
    orders = {launched(step) for step in found.steps}
    return (
        *losses(found, orders),
        *_missing_marks(found.marks),
        *_times(found.kernels),
        *_overlaps(found.kernels),
        *_absent_mark(found.marks),
        *_differing_replays(found.kernels),
        *_overlapping_marks(found.marks),
        *_steps_by_time(found),
        *_differing_steps(found.steps, orders),
        *_earlier_steps(found.marks),
        *_kernels_between_steps(found),
    )


def _differing_replays(kernels: Sequence[Kernel]) -> Iterator[Problem]:
    """A replay that holds only a part of another's kernels is of another graph, or lost some."""
    replays: dict[int, Counter[str]] = defaultdict(Counter)
    for kernel in kernels:
        if kernel.launch and kernel.launch.is_graph:
            replays[kernel.correlation][kernel.name] += 1
    kinds = {frozenset(replay.items()): replay for replay in replays.values()}
    parts = [one for one in kinds.values() if any(one < other for other in kinds.values())]
    if parts:
        yield Problem(
            "graph-replays-differ",
            "step",
            f"{len(replays)} graph replays of {len(kinds)} kinds, of which {len(parts)} launch only a part "
            "of another's kernels: other graphs, or kernels lost",
            len(parts),
        )


def _missing_marks(marks: Marks) -> Iterator[Problem]:
    if not (marks.ours or marks.contiguous):  # others may be numbered by anything
        return
    first = -1 if marks.ours else min(marks.numbered, default=0)
    gaps = [(before + 1, now) for before, now in pairwise((first, *marks.numbered)) if now - before > 1]
    missing = sum(end - start for start, end in gaps)
    if missing:
        shown = ", ".join(
            str(start) if end - start == 1 else f"{start}–{end - 1}" for start, end in gaps[:SHOWN]
        )
        yield Problem(
            "steps-missing",
            "trace" if marks.ours else "step",
            f"{several(missing, 'step')} missing between the marked ones (number {shown}"
            f"{' …' if len(gaps) > SHOWN else ''})",
            missing,
        )


def _times(kernels: Sequence[Kernel]) -> Iterator[Problem]:
    unstamped = sum(kernel.start_ns <= 0 for kernel in kernels)
    if unstamped:
        yield Problem(
            "zero-timestamp",
            "timing",
            f"{several(unstamped, 'kernel')} without a start time: their times can't be used",
            unstamped,
        )
    no_time = sum(kernel.duration_ns <= 0 < kernel.start_ns for kernel in kernels)
    if no_time:
        yield Problem(
            "zero-duration",
            "timing",
            f"{several(no_time, 'kernel')} of zero or negative duration: times can't be used",
            no_time,
        )


def _overlaps(kernels: Sequence[Kernel]) -> Iterator[Problem]:
    """On one stream a kernel begins when the one before has ended, unless its launch says otherwise."""
    streams: dict[tuple[int, int], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.start_ns > 0 and kernel.launch is not None and kernel.launch.name.startswith("cu"):
            streams[kernel.device, kernel.stream].append(kernel)
    wrong = sum(_overlaps_wrongly(*pair) for stream in streams.values() for pair in pairwise(stream))
    if wrong:
        yield Problem(
            "impossible-overlap",
            "timing",
            f"{several(wrong, 'kernel')} beginning while the one before on the stream still ran: times "
            "can't be used",
            wrong,
        )


def _overlaps_wrongly(before: Kernel, now: Kernel) -> bool:
    if now.start_ns + _CLOCK_ERROR_NS >= before.start_ns + before.duration_ns:
        return False
    if now.launch is None or now.launch.is_graph:  # a graph's branches may run side by side
        return False
    early = _MAY_BEGIN_EARLY.fullmatch(now.launch.name) is not None
    return not early or now.start_ns + _CLOCK_ERROR_NS < before.start_ns


def _absent_mark(marks: Marks) -> Iterator[Problem]:
    if marks.asked_for:
        others = ", ".join(map(repr, marks.others[:SHOWN])) or "none"
        yield Problem(
            "mark-absent",
            "step",
            f"no annotation on the host is named {marks.asked_for!r} or {marks.asked_for + '#N'!r}, so there "
            f"are no steps; it has {others}",
        )


def _overlapping_marks(marks: Marks) -> Iterator[Problem]:
    if marks.overlapping:
        yield Problem(
            "marks-overlap",
            "step",
            f"{several(marks.overlapping, 'mark')} beginning before the one before has ended: which step "
            "launched what can't be told, so there are no steps",
            marks.overlapping,
        )


def _steps_by_time(found: Evidence) -> Iterator[Problem]:
    if found.steps and found.kernels and not found.calls:
        yield Problem(
            "steps-by-time",
            "step",
            "the trace has no launches: a kernel is counted to the step during which it ran, which may not "
            "have launched it",
        )


def _differing_steps(steps: Sequence[Step], orders: Set[Launched]) -> Iterator[Problem]:
    if len(orders) < 2:
        return
    kinds = {frozenset(Counter(order).items()) for order in orders}
    counts = ", ".join(str(len(step.kernels)) for step in steps)
    if len(kinds) == 1:
        yield Problem(
            "step-order-differs",
            "step",
            f"{len(steps)} steps launch the same kernels in {len(orders)} orders (several threads do so)",
            len(orders),
        )
        return
    yield Problem(
        "steps-differ",
        "step",
        f"{len(steps)} steps launch {len(kinds)} different things (kernels a step: {counts})",
        len(kinds),
    )


def _earlier_steps(marks: Marks) -> Iterator[Problem]:
    """A schedule's earlier cycle has as many steps as the last: there is room for it, or there is not."""
    first = min(marks.numbered, default=0)
    if marks.contiguous and first >= len(marks.numbered):
        yield Problem(
            "earlier-steps-absent",
            "step",
            f"{first} steps before the first that the trace holds (number {first}): waited for, warm-up, or "
            "cycles of the schedule that were not kept (export each in on_trace_ready)",
            first,
        )


def _kernels_between_steps(found: Evidence) -> Iterator[Problem]:
    if not found.steps or not (found.marks.ours or found.marks.contiguous):
        return
    outside = len(found.kernels) - sum(len(step.kernels) for step in found.steps)
    if outside > 0:
        yield Problem(
            "kernels-outside-steps",
            "step",
            f"{several(outside, 'kernel')} launched outside every step: the steps' counts leave them out",
            outside,
        )
