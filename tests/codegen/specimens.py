"""Modules whose generated code is known: the suite's MLP, what may go wrong with it, what can't be told.

Each is a factory of (module, example inputs), as `kernelperf codegen` takes it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import kernelperf

DIM, HIDDEN = 768, 3072


class GeGLU(nn.Module):
    def __init__(self, dim=DIM, hidden=HIDDEN, bias=False, approximate="tanh"):
        super().__init__()
        how = {"bias": bias, "dtype": torch.bfloat16, "device": "cuda"}
        self.gate, self.up = nn.Linear(dim, hidden, **how), nn.Linear(dim, hidden, **how)
        self.down = nn.Linear(hidden, dim, **how)
        self.approximate = approximate

    def forward(self, x):
        return self.down(F.gelu(self.gate(x), approximate=self.approximate) * self.up(x))


class Packed(GeGLU):
    """Gate and up in one product."""

    def __init__(self):
        super().__init__()
        self.both = nn.Linear(DIM, 2 * HIDDEN, bias=False, dtype=torch.bfloat16, device="cuda")

    def forward(self, x):
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(F.gelu(gate, approximate="tanh") * up)


class Broken(GeGLU):
    """A graph break between gelu and mul."""

    def forward(self, x):
        gate = F.gelu(self.gate(x), approximate="tanh")
        torch._dynamo.graph_break()
        return self.down(gate * self.up(x))


class Residual(GeGLU):
    """The block of a transformer: a layer norm before, a residual after."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM, dtype=torch.bfloat16, device="cuda")

    def forward(self, x):
        return x + super().forward(self.norm(x))


def inputs(dim=DIM):
    return torch.randn(64, 128, dim, dtype=torch.bfloat16, device="cuda")


def geglu():
    return GeGLU(), inputs()


def unfused():
    options = {"realize_opcount_threshold": 1, "max_fusion_size": 1}
    return torch.compile(GeGLU(), options=options), inputs()


def graph_break():
    return Broken(), inputs()


def residual():
    return Residual(), inputs()


def biased():
    return GeGLU(bias=True), inputs()


def packed():
    return Packed(), inputs()


def erf():
    return GeGLU(approximate="none"), inputs()


def eager():
    """Nothing is compiled, so nothing is generated."""
    module, x = GeGLU(), inputs()
    return lambda: module(x)


class Scan(nn.Module):
    """Its kernel holds a function to combine by, before its own."""

    def forward(self, x):
        return torch.cumsum(x, dim=-1)


class Loss(nn.Module):
    """Inductor computes a constant of it."""

    def forward(self, logits, labels):
        return F.cross_entropy(logits.float(), labels)


def scan():
    return Scan(), torch.randn(1024, 4096, device="cuda")


def loss():
    labels = torch.zeros(2048, dtype=torch.int64, device="cuda")
    return Loss(), (torch.randn(2048, 32_000, dtype=torch.bfloat16, device="cuda"), labels)


# --- what can't be told


class Attention(nn.Module):
    """A build without CUDA would take it apart; a GPU runs it in one kernel."""

    def forward(self, x):
        heads = x.view(64, 128, 12, 64).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def attention():
    return Attention(), inputs()


def unaligned():
    """Inductor times whether padding these shapes pays."""
    return GeGLU(dim=767, hidden=3071), inputs(767)


def autotuned():
    return torch.compile(GeGLU(), mode="max-autotune"), inputs()


def on_a_real_device():
    """The step asks the driver for something that no shape tells."""
    module, x = GeGLU(), inputs()
    return lambda: module(x).sum().item()


def dynamic():
    return torch.compile(GeGLU(), dynamic=True), inputs()


@kernelperf.workload(mode="forward_backward")
def trained():
    return GeGLU(), inputs()


# --- what can't be used


def on_the_cpu():
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    return module, torch.randn(8, 8)


def nothing():
    return 3


def failing():
    raise RuntimeError("no such model")


# --- a workload with variants


@kernelperf.workload(dtype=["bf16", "fp16"])
def variants(dtype):
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    compiled = torch.compile(F.gelu)
    x = torch.randn(1024, 1024, dtype=dtypes[dtype], device="cuda")
    return lambda: compiled(x)
