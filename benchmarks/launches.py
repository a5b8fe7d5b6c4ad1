"""Where a process's own offset comes from: how far apart its kernels start, by the stream they are on.

    python benchmarks/launches.py sets.json.gz

Reads files of `record_sets.py --streams --suite-only`.  For each workload: the spread between processes on
torch's own stream, the same less what the process's launch probe reads (once a kernel), the same over eight
streams in turn, and how probe and value go together.  Then how the probe varies between streams of a process,
and between processes.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kernelperf.compare.estimate import run_value, spread_fraction


def cv(values: Sequence[float]) -> str:
    plain = statistics.stdev(values) / statistics.fmean(values)
    return f"{plain:6.2%} ({spread_fraction(values):6.2%})"


def correlation(left: Sequence[float], right: Sequence[float]) -> float:
    return statistics.correlation(left, right) if len(set(left)) > 1 and len(set(right)) > 1 else 0.0


def show(name: str, rows: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Print one workload's line from its runs and its sets' streams."""
    kernels = len(rows[0][0]["kernel_ns"])
    values = [run_value(run["rounds_ns"]) for run, _ in rows]
    probes = [statistics.median(run["launch_ns"]) for run, _ in rows]
    middle = statistics.fmean(probes)
    corrected = [value - kernels * (probe - middle) for value, probe in zip(values, probes, strict=True)]
    line = f"{name:36} {kernels} kernels  one stream {cv(values)}  less the probe {cv(corrected)}"
    turned = [streams["rounds_ns"][name] for _, streams in rows if streams]
    if turned:
        line += f"  eight streams {cv([statistics.fmean(rounds) for rounds in turned])}"
        within = statistics.fmean(statistics.stdev(rounds) / statistics.fmean(rounds) for rounds in turned)
        line += f"  between streams {within:.2%}"
    slope = statistics.linear_regression(probes, values).slope if len(set(probes)) > 1 else 0.0
    print(f"{line}  correlation {correlation(probes, values):+.2f}, slope {slope:+.1f}")


def show_probes(name: str, rows: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Print how the probe varies: by stream, the two turns on each averaged, and by process."""
    by_process = []
    for _, streams in rows:
        if streams:
            probes = streams["launch_ns"][name]
            half = len(probes) // 2
            by_process.append(
                [statistics.fmean(pair) for pair in zip(probes[:half], probes[half:], strict=True)]
            )
    if len(by_process) > 1:
        between = statistics.stdev(statistics.fmean(each) for each in by_process)
        within = statistics.fmean(statistics.stdev(each) for each in by_process)
        first = by_process[0]
        print(
            f"{name:36} probe: {between:5.1f} ns between processes, {within:5.1f} ns between streams; "
            f"the first process's streams: {' '.join(f'{ns:.0f}' for ns in first)}"
        )


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    """Show what launches explain of the noise."""
    for path in files:
        content = json.loads(gzip.decompress(path.read_bytes()))
        sets = [one for one in content["sets"] if all(run["launch_ns"] for run in one["runs"])]
        if len(sets) < 2:
            print(f"{path}: {len(sets)} sets with a launch probe; two or more are needed")
            continue
        print(f"{path}: card {content['environment']['card']}, {len(sets)} sets")
        for index, run in enumerate(sets[0]["runs"]):
            rows = [(one["runs"][index], one["streams"]) for one in sets]
            show(run["workload"], rows)
            show_probes(run["workload"], rows)


if __name__ == "__main__":
    main()
