"""The device clock shows pytest-benchmark exactly the values that it is fed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelperf.plugin.device_clock import CLOCK, DeviceClock, feed, samples_s
from tests import builders


class Benchmark:
    """Does what pytest-benchmark's ``pedantic`` does: setup, read the clock, call, read the clock."""

    def __init__(self, group=None):
        self.group, self.extra_info, self.durations_s = group, {}, []

    def pedantic(self, target, setup, rounds):
        for _ in range(rounds):
            assert setup() is None  # a return value would become the target's arguments
            start = CLOCK()
            target()
            self.durations_s.append(CLOCK() - start)
        target()  # as --benchmark-cprofile does


def test_values_come_out_as_they_went_in():
    values_s = (5.2e-6, 206.8e-6, 1e-9, 0.3333333333333333)
    benchmark = Benchmark()
    feed(benchmark, values_s, group="gpu_time", params={"dtype": "bf16"}, extra_info={"verdict": "SAME"})
    assert benchmark.params == {"dtype": "bf16"}
    assert tuple(benchmark.durations_s) == values_s
    assert benchmark.group == "gpu_time"
    assert benchmark.extra_info == {"verdict": "SAME"}


def test_a_group_of_the_users_stays():
    benchmark = Benchmark(group="mine")
    feed(benchmark, (1.0,), group="gpu_time", params={}, extra_info={})
    assert benchmark.group == "mine"


def test_the_clock_has_a_name_and_stands_still():
    clock = DeviceClock()
    assert clock.__name__ == "kernelperf"
    assert clock() == clock() == 0.0


@pytest.mark.parametrize(
    ("metric", "first_s", "number"),
    [("gpu_time", 206.8e-6 * 0.995, 60), ("wall_time", 206.8e-6 * 1.02 * 1.3, 10), ("compile_time", 3.25, 5)],
)
def test_samples_are_the_rounds_that_count(metric, first_s, number):
    found = samples_s(builders.recording(), metric)
    assert found[0] == pytest.approx(first_s, rel=2e-3)
    assert len(found) == number


def test_kernel_time_is_one_value_a_run():
    rec = replace(builders.recording(), runs=(builders.run(),))
    assert samples_s(rec, "kernel_time") == pytest.approx(
        [sum(k.duration_ns for k in rec.runs[0].kernels) / 1e9]
    )
