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
    """Return the rounds that count: without the first three, and an even number.

    Some workloads alternate by 1 % between odd and even rounds, so an odd number of them would favour a
    phase.  Of four or five rounds the last two count, of one that one.
    """
    even = (len(rounds) - DROPPED_ROUNDS) // 2 * 2
    return tuple(rounds[-max(2, even) :])


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


def estimate(
    base: Sequence[float], now: Sequence[float], *, floor_sd: float, quantile: float, same_card: bool
) -> Estimate:
    """Compare two sets of run values.

    Each side's spread between runs is its own sample standard deviation, but at least ``floor_sd``; that
    of now is at least base's, since few runs show too little of it.  Another card adds a component of its
    own, which moves all workloads alike, so its share of the error is not split over them.
    """
    base_logs, now_logs = [math.log(value) for value in base], [math.log(value) for value in now]
    base_sd = max(_sample_sd(base_logs), floor_sd)
    now_sd = max(_sample_sd(now_logs), base_sd)
    runs_margin = quantile * math.hypot(base_sd / math.sqrt(len(base)), now_sd / math.sqrt(len(now)))
    card_margin = 0.0 if same_card else error_quantile(suite_size=1, looks=1) * BETWEEN_CARDS_SD
    margin = math.hypot(runs_margin, card_margin)
    base_log, now_log = statistics.fmean(base_logs), statistics.fmean(now_logs)
    shift = now_log - base_log
    return Estimate(
        base_ns=math.exp(base_log),
        now_ns=math.exp(now_log),
        ratio=math.exp(shift),
        lower=math.exp(shift - margin),
        upper=math.exp(shift + margin),
    )


def _sample_sd(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
