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
    ({"sm_clock_mhz": 1800}, "SM clock 1980 → 1800 MHz"),
    (
        {"event_reasons": 0x44, "sm_clock_mhz": None},
        "slowed down by heat or power (clock-event reasons 0x40)",
    ),
    (
        {"event_reasons": 0x84, "sm_clock_mhz": None},
        "slowed down by heat or power (clock-event reasons 0x80)",
    ),
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


@pytest.mark.parametrize(
    ("state", "fraction", "excused"),
    [
        ({"memory_clock_mhz": 2619}, 0.22, True),  # 3201 / 2619 is 22 % slower
        ({"memory_clock_mhz": 2619}, 0.26, False),
        ({"memory_clock_mhz": 3200}, 0.06, False),
        ({"other_processes": 1}, 0.9, True),  # half of the GPU
        ({"other_processes": 1}, 1.2, False),
        ({"event_reasons": 0x44}, 0.06, False),  # heat that the clock doesn't show
        ({"event_reasons": 0x44, "sm_clock_mhz": 1650}, 0.2, True),
    ],
)
def test_a_disturbance_excuses_no_more_than_it_can_cost(
    state: dict[str, Any], fraction: float, excused: bool
) -> None:
    found = judged(at(fraction, card=replace(CALM, **state)))
    assert found.verdict is (Verdict.UNDECIDED if excused else Verdict.SLOWER)


@pytest.mark.parametrize(("fraction", "verdict"), [(0.1, Verdict.UNDECIDED), (0.25, Verdict.SLOWER)])
def test_ecc_that_was_turned_on_is_a_disturbance(fraction: float, verdict: Verdict) -> None:
    off = replace(CALM, ecc=False)
    assert judged(at(fraction), base=at(0, card=off)).verdict is verdict
    assert card_state.disturbance(at(0, card=off), at(0)) == "ECC off → on"
    assert card_state.disturbance(at(0), at(0, card=off)) == ""


def test_a_disturbed_card_does_not_excuse_a_longer_compilation() -> None:
    slow = tuple(replace(run, first_call_s=13.0) for run in at(0.0, card=replace(CALM, other_processes=3)))
    recordings = [builders.recording(runs=runs) for runs in (at(0), slow)]
    assert compare(*recordings, Policy(metric="compile_time")).verdict is Verdict.SLOWER


def test_a_baseline_on_a_slower_clock_hides_no_slowdown() -> None:
    throttled = replace(CALM, sm_clock_mhz=1650)
    found = judged(at(0.15), base=at(0.2, card=throttled))
    assert (found.verdict, found.reason.code) == (Verdict.UNDECIDED, Code.CARD_DISTURBED)
    assert found.reason.sentence.endswith(
        "but the baseline was recorded on a slower clock: SM clock 1650 → 1980 MHz"
    )


def test_only_yardsticks_that_every_run_has_tell_of_the_card() -> None:
    """One run without them, and the steps' own states are compared, which are alike on both sides."""
    now = at(0.06, card=replace(CALM, sm_clock_mhz=1650))
    partly = (replace(now[0], yardsticks=None), *now[1:])
    assert judged(now).verdict is Verdict.UNDECIDED
    assert judged(partly).verdict is Verdict.SLOWER


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("state", [{"other_processes": 1}, {"event_reasons": 0x44}, {"sm_clock_mhz": 1650}])
def test_disturbed_runs_are_told_however_many_they_are(count: int, state: dict[str, Any]) -> None:
    runs = (*at(0, number=count, card=replace(CALM, **state)), *at(0, number=5 - count))
    assert [number for number, _ in card_state.disturbed_runs(runs)] == list(range(1, count + 1))
    assert card_state.disturbed_runs(at(0, card=replace(CALM, **state))) == ()


def test_a_card_is_the_same_only_where_all_runs_were_on_it() -> None:
    def on(*cards: str) -> tuple[Run, ...]:
        return tuple(replace(run, card=card) for run, card in zip(at(0), cards, strict=False))

    assert card_state.same_card(on("a", "a"), on("a"))
    assert not card_state.same_card(on("a", "b"), on("a"))
    assert not card_state.same_card(on("a"), on("b"))
    assert not card_state.same_card(on("", ""), on(""))
    assert card_state.machine_summary(on(""), on("")).endswith("card not known")
