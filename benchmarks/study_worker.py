"""A worker that can do more than the product's: turn to another step, and time it as other tools would.

Started by `record_sets.py` in the place of ``python -m kernelperf.worker``.  It imports torch before it is
told to build, so that a set can start while the one before is still being timed; CUDA it leaves alone.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from kernelperf import worker
from kernelperf.protocol import Command, Profiled, Reply, Samples

Step = Callable[[], Any]


# A pair of the launch probe spans some 50 launches.
PROBE_NS, PROBE_PAIRS = 100_000, 3
SIDE_STREAMS = 7


class TurnTo(msgspec.Struct, tag=True, frozen=True):
    """From now on the step is this probe of the subject."""

    name: str


class Peer(msgspec.Struct, tag=True, frozen=True):
    """Time the step as this tool's users would, once."""

    name: str


class OnStream(msgspec.Struct, tag=True, frozen=True):
    """Launch the bursts that follow on this stream: 0 is torch's own.

    The memory of the stream before is given back, and the step is called twice to allocate its own.
    """

    number: int


class ReadProbe(msgspec.Struct, tag=True, frozen=True):
    """Tell what a launch took beside each burst since the last time."""


class StudyWorker(worker.Worker):
    """Answers the commands above too, and probes what a launch takes beside every burst."""

    def __init__(self) -> None:
        super().__init__()
        self._turned: dict[str, tuple[Any, int]] = {}
        self._name = ""
        self._made: list[Any] = []
        self._stream = 0
        self._probes: dict[int, Any] = {}
        self._probed_ns: list[float] = []

    def _carry_out(self, command: Any) -> Reply:
        if isinstance(command, TurnTo):
            self._turn_to(command.name)
            return Profiled()
        if isinstance(command, Peer):
            ns = PEERS[command.name](self._step)
            return Samples(durations_ns=[ns], held=True, repeats=1)
        if isinstance(command, ReadProbe):
            probed, self._probed_ns = self._probed_ns, []
            return Samples(durations_ns=probed, held=True, repeats=1)
        if isinstance(command, OnStream):
            self._move_to(command.number)
            return Profiled()
        return super()._carry_out(command)

    def _on_burst(self, command: Any) -> Samples:
        """Time a chain of launches of next to nothing too: how far apart kernels start on this stream."""
        import torch

        with torch.cuda.stream(self._streams()[self._stream]):
            samples: Samples = super()._on_burst(command)
            probe = self._probes.get(self._stream) or self._new_probe()
            self._probes[self._stream] = probe
            self._probed_ns.append(statistics.median(probe.burst(PROBE_PAIRS).durations_ns))
        return samples

    def _streams(self) -> list[Any]:
        import torch

        if not self._made:
            self._made = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(SIDE_STREAMS))]
        return self._made

    def _move_to(self, number: int) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._stream = number
        with torch.cuda.stream(self._streams()[number]):
            for _ in range(2):
                self._step()
        torch.cuda.synchronize()

    def _new_probe(self) -> Any:
        import torch

        from kernelperf.worker import yardsticks
        from kernelperf.worker.device_timing import GpuClock

        image = yardsticks.machine_code(*torch.cuda.get_device_capability())
        if image is None:
            raise RuntimeError("no machine code is carried for this GPU")
        return GpuClock(yardsticks.fma_step(image, turns=1, blocks=1), 1, pair_target_ns=PROBE_NS)

    def _turn_to(self, name: str) -> None:
        """Each step keeps its clock, with what that learnt about it."""
        self._turned[self._name] = (self._clock, self._launches_per_step)
        self._clock, self._launches_per_step = self._turned.get(name, (None, 1))
        self._name = name
        self._subject = replace(self._subject, step=self._subject.probes[name])


def do_bench(step: Step) -> float:
    from triton.testing import do_bench

    return do_bench(step, return_mode="median") * 1e6


def do_bench_cudagraph(step: Step) -> float:
    import torch
    from triton.testing import do_bench_cudagraph

    with torch.cuda.stream(torch.cuda.Stream()):
        return do_bench_cudagraph(step, return_mode="median") * 1e6


def torch_timer(step: Step) -> float:
    from torch.utils.benchmark import Timer

    return Timer("step()", globals={"step": step}).blocked_autorange().median * 1e9


def pytest_benchmark(step: Step) -> float:
    """Run the real plugin in a session of its own, on a step that synchronizes, and take its median."""
    import pytest
    import torch

    def synchronized() -> None:
        step()
        torch.cuda.synchronize()

    test = "import sys\n\ndef test_step(benchmark):\n    benchmark(sys.modules['__main__'].peer_step)\n"
    sys.modules["__main__"].peer_step = synchronized
    with tempfile.TemporaryDirectory() as folder:
        file, report = Path(folder) / "test_step.py", Path(folder) / "report.json"
        file.write_text(test)
        quiet = [
            "-q",
            "-p",
            "no:kernelperf",
            "-p",
            "no:cacheprovider",
            f"--rootdir={folder}",
            "-c",
            "/dev/null",
        ]
        status = pytest.main([*quiet, f"--benchmark-json={report}", str(file)])
        if status != 0:
            raise RuntimeError(f"pytest-benchmark ended with {status}")
        return float(json.loads(report.read_text())["benchmarks"][0]["stats"]["median"]) * 1e9


def cuda_bench(step: Step) -> float:
    """NVBench with its default settings: the mean GPU time of what it calls cold measurements."""
    import cuda.bench as nvbench
    import torch

    def measured(state: Any) -> None:
        stream = torch.cuda.ExternalStream(state.get_stream().addressof())

        def launch(_: Any) -> None:
            with torch.cuda.stream(stream):
                step()

        state.exec(launch)

    nvbench.register(measured)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        nvbench.run_all_benchmarks(["study", "--json", str(report), "--quiet"])
        summaries = json.loads(report.read_text())["benchmarks"][0]["states"][0]["summaries"]
    (cold,) = [each for each in summaries if each["tag"] == "nv/cold/time/gpu/mean"]
    (value,) = [each["value"] for each in cold["data"] if each["name"] == "value"]
    return float(value) * 1e9


PEERS: dict[str, Callable[[Step], float]] = {
    "do_bench": do_bench,
    "do_bench_cudagraph": do_bench_cudagraph,
    "torch.utils.benchmark": torch_timer,
    "pytest-benchmark": pytest_benchmark,
    "cuda-bench": cuda_bench,
}

if __name__ == "__main__":
    import torch  # noqa: F401

    worker.preload_inductor()
    worker.main(sys.argv[1:], StudyWorker(), Command | TurnTo | Peer | OnStream | ReadProbe)
