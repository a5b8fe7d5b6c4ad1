"""What a file is that isn't a torch.profiler trace → its name, and what to do instead."""

from __future__ import annotations

import re

RECORD_AGAIN = "export it again with torch.profiler's export_chrome_trace"

# What a file starts with when it isn't JSON at all, and what to do then.
_STARTS = (
    (
        rb"version https://git-lfs\.github\.com/spec/",
        "a Git LFS pointer, not the file itself",
        "run `git lfs pull`",
    ),
    (rb"<<<<<<< ", "a file with merge markers", "resolve the merge and take one side's file"),
    (rb"PK\x03\x04", "a zip archive (torch.save writes such)", "unpack the trace, or " + RECORD_AGAIN),
    (rb"\x28\xb5\x2f\xfd", "zstd-compressed", "unpack it with `zstd -d`"),
    (rb"BZh|\xfd7zXZ", "compressed, but not with gzip", "unpack it"),
    (rb"SQLite format 3", "an SQLite database (Nsight Systems exports such)", "record with torch.profiler"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16 text", "save it as UTF-8"),
    (rb"\x80[\x02-\x05]", "a pickle, which is not opened", RECORD_AGAIN),
)
# What JSON of other tools holds, and whose it is then.
_TOOLS = (
    (rb'"frame"\s*:\s*\{', "a Hatchet profile (Triton's Proton writes one)"),
    (rb'"call_stack"\s*:\s*\[', "a trace of Triton's Proton"),
    (rb'"/host:CPU|"/device:[GT]PU', "a trace of the TensorFlow profiler (JAX and XLA use it)"),
    (rb'"BeginNs"', "a trace of AMD's rocprof"),
    (rb"speedscope\.app/file-format", "a speedscope profile"),
    (rb'"cat"\s*:\s*"[^"]*\b(?:devtools|blink|v8|toplevel)\b', "a trace of a web browser"),
    (rb'"nodes"\s*:\s*\[', "a PyTorch execution trace (it has `nodes`)"),
    (rb'"benchmarks"\s*:\s*\[', "pytest-benchmark's JSON (of a recording, name the folder)"),
    (rb'"segments"\s*:\s*\[', "a memory snapshot of torch"),
    (rb"\A\s*\[\s*\[\s*\d", "a memory timeline of torch"),
)
_LOOKED_AT_BYTES = 1 << 20


def start_of(data: bytes) -> tuple[str, str] | None:
    """Return what a file is by its first bytes, and the remedy; None where it may be JSON."""
    return next(((what, remedy) for start, what, remedy in _STARTS if re.match(start, data)), None)


def tool_of(text: bytes) -> str | None:
    """Return whose JSON this is, by what only that tool writes, looking at its first and last part."""
    parts = text[:_LOOKED_AT_BYTES], text[-_LOOKED_AT_BYTES:]
    return next((name for mark, name in _TOOLS if any(re.search(mark, part) for part in parts)), None)
