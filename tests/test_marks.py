"""The marks of a test are merged keyword by keyword, and an architecture is met exactly or at least."""

from __future__ import annotations

import pytest

from kernelperf import UnusableInput
from kernelperf.plugin.marks import Guard, meets, merged_guard


def guard(*keywords):
    return merged_guard(((), each) for each in keywords)


def test_the_closest_mark_wins_each_keyword():
    merged = guard({"tolerance": 3}, {"tolerance": 10, "gate": ["wall_time"]}, {"requires": "sm_90"})
    assert merged == Guard(tolerance_fraction=0.03, gate=("wall_time",), requires="sm_90")
    assert merged.metrics == ("wall_time",)


def test_without_marks_gpu_time_decides():
    assert guard().metrics == ("gpu_time",)
    assert guard().tolerance_fraction is None


def test_a_metric_named_twice_decides_once():
    assert guard({"gate": ["wall_time", "gpu_time", "wall_time"]}).gate == ("wall_time", "gpu_time")


@pytest.mark.parametrize("value", [0, -1, 101, True, "3", None])
def test_a_tolerance_is_a_percentage(value):
    if value is None:
        assert guard({"tolerance": None}).tolerance_fraction is None
        return
    with pytest.raises(UnusableInput, match=r"takes tolerance= in percent, above 0 and up to 100, found"):
        guard({"tolerance": value})


def test_a_gate_is_a_list_not_a_string():
    with pytest.raises(UnusableInput, match=r"takes gate= as a list of gpu_time.*found 'gpu_time'"):
        guard({"gate": "gpu_time"})


@pytest.mark.parametrize(
    ("requires", "capability", "met"),
    [
        ("sm_90", "9.0", True),
        ("sm_90", "10.0", False),
        ("sm_90+", "10.0", True),
        ("sm_100+", "9.0", False),
        ("sm_89+", "9.0", True),
        ("sm_120", "12.0", True),
        ("", "9.0", True),
    ],
)
def test_an_architecture_is_met(requires, capability, met):
    assert meets(requires, capability) is met
