"""Each verdict and each reason is reached by a planted change, and not by its opposite or without one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kernelperf.compare import (
    Code,
    Comparison,
    Policy,
    Verdict,
    changes,
    compare,
    judge_suite,
    speed_ratio,
    wants_more_runs,
)
from kernelperf.compare.estimate import (
    Margins,
    error_quantile,
    estimate,
    kept_rounds,
    run_value,
    spread_fraction,
)
from kernelperf.compare.kernels import launch_differences
from kernelperf.environment import GpuState
from kernelperf.errors import NotMeasurable, UnusableInput
from kernelperf.recording.records import Counts, KernelRecord, Run
from tests import builders

BASE_US = 206.8
SUITE = Policy(suite_size=9)
WORKLOADS = ("linear_eager", "mlp_eager", "mlp_compiled", "mlp_liger")


def judged(
    now: Sequence[Run], base: Sequence[Run] | None = None, policy: Policy = SUITE, **now_changes: Any
) -> Any:
    return compare(
        builders.recording(runs=tuple(base or builders.runs())),
        builders.recording(runs=tuple(now), **now_changes),
        policy,
    )


def at(fraction: float, number: int = 5, **changed: Any) -> tuple[Run, ...]:
    """Runs that much slower than the baseline's."""
    return builders.runs(BASE_US * (1 + fraction), number, **changed)


# --- the estimate


def test_the_first_three_rounds_do_not_count() -> None:
    assert kept_rounds([9, 9, 9, *range(12)]) == tuple(range(12))
    assert run_value([1e9, 1e9, 1e9, 1.0, 3.0]) == 2.0


@pytest.mark.parametrize(
    ("rounds", "kept"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2), (7, 4), (14, 8), (15, 12)]
)
def test_a_multiple_of_four_rounds_counts(rounds: int, kept: int) -> None:
    assert kept_rounds(range(rounds)) == tuple(range(rounds))[-kept:]


def test_two_phases_that_alternate_give_their_mean() -> None:
    """A median of an odd number of rounds would pick one of them."""
    for rounds in ([200.0, 202.0] * 8)[:15], ([202.0, 200.0] * 8)[:15]:
        assert run_value(rounds) == 201.0


def test_the_interval_is_that_of_the_formula() -> None:
    found = estimate([100.0, 101.0], [110.0], Margins(0.004, 2.0))
    spread = statistics.stdev([math.log(100), math.log(101)])
    margin = 2.0 * math.sqrt(spread**2 / 2 + spread**2)
    assert math.log(found.ratio) == pytest.approx(math.log(110) - (math.log(100) + math.log(101)) / 2)
    assert math.log(found.upper / found.ratio) == pytest.approx(margin)
    assert math.log(found.ratio / found.lower) == pytest.approx(margin)


def test_runs_that_agree_by_luck_keep_the_floor() -> None:
    found = estimate([100.0] * 4, [100.0] * 4, Margins(0.004, 1.0))
    assert math.log(found.upper) == pytest.approx(0.004 / math.sqrt(2))


def test_runs_of_now_that_differ_more_widen_the_interval() -> None:
    calm, wild = (
        estimate([100.0, 101.0], now, Margins(0.004, 1.0)) for now in ([110.0, 110.1], [105.0, 115.2])
    )
    assert wild.upper / wild.ratio > calm.upper / calm.ratio


def test_another_card_widens_the_interval() -> None:
    same = estimate([100.0] * 5, [100.0] * 5, Margins(0.004, 3.0))
    other = estimate([100.0] * 5, [100.0] * 5, Margins(0.004, 3.0, card_margin=0.02))
    assert other.upper > same.upper > 1
    assert math.log(other.upper) == pytest.approx(math.hypot(math.log(same.upper), 0.02))


def test_a_larger_suite_and_more_looks_need_a_wider_interval() -> None:
    alone = error_quantile(suite_size=1, looks=1)
    assert alone == pytest.approx(2.326, abs=1e-3)
    assert error_quantile(suite_size=9, looks=1) == error_quantile(suite_size=3, looks=3) > alone


def test_the_spread_is_robust() -> None:
    assert spread_fraction([100.0]) == 0
    assert spread_fraction([99.0, 100.0, 101.0, 100.0, 200.0]) == pytest.approx(1.4826 * 0.01)


# --- verdicts


