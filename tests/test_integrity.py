"""What a trace lost or can't be true is found, counted, and given its scope."""

from __future__ import annotations

from pathlib import Path

from tests.traces import Row, codes, is_kernel, read

EAGER = "geglu_eager-bf16"


def by_time(rows: list[Row]) -> list[Row]:
    return sorted((row for row in rows if is_kernel(row)), key=lambda row: float(row["ts"]))


def without(rows: list[Row], gone: list[Row]) -> list[Row]:
    ids = {id(row) for row in gone}
    return [row for row in rows if id(row) not in ids]


def test_kernels_of_the_first_steps_lost(tmp_path: Path) -> None:
    trace = read(tmp_path, EAGER, lambda rows: without(rows, by_time(rows)[:15]))
    assert codes(trace)["launches-without-kernels"] == ("trace", 15)
    assert trace.problems[0].message.startswith("15 launches without kernels")


def test_a_kernel_lost_in_the_middle_and_at_the_end(tmp_path: Path) -> None:
    for lost in (slice(22, 23), slice(-1, None)):
        trace = read(tmp_path, EAGER, lambda rows, lost=lost: without(rows, by_time(rows)[lost]))
        assert codes(trace)["launches-without-kernels"] == ("trace", 1)
        assert codes(trace)["steps-differ"] == ("step", 2)


def test_launches_lost(tmp_path: Path) -> None:
    def unlaunched(rows: list[Row]) -> list[Row]:
        first = by_time(rows)[0]["args"]["correlation"]
        calls = [
            row
            for row in rows
            if row.get("cat") in {"cuda_runtime", "cuda_driver"} and row["args"].get("correlation") == first
        ]
        return without(rows, calls)

    assert codes(read(tmp_path, EAGER, unlaunched))["kernels-without-launches"] == ("trace", 1)


def test_a_kernel_without_times_counts_but_its_times_are_no_times(tmp_path: Path) -> None:
    def unstamped(rows: list[Row]) -> list[Row]:
        by_time(rows)[0].update(ts=0, dur=0)
        return rows

    trace = read(tmp_path, EAGER, unstamped)
    assert codes(trace) == {"zero-timestamp": ("timing", 1)}
    assert [len(step.kernels) for step in trace.steps] == [5] * 10


def test_durations_of_zero_and_below(tmp_path: Path) -> None:
    def shrunk(rows: list[Row]) -> list[Row]:
        for row, duration in zip(by_time(rows), (0, -3.0), strict=False):
            row["dur"] = duration
        return rows

    assert codes(read(tmp_path, EAGER, shrunk)) == {"zero-duration": ("timing", 2)}


def test_steps_that_launch_different_things(tmp_path: Path) -> None:
    def renamed(rows: list[Row]) -> list[Row]:
        by_time(rows)[0]["name"] = "another_kernel"
        return rows

    assert codes(read(tmp_path, EAGER, renamed)) == {"steps-differ": ("step", 2)}
