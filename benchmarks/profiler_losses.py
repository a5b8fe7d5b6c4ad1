"""Does torch.profiler lose kernels, and is a loss noticed?

    python benchmarks/profiler_losses.py natural --processes 60 -o natural.json
    python benchmarks/profiler_losses.py provoke --traces DIR -o provoked.json

``natural`` starts fresh processes, each with several sessions of marked steps whose kernels are known, and
counts the sessions that lost any, by the count itself and by what `kernelperf.trace` says of the trace.
``provoke`` brings losses about: CUPTI buffers that are too few, a session that ends while the GPU works, one
that starts while it works, launches from another thread across both ends, two sessions at once.  Each row
says how many kernels were launched within the session, how many the trace holds, and the problems found.
Needs a CUDA GPU, and for the few buffers a C compiler.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
STEPS, KERNELS_PER_STEP = 10, 5
SESSIONS = 10


@click.group()
def main() -> None:
    """Study the profiler's losses."""


@main.command()
@click.option("--processes", default=60, show_default=True)
@click.option("--at-once", default=6, show_default=True)
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def natural(processes: int, at_once: int, output: Path) -> None:
    """Count the sessions of fresh processes that lost kernels."""
    with ThreadPoolExecutor(at_once) as pool:
        rows = [row for rows in pool.map(lambda _: _child("sessions"), range(processes)) for row in rows]
    lost = [row for row in rows if row["kernels"] != row["launched"]]
    flagged = [row for row in rows if row["problems"]]
    summary = {
        "processes": processes,
        "sessions": len(rows),
        "kernels": sum(row["launched"] for row in rows),
        "sessions_that_lost": len(lost),
        "sessions_with_a_problem": len(flagged),
        "lost_or_flagged": [row for row in rows if row in lost or row in flagged],
        **_stack(),
    }
    _write(output, summary)


@main.command()
@click.option("--traces", type=click.Path(path_type=Path), help="Keep the traces here.")
@click.option("--only", multiple=True, help="A provocation by name; repeatable.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def provoke(traces: Path | None, only: tuple[str, ...], output: Path) -> None:
    """Bring losses about, and say what was found of each."""
    rows = []
    environments = {
        "small_buffer": [{}, _kineto_limit()],
        "few_buffers": _few_buffers(),
        "few_buffers_marked": _few_buffers(),
    }
    for name in only or PROVOCATIONS:
        for environment in environments.get(name, [{}]):
            rows += _child(name, {**environment, "KEEP": str(traces or "")})
    _write(output, {"rows": rows, **_stack()})


@main.command(hidden=True)
@click.argument("name")
def child(name: str) -> None:
    """Run one study in this process and print its rows."""
    sys.path[:0] = [str(ROOT / "src")]
    import torch

    x = torch.ones(64, device="cuda")
    torch.cuda.synchronize()
    for row in (sessions if name == "sessions" else PROVOCATIONS[name])(torch, x):
        print("ROW " + json.dumps(row), flush=True)


def sessions(torch: Any, _: Any) -> Iterator[dict[str, Any]]:
    """Profile marked steps of five kernels, session after session."""
    from torch import nn

    with torch.no_grad():
        up = nn.Linear(256, 1024, bias=False, device="cuda", dtype=torch.bfloat16)
        gate = nn.Linear(256, 1024, bias=False, device="cuda", dtype=torch.bfloat16)
        down = nn.Linear(1024, 256, bias=False, device="cuda", dtype=torch.bfloat16)
        x = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16)

        def step() -> None:
            down(nn.functional.gelu(gate(x), approximate="tanh") * up(x))

        step()
        torch.cuda.synchronize()
        for number in range(SESSIONS):
            with _session(torch) as profiler:
                for index in range(STEPS):
                    with torch.profiler.record_function(f"kernelperf_step#{index}"):
                        step()
                torch.cuda.synchronize()
            yield {"session": number, **_read(profiler, STEPS * KERNELS_PER_STEP)}
            time.sleep(0.05)


def small_buffer(torch: Any, x: Any) -> Iterator[dict[str, Any]]:
    """Launch more than the profiler's own limit of 1 MB of buffers holds, which it doesn't keep to."""
    yield from _many(torch, x, 20_000, "small_buffer", f"kineto limit: {'KINETO_CONFIG' in os.environ}")


