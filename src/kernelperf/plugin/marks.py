"""The marks ``kernelperf(...)`` of a test → its Guard: what it is judged by, and where it can run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelperf.errors import UnusableInput

MARK = "kernelperf"
METRICS = ("gpu_time", "wall_time", "kernel_time", "compile_time")
DEFAULT_GATE = ("gpu_time",)
_KEYWORDS = ("tolerance", "gate", "requires")
_ARCHITECTURE = re.compile(r"sm_(\d+)(\d)(\+?)")


@dataclass(frozen=True, slots=True)
class Guard:
    """What one test asks for; None where its marks don't say."""

    tolerance_fraction: float | None = None
    gate: tuple[str, ...] | None = None
    requires: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that decide."""
        return self.gate or DEFAULT_GATE


def merged_guard(marks: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> Guard:
    """Return the guard of a test from its marks' arguments, closest first; a closer keyword wins.

    Raises `UnusableInput` for arguments that the mark doesn't take.
    """
    keywords: dict[str, Any] = {}
    for args, kwargs in marks:
        if args:
            raise UnusableInput(f"the mark {MARK!r} takes keywords only ({_listed()}), found {args!r}")
        for name, value in kwargs.items():
            if name not in _KEYWORDS:
                raise UnusableInput(f"the mark {MARK!r} has no keyword {name!r}; use {_listed()}")
            keywords.setdefault(name, value)
    return Guard(
        tolerance_fraction=_tolerance(keywords.get("tolerance")),
        gate=_gate(keywords.get("gate")),
        requires=_requires(keywords.get("requires", "")),
    )


def meets(requires: str, compute_capability: str) -> bool:
    """Whether a GPU of this compute capability, ``9.0``, is what ``sm_90`` or ``sm_90+`` asks for."""
    match = _ARCHITECTURE.fullmatch(requires)
    if match is None:
        return not requires
    wanted = int(match[1]), int(match[2])
    major, _, minor = compute_capability.partition(".")
    found = int(major), int(minor)
    return found >= wanted if match[3] else found == wanted


def _listed() -> str:
    return ", ".join(f"{name}=" for name in _KEYWORDS)


def _tolerance(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 100:
        raise UnusableInput(
            f"the mark {MARK!r} takes tolerance= in percent, above 0 and up to 100, found {value!r}"
        )
    return value / 100


def _gate(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    known = isinstance(value, list | tuple) and value and all(metric in METRICS for metric in value)
    if not known:
        raise UnusableInput(
            f"the mark {MARK!r} takes gate= as a list of {', '.join(METRICS)}, found {value!r}"
        )
    return tuple(dict.fromkeys(value))


def _requires(value: Any) -> str:
    if isinstance(value, str) and (not value or _ARCHITECTURE.fullmatch(value)):
        return value
    raise UnusableInput(f"the mark {MARK!r} takes requires= as 'sm_90' or 'sm_90+', found {value!r}")
