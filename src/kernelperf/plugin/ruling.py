"""The comparisons of one test, and what the user asked for → whether it passes, fails or skips, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kernelperf.compare.comparison import Comparison, Verdict
from kernelperf.plugin.options import Options
from kernelperf.render import skip_reason
from kernelperf.render.explain import failure_text


@dataclass(frozen=True, slots=True)
class Ruling:
    """How a test that was judged ends."""

    outcome: Literal["pass", "fail", "skip"]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a failure's text tells beside the comparison."""

    others: tuple[Comparison, ...] = ()
    repro: str = ""
    recording: Path | None = None  # what could be accepted; None in a replay


def rule(comparisons: Sequence[Comparison], options: Options, around: Circumstances) -> Ruling:
    """Return how a test ends that these comparisons decide."""
    if options.update:
        return Ruling("pass")
    slower = [c for c in comparisons if c.verdict is Verdict.SLOWER]
    if slower:
        return Ruling("fail", "\n\n".join(_block(comparison, around) for comparison in slower))
    unjudged = [c for c in comparisons if c.verdict in (Verdict.UNDECIDED, Verdict.NO_BASELINE)]
    if not unjudged:
        return Ruling("pass")
    text = "\n".join(skip_reason(comparison) for comparison in unjudged)
    return Ruling("fail" if any(_fails(c, options) for c in unjudged) else "skip", text)


def _block(comparison: Comparison, around: Circumstances) -> str:
    return failure_text(comparison, around.others, repro=around.repro, recording=around.recording)


def _fails(comparison: Comparison, options: Options) -> bool:
    if options.strict:
        return True
    return options.require_baseline and comparison.verdict is Verdict.NO_BASELINE