def few_buffers(torch: Any, x: Any) -> Iterator[dict[str, Any]]:
    """Launch more than fits into the few buffers that CUPTI is handed (`cupti_few_buffers.c`)."""
    number, size = os.environ.get("CUPTI_BUFFERS"), os.environ.get("CUPTI_BUFFER_BYTES")
    for session in range(2):
        keep = f"few_buffers_{number}_of_{size}_{session}"
        yield from _many(torch, x, 600, "few_buffers", f"{number} buffers of {size} B", keep)


def few_buffers_marked(torch: Any, x: Any) -> Iterator[dict[str, Any]]:
    """The same in marked steps of twenty kernels each."""
    number, size = os.environ.get("CUPTI_BUFFERS"), os.environ.get("CUPTI_BUFFER_BYTES")
    with _session(torch) as profiler:
        for index in range(10):
            with torch.profiler.record_function(f"kernelperf_step#{index}"):
                for _ in range(20):
                    x.add_(1)
        torch.cuda.synchronize()
    how = f"{number} buffers of {size} B, marked steps"
    yield {
        "what": "few_buffers",
        "how": how,
        **_read(profiler, 200, f"few_buffers_marked_{number}_of_{size}"),
    }


def _many(torch: Any, x: Any, number: int, what: str, how: str, keep: str = "") -> Iterator[dict[str, Any]]:
    with _session(torch) as profiler:
        for _ in range(number):
            x.add_(1)
        torch.cuda.synchronize()
    yield {"what": what, "how": how, **_read(profiler, number, keep)}


def another_subscriber(torch: Any, x: Any) -> Iterator[dict[str, Any]]:
    """Profile while another tool holds CUPTI: Triton's own profiler."""
    import triton.profiler as proton

    with tempfile.TemporaryDirectory() as folder:
        proton.start(str(Path(folder) / "proton"))
        with _session(torch) as profiler:
            for _ in range(20):
                x.add_(1)
            torch.cuda.synchronize()
        proton.finalize()
    yield {"what": "another_subscriber", **_read(profiler, 20, "another_subscriber")}


def stopped_early(torch: Any, x: Any) -> Iterator[dict[str, Any]]:
    """End the session while the GPU still works: nothing waits for it."""
    number, synchronize = 200, torch.cuda.synchronize
    profiler = _session(torch)
    profiler.__enter__()
    for index in range(number):
        if index == number // 2:
            torch.cuda._sleep(200_000_000)
        x.add_(1)
    torch.cuda.synchronize = lambda *_: None
    try:
        profiler.__exit__(None, None, None)
    finally:
        torch.cuda.synchronize = synchronize
    torch.cuda.synchronize()
    yield {"what": "stopped_early", **_read(profiler, number + 1, "stopped_early")}


def started_late(torch: Any, x: Any) -> Iterator[dict[str, Any]]:
    """Start the session while the GPU still works off what was launched before."""
    torch.cuda._sleep(400_000_000)
    for _ in range(50):
        x.add_(1)
    with _session(torch) as profiler:
        for _ in range(100):
            x.add_(1)
        torch.cuda.synchronize()
    yield {"what": "started_late", **_read(profiler, 100, "started_late")}


def another_thread(torch: Any, x: Any) -> Iterator[dict[str, Any]]:
    """Let a thread launch all the time, across the session's start and end."""
    done = threading.Event()
    launched = 0

    def launching() -> None:
        nonlocal launched
        while not done.is_set():
            x.add_(1)
            launched += 1
            time.sleep(0.0002)

    thread = threading.Thread(target=launching)
    thread.start()
    time.sleep(0.05)
    for number in range(5):
        with _session(torch) as profiler:
            before = launched
            time.sleep(0.05)
            within = launched - before
        row = _read(profiler, None, f"another_thread_{number}")
        yield {"what": "another_thread", "launched_at_least": within, **row}
    done.set()
    thread.join()


def two_at_once(torch: Any, x: Any) -> Iterator[dict[str, Any]]:
    """Start a second session within the first, on the same thread and on another."""

    def inner() -> Any:
        with _session(torch) as profiler:
            for _ in range(20):
                x.add_(1)
            torch.cuda.synchronize()
        return profiler

    for where in ("same_thread", "other_thread"):
        said: list[str] = []
        profilers: list[Any] = []

        def second(said: list[str] = said, profilers: list[Any] = profilers) -> None:
            try:
                profilers.append(inner())
            except RuntimeError as error:
                said.append(str(error).splitlines()[0])

        outer = _session(torch)
        try:
            with outer:
                x.add_(1)
                if where == "same_thread":
                    second()
                else:
                    thread = threading.Thread(target=second)
                    thread.start()
                    thread.join()
                for _ in range(10):
                    x.add_(1)
                torch.cuda.synchronize()
        except RuntimeError as error:
            said.append("outer: " + str(error).splitlines()[0])
        row = {"what": f"two_at_once/{where}", "said": said}
        for kind, profiler, launched in (("outer", outer, 31), *(("inner", p, 20) for p in profilers)):
            try:
                found = _read(profiler, launched, f"two_at_once_{where}_{kind}")
            except (RuntimeError, AssertionError, AttributeError) as error:
                found = {"launched": launched, "export": f"{type(error).__name__}: {error}".splitlines()[0]}
            yield {**row, "session": kind, **found}


