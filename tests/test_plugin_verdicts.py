"""Slower fails with the cause; what can't be judged skips with a remedy; nothing compared is never green."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from tests import builders
from tests.project import last_line, recorded

ONE_PERCENT_NOISE = tuple(builders.run(206.8 * factor) for factor in (0.94, 1.07, 0.98, 1.09, 1.13))
RELAUNCHED = builders.runs(206.8 * 1.09, kernels=builders.geglu_kernels(builders.NARROW, 55.0))


def test_slower_fails_with_the_number_the_kernel_and_what_to_do(project):
    project.guard()
    project.record(recorded(runs=RELAUNCHED))
    project.accept()
    result = project.replay("-k", "test_time")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "SLOWER mlp-bf16  gpu_time 206.8 → 225.4 µs  +9.0 %*tolerance 2 %  (5 runs against 5)",
            "  kernel   triton_poi_fused__unsafe_view_gelu_mul_0*XBLOCK 1024 → 512, warps 4 → 8",
            "  cause    launch config*",
            "  repro    pytest test_guarded.py -k mlp-bf16",
            "FAILED test_guarded.py::test_time*mlp-bf16* - Disagreement: SLOWER mlp-bf16*",
        ]
    )
    assert "kernelperf accept" not in result.stdout.str()  # a replay's numbers are nobody's to accept


def test_a_failure_shows_the_kernels_and_what_changed(project):
    project.guard(
        """
        import kernelperf

        @kernelperf.workload(dtype=["bf16"])
        def mlp(dtype): ...

        def test_fact(mlp):
            assert mlp.counts.kernels == 3
        """
    )
    project.record(recorded(runs=RELAUNCHED))
    project.accept()
    result = project.replay()
    result.stdout.fnmatch_lines(
        [
            "E*assert 4 == 3",
            "*- kernelperf mlp-bf16 -*",
            "2*pointwise*55.00 µs*triton_poi_fused__unsafe_view_gelu_mul_0*XBLOCK=512 warps=8 stages=1",
            "changed against the baseline baselines/nvidia-h200:",
            "triton_poi_fused__unsafe_view_gelu_mul_0*XBLOCK 1024 → 512, warps 4 → 8",
        ]
    )


def test_a_failure_without_a_baseline_says_so_beside_the_kernels(project):
    project.guard(
        """
        import kernelperf

        @kernelperf.workload(dtype=["bf16"])
        def mlp(dtype): ...

        def test_fact(mlp):
            assert mlp.counts.kernels == 3
        """
    )
    project.record()
    result = project.replay()
    result.stdout.fnmatch_lines(["*- kernelperf mlp-bf16 -*", "no baseline for NVIDIA H200*"])


def test_faster_passes(project):
    project.guard()
    project.record(recorded(runs=builders.runs(190.0)))
    project.accept()
    result = project.replay()
    result.assert_outcomes(passed=2)
    assert "1 faster" in last_line(result)


def test_undecided_skips_with_the_reason_and_fails_under_strict(project):
    project.guard()
    project.record(recorded(runs=ONE_PERCENT_NOISE))
    project.accept()
    result = project.replay("-rs", "-k", "test_time")
    result.assert_outcomes(skipped=1)
    assert result.ret == 0  # it was compared
    result.stdout.fnmatch_lines(["SKIPPED*test_guarded.py:8: undecided: mlp-bf16 gpu_time: *"])
    assert "1 undecided" in last_line(result)
    project.replay("--kperf-strict", "-k", "test_time").assert_outcomes(failed=1)
    project.replay("--kperf-require-baseline", "-k", "test_time").assert_outcomes(skipped=1)


def test_no_baseline_skips_with_the_remedy_and_is_not_green(project):
    project.guard()
    project.record()
    result = project.replay("-rs")
    result.assert_outcomes(skipped=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "SKIPPED*no baseline: mlp-bf16 gpu_time: no baseline for NVIDIA H200*--kperf-update-baselines*",
            "SKIPPED*mlp-bf16: no kernels to compare with: no baseline for*--kperf-update-baselines*",
            "kernelperf: ERROR: 0 workloads were compared by 1 timing test (1 without a baseline:*record*",
        ]
    )


def test_structure_alone_is_green_without_a_comparison_of_times(project):
    project.guard()
    project.record()
    project.accept()
    result = project.replay("-k", "test_kernels")
    result.assert_outcomes(passed=1, deselected=1)
    assert result.ret == 0


def test_a_recording_without_times_is_not_compared(project):
    project.guard()
    project.record(recorded(runs=(builders.untimed(builders.run()),)))
    project.accept()
    result = project.replay("-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED*mlp-bf16 was recorded without times; record it again with timing on"]
    )
    result.stdout.fnmatch_lines(["kernelperf: ERROR: 0 workloads were compared*(1 recorded without times)*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


TWO = """
    import kernelperf

    @kernelperf.workload(dtype=["bf16"])
    def mlp(dtype): ...

    @kernelperf.workload(dtype=["bf16"])
    def other(dtype): ...

    def test_mlp(gpu_benchmark, mlp):
        gpu_benchmark(mlp)

    def test_other(gpu_benchmark, other):
        gpu_benchmark(other)
