"""Figures as SVG that comes out the same from the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "kernelperf"
from matplotlib import pyplot  # noqa: E402

__all__ = ["pyplot", "save"]


def save(figure: Any, path: Path) -> None:
    """Write a figure without a frame above and right of its panels, and without a date."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
