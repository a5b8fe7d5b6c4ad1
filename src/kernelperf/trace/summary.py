"""A whole trace → what it holds, counted: kernels, roles, ops, and how long the GPU was busy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelperf.trace import Device, Kernel, Problem, Role, Trace, Transfer
from kernelperf.trace.host import Ops


@dataclass(frozen=True, slots=True)
class OpTotal:
    """All calls of the ops of one name, and what was launched inside them, directly or further in.

    ``gpu_time_ns`` counts memsets and memcpys too.
    """

    name: str
    calls: int
    kernels: int
    gpu_time_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What a trace holds.

    ``steps`` and ``kernels_per_step`` are None where nothing marks steps.  ``ops`` are in the order in which
    their names first appear; unless ``ops_known``, what was launched inside them is not determinable: there
    are no host rows, no launches, or a CUDA graph launched the kernels.  Busy time is the union of the
    kernels' intervals, span reaches from the first kernel's start to the last one's end; kernels without
    usable times are left out of both.
    """

    problems: tuple[Problem, ...]
    steps: int | None
    kernels_per_step: tuple[int, ...] | None
    kernels: int
    memsets: int
    memcpys: int
    roles: tuple[tuple[Role, int], ...]
    kernel_names: tuple[str, ...]
    gpu_busy_ns: int
    gpu_span_ns: int
    ops: tuple[OpTotal, ...]
    ops_known: bool
    devices: tuple[Device, ...]  # that ran kernels, the busiest first
    streams: int

    @property
    def valid(self) -> bool:
        """Whether the trace is whole: it has kernels, and nothing says that it lost any."""
        return not any(problem.scope == "trace" for problem in self.problems)


def summarize(trace: Trace) -> Summary:
    """Count what a whole trace holds."""
    kernels = trace.kernels
    return Summary(
        problems=trace.problems,
        steps=len(trace.steps) if trace.steps else None,
        kernels_per_step=tuple(len(step.kernels) for step in trace.steps) if trace.steps else None,
        kernels=len(kernels),
        memsets=sum(transfer.kind == "memset" for transfer in trace.transfers),
        memcpys=sum(transfer.kind == "memcpy" for transfer in trace.transfers),
        roles=tuple(sorted(Counter(kernel.role for kernel in kernels).items())),
        kernel_names=tuple(kernel.name for kernel in kernels),
        gpu_busy_ns=busy_ns(kernels),
        gpu_span_ns=_span_ns(kernels),
        ops=op_totals(trace.ops, kernels, trace.transfers),
        ops_known=ops_known(trace.ops, kernels),
        devices=used_devices(trace),
        streams=len({(kernel.device, kernel.stream) for kernel in kernels}),
    )


def ops_known(ops: Sequence[object], kernels: Iterable[Kernel]) -> bool:
    """Tell whether it can be known which op launched each kernel: by a call of its own, not a graph's."""
    return bool(ops) and all(kernel.launch and not kernel.launch.is_graph for kernel in kernels)


def busy_ns(kernels: Iterable[Kernel]) -> int:
    """Return how long at least one of the kernels ran: the union of their intervals."""
    busy, until = 0, 0
    for start, end in sorted(_intervals(kernels)):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy


def op_totals(
    ops: Sequence[object], kernels: Iterable[Kernel], transfers: Iterable[Transfer]
) -> tuple[OpTotal, ...]:
    """Return a row an op name, in the order in which the names first appear.

    An op's kernels are those launched inside it on its own thread: a backward op's are its own, not the
    forward op's.
    """
    calls = Counter(_names(ops))
    launched, time_ns = Counter[str](), defaultdict[str, int](int)
    for kernel in kernels:
        inside = set(_names(kernel.ops))
        launched.update(inside)
        for name in inside:
            time_ns[name] += kernel.duration_ns
    for transfer in transfers:
        for name in set(_names(transfer.launch.ops if transfer.launch else ())):
            time_ns[name] += transfer.duration_ns
    return tuple(OpTotal(name, calls[name], launched[name], time_ns[name]) for name in calls)


def _names(ops: Sequence[object]) -> tuple[str, ...]:
    return ops.names if isinstance(ops, Ops) else ()


def _intervals(kernels: Iterable[Kernel]) -> list[tuple[int, int]]:
    return [
        (kernel.start_ns, kernel.start_ns + kernel.duration_ns)
        for kernel in kernels
        if kernel.start_ns > 0 and kernel.duration_ns > 0
    ]


def _span_ns(kernels: Iterable[Kernel]) -> int:
    intervals = _intervals(kernels)
    return max(end for _, end in intervals) - min(start for start, _ in intervals) if intervals else 0


def used_devices(trace: Trace) -> tuple[Device, ...]:
    """Return the GPUs that ran kernels, the busiest first, as the trace describes them."""
    known = {device.index: device for device in trace.devices}
    used = Counter(kernel.device for kernel in trace.kernels)
    return tuple(known.get(index, Device(index, "", 0, 0, (0, 0))) for index, _ in used.most_common())
