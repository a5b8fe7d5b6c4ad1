"""Tests run once for each variant of their workloads, and the marks that they carry are understood."""

from __future__ import annotations

import pytest

from tests.project import recorded

TWO = """
    import pytest
    import kernelperf

    HALF = ["bf16", pytest.param("fp16", marks=pytest.mark.slow)]

    @kernelperf.workload(dtype=HALF)
    def geglu_eager(dtype): ...

    @kernelperf.workload(shape=[(1024, 32), (8, 4)], dtype=HALF)
    def linear(shape, dtype): ...

    @kernelperf.workload()
    def fixed(): ...

    def test_one(geglu_eager): ...
    def test_fixed(fixed): ...
    def test_joint(linear, geglu_eager): ...
    def test_other(): ...
"""
MARKERS = "markers = slow: takes long"


def collected(result):
    return [line for line in result.outlines if "::" in line]


def test_ids_name_the_workloads_and_what_they_vary_over(project):
    project.guard(TWO)
    project.ini(MARKERS)
    assert collected(project.run("--collect-only", "-q", "--strict-markers")) == [
        "test_guarded.py::test_one[geglu_eager-bf16]",
        "test_guarded.py::test_one[geglu_eager-fp16]",
        "test_guarded.py::test_fixed[fixed]",
        "test_guarded.py::test_joint[geglu_eager+linear-1024x32-bf16]",
        "test_guarded.py::test_joint[geglu_eager+linear-1024x32-fp16]",
        "test_guarded.py::test_joint[geglu_eager+linear-8x4-bf16]",
        "test_guarded.py::test_joint[geglu_eager+linear-8x4-fp16]",
        "test_guarded.py::test_other",
    ]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["-m", "slow"], 3),
        (["-m", "not kernelperf"], 1),
        (["-m", "kernelperf"], 7),
        (["-k", "linear"], 4),
        (["-k", "geglu_eager and bf16"], 3),
    ],
)
def test_marks_and_names_select(project, arguments, count):
    project.guard(TWO)
    project.ini(MARKERS)
    assert len(collected(project.run("--collect-only", "-q", *arguments))) == count


def test_a_workload_used_through_another_fixture_is_parametrized(project):
    project.guard(
        """
        import pytest
        import kernelperf

        @kernelperf.workload(dtype=["bf16"])
        def mlp(dtype): ...

        @pytest.fixture
        def kernels(mlp):
            return mlp.counts.kernels

        def test_kernels(kernels):
            assert kernels == 4
        """
    )
    project.record()
    project.replay().assert_outcomes(passed=1)


def test_workloads_that_never_agree_are_an_error(project):
    project.guard(
        """
        import kernelperf

        @kernelperf.workload(dtype=["bf16"])
        def one(dtype): ...

        @kernelperf.workload(dtype=["fp16"])
        def other(dtype): ...

        def test_both(one, other): ...
        """
    )
    result = project.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["test_guarded.py::test_both: no variants of its workloads agree*one (dtype=*); other (dtype=*"]
    )


def test_two_workloads_of_one_name_are_an_error(project):
    project.guard()
    project.write("test_second.py", "import kernelperf\n\n\n@kernelperf.workload()\ndef mlp(): ...\n")
    result = project.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["E*two workloads are named 'mlp': *test_guarded.py:4 and *test_second.py:4; rename one"]
    )


