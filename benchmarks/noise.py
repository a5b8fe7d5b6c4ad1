"""How much an unchanged workload varies from process to process, by what it is timed with.

    python benchmarks/noise.py -o benchmarks/results/noise.json --figure docs/noise.svg

Every tool timed the same step in the same fresh processes (`record_sets.py --peers`): ours in turn with the
other workloads, then each tool by itself, with its default settings.  One value a process, as the tool gives
it: the median of `do_bench`, `do_bench_cudagraph`, `torch.utils.benchmark` and pytest-benchmark, the mean GPU
time of cuda-bench.  Plain is the sample standard deviation over the mean, robust is 1.4826 · MAD / median;
of several cards each is the root mean square over the cards.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from sets import DATA, Card, OneSet, read_cards, root_mean_square

from kernelperf.compare.estimate import run_value, spread_fraction

OURS = "kernelperf"

Table = Mapping[str, Mapping[str, tuple[float, float, int]]]


def with_peers(card: Card) -> tuple[OneSet, ...]:
    """Return the sets in which other tools timed too."""
    return tuple(one for one in card.sets if one.peers_ns)


def values_of(sets: Sequence[OneSet], tool: str, workload: str) -> list[float]:
    """Return what a tool read in each process, in ns."""
    if tool == OURS:
        return [run_value(one.runs[workload].gpu_time_ns) for one in sets]
    return [one.peers_ns[tool][workload] for one in sets if workload in one.peers_ns.get(tool, {})]


def spreads(known: Sequence[Card]) -> Table:
    """Return by workload and tool: plain CV, robust CV, processes."""
    sets = {card.name: with_peers(card) for card in known}
    sets = {name: each for name, each in sets.items() if len(each) > 1}
    first = next(iter(sets.values()))[0]
    workloads = sorted({workload for read in first.peers_ns.values() for workload in read})
    return {
        workload: {
            tool: _pooled([values_of(each, tool, workload) for each in sets.values()])
            for tool in (OURS, *first.peers_ns)
        }
        for workload in workloads
    }


def _pooled(cards: Sequence[Sequence[float]]) -> tuple[float, float, int]:
    known = [values for values in cards if len(values) > 1]
    plain = [statistics.stdev(values) / statistics.fmean(values) for values in known]
    robust = [spread_fraction(values) for values in known]
    return root_mean_square(plain), root_mean_square(robust), sum(map(len, known))


def draw(table: Table, path: Path) -> None:
    """Draw a panel a workload: plain CV filled, robust CV hollow."""
    from figures import pyplot, save

    figure, panels = pyplot.subplots(
        1, len(table), figsize=(11, 3.0), sharex=True, sharey=True, layout="constrained"
    )
    for axes, (workload, tools) in zip(panels, table.items(), strict=True):
        names = list(tools)[::-1]
        for height, tool in enumerate(names):
            plain, robust, _ = tools[tool]
            color = "#c1582b" if tool == OURS else "#1b6ca8"
            axes.plot(100 * plain, height, "o", color=color, ms=6)
            axes.plot(100 * robust, height, "o", mfc="none", color=color, ms=6)
        axes.set(title=workload.partition("-")[0], xscale="log", xlabel="CV between processes, %")
        axes.set_yticks(range(len(names)), names)
        axes.grid(axis="x", color="#ddd", lw=0.6)
    save(figure, path)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("-o", "--output", type=click.Path(path_type=Path))
@click.option("--figure", type=click.Path(path_type=Path))
def main(data: Path, output: Path | None, figure: Path | None) -> None:
    """Compare the noise of the tools."""
    table = spreads(read_cards(data))
    for workload, tools in table.items():
        for tool, (plain, robust, processes) in tools.items():
            print(f"{workload:34} {tool:24} {plain:7.2%} {robust:7.2%}  {processes} processes")
    if output:
        output.write_text(json.dumps(table, indent=1) + "\n")
    if figure:
        draw(table, figure)


if __name__ == "__main__":
    main()
