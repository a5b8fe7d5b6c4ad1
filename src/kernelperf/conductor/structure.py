"""A worker's trace → what a run stores of it: one record a kernel, and the counts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelperf.errors import NotMeasurable
from kernelperf.facts import counts
from kernelperf.recording.records import Counts, KernelRecord
from kernelperf.trace import Kernel, Step, Trace
from kernelperf.trace.integrity import launched
from kernelperf.trace.kineto import STEP_MARK, read_trace
from kernelperf.trace.roles import RoleRules


@dataclass(frozen=True, slots=True)
class Structure:
    """What one run launched, a step."""

    kernels: tuple[KernelRecord, ...]
    counts: Counts


def read_structure(path: Path, *, steps: int, rules: RoleRules) -> Structure:
    """Read a trace of ``steps`` marked steps.

    Raises `NotMeasurable` for a trace that lost something (take it again), `UnusableInput` for a file
    that isn't one.
    """
    trace = read_trace(path, rules=rules)
    ours = _marked_steps(trace)
    broken = [problem.message for problem in trace.problems_of("trace")]
    if len(ours) != steps:
        broken.append(f"{len(ours)} of {steps} recorded steps are in the trace")
    if broken:
        raise NotMeasurable("; ".join(broken))
    alike = [step for step in ours if launched(step) == launched(ours[-1])]
    return Structure(kernels=_records(alike), counts=counts(ours[-1]))


def _marked_steps(trace: Trace) -> list[Step]:
    return [step for step in trace.steps if step.name.startswith(STEP_MARK)]


def _records(steps: Sequence[Step]) -> tuple[KernelRecord, ...]:
    return tuple(_record(same) for same in zip(*(step.kernels for step in steps), strict=True))


def _record(same: Sequence[Kernel]) -> KernelRecord:
    """One position of the step, as it was launched in each of the steps."""
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
