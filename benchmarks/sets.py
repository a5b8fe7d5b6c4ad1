"""Sets that `record_sets.py` recorded → runs that the engine judges, and sessions made of them."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from kernelperf.compare import Comparison, Suite, compare, judge_suite, wants_more_runs
from kernelperf.compare.comparison import DEFAULT_TOLERANCE_FRACTION
from kernelperf.environment import Environment, GpuState, Hardware
from kernelperf.protocol import Observations
from kernelperf.recording.records import Counts, KernelRecord, Run, WorkloadRecording, Yardsticks

DATA = Path(__file__).parent / "data"
LOOKS = (1, 3, 5)
BASELINE_RUNS = 5
_OBSERVED = Observations(
    peak_memory_bytes=0, dynamo_graphs=0, graph_breaks=0, recompiles=0, triton_compilations=0
)


@dataclass(frozen=True, slots=True)
class OneSet:
    """What one set recorded: a run of each step by name, and what other tools read."""

    card: str
    runs: Mapping[str, Run]
    peers_ns: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Card:
    """The sets recorded on one card, in order."""

    name: str
    environment: Environment
    sets: tuple[OneSet, ...]

    @cached_property
    def suite(self) -> tuple[str, ...]:
        """The suite's workloads, those that every set holds."""
        common = set.intersection(*(set(one.runs) for one in self.sets))
        return tuple(
            name for name in self.sets[0].runs if name in common and not name.startswith(("planted", "dial"))
        )


def read_cards(folder: Path = DATA) -> tuple[Card, ...]:
    """Return the cards in a folder of recorded sets; several files of one card are joined."""
    known: dict[str, tuple[Environment, list[OneSet]]] = {}
    for path in sorted(folder.glob("sets*.json.gz")):
        content = json.loads(gzip.decompress(path.read_bytes()))
        environment = _environment(content["environment"])
        sets = known.setdefault(environment.card, (environment, []))[1]
        sets += [_set(one, content, environment.card) for one in content["sets"]]
    return tuple(Card(name, environment, tuple(sets)) for name, (environment, sets) in known.items())


def recordings(
    card: Card, sets: Sequence[OneSet], names: Mapping[str, str] | Sequence[str]
) -> tuple[WorkloadRecording, ...]:
    """Return a recording of these sets; ``names`` may let a step stand in for another: id → step."""
    named = names if isinstance(names, Mapping) else {name: name for name in names}
    return tuple(_recording(card, name, [one.runs[step] for one in sets]) for name, step in named.items())


def session(
    base: Sequence[WorkloadRecording],
    card: Card,
    sets: Sequence[OneSet],
    names: Mapping[str, str] | Sequence[str],
    *,
    tolerance_fraction: float = DEFAULT_TOLERANCE_FRACTION,
    looks: Sequence[int] = LOOKS,
) -> dict[str, Comparison]:
    """Judge as a session does: one run of each first, then more runs of those that are near or above."""
    known = {rec.id: rec for rec in base}
    named = names if isinstance(names, Mapping) else {name: name for name in names}
    runs = dict.fromkeys(named, 0)
    wanted = set(named)
    found: dict[str, Comparison] = {}
    for total in looks:
        runs |= dict.fromkeys(wanted, min(total, len(sets)))
        now = [recordings(card, sets[: runs[name]], {name: step})[0] for name, step in named.items()]
        suite = Suite(base, now, looks=len(looks))
        found = {
            rec.id: compare(known[rec.id], rec, suite.policy(rec.id, tolerance_fraction=tolerance_fraction))
            for rec in now
        }
        wanted = {name for name, comparison in found.items() if wants_more_runs(comparison)}
        if not wanted:
            break
    return {comparison.workload: comparison for comparison in judge_suite(tuple(found.values()))}


def root_mean_square(values: Sequence[float]) -> float:
    """Return the root of the mean square, 0 for no values."""
    return math.sqrt(statistics.fmean(value**2 for value in values)) if values else 0.0


def _environment(content: Mapping[str, Any]) -> Environment:
    stack = tuple((name, version) for name, version in content["stack"])
    hardware = msgspec.convert(content["hardware"], Hardware)
    return Environment(hardware=hardware, card=content["card"], stack=stack)


def _set(one: Mapping[str, Any], content: Mapping[str, Any], card: str) -> OneSet:
    state = msgspec.convert(one["state"], GpuState) if one["state"] else GpuState()
    times = tuple(sorted(one["yardsticks_ns"].items()))
    yardsticks = Yardsticks(times, state) if times else None
    runs = {row["workload"]: _run(row, content, card, yardsticks) for row in one["runs"]}
    return OneSet(card, runs, one["peers_ns"])


def _run(row: Mapping[str, Any], content: Mapping[str, Any], card: str, yardsticks: Yardsticks | None) -> Run:
    launches = content["launches"][row["launches"]]
    return Run(
        gpu_time_ns=tuple(row["rounds_ns"]),
        wall_time_ns=(),
        queue_held=row["held"],
        repeats=row["repeats"],
        first_call_s=row["first_call_s"],
        kernels=tuple(
            msgspec.convert({**launch, "duration_ns": ns}, KernelRecord)
            for launch, ns in zip(launches, row["kernel_ns"], strict=True)
        ),
        counts=msgspec.convert(content["counts"][row["counts"]], Counts),
        observations=_OBSERVED,
        state=GpuState(sm_clock_mhz=row["sm_clock_mhz"]),
        card=card,
        yardsticks=yardsticks,
    )


def _recording(card: Card, name: str, runs: Sequence[Run]) -> WorkloadRecording:
    return WorkloadRecording(
        id=name,
        name=name,
        params=(),
        mode="forward",
        declared_in="",
        about=(),
        sources=(),
        cache_policy="fresh per worker",
        environment=card.environment,
        recorded_at="",
        runs=tuple(runs),
        definition=name,
    )