"""


def test_a_workload_of_the_baseline_that_was_not_selected_is_counted(project):
    project.guard(TWO)
    project.record(recorded("mlp"), recorded("other"))
    project.accept(recorded("mlp"), recorded("other"))
    result = project.replay("-k", "test_mlp", "--kperf-require-baseline")
    assert result.ret == 0
    assert "1 same; 1 not selected; REPLAY" in last_line(result)


def test_a_workload_of_a_file_that_was_not_collected_is_not_missing(project):
    project.guard()
    project.write("elsewhere/test_more.py", "")
    project.record()
    project.accept(recorded(), recorded("more", declared_in="elsewhere/test_more.py"))
    result = project.replay("test_guarded.py", "--kperf-require-baseline")
    assert result.ret == 0
    assert "1 not selected" in last_line(result)


def test_a_workload_of_the_baseline_that_the_run_has_no_evidence_of_fails_where_one_is_required(project):
    project.guard(TWO)
    project.record(recorded("mlp"))
    project.accept(recorded("mlp"), recorded("other"))
    assert project.replay().ret == 0
    required = project.replay("--kperf-require-baseline")
    assert required.ret == pytest.ExitCode.TESTS_FAILED
    required.stdout.fnmatch_lines(["kernelperf: ERROR: *no evidence of: other-bf16 (not in the recording)*"])


@pytest.mark.parametrize("declared_in", ["test_guarded.py", "test_deleted.py"])
def test_a_workload_that_is_declared_nowhere_any_more_is_missing(project, declared_in):
    project.guard()
    project.record()
    project.accept(recorded(), recorded("gone", declared_in=declared_in))
    result = project.replay()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["gone-bf16: in the baseline, but declared nowhere any more"])
    assert "1 same; 1 missing; REPLAY" in last_line(result)
    required = project.replay("--kperf-require-baseline")
    assert required.ret == pytest.ExitCode.TESTS_FAILED
    required.stdout.fnmatch_lines(
        ["kernelperf: ERROR: the baseline baselines/nvidia-h200 holds workloads*declared nowhere*gone-bf16*"]
    )


def test_a_new_workload_beside_known_ones_skips_and_fails_where_a_baseline_is_required(project):
    project.guard(TWO)
    project.record(recorded("mlp"), recorded("other"))
    project.accept(recorded("mlp"))
    result = project.replay("-rs")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["SKIPPED*no baseline: other-bf16*the baseline baselines/nvidia-h200 holds no workload 'other-bf16'*"]
    )
    assert "2 workloads: 1 same, 1 no baseline" in last_line(result)
    project.replay("--kperf-require-baseline").assert_outcomes(passed=1, failed=1)


GATED = """
    import kernelperf
    import pytest

    @kernelperf.workload(dtype=["bf16"])
    def mlp(dtype): ...

    @pytest.mark.kernelperf(gate=["wall_time"], tolerance=5)
    def test_wall(gpu_benchmark, mlp):
        assert gpu_benchmark(mlp).metric == "wall_time"

    def test_named(gpu_benchmark, mlp):
        assert gpu_benchmark(mlp, metric="kernel_time").metric == "kernel_time"

    def test_unknown(gpu_benchmark, mlp):
        gpu_benchmark(mlp, metric="speed")
