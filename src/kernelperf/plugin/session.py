"""One pytest session: which variants to measure or to replay, what is known of each, and how tests ended."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from kernelperf.compare.comparison import Comparison
from kernelperf.conductor.plans import FailedRun, Plan, Progress, Settings
from kernelperf.environment import Hardware
from kernelperf.errors import KernelperfError, UnusableInput
from kernelperf.guarded import BaselineOf, GuardedWorkload, trace_reader
from kernelperf.plugin.judging import Baseline, Demand, Judge, load_baseline
from kernelperf.plugin.marks import meets
from kernelperf.plugin.options import Options
from kernelperf.plugin.selection import Use
from kernelperf.plugin.source import Source, choose_source, describe
from kernelperf.recording import stale_sources, trace_path, workload_folders
from kernelperf.recording.records import WorkloadRecording
from kernelperf.trace.roles import RoleRules
from kernelperf.workload import Variant


@dataclass(frozen=True, slots=True)
class Withheld:
    """Why there is no evidence of a workload: how its tests end, and how the last line counts it."""

    outcome: Literal["fail", "skip"]
    label: str
    text: str


class Session:
    """What one session knows.  Nothing is measured before `prepare`."""

    def __init__(self, options: Options, uses: tuple[Use, ...]) -> None:
        self.options = options
        self.uses = uses
        self._use_by_test = {use.test: use for use in uses}
        self.source: Source = choose_source(options)
        self.baseline = Baseline(why_none="nothing was recorded to find a baseline for")
        self.recordings: dict[str, WorkloadRecording] = {}
        self.withheld: dict[str, Withheld] = {}
        self.comparisons: dict[Demand, Comparison] = {}
        self.rules = RoleRules(options.roles)
        self._judge = Judge(self.baseline, ())
        self._guarded: dict[str, GuardedWorkload] = {}
        if self.source.recording is not None:
            self._find_baseline(self.source.recording.workloads[0].environment.hardware)
        elif self.source.kind == "live":
            _check_folders(options)

    @property
    def live(self) -> bool:
        """Whether workloads are measured now."""
        return self.source.kind == "live"

    @property
    def running(self) -> tuple[Use, ...]:
        """The uses whose tests are going to run, as far as is known before."""
        return tuple(use for use in self.uses if not use.skipped and not self.unsuited(use))

    @property
    def judged_uses(self) -> tuple[Use, ...]:
        """The running tests that compare times with the baseline."""
        return tuple(use for use in self.running if use.judged and self.options.timing)

    def header(self) -> list[str]:
        """Return the lines that say where the evidence comes from."""
        lines = [describe(self.source)]
        if self.source.kind == "replay":
            lines.append(f"kernelperf: {self.baseline_line()}")
        return lines

    def baseline_line(self) -> str:
        """Return which baseline the workloads are held against."""
        if not self.baseline.folder:
            return self.baseline.why_none
        count = len(self.baseline.workloads)
        held = f"{count} workload{'' if count == 1 else 's'}"
        return f"baseline {self.baseline.folder}: {held}, the oldest of {self.baseline.age}"

    def unsuited(self, use: Use) -> str:
        """Return why a test can't run on this GPU, empty where it can."""
        capability = self.source.compute_capability
        if not capability or meets(use.guard.requires, capability):
            return ""
        found = f"sm_{capability.replace('.', '')} ({self.source.gpu_name})"
        return f"requires {use.guard.requires}, this is {found}"

    def prepare(self, progress: Progress) -> None:
        """Measure, or read, what the running tests need, and judge it."""
        variants = {variant.id: variant for use in self.running for variant in use.variants}
        if self.source.kind == "replay":
            self._replay(variants)
        elif self.source.kind == "live":
            self._measure(variants, progress)
        else:
            outcome: Literal["fail", "skip"] = "fail" if self.options.require_gpu else "skip"
            self.withheld = {name: Withheld(outcome, "not measured", self.source.why) for name in variants}
        self.comparisons = self._judge.judged(tuple(self.recordings.values()))

    def use_of(self, test: str) -> Use:
        """Return what a test uses."""
        return self._use_by_test[test]

    def guarded(self, variant: Variant, test: str) -> GuardedWorkload:
        """Return the evidence of a variant for one test, or end that test with the reason for its lack."""
        withheld = self.withheld.get(variant.id)
        if withheld is not None:
            if withheld.outcome == "skip":
                pytest.skip(withheld.text)
            pytest.fail(withheld.text, pytrace=False)
        if variant.id not in self.recordings:
            pytest.fail(f"{variant.id} was not recorded before the tests ran", pytrace=False)
        use = self.use_of(test)
        known = self._guarded.get(variant.id) or self._guard(variant)
        self._guarded[variant.id] = known
        return replace(known, compare=lambda metric: self.comparison(variant.id, metric, use))

    def comparison(self, name: str, metric: str, use: Use) -> Comparison:
        """Return how a workload compares by a metric, at the tolerance of one test."""
        demand = Demand(name, metric, self.tolerance_fraction(use))
        known = self.comparisons.get(demand)
        if known is None:
            known = self._judge.compare(self.recordings[name], demand)
            self.comparisons[demand] = known
        return known

    def tolerance_fraction(self, use: Use) -> float:
        """Return what a test judges by: its mark's tolerance, else the session's."""
        return use.guard.tolerance_fraction or self.options.tolerance_fraction

    def structure(self, name: str) -> Comparison | None:
        """Return what changed in a workload's structure against its baseline."""
        rec = self.recordings.get(name)
        return None if rec is None else self._judge.structure(rec)

    def evidence(self, use: Use) -> Iterator[GuardedWorkload]:
        """Yield what a test has got of its workloads."""
        for variant in use.variants:
            if variant.id in self._guarded:
                yield self._guarded[variant.id]

    def folder_of(self, name: str) -> Path:
        """Return the folder that holds a workload's recording."""
        if self.source.recording is not None:
            return dict(workload_folders(self.source.recording.folder))[name]
        return self.options.record / name

    def _demands(self) -> tuple[Demand, ...]:
        return tuple(
            Demand(variant.id, metric, self.tolerance_fraction(use))
            for use in self.judged_uses
            for variant in use.variants
            for metric in use.guard.metrics
        )

    def _find_baseline(self, hardware: Hardware) -> None:
        self.baseline = load_baseline(self.options, hardware)
        self._judge = Judge(self.baseline, self._demands())

    def _replay(self, variants: dict[str, Variant]) -> None:
        held = {rec.id: rec for rec in self.source.recording.workloads} if self.source.recording else {}
        for name, variant in variants.items():
            withheld = _why_not_replayed(name, variant, held.get(name), self.source.folder, self.options)
            if withheld is None:
                self.recordings[name] = held[name]
            else:
                self.withheld[name] = withheld

    def _measure(self, variants: dict[str, Variant], progress: Progress) -> None:
        from kernelperf.plugin.live import Order, Recorder

        orders = [
            Order(self._plan(variant), self._marked_tolerance(name)) for name, variant in variants.items()
        ]
        if not orders:
            return
        with tempfile.TemporaryDirectory(prefix="kernelperf-") as scratch:
            recorder = Recorder(
                orders, measuring(self.options, self.rules), self.options.record, Path(scratch), progress
            )
            recorder.measure(self.options, self._wants_more)
        self.recordings = {rec.id: rec for rec in recorder.recordings}
        self.withheld = {
            name: _why_not_measured(failed, self.options) for name, failed in recorder.failures.items()
        }
        if self.recordings and not self.baseline.folder:
            self._find_baseline(next(iter(self.recordings.values())).environment.hardware)

    def _wants_more(self, recordings: tuple[WorkloadRecording, ...]) -> frozenset[str]:
        if self.options.update or not recordings:
            return frozenset()
        if not self.baseline.folder:
            self._find_baseline(recordings[0].environment.hardware)
        return self._judge.wants_more(recordings)

    def _plan(self, variant: Variant) -> Plan:
        timed = any(use.timed for use in self.running if variant.id in use.workloads)
        return Plan(variant, timing=timed and self.options.timing)

    def _marked_tolerance(self, name: str) -> float | None:
        """The strictest tolerance of the tests that judge it."""
        marked = (use.guard.tolerance_fraction for use in self.judged_uses if name in use.workloads)
        return min((fraction for fraction in marked if fraction is not None), default=None)

    def _guard(self, variant: Variant) -> GuardedWorkload:
        name = variant.id
        return GuardedWorkload(
            id=name,
            params=variant.params,
            recording=self.recordings[name],
            baseline_of=BaselineOf(
                recording=self.baseline.of(name),
                folder=self.baseline.folder,
                why_none=f"{self.baseline.why_not(name)}; record one with `pytest --kperf-update-baselines`",
                updating=self.options.update,
                absence_fails=self.options.strict or self.options.require_baseline,
            ),
            read=trace_reader(trace_path(self.folder_of(name)), self.rules),
            compare=_needs_a_test,
        )


