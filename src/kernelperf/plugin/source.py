"""Options and machine → where this session's evidence comes from: a GPU now, a recording, or nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from kernelperf import environment
from kernelperf.environment import GpuInfo
from kernelperf.errors import UnusableInput
from kernelperf.plugin.options import Options
from kernelperf.recording import read_recording
from kernelperf.recording.records import Recording

# What decides most about speed, in the order in which it is told.
_SHOWN_VERSIONS = ("torch", "triton", "driver")


@dataclass(frozen=True, slots=True)
class Source:
    """Where evidence comes from; ``why`` says what is missing where it comes from nowhere."""

    kind: Literal["live", "replay", "none"]
    gpu: GpuInfo | None = None
    recording: Recording | None = None
    folder: str = ""  # of the recording, as shown
    asked: bool = True  # False for a recording that stands in for a GPU
    why: str = ""

    @property
    def compute_capability(self) -> str:
        """That of the GPU, or of the one that was recorded; empty where there is none."""
        if self.gpu is not None:
            return self.gpu.compute_capability
        if self.recording is not None:
            return self.recording.workloads[0].environment.hardware.compute_capability
        return ""

    @property
    def gpu_name(self) -> str:
        """The GPU's name, live or recorded."""
        if self.gpu is not None:
            return self.gpu.name
        return self.recording.workloads[0].environment.hardware.gpu if self.recording else "no GPU"


def choose_source(options: Options, environ: Mapping[str, str] = os.environ) -> Source:
    """Return the source; raises `UnusableInput` for a recording that can't be read."""
    if options.replay is not None:
        return _replay(options, asked=True)
    gpu = environment.find_gpu()
    if gpu is not None:
        return Source("live", gpu=gpu)
    demanding = next((flag for flag in _demanding(options) if flag), "")
    if demanding:
        return Source(
            "none", why=f"{demanding} needs a GPU, and NVML finds none: run it where nvidia-smi shows one"
        )
    if environ.get("CI"):
        remedy = "with CI set nothing is replayed unless asked: run on a GPU, or pass --kperf-replay DIR"
        return Source("none", why=f"no GPU was found, and {remedy}")
    if options.fallback is not None:
        return _replay(options, asked=False)
    return Source(
        "none", why="no GPU was found, and there is no recording to replay: pass --kperf-replay DIR"
    )


def describe(source: Source) -> str:
    """Return the header's line about the source: GPU, versions and, for a replay, the date."""
    if source.kind == "none":
        return f"kernelperf: nothing to measure on: {source.why}"
    if source.kind == "live":
        return f"kernelperf: live on {source.gpu_name} ({_versions(_installed(source))})"
    recording = source.recording
    if recording is None:
        raise ValueError("a replay without a recording")
    dates = sorted({rec.recorded_at[:10] for rec in recording.workloads})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    stack = dict(recording.workloads[0].environment.stack)
    why = "" if source.asked else "; no GPU was found"
    return (
        f"kernelperf: REPLAY of {source.folder}: {source.gpu_name} ({_versions(stack)}), recorded {when}; "
        f"nothing is measured{why}"
    )


def _demanding(options: Options) -> tuple[str, ...]:
    return (
        "--kperf-require-gpu" if options.require_gpu else "",
        "--kperf-update-baselines" if options.update else "",
    )


def _replay(options: Options, *, asked: bool) -> Source:
    folder = options.replay if asked else options.fallback
    if folder is None:
        raise ValueError("no folder to replay")
    try:
        recording = read_recording(folder)
    except UnusableInput as error:
        named = "--kperf-replay" if asked else "kperf_fallback_recording (ini)"
        raise UnusableInput(f"{named}: {error}") from error
    return Source("replay", recording=recording, folder=options.shown(folder), asked=asked)


def _installed(source: Source) -> dict[str, str]:
    """The versions as they are installed here: nothing is imported for it."""
    versions = {"driver": source.gpu.driver} if source.gpu else {}
    for name in ("torch", "triton"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _versions(stack: Mapping[str, str]) -> str:
    return (
        ", ".join(f"{name} {stack[name]}" for name in _SHOWN_VERSIONS if stack.get(name))
        or "versions unknown"
    )
