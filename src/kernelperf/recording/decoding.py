"""The text of a ``timings.json`` → a workload's recording, or one error that says what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from kernelperf.environment import Environment, GpuState
from kernelperf.errors import NotMeasurable, UnusableInput
from kernelperf.recording.records import KernelRecord, Run, WorkloadRecording, Yardsticks
from kernelperf.recording.schema import (
    SCHEMA_KEY,
    SCHEMA_VERSION,
    Document,
    ExtraInfo,
    Launch,
    Machine,
    WallInfo,
    check_samples,
)

_LFS_POINTER = b"version https://git-lfs"
_MERGE_MARKER = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
_RERECORD = "record it again, or restore the file from version control"
_T = TypeVar("_T")


def decode(data: bytes, where: str) -> tuple[WorkloadRecording, str]:
    """Return the recording in ``data`` and the sha256 of its trace; ``where`` names the file in errors."""
    document, extra = _open(data, where)
    info = _convert(extra, ExtraInfo, where)
    machine = _convert(document.machine_info, Machine, where)
    wall = [_convert(b.extra_info, WallInfo, where) for b in document.benchmarks if b.group == "wall_time"]
    try:
        runs = _runs(info, wall[0].runs_ns if wall else [])
    except (ValueError, IndexError) as error:
        raise UnusableInput(
            f"{where}: its lists of runs don't fit together ({error}); {_RERECORD}"
        ) from error
    rec = WorkloadRecording(
        id=info.id,
        name=info.name,
        params=tuple((key, _as_tuple(value)) for key, value in sorted(info.params.items())),
        mode=info.mode,
        declared_in=info.declared_in,
        about=tuple(sorted(info.about.items())),
        sources=tuple(sorted(info.sources.items())),
        cache_policy=info.cache_policy,
        environment=Environment(
            machine.hardware, machine.card, tuple(sorted(machine.stack.items())), machine.lane
        ),
        recorded_at=document.datetime,
        runs=runs,
        facts=None if info.facts is None else tuple(info.facts),
        reason=info.reason,
        definition=info.definition,
        accepted_at=info.accepted_at,
        tolerance_fraction=info.tolerance_fraction,
    )
    try:
        check_samples(rec)
    except NotMeasurable as error:
        raise UnusableInput(f"{where}: {error}; {_RERECORD}") from error
    return rec, info.trace_sha256


def check_text(data: bytes, where: str) -> None:
    """Raise `UnusableInput` for what is no JSON at all: nothing, a Git LFS pointer, an unsolved merge."""
    if not data.strip():
        raise UnusableInput(f"{where} is empty; {_RERECORD}")
    if data.startswith(_LFS_POINTER):
        raise UnusableInput(f"{where} is a Git LFS pointer, not the file; run `git lfs pull`")
    if _MERGE_MARKER.search(data):
        raise UnusableInput(
            f"{where} holds merge conflict markers; take one side's whole folder (`git checkout --theirs`) "
            "or record it again, never a mixture"
        )


def _open(data: bytes, where: str) -> tuple[Document, dict[str, Any]]:
    check_text(data, where)
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableInput(f"{where} is truncated or no JSON ({error}); {_RERECORD}") from error
    if not isinstance(content, dict) or "benchmarks" not in content:
        raise UnusableInput(
            f"{where} is JSON, but not pytest-benchmark's: expected a key 'benchmarks'; {_RERECORD}"
        )
    document = _convert(content, Document, where)
    carriers = [b.extra_info for b in document.benchmarks if SCHEMA_KEY in b.extra_info]
    if not carriers:
        raise UnusableInput(
            f"{where} is pytest-benchmark's JSON, but kernelperf didn't write it: no benchmark's extra_info "
            f"has {SCHEMA_KEY!r}; name a folder that `pytest --kperf-record` wrote"
        )
    version = carriers[0][SCHEMA_KEY]
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise UnusableInput(
            f"{where} has schema version {version!r}; this kernelperf reads up to {SCHEMA_VERSION}: upgrade "
            "pytest-kernelperf, or record it again with this one"
        )
    return document, carriers[0]


def _convert(value: object, kind: type[_T], where: str) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise UnusableInput(f"{where} doesn't fit schema {SCHEMA_VERSION}: {error}; {_RERECORD}") from error


def _runs(info: ExtraInfo, wall_runs_ns: Sequence[Sequence[float]]) -> tuple[Run, ...]:
    untimed: list[list[float]] = [[] for _ in info.runs]
    columns = zip(
        info.runs,
        info.runs_ns or untimed,
        wall_runs_ns or untimed,
        info.kernel_time_ns,
        info.counts,
        info.states,
        info.yardsticks_ns or [{}] * len(info.runs),
        info.yardstick_states or [GpuState()] * len(info.runs),
        strict=True,
    )
    return tuple(
        Run(
            gpu_time_ns=tuple(gpu_ns),
            wall_time_ns=tuple(wall_ns),
            queue_held=row.queue_held,
            repeats=row.repeats,
            first_call_s=row.first_call_s,
            kernels=_kernels(info.launches[row.launches], kernel_ns),
            counts=counts,
            observations=info.observations[row.observations],
            state=state,
            card=row.card,
            yardsticks=Yardsticks(tuple(sorted(times_ns.items())), card_state) if times_ns else None,
        )
        for row, gpu_ns, wall_ns, kernel_ns, counts, state, times_ns, card_state in columns
    )


def _kernels(launches: Sequence[Launch], durations_ns: Sequence[float]) -> tuple[KernelRecord, ...]:
    return tuple(
        KernelRecord(
            name=launch.name,
            role=launch.role,
            op=launch.op,
            grid=launch.grid,
            block=launch.block,
            registers=launch.registers,
            config=launch.config,
            duration_ns=duration_ns,
        )
        for launch, duration_ns in zip(launches, durations_ns, strict=True)
    )


def _as_tuple(value: object) -> object:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