def measuring(options: Options, rules: RoleRules) -> Settings:
    """Return how the conductor measures in this session."""
    return Settings(root=options.root, lane=options.lane, rules=rules)


def _needs_a_test(metric: str) -> Comparison:
    raise KernelperfError(
        f"a comparison by {metric!r} is judged at the tolerance of a test; ask for it in one"
    )


def _check_folders(options: Options) -> None:
    """Look at the folders before anything is measured: a corrupt baseline is cheaper to learn of now."""
    from kernelperf.baselines import baseline_folders
    from kernelperf.recording import read_recording

    if options.record.exists() and not options.record.is_dir():
        raise UnusableInput(f"--kperf-record: expected a folder, {options.shown(options.record)!r} is a file")
    for folder in baseline_folders(options.baselines):
        if workload_folders(folder):
            read_recording(folder)


def _why_not_replayed(
    name: str, variant: Variant, rec: WorkloadRecording | None, folder: str, options: Options
) -> Withheld | None:
    if rec is None:
        return Withheld(
            "skip", "not in the recording", f"{folder} holds no workload {name!r}; record it on a GPU"
        )
    if rec.definition != variant.definition:
        why = f"its parameters or mode changed since {folder} was recorded"
        return Withheld("skip", "stale", f"stale: {name}: {why}; record it again on a GPU")
    changed = stale_sources(rec, options.root)
    if not changed:
        return None
    why = f"{', '.join(changed)} changed since {folder} was recorded"
    return Withheld("skip", "stale", f"stale: {name}: {why}; record it again on a GPU")


def _why_not_measured(failed: FailedRun, options: Options) -> Withheld:
    name = failed.variant.id
    if failed.kind == "unavailable":
        return Withheld(
            "fail" if options.require_gpu else "skip", "unavailable", f"unavailable: {name}: {failed.cause}"
        )
    log = f"\nlog: {options.shown(failed.log)}" if failed.log else ""
    return Withheld(
        "fail",
        "failed",
        f"{name} could not be measured: {failed.kind}: {failed.cause}\n{failed.detail.rstrip()}{log}",
    )
