"""nn.Linear: the bias is added inside the GEMM's kernel, and compiling it leaves nothing to fuse."""

import pytest

from kernelperf import facts


def test_linear_calls_t_then_addmm(linear_eager):
    """Zoomed in, the trace shows aten::t before aten::addmm; a bias was passed, so linear calls addmm."""
    assert facts.children(linear_eager.step, "aten::linear") == ("aten::t", "aten::addmm")


def test_t_launches_no_kernel(linear_eager):
    """aten::t rewrites shape and strides on the CPU and copies nothing: its CUDA time is zero."""
    assert facts.kernels_of(linear_eager.step, "aten::t") == ()
    assert facts.gpu_time_ns(linear_eager.step, "aten::t") == 0


def test_no_separate_add(linear_eager):
    """The chain holds no aten::add for the bias."""
    assert not facts.has_op(linear_eager.step, "aten::add")


def test_bias_is_folded_into_the_gemm(linear_eager):
    """The bias is added in the GEMM's epilogue, just before the result is written to memory."""
    assert facts.bias_folded(linear_eager.step)


def test_matmul_add_is_two_kernels(matmul_add):
    """The contrast: by hand, the product goes to memory and an aten::add reads it back."""
    assert facts.roles(matmul_add.step) == ("gemm", "pointwise")
    assert facts.has_op(matmul_add.step, "aten::add")


def test_compiled_linear_runs_the_same_kernels(linear_compiled, linear_eager):
    """For one GEMM with bias, compile has next to nothing to do: the same cuBLAS kernel, name for name."""
    assert facts.kernel_names(linear_compiled.step) == facts.kernel_names(linear_eager.step)


@pytest.mark.parametrize("op", ["aten::linear", "aten::t", "aten::transpose", "aten::as_strided"])
def test_compiled_linear_drops_the_view_ops(linear_compiled, op):
    """What compile removes is CPU overhead, such as the view ops."""
    assert not facts.has_op(linear_compiled.step, op)


def test_compiled_linear_calls_a_bare_addmm(linear_compiled):
    """What remains of the chain is one aten::addmm, the bias still folded into it."""
    assert facts.op_names(linear_compiled.step).count("aten::addmm") == 1
    assert facts.bias_folded(linear_compiled.step)


def test_compiled_linear_pays_with_compile_rows(linear_compiled):
    """Dynamo's guards and AOTDispatcher's prologue now run on the CPU before each call."""
    assert facts.compile_rows(linear_compiled.step)
