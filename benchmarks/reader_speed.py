"""How fast are large traces read, and in how much memory?

    python benchmarks/reader_speed.py -o reader_speed.json
    python benchmarks/reader_speed.py --hta-python OTHER_VENV/bin/python -o reader_speed.json

A real trace of an H200 is repeated, one repeat after another in time, until it has at least as many events
as asked for.  Each reader then reads the same file, in turns, each time in a fresh process: `read_trace`,
file and all; `orjson.loads` alone, on the bytes that lie ready in memory; and, where a Python that has it
is named, HolisticTraceAnalysis (HTA).  The first two run with Python's cyclic garbage collector on, as it
is, and off, which helps orjson's millions of dicts most.  Prints a row a size and reader: the median of the
seconds, ours over it (both with the collector on, or both off), microseconds an event, and the peak of
memory beyond that before reading, over the size of the text.  Every process must have read the known number
of kernels.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests" / "data" / "faults" / "geglu_eager-bf16" / "trace.json.gz"
SIZES = (50_000, 500_000, 2_000_000)
IDS_PER_REPEAT = 10_000  # more than the source has; 2 million events stay below the 32 bits of a real id
HTA = "HTA"
# Each reader, and the one of ours that it is compared with.
READERS = {
    "ours": "ours",
    "orjson": "ours",
    "ours, no gc": "ours, no gc",
    "orjson, no gc": "ours, no gc",
    HTA: "ours",
}

# What every process runs first.  What is read stays alive until the clock has stopped, and is counted then.
# VmHWM is the peak of the process itself; ru_maxrss, else the same, starts at the peak of its parent.
MEASURE = """
import gc, json, sys, time
from pathlib import Path
path = Path(sys.argv[1])
if "no gc" in sys.argv[2]:
    gc.disable()
def peak_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
def measure(read, count, held_bytes=0):
    before = peak_bytes() - held_bytes
    began = time.perf_counter()
    content = read()
    seconds = time.perf_counter() - began
    peak = peak_bytes() - before
    print(json.dumps({"seconds": seconds, "peak_bytes": peak, "kernels": count(content)}))
"""
OURS_CODE = """
from kernelperf.trace.kineto import read_trace
measure(lambda: read_trace(path), lambda trace: len(trace.kernels))
"""
# The text counts as memory of orjson's, as it does for the others, who read it within the measured time.
ORJSON_CODE = """
import orjson
text = path.read_bytes()
def count(content):
    return sum(event.get("cat") == "kernel" for event in content["traceEvents"])
measure(lambda: orjson.loads(text), count, held_bytes=len(text))
"""
# HTA's public function for one file, with its defaults: the file as a data frame, its kernels linked to their
# calls, as ours are.  It wants a name that ends in .json or .gz; a rank (`distributedInfo`) is needed only to
# tell the files of a folder apart, not here.  Its log, of a line or two a file, is off.
HTA_CODE = """
import logging
logging.disable(logging.CRITICAL)
from hta.common.trace import parse_trace_file
def count(content):
    _, frame, symbols = content
    return int((frame["cat"] == symbols.get_sym_id_map()["kernel"]).sum())
measure(lambda: parse_trace_file(str(path)), count)
"""


@click.command()
@click.option(
    "--events", "sizes", type=int, multiple=True, default=SIZES, show_default=True, help="may be repeated"
)
@click.option("--repeats", default=3, show_default=True, help="runs of each reader on each size")
@click.option("--hta-python", type=click.Path(path_type=Path), help="a Python that has HolisticTraceAnalysis")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="write the rows as JSON here")
def main(sizes: tuple[int, ...], repeats: int, hta_python: Path | None, output: Path | None) -> None:
    """Time the readers side by side."""
    versions = _versions(hta_python)
    pythons = {reader: sys.executable for reader in READERS if reader != HTA}
    if hta_python:
        pythons[HTA] = str(hta_python)
    print(
        f"{'events':>9}  {'MB':>5}  {'reader':<13}  {'seconds':>8}  {'ours / it':>9}  {'µs/event':>8}  "
        f"{'peak / size':>11}"
    )
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / f"{size}.json"
            events, kernels = write_trace(path, size)
            runs = measured(path, repeats, pythons, kernels)
            about = {"events": events, "kernels": kernels, "bytes": path.stat().st_size}
            found = summary(about, runs)
            for row in found:
                print(_line(row), flush=True)
            rows += found
            path.unlink()
    if output:
        content = {
            "date": time.strftime("%Y-%m-%d"),
            "versions": versions,
            "cpus": os.cpu_count(),
            "repeats": repeats,
            "rows": rows,
        }
        output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def measured(
    path: Path, repeats: int, pythons: dict[str, str], kernels: int
) -> dict[str, list[dict[str, Any]]]:
    """Run every reader on one file, in turns; one that failed isn't run again."""
    runs: dict[str, list[dict[str, Any]]] = {reader: [] for reader in pythons}
    for _ in range(repeats):
        for reader, python in pythons.items():
            if not any("error" in run for run in runs[reader]):
                _keep_in_page_cache(path)
                runs[reader].append(_run(reader, python, path, kernels))
    return runs