@pytest.mark.parametrize(
    ("fraction", "verdict"),
    [
        (0.10, Verdict.SLOWER),
        (0.025, Verdict.SLOWER),
        (0.015, Verdict.SAME),
        (0.0, Verdict.SAME),
        (-0.015, Verdict.SAME),
        (-0.03, Verdict.FASTER),
    ],
)
def test_five_runs_against_five(fraction: float, verdict: Verdict) -> None:
    found = judged(at(fraction))
    assert found.verdict is verdict
    assert found.ratio == pytest.approx(1 + fraction, rel=1e-6)
    assert found.lower < found.ratio < found.upper
    assert (found.base_runs, found.now_runs) == (5, 5)
    assert found.base_ns == pytest.approx(BASE_US * 1e3, rel=1e-4)


def test_a_wide_interval_is_undecided() -> None:
    policy = replace(SUITE, tolerance_fraction=0.005)
    found = judged(at(0.007, number=1), policy=policy)
    assert found.verdict is Verdict.UNDECIDED
    assert found.reason.code is Code.INTERVAL_INCLUDES_ZERO
    assert found.lower < 1 < found.upper
    assert "--kperf-runs" in found.undecided_hint
    assert judged(at(0.02, number=1), policy=policy).verdict is Verdict.SLOWER


def test_a_wide_interval_on_the_fast_side_never_fails() -> None:
    found = judged(at(-0.007, number=1), policy=replace(SUITE, tolerance_fraction=0.005))
    assert found.verdict is Verdict.SAME


def test_the_tolerance_is_the_policys() -> None:
    assert judged(at(0.04), policy=replace(SUITE, tolerance_fraction=0.05)).verdict is Verdict.SAME
    assert judged(at(0.06), policy=replace(SUITE, tolerance_fraction=0.05)).verdict is Verdict.SLOWER


def noisy(us: float) -> tuple[Run, ...]:
    return tuple(builders.run(us * factor) for factor in (0.96, 0.98, 1.0, 1.02, 1.04))


def test_runs_that_differ_too_much_decide_nothing() -> None:
    found = judged(noisy(BASE_US))
    assert (found.verdict, found.reason.code) == (Verdict.UNDECIDED, Code.NOISY)
    assert "runs differ by 3.0% (robust CV), more than 1.3%" in found.reason.sentence
    assert found.undecided_hint == "record again on a quiet GPU"
    assert judged(at(0), base=noisy(BASE_US)).reason.code is Code.NOISY


def test_noise_does_not_hide_a_large_slowdown() -> None:
    assert judged(noisy(BASE_US * 1.2)).verdict is Verdict.SLOWER


def test_one_run_without_a_held_queue_is_not_believed() -> None:
    found = judged([builders.run(BASE_US * 1.1, queue_held=False)])
    assert (found.verdict, found.reason.code) == (Verdict.UNDECIDED, Code.QUEUE_RAN_DRY)


def test_a_queue_that_always_runs_dry_is_what_the_code_does() -> None:
    found = judged(at(0.1, queue_held=False))
    assert found.verdict is Verdict.SLOWER
    assert any("queue ran dry in this recording" in change for change in found.state_changes)


def test_runs_without_a_held_queue_are_left_out_beside_others() -> None:
    found = judged([*at(0.0, number=4), builders.run(BASE_US * 2, queue_held=False)])
    assert (found.verdict, found.now_runs) == (Verdict.SAME, 4)


def test_no_baseline() -> None:
    found = compare(None, builders.recording(), SUITE)
    assert (found.verdict, found.reason.code) == (Verdict.NO_BASELINE, Code.NOT_RECORDED)
    assert found.now_ns == pytest.approx(BASE_US * 1e3, rel=1e-4)
    assert "kernelperf accept" in found.undecided_hint


def test_another_definition_is_no_baseline() -> None:
    found = judged(at(0.5), definition="other")
    assert (found.verdict, found.reason.code) == (Verdict.NO_BASELINE, Code.DEFINITION_CHANGED)
    assert found.ratio is None


def test_a_baseline_without_times_is_none() -> None:
    found = judged(at(0), base=[builders.untimed(builders.run())])
    assert (found.verdict, found.reason.code) == (Verdict.NO_BASELINE, Code.NOT_TIMED)


@pytest.mark.parametrize("samples", [(), (math.nan,) * 15, (0.0,) * 15])
def test_no_usable_samples_are_an_error(samples: tuple[float, ...]) -> None:
    with pytest.raises(NotMeasurable, match=r"'geglu_compiled-bf16' has no usable samples of gpu_time"):
        judged([builders.run(gpu_time_ns=samples)])


