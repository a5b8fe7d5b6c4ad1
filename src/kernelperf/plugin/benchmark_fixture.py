"""The fixture ``gpu_benchmark``: a workload's times → pytest-benchmark's table, JUnit, and the test's end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import pytest

from kernelperf.compare.comparison import Comparison
from kernelperf.errors import UnusableInput
from kernelperf.guarded import Disagreement, GuardedWorkload
from kernelperf.plugin.device_clock import feed, samples_s, told
from kernelperf.plugin.marks import METRICS
from kernelperf.plugin.ruling import Circumstances, rule
from kernelperf.plugin.session import Session


class GpuBenchmark:
    """Call it with a workload to hold its times against the baseline."""

    def __init__(self, session: Session, item: pytest.Item, benchmark: Any) -> None:
        self._session = session
        self._use = session.use_of(item.nodeid)
        self._item = item
        self._benchmark = benchmark

    def __call__(self, guarded: GuardedWorkload, metric: str | None = None) -> Comparison:
        """Judge the workload by the metrics that this test gates, and return the first one's comparison.

        ``metric`` is shown in pytest-benchmark's table; it decides too, unless the mark
        ``kernelperf(gate=[...])`` says what does.  Slower fails the test; undecided, or without a baseline,
        it skips.
        """
        gate = self._gate(metric)
        shown = metric or gate[0]
        self._check_timed(guarded)
        comparisons = [self._session.comparison(guarded.id, each, self._use) for each in gate]
        for comparison in comparisons:
            self._item.user_properties += _properties(comparison)
        feed(
            self._benchmark,
            samples_s(guarded.recording, shown),
            group=shown,
            params={"workload": guarded.id, **guarded.params},
            extra_info=told(self._session.comparison(guarded.id, shown, self._use)),
        )
        self._end(guarded, comparisons)
        return comparisons[0]

    def _gate(self, metric: str | None) -> tuple[str, ...]:
        if metric is not None and metric not in METRICS:
            raise UnusableInput(
                f"gpu_benchmark takes metric= as one of {', '.join(METRICS)}, found {metric!r}"
            )
        return self._use.guard.gate or ((metric,) if metric else self._use.guard.metrics)

    def _check_timed(self, guarded: GuardedWorkload) -> None:
        if not self._session.options.timing:
            pytest.skip(f"timing is off ({self._session.options.timing_off_by})")
        if not guarded.recording.timed:
            pytest.skip(f"{guarded.id} was recorded without times; record it again with timing on")

    def _end(self, guarded: GuardedWorkload, comparisons: Sequence[Comparison]) -> None:
        session = self._session
        around = Circumstances(
            others=tuple(session.comparisons.values()),
            repro=f"pytest {shlex.quote(self._item.nodeid.partition('::')[0])} -k {shlex.quote(guarded.id)}",
            recording=session.options.record if session.live else None,
        )
        ruling = rule(comparisons, session.options, around)
        if ruling.outcome == "fail":
            raise Disagreement(ruling.text, pytrace=False)
        if ruling.outcome == "skip":
            pytest.skip(ruling.text)


def _properties(comparison: Comparison) -> list[tuple[str, object]]:
    front = f"kernelperf.{comparison.workload}.{comparison.metric}"
    interval = (
        ""
        if comparison.lower is None or comparison.upper is None
        else (f"[{comparison.lower:.5f}, {comparison.upper:.5f}]")
    )
    ratio = "" if comparison.ratio is None else f"{comparison.ratio:.5f}"
    return [
        (f"{front}.verdict", comparison.verdict.value),
        (f"{front}.ratio", ratio),
        (f"{front}.interval", interval),
    ]
