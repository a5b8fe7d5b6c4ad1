"""What the compilers generate for the suite's steps, on every machine: no GPU is needed to lose a fusion.

The code is that of the working tree.  Which cuBLAS kernel or launch config runs, and how fast, a GPU has to
tell: the other tests do.
"""

from __future__ import annotations

from typing import Any

import pytest

from kernelperf.codegen import CodegenRecord

ARCH = "sm_90"
# Two of the MLP's intermediate tensors are read and one is written, [8192, 3072] in bf16.
FUSED_BYTES = 3 * 50_331_648


@pytest.fixture
def compiled_mlp(gpu_codegen: Any) -> CodegenRecord:
    """The compiled GeGLU MLP's code."""
    return gpu_codegen("fixtures.geglu:geglu_compiled", arch=ARCH, dtype="bf16")


@pytest.fixture
def liger_mlp(gpu_codegen: Any) -> CodegenRecord:
    """What Liger's MLP launches."""
    return gpu_codegen("fixtures.geglu:geglu_liger", arch=ARCH, dtype="bf16")


@pytest.fixture
def compiled_linear(gpu_codegen: Any) -> CodegenRecord:
    """The compiled nn.Linear's code."""
    return gpu_codegen("fixtures.linear:linear_compiled", arch=ARCH, shape="8192x768x3072", dtype="bf16")


def test_the_compiled_mlp_is_one_graph_of_three_gemms(compiled_mlp: CodegenRecord) -> None:
    """Gate, up and down are left to the library, and nothing breaks the graph."""
    assert compiled_mlp.graphs == 1
    assert compiled_mlp.extern_calls == ["extern_kernels.mm"] * 3


def test_gelu_and_mul_are_fused_into_the_only_kernel(compiled_mlp: CodegenRecord) -> None:
    """One pointwise kernel."""
    (kernel,) = compiled_mlp.kernels
    assert kernel.name.startswith("triton_poi_fused")
    assert {"gelu", "mul"} <= set(kernel.fused_ops)


def test_the_fused_kernel_moves_each_tensor_once(compiled_mlp: CodegenRecord) -> None:
    """150,994,944 bytes: gate and up in, their product out."""
    assert compiled_mlp.kernel("gelu_mul").bytes == FUSED_BYTES


def test_no_candidate_of_the_fused_kernel_spills(compiled_mlp: CodegenRecord) -> None:
    """Whichever Inductor's timing will choose."""
    candidates = compiled_mlp.kernel("gelu_mul").candidates
    assert candidates
    assert [each.spills for each in candidates] == [0] * len(candidates)


def test_a_candidate_of_the_fused_kernel_loads_128_bits(compiled_mlp: CodegenRecord) -> None:
    """Inductor has a choice that is fast."""
    assert any(each.loads_128bit for each in compiled_mlp.kernel("gelu_mul").candidates)


def test_ligers_kernel_is_the_only_one_and_moves_each_tensor_once(liger_mlp: CodegenRecord) -> None:
    """Nothing is compiled by Inductor."""
    (kernel,) = liger_mlp.kernels
    assert kernel.name == "_geglu_tanh_forward_kernel"
    assert kernel.bytes == FUSED_BYTES
    assert liger_mlp.graphs == 0


def test_ligers_kernel_does_not_spill_and_loads_128_bits(liger_mlp: CodegenRecord) -> None:
    """It has one launch config."""
    (candidate,) = liger_mlp.kernel("_geglu_tanh_forward_kernel").candidates
    assert candidate.spills == 0
    assert candidate.loads_128bit > 0


def test_the_compiled_linear_is_one_addmm_and_no_kernel(compiled_linear: CodegenRecord) -> None:
    """The bias stays in the GEMM's epilogue."""
    assert compiled_linear.graphs == 1
    assert compiled_linear.extern_calls == ["extern_kernels.addmm"]
    assert compiled_linear.kernels == []