def test_other_hardware_is_never_compared() -> None:
    capped = builders.environment(hardware=replace(builders.H200, power_limit_w=600))
    with pytest.raises(
        UnusableInput, match=r"power_limit_w=600.*power_limit_w=700.*only recordings of equal"
    ):
        judged(at(0), environment=capped)


def test_an_unknown_metric_is_an_error() -> None:
    with pytest.raises(UnusableInput, match=r"metric 'gpu' is unknown; use one of gpu_time, wall_time"):
        judged(at(0), policy=Policy(metric="gpu"))


@pytest.mark.parametrize(
    ("metric", "slow"),
    [
        ("wall_time", {"wall_time_ns": (400e3,) * 4}),
        ("kernel_time", {"kernels": builders.geglu_kernels(fused_us=80.0)}),
        ("compile_time", {"first_call_s": 12.0}),
    ],
)
def test_other_metrics_are_judged_by_themselves(metric: str, slow: dict[str, Any]) -> None:
    policy = replace(SUITE, metric=metric)
    assert judged(at(0, **slow), policy=policy).verdict is Verdict.SLOWER
    assert judged(at(0), policy=policy).verdict is Verdict.SAME
    assert judged(at(0, **slow)).verdict is Verdict.SAME  # gpu_time stayed


# --- real runs


@pytest.mark.parametrize("workload", WORKLOADS)
def test_unchanged_real_runs_are_the_same(workload: str) -> None:
    """Fresh processes on one H200, and on another one against its baseline."""
    base = builders.real_recording(workload, "a", slice(5))
    for card, processes in (("a", slice(5, 10)), ("a", slice(5, 6)), ("b", slice(0, 3))):
        now = builders.real_recording(workload, card, processes)
        assert compare(base, now, SUITE).verdict is Verdict.SAME, (workload, card)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_real_runs_made_three_percent_slower_are_found(workload: str) -> None:
    base = builders.real_recording(workload, "a", slice(5))
    assert (
        compare(base, builders.real_recording(workload, "a", slice(5, 10), 1.03), SUITE).verdict
        is Verdict.SLOWER
    )
    assert (
        compare(base, builders.real_recording(workload, "b", slice(3), 1.03), SUITE).verdict is Verdict.SLOWER
    )
    assert (
        compare(base, builders.real_recording(workload, "a", slice(5, 10), 0.97), SUITE).verdict
        is Verdict.FASTER
    )


# --- launch configs


NARROW = builders.geglu_kernels(builders.NARROW, 57.0)


def test_another_launch_config_is_its_own_reason_with_its_cost() -> None:
    found = judged(at(0.086, kernels=NARROW))
    assert (found.verdict, found.reason.code) == (Verdict.SLOWER, Code.LAUNCH_CONFIG)
    assert found.reason.sentence == "the same kernels take another launch config: +8.6%"
    (change,) = found.kernel_changes
    assert (change.kind, change.position, change.name) == ("reconfigured", 2, builders.FUSED)
    assert (change.before, change.now) == ("XBLOCK=1024 warps=4", "XBLOCK=512 warps=8")
    assert change.delta_ns == pytest.approx(20_200)


def test_another_launch_config_without_cost_is_told_and_passes() -> None:
    found = judged(at(0, kernels=builders.geglu_kernels(builders.NARROW)))
    assert (found.verdict, found.reason.code) == (Verdict.SAME, Code.LAUNCH_CONFIG)


def test_runs_of_two_launch_configs_are_not_pooled() -> None:
    """Four runs as ever and one in the slow config: pooled they would read +1.7 %, the same."""
    found = judged([*at(0, number=4), builders.run(BASE_US * 1.086, kernels=NARROW)])
    assert (found.verdict, found.reason.code, found.now_runs) == (Verdict.SLOWER, Code.LAUNCH_CONFIG, 1)
    assert found.ratio == pytest.approx(1.086, rel=1e-5)
    assert "in 1 of 5 runs; the others took another launch config" in found.reason.sentence


def test_a_launch_config_is_held_against_the_baselines_runs_of_it() -> None:
    base = [*builders.runs(number=3), *at(0.086, 2, kernels=NARROW)]
    found = judged(at(0.086, kernels=NARROW), base=base)
    assert (found.verdict, found.base_runs) == (Verdict.SAME, 2)
    assert judged(at(0.0), base=base).base_runs == 3


