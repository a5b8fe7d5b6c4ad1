"""Does a workload's result depend on which others were selected?  Measure each alone and among all others.

    python benchmarks/alone_or_together.py --sets 3 -o alone_or_together.json

One set is one run of all workloads side by side, then one run of each alone, every run in a fresh worker with
fresh compile caches.  Sets follow one another on one GPU, so a drift of the card hits both sides.  Prints a
row a workload: the ratio of the mean run values, alone over together, and whether every run of both had the
same launch config.  Needs a CUDA GPU.
"""

from __future__ import annotations

import importlib
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelperf import conductor
from kernelperf.compare.estimate import run_value
from kernelperf.conductor import Outcome, Plan, Recorded, Settings
from kernelperf.workload import registered

if TYPE_CHECKING:
    from kernelperf.recording.records import Run
    from kernelperf.workload import Variant

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = (
    "linear_eager-8192x768x3072-bf16",
    "linear_compiled-8192x768x3072-bf16",
    "geglu_eager-bf16",
    "geglu_compiled-bf16",
    "geglu_liger-bf16",
)


def variants(ids: tuple[str, ...]) -> list[Variant]:
    """Return the declared variants of these ids."""
    for module in ("fixtures.linear", "fixtures.geglu"):
        importlib.import_module(module)
    known = {variant.id: variant for declared in registered().values() for variant in declared.variants()}
    return [known[name] for name in ids]


def measure(chosen: list[Variant], scratch: Path) -> list[Recorded]:
    """Run the chosen variants once, side by side."""
    plans = [Plan(variant, timing=True) for variant in chosen]
    outcomes = conductor.record_run(plans, scratch, Settings(root=ROOT), _say, _settled)
    return [outcome for outcome in outcomes if isinstance(outcome, Recorded)]


def summary(name: str, together: list[Run], alone: list[Run]) -> dict[str, object]:
    """Compare one workload's runs of both kinds."""
    values = {kind: [run_value(run.gpu_time_ns) for run in runs] for kind, runs in _kinds(together, alone)}
    logs = {kind: [math.log(value) for value in each] for kind, each in values.items()}
    difference = statistics.fmean(logs["alone"]) - statistics.fmean(logs["together"])
    return {
        "workload": name,
        "together_us": [round(value / 1e3, 3) for value in values["together"]],
        "alone_us": [round(value / 1e3, 3) for value in values["alone"]],
        "alone_over_together_percent": round(100 * math.expm1(difference), 3),
        "same_launch_config": len({run.launch_config for run in (*together, *alone)}) == 1,
        "triton_configs": sorted(
            {kernel.config for run in (*together, *alone) for kernel in run.kernels} - {""}
        ),
    }


def _kinds(together: list[Run], alone: list[Run]) -> list[tuple[str, list[Run]]]:
    return [("together", together), ("alone", alone)]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _settled(outcome: Outcome) -> None:
    if not isinstance(outcome, Recorded):
        _say(f"{outcome.variant.id}: {outcome.kind}: {outcome.cause}")


@click.command()
@click.option("--sets", default=3, show_default=True, help="runs of each workload of each kind")
@click.option("--only", multiple=True, default=DEFAULT, help="variant id; may be repeated")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="write the rows as JSON here")
def main(sets: int, only: tuple[str, ...], output: Path | None) -> None:
    """Measure each workload alone and among all others."""
    sys.path.insert(0, str(ROOT))
    chosen = variants(only)
    together: dict[str, list[Run]] = {variant.id: [] for variant in chosen}
    alone: dict[str, list[Run]] = {variant.id: [] for variant in chosen}
    environment = None
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(sets):
            for recorded in measure(chosen, Path(scratch)):
                together[recorded.variant.id].append(recorded.run)
                environment = recorded.environment
            for variant in chosen:
                alone[variant.id].extend(recorded.run for recorded in measure([variant], Path(scratch)))
    rows = [summary(variant.id, together[variant.id], alone[variant.id]) for variant in chosen]
    for row in rows:
        print(
            f"{row['workload']:40} {row['alone_over_together_percent']:+7.3f} %  "
            f"{'same' if row['same_launch_config'] else 'DIFFERENT'} launch config"
        )
    if output and environment:
        stack = {"gpu": environment.hardware.gpu, **dict(environment.stack)}
        output.write_text(json.dumps({"environment": stack, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
