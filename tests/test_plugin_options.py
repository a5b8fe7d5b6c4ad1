"""Every option has an ini twin, and a value that can't be used is refused by name."""

from __future__ import annotations

import pytest

from kernelperf.plugin.options import _OPTIONS
from tests import builders
from tests.project import last_line, recorded

SLOWER_BY_NINE = builders.runs(206.8 * 1.09)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kperf-runs", "two"], "--kperf-runs: expected a whole number of runs, at least 1, found 'two'"),
        (["--kperf-runs", "0"], "--kperf-runs: expected a whole number of runs, at least 1, found '0'"),
        (["--kperf-tolerance", "-1"], "--kperf-tolerance: expected percent above 0 and up to 100*found '-1'"),
        (["--kperf-tolerance", "much"], "--kperf-tolerance: expected percent*found 'much'"),
        (["--kperf-lane", "a/b"], "--kperf-lane: expected letters, digits, '.', '_' or '-', found 'a/b'"),
        (["--kperf-replay", ""], "--kperf-replay: expected DIR, found an empty value"),
        (
            ["--kperf-reason", "why not"],
            "--kperf-reason: 'why not' is for --kperf-update-baselines; give both, or neither",
        ),
        (
            ["--kperf-replay", "recording", "--kperf-update-baselines"],
            "--kperf-replay and --kperf-update-baselines can't be used together*kernelperf accept DIR*",
        ),
        (
            ["--kperf-replay", "recording", "--kperf-require-gpu"],
            "--kperf-replay and --kperf-require-gpu can't be used together: a replay measures nothing",
        ),
        (
            ["--kperf-strict", "--kperf-advisory"],
            "--kperf-strict and --kperf-advisory can't be used together*",
        ),
        (
            ["--kperf-update-baselines", "--kperf-advisory"],
            "--kperf-update-baselines and --kperf-advisory can't be used together*",
        ),
        (
            ["--kperf-update-baselines", "--kperf-no-timing"],
            "--kperf-update-baselines and --kperf-no-timing can't be used together: a baseline holds times",
        ),
        (
            ["--kperf-update-baselines", "--benchmark-disable"],
            "--kperf-update-baselines and --benchmark-disable can't be used together: a baseline holds times",
        ),
        (
            ["--kperf-update-baselines", "--kperf-runs", "3"],
            "--kperf-runs: a baseline needs at least 5 runs, found 3*",
        ),
    ],
)
def test_a_bad_value_is_refused(project, arguments, message):
    project.guard()
    result = project.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kperf_runs = many", "kperf_runs (ini): expected a whole number of runs*found 'many'"),
        ("kperf_tolerance = 0", "kperf_tolerance (ini): expected percent*found '0'"),
        ("kperf_roles = my_kernel", "kperf_roles (ini): expected 'REGEX = ROLE'*found 'my_kernel'"),
        ("kperf_roles = my_.* = matmul", "kperf_roles (ini):*with a role of gemm,*found 'my_.* = matmul'"),
        ("kperf_roles = my_( = gemm", "kperf_roles (ini): 'my_(' is no regular expression*"),
    ],
)
def test_a_bad_ini_value_is_refused(project, line, message):
    project.guard()
    project.ini(line)
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


@pytest.mark.parametrize(
    ("option", "line"),
    [(["--kperf-tolerance", "10"], ""), ([], "kperf_tolerance = 10"), ([], "kperf_tolerance = 10%")],
)
def test_a_wider_tolerance_passes_what_is_within(project, option, line):
    project.guard()
    project.ini(line)
    project.record(recorded(runs=SLOWER_BY_NINE))
    project.accept()
    project.replay(*option).assert_outcomes(passed=2)


@pytest.mark.parametrize(("option", "line"), [(["--kperf-strict"], ""), ([], "kperf_strict = true")])
def test_strict_fails_what_has_no_baseline(project, option, line):
    project.guard()
    project.ini(line)
    project.record()
    result = project.replay(*option)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["no baseline: mlp-bf16 gpu_time: no baseline for NVIDIA H200, 132 SMs*"])


