"""``kernelperf codegen``: the record of a step's generated code as text."""

from __future__ import annotations

from itertools import groupby

from kernelperf.codegen import CodegenRecord, GeneratedKernel
from kernelperf.errors import UnusableInput
from kernelperf.render.tables import table

_HEAD = ("config", "registers", "spills", "shared bytes", "128-bit loads", "128-bit stores")


def codegen_text(target: str, record: CodegenRecord) -> str:
    """Return what was generated, a block a kernel."""
    graphs = f"{record.graphs} graph" if record.graphs == 1 else f"{record.graphs} graphs"
    lines = [f"{target}  {record.arch}  torch {record.torch}  triton {record.triton}  {graphs}"]
    lines.append(f"  extern   {_counted(record.extern_calls)}")
    lines += [line for kernel in record.kernels for line in _kernel_lines(kernel)]
    if not record.kernels:
        lines.append("  kernel   none: no Triton kernel is launched")
    return "\n".join(lines)


def chosen_params(given: tuple[str, ...]) -> dict[str, str]:
    """Return ``axis=value`` options as a mapping."""
    params = {}
    for each in given:
        axis, equals, value = each.partition("=")
        if not axis or not equals:
            raise UnusableInput(f"--param: expected AXIS=VALUE, such as dtype=bf16, found {each!r}")
        params[axis] = value
    return params


def _kernel_lines(kernel: GeneratedKernel) -> list[str]:
    ops = f"  fuses {' '.join(kernel.fused_ops)}" if kernel.fused_ops else "  written by hand"
    rows = [
        (
            each.config,
            str(each.registers),
            str(each.spills),
            str(each.shared_bytes),
            str(each.loads_128bit),
            str(each.stores_128bit),
        )
        for each in kernel.candidates
    ]
    shown = table(_HEAD, rows, right=(1, 2, 3, 4, 5)).splitlines()
    return [f"  kernel   {kernel.name}{ops}  {kernel.bytes:,} bytes", *(f"           {row}" for row in shown)]


def _counted(calls: list[str]) -> str:
    """Name calls in order, neighbours together: ``extern_kernels.mm ×2``."""
    runs = [(name, len(list(group))) for name, group in groupby(calls)]
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in runs) or "none"
