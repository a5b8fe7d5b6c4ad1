"""How often a suite of unchanged workloads fails: counted on recorded sets, and by a model of their tails.

    python benchmarks/false_alarms.py -o benchmarks/results/false_alarms.json

Every recorded set starts a session: its run is the first look, the sets after it on that card are further
runs.  It is judged by the engine itself against a baseline of five sets of its own card, none of them its
own, and of each other card.  "Leaving one card out" learns the engine's constants from the other cards before
it judges the one that is left out.  The model draws runs from a Student t whose degrees of freedom are fitted
to the residuals of all sets, and cards from a normal whose deviation is the upper 95 % bound of what so few
cards show; it judges by the same rule, in NumPy, after that is checked against the engine.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from scipy import stats
from sets import (
    BASELINE_RUNS,
    DATA,
    LOOKS,
    Card,
    OneSet,
    read_cards,
    recordings,
    root_mean_square,
    session,
)

from kernelperf.compare import Verdict, cards, estimate, verdict
from kernelperf.compare.estimate import run_value

TOLERANCE = 0.02
_CHUNK = 20_000


@dataclass(frozen=True, slots=True)
class Constants:
    """What the engine's rule is calibrated with, as learnt from some cards."""

    run_share_sd: float  # of a run value, beside its launches
    launch_sd_ns: float  # of the start of a kernel
    between_cards_sd: float  # of a workload's log ratio between two cards
    card_residual_sd: float  # of the same, after the other workloads' median


@dataclass(frozen=True, slots=True)
class Tally:
    """Sessions of one kind, and how they ended."""

    sessions: int
    false_alarms: int
    undecided: int  # sessions with an undecided workload
    runs: float  # a session, on average; 1 is the least
    pairs: int  # of a baseline and a card

    @property
    def bound(self) -> float:
        """The upper 95 % bound of the rate, if sessions were independent."""
        return upper_bound(self.false_alarms, self.sessions)


def upper_bound(hits: int, tries: int) -> float:
    """Return the upper 95 % bound of a rate (Clopper-Pearson)."""
    return 1.0 if hits >= tries else float(stats.beta.ppf(0.95, hits + 1, tries - hits))


def log_values(card: Card, names: Sequence[str]) -> np.ndarray:
    """Return the log run values, [sets, workloads]."""
    return np.array(
        [[math.log(run_value(one.runs[name].gpu_time_ns)) for name in names] for one in card.sets]
    )


def learn(known: Sequence[Card]) -> Constants:
    """Learn the constants from the residuals within the cards and the differences between them."""
    names = known[0].suite
    first = known[0].sets[0]
    kernels = np.array([len(first.runs[name].kernels) for name in names])
    value_ns = np.exp(np.mean([log_values(card, names).mean(0) for card in known], axis=0))
    steady = kernels * verdict.LAUNCH_SD_NS / value_ns <= verdict.METRICS["gpu_time"].floor_sd
    variance = pooled_variance(known, names)
    launches = statistics.fmean(variance[~steady] * (value_ns[~steady] / kernels[~steady]) ** 2) ** 0.5
    share = max(0.0, float(np.mean(variance[steady] - (kernels * launches / value_ns)[steady] ** 2))) ** 0.5
    raw, residual = [], []
    for base in known:
        for now in known:
            if base is now:
                continue
            difference = log_values(now, names).mean(0) - log_values(base, names).mean(0)
            raw.extend(difference[steady])
            for index in np.flatnonzero(steady):
                others = [other for other in np.flatnonzero(steady) if other != index]
                residual.append(difference[index] - float(np.median(difference[others])))
    return Constants(share, launches, root_mean_square(raw), root_mean_square(residual))


def pooled_variance(known: Sequence[Card], names: Sequence[str]) -> np.ndarray:
    degrees = sum(len(card.sets) - 1 for card in known)
    within = np.zeros(len(names))
    for card in known:
        values = log_values(card, names)
        within += ((values - values.mean(0)) ** 2).sum(0)
    return within / degrees


