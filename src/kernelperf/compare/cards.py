"""What a whole suite tells of its machines: how much runs vary, and how one card reads beside another.

One workload can't tell a slower card from slower code; all of them together can, as far as code slows few.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from kernelperf.compare import card_state
from kernelperf.compare.comparison import CardShift
from kernelperf.compare.verdict import METRICS, by_launch_config, held, launch_share, undisturbed, values_of
from kernelperf.recording.records import Run, WorkloadRecording

# The prior for the spread between runs weighs as much as two workloads of five runs.
PRIOR_DEGREES = 8
# Of fewer other workloads the median is no better than any of them.
ENOUGH_OTHERS = 3
# No card seen read all workloads alike by more than this against another.
MAX_CARD_SHIFT = 0.012


def learned_sd(base: Sequence[WorkloadRecording]) -> float:
    """Return the spread between runs to credit any workload with, learned from a baseline's runs.

    The variances of its steady workloads are pooled, with a prior of `METRICS`' floor: a baseline of few
    runs moves it little, one of many workloads much.
    """
    prior = METRICS["gpu_time"].floor_sd
    weighted, degrees = PRIOR_DEGREES * prior**2, PRIOR_DEGREES
    for rec in base:
        for runs in by_launch_config(held(rec.runs)).values():
            logs = _logs(runs)
            if len(logs) > 1 and _is_steady(runs):
                of_launches = launch_share(runs) ** 2  # is added to every workload by itself
                weighted += (len(logs) - 1) * max(0.0, statistics.variance(logs) - of_launches)
                degrees += len(logs) - 1
    return math.sqrt(weighted / degrees)


def card_shift(
    name: str, base: Mapping[str, WorkloadRecording], now: Sequence[WorkloadRecording]
) -> CardShift | None:
    """Return how the workloads other than this one moved, where now was measured on another card.

    None on the same card, where nothing is taken off, and where too few others say something.  The median
    is bounded: what cards were never seen to differ by is not the card's.
    """
    if name not in base:
        return None
    cards = {run.card for run in base[name].runs}
    moved = [
        log
        for rec in now
        if rec.id != name
        and rec.id in base
        and {run.card for run in base[rec.id].runs} == cards
        and (log := _moved(base[rec.id], rec)) is not None
    ]
    if len(moved) < ENOUGH_OTHERS:
        return None
    middle = statistics.median(moved)
    return CardShift(max(-MAX_CARD_SHIFT, min(MAX_CARD_SHIFT, middle)), len(moved))


def _moved(base: WorkloadRecording, now: WorkloadRecording) -> float | None:
    """The log ratio of a steady workload by its most frequent launch config, None on the same card."""
    if base.definition != now.definition or base.environment.hardware != now.environment.hardware:
        return None
    if card_state.same_card(base.runs, now.runs):
        return None
    groups = by_launch_config(undisturbed(base.runs, held(now.runs)))
    config = max(groups, key=lambda each: len(groups[each]))
    against = by_launch_config(held(base.runs)).get(config, ())
    if not against or not _is_steady(against):
        return None
    before, after = _logs(against), _logs(groups[config])
    return statistics.fmean(after) - statistics.fmean(before) if before and after else None


def _logs(runs: Sequence[Run]) -> list[float]:
    return [math.log(value) for value in values_of(runs, "gpu_time") if value > 0]


def _is_steady(runs: Sequence[Run]) -> bool:
    """Whether its runs vary by a share: a short step varies by what starting its kernels takes."""
    return bool(values_of(runs, "gpu_time")) and launch_share(runs) <= METRICS["gpu_time"].floor_sd
