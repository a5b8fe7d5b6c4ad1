"""Durations of two sets of runs → their ratio, with an interval held over the whole suite."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

# The first rounds after a start read up to 2.7 % high (benchmarks on an H200: 14 fresh processes).
DROPPED_ROUNDS = 3
# Chance that a suite of unchanged workloads shows any lower bound above 0, all looks together.
SUITE_ERROR = 0.01
# Two of three H200s read about 0.7 % and 1.2 % above the first, all workloads alike: the sample standard
# deviation of a card is 0.6 %, that of the difference between two cards 0.85 %.
BETWEEN_CARDS_SD = 0.0085
# What is left of a workload's difference between two cards when the other workloads' is taken off.
CARD_RESIDUAL_SD = 0.006
_MAD_TO_SD = 1.4826


@dataclass(frozen=True, slots=True)
class Estimate:
    """Now against base: geometric means of run values, their ratio, and the interval of the ratio."""

    base_ns: float
    now_ns: float
    ratio: float
    lower: float
    upper: float


def kept_rounds(rounds: Sequence[float]) -> tuple[float, ...]:
    """Return the rounds that count: without the first three, and a multiple of four.

    Some workloads alternate by 1 % between odd and even rounds, some in fours (a compiled MLP on an H200:
    +0.5, +0.2, -0.5, -0.3 %, in every process), so another number of them would favour a phase.  Of six or
    fewer rounds the last two count, of one that one.
    """
    fours = (len(rounds) - DROPPED_ROUNDS) // 4 * 4
    return tuple(rounds[-max(2, fours) :])


def run_value(rounds: Sequence[float]) -> float:
    """Return what one run says: the mean of the rounds that count."""
    return statistics.fmean(kept_rounds(rounds))


def spread_fraction(values: Sequence[float]) -> float:
    """Return the robust coefficient of variation, 1.4826 · MAD / median; 0 for a single value."""
    middle = statistics.median(values)
    return _MAD_TO_SD * statistics.median(abs(value - middle) for value in values) / middle


def error_quantile(*, suite_size: int, looks: int) -> float:
    """Return the normal quantile at which one look at one workload keeps its share of the suite's error."""
    return NormalDist().inv_cdf(1 - SUITE_ERROR / (max(1, suite_size) * max(1, looks)))


@dataclass(frozen=True, slots=True)
class Margins:
    """What an interval is made of beside the runs themselves.

    ``run_sd`` is the least spread between runs to assume, ``quantile`` how many standard errors to keep.
    ``card_margin`` is the half width that another card adds, 0 on the same; ``card_log`` what is taken off.
    """

    run_sd: float
    quantile: float
    card_margin: float = 0.0
    card_log: float = 0.0


def card_margin(*, suite_size: int, shift_known: bool) -> float:
    """Return the half width for another card than the baseline's, which no number of runs narrows.

    What is left after a shift is each workload's own, so that the error is split over them.  Without a known
    shift the margin is that of all that cards differ by, and never the narrower one.
    """
    residual = error_quantile(suite_size=suite_size, looks=1) * CARD_RESIDUAL_SD
    if shift_known:
        return residual
    return max(residual, error_quantile(suite_size=1, looks=1) * BETWEEN_CARDS_SD)


def estimate(base: Sequence[float], now: Sequence[float], margins: Margins) -> Estimate:
    """Compare two sets of run values.

    Each side's spread between runs is its own sample standard deviation, but at least the margins'; that
    of now is at least base's, since few runs show too little of it.
    """
    base_logs, now_logs = [math.log(value) for value in base], [math.log(value) for value in now]
    base_sd = max(_sample_sd(base_logs), margins.run_sd)
    now_sd = max(_sample_sd(now_logs), base_sd)
    runs = margins.quantile * math.hypot(base_sd / math.sqrt(len(base)), now_sd / math.sqrt(len(now)))
    margin = math.hypot(runs, margins.card_margin)
    base_log, now_log = statistics.fmean(base_logs), statistics.fmean(now_logs)
    shift = now_log - base_log - margins.card_log
    return Estimate(
        base_ns=math.exp(base_log),
        now_ns=math.exp(now_log),
        ratio=math.exp(shift),
        lower=math.exp(shift - margin),
        upper=math.exp(shift + margin),
    )


def _sample_sd(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
