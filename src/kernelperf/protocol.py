"""What conductor and worker say to each other: one JSON object a line, over a pipe of their own."""

from __future__ import annotations

from typing import Any

import msgspec


class Build(msgspec.Struct, tag=True, frozen=True):
    """Import the factory and build the workload; the worker's first command, carrying all it must know."""

    file: str
    module: str
    workload: str
    params: dict[str, Any]
    mode: str
    root: str
    sys_path: list[str]


class FirstCall(msgspec.Struct, tag=True, frozen=True):
    """Call the step for the first time: compile, autotune, warm up.  Given to one worker at a time."""


class Profile(msgspec.Struct, tag=True, frozen=True):
    """Record ``steps`` marked steps with torch.profiler and export the trace to ``path`` (gzip)."""

    path: str
    steps: int


class Burst(msgspec.Struct, tag=True, frozen=True):
    """Time ``steps`` steps on the GPU, behind a pre-filled queue."""

    steps: int


class WallBurst(msgspec.Struct, tag=True, frozen=True):
    """Time ``steps`` steps on the host, each with a synchronize."""

    steps: int


class Observe(msgspec.Struct, tag=True, frozen=True):
    """Tell what timing could not: memory, compilations, numerics, probes.  Comes after all timing."""


class BuildYardsticks(msgspec.Struct, tag=True, frozen=True):
    """Build the yardsticks, in a worker that has no workload."""


class BurstYardsticks(msgspec.Struct, tag=True, frozen=True):
    """Time ``steps`` steps of each yardstick on the GPU, behind a pre-filled queue."""

    steps: int


class Stop(msgspec.Struct, tag=True, frozen=True):
    """End the process."""


Command = Build | FirstCall | Profile | Burst | WallBurst | Observe | BuildYardsticks | BurstYardsticks | Stop


class Built(msgspec.Struct, tag=True, frozen=True):
    """The workload stands; nothing ran yet."""

    device: DeviceFacts
    stack: dict[str, str]
    about: dict[str, str]
    sources: dict[str, str]  # project file, relative to the root → sha256


class DeviceFacts(msgspec.Struct, frozen=True):
    """The GPU as the worker's torch sees it."""

    name: str
    sm_count: int
    memory_bytes: int
    compute_capability: str  # "9.0"
    uuid: str = ""  # for the conductor's questions to NVML; blank in what is recorded


class FirstCallDone(msgspec.Struct, tag=True, frozen=True):
    """The first call has returned and the GPU is idle again.

    ``stack`` and ``sources`` are `Built`'s, with what the step itself imported.
    """

    seconds: float
    stack: dict[str, str]
    sources: dict[str, str]


class Profiled(msgspec.Struct, tag=True, frozen=True):
    """The trace is written."""


class Samples(msgspec.Struct, tag=True, frozen=True):
    """One duration a step, in nanoseconds; ``held`` says that the queue never ran dry meanwhile."""

    durations_ns: list[float]
    held: bool
    repeats: int  # steps inside one event pair


class YardsticksBuilt(msgspec.Struct, tag=True, frozen=True):
    """The yardsticks stand, on the GPU of this UUID."""

    uuid: str


class YardstickSamples(msgspec.Struct, tag=True, frozen=True):
    """The durations of one burst of each yardstick, in nanoseconds, by its name."""

    durations_ns: dict[str, list[float]]


class ProbeResult(msgspec.Struct, frozen=True):
    """What one probe compiled."""

    name: str
    dynamo_graphs: int
    triton_compilations: int


class TritonSource(msgspec.Struct, frozen=True):
    """A kernel that Inductor generated: its pointer arguments by name (``in_out_ptr0``, ``in_ptr0``)."""

    name: str
    pointers: list[str]


class Observations(msgspec.Struct, tag=True, frozen=True):
    """What a worker saw beside the times.  ``relative_error`` is ‖out − ref‖ / ‖ref‖ against float64."""

    peak_memory_bytes: int
    dynamo_graphs: int  # unique graphs after the first call
    graph_breaks: int
    recompiles: int  # graphs compiled after the first call, before the probes
    triton_compilations: int  # before the probes
    relative_error: float | None = None
    reference_norm: float | None = None
    reference_digest: str | None = None
    probes: list[ProbeResult] = []
    triton_sources: list[TritonSource] = []


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The command failed.

    ``kind``: import, factory, unavailable, oom, busy, cuda, step, profiler.  The conductor adds what no
    worker can tell of itself: crash, timeout.
    """

    kind: str
    cause: str  # one line
    detail: str  # traceback


Reply = (
    Built | FirstCallDone | Profiled | Samples | Observations | YardsticksBuilt | YardstickSamples | Failed
)
