"""Record traces that other tools write, each of work that did launch kernels: a reader must refuse them.

    python tests/zoo/record_foreign.py OUT

Needs a CUDA GPU; a tool that isn't installed is left out, and said so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch


def work() -> torch.Tensor:
    x = torch.ones(64, 64, device="cuda")
    y = (x @ x).relu()
    torch.cuda.synchronize()
    return y


def execution_trace(out: Path) -> None:
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(out / "execution_trace.json"))
    observer.start()
    work()
    observer.stop()
    observer.unregister_callback()


def memory_timeline(out: Path) -> None:
    options = {"record_shapes": True, "profile_memory": True, "with_stack": True}
    with torch.profiler.profile(**options) as profiler:
        work()
    profiler.export_memory_timeline(str(out / "memory_timeline.json"), device="cuda:0")


def jax_traces(out: Path) -> None:
    import jax
    import jax.numpy as jnp

    with tempfile.TemporaryDirectory() as folder:
        step = jax.jit(lambda x: jnp.tanh(x @ x))
        x = jnp.ones((64, 64))
        step(x).block_until_ready()
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            step(x).block_until_ready()
        for number, path in enumerate(sorted(Path(folder).rglob("*.json.gz"))):
            kind = "perfetto" if "perfetto" in path.name else "tensorflow"
            shutil.copy(path, out / f"jax_{kind}_{number}.json.gz")


def proton(out: Path) -> None:
    import triton.profiler as proton_profiler

    with tempfile.TemporaryDirectory() as folder:
        for data in ("tree", "trace"):
            session = proton_profiler.start(str(Path(folder) / data), data=data)
            work()
            proton_profiler.finalize(session)
        for path in sorted(Path(folder).iterdir()):
            shutil.copy(path, out / f"proton_{path.name}")


TOOLS = {tool.__name__: tool for tool in (execution_trace, memory_timeline, jax_traces, proton)}


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        work()
        return TOOLS[sys.argv[2]](out)
    for name in TOOLS:  # a process each: only one of them at a time may subscribe to CUPTI
        command = [sys.executable, __file__, str(out), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(name, "failed: " + done.stderr[-600:] if done.returncode else "recorded", flush=True)
    return None


if __name__ == "__main__":
    main()