@contextlib.contextmanager
def calibrated(constants: Constants) -> Iterator[None]:
    """Let the engine judge with these constants instead of its own."""
    metric = verdict.METRICS["gpu_time"]
    changed = {
        (verdict, "LAUNCH_SD_NS"): constants.launch_sd_ns,
        (verdict, "METRICS"): {
            **verdict.METRICS,
            "gpu_time": verdict.Metric(metric.values_ns, constants.run_share_sd),
        },
        (estimate, "BETWEEN_CARDS_SD"): constants.between_cards_sd,
        (estimate, "CARD_RESIDUAL_SD"): constants.card_residual_sd,
    }
    changed[cards, "METRICS"] = changed[verdict, "METRICS"]
    before = {key: getattr(*key) for key in changed}
    try:
        for (module, name), value in changed.items():
            setattr(module, name, value)
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


def sessions_of(base: Card, now: Card) -> Iterator[tuple[tuple[OneSet, ...], tuple[OneSet, ...]]]:
    """Yield a baseline and the sets of each session against it."""
    if base is not now:
        baseline = base.sets[:BASELINE_RUNS]
        for start in range(len(now.sets)):
            yield baseline, (*now.sets[start:], *now.sets[:start])[: LOOKS[-1]]
        return
    for first in range(0, len(base.sets) - BASELINE_RUNS + 1, BASELINE_RUNS):
        baseline = base.sets[first : first + BASELINE_RUNS]
        others = [one for one in base.sets if one not in baseline]
        for start in range(len(others)):
            yield baseline, (*others[start:], *others[:start])[: LOOKS[-1]]


def tally(pairs: Sequence[tuple[Card, Card]]) -> Tally:
    """Judge every session of these pairs of a baseline's card and another."""
    sessions = alarms = undecided = runs = workloads = 0
    compared = [(base, now) for base, now in pairs if len(base.sets) >= BASELINE_RUNS]
    for base, now in compared:
        for baseline, sets in sessions_of(base, now):
            found = session(recordings(base, baseline, base.suite), now, sets, base.suite)
            verdicts = Counter(comparison.verdict for comparison in found.values())
            sessions += 1
            alarms += Verdict.SLOWER in verdicts
            undecided += Verdict.UNDECIDED in verdicts
            runs += sum(comparison.now_runs for comparison in found.values())
            workloads += len(found)
    return Tally(sessions, alarms, undecided, runs / max(1, workloads), len(compared))


def left_out(known: Sequence[Card]) -> tuple[Tally, list[Constants]]:
    """Judge each card against the others' baselines, with constants that were learnt without it."""
    parts, learnt = [], []
    for card in known:
        others = [other for other in known if other is not card]
        constants = learn(others)
        learnt.append(constants)
        with calibrated(constants):
            parts.append(tally([(other, card) for other in others]))
    total = sum(part.sessions for part in parts)
    return (
        Tally(
            total,
            sum(part.false_alarms for part in parts),
            sum(part.undecided for part in parts),
            sum(part.runs * part.sessions for part in parts) / max(1, total),
            sum(part.pairs for part in parts),
        ),
        learnt,
    )


# --- the model


@dataclass(frozen=True, slots=True)
class Tails:
    """The model of unchanged runs: scaled Student t within a card, normal between cards."""

    degrees: float  # of the Student t
    run_sd: tuple[float, ...]  # each workload's scale
    card_sd: float  # a shift that all workloads share
    residual_sd: float  # what each workload adds


def fit(known: Sequence[Card]) -> Tails:
    """Fit the model; the deviations between cards are their upper 95 % bounds."""
    names = known[0].suite
    scale = np.sqrt(pooled_variance(known, names))
    shrink = [math.sqrt(len(card.sets) / max(1, len(card.sets) - 1)) for card in known]
    residuals = np.concatenate(
        [
            (((values := log_values(card, names)) - values.mean(0)) / scale * factor).ravel()
            for card, factor in zip(known, shrink, strict=True)
        ]
    )
    degrees, _, spread = stats.t.fit(residuals, floc=0)
    constants = learn(known)
    free = max(1, len(known) - 1)
    inflate = math.sqrt(free / stats.chi2.ppf(0.05, free))
    common = max(0.0, constants.between_cards_sd**2 - constants.card_residual_sd**2) ** 0.5
    return Tails(
        degrees=float(min(degrees, 1e3)),
        run_sd=tuple(scale * spread),
        card_sd=common * inflate,
        residual_sd=constants.card_residual_sd * inflate,
    )


