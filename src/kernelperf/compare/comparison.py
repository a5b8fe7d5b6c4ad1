"""The records that a comparison of two recordings is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_TOLERANCE_FRACTION = 0.02


class Verdict(StrEnum):
    """What a comparison came to."""

    SAME = "SAME"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    UNDECIDED = "UNDECIDED"
    NO_BASELINE = "NO_BASELINE"


class Code(StrEnum):
    """Why, to program against."""

    WITHIN_TOLERANCE = "within-tolerance"
    BEYOND_TOLERANCE = "beyond-tolerance"  # faster
    LAUNCH_CONFIG = "launch-config"  # the same kernels, launched otherwise
    KERNELS = "kernels"  # a kernel is new, lost, or another
    KERNEL_TIME = "kernel-time"  # the same kernels, launched alike, take longer
    COUNTS = "counts"  # a count rose, on the same stack
    COMMON_SHIFT = "common-shift"  # all workloads moved alike
    UNEXPLAINED = "unexplained"  # slower, and no kernel is
    INTERVAL_INCLUDES_ZERO = "interval-includes-zero"
    NOISY = "noisy"
    QUEUE_RAN_DRY = "queue-ran-dry"
    NOT_RECORDED = "not-recorded"  # no baseline for this workload
    NOT_TIMED = "not-timed"  # its baseline holds no times
    DEFINITION_CHANGED = "definition-changed"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why: a code to program against, and a sentence to read."""

    code: Code
    sentence: str


@dataclass(frozen=True, slots=True)
class Policy:
    """What the verdict is judged by.

    ``metric`` is ``gpu_time``, ``wall_time``, ``kernel_time``, ``compile_time``, or ``structure``, which
    needs no times.
    """

    tolerance_fraction: float = DEFAULT_TOLERANCE_FRACTION
    metric: str = "gpu_time"
    suite_size: int = 1  # workloads compared in this session: the error rate is held over all of them
    looks: int = 3


@dataclass(frozen=True, slots=True)
class KernelChange:
    """A kernel that appeared, vanished, was renamed, reconfigured, or changed its time.

    ``before`` and ``now`` are its names where it was renamed, else the parts of its launch config that
    differ, ``XBLOCK=1024 warps=4``.
    """

    kind: str  # added, removed, renamed, reconfigured, slower, faster
    position: int  # now; before, for one that is removed
    before: str
    now: str
    delta_ns: float
    name: str = ""
    role: str = ""
    op: str = ""
    before_ns: float = 0.0
    now_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload compared with its baseline.  Ratios are now over base; the interval is of ``ratio``."""

    workload: str
    metric: str
    verdict: Verdict
    reason: Reason
    tolerance_fraction: float
    base_ns: float | None = None
    now_ns: float | None = None
    ratio: float | None = None
    lower: float | None = None
    upper: float | None = None
    base_runs: int = 0
    now_runs: int = 0
    kernel_changes: tuple[KernelChange, ...] = ()
    count_changes: tuple[tuple[str, int, int], ...] = ()
    stack_changes: tuple[tuple[str, str, str], ...] = ()
    state_changes: tuple[str, ...] = ()
    undecided_hint: str = ""  # what to do about UNDECIDED and NO_BASELINE
    base_spread_fraction: float | None = None  # between runs, robust; None below two runs
    now_spread_fraction: float | None = None
    kernel_delta_ns: float | None = None  # of all kernels together, also those too small to list
    counts_rose: bool = False
    machine: str = ""  # what is known to be equal: "clocks equal (1980 MHz), GPU not shared, same card"

    @property
    def delta_ns(self) -> float | None:
        """How much longer now takes than base."""
        return None if self.now_ns is None or self.base_ns is None else self.now_ns - self.base_ns
