"""A project that guards its modules with kernelperf: its files, its recordings, and runs of pytest in it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kernelperf.recording.records import WorkloadRecording
from kernelperf.workload import AxisValue, Declaration, Variant
from tests import builders

GUARDED = """
    import kernelperf

    @kernelperf.workload(dtype=["bf16"])
    def mlp(dtype):
        raise RuntimeError("a factory runs in workers only")

    def test_time(gpu_benchmark, mlp):
        gpu_benchmark(mlp)

    def test_kernels(mlp):
        mlp.check_kernels()
"""


def variant(name: str = "mlp", *, mode: Any = "forward", **params: Any) -> Variant:
    """Build the variant that a declaration in a test file stands for."""
    choices = tuple((axis, AxisValue(value)) for axis, value in (params or {"dtype": "bf16"}).items())
    declaration = Declaration(
        name, Path("test_guarded.py"), "test_guarded", 1, mode, 60.0, tuple((a, (v,)) for a, v in choices)
    )
    return Variant(declaration, choices)


def recorded(
    name: str = "mlp", *, mode: str = "forward", params: Any = None, **changes: Any
) -> WorkloadRecording:
    """Build a recording of a variant of this project."""
    described = variant(name, mode=mode, **(params or {}))
    values: dict[str, Any] = {
        "id": described.id,
        "params": tuple(sorted(described.params.items())),
        "mode": mode,
        "declared_in": "test_guarded.py",
        "sources": (),
        "definition": described.definition,
    }
    return builders.recording(name, **{**values, **changes})


def accepted(*workloads: WorkloadRecording) -> tuple[WorkloadRecording, ...]:
    """Make recordings what a baseline holds."""
    return tuple(replace(rec, reason="first", accepted_at="2026-02-03T04:05:06+00:00") for rec in workloads)


@dataclass
class Project:
    """Someone else's project."""

    pytester: pytest.Pytester
    root: Path

    def write(self, name: str, text: str) -> Path:
        """Write a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def guard(self, text: str = GUARDED) -> Path:
        """Write the test file."""
        return self.write("test_guarded.py", text)

    def ini(self, *lines: str) -> None:
        """Write the ini file."""
        body = "\n".join(("[pytest]", "addopts = -p no:cacheprovider", *lines))
        (self.root / "pytest.ini").write_text(body + "\n")

    def record(self, *workloads: WorkloadRecording, folder: str = "recording") -> Path:
        """Write a recording."""
        return builders.write(self.root / folder, *(workloads or (recorded(),)))

    def accept(self, *workloads: WorkloadRecording, gpu: str = "nvidia-h200") -> Path:
        """Write a baseline."""
        return builders.write(self.root / "baselines" / gpu, *accepted(*(workloads or (recorded(),))))

    def run(self, *arguments: str) -> pytest.RunResult:
        """Run pytest here, in this process."""
        return self.pytester.runpytest_inprocess(*arguments)

    def replay(self, *arguments: str) -> pytest.RunResult:
        """Run pytest on the recording."""
        return self.run("--kperf-replay", "recording", *arguments)


def last_line(result: pytest.RunResult) -> str:
    """Return the last line that pytest wrote."""
    return [line for line in result.outlines if line.strip()][-1]
