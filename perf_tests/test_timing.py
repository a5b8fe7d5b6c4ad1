"""How long a step keeps the GPU busy, against the stored baseline of this GPU."""

import pytest


@pytest.mark.benchmark(group="linear")
def test_matmul_add(gpu_benchmark, matmul_add):
    """The contrast: a GEMM and an add."""
    gpu_benchmark(matmul_add)


@pytest.mark.benchmark(group="linear")
def test_linear_eager(gpu_benchmark, linear_eager):
    """One GEMM with the bias in its epilogue."""
    gpu_benchmark(linear_eager)


@pytest.mark.benchmark(group="linear")
def test_linear_compiled(gpu_benchmark, linear_compiled):
    """The same GEMM."""
    gpu_benchmark(linear_compiled)


@pytest.mark.benchmark(group="geglu")
def test_geglu_eager(gpu_benchmark, geglu_eager):
    """Five kernels."""
    gpu_benchmark(geglu_eager)


@pytest.mark.benchmark(group="geglu")
def test_geglu_compiled(gpu_benchmark, geglu_compiled):
    """Four kernels, Inductor's among them: faster or slower than Liger's by GPU and launch config."""
    gpu_benchmark(geglu_compiled)


@pytest.mark.benchmark(group="geglu")
def test_geglu_liger(gpu_benchmark, geglu_liger):
    """Four kernels, Liger's among them."""
    gpu_benchmark(geglu_liger)