def modelled_rate(
    tails: Tails, known: Sequence[Card], *, same_card: bool, draws: int, seed: int = 0
) -> float:
    """Return how often a suite fails in the model.

    Every workload is judged by all five runs, though a session stops earlier where nothing is near the
    tolerance: a session can only fail at its last look, so this is no less than its rate.
    """
    rng = np.random.default_rng(seed)
    names = known[0].suite
    rule = Rule.of(known, names)
    failed = 0
    for start in range(0, draws, _CHUNK):
        count = min(_CHUNK, draws - start)
        size = (count, len(names))
        scale = np.array(tails.run_sd)[:, None]
        base = rng.standard_t(tails.degrees, (*size, BASELINE_RUNS)) * scale
        now = rng.standard_t(tails.degrees, (*size, LOOKS[-1])) * scale
        if not same_card:
            common = rng.normal(0, tails.card_sd, (count, 1))
            now += (common + rng.normal(0, tails.residual_sd, size))[:, :, None]
        failed += int(rule.slower(base, now, same_card=same_card).any(axis=1).sum())
    return failed / draws


@dataclass(frozen=True, slots=True)
class Rule:
    """The engine's rule for a suite, on arrays of log run values."""

    launch_share: np.ndarray
    steady: np.ndarray

    @classmethod
    def of(cls, known: Sequence[Card], names: Sequence[str]) -> Rule:
        """Return the rule for these workloads, with what their launches cost."""
        runs = [[one.runs[name] for card in known for one in card.sets] for name in names]
        share = np.array([verdict.launch_share(each) for each in runs])
        return cls(share, share <= verdict.METRICS["gpu_time"].floor_sd)

    def slower(self, base: np.ndarray, now: np.ndarray, *, same_card: bool) -> np.ndarray:
        """Return which workloads are SLOWER: base and now are [sessions, workloads, runs]."""
        prior = verdict.METRICS["gpu_time"].floor_sd
        variance = base.var(axis=2, ddof=1)
        freed = BASELINE_RUNS - 1
        surplus = np.maximum(0, variance - self.launch_share**2)[:, self.steady].sum(axis=1) * freed
        degrees = cards.PRIOR_DEGREES + freed * self.steady.sum()
        learnt = np.sqrt((cards.PRIOR_DEGREES * prior**2 + surplus) / degrees)
        least = np.hypot(learnt[:, None], self.launch_share)
        base_sd = np.maximum(np.sqrt(variance), least)
        now_sd = np.maximum(now.std(axis=2, ddof=1), base_sd)
        shift = now.mean(axis=2) - base.mean(axis=2)
        suite = shift.shape[1]
        quantile = estimate.error_quantile(suite_size=suite, looks=len(LOOKS))
        margin = quantile * np.hypot(base_sd / math.sqrt(BASELINE_RUNS), now_sd / math.sqrt(now.shape[2]))
        if not same_card:
            shift = shift - self._card_shift(now[:, :, 0] - base.mean(axis=2))
            margin = np.hypot(margin, estimate.card_margin(suite_size=suite, shift_known=True))
        return (shift >= math.log1p(TOLERANCE)) & (shift > margin)

    def _card_shift(self, moved: np.ndarray) -> np.ndarray:
        """The bounded median of the other steady workloads, which have one run each."""
        shifts = np.empty_like(moved)
        for index in range(moved.shape[1]):
            others = [other for other in np.flatnonzero(self.steady) if other != index]
            shifts[:, index] = np.median(moved[:, others], axis=1)
        return np.clip(shifts, -cards.MAX_CARD_SHIFT, cards.MAX_CARD_SHIFT)


