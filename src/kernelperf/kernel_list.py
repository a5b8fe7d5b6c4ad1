"""The kernels of a step → a record by position; beside those of a baseline → the lines that differ."""

from __future__ import annotations

import difflib
import statistics
from collections.abc import Sequence

from kernelperf.recording.records import KernelRecord, Run
from kernelperf.trace import Kernel, Step
from kernelperf.trace.roles import fused_op_names

# Another version of a library may split a GEMM otherwise, or not at all.
_LIBRARY_CHOICE = "splitk_reduce"


def kernel_records(steps: Sequence[Step]) -> tuple[KernelRecord, ...]:
    """Return a record a position of steps that launch the same; its duration is the median over them."""
    return tuple(_record(same) for same in zip(*(step.kernels for step in steps), strict=True))


def kernel_list(kernels: Sequence[KernelRecord], *, exact: bool) -> tuple[str, ...]:
    """Return a line a kernel: its name, or what of it outlives another software stack."""
    if exact:
        return tuple(kernel.name for kernel in kernels)
    return tuple(_portable(kernel) for kernel in kernels if kernel.role != _LIBRARY_CHOICE)


def differing_lines(base: Sequence[Run], now: Sequence[Run], *, exact: bool) -> tuple[str, ...]:
    """Return the diff of the first run whose list is none of the baseline's; empty where there is none."""
    known = [kernel_list(run.kernels, exact=exact) for run in base]
    for run in now:
        found = kernel_list(run.kernels, exact=exact)
        if found not in known:
            return tuple(line for line in difflib.ndiff(known[0], found) if not line.startswith("?"))
    return ()


def _portable(kernel: KernelRecord) -> str:
    """A role, and for Inductor's fused kernels the ops in them, without the number that follows."""
    fused = "_".join(fused_op_names(kernel.name))
    return f"{kernel.role} {fused}" if fused else kernel.role


def _record(same: Sequence[Kernel]) -> KernelRecord:
    kernel = same[-1]
    return KernelRecord(
        name=kernel.name,
        role=kernel.role,
        op=kernel.op_name or "",
        grid=kernel.grid,
        block=kernel.block,
        registers=kernel.registers,
        config=kernel.triton_config or "",
        duration_ns=statistics.median(each.duration_ns for each in same),
    )
