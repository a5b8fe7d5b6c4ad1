"""Fail the pull request that slows PyTorch GPU code, and name the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelperf.errors import KernelperfError, NotDeterminable, NotMeasurable, UnusableInput
from kernelperf.workload import Subject, Unavailable, workload

if TYPE_CHECKING:
    from kernelperf.guarded import GuardedWorkload, speed_ratio

__all__ = [
    "GuardedWorkload",
    "KernelperfError",
    "NotDeterminable",
    "NotMeasurable",
    "Subject",
    "Unavailable",
    "UnusableInput",
    "speed_ratio",
    "workload",
]


def __getattr__(name: str) -> Any:
    """Load what only tests need when they ask for it: the plugin is imported into every pytest run."""
    if name in ("GuardedWorkload", "speed_ratio"):
        from kernelperf import guarded

        return getattr(guarded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
