"""Two sets of runs → what changed between them: kernels, counts, stack, and the GPU's state."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import fields, replace

from kernelperf.compare.comparison import KernelChange
from kernelperf.compare.kernels import changed_kernels
from kernelperf.recording.records import Counts, KernelRecord, Run, WorkloadRecording

# The others inform: memsets and Triton compilations are the libraries' choice, memory is not a count.
GATED_COUNTS = frozenset(
    {"kernels", "memcpys", "host_ops", "runtime_calls", "graph_breaks", "recompiles", "dynamo_graphs"}
)
_OBSERVED_COUNTS = ("dynamo_graphs", "graph_breaks", "recompiles", "triton_compilations", "peak_memory_bytes")


def kernel_changes(base: Sequence[Run], now: Sequence[Run]) -> tuple[tuple[KernelChange, ...], float]:
    """Return the kernels that changed, in order, and how much longer all kernels together take.

    Each side's runs share one launch config; a kernel's time is the median over its runs.
    """
    return changed_kernels(median_kernels(base), median_kernels(now))


def median_kernels(runs: Sequence[Run]) -> tuple[KernelRecord, ...]:
    """Return the kernels of runs that share a launch config, each with its median time."""
    first = runs[0].kernels
    durations_ns = (
        statistics.median(k.duration_ns for k in same)
        for same in zip(*(r.kernels for r in runs), strict=True)
    )
    return tuple(replace(kernel, duration_ns=ns) for kernel, ns in zip(first, durations_ns, strict=True))


def count_changes(base: Sequence[Run], now: Sequence[Run]) -> tuple[tuple[str, int, int], ...]:
    """Return the counts whose ranges over the runs don't touch: name, before, now."""
    before, after = [_counts(run) for run in base], [_counts(run) for run in now]
    changed = []
    for name in before[0]:
        old, new = [count[name] for count in before], [count[name] for count in after]
        if max(old) < min(new) or min(old) > max(new):
            changed.append((name, statistics.mode(old), statistics.mode(new)))
    return tuple(changed)


def risen(changes: Sequence[tuple[str, int, int]]) -> tuple[tuple[str, int, int], ...]:
    """Return the changes in which a gated count rose."""
    return tuple(change for change in changes if change[0] in GATED_COUNTS and change[2] > change[1])


def same_stack(base: WorkloadRecording, now: WorkloadRecording) -> bool:
    """Whether both ran on the same software: only then must kernel names and counts be equal."""
    return base.environment.stack == now.environment.stack


def stack_changes(
    base: Sequence[tuple[str, str]], now: Sequence[tuple[str, str]]
) -> tuple[tuple[str, str, str], ...]:
    """Return what differs between two stacks: name, before, now; "" where it is absent."""
    before, after = dict(base), dict(now)
    names = sorted(before.keys() | after.keys())
    rows = ((name, before.get(name, ""), after.get(name, "")) for name in names)
    return tuple(row for row in rows if row[1] != row[2])


def _counts(run: Run) -> dict[str, int]:
    counted = {field.name: getattr(run.counts, field.name) for field in fields(Counts)}
    return counted | {name: getattr(run.observations, name) for name in _OBSERVED_COUNTS}
