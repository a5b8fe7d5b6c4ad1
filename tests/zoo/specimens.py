"""One step of each kind of work that a trace can hold, and how each kind is profiled.

Every function builds its work on the GPU, warm, and returns a `Specimen`.  Imported by `record_zoo.py` only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function

BF16 = torch.bfloat16
DEVICE = "cuda"


@dataclass
class Specimen:
    """A step, how often it is called, and the arguments of the `torch.profiler.profile` around it."""

    step: Callable[[], Any]
    steps: int = 3
    mark: str | None = "mlp_fwd"  # an annotation around each step; None leaves the steps unmarked
    profile: Mapping[str, Any] = field(default_factory=dict)


def tensor(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


class MLP(nn.Module):
    """A GeGLU block."""

    def __init__(self, dim: int = 256, hidden: int = 1024) -> None:
        super().__init__()
        options = {"bias": False, "device": DEVICE, "dtype": BF16}
        self.gate = nn.Linear(dim, hidden, **options)
        self.up = nn.Linear(dim, hidden, **options)
        self.down = nn.Linear(hidden, dim, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x)
        up = self.up(x)
        return self.down(nn.functional.gelu(gate, approximate="tanh") * up)


def inference(call: Callable[[], Any]) -> Callable[[], Any]:
    def step() -> Any:
        with torch.no_grad():
            return call()

    return step


def eager() -> Specimen:
    mlp, x = MLP(), tensor(512, 256)
    return Specimen(inference(lambda: mlp(x)))


def unmarked() -> Specimen:
    return Specimen(eager().step, mark=None)


def compiled() -> Specimen:
    mlp, x = torch.compile(MLP()), tensor(512, 256)
    return Specimen(inference(lambda: mlp(x)))


def one_row() -> Specimen:
    mlp, x = MLP(2048, 8192), tensor(1, 2048)
    return Specimen(inference(lambda: mlp(x)))


def splitk() -> Specimen:
    a, b = tensor(64, 16384), tensor(16384, 64)
    return Specimen(lambda: a @ b)


def training() -> Specimen:
    """Forward, backward and optimizer, under a schedule: ``ProfilerStep#N`` marks, autograd's own thread."""
    mlp, x = MLP(), tensor(512, 256)
    optimizer = torch.optim.AdamW(mlp.parameters(), fused=False)

    def step() -> None:
        optimizer.zero_grad()
        mlp(x).float().pow(2).mean().backward()
        optimizer.step()

    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3)
    return Specimen(step, steps=5, mark=None, profile={"schedule": schedule})


def cycles() -> Specimen:
    """Three cycles of a schedule without a handler: only the last one's rows are exported."""
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=3)
    return Specimen(eager().step, steps=9, mark=None, profile={"schedule": schedule})


def cuda_graph() -> Specimen:
    mlp, x = MLP(), tensor(512, 256)
    graph = torch.cuda.CUDAGraph()
    inference(lambda: mlp(x))()  # cuBLAS takes its workspace before the capture
    with torch.no_grad(), torch.cuda.graph(graph):
        mlp(x)
    return Specimen(graph.replay)


def reduce_overhead() -> Specimen:
    mlp, x = torch.compile(MLP(), mode="reduce-overhead"), tensor(512, 256)
    return Specimen(inference(lambda: mlp(x)))


def max_autotune() -> Specimen:
    import torch._inductor.config as inductor

    inductor.max_autotune_gemm_backends = "TRITON"
    mlp, x = torch.compile(MLP(), mode="max-autotune-no-cudagraphs"), tensor(512, 256)
    return Specimen(inference(lambda: mlp(x)))


def streams() -> Specimen:
    """Two streams that wait for each other, with the rows of synchronization."""
    a, b = tensor(1024, 1024), tensor(1024, 1024)
    side = torch.cuda.Stream()

    def step() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            a @ b
        b @ a
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    config = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    return Specimen(step, profile={"experimental_config": config})


