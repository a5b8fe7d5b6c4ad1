"""Numbers, names and rows → aligned text for a terminal; the only place where units are converted."""

from __future__ import annotations

from collections.abc import Sequence

from kernelperf.recording.records import KernelRecord
from kernelperf.trace import Kernel

NAME_WIDTH = 60
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_KERNEL_HEAD = ("#", "role", "op", "time", "kernel", "grid", "block", "regs", "config")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Return rows under a head, columns two spaces apart; ``right`` names those that align right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join(map(line, (head, *rows)))


def duration(ns: float | None) -> str:
    """Return a duration with its unit, ``206.8 µs``; "–" for None."""
    if ns is None:
        return "–"
    scale, unit = _unit(abs(ns))
    return f"{_digits(ns / scale)} {unit}"


def change_of_duration(before_ns: float, now_ns: float) -> str:
    """Return two durations in one unit: ``206.8 → 224.6 µs``."""
    scale, unit = _unit(max(before_ns, now_ns))
    return f"{_digits(before_ns / scale)} → {_digits(now_ns / scale)} {unit}"


def share_of(part_ns: float, whole_ns: float | None) -> str:
    """Return a signed part of a signed whole, ``+18.0 of +17.8 µs``."""
    scale, unit = _unit(max(abs(part_ns), abs(whole_ns or 0.0)))
    part = f"{part_ns / scale:+.1f}"
    return f"{part} {unit}" if whole_ns is None else f"{part} of {whole_ns / scale:+.1f} {unit}"


def percent(ratio: float | None) -> str:
    """Return what a ratio adds, ``+8.6 %``; "–" for None."""
    return "–" if ratio is None else f"{signed(ratio)} %"


def signed(ratio: float) -> str:
    """Return what a ratio adds, in percent without the sign for it: ``+8.6``, ``+0.05``."""
    added = (ratio - 1) * 100
    return f"{added:+.2f}" if abs(added) < 1 else f"{added:+.1f}"


def shortened(name: str, width: int = NAME_WIDTH) -> str:
    """Return a kernel's name without ``void`` and its arguments, cut in the middle where it is too long."""
    name = "".join(character if character.isprintable() else "\ufffd" for character in name)
    bare = name.removeprefix("void ").split("(", 1)[0] if "<" not in name else name.removeprefix("void ")
    if len(bare) <= width:
        return bare
    front = (width - 1) // 2
    return f"{bare[:front]}…{bare[front + 1 - width :]}"


def kernel_table(kernels: Sequence[Kernel | KernelRecord]) -> str:
    """Return the kernels of one step: position, role, op, time, name and launch config."""
    return table(_KERNEL_HEAD, [_kernel_row(n, kernel) for n, kernel in enumerate(kernels)], right=(0, 3, 7))


def _kernel_row(position: int, kernel: Kernel | KernelRecord) -> tuple[str, ...]:
    op, config = (
        (kernel.op, kernel.config)
        if isinstance(kernel, KernelRecord)
        else (kernel.op_name, kernel.triton_config)
    )
    return (
        str(position),
        kernel.role,
        op or "–",
        duration(kernel.duration_ns),
        shortened(kernel.name),
        "x".join(map(str, kernel.grid)),
        "x".join(map(str, kernel.block)),
        str(kernel.registers),
        config or "",
    )


def _unit(ns: float) -> tuple[float, str]:
    return next(((scale, unit) for scale, unit in _UNITS if ns >= scale), _UNITS[-1])


def _digits(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
