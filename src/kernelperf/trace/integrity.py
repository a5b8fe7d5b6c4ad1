"""What a trace holds → what is wrong with it, each problem with its scope: trace, timing or step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from kernelperf.trace import Kernel, Launch, Problem, Step

# Calls that put exactly one kernel on a stream: on CUDA cudaLaunchKernel(ExC), cuLaunchKernel(Ex) and the
# cooperative ones, on ROCm hipLaunchKernel and hip(Ext)ModuleLaunchKernel.
_KERNEL_LAUNCH = re.compile(r"(?:cuda|cu|hip)\w*Launch\w*Kernel\w*")
_DROPPED = re.compile(r"drop|lost|out of (?:gpu )?buffer|overflow", re.IGNORECASE)


def problems(
    kernels: Sequence[Kernel],
    launches: Mapping[int, Launch],
    steps: Sequence[Step],
    log_lines: Sequence[str],
) -> tuple[Problem, ...]:
    """Return every problem found, the gravest scope first."""
    found = [
        *_launches_and_kernels(kernels, launches),
        *_dropped(log_lines),
        *_times(kernels),
        *_differing_steps(steps),
    ]
    return tuple(found)


def launched(step: Step) -> tuple[tuple[object, ...], ...]:
    """Return what a step launched: steps that agree in it are alike."""
    return tuple((kernel.name, kernel.grid, kernel.block) for kernel in step.kernels)


def _launches_and_kernels(kernels: Sequence[Kernel], launches: Mapping[int, Launch]) -> Iterator[Problem]:
    kernel_launches = [launch for launch in launches.values() if _KERNEL_LAUNCH.fullmatch(launch.name)]
    if not kernels:
        yield Problem("no-kernels", "trace", "the trace has no kernels: it proves nothing about the GPU")
    ran = {kernel.correlation for kernel in kernels}
    lost = sum(launch.correlation not in ran for launch in kernel_launches)
    if lost:
        yield Problem(
            "launches-without-kernels",
            "trace",
            f"{lost} launches without kernels: the trace lost kernels",
            lost,
        )
    orphans = sum(kernel.launch is None for kernel in kernels)
    if orphans and launches:  # a trace of the GPU alone has no launches at all
        yield Problem(
            "kernels-without-launches",
            "trace",
            f"{orphans} kernels without launches: which op and step they belong to is unknown",
            orphans,
        )


def _dropped(log_lines: Sequence[str]) -> Iterator[Problem]:
    lines = [line for line in log_lines if _DROPPED.search(line)]
    if lines:
        yield Problem(
            "dropped-events", "trace", f"the profiler says that it dropped events: {lines[0]!r}", len(lines)
        )


def _times(kernels: Sequence[Kernel]) -> Iterator[Problem]:
    unstamped = sum(kernel.start_ns <= 0 for kernel in kernels)
    if unstamped:
        yield Problem(
            "zero-timestamp",
            "timing",
            f"{unstamped} kernels without a start time: their times can't be used",
            unstamped,
        )
    no_time = sum(kernel.duration_ns <= 0 < kernel.start_ns for kernel in kernels)
    if no_time:
        yield Problem(
            "zero-duration",
            "timing",
            f"{no_time} kernels of zero or negative duration: times can't be used",
            no_time,
        )


def _differing_steps(steps: Sequence[Step]) -> Iterator[Problem]:
    kinds = {launched(step) for step in steps}
    if len(kinds) > 1:
        counts = ", ".join(str(len(step.kernels)) for step in steps)
        yield Problem(
            "steps-differ",
            "step",
            f"{len(steps)} steps launch {len(kinds)} different things (kernels a step: {counts})",
            len(kinds),
        )
