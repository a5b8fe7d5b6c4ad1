"""Other shapes: the compiled MLP is compiled anew for them, Liger's kernel is not."""

import pytest

from kernelperf import NotMeasurable


def probe(workload, name):
    """Return what the workload's probe of this name compiled."""
    for result in workload.observations.probes:
        if result.name == name:
            return result
    raise NotMeasurable(f"{workload.id!r} was recorded without a probe {name!r}")


def test_compiled_is_one_graph(geglu_compiled):
    """The whole forward is compiled into one graph, for the shape it was first called with."""
    assert geglu_compiled.observations.dynamo_graphs == 1
    assert geglu_compiled.observations.graph_breaks == 0


def test_compiled_settles_after_the_first_call(geglu_compiled):
    """As long as the shape stays, nothing more is compiled."""
    assert geglu_compiled.observations.recompiles == 0


@pytest.mark.parametrize("change", ["new_batch", "new_seq"])
def test_compiled_recompiles_for(geglu_compiled, change):
    """Inductor's kernel is specialized for one shape: a new batch or seq is traced and compiled again."""
    assert probe(geglu_compiled, change).dynamo_graphs == 1


@pytest.mark.parametrize("change", ["new_batch", "new_seq"])
def test_liger_compiles_nothing_for(geglu_liger, change):
    """Liger's kernel takes any batch and seq as it is."""
    result = probe(geglu_liger, change)
    assert (result.dynamo_graphs, result.triton_compilations) == (0, 0)


def test_liger_compiles_once_for_a_new_hidden_size(geglu_liger):
    """Beyond the article: the row length is a constant of the kernel, so a new one costs one compilation."""
    result = probe(geglu_liger, "new_hidden")
    assert (result.dynamo_graphs, result.triton_compilations) == (0, 1)
