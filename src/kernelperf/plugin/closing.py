"""The end of a session → facts written, baselines updated, what is wrong as a whole, and the last line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from kernelperf.baselines import Acceptance, accept
from kernelperf.compare.comparison import Verdict
from kernelperf.errors import UnusableInput
from kernelperf.plugin.session import Session
from kernelperf.recording import write_workload
from kernelperf.recording.records import FactOutcome, Recording, WorkloadRecording
from kernelperf.render import Origin, origin_of, summary_line
from kernelperf.workload import Declaration, registered

_SEVERITY = ("passed", "skipped", "failed")


@dataclass(slots=True)
class Outcomes:
    """How the tests that use workloads ended, gathered as they report."""

    ended: dict[str, str] = field(default_factory=dict)
    disagreeing: set[str] = field(default_factory=set)  # with the baseline: no fact of the workload's own
    undetermined: set[str] = field(default_factory=set)  # what they assert no trace can know

    def note(self, test: str, outcome: str) -> None:
        """Take in one phase of a test; the worst phase counts."""
        if outcome not in _SEVERITY:  # such as another plugin's "rerun"
            return
        known = self.ended.get(test, outcome)
        self.ended[test] = max(known, outcome, key=_SEVERITY.index)

    @property
    def failed(self) -> tuple[str, ...]:
        """The tests that failed."""
        return tuple(test for test, outcome in self.ended.items() if outcome == "failed")


@dataclass(frozen=True, slots=True)
class Closing:
    """What is said at the end; any error makes the session fail."""

    errors: tuple[str, ...]
    notes: tuple[str, ...]
    last_line: str
    acceptance: Acceptance | None = None


def close(session: Session, outcomes: Outcomes, *, complete: bool) -> Closing:
    """Write the facts, update the baseline where that was asked, and sum up.

    ``complete`` says that the session ran to its end.
    """
    acceptance, refusal = None, ""
    if session.live:
        _write_facts(session, outcomes)
        if session.options.update and session.uses:
            acceptance, refusal = _updated(session, outcomes, complete=complete)
    absent = _absent_from_run(session)
    errors = [refusal, *_wrong_as_a_whole(session, absent)]
    return Closing(
        errors=() if session.options.advisory else tuple(error for error in errors if error),
        notes=tuple(f"{name}: in the baseline, but declared nowhere any more" for name in absent.missing),
        last_line=_last_line(session, absent, len(outcomes.undetermined)),
        acceptance=acceptance,
    )


def _write_facts(session: Session, outcomes: Outcomes) -> None:
    """Store how the tests of each workload ended, once all of them have."""
    for name, rec in session.recordings.items():
        tests = [use.test for use in session.running if name in use.workloads]
        if all(test in outcomes.ended for test in tests):
            facts = tuple(
                FactOutcome(test, outcomes.ended[test]) for test in tests if test not in outcomes.disagreeing
            )
            session.recordings[name] = write_workload(
                replace(rec, facts=facts), session.options.record / name, None
            )


def _updated(session: Session, outcomes: Outcomes, *, complete: bool) -> tuple[Acceptance | None, str]:
    options, where = session.options, session.options.shown(session.options.baselines)
    why_not = "the session was interrupted" if not complete else ""
    if outcomes.failed:
        first, count = outcomes.failed[0], len(outcomes.failed)
        tests = "1 test that uses" if count == 1 else f"{count} tests that use"
        why_not = f"{tests} a workload failed: {first}{'' if count == 1 else ' and others'}"
    if not session.recordings:
        why_not = why_not or "no workload was measured"
    if why_not:
        return None, f"the baselines in {where} are unchanged: {why_not}"
    recorded = Recording(options.record, tuple(session.recordings.values()))
    try:
        return accept(recorded, options.baselines, reason=options.reason or _default_reason(session)), ""
    except UnusableInput as error:
        return None, f"the baselines in {where} are unchanged: {error}"


def _default_reason(session: Session) -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}: {session.options.command}"


@dataclass(frozen=True, slots=True)
class AbsentFromRun:
    """Workloads of the baseline that this session has no test for."""

    not_selected: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def absent_from_run(
    baseline: tuple[WorkloadRecording, ...],
    used: frozenset[str],
    declared: Mapping[str, Declaration],
    root: Path,
) -> AbsentFromRun:
    """Tell the baseline's workloads that were merely not selected from those that are gone.

    One is gone when its declaration's variants don't include it any more, or when its declaring file is no
    longer there, or was imported and declares it no more.
    """
    ids = {variant.id for declaration in declared.values() for variant in declaration.variants()}
    files = {declaration.file for declaration in declared.values()}
    not_selected: list[str] = []
    missing: list[str] = []
    for rec in baseline:
        if rec.id in used:
            continue
        file = (root / rec.declared_in).resolve()
        uncollected = rec.name not in declared and file.is_file() and file not in files
        (not_selected if rec.id in ids or uncollected else missing).append(rec.id)
    return AbsentFromRun(tuple(not_selected), tuple(missing))


def _absent_from_run(session: Session) -> AbsentFromRun:
    if session.options.update:
        return AbsentFromRun()
    used = frozenset(name for use in session.uses for name in use.workloads)
    return absent_from_run(session.baseline.workloads, used, registered(), session.options.root)


def _wrong_as_a_whole(session: Session, absent: AbsentFromRun) -> list[str]:
    if not session.uses:
        return []
    if session.source.kind == "none":
        return [session.source.why] if session.running else []
    errors = []
    if session.options.require_baseline and absent.missing:
        errors.append(
            f"the baseline {session.baseline.folder} holds workloads that are declared nowhere any more: "
            f"{', '.join(absent.missing)}; declare them, or delete their folders (--kperf-require-baseline)"
        )
    if session.options.require_baseline and (unmet := _not_held_against_baseline(session)):
        errors.append(
            f"the baseline {session.baseline.folder} holds workloads that this run has no evidence of: "
            f"{', '.join(unmet)} (--kperf-require-baseline); see the reasons of the skipped tests"
        )
    if session.judged_uses and not session.options.update and not _compared(session):
        errors.append(_nothing_compared(session))
    return errors


def _not_held_against_baseline(session: Session) -> list[str]:
    """Return the baseline's workloads whose tests ran here and skipped: unavailable, stale, not recorded."""
    withheld = session.withheld
    return [
        f"{rec.id} ({withheld[rec.id].label})"
        for rec in session.baseline.workloads
        if rec.id in withheld and withheld[rec.id].outcome == "skip"
    ]


