"""The state of the card in two sets of runs → what differs, and whether the card itself was worse off."""

from __future__ import annotations

import functools
import operator
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
_MEMORY_CLOCK_STEP = 1.01
# What a disturbance can cost at most, where no clock tells: ECC in the memory's bandwidth, and a card that is
# slowed down by heat without saying to what clock.
_ECC_COST = 1.2
_UNKNOWN_CLOCK_COST = 1.5


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
    if "" in _cards(base) | _cards(now):
        known.append("card not known")
    else:
        known.append("same card" if same_card(base, now) else "another card of this model")
    return ", ".join(known)


def same_card(base: Sequence[Run], now: Sequence[Run]) -> bool:
    """Whether all runs of both sides were on one card, as far as is known."""
    cards = _cards(base) | _cards(now)
    return len(cards) == 1 and "" not in cards


def _cards(runs: Sequence[Run]) -> set[str]:
    return {run.card for run in runs}


def disturbance(base: Sequence[Run], now: Sequence[Run]) -> str:
    """Return how the card itself was worse off in now than in base; "" where it wasn't, or nobody knows.

    By the yardsticks' state where both sides have one: they do the same work on both, so that a step that
    draws more power, and slows its own clock, is no disturbance.
    """
    return ", ".join(_disturbances(*_card_states(base, now)))


def excused(base: Sequence[Run], now: Sequence[Run], ratio: float, tolerance_fraction: float) -> bool:
    """Whether a slowdown may be the disturbed card's: it is no more than the disturbance can make of it.

    A lower clock costs what it is lower by, another process at most a share of the GPU as large as ours, ECC
    at most a fifth.  Heat and power show in the clock, and excuse nothing by themselves where that is known.
    Nothing excuses another launch config.
    """
    if base[0].launch_config != now[0].launch_config:
        return False
    return ratio < (1 + tolerance_fraction) * _allowance(*_card_states(base, now))


def _allowance(before: Sequence[GpuState], after: Sequence[GpuState]) -> float:
    """How many times longer a step may take on the card as it is now; 1 where it is no worse off."""
    allowed = max(_clock_ratio(before, after), _memory_ratio(before, after))
    allowed *= 1 + max(0, _more_processes(before, after))
    if _ecc_turned_on(before, after):
        allowed *= _ECC_COST
    if _state(after, "sm_clock_mhz") is None and _new_reasons(before, after):
        allowed = max(allowed, _UNKNOWN_CLOCK_COST)
    return allowed


def slower_baseline(base: Sequence[Run], now: Sequence[Run]) -> str:
    """Return how the card was worse off in the baseline's runs, by its clocks; "" where it wasn't."""
    return ", ".join(_lower_clocks(*_card_states(base, now), baseline=True))


def disturbed_runs(runs: Sequence[Run]) -> tuple[tuple[int, str], ...]:
    """Return the runs, by number from 1, in which the card was worse off than it was in the best of them."""
    states, _ = _card_states(runs, runs)
    best = GpuState(
        sm_clock_mhz=max(_told(states, "sm_clock_mhz"), default=None),
        memory_clock_mhz=max(_told(states, "memory_clock_mhz"), default=None),
        other_processes=min(_told(states, "other_processes"), default=None),
        event_reasons=functools.reduce(operator.and_, _told(states, "event_reasons"), -1),
        ecc=all(_told(states, "ecc")),
    )
    found = [(number, ", ".join(_disturbances([best], [state]))) for number, state in enumerate(states, 1)]
    return tuple((number, text) for number, text in found if text)


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
    yield from _lower_clocks(before, after, baseline=False)
    if _more_processes(before, after) > 0:
        counts = [max(_told(states, "other_processes")) for states in (before, after)]
        yield f"other processes on the GPU: {counts[0]} → {counts[1]}"
    reasons = _new_reasons(before, after)
    if reasons:
        yield f"slowed down by heat or power (clock-event reasons {reasons:#x})"
    if _ecc_turned_on(before, after):
        yield "ECC off → on"


def _lower_clocks(before: Sequence[GpuState], after: Sequence[GpuState], *, baseline: bool) -> Iterator[str]:
    """Name the clocks that were lower now, or in the baseline's runs; either way from before to after."""
    higher, lower = (after, before) if baseline else (before, after)
    for label, field, ratio in (
        ("SM clock", "sm_clock_mhz", _clock_ratio(higher, lower)),
        ("memory clock", "memory_clock_mhz", _memory_ratio(higher, lower)),
    ):
        if ratio > 1:
            yield f"{label} {_state(before, field):.0f} → {_state(after, field):.0f} MHz"


def _more_processes(before: Sequence[GpuState], after: Sequence[GpuState]) -> int:
    old, new = _told(before, "other_processes"), _told(after, "other_processes")
    return int(max(new) - max(old)) if old and new else 0


def _new_reasons(before: Sequence[GpuState], after: Sequence[GpuState]) -> int:
    return _all_bits(after) & ~_all_bits(before) & DISTURBING_REASONS if _told(before, "event_reasons") else 0


def _ecc_turned_on(before: Sequence[GpuState], after: Sequence[GpuState]) -> bool:
    old, new = _told(before, "ecc"), _told(after, "ecc")
    return bool(old and new) and any(new) and not any(old)


def _memory_ratio(before: Sequence[GpuState], after: Sequence[GpuState]) -> float:
    """How much slower the memory clock is, 1 where it isn't by more than a hundredth or isn't known."""
    old, new = _state(before, "memory_clock_mhz"), _state(after, "memory_clock_mhz")
    return float(old / new) if old and new and old > _MEMORY_CLOCK_STEP * new else 1.0


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
