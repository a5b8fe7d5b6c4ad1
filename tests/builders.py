"""Recordings for tests: a small one to change in one place, and real ones from repeated runs on two H200s."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kernelperf.environment import Environment, GpuState, Hardware
from kernelperf.protocol import Observations, ProbeResult, TritonSource
from kernelperf.recording import Counts, FactOutcome, KernelRecord, Run, WorkloadRecording, write_workload

H200 = Hardware(
    gpu="NVIDIA H200",
    sm_count=132,
    memory_bytes=150_109_880_320,
    compute_capability="9.0",
    mig="",
    power_limit_w=700,
)
STACK = (("cuda", "13.0"), ("driver", "580.159"), ("torch", "2.11.0"), ("triton", "3.6.0"))
GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
FUSED = "triton_poi_fused__unsafe_view_gelu_mul_0"
WIDE, NARROW = "XBLOCK=1024 warps=4 stages=1", "XBLOCK=512 warps=8 stages=1"
# Runs as they vary on an unchanged H200: a few tenths of a percent.
RUN_FACTORS = (1.0, 1.002, 0.999, 1.001, 0.998)
_DATA = Path(__file__).parent / "data" / "aa" / "h200.jsonl"


def kernel(name: str = GEMM, duration_us: float = 55.0, **more: Any) -> KernelRecord:
    """Build one kernel of a step."""
    values: dict[str, Any] = {
        "role": "pointwise" if "poi" in name or "elementwise" in name else "gemm",
        "op": "aten::mm" if "nvjet" in name else name,
        "grid": (132, 1, 1),
        "block": (384, 1, 1),
        "registers": 168,
        "config": "",
    }
    return KernelRecord(name=name, duration_ns=duration_us * 1e3, **{**values, **more})


def fused(config: str = WIDE, duration_us: float = 36.8) -> KernelRecord:
    """Build Inductor's fused kernel in one of its two launch configs."""
    narrow = config == NARROW
    return kernel(
        FUSED,
        duration_us,
        grid=(49152 if narrow else 24576, 1, 1),
        block=(256 if narrow else 128, 1, 1),
        registers=16 if narrow else 31,
        config=config,
    )


def geglu_kernels(config: str = WIDE, fused_us: float = 36.8) -> tuple[KernelRecord, ...]:
    """Build the four kernels of the compiled GeGLU MLP."""
    return (
        kernel(),
        kernel(),
        fused(config, fused_us),
        kernel("nvjet_sm90_tst_192x128_64x5_coopB_TNT", 50.6),
    )


def observations(**changes: Any) -> Observations:
    """Build what a worker saw beside the times."""
    values: dict[str, Any] = {
        "peak_memory_bytes": 264_241_152,
        "dynamo_graphs": 1,
        "graph_breaks": 0,
        "recompiles": 0,
        "triton_compilations": 2,
        "relative_error": 0.0031,
        "reference_norm": 812.25,
        "reference_digest": "5f70bf18",
        "probes": [ProbeResult("new_batch", 1, 1)],
        "triton_sources": [TritonSource(FUSED, ["in_out_ptr0", "in_ptr0"])],
    }
    return Observations(**{**values, **changes})


def run(us: float = 206.8, *, kernels: Sequence[KernelRecord] | None = None, **changes: Any) -> Run:
    """Build a run of 15 rounds that reads ``us`` where it counts: the first rounds read high."""
    launched = tuple(geglu_kernels() if kernels is None else kernels)
    rounds = [us * 1.02] * 3 + [us * 0.995, us * 1.005] * 6
    values: dict[str, Any] = {
        "gpu_time_ns": tuple(value * 1e3 for value in rounds),
        "wall_time_ns": tuple(value * 1.3e3 for value in rounds[:4]),
        "queue_held": True,
        "repeats": 1,
        "first_call_s": 3.25,
        "kernels": launched,
        "counts": Counts(kernels=len(launched), memsets=2, memcpys=0, host_ops=31, runtime_calls=9),
        "observations": observations(),
        "state": GpuState(
            sm_clock_mhz=1980, temperature_c=50, power_w=571.5, event_reasons=4, other_processes=0
        ),
        "card": "a1b2c3",
    }
    return Run(**{**values, **changes})


def runs(us: float = 206.8, number: int = 5, **changes: Any) -> tuple[Run, ...]:
    """Build runs that vary as unchanged ones do."""
    return tuple(run(us * factor, **changes) for factor in RUN_FACTORS[:number])


def untimed(one: Run) -> Run:
    """Take a run's times away: what is recorded with timing off."""
    return replace(one, gpu_time_ns=(), wall_time_ns=())


def recording(name: str = "geglu_compiled", **changes: Any) -> WorkloadRecording:
    """Build the recording of one variant, accepted by nobody yet, its one fact held."""
    values: dict[str, Any] = {
        "id": f"{name}-bf16",
        "name": name,
        "params": (("dtype", "bf16"), ("shape", (64, 128, 768))),
        "mode": "forward",
        "declared_in": "fixtures/geglu.py",
        "about": (("layer", "GeGLU MLP"),),
        "sources": (("fixtures/geglu.py", "ab" * 32),),
        "cache_policy": "fresh per worker",
        "environment": Environment(H200, "a1b2c3", STACK),
        "recorded_at": "2026-03-04T05:06:07+00:00",
        "runs": runs(),
        "facts": (FactOutcome(f"perf_tests/test_geglu.py::test_kernels[{name}-bf16]", "passed"),),
        "definition": "d41d8cd9",
    }
    return WorkloadRecording(**{**values, **changes})


def environment(**changes: Any) -> Environment:
    """Build the environment that `recording` uses, changed."""
    return replace(Environment(H200, "a1b2c3", STACK), **changes)


def trace_file(folder: Path, content: str = "{}") -> Path:
    """Write a gzip file that stands for a trace."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "exported.json.gz"
    path.write_bytes(gzip.compress(content.encode(), mtime=0))
    return path


def write(folder: Path, *workloads: WorkloadRecording) -> Path:
    """Write a recording's folder with these workloads."""
    for rec in workloads:
        write_workload(rec, folder / rec.id, trace_file(folder.parent / "traces", rec.id))
    return folder


@cache
def _real_processes() -> tuple[dict[str, Any], ...]:
    return tuple(map(json.loads, _DATA.read_text().splitlines()))


def real_recording(workload: str, card: str, processes: slice, slowed: float = 1.0) -> WorkloadRecording:
    """Build a recording from real rounds of fresh processes on H200 ``a`` or ``b``, times ``slowed``."""
    chosen = [process for process in _real_processes() if process["card"] == card][processes]
    return recording(
        workload,
        runs=tuple(_real_run(process, workload, slowed) for process in chosen),
        environment=environment(card=card),
    )


def _real_run(process: dict[str, Any], workload: str, slowed: float) -> Run:
    kernels = tuple(kernel(name, us * slowed) for name, us in process["kernels"][workload])
    state = {field: process[field] for field in ("sm_clock_mhz", "temperature_c", "power_w", "event_reasons")}
    rounds_ns = tuple(us * 1e3 * slowed for us in process["rounds_us"][workload])
    return run(
        kernels=kernels, gpu_time_ns=rounds_ns, wall_time_ns=(), state=GpuState(**state), card=process["card"]
    )
