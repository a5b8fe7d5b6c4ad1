"""A recording is judged by the same tests as a GPU, says so, and never vouches for changed code."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from tests import builders
from tests.project import last_line, recorded

ORIGIN = "REPLAY of recording (NVIDIA H200, torch 2.11.0, 2026-03-04)"


def test_header_and_last_line_say_what_is_replayed(project):
    project.guard()
    project.record()
    project.accept()
    result = project.replay()
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "kernelperf: REPLAY of recording: NVIDIA H200 (torch 2.11.0, triton 3.6.0, driver 580.159), "
            "recorded 2026-03-04; nothing is measured",
            "kernelperf: baseline baselines/nvidia-h200: 1 workload, the oldest of 2026-02-03",
        ]
    )
    assert last_line(result) == f"kernelperf: 1 workload: 1 same; {ORIGIN}"


def test_a_replay_writes_nothing(project):
    project.guard()
    project.ini()
    project.record()
    project.accept()
    (project.root / ".benchmarks").mkdir()  # pytest-benchmark's own
    before = sorted(project.root.rglob("*"))
    project.replay()
    after = sorted(path for path in project.root.rglob("*") if "__pycache__" not in path.parts)
    assert set(after) == set(before)


def test_without_a_gpu_the_fallback_recording_is_replayed(project):
    project.guard()
    project.ini("kperf_fallback_recording = recording")
    project.record()
    project.accept()
    result = project.run()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["kernelperf: REPLAY of recording:*nothing is measured; no GPU was found"])
    assert last_line(result).endswith(ORIGIN)


def test_with_ci_set_nothing_is_replayed_unless_asked(project, monkeypatch):
    project.guard()
    project.ini("kperf_fallback_recording = recording")
    project.record()
    project.accept()
    monkeypatch.setenv("CI", "true")
    unasked = project.run("-rs")
    unasked.assert_outcomes(skipped=2)
    assert unasked.ret == pytest.ExitCode.TESTS_FAILED
    unasked.stdout.fnmatch_lines(["kernelperf: ERROR: no GPU was found, and with CI set nothing is*"])
    project.replay().assert_outcomes(passed=2)


def test_no_gpu_and_no_recording_skips_and_ends_in_one_error(project):
    project.guard()
    result = project.run("-rs")
    result.assert_outcomes(skipped=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "SKIPPED*no GPU was found, and there is no recording to replay: pass --kperf-replay DIR",
            "kernelperf: ERROR: no GPU was found, and there is no recording to replay: pass --kperf-replay *",
            "kernelperf: 0 workloads compared; 1 not measured; no GPU, and nothing replayed",
        ]
    )
    assert project.run("--kperf-advisory").ret == 0


@pytest.mark.parametrize("option", ["--kperf-require-gpu", "--kperf-update-baselines"])
def test_what_needs_a_gpu_is_no_replay(project, option):
    project.guard()
    project.ini("kperf_fallback_recording = recording")
    project.record()
    result = project.run(option)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"kernelperf: ERROR: {option} needs a GPU, and NVML finds none*"])


def test_require_gpu_fails_every_test_that_uses_a_workload(project):
    project.guard()
    project.run("--kperf-require-gpu").assert_outcomes(errors=2)


def test_changed_source_is_stale_and_named(project):
    path = project.guard()
    sources = (("test_guarded.py", hashlib.sha256(path.read_bytes()).hexdigest()),)
    project.record(recorded(sources=sources))
    project.accept()
    project.replay().assert_outcomes(passed=2)
    path.write_text(path.read_text() + "# changed\n")
    result = project.replay("-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(
        [
            "SKIPPED*stale: mlp-bf16: test_guarded.py changed since recording was recorded; record it*",
            "kernelperf: ERROR: 0 workloads were compared by 1 timing test (1 stale); see the reasons*",
            f"kernelperf: 0 workloads compared; 1 stale; {ORIGIN}",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_vanished_source_is_stale(project):
    project.guard()
    project.record(recorded(sources=(("models/gone.py", "0" * 64),)))
    result = project.replay("-rs", "-k", "test_kernels")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*stale: mlp-bf16: models/gone.py changed since*"])


def test_a_changed_definition_is_stale(project):
    project.guard()
    project.record(recorded(mode="backward"))
    result = project.replay("-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED*stale: mlp-bf16: its parameters or mode changed since*"])


def test_a_workload_that_the_recording_lacks_skips_and_is_counted(project):
    project.guard()
    project.record(recorded("other"))
    result = project.replay("-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED*recording holds no workload 'mlp-bf16'; record it on a GPU"])
    assert last_line(result) == f"kernelperf: 0 workloads compared; 1 not in the recording; {ORIGIN}"
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_recording_of_another_gpu_is_never_compared(project):
    project.guard()
    a100 = replace(builders.H200, gpu="NVIDIA A100-SXM4-80GB", sm_count=108, compute_capability="8.0")
    project.record(recorded(environment=builders.environment(hardware=a100)))
    project.accept()
    result = project.replay("-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(
        ["kernelperf: no baseline for NVIDIA A100-SXM4-80GB, 108 SMs, * in baselines (it holds nvidia-h200)"]
    )
    result.stdout.fnmatch_lines(["kernelperf: ERROR: 0 workloads were compared*no baseline for NVIDIA A100*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


BROKEN = {
    "empty": (b"", "is empty*"),
    "truncated": (b'{"benchmarks": [', "is truncated or no JSON*"),
    "foreign": (b'{"benchmarks": [], "machine_info": {}, "datetime": ""}', "*kernelperf didn't write it*"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer*git lfs pull*"),
    "merge": (b"{\n<<<<<<< HEAD\n", "holds merge conflict markers*"),
}


@pytest.mark.parametrize("where", ["recording", "baselines/nvidia-h200"])
@pytest.mark.parametrize("kind", list(BROKEN))
def test_an_unusable_file_is_one_error_naming_it(project, kind, where):
    content, message = BROKEN[kind]
    project.guard()
    project.record()
    project.accept()
    (project.root / where / "mlp-bf16" / "timings.json").write_bytes(content)
    result = project.replay()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: kernelperf: *{where}/mlp-bf16/timings.json {message}"])


def test_a_missing_trace_is_an_error(project):
    project.guard()
    project.record()
    (project.root / "recording" / "mlp-bf16" / "trace.json.gz").unlink()
    result = project.replay()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: kernelperf: *mlp-bf16/trace.json.gz is missing*"])


def test_a_newer_schema_is_an_error(project):
    project.guard()
    path = project.record() / "mlp-bf16" / "timings.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    result = project.replay()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: kernelperf: *timings.json has schema version 99*upgrade*"])


def test_a_folder_that_is_no_recording_is_an_error(project):
    project.guard()
    result = project.replay()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: kernelperf: --kperf-replay: *recording is no recording: there is no such folder*"]
    )


def test_it_runs_from_a_sub_directory(project, monkeypatch):
    path = project.guard()
    project.ini()
    sources = (("test_guarded.py", hashlib.sha256(path.read_bytes()).hexdigest()),)
    project.record(recorded(sources=sources))
    project.accept()
    (project.root / "deep").mkdir()
    monkeypatch.chdir(project.root / "deep")
    result = project.run("..", "--kperf-replay", "../recording")
    result.assert_outcomes(passed=2)
    assert last_line(result) == f"kernelperf: 1 workload: 1 same; {ORIGIN}"


@pytest.mark.parametrize("option", ["--collect-only", "--setup-plan"])
def test_what_only_plans_reads_nothing(project, option):
    project.guard()
    result = project.replay(option)  # there is no recording
    assert result.ret == 0
    assert "kernelperf:" not in result.stdout.str()


def test_an_error_in_collection_stops_before_anything_is_measured(project):
    project.guard()
    project.write("test_broken.py", "import no_such_module\n")
    project.record()
    result = project.replay()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert last_line(result).startswith("kernelperf: 0 workloads compared")


def test_exitfirst_stops_and_the_last_line_still_comes(project):
    project.guard()
    project.record(recorded(runs=builders.runs(230.0)))
    project.accept()
    result = project.replay("-x")
    result.assert_outcomes(failed=1)
    assert last_line(result) == f"kernelperf: 1 workload: 1 slower; {ORIGIN}"


def test_quiet_output_ends_in_the_same_line(project):
    project.guard()
    project.record()
    project.accept()
    assert last_line(project.replay("-qq")) == f"kernelperf: 1 workload: 1 same; {ORIGIN}"


def test_a_missing_fallback_recording_is_an_error_naming_the_ini_key(project):
    project.guard()
    project.ini("kperf_fallback_recording = examples/recording")
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: kernelperf: kperf_fallback_recording (ini): *examples/recording is no rec*"]
    )
