"""pytest-benchmark's options behave as its users know them, on times that it never took itself."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys

import pytest

from tests import builders
from tests.project import GUARDED, last_line, recorded

RUNS = builders.runs()
KEPT_S = [ns / 1e9 for run in RUNS for ns in run.gpu_time_ns[3:]]

WITH_PLAIN = (
    GUARDED
    + """
    def test_plain():
        pass

    def test_timed_on_the_host(benchmark):
        benchmark(lambda: None)
"""
)


@pytest.fixture
def replayed(project):
    """A project whose recording is that of its baseline."""
    project.guard()
    project.record(recorded(runs=RUNS))
    project.accept(recorded(runs=RUNS))
    return project


def test_its_json_holds_the_recorded_rounds_and_the_verdict(replayed):
    replayed.replay("--benchmark-json", "out.json").assert_outcomes(passed=2)
    written = json.loads((replayed.root / "out.json").read_text())
    (bench,) = written["benchmarks"]
    assert bench["stats"]["data"] == pytest.approx(KEPT_S, rel=1e-4)  # recordings keep 5 digits
    assert bench["stats"]["rounds"] == 60
    assert bench["group"] == "gpu_time"
    assert bench["options"]["timer"] == "kernelperf"
    assert bench["params"] == {"workload": "mlp-bf16", "dtype": "bf16"}
    assert bench["extra_info"]["workload"] == "mlp-bf16"
    assert bench["extra_info"]["verdict"] == "SAME"
    assert bench["extra_info"]["interval"][0] < 1 < bench["extra_info"]["interval"][1]
    assert written["machine_info"]["hardware"]["gpu"] == "NVIDIA H200"
    assert written["machine_info"]["stack"]["torch"] == "2.11.0"


def test_its_table_shows_them(replayed):
    result = replayed.replay()
    result.stdout.fnmatch_lines(["*benchmark 'gpu_time': 1 tests*", "test_time*mlp-bf16*206.8*60*1"])


def test_benchmark_only_leaves_the_other_tests_and_their_workloads_out(project):
    project.guard(WITH_PLAIN)
    project.record()
    project.accept()
    project.replay("--benchmark-only").assert_outcomes(passed=2, skipped=2)


def test_benchmark_skip_leaves_the_timing_tests_out(project):
    project.guard(WITH_PLAIN)
    project.record(recorded(runs=builders.runs(230.0)))
    project.accept()
    result = project.replay("--benchmark-skip")
    result.assert_outcomes(passed=2, skipped=2)
    assert result.ret == 0  # no timing test was left to compare anything
    assert last_line(result).startswith("kernelperf: 0 workloads compared; 1 structure only; REPLAY")


def test_benchmark_disable_runs_the_host_timed_test_once_and_judges_no_times(project):
    project.guard(WITH_PLAIN)
    project.record(recorded(runs=builders.runs(230.0)))
    project.accept()
    result = project.replay("--benchmark-disable")
    result.assert_outcomes(passed=3, skipped=1)
    assert result.ret == 0


def test_benchmark_enable_overrides_disable(replayed):
    replayed.replay("--benchmark-disable", "--benchmark-enable").assert_outcomes(passed=2)


def test_a_histogram_is_drawn(replayed):
    if importlib.util.find_spec("pygal") is None:
        pytest.skip("pytest-benchmark draws histograms with pygal, which isn't installed")
    # in a process of its own: pygal replaces what finds installed packages
    result = replayed.pytester.runpytest_subprocess(
        "--kperf-replay", "recording", "--benchmark-histogram", "drawn/h"
    )
    result.assert_outcomes(passed=2)
    assert list((replayed.root / "drawn").glob("*.svg"))


def test_cprofile_calls_once_more_and_changes_no_value(replayed):
    result = replayed.replay("--benchmark-cprofile", "tottime", "--benchmark-json", "out.json")
    result.assert_outcomes(passed=2)
    (bench,) = json.loads((replayed.root / "out.json").read_text())["benchmarks"]
    assert bench["stats"]["data"] == pytest.approx(KEPT_S, rel=1e-4)


def test_it_saves_and_compares_with_what_it_saved(replayed):
    replayed.replay("--benchmark-save", "kept").assert_outcomes(passed=2)
    # pytest-benchmark compares machines before a test is collected, and so warns of another one
    result = replayed.pytester.runpytest_subprocess("--kperf-replay", "recording", "--benchmark-compare")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*benchmark 'gpu_time': 2 tests*"])


def test_the_users_mark_is_kept_beside_the_clock(project):
    project.guard(
        GUARDED.replace("def test_time", '@pytest.mark.benchmark(group="mine")\n    def test_time').replace(
            "import kernelperf", "import kernelperf\n    import pytest"
        )
    )
    project.record(recorded(runs=RUNS))
    project.accept()
    result = project.replay("--benchmark-json", "out.json")
    result.assert_outcomes(passed=2)
    (bench,) = json.loads((project.root / "out.json").read_text())["benchmarks"]
    assert bench["group"] == "mine"
    assert bench["stats"]["data"] == pytest.approx(KEPT_S, rel=1e-4)


def test_last_failed_runs_the_slower_one_again(project):
    project.guard()
    project.record(recorded(runs=builders.runs(230.0)))
    project.accept()
    project.replay().assert_outcomes(passed=1, failed=1)
    shutil.rmtree(project.root / "recording")
    project.record(recorded(runs=RUNS))
    project.replay("--lf").assert_outcomes(passed=1)


def test_times_of_a_slower_workload_are_in_the_json_with_its_verdict(project):
    project.guard()
    project.record(recorded(runs=builders.runs(230.0)))
    project.accept()
    project.replay("--benchmark-json", "out.json").assert_outcomes(passed=1, failed=1)
    (bench,) = json.loads((project.root / "out.json").read_text())["benchmarks"]
    assert bench["extra_info"]["verdict"] == "SLOWER"


def test_a_host_timed_test_keeps_its_own_machine_info(project):
    project.write("test_host.py", "def test_host(benchmark):\n    benchmark(lambda: None)\n")
    project.run("--benchmark-json", "out.json").assert_outcomes(passed=1)
    written = json.loads((project.root / "out.json").read_text())
    assert "python_version" in written["machine_info"]


def test_pytest_benchmark_itself_compares_our_recordings(replayed):
    result = replayed.pytester.run(
        sys.executable,
        "-m",
        "pytest_benchmark",
        "compare",
        "recording/mlp-bf16/timings.json",
        "baselines/nvidia-h200/mlp-bf16/timings.json",
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*benchmark 'gpu_time': 2 tests*"])


def test_under_xdist_every_test_that_uses_a_workload_fails(replayed):
    pytest.importorskip("xdist", reason="pytest -n is pytest-xdist's")
    result = replayed.pytester.runpytest_subprocess("--kperf-replay", "recording", "-n", "2")
    result.assert_outcomes(errors=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*can't be measured under pytest-xdist*run without -n"])