# --- kernels


def added(fused_us: float = 36.8) -> tuple[KernelRecord, ...]:
    copy = builders.kernel("direct_copy_kernel", 20.0, role="copy", op="aten::copy_")
    gate, up, fused, down = builders.geglu_kernels(fused_us=fused_us)
    return (gate, up, copy, fused, down)


def test_a_new_kernel_is_named_where_it_stands() -> None:
    found = judged(at(0.1, kernels=added()))
    assert (found.verdict, found.reason.code) == (Verdict.SLOWER, Code.KERNELS)
    (change,) = found.kernel_changes
    assert (change.kind, change.position, change.now, change.op) == (
        "added",
        2,
        "direct_copy_kernel",
        "aten::copy_",
    )
    assert change.delta_ns == found.kernel_delta_ns == pytest.approx(20_000)


def test_a_lost_kernel_is_named_with_what_it_took() -> None:
    found = judged(at(-0.1), base=builders.runs(kernels=added()))
    (change,) = found.kernel_changes
    assert (change.kind, change.position, change.before) == ("removed", 2, "direct_copy_kernel")
    assert change.delta_ns == pytest.approx(-20_000)
    assert found.verdict is Verdict.FASTER


def test_a_fused_kernel_that_splits_is_one_lost_and_two_new() -> None:
    gate, up, _, down = builders.geglu_kernels()
    split = (
        gate,
        up,
        builders.kernel("gelu_elementwise", 29.6),
        builders.kernel("mul_elementwise", 36.5),
        down,
    )
    found = judged(at(0.14, kernels=split))
    assert [(c.kind, c.position) for c in found.kernel_changes] == [
        ("removed", 2),
        ("added", 2),
        ("added", 3),
    ]


def test_another_kernel_in_the_same_place_is_a_rename() -> None:
    gate, up, fused, _ = builders.geglu_kernels()
    other = builders.kernel("cutlass_80_tensorop", 60.0, op="aten::mm", role="gemm")
    found = judged(at(0.05, kernels=(gate, up, fused, other)))
    (change,) = found.kernel_changes
    assert change.kind == "renamed"
    assert (change.before, change.now) == ("nvjet_sm90_tst_192x128_64x5_coopB_TNT", "cutlass_80_tensorop")
    assert found.reason.code is Code.KERNELS


def test_the_same_kernel_under_another_op_is_no_change() -> None:
    moved = tuple(replace(kernel, op="aten::linear") for kernel in builders.geglu_kernels())
    assert judged(at(0, kernels=moved)).kernel_changes == ()


def test_a_kernel_that_takes_longer_explains_the_difference() -> None:
    found = judged(at(0.086, kernels=builders.geglu_kernels(fused_us=54.6)))
    assert (found.verdict, found.reason.code) == (Verdict.SLOWER, Code.KERNEL_TIME)
    (change,) = found.kernel_changes
    assert (change.kind, change.position, change.before_ns, change.now_ns) == ("slower", 2, 36_800, 54_600)
    assert found.kernel_delta_ns == pytest.approx(found.delta_ns, rel=0.01)


def test_a_slowdown_that_no_kernel_shows_is_unexplained() -> None:
    found = judged(at(0.086))
    assert (found.reason.code, found.kernel_changes) == (Code.UNEXPLAINED, ())


@pytest.mark.parametrize(("us", "kinds"), [(37.4, []), (36.2, []), (37.8, ["slower"]), (35.8, ["faster"])])
def test_a_kernels_noise_is_no_change(us: float, kinds: list[str]) -> None:
    found = judged(at(0, kernels=builders.geglu_kernels(fused_us=us)))
    assert [change.kind for change in found.kernel_changes] == kinds


def test_a_tiny_kernels_clock_steps_are_no_change() -> None:
    tiny, ticked = ((builders.kernel(duration_us=us),) for us in (1.5, 1.564))
    assert judged(at(0, kernels=ticked), base=builders.runs(kernels=tiny)).kernel_changes == ()


def test_a_launch_config_without_triton_shows_its_grid() -> None:
    before, now = builders.kernel(grid=(8, 1, 1)), builders.kernel(grid=(16, 1, 1), registers=32)
    assert launch_differences(before, now) == ("grid=8x1x1 registers=168", "grid=16x1x1 registers=32")


