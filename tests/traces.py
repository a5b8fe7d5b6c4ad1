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


def is_kernel(row: Row) -> bool:
    return row.get("cat") == "kernel"


def codes(trace: Trace) -> dict[str, tuple[str, int]]:
    """Return the problems: code → scope and count."""
    return {problem.code: (problem.scope, problem.count) for problem in trace.problems}
