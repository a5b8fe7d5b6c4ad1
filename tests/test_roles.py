"""A role comes from kernel name and launching op together; what isn't known is ``other``."""

from __future__ import annotations

import pytest

from kernelperf.trace.roles import RoleRules, fused_op_names, role_of

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::GeluFunctor, std::array<char*, 2ul> >"
)
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda()>"


@pytest.mark.parametrize(
    ("kernel", "ops", "role"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", ("aten::mm",), "gemm"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", ("aten::addmm",), "gemm"),
        ("void gemv2T_kernel_val<int, int, float>", ("aten::mv",), "gemm"),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4>",
            ("aten::mm",),
            "gemm",
        ),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8", ("aten::mm",), "gemm"),
        ("Cijk_Alik_Bljk_HHS_BH_MT64x64x32_SN", ("aten::mm",), "gemm"),
        ("void dot_kernel<float, 128, 0>", ("aten::dot",), "gemm"),
        ("triton_tem_fused_mm_3", (), "gemm"),
        ("triton_mm", (), "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", ("aten::mm",), "splitk_reduce"),
        ("triton_poi_fused_gelu_mul_0", (), "pointwise"),
        ("_geglu_tanh_forward_kernel", ("LigerGELUMulFunction",), "pointwise"),
        (ELEMENTWISE, ("aten::gelu",), "pointwise"),
        (ELEMENTWISE, ("aten::addmm", "aten::copy_"), "copy"),
        (COPY, ("aten::addmm",), "copy"),
        ("triton_red_fused_native_layer_norm_0", (), "reduce"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >", ("aten::sum",), "reduce"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", ("c10d::allreduce_",), "comm"),
        ("my_kernel", ("aten::mm",), "other"),
        ("flash_fwd_kernel<cutlass::bfloat16_t>", ("aten::_flash_attention_forward",), "other"),
    ],
)
def test_roles(kernel: str, ops: tuple[str, ...], role: str) -> None:
    assert role_of(kernel, ops) == role


def test_a_users_rule_comes_first() -> None:
    rules = RoleRules(extra=(("^my_", "gemm"),))
    assert role_of("my_kernel", (), rules) == "gemm"
    assert role_of("another", (), rules) == "other"


@pytest.mark.parametrize(
    ("name", "ops"),
    [
        ("triton_poi_fused__unsafe_view_gelu_mul_0", ("_unsafe_view", "gelu", "mul")),
        ("triton_poi_fused_0", ()),
        ("triton_per_fused_add_native_layer_norm_12", ("add", "native_layer_norm")),
        ("_geglu_tanh_forward_kernel", ()),
    ],
)
def test_fused_ops(name: str, ops: tuple[str, ...]) -> None:
    assert fused_op_names(name) == ops
