"""A step → the chrome trace of some marked calls of it, without what would name the machine it ran on.

Imported by workers only.
"""

from __future__ import annotations

import getpass
import gzip
import math
import re
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

# The mark of a recorded step, "kernelperf_step#0": `kineto.STEP_MARK` reads it.
STEP_MARK = "kernelperf_step"

_PATH = re.compile(r"(?<![\w./:])/(?:[^/\"\\\s,;:()\[\]<>]+/)+")
_QUEUED = re.compile(r'"cat":\s*"(?:kernel|gpu_memset|gpu_memcpy)"')


def record_trace(step: Callable[[], Any], steps: int, path: Path) -> int:
    """Write the trace of ``steps`` calls, gzipped, and return how many launches a step queues.

    A throwaway session goes first: the first one in a process also starts the tracing library.
    """
    _session(step, 1)
    raw = path.with_suffix(".raw.json")
    _session(step, steps).export_chrome_trace(str(raw))
    text = raw.read_text(encoding="utf-8", errors="replace")
    raw.unlink()
    write_trace(scrub(text, machine_names()), path)
    return math.ceil(len(_QUEUED.findall(text)) / steps)


def _session(step: Callable[[], Any], steps: int) -> profile:
    """Profile ``steps`` marked calls.

    The GPU is idle before the session ends: what still runs then would be lost.
    """
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        for index in range(steps):
            with record_function(f"{STEP_MARK}#{index}"):
                step()
        torch.cuda.synchronize()
    return profiler  # type: ignore[no-any-return]  # its __enter__ is not annotated


def scrub(text: str, names: Iterable[str]) -> str:
    """Shorten every absolute path to its last part, and take out the given names.

    A name that the trace itself uses, as a host called ``kernel`` would be, is left alone.
    """
    text = _PATH.sub("", text)
    for name in names:
        if not re.search(rf'"{re.escape(name)}"', text):
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", "-", text)
    return text


def machine_names() -> tuple[str, ...]:
    """Return what this host and this user are called, the longest first."""
    host = socket.gethostname()
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = ""
    names = {name for name in (host, host.partition(".")[0], user) if len(name) > 2}
    return tuple(sorted(names, key=lambda name: (-len(name), name)))


def write_trace(text: str, path: Path) -> None:
    """Write a gzip file atomically; the same text gives the same bytes."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(gzip.compress(text.encode(), mtime=0))
    partial.replace(path)
