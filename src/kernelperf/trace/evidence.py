"""What problems are told from: kernels, calls, steps and marks, as they were read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kernelperf.trace import Kernel, RuntimeCall, Step, Transfer
from kernelperf.trace.silence import Silence

SHOWN = 5  # names in a message

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
    calls: Sequence[RuntimeCall]
    ops: int  # how many host rows of ops there are
    steps: Sequence[Step]
    marks: Marks
    silence: Silence
    log_lines: Sequence[str]
    processes: int = 1  # that made runtime calls
    untimed_host_rows: int = 0  # without a start or a duration, or with one that can't be


def launched(step: Step) -> Launched:
    """Return what a step launched: steps that agree in it are alike."""
    return tuple([(kernel.name, kernel.grid, kernel.block) for kernel in step.kernels])


def several(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
