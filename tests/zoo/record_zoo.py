"""Record a trace of each kind that torch.profiler writes, and count its kernels by another road.

    python tests/zoo/record_zoo.py OUT [--only NAME ...] [--no-ncu]

Each specimen is recorded in a fresh process into ``OUT/NAME.json.gz``.  Then the same steps run once more
under Nsight Compute, which replays every kernel launch it intercepts and shares nothing with the profiler
but the driver: ``OUT/counts.json`` holds its counts, and what torch reports in memory.  Needs a CUDA GPU.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import compress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def run(name: str, out: Path) -> None:
    """Record one specimen in this process."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from kernelperf.worker.profiling import machine_names, scrub, write_trace
    from tests.zoo.specimens import SPECIMENS

    specimen = SPECIMENS[name]()
    warm(specimen.step)
    options: dict[str, Any] = {"activities": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}
    with profile(**{"record_shapes": True, "acc_events": True, **options, **specimen.profile}) as profiler:
        for number in range(specimen.steps):
            with record_function(f"{specimen.mark}#{number}") if specimen.mark else nullcontext():
                specimen.step()
            if "schedule" in specimen.profile:
                profiler.step()
        torch.cuda.synchronize()
    raw = out / f"{name}.raw.json"
    profiler.export_chrome_trace(str(raw))
    write_trace(scrub(raw.read_text(errors="replace"), machine_names()), out / f"{name}.json.gz")
    raw.unlink()
    (out / f"{name}.torch.json").write_text(json.dumps(in_memory(profiler)))


def in_memory(profiler: Any) -> dict[str, int]:
    """Count what torch holds on the GPU without the file in between."""
    import torch

    events = profiler.profiler.kineto_results.events()
    gpu = [e for e in events if e.device_type() == torch.autograd.DeviceType.CUDA]
    work = [e for e in gpu if not e.is_user_annotation()]
    names = [e.name() for e in work]
    transfers = sum(name.startswith(("Memset", "Memcpy")) for name in names)
    sync = sum("Sync" in name or "Event" in name.split(" ")[:2] for name in names)
    return {"gpu_events": len(gpu), "work": len(work), "transfers": transfers, "sync_rows": sync}


def warm(step: Any) -> None:
    """Call the step until nothing is compiled any more."""
    import torch

    for _ in range(3):
        step()
    torch.cuda.synchronize()


def bare(name: str) -> None:
    """Run the recorded steps between the marks that Nsight Compute profiles."""
    import torch

    from tests.zoo.specimens import SPECIMENS

    specimen = SPECIMENS[name]()
    warm(specimen.step)
    torch.cuda.cudart().cudaProfilerStart()
    for _ in range(specimen.steps):
        specimen.step()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def record(out: Path) -> Callable[[str], bool]:
    """Return what records one specimen in a process of its own, and tells whether it did."""

    def recording(name: str) -> bool:
        command = [sys.executable, __file__, str(out), "--run", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        print(
            f"{name}: recorded" if not done.returncode else f"{name}: failed\n{done.stderr[-1500:]}",
            flush=True,
        )
        return not done.returncode

    return recording


def ncu_count(name: str) -> int | str:
    """Return how many kernels Nsight Compute saw; its words where it failed."""
    command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    command += ["--metrics", "launch__grid_size", sys.executable, __file__, "--bare", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    if "No kernels were profiled" in done.stdout + done.stderr:
        return 0
    rows = [row for row in csv.DictReader(lines) if (row.get("ID") or "").isdigit()]
    return len(rows) if rows else (done.stdout + done.stderr)[-600:]


def main() -> None:
    """Record the specimens asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--run")
    parser.add_argument("--bare")
    parser.add_argument("--no-ncu", action="store_true")
    asked = parser.parse_args()
    if asked.bare:
        return bare(asked.bare)
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.run:
        return run(asked.run, asked.out)
    from tests.zoo.specimens import SPECIMENS

    names = asked.only or list(SPECIMENS)
    with ThreadPoolExecutor(4) as pool:
        recorded = list(compress(names, pool.map(record(asked.out), names)))
    path = asked.out / "counts.json"
    counts = json.loads(path.read_text()) if path.exists() else {}
    for name in recorded:
        torch_counts = asked.out / f"{name}.torch.json"
        counts[name] = {"torch": json.loads(torch_counts.read_text())}
        torch_counts.unlink()
        path.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    for name in recorded if shutil.which("ncu") and not asked.no_ncu else ():
        counts[name]["ncu_kernels"] = ncu_count(name)
        print(name, counts[name], flush=True)
        path.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    return None


if __name__ == "__main__":
    main()
