"""The kernels of a step, beside those of its baseline → the lines that differ."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from kernelperf.recording.records import KernelRecord, Run
from kernelperf.trace.roles import fused_op_names

# Another version of a library may split a GEMM otherwise, or not at all.
_LIBRARY_CHOICE = "splitk_reduce"


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
