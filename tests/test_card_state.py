"""A card that was worse off than in the baseline's runs is named, and excuses no more than it explains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernelperf.compare import Code, Comparison, Policy, Verdict, card_state, compare, wants_more_runs
from kernelperf.environment import GpuState
from kernelperf.recording.records import Run, Yardsticks
from tests import builders

CALM = GpuState(
    sm_clock_mhz=1980,
    temperature_c=50,
    power_w=571.5,
    event_reasons=4,
    other_processes=0,
    memory_clock_mhz=3201,
    ecc=True,
)
TIMES_NS = (("copy", 129_000.0), ("fixed", 73_000.0), ("gemm", 172_000.0))


def at(fraction: float, number: int = 5, card: GpuState = CALM, own: GpuState = CALM) -> tuple[Run, ...]:
    """Runs that much slower than base's; the yardsticks saw the card in one state, the step its own."""
    yardsticks = Yardsticks(TIMES_NS, card)
    return builders.runs(206.8 * (1 + fraction), number, state=own, yardsticks=yardsticks)


def judged(now: tuple[Run, ...], base: tuple[Run, ...] | None = None) -> Comparison:
    recordings = [builders.recording(runs=runs) for runs in (base or at(0), now)]
    return compare(*recordings, Policy(suite_size=9))


DISTURBED = [
    ({"memory_clock_mhz": 2619}, "memory clock 3201 → 2619 MHz"),
    ({"other_processes": 1}, "other processes on the GPU: 0 → 1"),
    ({"event_reasons": 0x44}, "slowed down by heat or power (clock-event reasons 0x40)"),
    ({"event_reasons": 0x84}, "slowed down by heat or power (clock-event reasons 0x80)"),
]


@pytest.mark.parametrize(("state", "told"), DISTURBED)
def test_a_slowdown_on_a_disturbed_card_is_not_the_codes(state: dict[str, Any], told: str) -> None:
    found = judged(at(0.06, card=replace(CALM, **state)))
    assert (found.verdict, found.reason.code) == (Verdict.UNDECIDED, Code.CARD_DISTURBED)
    assert found.reason.sentence == f"+6.0%, but the card was disturbed: {told}"
    assert wants_more_runs(found)


@pytest.mark.parametrize(("state", "_"), DISTURBED)
def test_a_disturbed_card_that_slowed_nothing_is_the_same(state: dict[str, Any], _: str) -> None:
    assert judged(at(0.0, card=replace(CALM, **state))).verdict is Verdict.SAME


@pytest.mark.parametrize(
    ("fraction", "verdict"), [(0.19, Verdict.UNDECIDED), (0.215, Verdict.UNDECIDED), (0.30, Verdict.SLOWER)]
)
def test_a_slower_clock_excuses_what_it_explains(fraction: float, verdict: Verdict) -> None:
    """1980 → 1650 MHz is 20 % slower; 30 % are 8 % more than that."""
    found = judged(at(fraction, card=replace(CALM, sm_clock_mhz=1650)))
    assert found.verdict is verdict
    if verdict is Verdict.UNDECIDED:
        assert "SM clock 1980 → 1650 MHz" in found.reason.sentence


def test_a_step_that_slows_its_own_clock_is_no_disturbance() -> None:
    found = judged(at(0.06, own=replace(CALM, sm_clock_mhz=1650)))
    assert found.verdict is Verdict.SLOWER


def test_without_yardsticks_the_steps_own_clock_has_to_do() -> None:
    bare = tuple(replace(run, yardsticks=None) for run in at(0.06, own=replace(CALM, sm_clock_mhz=1650)))
    assert judged(bare).reason.code is Code.CARD_DISTURBED


def test_no_disturbance_excuses_another_launch_config() -> None:
    other = [replace(kernel, config="XBLOCK=512 warps=8 stages=1") for kernel in builders.geglu_kernels()]
    now = tuple(replace(run, kernels=tuple(other)) for run in at(0.06, card=replace(CALM, other_processes=1)))
    found = judged(now)
    assert (found.verdict, found.reason.code) == (Verdict.SLOWER, Code.LAUNCH_CONFIG)


def test_a_card_that_is_always_at_its_limit_is_not_disturbed() -> None:
    hot = replace(CALM, sm_clock_mhz=1650, event_reasons=0x44, other_processes=2)
    assert judged(at(0.06, card=hot), base=at(0, card=hot)).verdict is Verdict.SLOWER


def test_disturbed_runs_are_left_out_where_others_are_left() -> None:
    disturbed = at(0.20, number=1, card=replace(CALM, sm_clock_mhz=1650))
    found = judged((*disturbed, *at(0.0, number=2)))
    assert (found.verdict, found.now_runs) == (Verdict.SAME, 2)
    assert found.ratio == pytest.approx(1, abs=0.005)


def test_what_nvml_cannot_tell_disturbs_nothing() -> None:
    assert card_state.disturbance(at(0, card=GpuState()), at(0)) == ""
    assert card_state.disturbance(at(0), at(0, card=GpuState())) == ""
    assert judged(at(0.06, card=GpuState())).verdict is Verdict.SLOWER


def test_yardsticks_that_both_sides_have_are_compared() -> None:
    faster = Yardsticks((("copy", 64_500.0), ("fixed", 73_000.0)), CALM)
    now = tuple(replace(run, yardsticks=faster) for run in at(0))
    found = dict(card_state.yardstick_ratios(at(0), now))
    assert found == {"copy": pytest.approx(0.5), "fixed": pytest.approx(1.0)}
    assert card_state.yardstick_ratios(builders.runs(), now) == ()
