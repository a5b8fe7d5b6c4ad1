"""What a trace holds → what is wrong with it, each problem with its scope: trace, timing or step."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from kernelperf.trace import Kernel, Problem, RuntimeCall, Step, Transfer
from kernelperf.trace.silence import Silence, silenced_steps

# Those that may let their kernel begin before the one before it ends (programmatic dependent launch).
_MAY_BEGIN_EARLY = re.compile(r"(?:cuda|cu)LaunchKernelEx\w*")
# The profiler's clock counts in steps of 32 ns on an H200; in its traces no other kernels overlapped at all.
_CLOCK_ERROR_NS = 64
_DROPPED = re.compile(r"drop|lost|out of (?:gpu )?buffer|overflow", re.IGNORECASE)
_SHOWN_STEPS = 5


# A step's kernels in launch order: name, grid, block.
Launched: TypeAlias = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Marks:
    """The annotations that make the steps: what they are called, and what is known of how they are made.

    ``numbered`` are the numbers in their names, in order.  ``ours`` are kernelperf's own, numbered from 0;
    ``contiguous`` ones leave nothing between two steps (the profiler's).  ``on_gpu`` are the names that the
    GPU's lane repeats, which it does only for an annotation in which something was launched.
    """

    numbered: tuple[int, ...] = ()
    ours: bool = False
    contiguous: bool = False
    overlapping: int = 0
    asked_for: str = ""  # a name that was asked for and isn't there
    others: tuple[str, ...] = ()  # what is there instead
    on_gpu: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that problems are told from."""

    kernels: Sequence[Kernel]
    transfers: Sequence[Transfer]
    launches: Mapping[int, RuntimeCall]
    steps: Sequence[Step]
    marks: Marks
    silence: Silence
    log_lines: Sequence[str]
    processes: int = 1  # that made runtime calls


def problems(found: Evidence) -> tuple[Problem, ...]:
    """Return every problem found, the gravest scope first."""
    orders = {launched(step) for step in found.steps}
    return (
        *_lost_kernels(found),
        *_lost_launches(found),
        *_shared_launches(found.kernels),
        *_several_processes(found.processes),
        *_silence(found, orders),
        *_dropped(found.log_lines),
        *_marks_without_work(found),
        *_missing_marks(found.marks),
        *_times(found.kernels),
        *_overlaps(found.kernels),
        *_absent_mark(found.marks),
        *_overlapping_marks(found.marks),
        *_steps_by_time(found),
        *_differing_steps(found.steps, orders),
        *_earlier_steps(found.marks),
        *_kernels_between_steps(found),
    )


def launched(step: Step) -> Launched:
    """Return what a step launched: steps that agree in it are alike."""
    return tuple([(kernel.name, kernel.grid, kernel.block) for kernel in step.kernels])


def _lost_kernels(found: Evidence) -> Iterator[Problem]:
    if not found.kernels:
        yield Problem("no-kernels", "trace", "the trace has no kernels: it proves nothing about the GPU")
    ran = {kernel.correlation for kernel in found.kernels}
    moved = {transfer.launch.correlation for transfer in found.transfers if transfer.launch}
    launches = [call for call in found.launches.values() if call.launches_kernels]
    launches.sort(key=lambda call: call.start_ns)
    lost = [
        call.correlation not in ran and not (call.is_graph and call.correlation in moved) for call in launches
    ]
    if any(lost):
        yield Problem(
            "launches-without-kernels",
            "trace",
            f"{_several(sum(lost), 'launch', 'launches')} without kernels ({_where(lost)}"
            f"{_in_steps([c for c, gone in zip(launches, lost, strict=True) if gone], found.steps)}): "
            "the trace lost kernels",
            sum(lost),
        )


def _where(lost: Sequence[bool]) -> str:
    """Say where in the trace's launches the lost ones are: its first, its last, or in between."""
    number = sum(lost)
    if number == len(lost):
        return "all of them"
    if all(lost[:number]):
        return "the first"
    if all(lost[-number:]):
        return "the last"
    return "in between"


def _in_steps(calls: Sequence[RuntimeCall], steps: Sequence[Step]) -> str:
    names = [
        step.name
        for step in steps
        if any(step.start_ns <= call.start_ns < step.start_ns + step.duration_ns for call in calls)
    ]
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN_STEPS} more" if len(names) > _SHOWN_STEPS else ""
    return f", in {', '.join(names[:_SHOWN_STEPS])}{more}"


def _lost_launches(found: Evidence) -> Iterator[Problem]:
    orphans = sum(kernel.launch is None for kernel in found.kernels)
    if orphans and found.launches:  # a trace of the GPU alone has no launches at all
        yield Problem(
            "kernels-without-launches",
            "trace",
            f"{_several(orphans, 'kernel')} without launches: which op and step launched them is unknown",
            orphans,
        )