@pytest.mark.parametrize(
    ("option", "line"), [(["--kperf-require-baseline"], ""), ([], "kperf_require_baseline = 1")]
)
def test_require_baseline_fails_what_has_none(project, option, line):
    project.guard()
    project.ini(line)
    project.record()
    project.replay(*option).assert_outcomes(failed=2)


@pytest.mark.parametrize(("option", "line"), [(["--kperf-advisory"], ""), ([], "kperf_advisory = on")])
def test_advisory_reports_and_fails_nothing(project, option, line):
    project.guard()
    project.ini(line)
    project.record(recorded(runs=SLOWER_BY_NINE))
    project.accept()
    result = project.replay(*option)
    result.assert_outcomes(passed=1, xfailed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["test_guarded.py::test_time*mlp-bf16*", "SLOWER mlp-bf16 *"])
    assert "1 slower" in last_line(result)


def test_advisory_fails_no_broken_fact_and_no_lack_of_a_baseline(project):
    project.guard(
        """
        import kernelperf

        @kernelperf.workload(dtype=["bf16"])
        def mlp(dtype): ...

        def test_fact(mlp):
            assert mlp.counts.kernels == 5

        def test_time(gpu_benchmark, mlp):
            gpu_benchmark(mlp)
        """
    )
    project.record()
    result = project.replay("--kperf-advisory")
    result.assert_outcomes(xfailed=1, skipped=1)
    assert result.ret == 0


@pytest.mark.parametrize(
    ("option", "line", "named"),
    [
        (["--kperf-no-timing"], "", "--kperf-no-timing"),
        ([], "kperf_no_timing = true", "--kperf-no-timing"),
        (["--benchmark-disable"], "", "--benchmark-disable"),
    ],
)
def test_without_timing_only_the_structure_is_judged(project, option, line, named):
    project.guard()
    project.ini(line)
    project.record(recorded(runs=SLOWER_BY_NINE))
    project.accept()
    result = project.replay(*option, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"SKIPPED*test_guarded.py:8: timing is off ({named})"])
    assert last_line(result).startswith("kernelperf: 0 workloads compared; 1 structure only; REPLAY of")


@pytest.mark.parametrize(
    ("option", "line"), [(["--kperf-lane", "nightly"], ""), ([], "kperf_lane = nightly")]
)
def test_a_lane_has_a_baseline_of_its_own(project, option, line):
    project.guard()
    project.ini(line)
    project.record()
    project.accept()
    result = project.replay(*option)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(
        ["*no baseline for NVIDIA H200*in lane 'nightly' in baselines (it holds nvidia-h200)"]
    )
    in_lane = recorded(environment=builders.environment(lane="nightly"))
    project.accept(in_lane, gpu="nvidia-h200@nightly")
    project.replay(*option).assert_outcomes(passed=2)


def test_ini_paths_start_at_the_root_and_typed_ones_where_pytest_is_started(project, monkeypatch):
    project.guard()
    project.ini("kperf_replay = kept/recording", "kperf_baselines = kept/baselines")
    project.record(folder="kept/recording")
    builders.write(project.root / "kept" / "baselines" / "nvidia-h200", recorded())
    (project.root / "deep").mkdir()
    monkeypatch.chdir(project.root / "deep")
    from_ini = project.run("..")
    from_ini.assert_outcomes(passed=2)
    typed = project.run("..", "--kperf-replay", "../kept/recording")
    typed.assert_outcomes(passed=2)
    assert project.run("..", "--kperf-replay", "kept/recording").ret == pytest.ExitCode.USAGE_ERROR


def test_every_option_is_explained(project):
    helped = project.run("--help").stdout.str()
    for option in _OPTIONS:
        name = option.name
        assert f"--kperf-{name}" in helped
        assert f"kperf_{name.replace('-', '_')} (" in helped
    assert "kperf_fallback_recording (" in helped
    assert "kperf_roles (" in helped
