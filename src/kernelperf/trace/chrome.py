"""A chrome trace file → its complete ("X") rows, typed, with times in integer nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct, UnsetType, field

from kernelperf.errors import UnusableInput
from kernelperf.trace.damage import read_text, repair
from kernelperf.trace.foreign import RECORD_AGAIN, tool_of

# Every category that torch.profiler (2.1 and later) writes on a complete row.
CATEGORIES = frozenset(
    "cpu_op user_annotation python_function kernel gpu_memset gpu_memcpy gpu_user_annotation cuda_runtime "
    "cuda_driver hip_runtime hip_driver xpu_runtime xpu_driver privateuse1_runtime privateuse1_driver "
    "cuda_sync cuda_event overhead collective_comm external_correlation cpu_instant_event "
    "cuda_profiler_range gpu_pm_counter Trace".split()
)
_GPU_CATEGORIES = frozenset({"kernel", "gpu_memset", "gpu_memcpy"})
_OLD_CATEGORIES = frozenset({"Operator", "Kernel", "Runtime", "Memcpy", "Memset"})  # torch before 1.13

# Kineto writes microseconds with three decimals.  Below 2**43 µs doubles lie closer together than a
# nanosecond, so that the decimals can be had back exactly; above, the text itself must be read.
_EXACT_BELOW_US = 2.0**43
_LONGEST_US = Decimal(2**62 // 1000)
_NO_DURATION_US = -0.001  # one that is missing can't be taken for a short one

Number = TypeVar("Number", float, Decimal)


class Row(Struct, Generic[Number], gc=False, tag_field="ph", tag="X"):
    """A complete row; ``ts`` and ``dur`` in microseconds, as the file says; ``args`` undecoded."""

    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Number | None = None
    dur: Number | None = None
    args: Raw | UnsetType = UNSET


class OpArgs(Struct, gc=False):
    """What is used of an op's ``args``."""

    external_id: int | None = field(default=None, name="External id")
    input_dims: Raw | UnsetType = field(default=UNSET, name="Input Dims")
    input_types: Raw | UnsetType = field(default=UNSET, name="Input type")
    kernel_kwargs: str | None = None
    num_warps: int | None = None
    num_stages: int | None = None


class CallArgs(Struct, gc=False):
    """What is used of a runtime call's ``args``."""

    external_id: int | None = field(default=None, name="External id")
    correlation: int | None = None


class GpuArgs(Struct, gc=False):
    """What is used of a kernel's, memset's or memcpy's ``args``; AMD's have no registers."""

    correlation: int | None = None
    device: int | None = None
    stream: int | str | None = None
    grid: Raw | UnsetType = UNSET
    block: Raw | UnsetType = UNSET
    registers: float | None = field(default=None, name="registers per thread")
    shared_memory: float | None = field(default=None, name="shared memory")
    size_bytes: float | None = field(default=None, name="bytes")


Args = TypeVar("Args", OpArgs, CallArgs, GpuArgs)
Decoded = TypeVar("Decoded")
_ARGS_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind, strict=False) for kind in (OpArgs, CallArgs, GpuArgs)
}
_LIST_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(list[kind], strict=False)  # type: ignore[valid-type]  # a type made at run time
    for kind in _ARGS_DECODERS
}


class DeviceRow(Struct, gc=False):
    """An entry of ``deviceProperties``."""

    index: int | None = field(default=None, name="id")
    name: str = ""
    memory_bytes: int | None = field(default=None, name="totalGlobalMem")
    major: int | None = field(default=None, name="computeMajor")
    minor: int | None = field(default=None, name="computeMinor")
    sm_count: int | None = field(default=None, name="numSms")


Times: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Contents(Struct, gc=False):
    """What a file holds; a start that is missing or can't be read is 0 here, such a duration -1."""

    rows: list[Any]  # of Row
    starts_ns: Times
    durations_ns: Times
    devices: list[DeviceRow]
    log_lines: list[str]
    path: Path


class Passed(Struct, gc=False, tag_field="ph", tag="B"):
    """The start of a span that is written as two rows, as torch.profiler never does."""

    cat: str | None = None


