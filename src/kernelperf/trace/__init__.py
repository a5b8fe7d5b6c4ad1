"""The records that a profiler trace is read into: ops, launches, kernels, steps.

They are msgspec structs, not dataclasses: a trace has millions of rows, and a frozen struct is built in a
fifteenth of the time (0.07 against 1.05 µs for ten fields).  Copy one with ``msgspec.structs.replace``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, Protocol

from msgspec import Struct

Role = Literal["gemm", "splitk_reduce", "pointwise", "copy", "reduce", "comm", "other"]
Scope = Literal["trace", "timing", "step"]


# Calls that put exactly one kernel on a stream: on CUDA cudaLaunchKernel(ExC), cuLaunchKernel(Ex) and the
# cooperative ones; on ROCm hipLaunchKernel, hip(Ext|Hcc)ModuleLaunchKernel and hipLaunchByPtr; on
# XPU those of Unified Runtime and Level Zero.
_KERNEL_LAUNCH = re.compile(
    r"(?:cuda|cu|hip)\w*Launch\w*Kernel(?!s|MultiDevice)\w*|hipLaunchByPtr"
    r"|urEnqueueKernelLaunch\w*|zeCommandList\w*AppendLaunch\w*Kernel\w*"
)


_GRAPH_LAUNCH = "GraphLaunch"


@lru_cache(maxsize=1024)
def _launches_kernels(call_name: str) -> bool:
    return _GRAPH_LAUNCH in call_name or _KERNEL_LAUNCH.fullmatch(call_name) is not None


class Op(Struct, frozen=True, gc=False):
    """A host-side row: an aten op, an autograd function, a Dynamo or annotation row.

    ``index`` counts the trace's ops in the order of their start.  ``input_dims`` and ``input_types`` are as
    the profiler recorded them, one entry an argument (``()`` for a scalar).  ``parent`` is the ``index`` of
    the op around it on its thread.  ``triton_config`` is Inductor's launch config of a Triton kernel's row,
    such as ``XBLOCK=1024 warps=4 stages=1``.
    """

    index: int
    name: str
    category: str
    thread: str
    start_ns: int
    duration_ns: int
    parent: int | None
    input_dims: tuple[tuple[int, ...], ...] = ()
    input_types: tuple[str, ...] = ()
    triton_config: str | None = None


class Nesting(Protocol):
    """What knows which ops are around which."""

    def chain(self, index: int) -> Sequence[Op]:
        """Return the op of this index and all ops around it, outermost first."""


class RuntimeCall(Struct, frozen=True, gc=False):
    """A CUDA or HIP runtime or driver call, whether or not it launched anything.

    What it put on a stream is joined to it by ``correlation``.  ``op`` is the index of the innermost op
    around it.
    """

    name: str
    thread: str
    start_ns: int
    duration_ns: int
    correlation: int | None
    op: int | None = None
    nesting: Nesting | None = None

    @property
    def ops(self) -> Sequence[Op]:
        """The ops around it, outermost first, step marks left out."""
        return () if self.op is None or self.nesting is None else self.nesting.chain(self.op)

    @property
    def is_graph(self) -> bool:
        """Whether it launched a whole graph, whose kernels share its correlation and have no ops."""
        return _GRAPH_LAUNCH in self.name

    @property
    def launches_kernels(self) -> bool:
        """Whether it put a kernel, or a graph of them, on a stream."""
        return _launches_kernels(self.name)


class Kernel(Struct, frozen=True, gc=False):
    """One kernel on the GPU, and the call that launched it, where the trace has it."""

    name: str
    role: Role
    start_ns: int
    duration_ns: int
    device: int
    stream: int
    correlation: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int
    shared_memory_bytes: int
    launch: RuntimeCall | None

    @property
    def ops(self) -> Sequence[Op]:
        """The ops in which it was launched, outermost first."""
        return self.launch.ops if self.launch else ()

    @property
    def op_name(self) -> str | None:
        """The innermost op in which it was launched."""
        return self.ops[-1].name if self.ops else None

    @property
    def triton_config(self) -> str | None:
        """Inductor's launch config, where the trace carries one."""
        return next((op.triton_config for op in reversed(self.ops) if op.triton_config), None)


class Transfer(Struct, frozen=True, gc=False):
    """A memset or a memcpy on the GPU."""

    kind: Literal["memset", "memcpy"]
    name: str
    start_ns: int
    duration_ns: int
    size_bytes: int
    launch: RuntimeCall | None


class Step(Struct, frozen=True, gc=False):
    """One marked call of the workload, with all that was launched in it, in launch order.

    ``ops`` start within it, in the order of their start, on whatever thread.
    """

    index: int
    name: str
    start_ns: int
    duration_ns: int
    ops: Sequence[Op]
    kernels: tuple[Kernel, ...]
    transfers: tuple[Transfer, ...]
    runtime_calls: tuple[RuntimeCall, ...]


class Problem(Struct, frozen=True, gc=False):
    """Something wrong with a trace: what it spoils (``scope``), and how often it was seen."""

    code: str
    scope: Scope
    message: str
    count: int = 1


class Device(Struct, frozen=True, gc=False):
    """A GPU as the trace describes it; what it doesn't say is 0."""

    index: int
    name: str
    sm_count: int
    memory_bytes: int
    compute_capability: tuple[int, int]


class Trace(Struct, frozen=True, gc=False):
    """A whole trace: everything in launch order, the steps found in it, and its problems."""

    ops: Sequence[Op]
    kernels: tuple[Kernel, ...]
    transfers: tuple[Transfer, ...]
    runtime_calls: tuple[RuntimeCall, ...]
    steps: tuple[Step, ...]
    devices: tuple[Device, ...]
    problems: tuple[Problem, ...]

    def problems_of(self, scope: Scope) -> tuple[Problem, ...]:
        """Return the problems of one scope."""
        return tuple(problem for problem in self.problems if problem.scope == scope)
