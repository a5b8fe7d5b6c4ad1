"""A kernel list is compared by name on one software stack, and by what outlives it on another."""

from __future__ import annotations

from dataclasses import replace

from kernelperf.compare.changes import same_stack
from kernelperf.kernel_list import differing_lines, kernel_list
from tests import builders

KERNELS = builders.geglu_kernels()
SPLITK = builders.kernel("cublasLt::splitKreduce_kernel", role="splitk_reduce", op="aten::mm")


def test_the_same_names_in_the_same_order_differ_in_nothing():
    assert differing_lines(builders.runs(), builders.runs(), exact=True) == ()


def test_a_launch_config_is_no_part_of_the_list():
    narrow = builders.runs(kernels=builders.geglu_kernels(builders.NARROW))
    assert differing_lines(builders.runs(), narrow, exact=True) == ()


def test_an_exchange_of_two_kernels_differs():
    swapped = builders.runs(kernels=(*KERNELS[:2], KERNELS[3], KERNELS[2]))
    lines = differing_lines(builders.runs(), swapped, exact=True)
    assert [line for line in lines if line[0] in "+-"] == [f"+ {KERNELS[3].name}", f"- {KERNELS[3].name}"]


def test_one_differing_run_among_equal_ones_differs():
    more = builders.run(kernels=(*KERNELS, builders.kernel("extra_elementwise_kernel")))
    lines = differing_lines(builders.runs(), (*builders.runs(), more), exact=True)
    assert lines[-1] == "+ extra_elementwise_kernel"


def test_a_portable_list_keeps_roles_and_fused_ops():
    found = kernel_list((*KERNELS, SPLITK), exact=False)
    assert found == ("gemm", "gemm", "pointwise _unsafe_view_gelu_mul", "gemm")


def test_another_tile_and_another_number_are_the_same_on_another_stack():
    others = [replace(kernel, name=kernel.name.replace("256x128", "64x64")) for kernel in KERNELS]
    others[2] = replace(others[2], name="triton_poi_fused__unsafe_view_gelu_mul_3")
    now = builders.runs(kernels=others)
    assert differing_lines(builders.runs(), now, exact=False) == ()
    assert differing_lines(builders.runs(), now, exact=True) != ()


def test_a_lost_fusion_differs_on_any_stack():
    unfused = [
        *KERNELS[:2],
        builders.kernel("elementwise_gelu"),
        builders.kernel("elementwise_mul"),
        KERNELS[3],
    ]
    lines = differing_lines(builders.runs(), builders.runs(kernels=unfused), exact=False)
    assert "- pointwise _unsafe_view_gelu_mul" in lines


def test_a_stack_is_the_same_only_if_all_of_it_is():
    base = builders.recording()
    newer = (*builders.STACK[:2], ("torch", "2.12.1"), builders.STACK[3])
    now = builders.recording(environment=builders.environment(stack=newer))
    assert same_stack(base, base)
    assert not same_stack(base, now)
