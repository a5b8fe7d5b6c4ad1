"""A project on an H200 that isn't there: the workers are scripted, all else is the real thing."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kernelperf import environment
from kernelperf.conductor.plans import Settings
from kernelperf.environment import GpuInfo
from kernelperf.plugin import session
from kernelperf.recording import read_workload, write_workload
from kernelperf.recording.records import WorkloadRecording
from tests.project import Project
from tests.scripted_worker import DEVICE

WORKER = Path(__file__).with_name("scripted_worker.py")
GPU = GpuInfo(
    "NVIDIA H200", "9.0", 150754820096, "", 700, "580.159.04", f"GPU-{DEVICE['uuid']}", exclusive=False
)


@dataclass
class LiveProject(Project):
    """A project whose workers do as they are told."""

    workers: Path

    def script(self, **told: dict[str, str]) -> None:
        """Tell workers what to do instead of answering: ``mlp={"Burst:3": "crash"}``."""
        script = {f"{name}-bf16": commands for name, commands in told.items()}
        (self.workers / "script.json").write_text(json.dumps(script))

    def journal(self) -> list[str]:
        """Return which commands the workers began, and forget them."""
        path = self.workers / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return [line.removesuffix(" begins") for line in lines if line.endswith(" begins")]

    def builds(self) -> list[str]:
        """Return which workers were started since the journal was last read, one entry a run."""
        return [line.split()[0] for line in self.journal() if line.endswith(" Build")]

    def recorded(self, name: str = "mlp") -> WorkloadRecording:
        """Read what was recorded of a workload."""
        return read_workload(self.root / ".kernelperf" / f"{name}-bf16")

    def stored(self, name: str = "mlp") -> WorkloadRecording:
        """Read a workload's baseline."""
        return read_workload(self.root / "baselines" / "nvidia-h200" / f"{name}-bf16")

    def set_baseline_factor(self, factor: float, name: str = "mlp") -> None:
        """Change the times of a stored baseline."""
        rec = self.stored(name)
        runs = tuple(
            replace(run, gpu_time_ns=tuple(factor * ns for ns in run.gpu_time_ns)) for run in rec.runs
        )
        write_workload(replace(rec, runs=runs), self.root / "baselines" / "nvidia-h200" / rec.id, None)


def scripted(project: Project, monkeypatch: pytest.MonkeyPatch) -> LiveProject:
    """Give a project a GPU that NVML tells of, and workers that need none."""
    workers = project.root / "workers"
    workers.mkdir()
    (workers / "script.json").write_text("{}")
    monkeypatch.setattr(environment, "find_gpu", lambda *_, **__: GPU)

    def measuring(options, rules):
        return Settings(
            root=options.root,
            rounds=5,
            wall_rounds=1,
            worker_command=(sys.executable, str(WORKER), str(workers)),
            lane=options.lane,
            rules=rules,
            side_by_side=True,
        )

    monkeypatch.setattr(session, "measuring", measuring)
    return LiveProject(project.pytester, project.root, workers)
