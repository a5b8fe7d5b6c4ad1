"""A trace is read as it was launched: kernels to ops and steps by their launches, nothing else counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelperf.trace.kineto import read_trace
from kernelperf.trace.summary import summarize
from tests.traces import (
    DATA,
    Row,
    codes,
    host_row,
    is_kernel,
    kernel_row,
    launched_kernel,
    made,
    mark_row,
    read,
    real,
)

EAGER, COMPILED = "geglu_eager-bf16", "geglu_compiled-bf16"


@pytest.mark.parametrize(
    ("name", "kernels", "memsets"),
    [(EAGER, 5, 2), (COMPILED, 4, 2), ("geglu_liger-bf16", 4, 2), ("linear_eager-1024x32x64-bf16", 1, 0)],
)
def test_each_of_ten_steps_has_its_kernels_and_its_memsets_apart(
    name: str, kernels: int, memsets: int
) -> None:
    trace = read_trace(real(name))
    assert trace.problems == ()
    assert [len(step.kernels) for step in trace.steps] == [kernels] * 10
    assert [len(step.transfers) for step in trace.steps] == [memsets] * 10
    assert len(trace.kernels) == 10 * kernels


def test_a_trace_without_marks_has_no_steps() -> None:
    trace = read_trace(DATA / "traces" / "linear_eager_8192x768x3072.json.gz")
    assert trace.steps == ()
    assert [kernel.op_name for kernel in trace.kernels] == ["aten::addmm"] * 3


def test_another_mark_makes_steps() -> None:
    trace = read_trace(DATA / "traces" / "geglu_eager.json.gz", mark="mlp_fwd")
    assert [len(step.kernels) for step in trace.steps] == [5, 5, 5]


def test_profiler_steps_are_steps_where_there_are_no_marks_of_ours(tmp_path: Path) -> None:
    def renamed(rows: list[Row]) -> list[Row]:
        return [{**row, "name": row["name"].replace("kernelperf_step", "ProfilerStep")} for row in rows]

    assert [step.name for step in read(tmp_path, EAGER, renamed).steps][:2] == [
        "ProfilerStep#0",
        "ProfilerStep#1",
    ]


def test_a_triton_kernel_with_a_host_row_of_its_name_is_one_kernel() -> None:
    step = read_trace(real(COMPILED)).steps[0]
    (fused,) = [kernel for kernel in step.kernels if kernel.name.startswith("triton_")]
    assert fused.op_name == fused.name
    assert fused.triton_config is not None
    assert fused.triton_config.startswith("XBLOCK=")


def test_a_kernel_belongs_to_the_step_that_launched_it_however_late_it_ran(tmp_path: Path) -> None:
    def late(rows: list[Row]) -> list[Row]:
        return [{**row, "ts": row["ts"] + 1e6} if is_kernel(row) else row for row in rows]

    assert [len(step.kernels) for step in read(tmp_path, EAGER, late).steps] == [5] * 10


def test_what_another_thread_launches_within_the_mark_is_the_steps(tmp_path: Path) -> None:
    """A backward pass runs on autograd's thread while the marked one waits."""

    def moved(rows: list[Row]) -> list[Row]:
        return [
            {**row, "tid": 77}
            if row.get("cat") in {"cpu_op", "cuda_runtime", "cuda_driver"} and row["ph"] == "X"
            else row
            for row in rows
        ]

    trace = read(tmp_path, EAGER, moved)
    assert [len(step.kernels) for step in trace.steps] == [5] * 10
    assert {kernel.launch.thread.split(":")[1] for kernel in trace.kernels if kernel.launch} == {"77"}


