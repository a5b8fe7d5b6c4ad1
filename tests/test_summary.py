"""A whole trace is counted: ops with what was launched inside them, busy time as a union."""

from __future__ import annotations

from pathlib import Path

from kernelperf.trace.kineto import read_trace
from kernelperf.trace.summary import OpTotal, summarize
from tests.traces import host_row, kernel_row, launched_kernel, made, real


def test_busy_time_is_the_union_of_intervals(tmp_path: Path) -> None:
    rows = [
        kernel_row("a", 100, 10),
        kernel_row("b", 105, 10, stream=9),
        kernel_row("inside", 106, 2, stream=10),
        kernel_row("c", 130, 5),
    ]
    summary = summarize(read_trace(made(tmp_path, rows)))
    assert (summary.gpu_busy_ns, summary.gpu_span_ns) == (20_000, 35_000)


def test_an_ops_kernels_are_those_launched_inside_it(tmp_path: Path) -> None:
    rows = [host_row("aten::linear", 1, 20), host_row("aten::addmm", 2, 15), host_row("aten::linear", 30, 5)]
    rows += [*launched_kernel("gemm", 3, 100, 5, 1), *launched_kernel("outside", 50, 200, 7, 2)]
    rows += [host_row("cudaMemsetAsync", 5, 1, "cuda_runtime", correlation=3)]
    rows += [{**kernel_row("Memset (Device)", 110, 2, 3), "cat": "gpu_memset"}]
    summary = summarize(read_trace(made(tmp_path, rows)))
    assert summary.ops == (OpTotal("aten::linear", 2, 1, 7_000), OpTotal("aten::addmm", 1, 1, 7_000))


def test_an_op_inside_one_of_its_name_counts_its_kernel_once(tmp_path: Path) -> None:
    rows = [host_row("aten::to", 1, 20), host_row("aten::to", 2, 15), *launched_kernel("cast", 3, 100, 5, 1)]
    assert summarize(read_trace(made(tmp_path, rows))).ops == (OpTotal("aten::to", 2, 1, 5_000),)


def test_a_real_trace() -> None:
    summary = summarize(read_trace(real("geglu_compiled-bf16")))
    assert (summary.valid, summary.steps, summary.kernels, summary.memsets, summary.memcpys) == (
        True,
        10,
        40,
        20,
        0,
    )
    assert summary.roles == (("gemm", 30), ("pointwise", 10))
    assert {op.name: op.kernels for op in summary.ops}["aten::mm"] == 30
    assert [device.name for device in summary.devices] == ["NVIDIA H200"]
    assert 0 < summary.gpu_busy_ns < summary.gpu_span_ns
