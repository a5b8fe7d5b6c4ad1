"""``kernelperf facts`` and ``kernelperf compare`` on traces: what they print, and their exit codes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kernelperf.cli import main
from tests.traces import DATA, kernel_row, made, real, zoo

EXAMPLE = Path(__file__).parents[1] / "examples" / "recording"
KEYS = {
    "valid", "problems", "steps", "kernels", "memsets", "memcpys", "kernels_per_step", "roles",
    "kernel_names", "gpu_busy_us", "gpu_span_us", "ops", "device",
}  # fmt: skip


def kernelperf(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def facts_of(*arguments: Any) -> dict[str, Any]:
    done = kernelperf("facts", *arguments, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.keys() >= KEYS
    assert done.exit_code == (0 if found["valid"] else 3)
    return found


def test_the_facts_of_a_trace() -> None:
    found = facts_of(DATA / "traces" / "geglu_compiled.json.gz")
    assert (found["valid"], found["problems"], found["steps"]) == (True, [], None)
    assert (found["kernels"], found["memsets"], found["kernels_per_step"]) == (12, 6, None)
    assert found["roles"] == {"gemm": 9, "pointwise": 3}
    assert found["kernel_names"][2] == "triton_poi_fused__unsafe_view_gelu_mul_0"
    assert found["ops"]["aten::mm"]["calls"] == found["ops"]["aten::mm"]["kernels"] == 9
    assert found["ops"]["TorchDynamo Cache Lookup"] == {"calls": 3, "kernels": 0, "gpu_time_us": 0}
    assert found["device"]["name"] == "NVIDIA H200"
    assert found["device"]["compute_capability"] == "9.0"
    assert 0 < found["gpu_busy_us"] < found["gpu_span_us"]


def test_a_mark_makes_steps() -> None:
    found = facts_of(DATA / "traces" / "geglu_eager.json.gz", "--mark", "mlp_fwd")
    assert (found["steps"], found["kernels_per_step"]) == (3, [5, 5, 5])
    assert "mlp_fwd" not in found["ops"]


def test_a_role_of_ones_own(tmp_path: Path) -> None:
    path = made(tmp_path, [kernel_row("my_kernel", 1, 1)])
    assert facts_of(path)["roles"] == {"other": 1}
    assert facts_of(path, "--role", "^my_ = gemm")["roles"] == {"gemm": 1}
    done = kernelperf("facts", path, "--role", "^my_ = matmul")
    assert done.exit_code == 2
    assert "expected 'REGEX = ROLE'" in done.stderr


def test_a_trace_that_lost_kernels_isnt_measurable() -> None:
    found = facts_of(DATA / "losses" / "stopped_early.json.gz")
    (problem,) = found["problems"]
    assert (problem["code"], problem["scope"], problem["count"]) == ("launches-without-kernels", "trace", 101)
    shown = kernelperf("facts", DATA / "losses" / "stopped_early.json.gz")
    assert shown.exit_code == 3
    assert "101 launches without kernels (the last): the trace lost kernels" in shown.stdout
    assert "valid      NO" in shown.stdout


def test_a_recording_is_one_object() -> None:
    found = facts_of(EXAMPLE)
    workloads = found["workloads"]
    assert len(workloads) == 9
    assert found["kernels"] == sum(each["kernels"] for each in workloads.values())
    assert found["kernels_per_step"][:10] == [4] * 10  # geglu_compiled comes first
    assert workloads["geglu_eager-bf16"]["roles"] == {"gemm": 30, "pointwise": 20}
    assert found["device"]["sm_count"] == 132
    assert [device["name"] for device in found["devices"]] == ["NVIDIA H200"]
    one = facts_of(EXAMPLE / "geglu_eager-bf16")
    assert one == workloads["geglu_eager-bf16"]


def test_facts_are_a_table_for_people() -> None:
    shown = kernelperf("facts", real("geglu_compiled-bf16")).stdout
    assert "steps      10 steps of 4 kernels" in shown
    assert "kernels    40  (30 gemm, 10 pointwise)" in shown
    assert "XBLOCK=512 warps=8 stages=1" in shown
    graph = kernelperf("facts", zoo("cuda_graph")).stdout
    assert "ops: not determinable" in graph


@pytest.mark.parametrize("name", ["nowhere.json", "."])
def test_what_isnt_there_is_unusable(tmp_path: Path, name: str) -> None:
    done = kernelperf("facts", tmp_path / name, "--json")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "kernelperf: error:" in done.stderr


def test_two_traces_are_compared() -> None:
    base, now = real("geglu_compiled-bf16"), real("fault_unfused")
    done = kernelperf("compare", base, now)
    assert done.exit_code == 1
    assert "#1 new: triton_poi_fused__unsafe_view_gelu_0" in done.stdout
    assert "XBLOCK 512 → 1024, warps 8 → 4" in done.stdout
    assert "count    kernels 4 → 5" in done.stdout
    assert kernelperf("compare", now, base).exit_code == 0
    assert kernelperf("compare", base, now, "--tolerance", "50").exit_code == 0


def test_a_comparison_of_traces_as_json(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    traces = (real("geglu_compiled-bf16"), real("fault_unfused"))
    done = kernelperf("compare", *traces, "--format", "json", "-o", output)
    assert (done.exit_code, done.stdout) == (1, "")
    found = json.loads(output.read_text())
    explained = sum(change["delta_ns"] for change in found["kernel_changes"])
    assert explained + sum(row["delta_ns"] for row in found["rest"]) == pytest.approx(found["delta_ns"])
    assert found["structure"] == "changed"


def test_a_trace_whose_times_cant_be_used_is_undecided(tmp_path: Path) -> None:
    path = made(tmp_path, [kernel_row("k", 0, 0)])
    done = kernelperf("compare", path, path)
    assert done.exit_code == 3
    assert "the times of one trace can't be used" in done.stdout


def test_a_trace_is_not_compared_with_a_recording() -> None:
    done = kernelperf("compare", EXAMPLE, real("geglu_eager-bf16"))
    assert done.exit_code == 2
    assert "is a trace" in done.stderr
    done = kernelperf("compare", EXAMPLE, EXAMPLE, "--mark", "x")
    assert done.exit_code == 2
    assert "--mark and --role are for traces" in done.stderr


def test_a_truncated_file_is_one_line_of_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' * 100)[:30])
    done = kernelperf("facts", path)
    assert done.exit_code == 2
    assert "its gzip data ends early, at byte 30" in done.stderr
    assert "Traceback" not in done.stderr


def test_nan_is_no_tolerance() -> None:
    done = kernelperf("compare", real("geglu_eager-bf16"), real("geglu_eager-bf16"), "--tolerance", "nan")
    assert done.exit_code == 2
    assert "found nan" in done.stderr


def test_a_missing_trace_is_said_to_be_missing(tmp_path: Path) -> None:
    done = kernelperf("compare", real("geglu_eager-bf16"), tmp_path / "gone.json")
    assert done.exit_code == 2
    assert "gone.json: no such file or folder" in done.stderr


def test_a_terminal_that_isnt_utf8_ends_in_no_traceback(tmp_path: Path) -> None:
    path = made(tmp_path, [kernel_row("ядро\x1b[31m", 1, 1)])
    command = [sys.executable, "-c", "from kernelperf.cli import main; main()", "facts", str(path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "cp1252"}, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