def _shared_launches(kernels: Sequence[Kernel]) -> Iterator[Problem]:
    """One launch makes one kernel, unless it launches a graph: else rows are there twice."""
    launches = Counter(
        kernel.correlation
        for kernel in kernels
        if kernel.launch and not kernel.launch.is_graph and kernel.launch.launches_kernels
    )
    extra = launches.total() - len(launches)
    if extra:
        yield Problem(
            "kernels-sharing-a-launch",
            "trace",
            f"{_several(extra, 'kernel')} more than there are launches: rows of several sessions or "
            "processes are mixed, or doubled",
            extra,
        )


def _several_processes(processes: int) -> Iterator[Problem]:
    """Each process counts correlations by itself, so that those of two can't be told apart."""
    if processes > 1:
        yield Problem(
            "several-processes",
            "trace",
            f"runtime calls of {processes} processes: files were merged, and which call launched which "
            "kernel can't be told; read them one by one",
            processes,
        )


def _silence(found: Evidence, orders: Set[Launched]) -> Iterator[Problem]:
    """Launches that are lost together with their kernels; torch's own rows of the ops are left."""
    silence = found.silence
    steps = silenced_steps(found.steps) if len(orders) > 1 else ()
    names = ", ".join(silence.names[:_SHOWN_STEPS])
    if silence.after_the_end:
        yield Problem(
            "ops-after-the-end",
            "trace",
            f"{_several(silence.after_the_end, 'op')} after the last runtime call, of kinds that launched "
            f"kernels before ({names}): the trace lost launches and kernels from there on",
            silence.after_the_end,
        )
    if steps:
        yield Problem(
            "silent-steps",
            "trace",
            f"{_several(len(steps), 'step')} ({', '.join(steps[:_SHOWN_STEPS])}) in which an op launched "
            "nothing that launched a kernel in another step: the trace lost launches and kernels",
            len(steps),
        )
    elif silence.elsewhere:
        yield Problem(
            "silent-ops",
            "step",
            f"{_several(silence.elsewhere, 'op')} without a runtime call, though ops of the same names and "
            f"shapes launched kernels ({names}): they ran on the CPU, or launches and kernels were lost",
            silence.elsewhere,
        )


def _dropped(log_lines: Sequence[str]) -> Iterator[Problem]:
    lines = [line for line in log_lines if _DROPPED.search(line)]
    if lines:
        yield Problem(
            "dropped-events", "trace", f"the profiler says that it dropped events: {lines[0]!r}", len(lines)
        )


def _marks_without_work(found: Evidence) -> Iterator[Problem]:
    empty = [
        step.name
        for step in found.steps
        if step.name in found.marks.on_gpu and not step.kernels and not step.transfers
    ]
    if empty and found.kernels:
        yield Problem(
            "marks-disagree",
            "trace",
            f"{_several(len(empty), 'step')} without any kernel, though the GPU's lane shows their mark "
            f"({', '.join(empty[:_SHOWN_STEPS])}): marks and counts disagree, kernels were lost",
            len(empty),
        )


def _missing_marks(marks: Marks) -> Iterator[Problem]:
    first = -1 if marks.ours else min(marks.numbered, default=0)
    gaps = [(before + 1, now) for before, now in pairwise((first, *marks.numbered)) if now - before > 1]
    missing = sum(end - start for start, end in gaps)
    if missing:
        shown = ", ".join(
            str(start) if end - start == 1 else f"{start}–{end - 1}" for start, end in gaps[:_SHOWN_STEPS]
        )
        yield Problem(
            "steps-missing",
            "trace" if marks.ours else "step",
            f"{_several(missing, 'step')} missing between the marked ones (number {shown}"
            f"{' …' if len(gaps) > _SHOWN_STEPS else ''})",
            missing,
        )


def _times(kernels: Sequence[Kernel]) -> Iterator[Problem]:
    unstamped = sum(kernel.start_ns <= 0 for kernel in kernels)
    if unstamped:
        yield Problem(
            "zero-timestamp",
            "timing",
            f"{_several(unstamped, 'kernel')} without a start time: their times can't be used",
            unstamped,
        )
    no_time = sum(kernel.duration_ns <= 0 < kernel.start_ns for kernel in kernels)
    if no_time:
        yield Problem(
            "zero-duration",
            "timing",
            f"{_several(no_time, 'kernel')} of zero or negative duration: times can't be used",
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
            f"{_several(wrong, 'kernel')} beginning while the one before on the stream still ran: times "
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
        others = ", ".join(map(repr, marks.others[:_SHOWN_STEPS])) or "none"
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
            f"{_several(marks.overlapping, 'mark')} beginning before the one before has ended: which step "
            "launched what can't be told, so there are no steps",
            marks.overlapping,
        )


def _steps_by_time(found: Evidence) -> Iterator[Problem]:
    if found.steps and found.kernels and not found.launches:
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
            f"{_several(outside, 'kernel')} launched outside every step: the steps' counts leave them out",
            outside,
        )


def _several(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
