"""The declared workloads share weights and inputs, keep the article's order, and are told from wrong ones."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fixtures import mlp
from fixtures.numerics import (
    ERROR_OF_ONE_ROUNDING,
    GEGLU_ROUNDINGS,
    LINEAR_ROUNDINGS,
    SAFETY,
    UNIT_ROUNDOFF,
    tolerance,
)
from fixtures.shapes import DIM, HIDDEN, LINEAR_SHAPES, intermediate_bytes

ROOT = Path(__file__).parent.parent
ROWS = (8, 16)  # batch, seq: the errors are relative norms, so fewer rows than the suite's will do


class Ops(TorchDispatchMode):
    """Notes the ops that run, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


@pytest.fixture(params=["bf16", "fp16"])
def dtype(request):
    return request.param


@pytest.fixture
def weights(dtype):
    return mlp.geglu_weights(HIDDEN, dtype, "cpu")


@pytest.fixture
def x(dtype):
    return mlp.geglu_input(*ROWS, dtype, "cpu")


def relative_error(output: Tensor, reference: Tensor) -> float:
    return float((output.detach().double() - reference).norm() / reference.norm())


def geglu(weights, x, gelu, *, swapped=False, columns=HIDDEN):
    """The MLP by hand, so that it can be got wrong."""
    g, u = F.linear(x, weights.gate), F.linear(x, weights.up)
    if swapped:
        g, u = u, g
    return F.linear((gelu(g) * u)[..., :columns], weights.down[:, :columns])


def tanh_gelu(g):
    return F.gelu(g, approximate="tanh")


def test_declaring_imports_no_torch():
    code = (
        "import sys, fixtures.linear, fixtures.geglu, fixtures.liger, fixtures.numerics\n"
        "from kernelperf.workload import registered\n"
        "print(sorted(v.id for d in registered().values() for v in d.variants()))\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for variant in (
        "geglu_compiled-bf16",
        "geglu_eager-fp16",
        "geglu_liger-bf16",
        "linear_compiled-1024x32x64-bf16",
        "linear_eager-8192x768x3072-fp16",
        "matmul_add-1024x32x64-bf16",
    ):
        assert f"'{variant}'" in done.stdout


def test_one_intermediate_tensor_is_50_331_648_bytes():
    assert intermediate_bytes("bf16") == 50_331_648


def test_the_mlp_runs_in_the_articles_order(weights, x):
    module = mlp.hold_weights(mlp.GeGLU(DIM, HIDDEN), weights)
    with torch.no_grad(), Ops() as ops:
        module(x)
    assert [name for name in ops.names if not name.endswith("view")] == ["mm", "mm", "gelu", "mul", "mm"]


def test_a_module_holds_the_weights_it_was_given_and_is_in_eval_mode(weights):
    module = mlp.hold_weights(mlp.GeGLU(DIM, HIDDEN), weights)
    held = (module.gate_proj.weight, module.up_proj.weight, module.down_proj.weight)
    assert [each.data_ptr() for each in held] == [
        each.data_ptr() for each in (weights.gate, weights.up, weights.down)
    ]
    assert not module.training


def test_weights_of_another_size_are_refused(weights):
    with pytest.raises(ValueError, match=r"gate_proj .*expected a weight \[3072, 768\] without bias"):
        mlp.hold_weights(mlp.GeGLU(DIM, 8), weights)


def test_every_call_draws_the_same_weights_and_inputs(dtype):
    first, second = (mlp.geglu_weights(64, dtype, "cpu") for _ in range(2))
    assert torch.equal(first.gate, second.gate)
    assert torch.equal(first.down, second.down)
    assert torch.equal(mlp.geglu_input(2, 3, dtype, "cpu"), mlp.geglu_input(2, 3, dtype, "cpu"))
    assert not torch.equal(first.gate, first.up)


def test_dtypes_are_roundings_of_the_same_numbers():
    bf16, fp16 = (mlp.geglu_weights(64, each, "cpu").gate for each in ("bf16", "fp16"))
    assert (bf16.dtype, fp16.dtype) == (torch.bfloat16, torch.float16)
    assert relative_error(bf16, fp16.double()) < UNIT_ROUNDOFF["bf16"]


def test_gate_values_have_unit_variance_so_that_gelu_bends(weights, x):
    assert 0.9 < float(F.linear(x, weights.gate).float().std()) < 1.1


def test_the_reference_is_the_mlp_in_float64(weights, x):
    doubled = mlp.GeGLUWeights(*(each.double() for each in (weights.gate, weights.up, weights.down)))
    assert relative_error(geglu(doubled, x.double(), tanh_gelu), mlp.geglu_reference(weights, x)) < 1e-12