def cycles(torch: Any, x: Any) -> Iterator[dict[str, Any]]:
    """Three cycles of a schedule, of which the last alone is exported."""
    with _session(torch, schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=3)) as profiler:
        for _ in range(9):
            x.add_(1)
            profiler.step()
        torch.cuda.synchronize()
    yield {"what": "cycles", **_read(profiler, 6, "cycles")}


def many_sessions_idle(torch: Any, x: Any) -> Iterator[dict[str, Any]]:
    """Let the GPU idle for a while between sessions, which elsewhere lost the first kernels."""
    for number in range(4):
        time.sleep(2)
        with _session(torch) as profiler:
            for _ in range(50):
                x.add_(1)
            torch.cuda.synchronize()
        yield {"what": "many_sessions_idle", "session": number, **_read(profiler, 50)}


PROVOCATIONS: dict[str, Callable[[Any, Any], Iterator[dict[str, Any]]]] = {
    each.__name__: each
    for each in (
        small_buffer,
        few_buffers,
        few_buffers_marked,
        another_subscriber,
        stopped_early,
        started_late,
        another_thread,
        two_at_once,
        cycles,
        many_sessions_idle,
    )
}


def _session(torch: Any, **options: Any) -> Any:
    kinds = torch.profiler.ProfilerActivity
    return torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA], acc_events=True, **options)


def _read(profiler: Any, launched: int | None, keep: str = "") -> dict[str, Any]:
    """Export the trace, read it, and say what is in it."""
    from kernelperf.trace.kineto import read_trace

    with _exported(profiler) as path:
        trace = read_trace(path)
        row = {
            "launched": launched,
            "kernels": len(trace.kernels),
            "log": _log_of(path),
            "problems": {problem.code: problem.count for problem in trace.problems},
            "bytes": path.stat().st_size,
        }
        folder = os.environ.get("KEEP")
        if folder and keep:
            from kernelperf.worker.profiling import machine_names, scrub, write_trace

            Path(folder).mkdir(parents=True, exist_ok=True)
            text = scrub(path.read_text(errors="replace"), machine_names())
            write_trace(text, Path(folder) / f"{keep}.json.gz")
        return row


def _log_of(path: Path) -> list[str]:
    """Return what the profiler itself wrote of warnings and errors into the trace."""
    content = json.loads(path.read_bytes())
    return [line for key in ("WARNING", "ERROR") for line in content.get(key, [])][:5]


@contextmanager
def _exported(profiler: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        yield path


def _few_buffers() -> list[dict[str, str]]:
    source, library = Path(__file__).with_name("cupti_few_buffers.c"), Path(tempfile.gettempdir()) / "few.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return [
        {"LD_PRELOAD": str(library), "CUPTI_BUFFERS": str(buffers), "CUPTI_BUFFER_BYTES": str(size)}
        for buffers, size in ((1, 65536), (3, 65536), (8, 8192), (5, 8192))
    ]


def _kineto_limit() -> dict[str, str]:
    path = Path(tempfile.gettempdir()) / "kineto.conf"
    path.write_text("ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB=1\n")
    return {"KINETO_CONFIG": str(path)}


def _child(name: str, environment: dict[str, str] | None = None) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, "child", name]
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    rows = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if done.returncode:
        rows.append({"what": name, "failed": done.returncode, "said": done.stderr.splitlines()[-1][:300]})
    print(rows if name != "sessions" else f"{len(rows)} sessions", flush=True)
    return rows


def _stack() -> dict[str, str]:
    command = "import torch; print(torch.__version__, torch.cuda.get_device_name(), sep='|')"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    torch_version, gpu = done.stdout.strip().split("|")
    return {"torch": torch_version, "gpu": gpu, "date": time.strftime("%Y-%m-%d")}


def _write(output: Path, content: dict[str, Any]) -> None:
    output.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in content.items() if k not in ("rows", "lost_or_flagged")}))


if __name__ == "__main__":
    main()
