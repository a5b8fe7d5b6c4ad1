"""One workload in one process: ``python -m kernelperf.worker READ_FD WRITE_FD``.

Commands come in and replies go out as JSON lines on the two descriptors; whatever is printed goes to the
log.  This module and those that only it imports are the ones that touch torch.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import os
import platform
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pytest

from kernelperf.errors import UnusableInput
from kernelperf.protocol import (
    Build,
    BuildYardsticks,
    Built,
    Burst,
    BurstYardsticks,
    Command,
    DeviceFacts,
    Failed,
    FirstCall,
    FirstCallDone,
    Observations,
    Observe,
    Profile,
    Profiled,
    Reply,
    Samples,
    Stop,
    WallBurst,
    YardstickSamples,
    YardsticksBuilt,
)
from kernelperf.worker.building import SEED, build_subject, import_declaring_file, project_sources
from kernelperf.workload import Subject, Unavailable

# Calls between the first one and the first measurement: a CUDA graph is captured on the second.
WARM_UP_CALLS = 4
# Distributions whose versions explain a change, where the workload imported their module.
_STACK_MODULES = {"kernels": "kernels", "liger_kernel": "liger-kernel", "transformers": "transformers"}
_CUBLAS = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
_STARTED_S = time.monotonic()

# What CUDA says, by kind; the first that matches counts.
_CUDA_FAULTS = (
    ("busy", ("busy or unavailable", "cudaErrorDevicesUnavailable", "exclusive-process")),
    ("oom", ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")),
    ("cuda", ("CUDA error", "Triton Error [CUDA]", "CUBLAS_STATUS_", "CUDNN_STATUS_", "CUDA driver error")),
)


class Worker:
    """Builds one workload and answers for it."""

    def __init__(self) -> None:
        self._root = Path()
        self._subject: Subject | None = None
        self._counter: Any = None
        self._clock: Any = None
        self._after_first_call: Any = None
        self._launches_per_step = 1
        self._yardsticks: dict[str, Any] = {}
        self._stage = "import"

    def answer(self, command: Command) -> Reply:
        """Carry out a command; whatever it raises becomes a `Failed`."""
        name = type(command).__name__
        log(f"{name} begins")
        try:
            return self._carry_out(command)
        except (Exception, pytest.skip.Exception) as error:
            return describe_failure(error, self._stage)
        finally:
            log(f"{name} ends")

    def _carry_out(self, command: Command) -> Reply:
        match command:
            case Build():
                return self._on_build(command)
            case FirstCall():
                return self._on_first_call()
            case Profile():
                return self._on_profile(command)
            case Burst():
                return self._on_burst(command)
            case WallBurst():
                return self._on_wall_burst(command)
            case Observe():
                return self._on_observe()
            case BuildYardsticks():
                return self._on_build_yardsticks()
            case BurstYardsticks():
                return self._on_burst_yardsticks(command)
        raise UnusableInput(f"worker got {command!r}")

    def _on_build(self, build: Build) -> Built:
        self._root = Path(build.root)
        sys.path[:] = [*build.sys_path, *(entry for entry in sys.path if entry not in build.sys_path)]
        import torch

        from kernelperf.worker.observing import TritonCounter

        self._counter = TritonCounter()
        torch.manual_seed(SEED)
        log("imported torch")
        import_declaring_file(build)
        log(f"imported {build.module}")
        self._stage = "factory"
        self._subject = build_subject(build)
        log("called the factory")
        self._stage = "cuda"
        device = device_facts()
        torch.set_grad_enabled(build.mode != "forward")
        torch.cuda.synchronize()
        preload_inductor()
        log("imported what the profiler needs")
        return Built(
            device=device,
            stack=stack(),
            about={str(key): str(value) for key, value in self._subject.about.items()},
            sources=self._sources(),
        )

    def _on_first_call(self) -> FirstCallDone:
        import torch

        self._stage = "step"
        start_s = time.perf_counter()
        self._step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start_s
        self._after_first_call = self._counter.compilations()
        for _ in range(WARM_UP_CALLS):
            self._step()
        torch.cuda.synchronize()
        # What stands now stays: later collections needn't look through torch's million objects again.
        gc.collect()
        gc.freeze()
        return FirstCallDone(seconds=seconds, stack=stack(), sources=self._sources())

    def _on_profile(self, command: Profile) -> Profiled:
        from kernelperf.worker.profiling import record_trace

        self._stage = "profiler"
        self._launches_per_step = record_trace(self._step, command.steps, Path(command.path))
        return Profiled()

    def _on_burst(self, command: Burst) -> Samples:
        from kernelperf.worker.device_timing import GpuClock

        self._stage = "step"
        if self._clock is None:
            self._clock = GpuClock(self._step, self._launches_per_step)
        samples: Samples = self._clock.burst(command.steps)
        return samples

    def _on_wall_burst(self, command: WallBurst) -> Samples:
        from kernelperf.worker.device_timing import wall_burst

        self._stage = "step"
        return wall_burst(self._step, command.steps)

    def _on_observe(self) -> Observations:
        from kernelperf.worker.observing import observe

        self._stage = "step"
        if self._subject is None:
            raise UnusableInput("worker was told to observe before it was told to build")
        return observe(self._subject, self._counter, self._after_first_call, compile_caches()[0])

    def _on_build_yardsticks(self) -> YardsticksBuilt:
        self._stage = "cuda"
        device = device_facts()
        from kernelperf.worker.yardsticks import build_yardsticks

        self._yardsticks = build_yardsticks()
        return YardsticksBuilt(uuid=device.uuid)

    def _on_burst_yardsticks(self, command: BurstYardsticks) -> YardstickSamples:
        bursts = {name: clock.burst(command.steps) for name, clock in self._yardsticks.items()}
        return YardstickSamples({name: list(burst.durations_ns) for name, burst in bursts.items()})

    def _sources(self) -> dict[str, str]:
        return project_sources(self._root, compile_caches())

    @property
    def _step(self) -> Callable[[], Any]:
        if self._subject is None:
            raise UnusableInput("worker was told to call the step before it was told to build")
        return self._subject.step


def describe_failure(error: BaseException, stage: str) -> Failed:
    """Return what the conductor is told: the kind, by what was raised and at what stage, and the cause."""
    detail = "".join(traceback.format_exception(error))
    first_line = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, Unavailable | pytest.skip.Exception):
        return Failed(kind="unavailable", cause=first_line or "unavailable", detail=detail)
    kind = cuda_fault(f"{type(error).__name__}: {error}") or stage
    cause = first_line if isinstance(error, UnusableInput) else f"{type(error).__name__}: {first_line}"
    return Failed(kind=kind, cause=cause, detail=detail)


def cuda_fault(said: str) -> str | None:
    """Return what kind of CUDA fault an exception tells of, or None if of none."""
    for kind, phrases in _CUDA_FAULTS:
        if any(phrase in said for phrase in phrases):
            return kind
    return None


def device_facts() -> DeviceFacts:
    """Return the current GPU as torch sees it."""
    import torch

    if not torch.cuda.is_available():
        raise UnusableInput(
            f"torch {torch.__version__} sees no CUDA GPU in the worker; check the driver, "
            "CUDA_VISIBLE_DEVICES, and that this torch is built for CUDA"
        )
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return DeviceFacts(
        name=properties.name,
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        compute_capability=f"{properties.major}.{properties.minor}",
        uuid=str(getattr(properties, "uuid", "")),
    )


def preload_inductor() -> None:
    """Import what the profiler's first session would import: 5 s on 16 cores, where the others would wait."""
    importlib.import_module("torch._inductor.config")


