"""What a workload's fixture gives a test: what was recorded, beside its baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernelperf.compare.changes import same_stack
from kernelperf.compare.comparison import Comparison
from kernelperf.errors import NotMeasurable
from kernelperf.kernel_list import differing_lines
from kernelperf.protocol import Observations
from kernelperf.recording.records import Counts, Run, WorkloadRecording
from kernelperf.trace import Step, Trace


class Disagreement(pytest.fail.Exception):  # type: ignore[misc,name-defined]  # its only public name
    """A test failed because it disagrees with the baseline: what accepting it would settle."""

    __module__ = "builtins"  # as pytest's own Failed has it: the summary shows the name alone


@dataclass(frozen=True, slots=True)
class BaselineOf:
    """What a workload is held against, and what to do where there is nothing."""

    recording: WorkloadRecording | None
    folder: str  # as shown
    why_none: str = ""  # with the remedy
    updating: bool = False  # it is being replaced: nothing is held against it
    absence_fails: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class GuardedWorkload:
    """A variant as it was recorded: its step to assert facts about, its counts, and its baseline."""

    id: str
    params: dict[str, Any]
    recording: WorkloadRecording
    baseline_of: BaselineOf
    read: Callable[[], Trace]
    compare: Callable[[str], Comparison]

    def __repr__(self) -> str:
        """Its id alone: failed asserts show it beside the kernel table."""
        return f"<workload {self.id}>"

    @property
    def run(self) -> Run:
        """The run whose trace is kept."""
        return self.recording.runs[0]

    @property
    def trace(self) -> Trace:
        """The whole trace.  Raises `NotMeasurable` where it lost something, and so proves nothing."""
        trace = self.read()
        lost = "; ".join(problem.message for problem in trace.problems_of("trace"))
        if lost:
            raise NotMeasurable(f"the trace of {self.id} isn't whole: {lost}; record it again")
        return trace

    @property
    def step(self) -> Step:
        """One step, the last; raises `NotMeasurable` where the steps launch different things."""
        from kernelperf.facts import single_step

        return single_step(self.trace)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All recorded steps, for a workload whose steps differ."""
        return self.trace.steps

    @property
    def counts(self) -> Counts:
        """What one step does: kernels, transfers, host ops, runtime calls."""
        return self.run.counts

    @property
    def observations(self) -> Observations:
        """Memory, compilations, numerics and probes."""
        return self.run.observations

    @property
    def baseline(self) -> WorkloadRecording | None:
        """What it is compared with, None where there is no baseline."""
        return self.baseline_of.recording

    def comparison(self, metric: str = "gpu_time") -> Comparison:
        """Return the comparison with the baseline by a metric, at this test's tolerance."""
        return self.compare(metric)

    def check_kernels(self) -> None:
        """Fail unless the kernels are those of the baseline, in its order.

        On the same software stack the names must be equal; on another the roles, and for Inductor's kernels
        the ops fused in them.  Skips where there is no baseline.
        """
        against = self.baseline_of
        if against.updating:
            return
        if against.recording is None:
            _absent(f"{self.id}: no kernels to compare with: {against.why_none}", fails=against.absence_fails)
            return
        exact = same_stack(against.recording, self.recording)
        lines = differing_lines(against.recording.runs, self.recording.runs, exact=exact)
        if lines:
            raise Disagreement(_kernels_differ(self.id, against.folder, lines, exact), pytrace=False)


def speed_ratio(a: GuardedWorkload, b: GuardedWorkload, *, tolerance: float) -> float:
    """Return the gpu time of ``a`` over that of ``b``: above 1, ``b`` is the faster.

    Refuses, with `NotMeasurable`, variants that don't compute the same: each output must lie within
    ``tolerance`` (relative norm) of its float64 reference, and the references must be equal.  A test that
    calls it asks for the fixture ``gpu_speed_ratio`` or ``gpu_benchmark``, else nothing is timed.
    """
    from kernelperf import compare

    return compare.speed_ratio(a.recording, b.recording, tolerance)


def _absent(message: str, *, fails: bool) -> None:
    if fails:
        raise Disagreement(message, pytrace=False)
    pytest.skip(message)


def _kernels_differ(workload: str, folder: str, lines: tuple[str, ...], exact: bool) -> str:
    how = (
        "by name, on the same software stack"
        if exact
        else "by role and fused ops: the software stack differs"
    )
    listed = "\n".join(f"  {line}" for line in lines)
    return (
        f"{workload}: its kernels are not those of the baseline {folder} ({how}; - baseline, + now):\n"
        f"{listed}\n"
        "if that is meant: pytest --kperf-update-baselines"
    )


def trace_reader(path: Path, rules: Any) -> Callable[[], Trace]:
    """Return a function that reads the trace when it is first asked for, and keeps it."""
    kept: list[Trace] = []

    def read() -> Trace:
        if not kept:
            from kernelperf.trace.kineto import read_trace

            kept.append(read_trace(path, rules=rules))
        return kept[0]

    return read