# --- counts, stack, state


def counted(**changed: int) -> dict[str, Any]:
    counts = {"kernels": 4, "memsets": 2, "memcpys": 0, "host_ops": 31, "runtime_calls": 9}
    return {"counts": Counts(**{**counts, **changed})}


@pytest.mark.parametrize("name", ["kernels", "memcpys", "host_ops", "runtime_calls"])
def test_a_count_that_rises_on_the_same_stack_fails(name: str) -> None:
    found = judged(at(0, **counted(**{name: 40})))
    assert (found.verdict, found.reason.code, found.counts_rose) == (Verdict.SLOWER, Code.COUNTS, True)
    assert [change[0] for change in found.count_changes] == [name]
    assert f"{name} " in found.reason.sentence
    assert "→ 40" in found.reason.sentence


def test_a_recompile_on_the_same_stack_fails() -> None:
    found = judged(at(0, observations=builders.observations(recompiles=3)))
    assert (found.verdict, found.count_changes) == (Verdict.SLOWER, (("recompiles", 0, 3),))


@pytest.mark.parametrize("changed", [counted(host_ops=20), counted(memsets=9)])
def test_a_count_that_falls_or_is_the_librarys_choice_informs(changed: dict[str, Any]) -> None:
    found = judged(at(0, **changed))
    assert (found.verdict, found.counts_rose) == (Verdict.SAME, False)
    assert len(found.count_changes) == 1


def test_a_count_that_rises_across_stacks_informs() -> None:
    newer = builders.environment(stack=(*builders.STACK[:2], ("torch", "2.12.0"), ("triton", "3.6.0")))
    found = judged(at(0, **counted(host_ops=40)), environment=newer)
    assert (found.verdict, found.counts_rose) == (Verdict.SAME, False)
    assert found.count_changes == (("host_ops", 31, 40),)
    assert found.stack_changes == (("torch", "2.11.0", "2.12.0"),)


def test_a_count_that_rises_beside_a_gain_informs() -> None:
    assert judged(at(-0.1, **counted(kernels=5))).verdict is Verdict.FASTER


def test_a_count_that_differs_in_one_run_is_not_a_change() -> None:
    now = [*at(0, number=4, **counted(host_ops=40)), builders.run()]
    assert judged(now).count_changes == ()


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"observations": builders.observations(dynamo_graphs=0)}, Code.EAGER_FALLBACK),
        ({"observations": builders.observations(graph_breaks=1, dynamo_graphs=2)}, Code.RECOMPILE),
        ({"observations": builders.observations(recompiles=3)}, Code.RECOMPILE),
        (counted(host_ops=60), Code.HOST_OPS),
        (counted(runtime_calls=12), Code.HOST_OPS),
        ({"observations": builders.observations(peak_memory_bytes=400_000_000)}, Code.MEMORY),
        (counted(memcpys=2), Code.COPIES),
        (counted(kernels=9), Code.COUNTS),
        ({}, Code.UNEXPLAINED),
    ],
)
def test_a_slowdown_that_no_kernel_explains_is_laid_to_a_layer(changed: dict[str, Any], code: Code) -> None:
    found = judged(at(0.08, **changed))
    assert (found.verdict, found.reason.code) == (Verdict.SLOWER, code)
    for name, before, now in found.count_changes:
        assert f"{name} {before} → {now}" in found.reason.sentence


def test_a_fall_back_to_eager_is_named_before_the_kernels_that_it_brings() -> None:
    found = judged(at(0.12, kernels=added(), observations=builders.observations(dynamo_graphs=0)))
    assert found.reason.code is Code.EAGER_FALLBACK
    assert found.reason.sentence == "it was compiled, and runs eager now: dynamo_graphs 1 → 0"
    assert found.kernel_changes[0].kind == "added"


def test_a_count_that_rose_in_some_launches_is_the_worst_of_them() -> None:
    """Two of five runs launch one kernel more: they speak for the workload."""
    more = at(0, number=2, kernels=added(), **counted(kernels=5))
    found = judged([*at(0, number=3), *more])
    assert (found.verdict, found.now_runs) == (Verdict.SLOWER, 2)


def test_a_number_that_the_compiler_put_behind_a_name_is_no_other_launch() -> None:
    renamed = [
        replace(kernel, name=kernel.name.replace("_0", "_1")) if kernel.config else kernel
        for kernel in builders.geglu_kernels()
    ]
    found = judged(at(0, kernels=renamed))
    assert (found.verdict, found.reason.code) == (Verdict.SAME, Code.WITHIN_TOLERANCE)


