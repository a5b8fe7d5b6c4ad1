"""What the conductor is asked to do, and what comes of it: plans, settings, outcomes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kernelperf.environment import Environment
from kernelperf.protocol import Built
from kernelperf.recording.records import Run
from kernelperf.trace.roles import RoleRules
from kernelperf.workload import Variant


@dataclass(frozen=True, slots=True)
class Plan:
    """A variant to run, and whether to time it or only to record its structure."""

    variant: Variant
    timing: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure.  ``side_by_side`` None: as the card's compute mode and host memory admit."""

    root: Path
    rounds: int = 15
    burst_steps: int = 10
    wall_rounds: int = 4
    profile_steps: int = 10
    # -P: a project's own trace.py or types.py must not stand in for the standard library's
    worker_command: tuple[str, ...] = (sys.executable, "-P", "-m", "kernelperf.worker")
    lane: str = ""
    rules: RoleRules = field(default_factory=RoleRules)
    side_by_side: bool | None = None
    yardsticks: bool = True  # not where the card admits one process at a time


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run of one variant; its trace lies in the scratch folder until someone keeps it."""

    variant: Variant
    run: Run
    environment: Environment
    trace: Path
    built: Built
    recorded_at: str  # ISO 8601, UTC


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A variant that could not be measured; ``kind`` and ``cause`` are `Failed`'s, plus crash and timeout."""

    variant: Variant
    kind: str
    cause: str  # one line
    detail: str  # traceback, or the end of the worker's log
    log: Path | None


Outcome = Recorded | FailedRun
Progress = Callable[[str], None]
Settle = Callable[[Outcome], None]
