"""What the plugin keeps of one active session, and what its hooks do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernelperf.errors import NotDeterminable
from kernelperf.guarded import Disagreement
from kernelperf.plugin.closing import Closing, Outcomes, close
from kernelperf.plugin.device_clock import forgive_unused
from kernelperf.plugin.options import Options
from kernelperf.plugin.progress import ProgressLine
from kernelperf.plugin.selection import Use
from kernelperf.plugin.session import Session
from kernelperf.render import acceptance_table, changes_text, kernel_table, verdict_table

_SECTION = "kernelperf"
_PACKAGE = Path(__file__).parents[1]
_ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class State:
    """An active session: its evidence, how its tests ended, and how it closed."""

    def __init__(self, options: Options, uses: tuple[Use, ...]) -> None:
        self.session = Session(options, uses)
        self._uses = {use.test: use for use in uses}
        self._outcomes = Outcomes()
        self._closing: Closing | None = None
        self._advised: list[tuple[str, str]] = []

    def prepare(self, session: pytest.Session) -> None:
        """Measure or read what the tests need, and skip those that this GPU can't run."""
        for item in session.items:
            use = self._uses.get(item.nodeid)
            reason = self.session.unsuited(use) if use else ""
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
        progress = ProgressLine(session.config.pluginmanager.getplugin("terminalreporter"))
        try:
            self.session.prepare(progress)
        finally:
            progress.finish()
        if self.session.live and self.session.recordings:
            progress(self.session.baseline_line())
            progress.end_line()

    def complete_report(
        self, item: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport
    ) -> None:
        """Add the evidence to a failure; note how the test ended."""
        use = self._uses.get(item.nodeid)
        if use is None:
            return
        if report.failed and call.excinfo is not None and isinstance(call.excinfo.value, NotDeterminable):
            self._undetermined(use, report, str(call.excinfo.value))
        _locate_skip(item, report)
        if report.failed:
            forgive_unused(item)
            report.sections += self._evidence(use)
            if call.excinfo is not None and isinstance(call.excinfo.value, Disagreement):
                self._outcomes.disagreeing.add(use.test)
        self._outcomes.note(use.test, report.outcome)
        if report.failed and self.session.options.advisory:
            self._advise(use, report)

    def close(self, session: pytest.Session, exitstatus: int) -> None:
        """End the session; what is wrong as a whole makes it fail."""
        complete = exitstatus in _ENDED and not session.shouldstop and not session.shouldfail
        self._closing = close(self.session, self._outcomes, complete=complete)
        if self._closing.errors and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def summarize(self, terminal: Any) -> None:
        """Show the verdicts, and what became the baseline."""
        shown = [verdict_table(tuple(self.session.comparisons.values()))] if self.session.comparisons else []
        if self._closing is not None:
            shown += self._closing.notes
            if self._closing.acceptance is not None:
                shown = [acceptance_table(self._closing.acceptance)]
        shown += [f"{test}\n{text}" for test, text in self._advised]
        if shown:
            terminal.section(_SECTION)
            terminal.write_line("\n\n".join(shown))

    def last_words(self, config: pytest.Config) -> None:
        """Write what is wrong as a whole, and the last line."""
        terminal = config.pluginmanager.getplugin("terminalreporter")
        if terminal is None or self._closing is None:
            return
        terminal.ensure_newline()
        for error in self._closing.errors:
            terminal.write_line(f"kernelperf: ERROR: {error}", red=True, bold=True)
        terminal.write_line(self._closing.last_line)

    def machine_info(self) -> dict[str, Any] | None:
        """Return the environment of what was measured, None where nothing was."""
        recordings = tuple(self.session.recordings.values())
        if not recordings:
            return None
        environment = recordings[0].environment
        described: dict[str, Any] = msgspec.to_builtins(environment)
        return {**described, "stack": dict(environment.stack)}

    def _evidence(self, use: Use) -> list[tuple[str, str]]:
        return [
            (f"kernelperf {guarded.id}", self._shown(guarded.id)) for guarded in self.session.evidence(use)
        ]

    def _shown(self, name: str) -> str:
        """The step's kernels, and what changed in them against the baseline."""
        table = kernel_table(self.session.recordings[name].runs[0].kernels)
        compared = self.session.structure(name)
        if compared is None:
            return f"{table}\n{self.session.baseline.why_not(name)}"
        changed = changes_text(compared) or "nothing"
        return f"{table}\nchanged against the baseline {self.session.baseline.folder}:\n{changed}"

    def _undetermined(self, use: Use, report: pytest.TestReport, reason: str) -> None:
        """Let a fact that the trace can't know neither pass nor fail; ``--kperf-strict`` fails it."""
        self._outcomes.undetermined.add(use.test)
        if not self.session.options.strict:
            report.outcome = "skipped"
            report.longrepr = (str(Path(__file__)), 1, f"Skipped: {reason}")

    def _advise(self, use: Use, report: pytest.TestReport) -> None:
        """Turn a failure into an expected one: reported, and failing nothing."""
        self._advised.append((use.test, report.longreprtext))
        report.outcome = "skipped"
        report.wasxfail = "--kperf-advisory"


def _locate_skip(item: pytest.Item, report: pytest.TestReport) -> None:
    """Let a skip that was raised in here point at the test, as one by a mark does."""
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return
    raised_in, _, reason = report.longrepr
    if Path(raised_in).is_relative_to(_PACKAGE):
        path, line, _ = item.reportinfo()
        report.longrepr = (str(path), (line or 0) + 1, reason)
