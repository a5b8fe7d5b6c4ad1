"""The command compares, accepts and lists from files alone, and says by its exit code what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelperf.cli import main
from kernelperf.recording import FactOutcome, WorkloadRecording, read_recording
from tests import builders

DECLARING = """
import kernelperf
import pytest

@kernelperf.workload(dtype=["bf16", pytest.param("fp16", marks=pytest.mark.skip)])
def double(dtype):
    raise AssertionError("built at collection")

@kernelperf.workload()
def unused():
    raise AssertionError("built at collection")

@pytest.mark.kernelperf(tolerance=5, gate=["gpu_time", "wall_time"])
def test_time(double, gpu_benchmark):
    gpu_benchmark(double)

def test_kernels(double):
    double.check_kernels()
"""


def kernelperf(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def two(folder: Path, us: float = 206.8, **changes: Any) -> Path:
    """A recording whose first workload takes ``us``, and whose second is as ever."""
    return builders.write(
        folder, builders.recording(runs=builders.runs(us), **changes), builders.recording("geglu_eager")
    )


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return two(tmp_path / "base")


def test_the_command_needs_no_torch() -> None:
    code = "import sys, kernelperf.cli; assert 'torch' not in sys.modules; kernelperf.cli.main(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("list", "facts", "compare", "accept"):
        assert f"\n  {command} " in done.stdout


# --- compare


def test_the_same_is_fine(base: Path, tmp_path: Path) -> None:
    done = kernelperf("compare", base, two(tmp_path / "now", 207.0))
    assert done.exit_code == 0
    assert "kernelperf: 2 workloads: 2 same; REPLAY of" in done.output.splitlines()[-1]


def test_slower_fails_and_says_why(base: Path, tmp_path: Path) -> None:
    done = kernelperf("compare", base, two(tmp_path / "now", 224.6))
    assert done.exit_code == 1
    assert "SLOWER geglu_compiled-bf16  gpu_time 206.8 → 224.6 µs  +8.6 %" in done.output
    assert "1 same, 1 slower" in done.output.splitlines()[-1]


def test_faster_is_fine(base: Path, tmp_path: Path) -> None:
    assert kernelperf("compare", base, two(tmp_path / "now", 190.0)).exit_code == 0


def test_a_broken_fact_fails(base: Path, tmp_path: Path) -> None:
    done = kernelperf("compare", base, two(tmp_path / "now", facts=(FactOutcome("t::broken", "failed"),)))
    assert done.exit_code == 1
    assert "broken fact: t::broken" in done.output


def test_undecided_is_its_own_code(base: Path, tmp_path: Path) -> None:
    noisy = tuple(builders.run(us) for us in (196.0, 201.0, 206.0, 211.0, 216.0))
    now = builders.write(tmp_path / "now", builders.recording(runs=noisy))
    done = kernelperf("compare", base, now)
    assert done.exit_code == 3
    assert "undecided: geglu_compiled-bf16 gpu_time: runs differ by" in done.output
    assert "in the base only: geglu_eager-bf16" in done.output
    assert "1 in the base only" in done.output.splitlines()[-1]


def test_no_common_workload_is_not_green(base: Path, tmp_path: Path) -> None:
    done = kernelperf("compare", base, builders.write(tmp_path / "now", builders.recording("geglu_liger")))
    assert done.exit_code == 3
    assert "no baseline: geglu_liger-bf16" in done.output


def test_a_recording_without_times_is_compared_by_structure(tmp_path: Path) -> None:
    bare = builders.recording(runs=(builders.untimed(builders.run()),))
    base, now = (builders.write(tmp_path / name, bare) for name in ("base", "now"))
    done = kernelperf("compare", base, now)
    assert done.exit_code == 0
    assert "geglu_compiled-bf16  structure" in done.output


def test_the_tolerance_is_the_recordings_own_or_the_one_given(base: Path, tmp_path: Path) -> None:
    now = two(tmp_path / "now", 224.6, tolerance_fraction=0.1)
    assert kernelperf("compare", base, now).exit_code == 0
    assert kernelperf("compare", base, now, "--tolerance", "3").exit_code == 1


def test_the_folder_of_all_baselines_means_the_one_of_this_gpu(base: Path, tmp_path: Path) -> None:
    assert kernelperf("accept", base, "--reason", "x", "--baselines", tmp_path / "baselines").exit_code == 0
    assert kernelperf("compare", tmp_path / "baselines", two(tmp_path / "now")).exit_code == 0


def test_a_folder_of_baselines_without_this_gpu_is_unusable(base: Path, tmp_path: Path) -> None:
    kernelperf("accept", base, "--reason", "x", "--baselines", tmp_path / "baselines")
    capped = builders.environment(hardware=replace(builders.H200, power_limit_w=600))
    done = kernelperf("compare", tmp_path / "baselines", two(tmp_path / "now", environment=capped))
    assert done.exit_code == 2
    assert "holds no baseline for Hardware(gpu='NVIDIA H200'" in done.output
    assert "it holds nvidia-h200" in done.output


def test_another_gpu_is_unusable(base: Path, tmp_path: Path) -> None:
    other = builders.environment(hardware=replace(builders.H200, gpu="NVIDIA A100-SXM4-80GB"))
    done = kernelperf("compare", base, two(tmp_path / "now", environment=other))
    assert done.exit_code == 2
    assert "only recordings of equal hardware are compared" in done.output


def test_json_goes_to_a_file(base: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    done = kernelperf("compare", base, two(tmp_path / "now", 224.6), "--format", "json", "-o", output)
    assert (done.exit_code, done.output) == (1, "")
    verdicts = [found["verdict"] for found in json.loads(output.read_text())["comparisons"]]
    assert verdicts == ["SLOWER", "SAME"]


def test_json_goes_to_the_terminal_alone(base: Path, tmp_path: Path) -> None:
    done = kernelperf("compare", base, two(tmp_path / "now"), "--format", "json")
    assert len(json.loads(done.output)["comparisons"]) == 2


def test_a_file_that_cannot_be_written_is_unusable(base: Path, tmp_path: Path) -> None:
    done = kernelperf("compare", base, two(tmp_path / "now"), "-o", tmp_path / "nowhere" / "out.txt")
    assert done.exit_code == 2
    assert "nowhere" in done.output


@pytest.mark.parametrize(
    "command", [("compare", "{bad}", "{base}"), ("compare", "{base}", "{bad}"), ("accept", "{bad}")]
)
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "foreign", "trace"])
def test_bad_input_is_one_line_and_code_2(
    base: Path, tmp_path: Path, command: Sequence[str], damage: str
) -> None:
    bad = two(tmp_path / "bad")
    timings = bad / "geglu_eager-bf16" / "timings.json"
    if damage == "missing":
        bad = tmp_path / "nowhere"
    elif damage == "trace":
        (timings.parent / "trace.json.gz").unlink()
    else:
        whole = timings.read_text()
        timings.write_text({"empty": "", "truncated": whole[:99], "foreign": '{"benchmarks": []}'}[damage])
    reason = ["--reason", "x", "--baselines", str(tmp_path / "b")] if command[0] == "accept" else []
    done = kernelperf(*(part.format(bad=bad, base=base) for part in command), *reason)
    assert done.exit_code == 2
    assert done.output.startswith("kernelperf: error: ")
    assert str(bad) in done.output
    assert len(done.output.splitlines()) == 1
    assert isinstance(done.exception, SystemExit)


# --- accept


def test_accept_stores_the_baseline_and_shows_old_and_new(base: Path, tmp_path: Path) -> None:
    baselines = tmp_path / "baselines"
    done = kernelperf("accept", base, "--reason", "first", "--baselines", baselines)
    assert done.exit_code == 0
    assert f"accepted into {baselines / 'nvidia-h200'}: first" in done.output
    done = kernelperf("accept", two(tmp_path / "now", 190.0), "--reason", "faster", "--baselines", baselines)
    assert "-8.1 %" in done.output
    assert {rec.reason for rec in read_recording(baselines / "nvidia-h200").workloads} == {"faster"}


def test_accept_only_what_is_named(base: Path, tmp_path: Path) -> None:
    baselines = tmp_path / "baselines"
    names = ["--only", "geglu_eager", "--only", "geglu_compiled-bf16"]
    assert kernelperf("accept", base, *names[:2], "--reason", "x", "--baselines", baselines).exit_code == 0
    assert [rec.name for rec in read_recording(baselines / "nvidia-h200").workloads] == ["geglu_eager"]
    assert kernelperf("accept", base, *names, "--reason", "x", "--baselines", baselines).exit_code == 0
    assert len(read_recording(baselines / "nvidia-h200").workloads) == 2


def test_accept_needs_a_reason(base: Path, tmp_path: Path) -> None:
    done = kernelperf("accept", base, "--baselines", tmp_path / "baselines")
    assert done.exit_code == 2
    assert "--reason" in done.output


def test_accept_refuses_what_is_no_baseline(tmp_path: Path) -> None:
    doubtful = builders.write(tmp_path / "rec", builders.recording(runs=builders.runs(number=2), facts=None))
    done = kernelperf("accept", doubtful, "--reason", "x", "--baselines", tmp_path / "baselines")
    assert done.exit_code == 2
    assert "did not end" in done.output
    assert "number of runs is 2, expected at least 5" in done.output
    assert not (tmp_path / "baselines").exists()


# --- list


def listed(folder: Path, *arguments: Any, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.chdir(folder)
    return kernelperf("list", *arguments)


def row(output: str, workload: str) -> str:
    (found,) = [line for line in output.splitlines() if line.startswith(f"{workload} ")]
    return " ".join(found.split())


def accepted(folder: Path, *workloads: WorkloadRecording) -> None:
    recording = builders.write(folder / ".recorded", *workloads)
    done = kernelperf("accept", recording, "--reason", "first", "--baselines", folder / "baselines")
    assert done.exit_code == 0, done.output


def test_outside_a_project_the_baselines_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted(tmp_path, builders.recording(tolerance_fraction=0.05))
    done = listed(tmp_path, monkeypatch=monkeypatch)
    assert done.exit_code == 0
    assert row(done.output, "geglu_compiled-bf16") == (
        "geglu_compiled-bf16 gpu_time, structure 5 % nvidia-h200 5 0 d first"
    )


def test_nothing_to_list_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = listed(tmp_path, monkeypatch=monkeypatch)
    assert (done.exit_code, done.output.startswith("no workloads: none in baselines")) == (0, True)


def test_inside_a_project_declared_workloads_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What selected tests gate, by which tolerance, and what has no baseline; nothing is built."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_mine.py").write_text(DECLARING)
    accepted(tmp_path, builders.recording("double"))
    done = listed(tmp_path, monkeypatch=monkeypatch)
    assert done.exit_code == 0, done.output
    assert row(done.output, "double-bf16") == (
        "double-bf16 gpu_time, structure, wall_time 5 % nvidia-h200 5 0 d first"
    )
    assert row(done.output, "unused") == "unused not selected 2 % none"


def test_the_tests_to_collect_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_mine.py").write_text(DECLARING)
    done = listed(tmp_path, "checks", monkeypatch=monkeypatch)
    assert "double-bf16" in done.output


def test_tests_that_cannot_be_collected_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_mine.py").write_text("import no_such_module\n")
    done = listed(tmp_path, monkeypatch=monkeypatch)
    assert done.exit_code == 2
    assert "can't be collected" in done.output
    assert "no_such_module" in done.output
