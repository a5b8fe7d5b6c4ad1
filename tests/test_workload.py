"""A declaration registers at import, without torch, and refuses what can't be built or named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import kernelperf
from kernelperf import UnusableInput
from kernelperf.workload import factory_of, registered


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Forget the declarations of a test after it."""
    declarations = sys.modules["kernelperf.workload"]
    monkeypatch.setattr(declarations, "_registry", {})
    monkeypatch.setattr(declarations, "_factories", {})


def declare(**axes):
    @kernelperf.workload(**axes)
    def mlp(shape, dtype):
        return shape, dtype

    return registered()["mlp"]


def test_every_combination_is_a_variant():
    declaration = declare(shape=[(1024, 32), (8, 4)], dtype=["bf16", "fp16"])
    assert [variant.id for variant in declaration.variants()] == [
        "mlp-1024x32-bf16",
        "mlp-1024x32-fp16",
        "mlp-8x4-bf16",
        "mlp-8x4-fp16",
    ]
    assert declaration.variants()[2].params == {"shape": (8, 4), "dtype": "bf16"}


def test_a_workload_without_axes_is_one_variant_of_its_name():
    @kernelperf.workload(mode="backward", time_limit_s=5.0)
    def fixed(): ...

    declaration = registered()["fixed"]
    assert [variant.id for variant in declaration.variants()] == ["fixed"]
    assert (declaration.mode, declaration.time_limit_s) == ("backward", 5.0)


def test_it_knows_where_the_factory_is():
    declaration = declare(shape=[1], dtype=["bf16"])
    assert declaration.file == Path(__file__).resolve()
    assert declaration.module == __name__


def test_the_factory_stays_reachable_behind_the_fixture():
    declare(shape=[1], dtype=["bf16"])
    assert factory_of("mlp")(shape=1, dtype="bf16") == (1, "bf16")


def test_lists_become_tuples_and_params_carry_their_marks():
    declaration = declare(shape=[[1, 2]], dtype=["bf16", pytest.param("fp16", marks=pytest.mark.fp16)])
    plain, marked = declaration.variants()
    assert plain.params["shape"] == (1, 2)
    assert plain.marks == ()
    assert [mark.name for mark in marked.marks] == ["fp16"]


def test_a_definition_changes_with_parameters_and_mode_only():
    def definition(mode, value):
        sys.modules["kernelperf.workload"]._registry.clear()

        @kernelperf.workload(mode=mode, dtype=[value])
        def mlp(dtype): ...

        return registered()["mlp"].variants()[0].definition

    assert definition("forward", "bf16") == definition("forward", "bf16")
    assert definition("forward", "bf16") != definition("forward", "fp16")
    assert definition("forward", "bf16") != definition("backward", "bf16")


def test_one_declaration_may_be_imported_twice():
    for _ in range(2):
        declare(shape=[1], dtype=["bf16"])
    assert list(registered()) == ["mlp"]


def test_two_workloads_of_one_name_are_refused():
    declare(shape=[1], dtype=["bf16"])
    with pytest.raises(
        UnusableInput, match=r"two workloads are named 'mlp': .*test_workload\.py:\d+ and .*rename one"
    ):

        @kernelperf.workload()
        def mlp(): ...


def test_an_axis_that_the_factory_does_not_take_is_refused():
    with pytest.raises(
        UnusableInput, match=r"'mlp' varies over \['shape'\], but its factory takes \['dtype', 'shape'\]"
    ):
        declare(shape=[1])


def test_an_unknown_mode_is_refused():
    with pytest.raises(UnusableInput, match=r"workload 'mlp' has mode 'training'; use one of \('forward',"):

        @kernelperf.workload(mode="training")
        def mlp(): ...


@pytest.mark.parametrize("value", [None, {"a": 1}, (1, None), object])
def test_a_value_that_json_can_not_hold_is_refused(value):
    with pytest.raises(
        UnusableInput, match=r"axis 'shape' holds .*; use strings, numbers, or tuples of them"
    ):
        declare(shape=[value], dtype=["bf16"])
