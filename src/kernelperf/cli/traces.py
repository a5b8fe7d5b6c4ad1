"""Files that hold traces → what ``kernelperf facts`` and ``kernelperf compare`` print of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelperf.compare.traces import TraceComparison, compare_traces
from kernelperf.errors import UnusableInput
from kernelperf.recording import TRACE, read_recording, trace_path
from kernelperf.render.traces import (
    as_json,
    comparison_json,
    comparison_text,
    facts_content,
    facts_text,
    recording_content,
)
from kernelperf.trace import Trace
from kernelperf.trace.kineto import read_trace
from kernelperf.trace.roles import RoleRules, parse_rule
from kernelperf.trace.summary import Summary, summarize


@dataclass(frozen=True, slots=True)
class Reading:
    """How traces are read: what marks a step, and roles for a user's own kernels."""

    mark: str | None
    roles: Sequence[str]

    def read(self, path: Path) -> Trace:
        """Read one trace."""
        return read_trace(
            path, mark=self.mark, rules=RoleRules(tuple(parse_rule(line) for line in self.roles))
        )


def facts_report(path: Path, reading: Reading, *, json: bool) -> tuple[str, bool]:
    """Return the facts of a trace, or of every workload of a recording, and whether all of it is whole."""
    traces = {name: reading.read(file) for name, file in _trace_files(path).items()}
    found = {name: summarize(trace) for name, trace in traces.items()}
    whole = all(summary.valid for summary in found.values())
    return (_json(path, found) if json else _text(traces, found)), whole


def compare_report(base: Path, now: Path, reading: Reading, *, json: bool) -> tuple[str, TraceComparison]:
    """Return what differs between two traces, as text or JSON and as a record."""
    comparison = compare_traces(*(reading.read(_trace_file(path)) for path in (base, now)))
    return (comparison_json if json else comparison_text)(comparison), comparison


def are_traces(base: Path, now: Path) -> bool:
    """Tell whether two paths are traces, not recordings; raises `UnusableInput` for one of each."""
    for path in (base, now):
        if not path.exists():
            raise UnusableInput(f"{path}: no such file or folder; name two traces, or two recordings")
    kinds = [_is_trace(path) for path in (base, now)]
    if kinds[0] != kinds[1]:
        trace, other = (base, now) if kinds[0] else (now, base)
        raise UnusableInput(
            f"{trace} is a trace, {other} is a recording: name two traces (a recording's are its "
            f"`<workload>/{TRACE}`) or two recordings"
        )
    return all(kinds)


def _is_trace(path: Path) -> bool:
    return not path.is_dir() or (path / TRACE).is_file()  # a pipe is a file, too


def _trace_file(path: Path) -> Path:
    return trace_path(path) if path.is_dir() else path


def _trace_files(path: Path) -> dict[str, Path]:
    """Return the trace files at a path by name: the file itself, or those of a recording's workloads."""
    if not path.is_dir():
        return {path.name: path}
    if _is_trace(path):
        return {path.name: trace_path(path)}
    recording = read_recording(path)
    return {rec.id: trace_path(path / rec.id) for rec in recording.workloads}


def _json(path: Path, found: dict[str, Summary]) -> str:
    contents = {name: facts_content(summary) for name, summary in found.items()}
    if not path.is_dir() or _is_trace(path):
        return as_json(next(iter(contents.values())))
    return as_json(recording_content(contents))


def _text(traces: dict[str, Trace], found: dict[str, Summary]) -> str:
    blocks = [f"{name}\n{facts_text(trace, found[name])}\n" for name, trace in traces.items()]
    return "\n".join(blocks)
