"""The worker that times the yardsticks between the others' turns; without it, a run explains less."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kernelperf.compare.estimate import run_value
from kernelperf.conductor.plans import Progress, Settings
from kernelperf.conductor.worker_process import WorkerProcess, gather
from kernelperf.environment import GpuWatch, Sample
from kernelperf.protocol import (
    BuildYardsticks,
    BurstYardsticks,
    Command,
    Failed,
    Reply,
    Stop,
    YardstickSamples,
    YardsticksBuilt,
)
from kernelperf.recording.records import Yardsticks

TIME_LIMIT_S = 120.0
BUILD = BuildYardsticks()


class YardstickWorker:
    """One worker without a workload; if it fails, the run goes on without yardsticks and says so."""

    def __init__(self, scratch: Path, settings: Settings, environ: Mapping[str, str], progress: Progress):
        self._progress = progress
        self._folder = Path(tempfile.mkdtemp(prefix="yardsticks-", dir=scratch))
        self.process = WorkerProcess(
            "yardsticks",
            settings.worker_command,
            log=self._folder / "worker.log",
            cwd=settings.root,
            environ=environ,
            time_limit_s=TIME_LIMIT_S,
        )
        self.alive = True
        self._rounds_ns: dict[str, list[float]] = {}
        self._samples: list[Sample] = []

    def built(self, reply: Reply) -> None:
        """Take the reply to the command that builds them."""
        if isinstance(reply, Failed):
            self._give_up(reply)
        elif not isinstance(reply, YardsticksBuilt):
            raise TypeError(f"the yardsticks' worker answered {reply!r}")

    def burst(self, steps: int, watch: GpuWatch) -> None:
        """Give them their turn in a round."""
        if not self.alive:
            return
        command: Command = BurstYardsticks(steps=steps)
        ((_, reply),) = gather({self.process: command}, lambda: self._samples.append(watch.sample()))
        if isinstance(reply, Failed):
            self._give_up(reply)
        elif isinstance(reply, YardstickSamples):
            for name, durations_ns in reply.durations_ns.items():
                self._rounds_ns.setdefault(name, []).append(statistics.median(durations_ns))

    def result(self, watch: GpuWatch, own_processes: int) -> Yardsticks | None:
        """Return what they read in this run, None where they failed or were never timed; ends the worker."""
        read = None
        if self.alive and self._rounds_ns:
            times = tuple((name, run_value(rounds)) for name, rounds in sorted(self._rounds_ns.items()))
            read = Yardsticks(times, watch.state(self._samples, own_processes))
        if self.alive:
            self.process.stop(Stop())
        self.alive = False
        return read

    def kill(self) -> None:
        """End the worker, however it is."""
        self.process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _give_up(self, reply: Failed) -> None:
        self._progress(f"going on without yardsticks: {reply.kind}: {reply.cause}")
        self.process.kill()
        self.alive = False
