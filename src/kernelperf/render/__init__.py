"""Comparisons → what a person reads in the terminal, and JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kernelperf.baselines import Acceptance
from kernelperf.compare.comparison import Comparison, Verdict
from kernelperf.recording.records import Recording
from kernelperf.render.explain import changes_text, failure_text
from kernelperf.render.tables import duration, kernel_table, percent, signed, table

__all__ = [
    "Origin",
    "acceptance_table",
    "changes_text",
    "failure_text",
    "kernel_table",
    "origin_of",
    "skip_reason",
    "summary_line",
    "to_json",
    "verdict_table",
]

_JSON_VERSION = 1
_ORDER = (Verdict.SAME, Verdict.FASTER, Verdict.SLOWER, Verdict.UNDECIDED, Verdict.NO_BASELINE)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the measurements that were judged came from: a GPU just now, or a recording."""

    live: bool
    gpu: str
    stack: tuple[tuple[str, str], ...] = ()
    recorded_at: str = ""
    folder: str = ""

    @property
    def text(self) -> str:
        """``live on NVIDIA H200, torch 2.11.0``; a replay says of what, and from when."""
        torch = dict(self.stack).get("torch")
        machine = f"{self.gpu}, torch {torch}" if torch else self.gpu
        if self.live:
            return f"live on {machine}"
        return f"REPLAY of {self.folder} ({machine}, {self.recorded_at[:10]})"


def origin_of(recording: Recording, live: bool) -> Origin:
    """Return the origin of a recording's measurements; of several dates the oldest is shown."""
    environment = recording.workloads[0].environment
    return Origin(
        live=live,
        gpu=environment.hardware.gpu,
        stack=environment.stack,
        recorded_at=min(rec.recorded_at for rec in recording.workloads),
        folder=str(recording.folder),
    )


def skip_reason(comparison: Comparison) -> str:
    """Return one line for a workload that couldn't be judged: why, and the remedy."""
    what = f"{comparison.workload} {comparison.metric}"
    text = f"{_told(comparison.verdict)}: {what}: {comparison.reason.sentence}"
    return f"{text}; {comparison.undecided_hint}" if comparison.undecided_hint else text


def verdict_table(comparisons: Sequence[Comparison]) -> str:
    """Return a table of all comparisons, in the order given."""
    head = ("workload", "metric", "base", "now", "change", "interval", "runs", "verdict", "reason")
    rows = [
        (
            c.workload,
            c.metric,
            duration(c.base_ns),
            duration(c.now_ns),
            percent(c.ratio),
            _interval(c),
            f"{c.base_runs}/{c.now_runs}",
            c.verdict.value.replace("_", " "),
            c.reason.code.value,
        )
        for c in comparisons
    ]
    return "\n".join([table(head, rows, right=(2, 3, 4, 5, 6)), *_card_note(comparisons)])


def _card_note(comparisons: Sequence[Comparison]) -> list[str]:
    shifts = sorted(c.card_shift for c in comparisons if c.card_shift is not None)
    if not shifts:
        return []
    first, last = signed(shifts[0]), signed(shifts[-1])
    span = f"{first} %" if first == last else f"{first} to {last} %"
    return [f"another card than the baseline's: {span}, which the other workloads moved by, is taken off"]


def summary_line(
    comparisons: Sequence[Comparison], origin: Origin, others: Sequence[tuple[str, int]] = ()
) -> str:
    """Return the session's last line: how many workloads came to what, and where the numbers are from.

    A workload that is judged by several metrics counts once, by the worst.  ``others`` counts those that
    were not compared, such as ``("not selected", 1)``; zeros are left out.
    """
    worst: dict[str, Verdict] = {}
    for comparison in comparisons:
        known = worst.get(comparison.workload, comparison.verdict)
        worst[comparison.workload] = max(known, comparison.verdict, key=_SEVERITY.index)
    verdicts = Counter(worst.values())
    told = ", ".join(f"{verdicts[verdict]} {_told(verdict)}" for verdict in _ORDER if verdicts[verdict])
    noun = "workload" if len(worst) == 1 else "workloads"
    parts = [f"{len(worst)} {noun}: {told}" if worst else "0 workloads compared"]
    parts += [f"{number} {label}" for label, number in others if number]
    return f"kernelperf: {'; '.join([*parts, origin.text])}"


def acceptance_table(acceptance: Acceptance) -> str:
    """Return what became the baseline, old → new with intervals, and why."""
    head = ("workload", "metric", "old", "new", "change", "interval", "spread", "runs", "")
    rows = [
        (
            c.workload,
            c.metric,
            duration(c.base_ns),
            duration(c.now_ns),
            percent(c.ratio),
            _interval(c),
            "–" if c.now_spread_fraction is None else f"{c.now_spread_fraction * 100:.2f} %",
            str(c.now_runs),
            "new" if c.verdict is Verdict.NO_BASELINE else "",
        )
        for c in acceptance.rows
    ]
    shown = table(head, rows, right=(2, 3, 4, 5, 6, 7))
    return f"{shown}\naccepted into {acceptance.folder}: {acceptance.reason}"


def to_json(comparisons: Sequence[Comparison], origin: Origin | None = None) -> str:
    """Return the comparisons as JSON: times in ns, ratios now over base."""
    content = {"version": _JSON_VERSION, "origin": origin, "comparisons": tuple(comparisons)}
    return msgspec.json.format(msgspec.json.encode(content, order="sorted"), indent=2).decode() + "\n"


_SEVERITY = (Verdict.SAME, Verdict.FASTER, Verdict.NO_BASELINE, Verdict.UNDECIDED, Verdict.SLOWER)


def _told(verdict: Verdict) -> str:
    return verdict.value.replace("_", " ").lower()


def _interval(c: Comparison) -> str:
    return "–" if c.lower is None or c.upper is None else f"[{signed(c.lower)}, {signed(c.upper)}]"
