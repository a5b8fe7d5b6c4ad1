"""Read and write recordings: a folder a workload, holding pytest-benchmark's JSON and the trace."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from kernelperf.environment import Environment
from kernelperf.errors import UnusableInput
from kernelperf.recording.decoding import check_text, decode
from kernelperf.recording.encoding import encode
from kernelperf.recording.records import Counts, FactOutcome, KernelRecord, Recording, Run, WorkloadRecording
from kernelperf.recording.schema import SCHEMA_VERSION

__all__ = [
    "REPLACED_SUFFIX",
    "SCHEMA_VERSION",
    "TIMINGS",
    "TRACE",
    "Counts",
    "FactOutcome",
    "KernelRecord",
    "Recording",
    "Run",
    "WorkloadRecording",
    "read_environment",
    "read_recording",
    "read_workload",
    "source_sha256",
    "stale_sources",
    "trace_path",
    "workload_folders",
    "write_workload",
]

TIMINGS = "timings.json"
TRACE = "trace.json.gz"
# While a workload's folder is exchanged for a new one, the old one waits under `.<workload>` and this.
REPLACED_SUFFIX = ".replaced"

_GZIP_MAGIC = b"\x1f\x8b"


def trace_path(folder: Path) -> Path:
    """Return where a workload's folder keeps its trace."""
    return folder / TRACE


def write_workload(rec: WorkloadRecording, folder: Path, trace: Path | None) -> WorkloadRecording:
    """Write a workload's folder, and return the recording as it reads back, samples rounded.

    ``trace`` is copied into the folder; None keeps the one that is there.  Each file is replaced whole.
    ``timings.json`` is written last and holds the trace's sha256, so that a pair torn by a kill between
    the two is found on reading.
    """
    content = _trace_content(trace or trace_path(folder))
    text = encode(rec, hashlib.sha256(content).hexdigest())
    folder.mkdir(parents=True, exist_ok=True)
    if trace is not None:
        _replace_file(trace_path(folder), content)
    _replace_file(folder / TIMINGS, text.encode())
    return decode(text.encode(), str(folder / TIMINGS))[0]


def read_workload(folder: Path) -> WorkloadRecording:
    """Read a workload's folder; raises `UnusableInput` unless both files are whole and belong together."""
    rec, trace_sha256 = _read_timings(folder)
    found = hashlib.sha256(_trace_content(trace_path(folder))).hexdigest()
    if found != trace_sha256:
        raise UnusableInput(
            f"{trace_path(folder)} doesn't belong to {TIMINGS} beside it: expected sha256 "
            f"{trace_sha256[:12]!r}, found {found[:12]!r}; the recording was interrupted, or a file changed: "
            "record it again, or restore both files from one commit"
        )
    return rec


def read_environment(folder: Path) -> Environment:
    """Return the environment of a workload's folder, without a look at its trace."""
    return _read_timings(folder)[0].environment


def read_recording(folder: Path) -> Recording:
    """Read every workload of a recording; raises `UnusableInput` for one that is unusable, or for none."""
    found = workload_folders(folder)
    if not found:
        raise UnusableInput(f"{folder} is no recording: {_why_none(folder)}")
    workloads = []
    for name, path in found:
        rec = read_workload(path)
        if rec.id != name:
            raise UnusableInput(
                f"{path / TIMINGS} is of workload {rec.id!r}, but its folder is named {name!r}; "
                f"rename the folder to {rec.id!r}"
            )
        workloads.append(rec)
    return Recording(folder, tuple(workloads))


def workload_folders(folder: Path) -> tuple[tuple[str, Path], ...]:
    """Return the name and the folder of each workload, by name.

    Where a kill stopped an exchange of folders between its two renames, the old folder stands in.
    """
    if not folder.is_dir():
        return ()
    children = sorted(child for child in folder.iterdir() if child.is_dir())
    found = {child.name: child for child in children if not child.name.startswith(".") and _holds_any(child)}
    for child in children:
        name = child.name.removeprefix(".").removesuffix(REPLACED_SUFFIX)
        if child.name == f".{name}{REPLACED_SUFFIX}" and not (folder / name).exists():
            found[name] = child
    return tuple(sorted(found.items()))


def stale_sources(rec: WorkloadRecording, root: Path) -> tuple[str, ...]:
    """Return the source files, relative to ``root``, that changed or vanished since the recording."""
    return tuple(name for name, sha256 in rec.sources if source_sha256(root / name) != sha256)


def source_sha256(path: Path) -> str | None:
    """Return the sha256 of a source file's bytes, or None where there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _read_timings(folder: Path) -> tuple[WorkloadRecording, str]:
    path = folder / TIMINGS
    if not path.is_file():
        raise UnusableInput(
            f"{folder} holds no {TIMINGS}: expected a workload's folder; record one with "
            "`pytest --kperf-record DIR`"
        )
    return decode(path.read_bytes(), str(path))


def _why_none(folder: Path) -> str:
    if not folder.exists():
        return "there is no such folder; record one with `pytest --kperf-record DIR`"
    if not folder.is_dir():
        return "expected a folder, found a file; name the folder that holds a folder a workload"
    if _holds_any(folder):
        return f"it is one workload's folder; name the folder above it, {folder.parent}"
    inner = [child for child in sorted(folder.iterdir()) if workload_folders(child)]
    if inner:
        return f"it holds recordings; name one of them, such as {inner[0]}"
    return f"expected a folder a workload, each with {TIMINGS}; record one with `pytest --kperf-record DIR`"


def _holds_any(folder: Path) -> bool:
    return (folder / TIMINGS).exists() or (folder / TRACE).exists()


def _trace_content(path: Path) -> bytes:
    if not path.is_file():
        raise UnusableInput(
            f"{path} is missing: a recording needs its trace; record it again, or restore the file"
        )
    content = path.read_bytes()
    check_text(content, str(path))
    if not content.startswith(_GZIP_MAGIC):
        raise UnusableInput(
            f"{path} is no gzip file, it starts with {content[:8]!r}; record it again, or restore it"
        )
    return content


def _replace_file(path: Path, content: bytes) -> None:
    """Write the whole of ``content`` beside ``path``, then put it in its place."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
