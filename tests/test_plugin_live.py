"""On a GPU, workloads are measured before the tests, again where it matters, and written down.

The workers are scripted; the conductor, the recording and the verdicts are real.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from kernelperf.baselines import accept
from kernelperf.cli import main
from kernelperf.plugin.live import Recorder
from kernelperf.recording import read_recording, write_workload
from tests.project import last_line

GUARDED = """
    import kernelperf

    @kernelperf.workload(dtype=["bf16"])
    def mlp(dtype): ...

    def test_time(gpu_benchmark, mlp):
        gpu_benchmark(mlp)

    def test_kernels(mlp):
        mlp.check_kernels()
"""
TWO = """
    import kernelperf

    @kernelperf.workload(dtype=["bf16"])
    def mlp(dtype): ...

    @kernelperf.workload(dtype=["bf16"])
    def other(dtype): ...

    def test_mlp(mlp):
        assert mlp.counts.kernels == 1

    def test_other(other):
        assert other.counts.kernels == 1
"""


@pytest.fixture
def guarded(live):
    """A project with a stored baseline."""
    live.guard(GUARDED)
    live.run("--kperf-update-baselines", "--kperf-reason", "first").assert_outcomes(passed=2)
    live.journal()
    return live


def test_without_a_baseline_all_runs_are_taken_so_that_it_can_be_accepted(live):
    live.guard(GUARDED)
    result = live.run("-rs")
    result.assert_outcomes(skipped=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "kernelperf: live on NVIDIA H200 (*driver 580.159.04)",
            "kernelperf: ERROR: 0 workloads were compared*",
        ]
    )
    assert last_line(result) == "kernelperf: 1 workload: 1 no baseline; live on NVIDIA H200, torch 2.11.0"
    assert live.builds() == ["mlp-bf16"] * 5
    assert len(live.recorded().runs) == 5
    accept(read_recording(live.root / ".kernelperf"), live.root / "baselines", reason="first")
    live.run().assert_outcomes(passed=2)


def test_an_unchanged_workload_is_measured_once(guarded):
    result = guarded.run()
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    assert guarded.builds() == ["mlp-bf16"]
    assert last_line(result) == "kernelperf: 1 workload: 1 same; live on NVIDIA H200, torch 2.11.0"


def test_a_slower_one_is_measured_again_and_fails_with_what_to_do(guarded):
    guarded.set_baseline_factor(0.9)
    result = guarded.run()
    result.assert_outcomes(failed=1, passed=1)
    assert guarded.builds() == ["mlp-bf16"] * 5
    result.stdout.fnmatch_lines(
        [
            "SLOWER mlp-bf16*+11.1 %*(5 runs against 5)",
            "  accept   kernelperf accept *.kernelperf --only mlp-bf16 --reason *",
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "ini", "runs"),
    [(["--kperf-runs", "1"], "", 1), (["--kperf-runs", "3"], "", 3), ([], "kperf_runs = 2", 2)],
)
def test_the_number_of_runs_is_bounded(guarded, arguments, ini, runs):
    guarded.ini(ini)
    guarded.set_baseline_factor(0.9)
    guarded.run(*arguments)
    assert guarded.builds() == ["mlp-bf16"] * runs


def test_only_the_suspicious_workload_is_measured_again(live):
    live.guard(TWO.replace("(mlp):", "(gpu_benchmark, mlp):").replace("(other):", "(gpu_benchmark, other):")
               .replace("assert mlp.counts.kernels == 1", "gpu_benchmark(mlp)")
               .replace("assert other.counts.kernels == 1", "gpu_benchmark(other)"))  # fmt: skip
    live.run("--kperf-update-baselines").assert_outcomes(passed=2)
    live.set_baseline_factor(0.9, "other")
    live.journal()
    live.run().assert_outcomes(passed=1, failed=1)
    builds = live.builds()
    assert (builds.count("mlp-bf16"), builds.count("other-bf16")) == (1, 5)


def test_it_says_who_is_measured_again(guarded):
    guarded.set_baseline_factor(0.9)
    result = guarded.run()
    told = [line for line in result.outlines if "measuring again" in line]
    assert [line.rpartition("kernelperf: ")[2] for line in told] == [
        "measuring again, near the tolerance or above: mlp-bf16"
    ] * 2
    assert any("run 2 of 3: " in line for line in result.outlines)
    assert any("run 5 of 5: " in line for line in result.outlines)


def test_the_compare_command_gives_the_sessions_verdicts(guarded):
    guarded.set_baseline_factor(0.9)
    told = guarded.run().stdout.str()
    arguments = ["compare", str(guarded.root / "baselines"), str(guarded.root / ".kernelperf")]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 1
    (headline,) = [line for line in found.output.splitlines() if line.startswith("SLOWER")]
    assert headline in told


def test_without_timing_nothing_is_timed(guarded):
    guarded.run("--kperf-no-timing").assert_outcomes(passed=1, skipped=1)
    commands = [line.split()[1] for line in guarded.journal()]
    assert "Profile" in commands
    assert "Burst" not in commands
    assert "WallBurst" not in commands


def test_what_no_test_times_is_recorded_without_times(live):
    live.guard(TWO)
    live.run().assert_outcomes(passed=2)
    assert not live.recorded().timed
    assert live.builds().count("mlp-bf16") == 1


def test_only_what_selected_tests_use_is_measured(live):
    live.guard(TWO)
    result = live.run("-k", "test_other")
    result.assert_outcomes(passed=1, deselected=1)
    assert live.builds() == ["other-bf16"]


def test_the_recording_goes_where_it_is_asked_to(live):
    live.guard(TWO)
    live.run("--kperf-record", "kept", "-k", "test_mlp").assert_outcomes(passed=1)
    assert (live.root / "kept" / "mlp-bf16" / "timings.json").is_file()
    assert not (live.root / ".kernelperf").exists()
    live.ini("kperf_record = by_ini")
    live.run("-k", "test_mlp").assert_outcomes(passed=1)
    assert (live.root / "by_ini" / "mlp-bf16" / "trace.json.gz").is_file()


def test_the_recording_can_be_replayed(guarded):
    guarded.run().assert_outcomes(passed=2)
    stale = guarded.run("--kperf-replay", ".kernelperf", "-rs")
    stale.stdout.fnmatch_lines(
        ["SKIPPED*stale: mlp-bf16: models/lazy.py changed since .kernelperf was recorded*"]
    )
    rec = replace(guarded.recorded(), sources=())
    write_workload(rec, guarded.root / ".kernelperf" / rec.id, None)
    result = guarded.run("--kperf-replay", ".kernelperf")
    result.assert_outcomes(passed=2)
    assert "REPLAY of .kernelperf" in last_line(result)


def test_a_crash_fails_its_own_tests_and_no_others(live):
    live.guard(TWO)
    live.script(mlp={"Profile": "crash"})
    result = live.run()
    result.assert_outcomes(errors=1, passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "mlp-bf16 could not be measured: crash: *SIGSEGV*",
            "*about to crash*",
            "log: .kernelperf/mlp-bf16.log",
        ]
    )
    assert "about to crash" in (live.root / ".kernelperf" / "mlp-bf16.log").read_text()
    assert "1 structure only; 1 failed; live on" in last_line(result)


def test_a_crash_keeps_what_an_earlier_session_recorded(live):
    live.guard(TWO)
    live.run().assert_outcomes(passed=2)
    before = live.recorded()
    live.script(mlp={"Profile": "crash"})
    live.run().assert_outcomes(errors=1, passed=1)
    assert live.recorded() == before
    live.script()
    live.run().assert_outcomes(passed=2)
    assert not (live.root / ".kernelperf" / "mlp-bf16.log").exists()


def test_a_crash_in_a_second_look_fails_the_workload(guarded, monkeypatch):
    guarded.set_baseline_factor(0.9)
    keep = Recorder._keep

    def keep_and_tell_the_next_to_crash(recorder, outcome):
        keep(recorder, outcome)
        guarded.script(mlp={"Burst:2": "crash"})

    monkeypatch.setattr(Recorder, "_keep", keep_and_tell_the_next_to_crash)
    result = guarded.run()
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["mlp-bf16 could not be measured: crash:*"])
    assert guarded.builds() == ["mlp-bf16"] * 2


@pytest.mark.parametrize(
    ("option", "outcomes"), [([], {"skipped": 1}), (["--kperf-require-gpu"], {"errors": 1})]
)
def test_an_unavailable_workload_skips_with_the_cause_and_fails_where_a_gpu_is_required(
    live, option, outcomes
):
    live.guard(TWO)
    live.script(mlp={"Build": "fail unavailable"})
    result = live.run("-rsE", *option)
    result.assert_outcomes(passed=1, **outcomes)
    result.stdout.fnmatch_lines(["*unavailable: mlp-bf16: as told"])
    assert "1 unavailable; live on" in last_line(result)


@pytest.mark.parametrize("kind", ["import", "factory", "oom", "cuda", "step"])
def test_a_workload_that_fails_says_how_and_where(live, kind):
    live.guard(TWO)
    live.script(mlp={"Build": f"fail {kind}"})
    result = live.run("-k", "test_mlp")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"mlp-bf16 could not be measured: {kind}: as told", "traceback"])


def test_the_facts_are_stored_with_the_recording(live):
    live.guard(TWO.replace("assert other.counts.kernels == 1", "assert other.counts.kernels == 2"))
    live.run().assert_outcomes(passed=1, failed=1)
    (held,) = live.recorded("mlp").facts
    assert (held.test, held.outcome) == ("test_guarded.py::test_mlp[mlp-bf16]", "passed")
    (broken,) = live.recorded("other").facts
    assert broken.outcome == "failed"


def test_a_slower_time_is_no_broken_fact(guarded):
    guarded.set_baseline_factor(0.9)
    guarded.run().assert_outcomes(passed=1, failed=1)
    (fact,) = guarded.recorded().facts
    assert (fact.test, fact.outcome) == ("test_guarded.py::test_kernels[mlp-bf16]", "passed")


def test_a_session_that_was_stopped_leaves_the_facts_open(live):
    live.guard(
        TWO.replace("def test_other(other)", "def test_later(mlp): ...\n\n    def test_other(other)")
        .replace("assert mlp.counts.kernels == 1", "assert mlp.counts.kernels == 2")
    )  # fmt: skip
    live.run("-x").assert_outcomes(failed=1)
    assert live.recorded("mlp").facts is None


def test_progress_is_told_in_few_plain_lines_off_a_terminal(guarded):
    told = [line for line in guarded.run().outlines if line.startswith("kernelperf: ")]
    assert any("first call of mlp-bf16" in line for line in told)
    assert sum("timing: round" in line for line in told) == 1


def test_a_corrupt_baseline_is_found_before_anything_is_measured(guarded):
    (guarded.root / "baselines" / "nvidia-h200" / "mlp-bf16" / "timings.json").write_text("")
    result = guarded.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: kernelperf: *mlp-bf16/timings.json is empty*"])
    assert guarded.builds() == []


def test_an_error_in_collection_measures_nothing(guarded):
    guarded.write("test_broken.py", "import no_such_module\n")
    assert guarded.run().ret == pytest.ExitCode.INTERRUPTED
    assert guarded.builds() == []


@pytest.mark.parametrize("option", ["--collect-only", "--setup-plan"])
def test_what_only_plans_measures_nothing(guarded, option):
    assert guarded.run(option).ret == 0
    assert guarded.builds() == []


def test_a_record_folder_that_is_a_file_is_an_error(guarded):
    guarded.write("taken", "")
    result = guarded.run("--kperf-record", "taken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: kernelperf: --kperf-record: expected a folder, 'taken' is a file"])


def test_the_baseline_is_named_once_it_is_found(guarded):
    guarded.run().stdout.fnmatch_lines(
        ["kernelperf: baseline baselines/nvidia-h200: 1 workload, the oldest of 20*"]
    )


def test_a_speed_comparison_has_its_workloads_timed(live):
    live.guard(
        """
        import kernelperf

        @kernelperf.workload(dtype=["bf16"])
        def mlp(dtype): ...

        def test_speed(gpu_speed_ratio, mlp): ...
        """
    )
    live.run().assert_outcomes(passed=1)
    assert live.recorded().timed


def test_a_kernel_of_ones_own_is_recorded_with_its_role(live):
    live.guard(TWO)
    live.ini("kperf_roles =", "    ^never = copy", "    nvjet_.*_bias_ = reduce")
    live.run("-k", "test_mlp").assert_outcomes(passed=1)
    assert [kernel.role for kernel in live.recorded().runs[0].kernels] == ["reduce"]
