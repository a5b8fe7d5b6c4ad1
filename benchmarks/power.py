"""What slowdown is found: planted ones of known size, judged by the engine on recorded sets.

    python benchmarks/power.py -o benchmarks/results/power.json --figure docs/power.svg

Each planted step takes the place of the workload that it slows, in a suite whose other workloads are as they
were.  Three situations: a stored baseline of five sets of the same card, of another card, and paired, where
runs of base and head alternate on one card (tolerance 0.5 %).  A session never uses a set of its baseline.
Sessions of one card share sets, so that the intervals shown, of as many independent trials, are too narrow.
What a slowdown really costs is the ratio of all its runs to all of the workload's on that card.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from planted import DIAL_PERCENT, DIAL_STEP_NS, PLANTED, Planted
from scipy import stats
from sets import BASELINE_RUNS, DATA, LOOKS, Card, OneSet, read_cards, recordings, session

from kernelperf.compare import Code, Comparison, Suite, Verdict, compare
from kernelperf.compare.estimate import run_value

PAIRED_TOLERANCE = 0.005
PAIRED_LOOKS = (4, 8)
SITUATIONS = ("same card", "another card", "paired")


@dataclass(frozen=True, slots=True)
class Power:
    """How often one slowdown was found in one situation."""

    plant: str
    situation: str
    percent: float  # what it really costs, over all cards
    sessions: int
    found: int
    named: int  # of those found, with the culprit first
    lower: float  # of the rate found, 95 %
    upper: float


def plants() -> tuple[Planted, ...]:
    """Return the planted slowdowns and the levels of the dials."""
    dials = tuple(
        Planted(f"dial-{variant}+{percent:g}%", f"dial-{variant}+0%", "kernelperf_yardstick")
        for variant in DIAL_STEP_NS
        for percent in DIAL_PERCENT
        if percent
    )
    return (*PLANTED, *dials)


def holds(plant: Planted, card: Card) -> bool:
    """Whether every set of a card has the slowdown and what it slows."""
    return all({plant.workload, plant.against} <= set(one.runs) for one in card.sets)


def real_percent(plant: Planted, known: Sequence[Card]) -> float:
    """Return what the slowdown costs, the mean over the cards."""
    ratios = []
    for card in known:
        slow, plain = (
            statistics.fmean(math.log(run_value(one.runs[name].gpu_time_ns)) for one in card.sets)
            for name in (plant.workload, plant.against)
        )
        ratios.append(slow - plain)
    return 100 * math.expm1(statistics.fmean(ratios))


def names_with(plant: Planted, card: Card, *, planted: bool) -> dict[str, str]:
    """Return the suite with the plant in the place of what it slows; a dial stands beside the suite."""
    step = plant.workload if planted else plant.against
    return {**{name: name for name in card.suite}, plant.against: step}


def judged(plant: Planted, situation: str, known: Sequence[Card]) -> Iterator[Comparison]:
    """Yield the verdict of every session on the planted workload."""
    for base in known:
        for now in known:
            if (situation == "another card") == (base is now):
                continue
            for baseline, sets in sessions_of(situation, base, now):
                if situation == "paired":
                    yield paired(plant, base, baseline, sets)
                else:
                    before = recordings(base, baseline, names_with(plant, base, planted=False))
                    names = names_with(plant, now, planted=True)
                    yield session(before, now, sets, names)[plant.against]


def sessions_of(
    situation: str, base: Card, now: Card
) -> Iterator[tuple[tuple[OneSet, ...], tuple[OneSet, ...]]]:
    """Yield baselines and the sets to judge, disjoint on one card."""
    if situation == "paired":
        length = 2 * PAIRED_LOOKS[0]
        for start in range(len(base.sets) - length + 1):
            chosen = base.sets[start : start + 2 * PAIRED_LOOKS[-1]]
            # A B B A: a drift of the card hits both sides alike.
            first = [one for index, one in enumerate(chosen) if index % 4 in (0, 3)]
            second = [one for index, one in enumerate(chosen) if index % 4 in (1, 2)]
            yield tuple(first), tuple(second)
        return
    for first in range(0, len(base.sets) - BASELINE_RUNS + 1, BASELINE_RUNS):
        baseline = base.sets[first : first + BASELINE_RUNS]
        others = [one for one in now.sets if one not in baseline]
        for start in range(len(others)):
            yield baseline, tuple((*others[start:], *others[:start])[: LOOKS[-1]])


def paired(plant: Planted, card: Card, base: Sequence[OneSet], head: Sequence[OneSet]) -> Comparison:
    """Judge base and head that took turns, after four runs of each and again after eight if undecided."""
    for look in PAIRED_LOOKS:
        before = recordings(card, base[:look], names_with(plant, card, planted=False))
        after = recordings(card, head[:look], names_with(plant, card, planted=True))
        suite = Suite(before, after, looks=len(PAIRED_LOOKS))
        policy = suite.policy(plant.against, tolerance_fraction=PAIRED_TOLERANCE)
        (old,) = [rec for rec in before if rec.id == plant.against]
        (new,) = [rec for rec in after if rec.id == plant.against]
        found = compare(old, new, policy)
        if found.verdict is not Verdict.UNDECIDED:
            break
    return found


def power(plant: Planted, situation: str, known: Sequence[Card]) -> Power:
    """Count the sessions in which a slowdown was found."""
    comparisons = list(judged(plant, situation, known))
    found = [each for each in comparisons if each.verdict is Verdict.SLOWER]
    named = sum(plant.culprit in named_first(each) for each in found)
    tried, hits = len(comparisons), len(found)
    return Power(
        plant.workload,
        situation,
        real_percent(plant, known),
        tried,
        hits,
        named,
        float(stats.beta.ppf(0.025, hits, tried - hits + 1)) if hits else 0.0,
        float(stats.beta.ppf(0.975, hits + 1, tried - hits)) if hits < tried else 1.0,
    )


def named_first(comparison: Comparison) -> str:
    """Return the kernel that the failure shows first, or what it blames where that is no kernel."""
    ranked = sorted(comparison.kernel_changes, key=lambda change: -abs(change.delta_ns))
    if comparison.reason.code in (Code.COPIES, Code.COUNTS) or not ranked:
        return comparison.reason.sentence
    return f"{ranked[0].before} {ranked[0].now} {ranked[0].name}"


def draw(rows: Sequence[Power], path: Path) -> None:
    """Draw the rate found against the real size, one line a situation."""
    from figures import pyplot, save

    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for situation, color in zip(SITUATIONS, ("#1b6ca8", "#c1582b", "#3a7d44"), strict=True):
        each = sorted(
            (row for row in rows if row.situation == situation and row.percent < 6),
            key=lambda row: row.percent,
        )
        size, rate = [row.percent for row in each], [100 * row.found / row.sessions for row in each]
        error = [
            [100 * (row.found / row.sessions - row.lower) for row in each],
            [100 * (row.upper - row.found / row.sessions) for row in each],
        ]
        axes.errorbar(size, rate, yerr=error, fmt="o", ms=4, lw=1, color=color, label=situation, alpha=0.85)
    axes.axhline(95, color="#888", lw=0.8, ls=":")
    axes.set(xlabel="slowdown, % (measured)", ylabel="found, % of sessions", ylim=(-3, 103))
    axes.legend(loc="center right", frameon=False)
    save(figure, path)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("-o", "--output", type=click.Path(path_type=Path))
@click.option("--figure", type=click.Path(path_type=Path))
def main(data: Path, output: Path | None, figure: Path | None) -> None:
    """Count how often planted slowdowns are found."""
    known = [card for card in read_cards(data) if len(card.sets) > BASELINE_RUNS]
    rows = [
        power(plant, situation, has)
        for plant in plants()
        for situation in SITUATIONS
        if (has := [card for card in known if holds(plant, card)])
    ]
    rows = [row for row in rows if row.sessions]
    for row in rows:
        told = f"{row.named / row.found:.0%}" if row.found else "–"
        print(
            f"{row.plant:28} {row.percent:+6.2f} %  {row.situation:13} found {row.found:4} of "
            f"{row.sessions:4} ({row.found / row.sessions:6.1%} [{row.lower:.0%}, {row.upper:.0%}])  "
            f"right kernel first in {told}"
        )
    if output:
        content = {"cards": {card.name: len(card.sets) for card in known}, "rows": list(map(asdict, rows))}
        output.write_text(json.dumps(content, indent=1) + "\n")
    if figure:
        draw(rows, figure)


if __name__ == "__main__":
    main()
