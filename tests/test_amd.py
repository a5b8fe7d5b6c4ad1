"""Traces of AMD GPUs count right: the same work, written as kineto writes it on ROCm.

No AMD GPU was at hand: the rows are a real H200 trace's, with the names and args that kineto's ROCm source
(`RocprofActivity_inl.h` and `RoctracerActivity_inl.h`) gives them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelperf import facts
from tests.traces import Row, codes, is_kernel, read

GEMM = "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB1_AFC1.kd"
CALLS = {
    "cudaLaunchKernel": "hipLaunchKernel",
    "cuLaunchKernelEx": "hipExtModuleLaunchKernel",
    "cudaMemsetAsync": "hipMemsetAsync",
    "cudaDeviceSynchronize": "hipDeviceSynchronize",
}


def on_amd(runtime_category: str, stream: str = ""):
    """Return what rewrites a trace's rows as ROCm's; the older tracer writes a stream's address."""

    def rewrite(rows: list[Row]) -> list[Row]:
        return [_rewritten(row, runtime_category, stream) for row in rows]

    return rewrite


def _rewritten(row: Row, runtime_category: str, stream: str) -> Row:
    if row.get("cat") in {"cuda_runtime", "cuda_driver"} and row["ph"] == "X":
        args = {"cid": 211, "correlation": row["args"]["correlation"]}
        if stream:
            args["stream"] = stream
        name = CALLS.get(row["name"], row["name"].replace("cuda", "hip"))
        return {**row, "cat": runtime_category, "name": name, "args": args}
    if is_kernel(row):
        kept = {key: row["args"][key] for key in ("device", "correlation", "grid", "block")}
        name = GEMM if row["name"].startswith("nvjet") else row["name"]
        return {**row, "name": name, "args": {**kept, "stream": 0, "kind": "Dispatch Kernel"}}
    return row


@pytest.mark.parametrize("category", ["cuda_runtime", "hip_runtime"])
@pytest.mark.parametrize("stream", ["", "0x0", "0x7f31c4a0b2c0"])
def test_the_same_work_on_rocm_counts_the_same(tmp_path: Path, category: str, stream: str) -> None:
    trace = read(tmp_path, "geglu_eager-bf16", on_amd(category, stream))
    assert codes(trace) == {}
    step = facts.single_step(trace)
    assert [len(each.kernels) for each in trace.steps] == [5] * 10
    assert facts.roles(step) == ("gemm", "gemm", "pointwise", "pointwise", "gemm")
    assert facts.kernels_of(step, "aten::t") == ()
    assert {kernel.registers for kernel in step.kernels} == {0}


def test_a_bias_stays_folded_on_rocm(tmp_path: Path) -> None:
    trace = read(tmp_path, "linear_eager-8192x768x3072-bf16", on_amd("cuda_runtime"))
    assert facts.bias_folded(facts.single_step(trace))


@pytest.mark.parametrize("call", ["hipLaunchKernel", "hipExtModuleLaunchKernel"])
def test_lost_kernels_are_told_on_rocm(tmp_path: Path, call: str) -> None:
    def lossy(rows: list[Row]) -> list[Row]:
        rows = on_amd("cuda_runtime")(rows)
        lost = next(row["args"]["correlation"] for row in rows if row["name"] == call)
        return [row for row in rows if not (is_kernel(row) and row["args"]["correlation"] == lost)]

    assert codes(read(tmp_path, "geglu_eager-bf16", lossy))["launches-without-kernels"] == ("trace", 1)


def test_a_kernels_stream_may_be_an_address(tmp_path: Path) -> None:
    def addressed(rows: list[Row]) -> list[Row]:
        return [{**row, "args": {**row["args"], "stream": "0x10"}} if is_kernel(row) else row for row in rows]

    assert {kernel.stream for kernel in read(tmp_path, "geglu_eager-bf16", addressed).kernels} == {16}
