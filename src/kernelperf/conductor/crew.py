"""Workers that live side by side and take turns: from built to observed, and what to do when one fails."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from kernelperf import environment
from kernelperf.conductor.plans import FailedRun, Plan, Progress, Recorded, Settings, Settle
from kernelperf.conductor.structure import Structure, read_structure
from kernelperf.conductor.worker_process import WorkerProcess, gather
from kernelperf.conductor.yardsticks import BUILD as BUILD_YARDSTICKS
from kernelperf.conductor.yardsticks import YardstickWorker
from kernelperf.environment import GpuState, GpuWatch, Sample
from kernelperf.errors import NotMeasurable, UnusableInput
from kernelperf.protocol import (
    Build,
    Built,
    Burst,
    Command,
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
)
from kernelperf.recording.records import Run, Yardsticks
from kernelperf.workload import Variant

# A trace that lost something is taken again this often before the workload fails.
TRACE_RETAKES = 3


@dataclass(slots=True)
class Member:
    """A worker and what it has told so far."""

    plan: Plan
    folder: Path
    process: WorkerProcess
    built: Built | None = None
    first_call_s: float = 0.0
    structure: Structure | None = None
    gpu_rounds_ns: list[float] = field(default_factory=list)
    wall_rounds_ns: list[float] = field(default_factory=list)
    held: bool = True
    repeats: int = 0
    samples: list[Sample] = field(default_factory=list)
    state: GpuState = field(default_factory=GpuState)
    yardsticks: Yardsticks | None = None

    @property
    def id(self) -> str:
        """Its variant's."""
        return self.plan.variant.id

    @property
    def trace(self) -> Path:
        """Where its trace is written."""
        return self.folder / "trace.json.gz"


class Crew:
    """Workers that live side by side and take turns; leaving the context ends them all."""

    def __init__(
        self,
        plans: Sequence[Plan],
        scratch: Path,
        settings: Settings,
        progress: Progress,
        settle: Settle,
    ) -> None:
        self.crowded: list[Plan] = []
        self._plans = plans
        self._scratch = scratch
        self._settings = settings
        self._progress = progress
        self._settle = settle
        self._members: list[Member] = []
        self._everyone: list[Member] = []
        self.yardsticks: YardstickWorker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.yardsticks is not None:
            self.yardsticks.kill()
        for member in self._everyone:
            member.process.kill()
            shutil.rmtree(member.folder / "cache", ignore_errors=True)

    @property
    def members(self) -> tuple[Member, ...]:
        """Those that have not failed and not ended."""
        return tuple(self._members)

    def start(self) -> None:
        """Start the workers' processes."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        if self._settings.yardsticks and any(plan.timing for plan in self._plans):
            environ = _worker_environ(self._scratch / "yardsticks")  # they compile nothing
            self.yardsticks = YardstickWorker(self._scratch, self._settings, environ, self._progress)
        for plan in self._plans:
            member = _start(plan, self._scratch, self._settings)
            self._members.append(member)
            self._everyone.append(member)

    def build(self) -> None:
        """Let the workers import and build side by side."""
        self._progress(f"building {len(self._plans)} workloads side by side")
        by_process = {member.process: member for member in self._members}
        builds: dict[WorkerProcess, Command] = {
            process: _build(member.plan.variant, self._settings) for process, member in by_process.items()
        }
        if self.yardsticks is not None:
            builds[self.yardsticks.process] = BUILD_YARDSTICKS
        for process, reply in gather(builds):
            if self.yardsticks is not None and process is self.yardsticks.process:
                self.yardsticks.built(reply)
                continue
            member = by_process[process]
            if isinstance(reply, Built):
                member.built = reply
            elif isinstance(reply, Failed):
                self.fail(member, reply)

    def first_calls(self) -> None:
        """Let one worker at a time compile and autotune, so that nobody's autotuning is disturbed."""
        built = list(self._members)
        for number, member in enumerate(built, 1):
            self._progress(f"first call of {member.id} ({number} of {len(built)})")
            reply = self.ask(member, FirstCall())
            if isinstance(reply, FirstCallDone) and member.built is not None:
                member.first_call_s = reply.seconds
                member.built = msgspec.structs.replace(member.built, stack=reply.stack, sources=reply.sources)

    def profile(self) -> None:
        """Take each worker's trace in turn; a trace that lost something is taken again."""
        self._progress(f"profiling {len(self._members)} workloads in turn")
        for member in list(self._members):
            self.take_trace(member)

    def time_gpu(self) -> None:
        """Round-robin bursts on the GPU, its clock read during each; the rest of its state at the end."""
        timed = self._timed()
        if not timed:
            return
        watch = GpuWatch(next((member.built.device.uuid for member in timed if member.built), ""))
        try:
            for number in range(1, self._settings.rounds + 1):
                self._progress(f"timing: round {number} of {self._settings.rounds}")
                if self.yardsticks is not None:
                    self.yardsticks.burst(self._settings.burst_steps, watch)
                for member in self._timed():
                    self._burst(member, watch, last=number == self._settings.rounds)
            self._read_yardsticks(watch)
        finally:
            watch.close()

    def time_wall(self) -> None:
        """Round-robin bursts by the host's clock."""
        for _ in range(self._settings.wall_rounds):
            for member in self._timed():
                reply = self.ask(member, WallBurst(steps=self._settings.burst_steps))
                if isinstance(reply, Samples):
                    member.wall_rounds_ns.append(statistics.median(reply.durations_ns))

    def observe(self) -> None:
        """Ask for what could have disturbed the timing, and let each worker go."""
        self._progress(f"observing {len(self._members)} workloads in turn")
        for member in list(self._members):
            reply = self.ask(member, Observe())
            if isinstance(reply, Observations):
                member.process.stop(Stop())
                self._members.remove(member)
                self._settle(_recorded(member, reply, self._settings))

    def _timed(self) -> list[Member]:
        return [member for member in self._members if member.plan.timing]

    def _burst(self, member: Member, watch: GpuWatch, *, last: bool) -> None:
        command = Burst(steps=self._settings.burst_steps)
        reply = self.ask(member, command, lambda: member.samples.append(watch.sample()))
        if isinstance(reply, Samples):
            member.gpu_rounds_ns.append(statistics.median(reply.durations_ns))
            member.held = member.held and reply.held
            member.repeats = reply.repeats
            if last:
                member.state = watch.state(member.samples, self._own_processes)

    def _read_yardsticks(self, watch: GpuWatch) -> None:
        if self.yardsticks is None:
            return
        read = self.yardsticks.result(watch, self._own_processes)
        for member in self._timed():
            member.yardsticks = read

    @property
    def _own_processes(self) -> int:
        return len(self._members) + (self.yardsticks is not None and self.yardsticks.alive)

    def take_trace(self, member: Member) -> None:
        """Take a worker's trace; one that lost something is taken again."""
        steps = self._settings.profile_steps
        trouble = ""
        for _ in range(1 + TRACE_RETAKES):
            reply = self.ask(member, Profile(path=str(member.trace), steps=steps))
            if not isinstance(reply, Profiled):
                return
            try:
                member.structure = read_structure(member.trace, steps=steps, rules=self._settings.rules)
            except (NotMeasurable, UnusableInput) as error:
                trouble = str(error)
                continue
            return
        cause = f"its trace was not whole in {1 + TRACE_RETAKES} takes: {trouble}"
        self.fail(member, Failed(kind="profiler", cause=cause, detail=f"the last one: {member.trace}"))

    def ask(
        self, member: Member, command: Command, meanwhile: Callable[[], object] = lambda: None
    ) -> Reply | None:
        """Give one worker its turn; None if it failed."""
        ((_, reply),) = gather({member.process: command}, meanwhile)
        if isinstance(reply, Failed):
            self.fail(member, reply)
            return None
        return reply

    def fail(self, member: Member, reply: Failed) -> None:
        """Take a worker out of the crew; the others go on."""
        beside_others = len(self._members) > 1
        member.process.kill()
        self._members.remove(member)
        if beside_others and _maybe_crowded(reply):
            self.crowded.append(member.plan)
            return
        self._progress(f"{member.id}: {reply.kind}: {reply.cause}")
        self._settle(
            FailedRun(member.plan.variant, reply.kind, reply.cause, reply.detail, member.process.log)
        )