def threads() -> Specimen:
    """Two host threads launch at once, each on a stream of its own."""
    a = tensor(1024, 1024)
    pair = [torch.cuda.Stream(), torch.cuda.Stream()]

    def launch(stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            (a @ a).relu()

    def step() -> None:
        workers = [threading.Thread(target=launch, args=(stream,)) for stream in pair]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        torch.cuda.synchronize()

    return Specimen(step)


def gpu_only() -> Specimen:
    return Specimen(eager().step, profile={"activities": [ProfilerActivity.CUDA]})


def cpu_only() -> Specimen:
    return Specimen(eager().step, profile={"activities": [ProfilerActivity.CPU]})


def copies() -> Specimen:
    host = torch.randn(4096, pin_memory=True)
    device = torch.empty(4096, device=DEVICE)
    half = torch.empty(4096, device=DEVICE, dtype=BF16)

    def step() -> None:
        device.copy_(host, non_blocking=True)
        device.zero_()
        half.copy_(device)
        torch.cat([device, device])
        device.clone()
        device.cpu()

    return Specimen(step)


def reductions() -> Specimen:
    x, norm = tensor(512, 1024), nn.LayerNorm(1024, device=DEVICE, dtype=BF16)

    def call() -> None:
        x.sum()
        x.softmax(-1)
        norm(x)
        x.argmax(-1)
        x.float().norm()
        x.topk(4)

    return Specimen(inference(call))


def bias_not_folded() -> Specimen:
    """A vector times a matrix plus a vector: ``aten::addmv`` copies its bias, then runs a gemv."""
    matrix, vector, bias = (
        tensor(512, 512, dtype=torch.float32),
        tensor(512, dtype=torch.float32),
        tensor(512, dtype=torch.float32),
    )
    strided = tensor(2048, dtype=BF16)[::2]
    weight, x = tensor(1024, 512), tensor(256, 512)

    def call() -> None:
        torch.addmv(bias, matrix, vector)
        torch.addmm(strided, x, weight.t())

    return Specimen(inference(call))


def attention() -> Specimen:
    q = tensor(2, 4, 256, 64)
    return Specimen(inference(lambda: nn.functional.scaled_dot_product_attention(q, q, q)))


def convolution() -> Specimen:
    conv, x = nn.Conv2d(16, 32, 3, device=DEVICE, dtype=BF16), tensor(4, 16, 32, 32)
    return Specimen(inference(lambda: conv(x)))


def quantized() -> Specimen:
    a = torch.randint(-8, 8, (256, 256), device=DEVICE, dtype=torch.int8)
    f8 = tensor(256, 256).to(torch.float8_e4m3fn)
    one = torch.ones((), device=DEVICE)

    def call() -> None:
        torch._int_mm(a, a)
        torch._scaled_mm(f8, f8.t(), scale_a=one, scale_b=one, out_dtype=BF16)

    return Specimen(inference(call))


def nccl() -> Specimen:
    import torch.distributed as dist

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device(0))
    x, parts = tensor(4096), [torch.empty(4096, device=DEVICE, dtype=BF16)]

    def step() -> None:
        dist.all_reduce(x)
        dist.all_gather(parts, x)
        dist.reduce_scatter_tensor(parts[0], x)

    step()
    return Specimen(step)


def programmatic_launch() -> Specimen:
    """Kernels that may start before the one before them ends: small, legitimate overlaps on one stream."""
    from tests.zoo.triton_kernels import add_one

    x = torch.zeros(1 << 20, device=DEVICE)

    def step() -> None:
        torch.cuda._sleep(1_000_000)  # while it spins, the four are queued
        for _ in range(4):
            add_one(x)

    step()
    return Specimen(step)


def stacks() -> Specimen:
    """Python frames, modules and allocations beside the rest."""
    linear, x = nn.Linear(64, 64, device=DEVICE, dtype=BF16), tensor(64, 64)
    options = {"with_stack": True, "with_modules": True, "profile_memory": True, "with_flops": True}
    return Specimen(inference(lambda: linear(x)), profile=options)


def annotated() -> Specimen:
    """Annotations inside the step, which the GPU's lane repeats."""
    mlp, x = MLP(), tensor(512, 256)

    def call() -> None:
        with record_function("block"), record_function("inner"):
            mlp(x)

    return Specimen(inference(call))


def nothing() -> Specimen:
    mlp, x = MLP(), tensor(0, 256)
    return Specimen(inference(lambda: mlp(x)))


def foreach() -> Specimen:
    tensors = [tensor(1000) for _ in range(8)]
    return Specimen(lambda: torch._foreach_add_(tensors, 1))


SPECIMENS: dict[str, Callable[[], Specimen]] = {
    build.__name__: build
    for build in (
        eager,
        unmarked,
        compiled,
        one_row,
        splitk,
        training,
        cycles,
        cuda_graph,
        reduce_overhead,
        max_autotune,
        streams,
        threads,
        gpu_only,
        cpu_only,
        copies,
        reductions,
        bias_not_folded,
        attention,
        convolution,
        quantized,
        nccl,
        programmatic_launch,
        stacks,
        annotated,
        nothing,
        foreach,
    )
}