def test_a_subject_steps_in_the_low_precision_and_refers_to_float64(dtype, monkeypatch):
    monkeypatch.setattr(mlp, "BATCH", 2)
    subject = mlp.geglu_subject(mlp.GeGLU, dtype, device="cpu")
    output, reference = subject.step(), subject.reference()
    assert (output.dtype, reference.dtype) == (mlp.TORCH_DTYPES[dtype], torch.float64)
    assert output.shape == reference.shape
    assert relative_error(output, reference) < tolerance(dtype, GEGLU_ROUNDINGS)


def test_the_probes_change_one_size_each(monkeypatch):
    shapes = []

    class Noted(mlp.GeGLU):
        def forward(self, x):
            shapes.append((*x.shape[:2], self.gate_proj.out_features))
            return x

    subject = mlp.geglu_subject(Noted, "bf16", device="cpu")
    assert list(subject.probes) == ["new_batch", "new_seq", "new_hidden"]
    for probe in subject.probes.values():
        probe()
    assert shapes == [(32, 128, 3072), (64, 256, 3072), (64, 128, 2048)]


def test_a_new_batch_then_a_new_seq_recompile_the_compiled_mlp(monkeypatch):
    for name, size in {"DIM": 8, "HIDDEN": 16, "NEW_HIDDEN": 24}.items():
        monkeypatch.setattr(mlp, name, size)
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    compiled = mlp.geglu_subject(
        mlp.GeGLU, "bf16", finish=lambda module: torch.compile(module, backend="eager"), device="cpu"
    )
    graphs = []
    with torch.no_grad():
        for call in (compiled.step, compiled.probes["new_batch"], compiled.probes["new_seq"]):
            before = counters["stats"]["unique_graphs"]
            call()
            graphs.append(counters["stats"]["unique_graphs"] - before)
    assert graphs == [1, 1, 1]


@pytest.mark.parametrize("shape", LINEAR_SHAPES)
def test_linear_and_matmul_add_are_within_tolerance_and_far_from_it_without_bias(shape, dtype):
    inputs = mlp.linear_inputs((128, *shape[1:]), dtype, "cpu")
    reference, allowed = mlp.linear_reference(inputs), tolerance(dtype, LINEAR_ROUNDINGS)
    product = inputs.x @ inputs.weight.t()
    for output in (mlp.linear_layer(inputs)(inputs.x), torch.add(product, inputs.bias)):
        assert allowed / 3 < relative_error(output, reference) < allowed
    assert relative_error(product, reference) > 100 * allowed


def test_one_rounding_errs_by_the_stated_multiple_of_a_unit_roundoff(dtype):
    exact = torch.randn(1 << 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    error = relative_error(exact.to(mlp.TORCH_DTYPES[dtype]), exact) / UNIT_ROUNDOFF[dtype]
    assert error == pytest.approx(ERROR_OF_ONE_ROUNDING, rel=0.02)


def test_the_three_mlps_err_as_predicted_from_their_roundings(weights, x, dtype):
    fused = lambda g: F.gelu(g.float(), approximate="tanh")  # noqa: E731  (what Inductor's kernel does)
    u = F.linear(x, weights.up).float()
    inductor = F.linear((fused(F.linear(x, weights.gate)) * u).to(x.dtype), weights.down)
    liger = geglu(weights, x, lambda g: fused(g).to(x.dtype))
    eager = mlp.hold_weights(mlp.GeGLU(DIM, HIDDEN), weights)(x)
    reference = mlp.geglu_reference(weights, x)
    for output, roundings in ((eager, 5), (liger, 5), (inductor, 4)):
        predicted = tolerance(dtype, roundings) / SAFETY
        assert relative_error(output, reference) == pytest.approx(predicted, rel=0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda w, x: geglu(w, x, tanh_gelu, swapped=True), id="gate and up swapped"),
        pytest.param(lambda w, x: geglu(w, x, F.silu), id="SiLU"),
        pytest.param(lambda w, x: geglu(w, x, lambda g: g * torch.sigmoid(1.702 * g)), id="sigmoid GELU"),
        pytest.param(lambda w, x: geglu(w, x, tanh_gelu, columns=HIDDEN - 1), id="a column dropped"),
    ],
)
def test_a_wrong_mlp_exceeds_the_tolerance(wrong, weights, x, dtype):
    error = relative_error(wrong(weights, x), mlp.geglu_reference(weights, x))
    assert error > 1.2 * tolerance(dtype, GEGLU_ROUNDINGS)


def test_erf_gelu_is_closer_to_tanh_gelu_than_any_variant_is_to_the_reference(weights, x, dtype):
    error = relative_error(geglu(weights, x, F.gelu), mlp.geglu_reference(weights, x))
    assert error < tolerance(dtype, GEGLU_ROUNDINGS)


def test_tolerances_grow_with_the_root_of_the_roundings():
    assert tolerance("bf16", 4) == pytest.approx(tolerance("bf16", 1) * math.sqrt(4))
    assert tolerance("fp16", 5) == pytest.approx(tolerance("bf16", 5) / 8)
