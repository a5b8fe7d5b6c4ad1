"""Real slowdowns, each a workload of its own beside the unchanged one that it makes slower.

`PLANTED` names for each the workload that it is held against, and whom a verdict has to name.
"""

from __future__ import annotations

from dataclasses import dataclass

import kernelperf

DTYPE = "bf16"
LINEAR = (8192, 768, 3072)
# The dial's kernel does this many turns of multiply-adds at level 0, 5 µs, so that 0.5 % of a 60 µs step is a
# change of its duration, not another kernel of at least 1.5 µs.
DIAL_TURNS = 40
TURN_NS = 130  # 64 multiply-adds of 1,024 threads a multiprocessor
DIAL_PERCENT = (0, 0.5, 1, 2, 3, 5)
# What one step takes on an H200, to turn percent into turns; what a level really costs is measured.
DIAL_STEP_NS = {"linear_eager": 65_000, "geglu_eager": 246_000, "geglu_liger": 221_000}


@dataclass(frozen=True, slots=True)
class Planted:
    """A slowdown: the workload that has it, the one that has not, and whom a failure has to name."""

    workload: str
    against: str
    culprit: str  # a part of the kernel's name, or of the count's for what is no kernel


PLANTED = (
    Planted("planted_strided_bias", "linear_eager-8192x768x3072-bf16", "elementwise_kernel"),
    Planted("planted_unfused", "geglu_compiled-bf16", "triton_poi_fused"),
    Planted("planted_clone", "geglu_eager-bf16", "memcpys"),
    Planted("planted_xblock-512", "planted_xblock-1024", "triton_poi_fused"),
    Planted("planted_liger_block", "geglu_liger-bf16", "_geglu_tanh_forward_kernel"),
)


@kernelperf.workload()
def planted_strided_bias():
    """The bias is every second element of a longer tensor: addmm copies it first."""
    import torch
    import torch.nn.functional as F

    from fixtures import mlp

    inputs = mlp.linear_inputs(LINEAR, DTYPE)
    bias = torch.stack([inputs.bias, inputs.bias], dim=1)[:, 0]
    return mlp.linear_subject(inputs, lambda: F.linear(inputs.x, inputs.weight, bias))


@kernelperf.workload()
def planted_unfused():
    """Inductor is configured to fuse nothing: gelu and mul are two kernels."""
    import torch

    from fixtures import mlp

    options = {"realize_opcount_threshold": 1, "max_fusion_size": 1}
    return mlp.geglu_subject(mlp.GeGLU, DTYPE, finish=lambda module: torch.compile(module, options=options))


@kernelperf.workload()
def planted_clone():
    """The eager MLP clones its intermediate: a copy on the GPU, which is no kernel."""
    import torch.nn.functional as F

    from fixtures import mlp

    def forward(self, x):
        g = self.gate_proj(x)
        u = self.up_proj(x)
        h = F.gelu(g, approximate="tanh")
        m = (h * u).clone()
        return self.down_proj(m)

    return mlp.geglu_subject(type("Cloning", (mlp.GeGLU,), {"forward": forward}), DTYPE)


@kernelperf.workload(xblock=[1024, 512])
def planted_xblock(xblock):
    """Inductor's autotuning is made to choose the given launch config, whatever it would measure."""
    import torch
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    from fixtures import mlp

    def bench(_, launcher, *__, **___):
        return 1.0 if launcher.config.kwargs.get("XBLOCK") == xblock else 2.0

    CachingAutotuner.bench = bench
    return mlp.geglu_subject(mlp.GeGLU, DTYPE, finish=torch.compile)


@kernelperf.workload()
def planted_liger_block():
    """Liger's kernel gets the block and the warps that its table has for rows twice as long.

    A doubled block alone changes nothing: the row's length is a constant to the compiler, which leaves out
    what lies beyond it.
    """
    from liger_kernel.ops import geglu

    from fixtures import liger, mlp

    fitting = geglu.calculate_settings

    geglu.calculate_settings = lambda n_cols: fitting(2 * n_cols)
    kernel = liger.load()
    return mlp.geglu_subject(kernel.geglu, DTYPE, about=kernel.about)


@kernelperf.workload(variant=list(DIAL_STEP_NS))
def dial(variant):
    """A step with a kernel of adjustable work behind it; the levels are probes, ``+0%`` is the step."""
    import torch

    from fixtures import liger, mlp
    from kernelperf.worker import yardsticks

    if variant == "linear_eager":
        inputs = mlp.linear_inputs(LINEAR, DTYPE)
        layer = mlp.linear_layer(inputs)
        subject = mlp.linear_subject(inputs, lambda: layer(inputs.x))
    else:
        build = liger.load().geglu if variant == "geglu_liger" else mlp.GeGLU
        subject = mlp.geglu_subject(build, DTYPE)
    image = yardsticks.machine_code(*torch.cuda.get_device_capability())

    def level(percent):
        turns = DIAL_TURNS + round(DIAL_STEP_NS[variant] * percent / 100 / TURN_NS)
        work = yardsticks.fma_step(image, turns)

        def step():
            output = subject.step()
            work()
            return output

        return step

    levels = {f"+{percent:g}%": level(percent) for percent in DIAL_PERCENT}
    return kernelperf.Subject(levels["+0%"], probes=levels)
