"""The suite's workloads with a fault planted in each, and the healthy ones beside them.

Not part of any run of the tests: on a GPU, name this file to record its workloads as the data that
`tests/test_suite_faults.py` replays:

    pytest tests/faults/record_faults.py --kperf-record tests/data/faults --kperf-no-timing

Each test here says that its fault took; keep no recording that fails one.
"""

from __future__ import annotations

import kernelperf
from kernelperf import facts

SHAPE = (8192, 768, 3072)
DTYPE = "bf16"
LINEARS = ["matmul_add", "linear_eager", "linear_compiled"]
MLPS = ["geglu_eager", "geglu_compiled", "geglu_liger"]
VIEW_OPS = ["t", "transpose", "reshape", "view", "as_strided", "_unsafe_view"]


def override_view(op):
    """Make a view op launch an elementwise kernel beside its work."""
    import torch

    name = {"transpose": "transpose.int"}.get(op, op)
    original = torch.library.get_kernel(f"aten::{name}", "CUDA")

    def computing(keyset, tensor, *arguments):
        tensor.neg()  # for nothing
        return original.call_boxed(keyset, tensor, *arguments)

    library = torch.library.Library("aten", "IMPL")
    library.impl(name, computing, "CUDA", with_keyset=True)
    return library  # the override lasts as long as this does


def geglu(forward, **how):
    """Return the MLP with another forward."""
    from fixtures import mlp

    return mlp.geglu_subject(type("Faulty", (mlp.GeGLU,), {"forward": forward}), DTYPE, **how)


def mlp_of(variant, fault):
    """Return one of the three MLPs, with ``fault`` made of its module before it is compiled."""
    import torch

    from fixtures import liger, mlp

    if variant == "geglu_liger":
        kernel = liger.load()
        return mlp.geglu_subject(kernel.geglu, DTYPE, finish=fault, about=kernel.about)
    compiled = variant == "geglu_compiled"
    return mlp.geglu_subject(
        mlp.GeGLU, DTYPE, finish=(lambda module: torch.compile(fault(module))) if compiled else fault
    )


@kernelperf.workload()
def fault_bias_outside():
    """The bias is added after the layer."""
    import torch.nn.functional as F

    from fixtures import mlp

    inputs = mlp.linear_inputs(SHAPE, DTYPE)
    return mlp.linear_subject(inputs, lambda: F.linear(inputs.x, inputs.weight) + inputs.bias)


def test_bias_outside(fault_bias_outside):
    assert facts.has_op(fault_bias_outside.step, "aten::add")


@kernelperf.workload(variant=["linear_eager", "linear_compiled"])
def fault_strided_bias(variant):
    """The bias is every second element of a longer tensor: addmm copies it first."""
    import torch
    import torch.nn.functional as F

    from fixtures import mlp

    inputs = mlp.linear_inputs(SHAPE, DTYPE)
    bias = torch.stack([inputs.bias, inputs.bias], dim=1)[:, 0]
    linear = torch.compile(F.linear) if variant == "linear_compiled" else F.linear
    return mlp.linear_subject(inputs, lambda: linear(inputs.x, inputs.weight, bias))


def test_strided_bias(fault_strided_bias):
    assert len(facts.roles(fault_strided_bias.step)) == 2


@kernelperf.workload(variant=LINEARS)
def fault_wrong_bias(variant):
    """The bias has the wrong sign: the same kernels, another result."""
    import dataclasses

    import torch

    from fixtures import mlp

    inputs = mlp.linear_inputs(SHAPE, DTYPE)
    wrong = dataclasses.replace(inputs, bias=-inputs.bias)
    layer, weight = mlp.linear_layer(wrong), wrong.weight.t().contiguous()
    if variant == "matmul_add":
        return mlp.linear_subject(inputs, lambda: torch.add(torch.matmul(wrong.x, weight), wrong.bias))
    called = torch.compile(layer) if variant == "linear_compiled" else layer
    return mlp.linear_subject(inputs, lambda: called(wrong.x))


def test_wrong_bias(fault_wrong_bias):
    assert fault_wrong_bias.observations.relative_error > 0.1


@kernelperf.workload()
def fault_t_computes():
    """aten::t of the Linear launches a kernel."""
    from fixtures import mlp

    inputs = mlp.linear_inputs(SHAPE, DTYPE)
    layer, library = mlp.linear_layer(inputs), override_view("t")
    return mlp.linear_subject(inputs, lambda: library and layer(inputs.x))


def test_t_computes(fault_t_computes):
    assert facts.kernels_of(fault_t_computes.step, "aten::t")


@kernelperf.workload(op=VIEW_OPS)
def fault_view_computes(op):
    """A view op of the MLP launches a kernel."""
    library = override_view(op)
    return mlp_of("geglu_eager", lambda module: lambda x: library and module(x))


def test_view_computes(fault_view_computes):
    op = f"aten::{fault_view_computes.params['op']}"
    assert facts.kernels_of(fault_view_computes.step, op)


@kernelperf.workload()
def fault_one_expression():
    """Not in the article's order: gelu runs between the first two GEMMs."""
    import torch.nn.functional as F

    return geglu(
        lambda self, x: self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))
    )