def _maybe_crowded(reply: Failed) -> bool:
    """Whether the workers beside it may have caused the fault: alone, the workload may do well."""
    out_of_host_memory = reply.kind == "crash" and signal.SIGKILL.name in reply.cause
    return reply.kind in {"busy", "oom"} or out_of_host_memory


def _start(plan: Plan, scratch: Path, settings: Settings) -> Member:
    folder = Path(tempfile.mkdtemp(prefix=f"{plan.variant.id}-", dir=scratch))
    process = WorkerProcess(
        plan.variant.id,
        settings.worker_command,
        log=folder / "worker.log",
        cwd=settings.root,
        environ=_worker_environ(folder / "cache"),
        time_limit_s=plan.variant.declaration.time_limit_s,
    )
    return Member(plan, folder, process)


def _worker_environ(cache: Path) -> dict[str, str]:
    """Fresh compile caches, the GPUs in NVML's order, and a traceback in the log if it crashes."""
    order, by_bus = environment.DEVICE_ORDER
    return {
        order: by_bus,
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _build(variant: Variant, settings: Settings) -> Build:
    declaration = variant.declaration
    return Build(
        file=str(declaration.file),
        module=declaration.module,
        workload=declaration.name,
        params=variant.params,
        mode=declaration.mode,
        root=str(settings.root),
        sys_path=[str(Path(entry).resolve()) if entry else str(Path.cwd()) for entry in sys.path],
    )


def _recorded(member: Member, observations: Observations, settings: Settings) -> Recorded:
    if member.built is None or member.structure is None:
        raise RuntimeError(f"worker {member.id} was observed before it was built and profiled")
    device = member.built.device
    seen = environment.assemble(device, environment.find_gpu(device.uuid), member.built.stack, settings.lane)
    anonymous = msgspec.structs.replace(member.built, device=msgspec.structs.replace(device, uuid=""))
    run = Run(
        gpu_time_ns=tuple(member.gpu_rounds_ns),
        wall_time_ns=tuple(member.wall_rounds_ns),
        queue_held=member.held,
        repeats=member.repeats,
        first_call_s=member.first_call_s,
        kernels=member.structure.kernels,
        counts=member.structure.counts,
        observations=observations,
        state=member.state,
        card=seen.card,
        yardsticks=member.yardsticks,
    )
    recorded_at = datetime.now(UTC).isoformat(timespec="seconds")
    return Recorded(member.plan.variant, run, seen, member.trace, anonymous, recorded_at)