def test_runs_without_samples_are_left_out() -> None:
    narrow = builders.geglu_kernels(builders.NARROW)
    untimed = tuple(builders.untimed(run) for run in at(0, number=2, kernels=narrow))
    assert judged(at(0), base=[*at(0, number=3), *untimed]).verdict is Verdict.SAME
    assert judged([*at(0, number=3), *untimed]).verdict is Verdict.SAME


def test_a_step_without_kernels_has_no_kernel_time() -> None:
    policy = Policy(metric="kernel_time")
    with pytest.raises(NotMeasurable, match="has no usable samples of kernel_time"):
        judged(at(0, kernels=()), base=at(0, kernels=()), policy=policy)


def test_what_the_stack_gained_and_lost_is_told() -> None:
    assert changes.stack_changes((("a", "1"), ("b", "1")), (("b", "1"), ("c", "2"))) == (
        ("a", "1", ""),
        ("c", "", "2"),
    )


def with_state(**state: Any) -> tuple[Run, ...]:
    usual = {
        "sm_clock_mhz": 1980,
        "temperature_c": 50,
        "power_w": 571.5,
        "event_reasons": 4,
        "other_processes": 0,
    }
    return at(0, state=GpuState(**{**usual, **state}))


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"sm_clock_mhz": 1650}, "SM clock 1980 → 1650 MHz"),
        ({"temperature_c": 82}, "temperature 50 → 82 °C"),
        ({"power_w": 300.0}, "power 572 → 300 W"),
        ({"event_reasons": 0x44}, "clock-event reasons 0x40 that the baseline hasn't"),
        ({"other_processes": 2}, "other processes on the GPU: 0 → 2"),
    ],
)
def test_a_state_that_differs_from_the_baselines_is_told(state: dict[str, Any], told: str) -> None:
    assert judged(with_state(**state)).state_changes == (told,)


@pytest.mark.parametrize(
    "state", [{"sm_clock_mhz": 1965}, {"temperature_c": 55}, {"event_reasons": 0}, {"sm_clock_mhz": None}]
)
def test_a_state_like_the_baselines_is_not(state: dict[str, Any]) -> None:
    assert judged(with_state(**state)).state_changes == ()


def test_throttling_as_in_the_baseline_is_no_difference() -> None:
    throttled = with_state(sm_clock_mhz=1650, event_reasons=0x44)
    assert judged(throttled, base=throttled).state_changes == ()


def test_what_is_equal_is_claimed_only_where_it_is_known() -> None:
    assert judged(at(0)).machine == "clocks equal (1980 MHz), GPU not shared, same card"
    assert judged(at(0, state=GpuState())).machine == "same card"
    assert judged(at(0, card="other")).machine.endswith("another card of this model")
    assert judged(with_state(sm_clock_mhz=1500)).machine == "GPU not shared, same card"


# --- structure alone


def test_structure_is_judged_without_times() -> None:
    policy = Policy(metric="structure")
    one = (builders.untimed(builders.run()),)
    more = (builders.untimed(builders.run(kernels=added(), **counted(kernels=5))),)
    assert judged(one, base=one, policy=policy).verdict is Verdict.SAME
    found = judged(more, base=one, policy=policy)
    assert (found.verdict, found.reason.code, found.ratio) == (Verdict.SLOWER, Code.COUNTS, None)
    assert found.kernel_changes[0].kind == "added"


# --- more runs


@pytest.mark.parametrize(
    ("fraction", "wanted"), [(0.0, False), (0.005, False), (0.012, True), (0.05, True), (-0.05, True)]
)
def test_only_a_plain_same_needs_no_more_runs(fraction: float, wanted: bool) -> None:
    assert wants_more_runs(judged(at(fraction, number=1))) is wanted


def test_what_is_undecided_or_new_needs_more_runs() -> None:
    assert wants_more_runs(compare(None, builders.recording(), SUITE))
    assert wants_more_runs(judged(noisy(BASE_US)))


def test_structure_never_needs_more_runs() -> None:
    assert not wants_more_runs(compare(None, builders.recording(), Policy(metric="structure")))


# --- the suite