# Rows of every other phase are passed over: flow arrows, metadata, counters, instants.
_PASSED_OVER = (
    Passed,
    *(
        msgspec.defstruct(f"Phase{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)
        for phase in "EiICbneSTpFstfPNODMVvRc(),="
    ),
)


def _envelope(row: Any) -> tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]:
    event = row
    for phase in _PASSED_OVER:
        event = event | phase
    fields = [
        ("traceEvents", list[event] | UnsetType, UNSET),  # type: ignore[valid-type]  # a union made at run time
        ("deviceProperties", list[DeviceRow] | None, None),
        ("warnings", list[str] | None, field(default=None, name="WARNING")),
        ("errors", list[str] | None, field(default=None, name="ERROR")),
    ]
    envelope = msgspec.defstruct("Envelope", fields, gc=False)
    bare_list = list[event]  # type: ignore[valid-type]  # as above
    # strict=False: numbers may be written as strings
    return msgspec.json.Decoder(envelope, strict=False), msgspec.json.Decoder(bare_list, strict=False)


_FLOATS = _envelope(Row[float])
_DECIMALS = _envelope(Row[Decimal])


def read_rows(path: Path) -> Contents:
    """Read a chrome trace, as ``{"traceEvents": […]}`` or as a bare list of events, gzip or not.

    Raises `UnusableInput`, with the place and the remedy, for a file that isn't a torch.profiler trace of
    today's schema.
    """
    text = read_text(path)
    text, contents = _decode_mending(path, text)
    _refuse_foreign_schema(path, text, contents)
    times = _exact(contents.rows)
    if times is None:
        contents = _decode(path, text, _DECIMALS)
        times = (
            np.array([_to_ns(row.ts, 0) for row in contents.rows], dtype=np.int64),
            np.array([_to_ns(row.dur, -1) for row in contents.rows], dtype=np.int64),
        )
    contents.starts_ns, contents.durations_ns = times
    return contents


def decode_args(row: Row[Any], kind: type[Args], path: Path) -> Args:
    """Return what is used of a row's ``args``; raises `UnusableInput`, naming the row, where it misfits."""
    if row.args is UNSET or bytes(row.args) == b"null":
        return kind()
    try:
        decoded: Args = _ARGS_DECODERS[kind].decode(row.args)
    except msgspec.DecodeError as error:
        raise _misfit(row, error, path) from error
    return decoded


def decode_all_args(rows: Sequence[Row[Any]], kind: type[Args], path: Path) -> list[Args]:
    """Return what is used of each row's ``args``, decoded in one go, which takes a third of the time."""
    raws = [b"{}" if row.args is UNSET else row.args for row in rows]
    try:
        decoded: list[Args] = _LIST_DECODERS[kind].decode(b"[" + b",".join(raws) + b"]")
    except msgspec.DecodeError:  # one of them misfits: find it
        decoded = [decode_args(row, kind, path) for row in rows]
    return decoded


def decode_raw(
    row: Row[Any], raw: Raw | UnsetType, decode: Callable[[bytes], tuple[Decoded, ...]], path: Path
) -> tuple[Decoded, ...]:
    """Return a list among a row's ``args``, decoded; empty where there is none."""
    if raw is UNSET:
        return ()
    try:
        return decode(bytes(raw))
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise _misfit(row, error, path) from error


def _misfit(row: Row[Any], error: Exception, path: Path) -> UnusableInput:
    return UnusableInput(
        f"{path}: the args of row {row.name!r} (category {row.cat!r}, ts {row.ts}) can't be read: {error}; "
        f"{RECORD_AGAIN}"
    )


def _decode_mending(path: Path, text: bytes) -> tuple[bytes, Contents]:
    try:
        return text, _decode(path, text, _FLOATS)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        mended = repair(text)
        try:
            return mended, _decode(path, mended, _FLOATS)
        except msgspec.DecodeError as second:
            raise _unusable(path, text, second if "truncated" in str(second) else error) from second


