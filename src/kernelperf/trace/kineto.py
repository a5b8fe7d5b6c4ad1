"""A torch.profiler chrome trace → a Trace: what was launched, by which op, in which step, and what is wrong.

A kernel belongs to the op and the step in which it was launched: the call of the same correlation, on
whatever thread.  A step is the span of its mark; what any thread launches within the span is the step's, so
that a backward pass, which blocks the marked thread while autograd's threads launch, is all there.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelperf.trace import Device, Step, Trace
from kernelperf.trace.chrome import Contents, read_rows
from kernelperf.trace.evidence import Evidence, Marks
from kernelperf.trace.gpu import Gpu
from kernelperf.trace.host import Host
from kernelperf.trace.integrity import problems
from kernelperf.trace.roles import DEFAULT_RULES, RoleRules
from kernelperf.trace.silence import silent_ops

STEP_MARK = "kernelperf_step"

_OP_CATEGORIES = ("cpu_op", "user_annotation")
_CALL_CATEGORIES = ("cuda_driver", "cuda_runtime", "hip_driver", "hip_runtime", "xpu_driver", "xpu_runtime")
_OUR_STEP = re.compile(rf"{STEP_MARK}#\d+")
_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")
_NUMBER = re.compile(r"#(\d{1,18})$")


class Mark(NamedTuple):
    """An annotation that makes a step, and the position of its row."""

    start_ns: int
    end_ns: int
    name: str
    row: int

    @property
    def number(self) -> int | None:
        """The number at the end of its name."""
        found = _NUMBER.search(self.name)
        return int(found[1]) if found else None


def read_trace(path: Path, *, mark: str | None = None, rules: RoleRules = DEFAULT_RULES) -> Trace:
    """Read a trace that torch.profiler exported, gzip or not.

    Steps are the host annotations named ``mark`` (or ``mark#N``) if it is given, else kernelperf's own
    marks, else ``ProfilerStep#N``; a trace without any has no steps.  Raises `UnusableInput` for a file that
    is no such trace.
    """
    contents = read_rows(path)
    rows = _by_category(contents)
    marks = _marks(contents, rows["user_annotation"], mark)
    marked = {mark.row for mark in marks}
    ops = [row for category in _OP_CATEGORIES for row in rows[category] if row not in marked]
    calls = [row for category in _CALL_CATEGORIES for row in rows[category]]
    host = Host(contents, ops, calls)
    gpu = Gpu(contents, rows, host, rules)
    found = _about(marks, contents, rows, mark)
    steps = () if found.overlapping else _steps(marks, host, gpu)
    evidence = Evidence(
        kernels=gpu.kernels,
        transfers=gpu.transfers,
        calls=host.calls,
        ops=len(host.ops),
        steps=steps,
        marks=found,
        silence=silent_ops(host, gpu.kernels),
        log_lines=contents.log_lines,
        processes=len({contents.rows[row].pid for row in calls}),
        untimed_host_rows=_untimed(contents, [*ops, *calls, *marked]),
    )
    return Trace(
        ops=host.ops,
        kernels=gpu.kernels,
        transfers=gpu.transfers,
        runtime_calls=host.calls,
        steps=steps,
        devices=_devices(contents),
        problems=problems(evidence),
    )


def _by_category(contents: Contents) -> dict[str | None, list[int]]:
    rows: dict[str | None, list[int]] = defaultdict(list)
    for position, row in enumerate(contents.rows):
        rows[row.cat].append(position)
    return rows


def _marks(contents: Contents, annotations: Sequence[int], mark: str | None) -> list[Mark]:
    asked = re.compile(rf"{re.escape(mark)}(?:#\d+)?") if mark else None
    for pattern in (asked,) if asked else (_OUR_STEP, _PROFILER_STEP):
        found = [row for row in annotations if pattern.fullmatch(contents.rows[row].name)]
        if found:
            return sorted(_mark(contents, row) for row in found)
    return []


def _mark(contents: Contents, row: int) -> Mark:
    start_ns = int(contents.starts_ns[row])
    return Mark(start_ns, start_ns + int(contents.durations_ns[row]), contents.rows[row].name, row)


def _about(
    marks: Sequence[Mark], contents: Contents, rows: dict[str | None, list[int]], asked_for: str | None
) -> Marks:
    """Return what the integrity of a trace needs to know of its marks."""
    annotations = (contents.rows[row].name for row in rows["user_annotation"])
    numbers = [mark.number for mark in marks]
    return Marks(
        numbered=tuple(sorted({number for number in numbers if number is not None})),
        ours=bool(marks) and _OUR_STEP.fullmatch(marks[0].name) is not None,
        contiguous=bool(marks) and _PROFILER_STEP.fullmatch(marks[0].name) is not None,
        overlapping=sum(now.start_ns < before.end_ns for before, now in pairwise(marks)),
        asked_for=asked_for if asked_for and not marks else "",
        others=() if marks else tuple(dict.fromkeys(annotations)),
        on_gpu=frozenset(contents.rows[row].name for row in rows["gpu_user_annotation"]),
    )


def _steps(marks: Sequence[Mark], host: Host, gpu: Gpu) -> tuple[Step, ...]:
    calls = _Timeline(host.calls, [call.start_ns for call in host.calls])
    by_run = not host.calls
    kernels, transfers = _launched(gpu.kernels, by_run), _launched(gpu.transfers, by_run)
    return tuple(
        Step(
            index=index,
            name=mark.name,
            start_ns=mark.start_ns,
            duration_ns=mark.end_ns - mark.start_ns,
            ops=host.between(mark.start_ns, mark.end_ns),
            kernels=kernels.within(mark),
            transfers=transfers.within(mark),
            runtime_calls=calls.within(mark),
        )
        for index, mark in enumerate(marks)
    )


def _untimed(contents: Contents, rows: Sequence[int]) -> int:
    positions = np.array(rows, dtype=np.intp)
    wrong = (contents.starts_ns[positions] <= 0) | (contents.durations_ns[positions] < 0)
    return int(np.count_nonzero(wrong))


class _Timeline:
    """Things sorted by a time each, to be cut by marks."""

    def __init__(self, things: Sequence[Any], times_ns: Sequence[int]) -> None:
        self._things = things
        self._times_ns = times_ns

    def within(self, mark: Mark) -> tuple[Any, ...]:
        """Return what starts between the mark's start and end."""
        first = bisect_left(self._times_ns, mark.start_ns)
        return tuple(self._things[first : bisect_left(self._times_ns, mark.end_ns)])


def _launched(things: Sequence[Any], by_run: bool) -> _Timeline:
    """Things on the GPU by the time of their launch; by that of their run where no launch is known at all."""
    if by_run:
        return _Timeline(things, [thing.start_ns for thing in things])
    launched = [thing for thing in things if thing.launch is not None]
    return _Timeline(launched, [thing.launch.start_ns for thing in launched])


def _devices(contents: Contents) -> tuple[Device, ...]:
    return tuple(
        Device(
            each.index if each.index is not None else position,
            each.name,
            each.sm_count or 0,
            each.memory_bytes or 0,
            (each.major or 0, each.minor or 0),
        )
        for position, each in enumerate(contents.devices)
    )
