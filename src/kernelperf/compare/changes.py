"""Two sets of runs → what changed between them: kernels, counts, stack, and the GPU's state."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace

from kernelperf.compare.comparison import KernelChange
from kernelperf.compare.kernels import changed_kernels
from kernelperf.recording.records import Counts, KernelRecord, Run, WorkloadRecording

# The clock came back to within 30 of 1980 MHz after every set of bursts, in 18 processes on two H200s; it
# moves in steps of 15 MHz.
SM_CLOCK_MHZ = 45
# The same bursts left the cards at 48–51 °C, drawing 489–577 W.
TEMPERATURE_C = 10
POWER_FRACTION = 0.2
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


def state_changes(base: Sequence[Run], now: Sequence[Run]) -> tuple[str, ...]:
    """Return how the GPU's state now differs from the baseline's, as sentences without a full stop."""
    return tuple(_state_changes(base, now))


def machine_summary(base: Sequence[Run], now: Sequence[Run]) -> str:
    """Return what of the machine is known to be equal; "" where nothing is known."""
    before, after = _known(base, "sm_clock_mhz"), _known(now, "sm_clock_mhz")
    known = []
    if before and after and abs(_middle(after) - _middle(before)) < SM_CLOCK_MHZ:
        known.append(f"clocks equal ({_middle(after):.0f} MHz)")
    others = _known(now, "other_processes")
    if others and max(others) == 0:
        known.append("GPU not shared")
    known.append("same card" if same_card(base, now) else "another card of this model")
    return ", ".join(known)


def same_card(base: Sequence[Run], now: Sequence[Run]) -> bool:
    """Whether every run of now was on a card that base was measured on, as far as is known."""
    cards = {run.card for run in now}
    return "" not in cards and cards <= {run.card for run in base}


def _counts(run: Run) -> dict[str, int]:
    counted = {field.name: getattr(run.counts, field.name) for field in fields(Counts)}
    return counted | {name: getattr(run.observations, name) for name in _OBSERVED_COUNTS}


def _state_changes(base: Sequence[Run], now: Sequence[Run]) -> Iterator[str]:
    yield from _moved(base, now, "sm_clock_mhz", "SM clock", "MHz", lambda _: SM_CLOCK_MHZ)
    yield from _moved(base, now, "temperature_c", "temperature", "°C", lambda _: TEMPERATURE_C)
    yield from _moved(base, now, "power_w", "power", "W", lambda watts: POWER_FRACTION * watts)
    new_reasons = _bits(now) & ~_bits(base) if _known(base, "event_reasons") else 0
    if new_reasons:
        yield f"clock-event reasons {new_reasons:#x} that the baseline hasn't"
    before, after = _known(base, "other_processes"), _known(now, "other_processes")
    if after and max(after) > max(before, default=0):
        yield f"other processes on the GPU: {max(before, default=0):.0f} → {max(after):.0f}"


def _moved(
    base: Sequence[Run],
    now: Sequence[Run],
    field: str,
    label: str,
    unit: str,
    limit: Callable[[float], float],
) -> Iterator[str]:
    before, after = _known(base, field), _known(now, field)
    if before and after and abs(_middle(after) - _middle(before)) >= limit(_middle(before)):
        yield f"{label} {_middle(before):.0f} → {_middle(after):.0f} {unit}"


def _known(runs: Sequence[Run], field: str) -> list[float]:
    values = (getattr(run.state, field) for run in runs)
    return [value for value in values if value is not None]


def _bits(runs: Sequence[Run]) -> int:
    bits = 0
    for run in runs:
        bits |= run.state.event_reasons or 0
    return bits


def _middle(values: Sequence[float]) -> float:
    return statistics.median(values)