def _compared(session: Session) -> int:
    return sum(c.verdict is not Verdict.NO_BASELINE for c in session.comparisons.values())


def _nothing_compared(session: Session) -> str:
    """Say why no time was compared, though tests were there to do it."""
    reasons = Counter(withheld.label for withheld in session.withheld.values())
    bare = {c.workload: c for c in session.comparisons.values() if c.verdict is Verdict.NO_BASELINE}
    counted = [f"{number} {label}" for label, number in reasons.items()]
    tests = len(session.judged_uses)
    told = f"0 workloads were compared by {tests} timing test{'' if tests == 1 else 's'}"
    if bare:
        sentence = next(iter(bare.values())).reason.sentence
        counted.insert(0, f"{len(bare)} without a baseline: {sentence}")
    untimed = sum(not rec.timed for rec in session.recordings.values())
    if untimed:
        counted.append(f"{untimed} recorded without times")
    remedy = (
        "record one with `pytest --kperf-update-baselines`"
        if bare
        else "see the reasons of the skipped tests"
    )
    return f"{told} ({'; '.join(counted)}); {remedy}"


def _last_line(session: Session, absent: AbsentFromRun, undetermined: int) -> str:
    judged = {demand.workload for demand in session.comparisons}
    withheld = Counter(each.label for each in session.withheld.values())
    others = [
        ("structure only", sum(name not in judged for name in session.recordings)),
        *withheld.items(),
        ("not selected", len(absent.not_selected)),
        ("missing", len(absent.missing)),
        ("not determinable", undetermined),
    ]
    if session.source.kind == "none":
        told = "".join(f"; {number} {label}" for label, number in others if number)
        return f"kernelperf: 0 workloads compared{told}; no GPU, and nothing replayed"
    return summary_line(tuple(session.comparisons.values()), _origin(session), others)


def _origin(session: Session) -> Origin:
    source = session.source
    if source.recording is not None:
        return replace(origin_of(source.recording, live=False), folder=source.folder)
    if session.recordings:
        measured = Recording(session.options.record, tuple(session.recordings.values()))
        return origin_of(measured, live=True)
    return Origin(live=True, gpu=source.gpu_name)
