"""The GeGLU MLP: five kernels eager, four with gelu and mul fused, by Inductor or by Liger."""

import pytest

from fixtures.shapes import intermediate_bytes
from kernelperf import facts

VIEW_OPS = [
    "aten::t",
    "aten::transpose",
    "aten::reshape",
    "aten::view",
    "aten::as_strided",
    "aten::_unsafe_view",
]
FUSED = ("gemm", "gemm", "pointwise", "gemm")


def pointwise(step):
    """Return the step's pointwise kernels."""
    return tuple(kernel for kernel in step.kernels if kernel.role == "pointwise")


def gemm_names(step):
    """Return the names of the step's GEMM kernels, in launch order."""
    return tuple(kernel.name for kernel in step.kernels if kernel.role == "gemm")


def traffic_bytes(step, sources=()):
    """Return what the step's pointwise kernels read and write together."""
    return sum(facts.logical_bytes(step, kernel, sources) for kernel in pointwise(step))


def size_of(workload):
    """Return the size in bytes of the tensors between the GEMMs."""
    return intermediate_bytes(workload.params["dtype"])


def test_eager_runs_five_kernels(geglu_eager):
    """Each forward runs exactly five kernels: three GEMMs, a GeLU and a multiplication."""
    assert facts.roles(geglu_eager.step) == ("gemm", "gemm", "pointwise", "pointwise", "gemm")


@pytest.mark.parametrize("op", VIEW_OPS)
def test_view_ops_launch_no_kernel(geglu_eager, op):
    """reshape, view and their kind change metadata on the CPU only."""
    assert facts.kernels_of(geglu_eager.step, op) == ()
    assert facts.gpu_time_ns(geglu_eager.step, op) == 0


def test_the_intermediate_is_50_331_648_bytes(geglu_eager):
    """The intermediate tensor [8192, 3072], about 50 MB, is written by GeLU and read back by mul."""
    for name in ("aten::gelu", "aten::mul"):
        op = next(op for op in geglu_eager.step.ops if op.name == name)
        assert facts.tensor_bytes(op, 0) == size_of(geglu_eager) == 50_331_648


def test_eager_moves_five_tensors_between_the_gemms(geglu_eager):
    """GeLU reads g and writes h; mul reads h and u and writes m."""
    assert traffic_bytes(geglu_eager.step) == 5 * size_of(geglu_eager)


def test_compiled_runs_four_kernels(geglu_compiled):
    """torch.compile merges the two pointwise kernels into one."""
    assert facts.roles(geglu_compiled.step) == FUSED


def test_compiled_fuses_gelu_and_mul(geglu_compiled):
    """The one pointwise kernel is Triton's, and its name tells that gelu and mul went into it."""
    fused = [facts.fused_ops(kernel) for kernel in pointwise(geglu_compiled.step)]
    assert len(fused) == 1
    assert {"gelu", "mul"} <= set(fused[0])


def test_compiled_moves_three_tensors_between_the_gemms(geglu_compiled):
    """It reads g and u once and writes once: a whole round trip of the intermediate is gone."""
    sources = geglu_compiled.observations.triton_sources
    assert traffic_bytes(geglu_compiled.step, sources) == 3 * size_of(geglu_compiled)


def test_compiled_keeps_the_gemms(geglu_compiled, geglu_eager):
    """The three GEMMs stay untouched: the same cuBLAS kernels."""
    assert len(gemm_names(geglu_compiled.step)) == 3
    assert gemm_names(geglu_compiled.step) == gemm_names(geglu_eager.step)


def test_compiled_calls_three_bare_mm(geglu_compiled):
    """Each GEMM is called as aten::mm, with no other aten op around it."""
    gemms = [kernel for kernel in geglu_compiled.step.kernels if kernel.role == "gemm"]
    around = [[op.name for op in kernel.ops if op.name.startswith("aten::")] for kernel in gemms]
    assert around == [["aten::mm"]] * 3


@pytest.mark.parametrize("op", ["aten::linear", "aten::t", "aten::reshape"])
def test_compiled_drops_the_view_ops(geglu_compiled, op):
    """The reshape went into the fused kernel, the views into the compiled code."""
    assert not facts.has_op(geglu_compiled.step, op)


def test_compiled_pays_with_compile_rows(geglu_compiled):
    """Dynamo and its guards run before each call."""
    assert facts.compile_rows(geglu_compiled.step)


def test_liger_runs_four_kernels(geglu_liger):
    """The hand-written kernel makes the same fusion."""
    assert facts.roles(geglu_liger.step) == FUSED


def test_liger_runs_its_own_fused_kernel(geglu_liger):
    """Liger's kernel is launched from its autograd function, once."""
    fused = facts.kernels_of(geglu_liger.step, "LigerGELUMulFunction")
    assert [kernel.name for kernel in fused] == ["_geglu_tanh_forward_kernel"]
    assert fused == pointwise(geglu_liger.step)


def test_liger_moves_three_tensors_between_the_gemms(geglu_liger):
    """The same round trip is saved."""
    assert traffic_bytes(geglu_liger.step) == 3 * size_of(geglu_liger)


def test_liger_keeps_the_gemms(geglu_liger, geglu_eager):
    """Around it run the same three GEMMs."""
    assert len(gemm_names(geglu_liger.step)) == 3
    assert gemm_names(geglu_liger.step) == gemm_names(geglu_eager.step)


def test_liger_needs_no_compiler(geglu_liger):
    """No Dynamo, no guards, no compilation."""
    assert facts.compile_rows(geglu_liger.step) == ()
