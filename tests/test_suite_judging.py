"""What one workload can't tell alone: how much runs vary, another card, and what moved all of them."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from kernelperf.compare import Code, Comparison, Suite, Verdict, compare, judge_suite
from kernelperf.compare.cards import MAX_CARD_SHIFT, card_shift, learned_sd
from kernelperf.compare.verdict import METRICS, launch_share
from kernelperf.environment import GpuState
from kernelperf.recording.records import WorkloadRecording, Yardsticks
from tests import builders

NAMES = tuple(f"w{number}" for number in range(6))


def suite_of(shifts: dict[str, float], card: str = "a1b2c3", **changed: object) -> list[WorkloadRecording]:
    """Six workloads, each that much slower than the baseline's."""
    return [
        builders.recording(
            name, runs=builders.runs(206.8 * (1 + shifts.get(name, 0.0)), card=card, **changed)
        )
        for name in NAMES
    ]


def judged(shifts: dict[str, float], card: str = "a1b2c3", **changed: object) -> dict[str, Comparison]:
    base, now = suite_of({}), suite_of(shifts, card, **changed)
    suite = Suite(base, now, looks=1)
    known = {rec.id: rec for rec in base}
    found = [compare(known[rec.id], rec, suite.policy(rec.id, tolerance_fraction=0.02)) for rec in now]
    return {comparison.workload.partition("-")[0]: comparison for comparison in judge_suite(found)}


def all_by(fraction: float) -> dict[str, float]:
    return dict.fromkeys(NAMES, fraction)


# --- how much runs vary


def test_the_spread_is_pooled_with_what_is_usual() -> None:
    base = suite_of({})
    variance = statistics.variance(math.log(factor) for factor in builders.RUN_FACTORS[:5])
    of_launches = launch_share(base[0].runs) ** 2
    prior = METRICS["gpu_time"].floor_sd
    expected = (8 * prior**2 + 6 * 4 * max(0.0, variance - of_launches)) / (8 + 6 * 4)
    assert learned_sd(base) == pytest.approx(math.sqrt(expected), rel=1e-3)


def test_a_noisy_baseline_widens_every_interval() -> None:
    calm = suite_of({})
    noisy = [
        replace(rec, runs=tuple(builders.run(206.8 * factor) for factor in (0.99, 1.01, 1.0, 0.98, 1.02)))
        for rec in calm
    ]
    assert learned_sd(noisy) > 2 * learned_sd(calm)


def test_without_a_baseline_the_usual_spread_is_assumed() -> None:
    assert learned_sd([]) == METRICS["gpu_time"].floor_sd


def test_short_steps_teach_nothing_about_the_others() -> None:
    short = [
        replace(rec, runs=tuple(builders.run(4.0 * factor) for factor in (0.9, 1.1, 1.0, 0.95, 1.05)))
        for rec in suite_of({})
    ]
    assert learned_sd(short) == METRICS["gpu_time"].floor_sd


# --- another card


def test_on_the_same_card_nothing_is_taken_off() -> None:
    found = judged(all_by(0.01) | {"w0": 0.03})
    assert found["w0"].card_shift is None
    assert found["w0"].verdict is Verdict.SLOWER


def test_on_another_card_the_others_shift_is_taken_off() -> None:
    found = judged(all_by(0.01), card="other")
    assert {comparison.verdict for comparison in found.values()} == {Verdict.SAME}
    assert found["w0"].card_shift == pytest.approx(1.01, rel=1e-4)
    assert found["w0"].ratio == pytest.approx(1.0, abs=1e-4)
    assert found["w0"].raw_ratio == pytest.approx(1.01, rel=1e-4)


def test_a_slower_card_does_not_hide_a_slower_workload() -> None:
    found = judged(all_by(0.01) | {"w0": 0.045}, card="other")
    assert found["w0"].verdict is Verdict.SLOWER
    assert found["w0"].ratio == pytest.approx(1.045 / 1.01, rel=1e-4)
    assert {found[name].verdict for name in NAMES[1:]} == {Verdict.SAME}


def test_a_faster_card_does_not_hide_a_slower_workload() -> None:
    found = judged(all_by(-0.01) | {"w0": 0.02}, card="other")
    assert found["w0"].verdict is Verdict.SLOWER


def test_what_no_card_was_seen_to_do_is_not_the_cards() -> None:
    """A slowdown of everything, of which no more than the bound can be another card's."""
    found = judged(all_by(0.06), card="other")
    assert {comparison.verdict for comparison in found.values()} == {Verdict.SLOWER}
    assert found["w0"].card_shift == pytest.approx(math.exp(MAX_CARD_SHIFT))
    assert {comparison.reason.code for comparison in found.values()} == {Code.COMMON_SHIFT}


def test_too_few_others_say_nothing_of_the_card() -> None:
    base, now = suite_of({})[:3], suite_of(all_by(0.01), card="other")[:3]
    known = {rec.id: rec for rec in base}
    assert card_shift(now[0].id, known, now) is None
    base, now = suite_of({})[:4], suite_of(all_by(0.01), card="other")[:4]
    found = card_shift(now[0].id, {rec.id: rec for rec in base}, now)
    assert found is not None
    assert found.workloads == 3


def test_one_that_moved_far_does_not_drag_the_others_along() -> None:
    found = judged({"w1": 0.5}, card="other")
    assert found["w0"].card_shift == pytest.approx(1.0, abs=1e-4)


