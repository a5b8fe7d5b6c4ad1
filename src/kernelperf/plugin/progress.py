"""What the conductor is doing → a line that is rewritten on a terminal, and few plain lines elsewhere."""

from __future__ import annotations

import re
from typing import Any


class ProgressLine:
    """Shows texts one after the other; texts that differ in numbers only count as one off a terminal."""

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter  # pytest's terminal reporter, None with -p no:terminal
        self._shown = ""
        self._open = False

    def __call__(self, text: str) -> None:
        """Show a text."""
        if self._reporter is None:
            return
        if self._reporter.isatty:
            if not self._open:
                self._reporter.ensure_newline()
            self._reporter.rewrite(f"kernelperf: {text}", erase=True)
            self._open = True
            return
        kind = re.sub(r"\d+", "#", text)
        if kind != self._shown:
            self._shown = kind
            self._reporter.write_line(f"kernelperf: {text}")

    def end_line(self) -> None:
        """Keep what is shown, and start a new line."""
        if self._open:
            self._reporter.ensure_newline()
            self._open = False

    def finish(self) -> None:
        """Leave a clean line for what comes next."""
        if self._open:
            self._reporter.rewrite("", erase=True)
            self._open = False
