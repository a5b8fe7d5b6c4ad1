"""What tells the card from the code: three steps that no change of torch's, Triton's or a user's code slows.

``copy``: a device-to-device copy of 256 MiB, as fast as the memory.  ``gemm``: a plain bf16 matrix product,
which draws as much power as any step, but is cuBLAS's.  ``fixed``: multiply-adds in registers, machine code
that this package carries for each architecture (``fma/``), so that only the card and its clock move it.

Imported by workers only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kernelperf.errors import NotMeasurable
from kernelperf.worker.device_timing import GpuClock

COPY_BYTES = 2**28
GEMM_SIZE = 4096
FMA_FOLDER = Path(__file__).parent / "fma"
FMA_ENTRY = b"kernelperf_yardstick"
# 64 multiply-adds a turn and thread, 1,024 threads a multiprocessor: 131,072 cycles, 66 µs at 1,980 MHz.
FMA_TURNS = 256
FMA_THREADS = 1024

Step = Callable[[], object]


def build_yardsticks() -> dict[str, GpuClock]:
    """Return a clock for each yardstick that this GPU can run, each called once."""
    steps: dict[str, Step] = {"copy": _copy(), "gemm": _gemm()}
    major, minor = torch.cuda.get_device_capability()
    image = machine_code(major, minor)
    if image is not None:
        steps["fixed"] = fma_step(image, FMA_TURNS)
    for step in steps.values():
        step()
    torch.cuda.synchronize()
    return {name: GpuClock(step, launches_per_step=1) for name, step in steps.items()}


def machine_code(major: int, minor: int) -> bytes | None:
    """Return the newest carried machine code that this compute capability runs, None where none does.

    Code for 8.0 runs on every 8.x, and so on: within a major version, that of the same or a lower minor.
    """
    fitting = [path for path in FMA_FOLDER.glob("sm_*.cubin") if _runs_on(_capability(path), (major, minor))]
    return max(fitting, key=_capability).read_bytes() if fitting else None


def _capability(path: Path) -> tuple[int, int]:
    digits = path.stem.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


def _runs_on(built_for: tuple[int, int], card: tuple[int, int]) -> bool:
    return built_for[0] == card[0] and built_for[1] <= card[1]


def _copy() -> Step:
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _gemm() -> Step:
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (GEMM_SIZE, GEMM_SIZE)
    left, right = (
        torch.randn(shape, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(2)
    )
    product = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=product)


def fma_step(image: bytes, turns: int, blocks: int = 0) -> Step:
    """Return what launches the carried kernel through the driver, on torch's current stream.

    Without a number of ``blocks``, each multiprocessor gets one.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), image), "load")
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, FMA_ENTRY), "find")
    output = torch.zeros(1, device="cuda")
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    blocks = blocks or device.multi_processor_count
    address, count = ctypes.c_uint64(output.data_ptr()), ctypes.c_uint32(turns)
    arguments = (ctypes.c_void_p * 2)(*(ctypes.addressof(each) for each in (address, count)))
    grid_and_block = (blocks, 1, 1, FMA_THREADS, 1, 1)

    def launch() -> object:
        stream = ctypes.c_void_p(_stream())
        _check(driver.cuLaunchKernel(function, *grid_and_block, 0, stream, arguments, None), "launch")
        return output, address, count  # what the arguments point to lives as long as the step

    return launch


def _stream() -> int:
    current: Any = torch.cuda.current_stream()
    return int(current.cuda_stream)


def _check(status: int, what: str) -> None:
    if status != 0:
        raise NotMeasurable(f"the driver can't {what} the yardstick's kernel: CUDA error {status}")
