"""--kperf-update-baselines makes what was just measured the baseline: all of it, or nothing."""

from __future__ import annotations

import pytest

GUARDED = """
    import kernelperf

    @kernelperf.workload(dtype=["bf16"])
    def mlp(dtype): ...

    @kernelperf.workload(dtype=["bf16"])
    def other(dtype): ...

    def test_mlp(gpu_benchmark, mlp):
        gpu_benchmark(mlp)

    def test_other(gpu_benchmark, other):
        gpu_benchmark(other)

    def test_kernels(mlp, other):
        mlp.check_kernels()
        other.check_kernels()

    def test_fact(other):
        assert other.counts.kernels == EXPECTED
"""
HELD, BROKEN = GUARDED.replace("EXPECTED", "1"), GUARDED.replace("EXPECTED", "2")


def test_five_runs_of_each_become_the_baseline(live):
    live.guard(HELD)
    result = live.run("--kperf-update-baselines", "--kperf-reason", "torch 2.11")
    result.assert_outcomes(passed=4)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["mlp-bf16 *new", "other-bf16 *new", "accepted into *baselines/nvidia-h200: torch 2.11"]
    )
    assert live.builds().count("mlp-bf16") == 5
    for name in ("mlp", "other"):
        stored = live.stored(name)
        assert (stored.reason, len(stored.runs)) == ("torch 2.11", 5)
        assert {fact.outcome for fact in stored.facts} == {"passed"}


def test_more_runs_can_be_asked_for(live):
    live.guard(HELD)
    live.run("--kperf-update-baselines", "--kperf-runs", "6", "-k", "test_mlp").assert_outcomes(passed=1)
    assert len(live.stored().runs) == 6


def test_without_a_reason_date_and_command_are_stored(live):
    live.guard(HELD)
    live.run("--kperf-update-baselines").assert_outcomes(passed=4)
    assert live.stored().reason.endswith("pytest --kperf-update-baselines")
    assert live.stored().reason[:2] == "20"


def test_old_and_new_are_shown_and_verdicts_fail_nothing(live):
    live.guard(HELD)
    live.run("--kperf-update-baselines").assert_outcomes(passed=4)
    live.set_baseline_factor(0.9)
    result = live.run("--kperf-update-baselines")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["mlp-bf16 *+11.1 %*"])
    live.run().assert_outcomes(passed=4)


def test_a_failing_fact_refuses_all(live):
    live.guard(BROKEN)
    result = live.run("--kperf-update-baselines")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "kernelperf: ERROR: the baselines in baselines are unchanged: 1 test that uses a workload fail*"
            "test_guarded.py::test_fact*other-bf16*"
        ]
    )
    assert not (live.root / "baselines").exists()


def test_a_failing_fact_leaves_the_old_baseline_as_it_is(live):
    live.guard(HELD)
    live.run("--kperf-update-baselines", "--kperf-reason", "first").assert_outcomes(passed=4)
    live.guard(BROKEN)
    live.run("--kperf-update-baselines", "--kperf-reason", "second").assert_outcomes(passed=3, failed=1)
    assert (live.stored("mlp").reason, live.stored("other").reason) == ("first", "first")


def test_a_crash_refuses_all(live):
    live.guard(HELD)
    live.script(other={"Observe": "crash"})
    result = live.run("--kperf-update-baselines")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["kernelperf: ERROR: the baselines in baselines are unchanged:*failed*"])
    assert not (live.root / "baselines").exists()


def test_only_the_selected_workload_is_updated(live):
    live.guard(HELD)
    live.run("--kperf-update-baselines", "--kperf-reason", "first").assert_outcomes(passed=4)
    live.run("--kperf-update-baselines", "--kperf-reason", "second", "-k", "test_mlp").assert_outcomes(
        passed=1
    )
    assert (live.stored("mlp").reason, live.stored("other").reason) == ("second", "first")


def test_baselines_go_where_they_are_asked_to_and_by_lane(live):
    live.guard(HELD)
    live.run(
        "--kperf-update-baselines", "--kperf-baselines", "kept", "--kperf-lane", "nightly", "-k", "test_mlp"
    )
    assert (live.root / "kept" / "nvidia-h200@nightly" / "mlp-bf16" / "timings.json").is_file()