def summary(about: dict[str, int], runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row a reader; of one that failed, its error stands in place of the numbers."""
    errors = {reader: run["error"] for reader, each in runs.items() for run in each if "error" in run}
    seconds = {
        reader: [run["seconds"] for run in each] for reader, each in runs.items() if reader not in errors
    }
    medians = {reader: statistics.median(each) for reader, each in seconds.items()}
    rows: list[dict[str, Any]] = []
    for reader in runs:
        if reader in errors:
            rows.append({**about, "reader": reader, "error": errors[reader]})
            continue
        peak = max(run["peak_bytes"] for run in runs[reader])
        rows.append(
            {
                **about,
                "reader": reader,
                "seconds": [round(each, 4) for each in seconds[reader]],
                "median_seconds": round(medians[reader], 4),
                "ours_over_it": round(medians[READERS[reader]] / medians[reader], 3),
                "us_per_event": round(1e6 * medians[reader] / about["events"], 3),
                "peak_over_size": round(peak / about["bytes"], 2),
            }
        )
    return rows


def _line(row: dict[str, Any]) -> str:
    start = f"{row['events']:>9,}  {row['bytes'] / 1e6:5.0f}  {row['reader']:<13}"
    if "error" in row:
        return f"{start}  {row['error']}"
    return (
        f"{start}  {row['median_seconds']:8.3f}  {row['ours_over_it']:9.3f}  {row['us_per_event']:8.3f}  "
        f"{row['peak_over_size']:11.2f}"
    )


def _keep_in_page_cache(path: Path) -> None:
    """Read the file once, so that no reader waits for the disk after one that took the memory."""
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass


def _run(reader: str, python: str, path: Path, kernels: int) -> dict[str, Any]:
    """Read the file once in a fresh process; that another's reader fails is a result."""
    code = {"ours": OURS_CODE, "orjson": ORJSON_CODE, HTA: HTA_CODE}[reader.partition(",")[0]]
    command = [python, "-c", MEASURE + code, str(path), reader]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        error = _error(done, path)
        if reader == HTA:
            return {"error": error}
        raise click.ClickException(f"{reader} failed on {path.name}: {error}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if row["kernels"] != kernels:
        raise click.ClickException(f"{reader} read {row['kernels']} kernels of {kernels} in {path.name}")
    return row


def _error(done: subprocess.CompletedProcess[str], path: Path) -> str:
    if done.returncode < 0:
        return f"killed by {signal.Signals(-done.returncode).name}"
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return last.replace(str(path), path.name)


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
    for package in ("pytest-kernelperf", "msgspec", "numpy", "orjson"):
        try:
            found[package] = version(package)
        except PackageNotFoundError as error:
            raise click.ClickException(f"install {package} first") from error
    if hta_python:
        found |= _hta_versions(hta_python)
    return found


def _hta_versions(python: Path) -> dict[str, str]:
    code = """
import json, platform
from importlib.metadata import version
print(json.dumps({"HTA": version("HolisticTraceAnalysis"), "HTA's pandas": version("pandas"),
    "HTA's python": platform.python_version()}))
"""
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException("the Python of --hta-python has no HolisticTraceAnalysis")
    found: dict[str, str] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
