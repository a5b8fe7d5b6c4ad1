"""What is recorded of a workload: its kernels, counts, runs, and the whole of its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernelperf.environment import Environment, GpuState
from kernelperf.protocol import Observations
from kernelperf.trace.roles import portable_name


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One kernel of the step by position: what was launched, how, and its median duration in this run."""

    name: str
    role: str
    op: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int
    config: str  # Triton config such as "XBLOCK=1024 warps=4 stages=1", else ""
    duration_ns: float

    @property
    def launch_config(self) -> tuple[object, ...]:
        """All of it but the duration: runs whose launch configs differ are never pooled.

        An index or a hash that a compiler put at the end of a name is no part of it.
        """
        return (portable_name(self.name), self.grid, self.block, self.registers, self.config)


@dataclass(frozen=True, slots=True)
class Counts:
    """What one step does, counted from the trace."""

    kernels: int
    memsets: int
    memcpys: int
    host_ops: int
    runtime_calls: int


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """Steps that no change of code slows, timed between a run's rounds: what the card did meanwhile.

    ``times_ns`` holds the run value of each by name: ``copy``, ``gemm``, ``fixed``.  ``state`` is the GPU's
    during their bursts, so that two of them differ by the card alone.
    """

    times_ns: tuple[tuple[str, float], ...]
    state: GpuState


@dataclass(frozen=True, slots=True)
class Run:
    """One fresh worker: its rounds (each the median of a burst), and what was seen beside them.

    ``gpu_time_ns`` and ``wall_time_ns`` hold one value a round, in order, the first rounds included; both
    are empty where only the structure was recorded.
    """

    gpu_time_ns: tuple[float, ...]
    wall_time_ns: tuple[float, ...]
    queue_held: bool
    repeats: int
    first_call_s: float
    kernels: tuple[KernelRecord, ...]
    counts: Counts
    observations: Observations
    state: GpuState
    card: str
    yardsticks: Yardsticks | None = None

    @property
    def launch_config(self) -> tuple[tuple[object, ...], ...]:
        """How every kernel of the step was launched, in order."""
        return tuple(kernel.launch_config for kernel in self.kernels)


@dataclass(frozen=True, slots=True)
class FactOutcome:
    """How one test that used the workload ended: ``passed``, ``failed`` or ``skipped``."""

    test: str
    outcome: str


@dataclass(frozen=True, slots=True)
class WorkloadRecording:
    """All that was recorded of one variant: the contents of ``<recording>/<workload>/``.

    Written as pytest-benchmark's JSON.  ``facts`` is None until the session that recorded it has ended.
    """

    id: str
    name: str
    params: tuple[tuple[str, object], ...]
    mode: str
    declared_in: str  # file, relative to the project's root
    about: tuple[tuple[str, str], ...]
    sources: tuple[tuple[str, str], ...]  # project file → sha256
    cache_policy: str
    environment: Environment
    recorded_at: str  # ISO 8601, UTC
    runs: tuple[Run, ...]
    facts: tuple[FactOutcome, ...] | None = None
    reason: str = ""  # why it was accepted as the baseline
    definition: str = ""  # fingerprint of name, params and mode
    accepted_at: str = ""  # ISO 8601, UTC; "" for what nobody accepted
    tolerance_fraction: float | None = None  # that its own tests judge by; None for the default

    @property
    def timed(self) -> bool:
        """Whether its runs were timed, or only their structure recorded."""
        return any(run.gpu_time_ns for run in self.runs)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording's folder, read."""

    folder: Path
    workloads: tuple[WorkloadRecording, ...]
