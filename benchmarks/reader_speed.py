"""How fast are large traces read, and in how much memory?

    python benchmarks/reader_speed.py -o reader_speed.json
    python benchmarks/reader_speed.py --hta-python OTHER_VENV/bin/python -o reader_speed.json

A real trace of an H200 is repeated, one repeat after another in time, until it has as many events as asked
for.  Each reader then reads the same file in a fresh process, in turns: `read_trace`; `orjson.loads` alone on
the bytes that lie ready in memory; and, where a Python that has it is named, HolisticTraceAnalysis.  The
first two run with Python's cyclic garbage collector on, as it is, and off, which helps orjson's millions of
dicts most.  Prints a row a size and reader: seconds, the share of orjson's, and the peak of memory over the
size of the decompressed text.  Every process counts the kernels that it read, where it can, against the known
number.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests" / "data" / "faults" / "geglu_eager-bf16" / "trace.json.gz"
SIZES = (50_000, 500_000, 2_000_000)
IDS_PER_REPEAT = 1_000_000
READERS = ("ours", "orjson", "ours, no gc", "orjson, no gc")

OURS = """
from kernelperf.trace.kineto import read_trace
begin()
kernels = len(read_trace(path).kernels)
end(kernels)
"""
ORJSON = """
import orjson
text = path.read_bytes()
begin(len(text))
content = orjson.loads(text)
end(sum(event.get("cat") == "kernel" for event in content["traceEvents"]))
"""
# Its own entry for one file, with its defaults; what it does with the frame afterwards is not timed.
HTA = """
import logging
logging.disable(logging.CRITICAL)
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig
begin()
_, frame, symbols = parse_trace_dataframe(str(path), ParserConfig.get_default_cfg())
end(None)
"""
MEASURE = """
import gc, json, resource, sys, time
from pathlib import Path
path = Path(sys.argv[1])
if "no gc" in sys.argv[2]:
    gc.disable()
def begin(held_bytes=0):
    global before, began
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - held_bytes
    began = time.perf_counter()
def end(kernels):
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "kernels": kernels}))
"""


@click.command()
@click.option("--events", "sizes", type=int, multiple=True, default=SIZES, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--hta-python", type=click.Path(path_type=Path), help="A Python with HolisticTraceAnalysis.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(sizes: tuple[int, ...], repeats: int, hta_python: Path | None, output: Path) -> None:
    """Time the readers side by side."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / f"{size}.json"
            rows += _measured(size, path, repeats, hta_python)
            path.unlink()
    content = {"rows": rows, "versions": _versions(hta_python), "cpus": os.cpu_count(), "date": _today()}
    output.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _measured(size: int, path: Path, repeats: int, hta_python: Path | None) -> Iterator[dict[str, Any]]:
    events, kernels = write_trace(path, size)
    readers = (*READERS, *(("HolisticTraceAnalysis",) if hta_python else ()))
    runs: dict[str, list[dict[str, Any]]] = {reader: [] for reader in readers}
    for _ in range(repeats):
        for reader in readers:
            runs[reader].append(_run(reader, path, kernels, hta_python))
    size_bytes = path.stat().st_size
    median = {reader: statistics.median(run["seconds"] for run in runs[reader]) for reader in readers}
    for reader in readers:
        row = {
            "events": events,
            "bytes": size_bytes,
            "reader": reader,
            "seconds": [round(run["seconds"], 3) for run in runs[reader]],
            "of_orjson": round(median[reader] / median["orjson"], 2),
            "peak_over_size": round(max(run["peak_bytes"] for run in runs[reader]) / size_bytes, 2),
        }
        told = (
            f"{median[reader]:7.2f} s  {row['of_orjson']:5.2f} of orjson  {row['peak_over_size']:5.2f} × size"
        )
        print(f"{events:>9,} events  {size_bytes / 1e6:6.0f} MB  {reader:<22}  {told}", flush=True)
        yield row


def _run(reader: str, path: Path, kernels: int, hta_python: Path | None) -> dict[str, Any]:
    code = {"ours": OURS, "orjson": ORJSON}.get(reader.partition(",")[0], HTA)
    python = str(hta_python) if code is HTA else sys.executable
    command = [python, "-c", MEASURE + code, str(path), reader]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{reader} failed on {path.name}: {done.stderr[-500:]}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if row["kernels"] not in (None, kernels):
        raise click.ClickException(f"{reader} read {row['kernels']} kernels of {kernels} in {path.name}")
    return row


def write_trace(path: Path, size: int) -> tuple[int, int]:
    """Write a trace of at least ``size`` events, and return how many it has, and how many kernels."""
    content = json.loads(gzip.decompress(SOURCE.read_bytes()))
    once = [event for event in content["traceEvents"] if event["ph"] == "M"]
    body = [event for event in content["traceEvents"] if event["ph"] != "M"]
    kernels = sum(event.get("cat") == "kernel" for event in body)
    steps = sum(
        event["name"].startswith("kernelperf_step#") and event["cat"] == "user_annotation" for event in body
    )
    span_us = max(e["ts"] + e.get("dur", 0) for e in body) - min(e["ts"] for e in body) + 1000
    repeats = -(-(size - len(once)) // len(body))
    head = json.dumps({**content, "traceEvents": []}, indent=1)
    front, back = head.split('"traceEvents": []')
    with path.open("w", encoding="utf-8") as file:
        file.write(f'{front}"traceEvents": [\n')
        file.write(",\n".join(json.dumps(event) for event in once))
        for number in range(repeats):
            for event in body:
                file.write(",\n" + json.dumps(_shifted(event, number, span_us, steps)))
        file.write(f"\n]{back}")
    return len(once) + repeats * len(body), repeats * kernels


def _shifted(event: dict[str, Any], number: int, span_us: float, steps: int) -> dict[str, Any]:
    """Move one event to its repeat: in time, and with ids and step numbers of its own."""
    moved = {**event, "ts": round(event["ts"] + number * span_us, 3)}
    if isinstance(event.get("id"), int):
        moved["id"] += number * IDS_PER_REPEAT
    name, mark, step = event["name"].partition("kernelperf_step#")
    if mark:
        moved["name"] = f"{name}{mark}{int(step) + number * steps}"
    if "args" in event:
        ids = ("correlation", "External id")
        moved["args"] = {
            key: value + number * IDS_PER_REPEAT if key in ids else value
            for key, value in event["args"].items()
        }
    return moved


def _versions(hta_python: Path | None) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("msgspec", "orjson", "numpy", "pytest-kernelperf"):
        try:
            found[name] = version(name)
        except PackageNotFoundError as error:
            raise click.ClickException(f"install {name} first") from error
    if hta_python:
        code = "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
        done = subprocess.run([str(hta_python), "-c", code], capture_output=True, text=True, check=True)
        found["HolisticTraceAnalysis"] = done.stdout.strip()
    return found


def _today() -> str:
    return time.strftime("%Y-%m-%d")


if __name__ == "__main__":
    main()