def _decode(
    path: Path, text: bytes, decoders: tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]
) -> Contents:
    whole, bare_list = decoders
    try:
        if text.lstrip()[:1] == b"[":
            return _contents(path, bare_list.decode(text), [], [])
        if text.count(b'"traceEvents":') > 1:
            raise UnusableInput(f"{path}: has `traceEvents` twice; {RECORD_AGAIN}")
        envelope = whole.decode(text)
    except msgspec.ValidationError as error:
        raise _foreign(path, text, f"not a torch.profiler trace: {error}") from error
    except RecursionError as error:
        raise UnusableInput(f"{path}: nested too deeply for a trace; {RECORD_AGAIN}") from error
    if envelope.traceEvents is UNSET:
        raise _foreign(path, text, "JSON without `traceEvents`, not a torch.profiler trace")
    log_lines = [*(envelope.warnings or ()), *(envelope.errors or ())]
    return _contents(path, envelope.traceEvents, envelope.deviceProperties or [], log_lines)


def _contents(path: Path, events: list[Any], devices: list[DeviceRow], log_lines: list[str]) -> Contents:
    rows = [event for event in events if type(event) is Row]
    if any(event.cat in _GPU_CATEGORIES for event in events if type(event) is Passed):
        raise UnusableInput(
            f"{path}: its kernels are pairs of begin and end rows (ph 'B'), which torch.profiler doesn't "
            f"write: another tool converted it; {RECORD_AGAIN}"
        )
    unknown = np.zeros(0, dtype=np.int64)
    return Contents(rows, unknown, unknown, devices, log_lines, path)


def _foreign(path: Path, text: bytes, otherwise: str) -> UnusableInput:
    tool = tool_of(text)
    what = f"{tool}, not a torch.profiler trace" if tool else otherwise
    return UnusableInput(f"{path}: {what}; {RECORD_AGAIN}")


def _unusable(path: Path, text: bytes, error: Exception) -> UnusableInput:
    if "truncated" in str(error):
        return UnusableInput(
            f"{path}: its JSON ends early, at byte {len(text)}; the file is truncated: copy it again or "
            f"{RECORD_AGAIN}"
        )
    place = re.search(r"byte (\d+)", str(error))
    found = text[int(place[1]) : int(place[1]) + 20] if place else b""
    return UnusableInput(f"{path}: not valid JSON: {error}, found {found!r}; {RECORD_AGAIN}")


def _refuse_foreign_schema(path: Path, text: bytes, contents: Contents) -> None:
    found = {row.cat for row in contents.rows}
    if found & _OLD_CATEGORIES:
        raise UnusableInput(
            f"{path}: its categories {_listed(found & _OLD_CATEGORIES)} are of torch before 1.13, "
            f"whose traces are not read; {RECORD_AGAIN} of torch 2.1 or later"
        )
    unknown = found - CATEGORIES
    if unknown and "kernel" not in found:
        listed = f"its rows are of categories {_listed(unknown)}, which torch.profiler doesn't write"
        raise _foreign(path, text, f"{listed} for CUDA, ROCm or XPU")
    kernels_of_no_device = any(row.pid is None for row in contents.rows if row.cat == "kernel")
    if kernels_of_no_device and tool_of(text):
        raise _foreign(path, text, "")


def _listed(categories: set[str | None]) -> str:
    return ", ".join(repr(category) for category in sorted(categories, key=str)[:5])


def _exact(rows: list[Any]) -> tuple[Times, Times] | None:
    """Return starts and durations, or None where doubles can't hold them to the nanosecond."""
    columns = [_column([row.ts for row in rows], 0.0), _column([row.dur for row in rows], _NO_DURATION_US)]
    if any(not np.all(np.abs(column) < _EXACT_BELOW_US) for column in columns):
        return None
    starts_us, durations_us = columns
    return _whole_ns(starts_us), _whole_ns(durations_us)


def _column(times_us: list[float | None], missing_us: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        return np.array(times_us, dtype=np.float64)
    except TypeError:  # some are missing
        return np.array([missing_us if time is None else time for time in times_us], dtype=np.float64)


def _whole_ns(times_us: np.ndarray[Any, np.dtype[np.float64]]) -> Times:
    whole = np.floor(times_us)
    nanoseconds: Times = whole.astype(np.int64) * 1000
    nanoseconds += np.rint((times_us - whole) * 1000).astype(np.int64)
    return nanoseconds


def _to_ns(time_us: Decimal | None, missing_ns: int) -> int:
    if time_us is None or not time_us.is_finite() or abs(time_us) > _LONGEST_US:
        return missing_ns
    return round(time_us * 1000)