def check_rule(known: Sequence[Card]) -> int:
    """Hold the rule in NumPy against the engine on real sessions, slowed so that verdicts differ."""
    names = known[0].suite
    checked = 0
    for base in known:
        for now in known:
            if len(base.sets) < BASELINE_RUNS or len(now.sets) < LOOKS[-1]:
                continue
            rule = Rule.of([base], names)
            before = log_values(base, names)[:BASELINE_RUNS].T
            after = log_values(now, names)[: LOOKS[-1]].T
            for slowed in (0.0, 0.015, 0.02, 0.025, 0.03):
                for index, name in enumerate(names):
                    moved = after.copy()
                    moved[index] += slowed
                    array = rule.slower(before[None], moved[None], same_card=base is now)[0, index]
                    engine = _engine_says(base, now, name, slowed)
                    if bool(array) != engine:
                        raise AssertionError(f"{base.name} {now.name} {name} {slowed}: {array} {engine}")
                    checked += 1
    return checked


def _engine_says(base: Card, now: Card, name: str, slowed: float) -> bool:
    from dataclasses import replace

    from kernelperf.compare import Suite, compare

    before = recordings(base, base.sets[:BASELINE_RUNS], base.suite)
    (full,) = recordings(now, now.sets[: LOOKS[-1]], [name])
    factor = math.exp(slowed)
    runs = tuple(replace(run, gpu_time_ns=tuple(ns * factor for ns in run.gpu_time_ns)) for run in full.runs)
    rec = replace(full, runs=runs)
    others = [each for each in recordings(now, now.sets[:1], base.suite) if each.id != name]
    suite = Suite(before, [rec, *others], looks=len(LOOKS))
    (old,) = [each for each in before if each.id == name]
    found = compare(old, rec, suite.policy(name, tolerance_fraction=TOLERANCE))
    # Noise and disturbances are reasons of their own, which the model leaves out.
    return bool(found.ratio and found.lower and found.ratio >= 1 + TOLERANCE and found.lower > 1)


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=DATA)
@click.option("--draws", default=1_000_000, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(data: Path, draws: int, output: Path | None) -> None:
    """Count false alarms on recorded sets, and model them."""
    known = [card for card in read_cards(data) if len(card.sets) > 1]
    for card in known:
        print(f"card {card.name}: {len(card.sets)} sets")
    same = tally([(card, card) for card in known])
    cross = tally([(base, now) for base in known for now in known if base is not now])
    kinds = {"same card": same, "another card": cross}
    learnt: list[Constants] = []
    if len(known) > 2:
        kinds["leaving one card out"], learnt = left_out(known)
    else:
        print("leaving one card out: not possible with fewer than three cards")
    for label, each in kinds.items():
        print(
            f"{label:22} {each.false_alarms} false alarms in {each.sessions} sessions (below "
            f"{each.bound:.2%} if independent; {each.pairs} pairs), {each.undecided} with an undecided "
            f"workload, {each.runs:.2f} runs a workload"
        )
    checked = check_rule(known)
    tails = fit(known)
    print(f"model: Student t of {tails.degrees:.1f} degrees; the rule in NumPy agreed {checked} times")
    rates = {
        kind: modelled_rate(tails, known, same_card=kind == "same card", draws=draws)
        for kind in ("same card", "another card")
    }
    for kind, rate in rates.items():
        bound = upper_bound(round(rate * draws), draws)
        print(f"model, {kind}: {rate:.5%} of {draws} sessions (below {bound:.5%}, were the model right)")
    constants = learn(known)
    print(f"constants: {constants}")
    if output:
        content = {
            "cards": {card.name: len(card.sets) for card in known},
            "sessions": {label: {**asdict(each), "bound": each.bound} for label, each in kinds.items()},
            "constants": asdict(constants),
            "constants_left_out": [asdict(each) for each in learnt],
            "tails": asdict(tails),
            "modelled": rates,
            "draws": draws,
        }
        output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