def test_one_expression(fault_one_expression):
    assert facts.roles(fault_one_expression.step)[:3] == ("gemm", "pointwise", "gemm")


@kernelperf.workload()
def fault_narrow():
    """The MLP has another hidden size."""
    from fixtures import mlp

    weights, x = mlp.geglu_weights(2048, DTYPE), mlp.geglu_input(mlp.BATCH, mlp.SEQ, DTYPE)
    module = mlp.hold_weights(mlp.GeGLU(mlp.DIM, 2048), weights)
    return kernelperf.Subject(lambda: module(x), reference=lambda: mlp.geglu_reference(weights, x))


def test_narrow(fault_narrow):
    assert len(facts.roles(fault_narrow.step)) == 5


@kernelperf.workload(variant=MLPS)
def fault_contiguous(variant):
    """The input is transposed and copied before the MLP sees it."""
    return mlp_of(variant, lambda module: lambda x: module(x.transpose(0, 1).contiguous()).transpose(0, 1))


def test_contiguous(fault_contiguous):
    assert len(facts.roles(fault_contiguous.step)) in {5, 6}
    assert facts.roles(fault_contiguous.step)[0] != "gemm"


@kernelperf.workload(variant=MLPS)
def fault_swapped(variant):
    """Gate and up are exchanged: the same kernels, another result."""

    def exchange(module):
        module.gate_proj, module.up_proj = module.up_proj, module.gate_proj
        return module

    return mlp_of(variant, exchange)


def test_swapped(fault_swapped):
    assert fault_swapped.observations.relative_error > 0.1


@kernelperf.workload()
def fault_graph_break():
    """A graph break between gelu and mul."""
    import torch
    import torch.nn.functional as F

    def forward(self, x):
        g = self.gate_proj(x)
        u = self.up_proj(x)
        h = F.gelu(g, approximate="tanh")
        torch._dynamo.graph_break()
        m = h * u
        return self.down_proj(m)

    return geglu(forward, finish=torch.compile)


def test_graph_break(fault_graph_break):
    assert fault_graph_break.observations.graph_breaks == 1


@kernelperf.workload()
def fault_unfused():
    """Inductor is configured to fuse nothing: gelu's result is realized, and no two nodes are fused."""
    import torch

    options = {"realize_opcount_threshold": 1, "max_fusion_size": 1}
    return mlp_of("geglu_eager", lambda module: torch.compile(module, options=options))


def test_unfused(fault_unfused):
    assert facts.roles(fault_unfused.step).count("pointwise") == 2


@kernelperf.workload()
def fault_triton_gemms():
    """Inductor is configured to write the GEMMs itself."""
    import torch

    options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
    return mlp_of("geglu_eager", lambda module: torch.compile(module, options=options))


def test_triton_gemms(fault_triton_gemms):
    assert any(name.startswith("triton_tem") for name in facts.kernel_names(fault_triton_gemms.step))


@kernelperf.workload()
def fault_dynamic():
    """Compiled for any batch and seq from the start: no new shape recompiles."""
    import torch

    return mlp_of("geglu_eager", lambda module: torch.compile(module, dynamic=True))


def test_dynamic(fault_dynamic):
    graphs = {probe.name: probe.dynamo_graphs for probe in fault_dynamic.observations.probes}
    assert (graphs["new_batch"], graphs["new_seq"]) == (0, 0)


@kernelperf.workload()
def fault_late_guard():
    """What the compiled code was guarded on changes after the first call."""
    import torch
    import torch.nn.functional as F

    def forward(self, x):
        g = self.gate_proj(x)
        u = self.up_proj(x)
        h = F.gelu(g, approximate="tanh")
        m = h * u if self.warm else u * h
        return self.down_proj(m)

    def finish(module):
        module.warm = False
        compiled = torch.compile(module)

        def call(x):
            y = compiled(x)
            module.warm = True
            return y

        return call

    return geglu(forward, finish=finish)


def test_late_guard(fault_late_guard):
    assert fault_late_guard.observations.recompiles == 1


@kernelperf.workload()
def fault_compile_row():
    """Liger's step calls a small compiled function, which launches nothing."""
    import torch

    flatten = torch.compile(lambda x: x.view(-1, x.shape[-1]))
    return mlp_of("geglu_liger", lambda module: lambda x: module(flatten(x)).view(x.shape))


def test_compile_row(fault_compile_row):
    assert facts.compile_rows(fault_compile_row.step)
    assert facts.roles(fault_compile_row.step) == ("gemm", "gemm", "pointwise", "gemm")


def test_linears_without_a_fault(matmul_add, linear_eager, linear_compiled):
    counts = [len(facts.roles(each.step)) for each in (matmul_add, linear_eager, linear_compiled)]
    assert counts == [2, 1, 1]


def test_mlps_without_a_fault(geglu_eager, geglu_compiled, geglu_liger):
    counts = [len(facts.roles(each.step)) for each in (geglu_eager, geglu_compiled, geglu_liger)]
    assert counts == [5, 4, 4]
