"""Modules of many kinds, for `codegen_agreement.py`: what is generated for them without a GPU, and with one.

Each factory returns (module, example inputs), as `kernelperf codegen` takes it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

DIM, HIDDEN, ROWS = 768, 3072, 8192
HOW = {"dtype": torch.bfloat16, "device": "cuda"}


def tokens(dim: int = DIM) -> torch.Tensor:
    return torch.randn(64, 128, dim, **HOW)


class GatedMLP(nn.Module):
    """``down(act(gate(x)) * up(x))``."""

    def __init__(self, activation: str = "gelu_tanh", *, bias: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(DIM, HIDDEN, bias=bias, **HOW)
        self.up = nn.Linear(DIM, HIDDEN, bias=bias, **HOW)
        self.down = nn.Linear(HIDDEN, DIM, bias=bias, **HOW)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x)
        if self.activation == "silu":
            gate = F.silu(gate)
        else:
            gate = F.gelu(gate, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        return self.down(gate * self.up(x))


class Broken(GatedMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = F.gelu(self.gate(x), approximate="tanh")
        torch._dynamo.graph_break()
        return self.down(gate * self.up(x))


class PackedMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(DIM, 2 * HIDDEN, bias=False, **HOW)
        self.down = nn.Linear(HIDDEN, DIM, bias=False, **HOW)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(F.gelu(gate, approximate="tanh") * up)


class Block(nn.Module):
    """A layer norm before, a residual after."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(DIM, **HOW), GatedMLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Attention(nn.Module):
    def __init__(self, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM, **HOW), nn.Linear(DIM, DIM, **HOW)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, DIM))


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM, **HOW))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * scale).to(x.dtype) * self.weight


class Rotary(nn.Module):
    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-right, left), dim=-1) * sin


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.float(), dim=-1).to(x.dtype)


class Scan(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=-1)


class Loss(nn.Module):
    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float(), labels)


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(32_000, DIM, **HOW), nn.LayerNorm(DIM, **HOW)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.norm(self.words(words))


class Transposed(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.relu(left + right.t())


def geglu():
    return GatedMLP(), tokens()


def geglu_erf():
    return GatedMLP("gelu"), tokens()


def geglu_biased():
    return GatedMLP(bias=True), tokens()


def geglu_unfused():
    options = {"realize_opcount_threshold": 1, "max_fusion_size": 1}
    return torch.compile(GatedMLP(), options=options), tokens()


def geglu_broken():
    return Broken(), tokens()


def geglu_packed():
    return PackedMLP(), tokens()


def swiglu():
    return GatedMLP("silu"), tokens()


def block():
    return Block(), tokens()


def linear():
    return nn.Linear(DIM, HIDDEN, **HOW), tokens()


def linear_relu():
    return nn.Sequential(nn.Linear(DIM, HIDDEN, **HOW), nn.ReLU()), tokens()


def attention():
    return Attention(), tokens()


def rms_norm():
    return RMSNorm(), tokens()


def layer_norm():
    return nn.LayerNorm(8192, **HOW), torch.randn(ROWS, 8192, **HOW)


def rotary():
    angles = torch.randn(2048, 128, **HOW)
    return Rotary(), (torch.randn(4, 16, 2048, 128, **HOW), angles, angles)


def softmax():
    return Softmax(), torch.randn(ROWS, 4096, **HOW)


def scan():
    return Scan(), torch.randn(1024, 4096, dtype=torch.float32, device="cuda")


def cross_entropy():
    return Loss(), (torch.randn(2048, 32_000, **HOW), torch.zeros(2048, dtype=torch.int64, device="cuda"))


def embedding():
    return Lookup(), torch.zeros(64, 128, dtype=torch.int64, device="cuda")


def transposed():
    return Transposed(), (torch.randn(4096, 4096, **HOW), torch.randn(4096, 4096, **HOW))


def convolution():
    layers = nn.Sequential(
        nn.Conv2d(64, 128, 3, padding=1, **HOW), nn.BatchNorm2d(128, **HOW).eval(), nn.ReLU()
    )
    return layers, torch.randn(32, 64, 56, 56, **HOW)