def test_a_workload_launched_otherwise_says_nothing_of_the_card() -> None:
    base, now = suite_of({}), suite_of({}, card="other")
    relaunched = [
        replace(rec, runs=builders.runs(300.0, card="other", kernels=builders.geglu_kernels(builders.NARROW)))
        for rec in now[1:]
    ]
    assert card_shift(now[0].id, {rec.id: rec for rec in base}, [now[0], *relaunched]) is None


# --- what moved all of them


def with_yardsticks(fraction: float) -> Yardsticks:
    return Yardsticks((("copy", 129_000.0 * (1 + fraction)), ("fixed", 73_000.0)), GpuState())


@pytest.mark.parametrize(
    ("fraction", "blamed"),
    [
        (0.05, "the yardsticks did too (copy +5.0%, fixed +0.0%), so the card"),
        (
            0.0,
            "the yardsticks did not (copy +0.0%, fixed +0.0%), so the stack or code that all of them share",
        ),
    ],
)
def test_the_yardsticks_tell_a_slower_card_from_a_slower_stack(fraction: float, blamed: str) -> None:
    base = suite_of({}, yardsticks=with_yardsticks(0.0))
    now = suite_of(all_by(0.05), yardsticks=with_yardsticks(fraction))
    suite = Suite(base, now, looks=1)
    found = judge_suite(
        [
            compare(old, new, suite.policy(new.id, tolerance_fraction=0.02))
            for old, new in zip(base, now, strict=True)
        ]
    )
    for comparison in found:
        assert (comparison.verdict, comparison.reason.code) == (Verdict.SLOWER, Code.COMMON_SHIFT)
        assert blamed in comparison.reason.sentence


def test_a_cause_of_its_own_is_better_than_a_common_shift() -> None:
    """Every workload launched otherwise: that is what to say of each."""
    narrow = {"kernels": builders.geglu_kernels(builders.NARROW)}
    found = judged(all_by(0.086), **narrow)
    assert {comparison.reason.code for comparison in found.values()} == {Code.LAUNCH_CONFIG}


def test_a_gemm_of_another_stack_is_no_yardstick() -> None:
    def yardsticks(gemm: float) -> Yardsticks:
        return Yardsticks((("fixed", 73_000.0), ("gemm", 172_000.0 * gemm)), GpuState())

    base = suite_of({}, yardsticks=yardsticks(1.0))
    now = [
        replace(rec, environment=builders.environment(stack=(("torch", "2.12.0"),)))
        for rec in suite_of(all_by(0.05), yardsticks=yardsticks(1.05))
    ]
    suite = Suite(base, now, looks=1)
    old = {rec.id: rec for rec in base}
    found = judge_suite(
        [compare(old[rec.id], rec, suite.policy(rec.id, tolerance_fraction=0.02)) for rec in now]
    )
    assert all("the yardsticks did not (fixed +0.0%)" in each.reason.sentence for each in found)


def test_baselines_of_two_cards_are_not_pooled() -> None:
    """Against card b all read 1.1 % more, against c 1.1 % less: neither is the other's shift."""
    base = [
        replace(rec, runs=builders.runs(206.8, card="b" if number < 3 else "c"))
        for number, rec in enumerate(suite_of({}))
    ]
    now = suite_of(dict.fromkeys(NAMES[:3], 0.011) | dict.fromkeys(NAMES[3:], -0.011), card="a")
    suite = Suite(base, now, looks=1)
    known = {rec.id: rec for rec in base}
    assert card_shift(now[0].id, known, now) is None  # two others of its baseline's card are too few
    for rec in now:
        found = compare(known[rec.id], rec, suite.policy(rec.id, tolerance_fraction=0.02))
        assert found.verdict is not Verdict.SLOWER


def test_runs_that_do_not_count_say_nothing_of_the_card() -> None:
    base, now = suite_of({}), suite_of({}, card="other")
    spoiled = [
        replace(rec, runs=(replace(builders.run(413.6, card="other"), queue_held=False), *rec.runs))
        for rec in now
    ]
    found = card_shift(now[0].id, {rec.id: rec for rec in base}, spoiled)
    assert found is not None
    assert found.log == pytest.approx(0.0, abs=1e-4)


def test_what_the_baseline_teaches_reaches_the_verdict() -> None:
    noisy = [
        replace(rec, runs=tuple(builders.run(206.8 * factor) for factor in (0.994, 1.006, 1.0, 0.994, 1.006)))
        for rec in suite_of({})
    ]
    calm = suite_of({})
    now = suite_of({"w0": 0.03})[0]
    widths = []
    for base in (calm, [calm[0], *noisy[1:]]):
        suite = Suite(base, [now, *base[1:]], looks=1)
        found = compare(calm[0], now, suite.policy(now.id, tolerance_fraction=0.02))
        assert found.upper is not None
        assert found.lower is not None
        widths.append(found.upper / found.lower)
    assert widths[1] > 1.005 * widths[0]


@pytest.mark.parametrize("others", [0, 5])
def test_another_card_widens_the_interval_with_and_without_a_known_shift(others: int) -> None:
    base, now = suite_of({})[: 1 + others], suite_of({}, card="other")[: 1 + others]
    suite = Suite(base, now, looks=1)
    found = compare(base[0], now[0], suite.policy(now[0].id, tolerance_fraction=0.02))
    same = compare(base[0], base[0], suite.policy(now[0].id, tolerance_fraction=0.02))
    assert found.upper is not None
    assert same.upper is not None
    assert found.upper - same.upper > 0.008


def test_more_judgements_than_workloads_share_the_error() -> None:
    base = suite_of({})
    assert (Suite(base, base).size, Suite(base, base, judgements=24).size) == (6, 24)
