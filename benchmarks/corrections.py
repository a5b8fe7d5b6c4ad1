"""What to take off for another card: nothing, a yardstick, or what the other workloads moved by.

    python benchmarks/corrections.py -o benchmarks/results/corrections.json

For every two cards: the difference of a workload's mean log run value, less the correction.  Its root mean
square over the pairs of cards says what each correction leaves; a perfect one leaves the noise of the means.
What each hides is counted with a slowdown of 4 % added to a number of the suite's workloads: how many of the
slowed ones still read at least the tolerance of 2 %.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import numpy as np
from false_alarms import log_values
from sets import DATA, Card, read_cards, root_mean_square

from kernelperf.compare import verdict
from kernelperf.compare.cards import MAX_CARD_SHIFT

SLOWED = 0.04
TOLERANCE = 0.02

# differences of the workloads, of the yardsticks → what is taken off each workload
Correction = Callable[[np.ndarray, Mapping[str, float]], np.ndarray]


def nothing(moved: np.ndarray, _: Mapping[str, float]) -> np.ndarray:
    return np.zeros_like(moved)


def yardstick(name: str) -> Correction:
    return lambda moved, read: np.full_like(moved, read.get(name, math.nan))


def others(moved: np.ndarray, _: Mapping[str, float]) -> np.ndarray:
    return np.array([np.median(np.delete(moved, index)) for index in range(len(moved))])


def bounded_others(moved: np.ndarray, read: Mapping[str, float]) -> np.ndarray:
    return np.clip(others(moved, read), -MAX_CARD_SHIFT, MAX_CARD_SHIFT)


CORRECTIONS: dict[str, Correction] = {
    "none": nothing,
    "copy": yardstick("copy"),
    "gemm": yardstick("gemm"),
    "fixed": yardstick("fixed"),
    "other workloads": others,
    "other workloads, bounded": bounded_others,
}


def steady_names(card: Card) -> list[str]:
    """Return the workloads that vary by a share, not by what their launches take."""
    runs = {name: [one.runs[name] for one in card.sets] for name in card.suite}
    limit = verdict.METRICS["gpu_time"].floor_sd
    return [name for name, each in runs.items() if verdict.launch_share(each) <= limit]


def yardsticks_of(card: Card) -> dict[str, float]:
    """Return the mean log time of each yardstick on a card."""
    read: dict[str, list[float]] = {}
    for one in card.sets:
        found = next(iter(one.runs.values())).yardsticks
        for name, ns in found.times_ns if found else ():
            read.setdefault(name, []).append(math.log(ns))
    return {name: statistics.fmean(logs) for name, logs in read.items()}


def differences(base: Card, now: Card, names: Sequence[str]) -> tuple[np.ndarray, dict[str, float]]:
    """Return how workloads and yardsticks moved from one card to another, log ratios."""
    before, after = yardsticks_of(base), yardsticks_of(now)
    moved = log_values(now, names).mean(0) - log_values(base, names).mean(0)
    return moved, {name: after[name] - before[name] for name in before if name in after}


def seen(correction: Correction, pairs: Sequence[tuple[Card, Card]], names: Sequence[str], k: int) -> float:
    """Return the share of slowed workloads that still read the tolerance, over pairs and choices."""
    found = total = 0
    for base, now in pairs:
        moved, read = differences(base, now, names)
        for chosen in itertools.combinations(range(len(names)), k):
            slowed = moved.copy()
            slowed[list(chosen)] += math.log1p(SLOWED)
            left = slowed - correction(slowed, read)
            found += int((left[list(chosen)] >= math.log1p(TOLERANCE)).sum())
            total += k
    return found / total


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(data: Path, output: Path | None) -> None:
    """Compare the corrections."""
    known = [card for card in read_cards(data) if len(card.sets) > 2]
    names = steady_names(known[0])
    pairs = [(base, now) for base in known for now in known if base is not now]
    print("cards against the first, %:")
    for name in (*names, *yardsticks_of(known[0])):
        logs = [
            yardsticks_of(card).get(name, math.nan) if name not in names else log_values(card, [name]).mean()
            for card in known
        ]
        print(f"  {name:36}" + "".join(f"{100 * (log - logs[0]):+8.2f}" for log in logs))
    rows = {}
    for label, correction in CORRECTIONS.items():
        left = [
            float(value)
            for base, now in pairs
            for moved, read in [differences(base, now, names)]
            for value in moved - correction(moved, read)
            if not math.isnan(value)
        ]
        shown = {k: seen(correction, pairs, names, k) for k in (1, 3, len(names))}
        rows[label] = {"left": root_mean_square(left), "largest": max(map(abs, left)), "seen": shown}
        told = ", ".join(f"{share:.0%} of {k} slowed" for k, share in shown.items())
        print(
            f"{label:26} leaves {root_mean_square(left):.2%} (at most {max(map(abs, left)):.2%}); sees {told}"
        )
    if output:
        content = {"cards": {card.name: len(card.sets) for card in known}, "corrections": rows}
        output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
