"""Variants to measure → one run of each: how many workers at once, one session a GPU, and who goes again."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kernelperf import environment
from kernelperf.conductor.crew import Crew
from kernelperf.conductor.plans import FailedRun, Outcome, Plan, Progress, Recorded, Settings, Settle
from kernelperf.environment import GpuInfo

__all__ = ["CACHE_POLICY", "FailedRun", "Outcome", "Plan", "Progress", "Recorded", "Settings", "record_run"]

CACHE_POLICY = "fresh per worker"
# Host memory that one worker needs: torch, its CUDA context, and Inductor's compile processes.  Nine of them
# took 7 GiB on a 16-core H200 machine (0.5 GiB each, and more for those that compile); twice that is planned.
HOST_BYTES_PER_WORKER = 3 * 2**29


def record_run(
    plans: Sequence[Plan],
    scratch: Path,
    settings: Settings,
    progress: Progress,
    on_outcome: Settle,
) -> tuple[Outcome, ...]:
    """Run each plan once, in a fresh worker of its own, and return the outcomes in the plans' order.

    ``on_outcome`` gets each outcome as soon as it is final.  Traces and logs are left in ``scratch``;
    compile caches are removed.
    """
    gpu = environment.find_gpu()
    outcomes: dict[str, Outcome] = {}

    def settle(outcome: Outcome) -> None:
        outcomes[outcome.variant.id] = outcome
        on_outcome(outcome)

    with _one_session_per_gpu(gpu, progress):
        waiting = list(plans)
        at_once = _workers_at_once(settings, gpu, len(plans))
        if gpu is not None and gpu.exclusive:
            settings = replace(settings, yardsticks=False)
        while waiting:
            crew, waiting = waiting[:at_once], waiting[at_once:]
            crowded = _run_crew(crew, scratch, settings, progress, settle)
            for plan in crowded:
                progress(f"{plan.variant.id}: again, alone")
                _run_crew([plan], scratch, settings, progress, settle)
    return tuple(outcomes[plan.variant.id] for plan in plans)


def _workers_at_once(settings: Settings, gpu: GpuInfo | None, plans: int) -> int:
    if settings.side_by_side is False or (settings.side_by_side is None and gpu and gpu.exclusive):
        return 1
    available = environment.host_memory_available_bytes()
    return max(1, min(plans, available // HOST_BYTES_PER_WORKER) if available else plans)


@contextlib.contextmanager
def _one_session_per_gpu(gpu: GpuInfo | None, progress: Progress) -> Iterator[None]:
    """Hold the GPU against other sessions of kernelperf on this host: they would disturb each other."""
    if gpu is None:
        yield
        return
    import fcntl  # not on Windows, where recordings can still be compared

    path = Path(tempfile.gettempdir()) / f"kernelperf-{gpu.card}.lock"
    if not path.exists():
        path.touch()
    descriptor = os.open(path, os.O_RDONLY)  # may be another user's file
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another kernelperf session on this GPU ({path})")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _run_crew(
    plans: Sequence[Plan],
    scratch: Path,
    settings: Settings,
    progress: Progress,
    settle: Settle,
) -> tuple[Plan, ...]:
    """Run plans side by side; return those whose failure the others may have caused, unsettled."""
    with Crew(plans, scratch, settings, progress, settle) as crew:
        crew.start()
        crew.build()
        crew.first_calls()
        crew.profile()
        crew.time_gpu()
        crew.time_wall()
        crew.observe()
    return tuple(crew.crowded)
