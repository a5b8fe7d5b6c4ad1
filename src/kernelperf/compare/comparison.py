"""The records that a comparison of two recordings is made of."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_TOLERANCE_FRACTION = 0.02
# How often a session looks at its runs at most: the error is split between the looks.
LOOKS = 3


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
    COPIES = "copies"  # more copies between buffers, which are no kernels
    HOST_OPS = "host-ops"  # more ops or runtime calls on the host
    RECOMPILE = "recompile"  # a graph break, or a graph compiled again
    EAGER_FALLBACK = "eager-fallback"  # compiled in the baseline, eager now, and nothing said so
    MEMORY = "memory"  # no kernel is slower, but more memory is held
    COUNTS = "counts"  # another count rose, on the same stack
    COMMON_SHIFT = "common-shift"  # all workloads moved alike
    UNEXPLAINED = "unexplained"  # slower, and no kernel is
    INTERVAL_INCLUDES_ZERO = "interval-includes-zero"
    NOISY = "noisy"
    CARD_DISTURBED = "card-disturbed"  # slower than in the baseline's runs for a reason of its own
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
    looks: int = LOOKS
    run_sd: float | None = None  # the spread between runs to assume at least; None for the metric's own
    card: CardShift | None = None  # what another card is credited with; None where nothing is known


@dataclass(frozen=True, slots=True)
class CardShift:
    """How a suite's other workloads read on this card against the baseline's: a log ratio, and how many."""

    log: float
    workloads: int


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
    """One workload compared with its baseline.

    Ratios are now over base; the interval is of ``ratio``.  On another card than the baseline's, ``ratio``
    is without ``card_shift``.
    """

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
    card_shift: float | None = None  # ratio of the other workloads, taken off; None where nothing was
    yardsticks: tuple[tuple[str, float], ...] = ()  # name, now over base
    machine: str = ""  # what is known to be equal: "clocks equal (1980 MHz), GPU not shared, same card"

    @property
    def raw_ratio(self) -> float | None:
        """Now over base as measured, with what another card makes of it."""
        return None if self.now_ns is None or self.base_ns is None else self.now_ns / self.base_ns

    @property
    def delta_ns(self) -> float | None:
        """How much longer now takes than base."""
        return None if self.now_ns is None or self.base_ns is None else self.now_ns - self.base_ns
