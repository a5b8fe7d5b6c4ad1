"""A Triton kernel that lets the next one start early (programmatic dependent launch)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def add_one_kernel(x_ptr, n, BLOCK: tl.constexpr):
    """Add one to ``n`` numbers, waiting for the kernel before only once everything else is done."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(x_ptr + offsets, x + 1, mask=mask)


def add_one(x: torch.Tensor) -> None:
    """Launch it over a whole tensor."""
    add_one_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, x.numel(), BLOCK, launch_pdl=True)