def test_a_workload_asked_for_while_the_test_runs_is_an_error(project):
    project.guard(
        """
        import kernelperf

        @kernelperf.workload()
        def mlp(): ...

        def test_late(request):
            request.getfixturevalue("mlp")
        """
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*test_late asks for workload 'mlp' while it runs*name 'mlp' among the test's param*"]
    )


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("tolerence=3", "has no keyword 'tolerence'; use tolerance=, gate=, requires="),
        ("3", "takes keywords only (tolerance=, gate=, requires=), found (3,)"),
        ("tolerance='3 %'", "takes tolerance= in percent, above 0 and up to 100, found '3 %'"),
        ("tolerance=0", "takes tolerance= in percent, above 0 and up to 100, found 0"),
        ("gate=['gpu_tim']", "takes gate= as a list of gpu_time, wall_time,*found*gpu_tim*"),
        ("gate=[]", "takes gate= as a list of*"),
        ("requires='h200'", "takes requires= as 'sm_90' or 'sm_90+', found 'h200'"),
    ],
)
def test_a_mark_that_says_something_else_is_an_error_naming_the_test(project, mark, message):
    project.guard(
        f"""
        import kernelperf
        import pytest

        @kernelperf.workload()
        def mlp(): ...

        @pytest.mark.kernelperf({mark})
        def test_marked(mlp): ...
        """
    )
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: test_guarded.py::test_marked*: the mark 'kernelperf' {message}"])


MARKED = """
    import kernelperf
    import pytest

    pytestmark = pytest.mark.kernelperf(tolerance=10)

    @kernelperf.workload(dtype=["bf16"])
    def mlp(dtype): ...

    def test_wide(gpu_benchmark, mlp):
        assert gpu_benchmark(mlp).tolerance_fraction == 0.1

    @pytest.mark.kernelperf(gate=["gpu_time", "wall_time"])
    def test_also_gated(gpu_benchmark, mlp):
        assert gpu_benchmark(mlp).tolerance_fraction == 0.1

    @pytest.mark.kernelperf(tolerance=3)
    def test_narrow(gpu_benchmark, mlp):
        assert gpu_benchmark(mlp).tolerance_fraction == 0.03
"""


def test_a_closer_mark_wins_keyword_by_keyword(project):
    project.guard(MARKED)
    project.record()
    project.accept()
    project.replay().assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("requires", "passed"),
    [("sm_90", 1), ("sm_90+", 1), ("sm_80+", 1), ("sm_80", 0), ("sm_100+", 0), ("sm_100", 0)],
)
def test_a_test_for_another_architecture_skips(project, requires, passed):
    project.guard(
        f"""
        import kernelperf
        import pytest

        @kernelperf.workload(dtype=["bf16"])
        def mlp(dtype): ...

        @pytest.mark.kernelperf(requires="{requires}")
        def test_kernels(mlp):
            mlp.check_kernels()
        """
    )
    project.record()
    project.accept()
    result = project.replay("-rs", "--kperf-require-baseline")
    result.assert_outcomes(passed=passed, skipped=1 - passed)
    assert result.ret == 0  # skipped elsewhere is not missing
    if not passed:
        result.stdout.fnmatch_lines([f"SKIPPED*: requires {requires}, this is sm_90 (NVIDIA H200)"])


def test_what_no_selected_test_needs_is_not_asked_of_the_recording(project):
    project.guard(
        """
        import kernelperf
        import pytest

        @kernelperf.workload(dtype=["bf16"])
        def mlp(dtype): ...

        @kernelperf.workload(dtype=["bf16"])
        def unrecorded(dtype): ...

        def test_kernels(mlp):
            mlp.check_kernels()

        @pytest.mark.skip(reason="later")
        def test_later(unrecorded): ...
        """
    )
    project.record()
    project.accept()
    result = project.replay()
    result.assert_outcomes(passed=1, skipped=1)
    assert "not in the recording" not in result.stdout.str()


def test_recorded_values_reach_the_test(project):
    project.guard(
        """
        import kernelperf

        @kernelperf.workload(shape=[(64, 128)], dtype=["bf16"])
        def mlp(shape, dtype): ...

        def test_evidence(mlp):
            assert mlp.id == "mlp-64x128-bf16"
            assert mlp.params == {"shape": (64, 128), "dtype": "bf16"}
            assert mlp.counts.kernels == 4
            assert mlp.observations.dynamo_graphs == 1
            assert mlp.baseline is None
        """
    )
    project.record(recorded(params={"shape": (64, 128), "dtype": "bf16"}))
    project.replay().assert_outcomes(passed=1)