def suite(*fractions: float) -> tuple[Comparison, ...]:
    return tuple(
        replace(judged(at(fraction)), workload=f"workload_{number}")
        for number, fraction in enumerate(fractions)
    )


def test_a_shift_of_all_workloads_is_its_own_reason() -> None:
    found = judge_suite(suite(0.03, 0.032, 0.025, 0.03))
    assert {comparison.verdict for comparison in found} == {Verdict.SLOWER}
    assert {comparison.reason.code for comparison in found} == {Code.COMMON_SHIFT}
    assert "all 4 workloads moved, by +3.0% in the middle: the card or the stack" in found[0].reason.sentence


@pytest.mark.parametrize("fractions", [(0.03, 0.0, 0.001, -0.001), (0.03, 0.03, 0.03, 0.0), (0.03, 0.03)])
def test_a_slowdown_of_some_is_no_common_shift(fractions: tuple[float, ...]) -> None:
    comparisons = suite(*fractions)
    assert judge_suite(comparisons) == comparisons


def test_a_workload_that_stands_out_of_the_shift_keeps_its_reason() -> None:
    found = judge_suite(suite(0.025, 0.025, 0.025, 0.12))
    assert [comparison.reason.code for comparison in found] == [Code.COMMON_SHIFT] * 3 + [Code.UNEXPLAINED]


def test_workloads_that_are_the_same_stay_so_under_a_shift() -> None:
    found = judge_suite(suite(0.015, 0.03, 0.03))
    assert (found[0].verdict, found[0].reason.code) == (Verdict.SAME, Code.WITHIN_TOLERANCE)


def test_an_empty_suite_is_judged() -> None:
    assert judge_suite(()) == ()


# --- speed of two variants


def with_numerics(us: float, **numerics: Any) -> Any:
    return builders.recording(runs=builders.runs(us, observations=builders.observations(**numerics)))


def test_the_speed_ratio_is_above_one_where_the_second_is_faster() -> None:
    assert speed_ratio(with_numerics(300.0), with_numerics(200.0), 0.01) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("numerics", "message"),
    [
        ({"relative_error": None}, "has no relative error: give its Subject a float64 reference"),
        (
            {"relative_error": 0.02},
            r"is off its float64 reference by 0\.02 \(relative norm\), expected at most 0\.01",
        ),
        ({"relative_error": math.nan}, "is off its float64 reference by nan"),
        ({"reference_digest": "other"}, "don't compute the same.*'5f70bf18' and 'other'"),
        ({"reference_digest": None, "reference_norm": 813.0}, "don't compute the same"),
        ({"reference_digest": None, "reference_norm": None}, "don't compute the same"),
    ],
)
def test_variants_that_disagree_are_not_compared(numerics: dict[str, Any], message: str) -> None:
    with pytest.raises(NotMeasurable, match=message):
        speed_ratio(with_numerics(300.0), with_numerics(200.0, **numerics), 0.01)


def test_equal_norms_stand_in_for_a_missing_digest() -> None:
    assert speed_ratio(with_numerics(300.0), with_numerics(200.0, reference_digest=None), 0.01) > 1


def test_variants_of_two_machines_are_not_compared() -> None:
    capped = builders.environment(hardware=replace(builders.H200, power_limit_w=600))
    other = replace(with_numerics(200.0), environment=capped)
    with pytest.raises(NotMeasurable, match="different hardware"):
        speed_ratio(with_numerics(300.0), other, 0.01)


def test_variants_without_times_are_not_compared() -> None:
    bare = builders.recording(runs=(builders.untimed(builders.run()),))
    with pytest.raises(NotMeasurable, match="has no gpu_time"):
        speed_ratio(bare, with_numerics(200.0), 0.01)


def test_a_count_that_rises_fails_though_the_workload_tells_otherwise_of_itself() -> None:
    """A longer text about a workload is no other software."""
    found = judged(at(0, **counted(host_ops=40)), about=(("hidden", "4096"),))
    assert (found.verdict, found.counts_rose) == (Verdict.SLOWER, True)
    assert ("hidden", "", "4096") in found.stack_changes


def test_what_a_workload_tells_of_itself_is_shown_with_its_stack() -> None:
    """Another revision of a kernel from the Hub is a change of the software."""
    base = builders.recording(about=(("liger_revision", "a1"),))
    now = builders.recording(about=(("liger_revision", "b2"),))
    assert compare(base, now, Policy()).stack_changes == (("liger_revision", "a1", "b2"),)
