"""Two sets of runs → what changed between them: kernels, counts, stack, and the GPU's state."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from difflib import SequenceMatcher

from kernelperf.compare.comparison import KernelChange
from kernelperf.recording.records import Counts, KernelRecord, Run, WorkloadRecording

# Between 14 fresh processes on an H200 the median time of one kernel varied by up to 0.6 % (CV), on a
# second card by 0.8 %; the profiler's clock counts in steps of 32 ns.
KERNEL_TIME_FRACTION = 0.02
KERNEL_TIME_NS = 100.0
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
    before, after = median_kernels(base), median_kernels(now)
    total_ns = sum(k.duration_ns for k in after) - sum(k.duration_ns for k in before)
    changes = (_change(position, old, new) for position, old, new in _aligned(before, after))
    return tuple(change for change in changes if change is not None), total_ns


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


def launch_differences(before: KernelRecord, now: KernelRecord) -> tuple[str, str]:
    """Return the parts of two launch configs that differ: ``XBLOCK=1024 warps=4``, ``XBLOCK=512 warps=8``."""
    left, right = _config_parts(before), _config_parts(now)
    differing = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    if any(key in _config_only(before) | _config_only(now) for key in differing):
        differing = [key for key in differing if key not in ("grid", "block", "registers")]

    def text(parts: dict[str, str]) -> str:
        return " ".join(f"{key}={parts[key]}" for key in differing if key in parts)

    return text(left), text(right)


def _aligned(
    before: Sequence[KernelRecord], now: Sequence[KernelRecord]
) -> Iterator[tuple[int, KernelRecord | None, KernelRecord | None]]:
    matcher = SequenceMatcher(
        None, [_identity(k) for k in before], [_identity(k) for k in now], autojunk=False
    )
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(range(j1, j2), before[i1:i2], now[j1:j2], strict=True)
        else:
            yield from _paired(before[i1:i2], now[j1:j2], i1, j1)


def _paired(
    before: Sequence[KernelRecord], now: Sequence[KernelRecord], before_position: int, now_position: int
) -> Iterator[tuple[int, KernelRecord | None, KernelRecord | None]]:
    """Pair what stands between two matches: the same name under another op first, then the same role."""
    left = dict(enumerate(before))
    partner: dict[int, KernelRecord] = {}
    for alike in (_same_name, _same_role):
        for index, kernel in enumerate(now):
            if index in partner or (alike is _same_role and len(before) != len(now)):
                continue
            found = next((i for i, old in left.items() if alike(old, kernel)), None)
            if found is not None:
                partner[index] = left.pop(found)
    for index, old in left.items():
        yield before_position + index, old, None
    for index, kernel in enumerate(now):
        yield now_position + index, partner.get(index), kernel


def _change(position: int, before: KernelRecord | None, now: KernelRecord | None) -> KernelChange | None:
    shown = now or before
    if shown is None:
        raise ValueError("a kernel must be on one side at least")
    before_ns = before.duration_ns if before else 0.0
    now_ns = now.duration_ns if now else 0.0
    kind, left, right = _kind(before, now)
    if not kind:
        return None
    return KernelChange(
        kind=kind,
        position=position,
        before=left,
        now=right,
        delta_ns=now_ns - before_ns,
        name=shown.name,
        role=shown.role,
        op=shown.op,
        before_ns=before_ns,
        now_ns=now_ns,
    )


def _kind(before: KernelRecord | None, now: KernelRecord | None) -> tuple[str, str, str]:
    if before is None or now is None:
        return ("added" if now else "removed", before.name if before else "", now.name if now else "")
    if before.name != now.name:
        return "renamed", before.name, now.name
    if before.launch_config != now.launch_config:
        return "reconfigured", *launch_differences(before, now)
    delta_ns = now.duration_ns - before.duration_ns
    if abs(delta_ns) < max(KERNEL_TIME_NS, KERNEL_TIME_FRACTION * before.duration_ns):
        return "", "", ""
    return ("slower" if delta_ns > 0 else "faster", "", "")


def _identity(kernel: KernelRecord) -> tuple[str, str]:
    return kernel.name, kernel.op


def _same_name(before: KernelRecord, now: KernelRecord) -> bool:
    return before.name == now.name


def _same_role(before: KernelRecord, now: KernelRecord) -> bool:
    return before.role == now.role


def _config_only(kernel: KernelRecord) -> set[str]:
    return {part.partition("=")[0] for part in kernel.config.split()}


def _config_parts(kernel: KernelRecord) -> dict[str, str]:
    parts = {key: value for key, _, value in (part.partition("=") for part in kernel.config.split())}
    grid, block = ("x".join(map(str, size)) for size in (kernel.grid, kernel.block))
    return {**parts, "grid": grid, "block": block, "registers": str(kernel.registers)}


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
