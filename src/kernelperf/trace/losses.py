"""What a trace holds → what it lost, or can't be trusted in: problems of scope trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set

from kernelperf.trace import Kernel, Problem, RuntimeCall, Step
from kernelperf.trace.evidence import SHOWN, Evidence, Launched, several
from kernelperf.trace.silence import silenced_steps

_TRANSFER = re.compile(r"cuda(?:Memcpy|Memset)\w*Async\w*")
_DROPPED = re.compile(r"drop|lost|out of (?:gpu )?buffer|overflow", re.IGNORECASE)


def losses(found: Evidence, orders: Set[Launched]) -> Iterator[Problem]:
    """Tell every loss; ``orders`` are the different things that the steps launch."""
    yield from _lost_kernels(found)
    yield from _lost_launches(found)
    yield from _shared_launches(found.kernels)
    yield from _shared_correlations(found.calls)
    yield from _lost_transfers(found)
    yield from _several_processes(found.processes)
    yield from _untimed_host_rows(found.untimed_host_rows)
    yield from _silence(found, orders)
    yield from _dropped(found.log_lines)
    yield from _marks_without_work(found)


def _lost_kernels(found: Evidence) -> Iterator[Problem]:
    if not found.kernels:
        yield Problem("no-kernels", "trace", "the trace has no kernels: it proves nothing about the GPU")
    ran = {kernel.correlation for kernel in found.kernels}
    moved = {transfer.launch.correlation for transfer in found.transfers if transfer.launch}
    launches = [call for call in found.calls if call.launches_kernels]
    lost = [
        call.correlation not in ran and not (call.is_graph and call.correlation in moved) for call in launches
    ]
    if any(lost):
        yield Problem(
            "launches-without-kernels",
            "trace",
            f"{several(sum(lost), 'launch', 'launches')} without kernels ({_where(lost)}"
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
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f", in {', '.join(names[:SHOWN])}{more}"


def _lost_launches(found: Evidence) -> Iterator[Problem]:
    orphans = sum(kernel.launch is None for kernel in found.kernels)
    if orphans and not found.calls and found.ops:
        yield Problem(
            "no-launches",
            "step",
            "the trace has ops and kernels, but no runtime calls: which op launched what is not determinable",
        )
    elif orphans and found.calls:  # a trace of the GPU alone has no calls at all
        yield Problem(
            "kernels-without-launches",
            "trace",
            f"{several(orphans, 'kernel')} without launches: which op and step launched them is unknown",
            orphans,
        )


def _shared_launches(kernels: Sequence[Kernel]) -> Iterator[Problem]:
    """One launch makes one kernel, unless it launches a graph: else rows are there twice."""
    launches = Counter(
        kernel.correlation
        for kernel in kernels
        if kernel.launch and not kernel.launch.is_graph and kernel.launch.launches_kernels
    )
    rows = Counter((k.device, k.stream, k.start_ns, k.duration_ns, k.correlation, k.name) for k in kernels)
    extra = max(launches.total() - len(launches), rows.total() - len(rows))
    if extra:
        yield Problem(
            "kernels-sharing-a-launch",
            "trace",
            f"{several(extra, 'kernel')} more than there are launches: rows of several sessions or "
            "processes are mixed, or doubled",
            extra,
        )


def _shared_correlations(calls: Sequence[RuntimeCall]) -> Iterator[Problem]:
    launches = Counter(call.correlation for call in calls if call.launches_kernels and call.correlation)
    extra = launches.total() - len(launches)
    if extra:
        yield Problem(
            "launches-sharing-a-correlation",
            "trace",
            f"{several(extra, 'launch', 'launches')} of a correlation that another has: which of "
            "them launched a kernel can't be told",
            extra,
        )


def _lost_transfers(found: Evidence) -> Iterator[Problem]:
    """CUDA records a memset or memcpy for each asynchronous call of them."""
    launches = (*(each.launch for each in found.transfers), *(each.launch for each in found.kernels))
    ran = {launch.correlation for launch in launches if launch}
    asked = [call for call in found.calls if _TRANSFER.fullmatch(call.name)]
    lost = sum(call.correlation not in ran for call in asked)
    if lost:
        yield Problem(
            "calls-without-transfers",
            "trace",
            f"{several(lost, 'call')} of cudaMemcpyAsync or cudaMemsetAsync without a memcpy or memset: the "
            "trace lost them",
            lost,
        )
    orphans = sum(transfer.launch is None for transfer in found.transfers)
    if orphans and found.calls:
        yield Problem(
            "transfers-without-calls",
            "trace",
            f"{several(orphans, 'memcpy or memset', 'memcpys or memsets')} without a call: which op and "
            "step they belong to is unknown",
            orphans,
        )
    rows = Counter(
        (t.name, t.start_ns, t.duration_ns, t.launch and t.launch.correlation) for t in found.transfers
    )
    if rows.total() > len(rows):
        extra = rows.total() - len(rows)
        yield Problem(
            "doubled-transfers",
            "trace",
            f"{several(extra, 'row')} of memcpys or memsets that are there twice",
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


def _untimed_host_rows(number: int) -> Iterator[Problem]:
    if number:
        yield Problem(
            "host-rows-without-times",
            "trace",
            f"{several(number, 'op, mark or call', 'ops, marks or calls')} without a start or a duration: "
            "which op and step launched what can't be told",
            number,
        )


def _silence(found: Evidence, orders: Set[Launched]) -> Iterator[Problem]:
    """Launches that are lost together with their kernels; torch's own rows of the ops are left."""
    silence = found.silence
    steps = silenced_steps(found.steps) if len(orders) > 1 else ()
    names = ", ".join(silence.names[:SHOWN])
    if silence.after_the_end:
        yield Problem(
            "ops-after-the-end",
            "trace",
            f"{several(silence.after_the_end, 'op')} after the last runtime call, of kinds that launched "
            f"kernels before ({names}): the trace lost launches and kernels from there on",
            silence.after_the_end,
        )
    if steps:
        yield Problem(
            "silent-steps",
            "trace",
            f"{several(len(steps), 'step')} ({', '.join(steps[:SHOWN])}) in which an op launched "
            "nothing that launched a kernel in another step: the trace lost launches and kernels",
            len(steps),
        )
    elif silence.elsewhere:
        yield Problem(
            "silent-ops",
            "step",
            f"{several(silence.elsewhere, 'op')} without a runtime call, though ops of the same names and "
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
            f"{several(len(empty), 'step')} without any kernel, though the GPU's lane shows their mark "
            f"({', '.join(empty[:SHOWN])}): marks and counts disagree, kernels were lost",
            len(empty),
        )
