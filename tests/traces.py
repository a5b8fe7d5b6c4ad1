"""Real traces of an H200 to read, and to plant faults in."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelperf.trace import Trace
from kernelperf.trace.kineto import read_trace

DATA = Path(__file__).parent / "data"
Row = dict[str, Any]
Change = Callable[[list[Row]], list[Row]]


def real(name: str) -> Path:
    """Return a recorded trace: a variant or a fault of ``data/faults``, ten marked steps."""
    return DATA / "faults" / name / "trace.json.gz"


def rows_of(path: Path) -> list[Row]:
    rows: list[Row] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return rows


def changed(tmp_path: Path, name: str, change: Change) -> Path:
    """Write a real trace with its rows changed."""
    content = json.loads(gzip.decompress(real(name).read_bytes()))
    content["traceEvents"] = change(content["traceEvents"])
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    return path


def read(tmp_path: Path, name: str, change: Change) -> Trace:
    return read_trace(changed(tmp_path, name, change))


def zoo(name: str) -> Path:
    """Return a trace of one kind of work, recorded by `tests/zoo/record_zoo.py`."""
    return DATA / "zoo" / f"{name}.json.gz"


def made(tmp_path: Path, rows: list[Row], **top: Any) -> Path:
    """Write a trace of these rows."""
    path = tmp_path / "made.json"
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": rows}))
    return path


def host_row(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Row:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def mark_row(name: str, ts: float, dur: float) -> Row:
    return host_row(name, ts, dur, "user_annotation")


def kernel_row(name: str, ts: float, dur: float, correlation: int = 0, **args: Any) -> Row:
    place = {"device": 0, "stream": 7, "grid": [1, 1, 1], "block": [128, 1, 1], **args}
    if correlation:
        place["correlation"] = correlation
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": place}


def launch_row(ts: float, correlation: int, name: str = "cudaLaunchKernel", tid: int = 1) -> Row:
    return host_row(name, ts, 1, "cuda_runtime", tid, correlation=correlation)


def launched_kernel(name: str, at: float, start: float, dur: float, correlation: int) -> list[Row]:
    """Return a launch and its kernel."""
    return [launch_row(at, correlation), kernel_row(name, start, dur, correlation)]


def is_kernel(row: Row) -> bool:
    return row.get("cat") == "kernel"


def codes(trace: Trace) -> dict[str, tuple[str, int]]:
    """Return the problems: code → scope and count."""
    return {problem.code: (problem.scope, problem.count) for problem in trace.problems}