def test_kernels_of_a_graph_launch_are_counted_from_the_gpu(tmp_path: Path) -> None:
    def graphed(rows: list[Row]) -> list[Row]:
        """Let the first launch of each step be a graph's, and all kernels of the step share it."""
        calls = {
            row["args"]["correlation"]: row
            for row in rows
            if row.get("cat") in {"cuda_runtime", "cuda_driver"}
        }
        kernels = sorted((row for row in rows if is_kernel(row)), key=lambda row: row["ts"])
        first = {}
        for number, kernel in enumerate(kernels):
            first.setdefault(number // 5, kernel["args"]["correlation"])
            kernel["args"] = {**kernel["args"], "correlation": first[number // 5]}
        for correlation in first.values():
            calls[correlation]["name"] = "cudaGraphLaunch"
        gone = {id(row) for correlation, row in calls.items() if correlation not in first.values()}
        return [row for row in rows if id(row) not in gone]

    trace = read(tmp_path, EAGER, graphed)
    assert [len(step.kernels) for step in trace.steps] == [5] * 10
    assert all(kernel.launch is not None and kernel.launch.is_graph for kernel in trace.kernels)


def test_a_launch_on_a_thread_without_ops_belongs_to_the_op_of_its_external_id(tmp_path: Path) -> None:
    rows = [host_row("aten::mm", 2, 20, **{"External id": 5})]
    rows += [host_row("cudaLaunchKernel", 4, 1, "cuda_runtime", tid=2, correlation=1, **{"External id": 5})]
    (kernel,) = read_trace(made(tmp_path, [*rows, kernel_row("k", 100, 5, 1)])).kernels
    assert [op.name for op in kernel.ops] == ["aten::mm"]


def test_ops_are_nested_by_time_on_their_own_thread(tmp_path: Path) -> None:
    rows = [host_row("outer", 1, 50), host_row("inner", 2, 10), host_row("next", 20, 5)]
    rows += [host_row("elsewhere", 3, 5, tid=2)]
    ops = read_trace(made(tmp_path, rows)).ops
    assert [(op.index, op.name, op.parent) for op in ops] == [
        (0, "outer", None),
        (1, "inner", 0),
        (2, "elsewhere", None),
        (3, "next", 0),
    ]
    assert [op.name for op in ops[1:3]] == ["inner", "elsewhere"]


def test_a_mark_that_overlaps_another_makes_no_steps(tmp_path: Path) -> None:
    rows = [mark_row("block", 1, 50), mark_row("block", 10, 5), *launched_kernel("k", 11, 100, 5, 1)]
    trace = read_trace(made(tmp_path, rows), mark="block")
    assert trace.steps == ()
    assert codes(trace) == {"marks-overlap": ("step", 1)}


def test_devices_and_streams(tmp_path: Path) -> None:
    rows = [kernel_row("k", 10 * n, 5, device=n % 2, stream=7 + n) for n in range(1, 4)]
    trace = read_trace(made(tmp_path, rows, deviceProperties=[{"id": 1, "name": "Second", "numSms": 4}]))
    assert [(kernel.device, kernel.stream) for kernel in trace.kernels] == [(1, 8), (0, 9), (1, 10)]
    summary = summarize(trace)
    assert [(device.index, device.name) for device in summary.devices] == [(1, "Second"), (0, "")]
    assert summary.streams == 3


def test_what_outlasts_another_op_is_not_inside_it(tmp_path: Path) -> None:
    """As two annotations may that are left in the order in which they were entered."""
    rows = [host_row("first", 1, 10), host_row("second", 5, 40), host_row("aten::mm", 20, 5)]
    (kernel,) = read_trace(made(tmp_path, [*rows, *launched_kernel("k", 21, 100, 5, 1)])).kernels
    assert [op.name for op in kernel.ops] == ["second", "aten::mm"]


def test_a_nanosecond_of_rounding_takes_no_op_out_of_another(tmp_path: Path) -> None:
    rows = [host_row("outer", 1, 10), host_row("inner", 5, 6.001)]
    (kernel,) = read_trace(made(tmp_path, [*rows, *launched_kernel("k", 6, 100, 5, 1)])).kernels
    assert [op.name for op in kernel.ops] == ["outer", "inner"]
