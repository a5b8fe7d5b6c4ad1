"""Plans → recordings, measured now: how many runs of each, written down as each run is done."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelperf import conductor
from kernelperf.conductor import CACHE_POLICY, FailedRun, Outcome, Plan, Progress, Recorded, Settings
from kernelperf.errors import NotMeasurable
from kernelperf.plugin.options import Options
from kernelperf.recording import write_workload
from kernelperf.recording.records import Run, WorkloadRecording


@dataclass(frozen=True, slots=True)
class Order:
    """A plan, and the tolerance that its own tests judge by."""

    plan: Plan
    tolerance_fraction: float | None = None

    @property
    def id(self) -> str:
        """Its variant's."""
        return self.plan.variant.id


WantMore = Callable[[tuple[WorkloadRecording, ...]], frozenset[str]]


class Recorder:
    """Measures, and keeps what came of it: a recording of each workload, or why there is none."""

    def __init__(
        self, orders: Sequence[Order], settings: Settings, folder: Path, scratch: Path, progress: Progress
    ) -> None:
        self.failures: dict[str, FailedRun] = {}
        self._orders = {order.id: order for order in orders}
        self._settings = settings
        self._folder = folder
        self._scratch = scratch
        self._progress = progress
        self._recordings: dict[str, WorkloadRecording] = {}

    @property
    def recordings(self) -> tuple[WorkloadRecording, ...]:
        """What was recorded so far of the workloads that never failed."""
        return tuple(self._recordings.values())

    def measure(self, options: Options, want_more: WantMore) -> None:
        """Measure every workload, and those that ``want_more`` names again, a bounded number of looks."""
        wanted = frozenset(self._orders)
        runs = 0
        for total in options.looks:
            for number in range(runs + 1, total + 1):
                self._run(wanted, f"run {number} of {total}" if total > 1 else "")
            runs = total
            wanted = want_more(self.recordings)
            if not wanted:
                break
            if total != options.looks[-1]:
                named = ", ".join(sorted(wanted))
                self._progress(f"measuring again, near the tolerance or above: {named}")

    def _run(self, wanted: frozenset[str], label: str) -> None:
        plans = [
            order.plan
            for name, order in self._orders.items()
            if name in wanted and name not in self.failures and self._more_is_useful(order)
        ]
        if not plans:
            return

        def progress(text: str) -> None:
            self._progress(f"{label}: {text}" if label else text)

        conductor.record_run(plans, self._scratch, self._settings, progress, self._keep)

    def _more_is_useful(self, order: Order) -> bool:
        """One run says all about structure; only times vary."""
        return order.plan.timing or order.id not in self._recordings

    def _keep(self, outcome: Outcome) -> None:
        name = outcome.variant.id
        log = self._folder / f"{name}.log"
        if isinstance(outcome, FailedRun):
            self.failures[name] = self._with_kept_log(outcome, log)
            self._recordings.pop(name, None)
            return
        log.unlink(missing_ok=True)
        known = self._recordings.get(name)
        rec = self._recording(outcome, known.runs if known else ())
        trace = None if known else outcome.trace  # the first run's trace is kept: its launch config leads
        try:
            self._recordings[name] = write_workload(rec, self._folder / name, trace)
        except NotMeasurable as error:  # a duration that can't be right
            self.failures[name] = FailedRun(outcome.variant, "timing", str(error), "", None)
            self._recordings.pop(name, None)

    def _with_kept_log(self, failed: FailedRun, log: Path) -> FailedRun:
        if failed.log is None or not failed.log.is_file():
            return failed
        log.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(failed.log, log)
        return FailedRun(failed.variant, failed.kind, failed.cause, failed.detail, log)

    def _recording(self, recorded: Recorded, earlier: tuple[Run, ...]) -> WorkloadRecording:
        variant, root = recorded.variant, self._settings.root
        return WorkloadRecording(
            id=variant.id,
            name=variant.declaration.name,
            params=tuple(sorted(variant.params.items())),
            mode=variant.declaration.mode,
            declared_in=Path(os.path.relpath(variant.declaration.file, root)).as_posix(),
            about=tuple(sorted(recorded.built.about.items())),
            sources=tuple(sorted(recorded.built.sources.items())),
            cache_policy=CACHE_POLICY,
            environment=recorded.environment,
            recorded_at=recorded.recorded_at,
            runs=(*earlier, recorded.run),
            definition=variant.definition,
            tolerance_fraction=self._orders[variant.id].tolerance_fraction,
        )
