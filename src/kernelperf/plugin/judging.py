"""Recordings and the baseline of their GPU → comparisons, each by what one test demands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kernelperf.baselines import baseline_folders, find_baseline
from kernelperf.compare import Suite, compare, judge_suite, wants_more_runs
from kernelperf.compare.comparison import Code, Comparison, Policy, Reason, Verdict
from kernelperf.compare.verdict import STRUCTURE, values_of
from kernelperf.environment import Hardware
from kernelperf.plugin.options import Options
from kernelperf.recording import read_recording, workload_folders
from kernelperf.recording.records import WorkloadRecording


@dataclass(frozen=True, slots=True)
class Baseline:
    """The accepted recording of a GPU and lane, or why there is none."""

    folder: str = ""  # as shown; empty where there is none
    workloads: tuple[WorkloadRecording, ...] = ()
    why_none: str = ""

    def of(self, name: str) -> WorkloadRecording | None:
        """Return the workload of this id, None where the baseline doesn't hold it."""
        return next((rec for rec in self.workloads if rec.id == name), None)

    def why_not(self, name: str) -> str:
        """Return why a workload has no baseline."""
        return self.why_none or f"the baseline {self.folder} holds no workload {name!r}"

    @property
    def age(self) -> str:
        """When its oldest workload was accepted, a date; empty where there is none."""
        return min((rec.accepted_at or rec.recorded_at for rec in self.workloads), default="")[:10]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a test asks to be judged: a workload, by a metric, at a tolerance."""

    workload: str
    metric: str
    tolerance_fraction: float


def load_baseline(options: Options, hardware: Hardware) -> Baseline:
    """Return the baseline of this hardware and the session's lane.

    Raises `UnusableInput` for a corrupt one.
    """
    folder = find_baseline(options.baselines, hardware, options.lane)
    if folder is not None:
        return Baseline(options.shown(folder), read_recording(folder).workloads)
    lane = f" in lane {options.lane!r}" if options.lane else ""
    stored = [found.name for found in baseline_folders(options.baselines) if workload_folders(found)]
    held = ", ".join(stored) or "none"
    where = f"in {options.shown(options.baselines)} (it holds {held})"
    return Baseline(why_none=f"no baseline for {_described(hardware)}{lane} {where}")


class Judge:
    """Compares with the baseline; what one workload can't tell alone is told apart once all are there."""

    def __init__(self, baseline: Baseline, demands: Iterable[Demand]) -> None:
        self.baseline = baseline
        self._demands = tuple(dict.fromkeys(demands))
        self._judgements = len({(demand.workload, demand.metric) for demand in self._demands})
        self._suite = self._suite_of(())

    def wants_more(self, recordings: Sequence[WorkloadRecording]) -> frozenset[str]:
        """Return the workloads that should be measured again, in fresh workers."""
        self._suite = self._suite_of(recordings)
        return frozenset(
            rec.id
            for rec in recordings
            for demand in self._demands
            if demand.workload == rec.id
            and values_of(rec.runs, demand.metric)
            and wants_more_runs(self.compare(rec, demand))
        )

    def compare(self, rec: WorkloadRecording, demand: Demand) -> Comparison:
        """Return the comparison of one workload, as the others that were last judged let it be seen."""
        policy = self._suite.policy(
            rec.id, tolerance_fraction=demand.tolerance_fraction, metric=demand.metric
        )
        found = compare(self.baseline.of(rec.id), rec, policy)
        if found.verdict is Verdict.NO_BASELINE and found.reason.code is Code.NOT_RECORDED:
            return replace(found, reason=Reason(Code.NOT_RECORDED, self.baseline.why_not(rec.id)))
        return found

    def judged(self, recordings: Sequence[WorkloadRecording]) -> dict[Demand, Comparison]:
        """Return what every demand came to, a shift that all workloads share named as the reason."""
        self._suite = self._suite_of(recordings)
        known = {rec.id: rec for rec in recordings if rec.timed}  # others hold compile times only
        alone = {
            demand: self.compare(known[demand.workload], demand)
            for demand in self._demands
            if demand.workload in known and values_of(known[demand.workload].runs, demand.metric)
        }
        leading: dict[str, Comparison] = {}
        for demand, comparison in alone.items():
            if demand.metric == "gpu_time":
                leading.setdefault(demand.workload, comparison)
        return {
            demand: judge_suite([comparison, *(c for name, c in leading.items() if name != demand.workload)])[
                0
            ]
            for demand, comparison in alone.items()
        }

    def _suite_of(self, recordings: Sequence[WorkloadRecording]) -> Suite:
        return Suite(self.baseline.workloads, recordings, judgements=self._judgements)

    def structure(self, rec: WorkloadRecording) -> Comparison | None:
        """Return what changed in a workload's structure, None where there is nothing to compare with."""
        base = self.baseline.of(rec.id)
        return None if base is None else compare(base, rec, Policy(metric=STRUCTURE))


def _described(hardware: Hardware) -> str:
    parts = [
        hardware.gpu,
        hardware.mig,
        f"{hardware.sm_count} SMs",
        f"{hardware.memory_bytes / 2**30:.0f} GiB",
    ]
    limit = f"{hardware.power_limit_w} W" if hardware.power_limit_w is not None else ""
    return ", ".join(part for part in (*parts, limit) if part)