"""


def test_the_gate_says_which_metric_decides(project):
    project.guard(GATED)
    slow_host = tuple(
        replace(run, wall_time_ns=tuple(3 * ns for ns in run.wall_time_ns)) for run in builders.runs()
    )
    project.record(recorded(runs=slow_host))
    project.accept()
    result = project.replay("-k", "wall or named")
    result.assert_outcomes(failed=1, passed=1, deselected=1)
    result.stdout.fnmatch_lines(["SLOWER mlp-bf16  wall_time*tolerance 5 %*"])


def test_an_unknown_metric_is_an_error(project):
    project.guard(GATED)
    project.record()
    project.accept()
    result = project.replay("-k", "unknown")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E*gpu_benchmark takes metric= as one of gpu_time, wall_time,*found 'speed'"]
    )


def test_gpu_benchmark_needs_a_workload(project):
    project.guard("def test_alone(gpu_benchmark): ...\n")
    project.record()
    result = project.replay()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: test_guarded.py::test_alone uses gpu_benchmark without a workload*"])


def test_junit_carries_verdict_ratio_and_interval(project):
    project.guard()
    project.record(recorded(runs=builders.runs(206.8 * 1.09)))
    project.accept()
    project.replay("--junit-xml", "junit.xml", "-k", "test_time")
    (case,) = ElementTree.parse(project.root / "junit.xml").iter("testcase")
    properties = {each.get("name"): each.get("value") for each in case.iter("property")}
    front = "kernelperf.mlp-bf16.gpu_time"
    assert properties[f"{front}.verdict"] == "SLOWER"
    assert float(properties[f"{front}.ratio"]) == pytest.approx(1.09, abs=0.002)
    lower, upper = (float(each) for each in properties[f"{front}.interval"].strip("[]").split(","))
    assert 1.08 < lower < 1.09 < upper < 1.1
    (failure,) = case.iter("failure")
    assert failure.get("message", "").startswith("Disagreement: SLOWER mlp-bf16")


def test_a_shift_that_all_workloads_share_is_named(project):
    names = ("one", "two", "three")
    declared = "".join(
        f"@kernelperf.workload(dtype=['bf16'])\ndef {name}(dtype): ...\n\n"
        f"def test_{name}(gpu_benchmark, {name}):\n    gpu_benchmark({name})\n\n"
        for name in names
    )
    project.guard(f"import kernelperf\n\n{declared}")
    project.record(*(recorded(name, runs=builders.runs(206.8 * 1.05)) for name in names))
    project.accept(*(recorded(name) for name in names))
    result = project.replay()
    result.assert_outcomes(failed=3)
    assert result.stdout.str().count("cause    all 3 workloads moved, by +5.0%") == 3


def test_kernels_are_compared_by_name_on_the_same_stack(project):
    project.guard()
    kernels = list(builders.geglu_kernels())
    kernels[0] = builders.kernel("nvjet_sm90_tst_128x128_64x4_2x1_v_bz_coopB_TNT")
    project.record(recorded(runs=builders.runs(kernels=kernels)))
    project.accept()
    result = project.replay("-k", "test_kernels")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "mlp-bf16: its kernels are not those of the baseline baselines/nvidia-h200 (by name, on the*",
            "  - nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT",
            "  + nvjet_sm90_tst_128x128_64x4_2x1_v_bz_coopB_TNT",
            "if that is meant: pytest --kperf-update-baselines",
        ]
    )


@pytest.mark.parametrize(
    ("third", "passed"),
    [("triton_poi_fused__unsafe_view_gelu_mul_7", True), ("triton_poi_fused__unsafe_view_gelu_0", False)],
)
def test_kernels_are_compared_by_role_and_fused_ops_on_another_stack(project, third, passed):
    project.guard()
    kernels = [builders.kernel("nvjet_sm90_other_tile"), *builders.geglu_kernels()[1:]]
    kernels[2] = builders.kernel(third)
    stack = tuple((name, "2.12.1" if name == "torch" else version) for name, version in builders.STACK)
    project.record(
        recorded(runs=builders.runs(kernels=kernels), environment=builders.environment(stack=stack))
    )
    project.accept()
    result = project.replay("-k", "test_kernels")
    result.assert_outcomes(passed=int(passed), failed=int(not passed))
    if not passed:
        result.stdout.fnmatch_lines(
            ["*(by role and fused ops: the software stack differs*", "  + pointwise *gelu"]
        )


SPEED = """
    import kernelperf

    @kernelperf.workload(dtype=["bf16"])
    def mlp(dtype): ...

    @kernelperf.workload(dtype=["bf16"])
    def other(dtype): ...

    def test_speed(gpu_speed_ratio, mlp, other):
        assert gpu_speed_ratio(other, mlp, tolerance=0.01) > 1.5
        assert kernelperf.speed_ratio(other, mlp, tolerance=0.01) > 1.5
"""


def test_two_workloads_can_be_compared_in_speed(project):
    project.guard(SPEED)
    project.record(recorded("mlp"), recorded("other", runs=builders.runs(2 * 206.8)))
    result = project.replay()
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    project.replay("--kperf-no-timing").assert_outcomes(skipped=1)


def test_workloads_that_disagree_are_not_compared_in_speed(project):
    project.guard(SPEED)
    wrong = builders.observations(relative_error=0.5)
    project.record(recorded("mlp"), recorded("other", runs=builders.runs(2 * 206.8, observations=wrong)))
    result = project.replay()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E*NotMeasurable: no speed comparison: 'other-bf16' is off its float64 reference*"]
    )
