"""The state of the card in two sets of runs → what differs, and whether the card itself was worse off."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernelperf.environment import GpuState
from kernelperf.recording.records import Run

# The clock came back to within 30 of 1980 MHz after every set of bursts, in 18 processes on two H200s; it
# moves in steps of 15 MHz.
SM_CLOCK_MHZ = 45
# The same bursts left the cards at 48–51 °C, drawing 489–577 W.
TEMPERATURE_C = 10
POWER_FRACTION = 0.2
# Hardware slowdown, software and hardware thermal slowdown, power brake.  Not the power cap, at which some
# cards always run.
DISTURBING_REASONS = 0x8 | 0x20 | 0x40 | 0x80


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


def disturbance(base: Sequence[Run], now: Sequence[Run]) -> str:
    """Return how the card itself was worse off in now than in base; "" where it wasn't, or nobody knows.

    By the yardsticks' state where both sides have one: they do the same work on both, so that a step that
    draws more power, and slows its own clock, is no disturbance.
    """
    return ", ".join(_disturbances(*_card_states(base, now)))


def excused(base: Sequence[Run], now: Sequence[Run], ratio: float, tolerance_fraction: float) -> bool:
    """Whether a slowdown may be the disturbed card's: it is not more than the clock alone makes of it.

    What other disturbances cost can't be told, so that they excuse any; none excuses another launch config.
    """
    before, after = _card_states(base, now)
    found = tuple(_disturbances(before, after))
    if not found or base[0].launch_config != now[0].launch_config:
        return False
    slower_clock = _clock_ratio(before, after)
    if slower_clock > 1 and len(found) == 1:
        return ratio / slower_clock < 1 + tolerance_fraction
    return True


def yardstick_ratios(base: Sequence[Run], now: Sequence[Run]) -> tuple[tuple[str, float], ...]:
    """Return what each yardstick that both sides have read, now over base."""
    before, after = _yardsticks(base), _yardsticks(now)
    return tuple((name, after[name] / before[name]) for name in before if name in after)


def _yardsticks(runs: Sequence[Run]) -> dict[str, float]:
    read: dict[str, list[float]] = {}
    for run in runs:
        for name, ns in run.yardsticks.times_ns if run.yardsticks else ():
            read.setdefault(name, []).append(ns)
    return {name: statistics.geometric_mean(times) for name, times in read.items()}


def _card_states(base: Sequence[Run], now: Sequence[Run]) -> tuple[list[GpuState], list[GpuState]]:
    known = all(run.yardsticks for run in (*base, *now))
    before, after = (
        [run.yardsticks.state if run.yardsticks and known else run.state for run in runs]
        for runs in (base, now)
    )
    return before, after


def _disturbances(before: Sequence[GpuState], after: Sequence[GpuState]) -> Iterator[str]:
    if _clock_ratio(before, after) > 1:
        yield f"SM clock {_state(before, 'sm_clock_mhz'):.0f} → {_state(after, 'sm_clock_mhz'):.0f} MHz"
    memory = [_state(states, "memory_clock_mhz") for states in (before, after)]
    if None not in memory and memory[1] < memory[0]:
        yield f"memory clock {memory[0]:.0f} → {memory[1]:.0f} MHz"
    before_others, others = _told(before, "other_processes"), _told(after, "other_processes")
    if before_others and others and max(others) > max(before_others):
        yield f"other processes on the GPU: {max(before_others)} → {max(others)}"
    reasons = _all_bits(after) & ~_all_bits(before) & DISTURBING_REASONS
    if reasons and _told(before, "event_reasons"):
        yield f"slowed down by heat or power (clock-event reasons {reasons:#x})"
    ecc = [_told(states, "ecc") for states in (before, after)]
    if ecc[0] and ecc[1] and any(ecc[1]) and not any(ecc[0]):
        yield "ECC off → on"


def _clock_ratio(before: Sequence[GpuState], after: Sequence[GpuState]) -> float:
    """How much slower the SM clock is, 1 where it isn't or isn't known."""
    old, new = _state(before, "sm_clock_mhz"), _state(after, "sm_clock_mhz")
    return old / new if old and new and old - new >= SM_CLOCK_MHZ else 1.0


def _state(states: Sequence[GpuState], field: str) -> Any:
    known = _told(states, field)
    return statistics.median(known) if known else None


def _told(states: Sequence[GpuState], field: str) -> list[Any]:
    values = (getattr(state, field) for state in states)
    return [value for value in values if value is not None]


def _all_bits(states: Sequence[GpuState]) -> int:
    bits = 0
    for reasons in _told(states, "event_reasons"):
        bits |= reasons
    return bits


def _state_changes(base: Sequence[Run], now: Sequence[Run]) -> Iterator[str]:
    yield from _moved(base, now, "sm_clock_mhz", "SM clock", "MHz", lambda _: SM_CLOCK_MHZ)
    yield from _moved(base, now, "temperature_c", "temperature", "°C", lambda _: TEMPERATURE_C)
    yield from _moved(base, now, "power_w", "power", "W", lambda watts: POWER_FRACTION * watts)
    new_reasons = (
        _all_bits([run.state for run in now]) & ~_all_bits([run.state for run in base])
        if _known(base, "event_reasons")
        else 0
    )
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


def _known(runs: Sequence[Run], field: str) -> list[Any]:
    return _told([run.state for run in runs], field)


def _middle(values: Sequence[float]) -> float:
    return statistics.median(values)