def stack() -> dict[str, str]:
    """Return the versions of what the workload runs on."""
    import torch

    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]  # torch's
        "triton": _version("triton"),
        "cublas": next(filter(None, map(_version, _CUBLAS)), ""),
    }
    imported = {name: _version(name) for module, name in _STACK_MODULES.items() if module in sys.modules}
    return {name: version for name, version in {**versions, **imported}.items() if version}


def compile_caches() -> tuple[Path, ...]:
    """Return the folders that the conductor gave to Inductor and to Triton."""
    return tuple(Path(os.environ[name]) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"))


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def log(event: str) -> None:
    """Note in the log what is going on: a hang or a crash leaves nothing else."""
    print(f"[kernelperf {time.monotonic() - _STARTED_S:8.3f} s] {event}", file=sys.stderr, flush=True)


def main(arguments: list[str], worker: Worker | None = None, understood: Any = Command) -> None:
    """Answer commands until told to stop, or until the conductor is gone.

    A study may bring a worker of its own, with the union of the commands that it understands.
    """
    commands_fd, replies_fd = map(int, arguments)
    for descriptor in (commands_fd, replies_fd):
        os.set_inheritable(descriptor, False)
    commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(commands_fd, commands, understood), daemon=True).start()
    worker = worker or Worker()
    while not isinstance(command := commands.get(), Stop):
        _send(replies_fd, worker.answer(command))
    # Nothing is left to clean up, and interpreter shutdown can hang in a library's threads.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _send(descriptor: int, reply: Reply) -> None:
    line = msgspec.json.encode(reply) + b"\n"
    while line:
        line = line[os.write(descriptor, line) :]


def _listen(descriptor: int, commands: queue.SimpleQueue[Command], understood: Any) -> None:
    """Pass commands on; when the pipe closes, the conductor is gone, and so must we be, whatever we do."""
    decoder: msgspec.json.Decoder[Command] = msgspec.json.Decoder(understood)
    lines: BinaryIO
    with open(descriptor, "rb") as lines:
        for line in lines:
            commands.put(decoder.decode(line))
    if os.getpid() == os.getpgrp():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
