"""A worker's trace → what a run stores of it: one record a kernel, and the counts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernelperf.errors import NotMeasurable
from kernelperf.facts import counts
from kernelperf.kernel_list import kernel_records
from kernelperf.recording.records import Counts, KernelRecord
from kernelperf.trace import Step, Trace
from kernelperf.trace.evidence import launched
from kernelperf.trace.kineto import STEP_MARK, read_trace
from kernelperf.trace.roles import RoleRules

_SPOILING = ("trace", "timing")  # scopes: a run needs its counts and its kernels' times


@dataclass(frozen=True, slots=True)
class Structure:
    """What one run launched, a step."""

    kernels: tuple[KernelRecord, ...]
    counts: Counts


def read_structure(path: Path, *, steps: int, rules: RoleRules) -> Structure:
    """Read a trace of ``steps`` marked steps.

    Raises `NotMeasurable` for a trace that lost something or whose times can't be true (take it again),
    `UnusableInput` for a file that isn't one.
    """
    trace = read_trace(path, rules=rules)
    ours = _marked_steps(trace)
    broken = [problem.message for problem in trace.problems if problem.scope in _SPOILING]
    empty = [step.name for step in ours if not step.kernels]
    if empty and len(empty) < len(ours):
        broken.append(f"{', '.join(empty)} launched no kernels, the other steps did")
    if len(ours) != steps:
        broken.append(f"{len(ours)} of {steps} recorded steps are in the trace")
    if broken:
        raise NotMeasurable("; ".join(broken))
    alike = [step for step in ours if launched(step) == launched(ours[-1])]
    return Structure(kernels=kernel_records(alike), counts=counts(ours[-1]))


def _marked_steps(trace: Trace) -> list[Step]:
    return [step for step in trace.steps if step.name.startswith(STEP_MARK)]
