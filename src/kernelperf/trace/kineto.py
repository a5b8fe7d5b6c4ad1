"""A torch.profiler chrome trace → a Trace: what was launched, by which op, in which step, and what is wrong.

A kernel belongs to the op and the step in which it was launched: the call of the same correlation, on
whatever thread.  A step is the span of its mark; what any thread launches within the span is the step's, so
that a backward pass, which blocks the marked thread while autograd's threads launch, is all there.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from kernelperf.trace import Device, Kernel, Launch, Op, RuntimeCall, Step, Trace, Transfer
from kernelperf.trace.chrome import Contents, read_rows
from kernelperf.trace.integrity import problems
from kernelperf.trace.roles import DEFAULT_RULES, RoleRules, role_of

STEP_MARK = "kernelperf_step"

_OP_CATEGORIES = frozenset({"cpu_op", "user_annotation"})
_CALL_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime"})
_GPU_CATEGORIES = frozenset({"kernel", "gpu_memset", "gpu_memcpy"})
_OUR_STEP = re.compile(rf"{STEP_MARK}#\d+")
_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")


class Span(NamedTuple):
    """A row with its times in nanoseconds."""

    start_ns: int
    duration_ns: int
    row: Any

    @property
    def end_ns(self) -> int:
        """Where it ends."""
        return self.start_ns + self.duration_ns

    @property
    def thread(self) -> str:
        """Process and thread, as the trace names them."""
        return f"{self.row.pid}:{self.row.tid}"


def read_trace(path: Path, *, mark: str | None = None, rules: RoleRules = DEFAULT_RULES) -> Trace:
    """Read a trace that torch.profiler exported, gzip or not.

    Steps are the host annotations named ``mark`` (or ``mark#N``) if it is given, else kernelperf's own
    marks, else ``ProfilerStep#N``; a trace without any has no steps.  Raises `UnusableInput` for a file that
    is no such trace.
    """
    contents = read_rows(path)
    spans = _by_category(contents)
    marks = _marks(spans["user_annotation"], mark)
    hosts = _Hosts([*spans["cpu_op"], *spans["user_annotation"]], marks, _all(spans, _CALL_CATEGORIES))
    gpu = _Gpu(spans, hosts, rules)
    return Trace(
        ops=hosts.ops,
        kernels=gpu.kernels,
        transfers=gpu.transfers,
        runtime_calls=hosts.calls,
        steps=(steps := _steps(marks, hosts, gpu)),
        devices=tuple(
            Device(each.name, each.sm_count or 0, each.memory_bytes or 0, (each.major or 0, each.minor or 0))
            for each in contents.devices
        ),
        problems=problems(gpu.kernels, hosts.launches, steps, contents.log_lines),
    )


def _by_category(contents: Contents) -> dict[str, list[Span]]:
    spans: dict[str, list[Span]] = defaultdict(list)
    for start_ns, duration_ns, row in zip(
        contents.starts_ns, contents.durations_ns, contents.rows, strict=True
    ):
        spans[row.cat].append(Span(start_ns, duration_ns, row))
    return spans


def _all(spans: dict[str, list[Span]], categories: Iterable[str]) -> list[Span]:
    return [span for category in sorted(categories) for span in spans.get(category, ())]


def _marks(annotations: Sequence[Span], mark: str | None) -> list[Span]:
    asked = re.compile(rf"{re.escape(mark)}(?:#\d+)?") if mark else None
    for pattern in (asked,) if asked else (_OUR_STEP, _PROFILER_STEP):
        found = [span for span in annotations if pattern.fullmatch(span.row.name)]
        if found:
            return sorted(found, key=lambda span: span.start_ns)
    return []


class _Hosts:
    """The host's side: ops with their parents, runtime calls, and launches with the ops around them."""

    def __init__(self, op_spans: list[Span], marks: list[Span], call_spans: list[Span]) -> None:
        marked = {id(span.row) for span in marks}
        threads: dict[str, list[Span]] = defaultdict(list)
        for span in op_spans:
            if id(span.row) not in marked:
                threads[span.thread].append(span)
        for span in call_spans:
            threads[span.thread].append(span)
        self._ops: list[Op] = []
        self._by_external_id: dict[int, tuple[Op, ...]] = {}
        self._calls: list[tuple[Span, tuple[Op, ...]]] = []
        for thread in sorted(threads):
            self._nest(threads[thread])
        self.ops = tuple(sorted(self._ops, key=lambda op: op.start_ns))
        self._calls.sort(key=lambda call: call[0].start_ns)
        self.calls = tuple(
            RuntimeCall(
                span.row.name, span.thread, span.start_ns, span.duration_ns, _argument(span, "correlation")
            )
            for span, _ in self._calls
        )
        self.launches = {launch.correlation: launch for launch in reversed(list(self._launches()))}

    def _nest(self, spans: list[Span]) -> None:
        """Walk one thread in time: at any row, the stack holds the ops around it."""
        spans.sort(key=lambda span: (span.start_ns, -span.duration_ns))
        stack: list[tuple[int, Op]] = []
        for span in spans:
            while stack and stack[-1][0] <= span.start_ns:
                stack.pop()
            around = tuple(op for _, op in stack)
            if span.row.cat not in _OP_CATEGORIES:
                self._calls.append((span, around))
                continue
            op = _op(len(self._ops), span, around[-1].index if around else None)
            self._ops.append(op)
            stack.append((span.end_ns, op))
            external_id = _argument(span, "external_id")
            if external_id is not None:
                self._by_external_id.setdefault(external_id, (*around, op))

    def _launches(self) -> Iterator[Launch]:
        for span, around in self._calls:
            correlation = _argument(span, "correlation")
            if correlation is None:
                continue
            ops = around or self._by_external_id.get(_argument(span, "external_id") or -1, ())
            yield Launch(span.row.name, span.thread, span.start_ns, span.duration_ns, correlation, ops)


class _Gpu:
    """The GPU's side, in launch order."""

    def __init__(self, spans: dict[str, list[Span]], hosts: _Hosts, rules: RoleRules) -> None:
        self.kernels = _in_launch_order([_kernel(span, hosts, rules) for span in spans.get("kernel", ())])
        self.transfers = _in_launch_order(
            [
                _transfer(span, hosts)
                for category in ("gpu_memset", "gpu_memcpy")
                for span in spans.get(category, ())
            ]
        )


def _in_launch_order(things: list[Any]) -> tuple[Any, ...]:
    def key(thing: Any) -> tuple[int, int]:
        return (thing.launch.start_ns if thing.launch else thing.start_ns, thing.start_ns)

    return tuple(sorted(things, key=key))


def _kernel(span: Span, hosts: _Hosts, rules: RoleRules) -> Kernel:
    correlation = _argument(span, "correlation")
    launch = hosts.launches.get(correlation)
    args = span.row.args
    return Kernel(
        name=span.row.name,
        role=role_of(span.row.name, tuple(op.name for op in launch.ops) if launch else (), rules),
        start_ns=span.start_ns,
        duration_ns=span.duration_ns,
        device=_argument(span, "device") or 0,
        stream=_argument(span, "stream") or 0,
        correlation=correlation if correlation is not None else -1,
        grid=_whole_numbers(args.grid) if args else (),
        block=_whole_numbers(args.block) if args else (),
        registers=int(_argument(span, "registers") or 0),
        shared_memory_bytes=int(_argument(span, "shared_memory") or 0),
        launch=launch,
    )


def _transfer(span: Span, hosts: _Hosts) -> Transfer:
    return Transfer(
        kind="memset" if span.row.cat == "gpu_memset" else "memcpy",
        name=span.row.name,
        start_ns=span.start_ns,
        duration_ns=span.duration_ns,
        size_bytes=int(_argument(span, "size_bytes") or 0),
        launch=hosts.launches.get(_argument(span, "correlation")),
    )


def _op(index: int, span: Span, parent: int | None) -> Op:
    args = span.row.args
    return Op(
        index=index,
        name=span.row.name,
        category=span.row.cat,
        thread=span.thread,
        start_ns=span.start_ns,
        duration_ns=span.duration_ns,
        parent=parent,
        input_dims=_dims(bytes(args.input_dims)) if args and args.input_dims is not UNSET else (),
        input_types=_types(bytes(args.input_types)) if args and args.input_types is not UNSET else (),
        triton_config=_triton_config(args),
    )


def _triton_config(args: Any) -> str | None:
    if args is None or args.kernel_kwargs is None:
        return None
    sizes = args.kernel_kwargs.replace(",", " ")
    return " ".join(f"{sizes} warps={args.num_warps} stages={args.num_stages}".split())


def _steps(marks: Sequence[Span], hosts: _Hosts, gpu: _Gpu) -> tuple[Step, ...]:
    ops, calls = _Timeline(hosts.ops), _Timeline(hosts.calls)
    kernels, transfers = _launched(gpu.kernels), _launched(gpu.transfers)
    return tuple(
        Step(
            index=index,
            name=mark.row.name,
            start_ns=mark.start_ns,
            duration_ns=mark.duration_ns,
            ops=ops.within(mark),
            kernels=kernels.within(mark),
            transfers=transfers.within(mark),
            runtime_calls=calls.within(mark),
        )
        for index, mark in enumerate(marks)
    )


class _Timeline:
    """Things sorted by a time each, to be cut by spans."""

    def __init__(self, things: Sequence[Any], times_ns: Sequence[int] | None = None) -> None:
        self._things = things
        self._times_ns = [thing.start_ns for thing in things] if times_ns is None else times_ns

    def within(self, span: Span) -> tuple[Any, ...]:
        """Return what starts in the span."""
        first = bisect_left(self._times_ns, span.start_ns)
        return tuple(self._things[first : bisect_left(self._times_ns, span.end_ns)])


def _launched(things: Sequence[Any]) -> _Timeline:
    """Things on the GPU, by the time of their launch."""
    launched = [thing for thing in things if thing.launch is not None]
    return _Timeline(launched, [thing.launch.start_ns for thing in launched])


def _argument(span: Span, name: str) -> Any:
    return getattr(span.row.args, name) if span.row.args is not None else None


def _whole_numbers(raw: Any) -> tuple[int, ...]:
    return _numbers(bytes(raw)) if raw is not UNSET else ()


@lru_cache(maxsize=65536)
def _numbers(raw: bytes) -> tuple[int, ...]:
    return tuple(int(number) for number in msgspec.json.decode(raw, type=list[float]))


@lru_cache(maxsize=65536)
def _dims(raw: bytes) -> tuple[tuple[int, ...], ...]:
    """Decode ``Input Dims``; a list of tensors, whose entry holds a shape each, is not one shape."""
    return tuple(
        tuple(argument) if all(isinstance(size, int) for size in argument) else ()
        for argument in msgspec.json.decode(raw, type=list[list[Any]])
    )


@lru_cache(maxsize=65536)
def _types(raw: bytes) -> tuple[str, ...]:
    return tuple(str(kind) for kind in msgspec.json.decode(raw, type=list[Any]))
