"""What a trace lost or can't be true is found, counted, and given its scope."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelperf.trace.kineto import read_trace
from kernelperf.trace.summary import summarize
from tests.traces import (
    Row,
    codes,
    host_row,
    is_kernel,
    kernel_row,
    launch_row,
    launched_kernel,
    made,
    mark_row,
    read,
)

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


@pytest.mark.parametrize(
    ("name", "start", "wrong"),
    [
        ("cudaLaunchKernel", 103, True),
        ("cudaLaunchKernel", 105, False),
        ("cudaLaunchKernelExC", 103, False),  # it may begin early
        ("cuLaunchKernelEx", 103, False),
        ("cuLaunchKernelEx", 99, True),  # but not before the one before
        ("cudaGraphLaunch", 103, False),  # its branches run side by side
        ("hipLaunchKernel", 103, False),  # a queue of AMD's may overlap
    ],
)
def test_a_kernel_begins_when_the_one_before_has_ended(
    tmp_path: Path, name: str, start: float, wrong: bool
) -> None:
    rows = [*launched_kernel("first", 1, 100, 5, 1), launch_row(2, 2, name), kernel_row("k", start, 5, 2)]
    found = {"impossible-overlap": ("timing", 1)} if wrong else {}
    assert codes(read_trace(made(tmp_path, rows))) == found


def test_kernels_on_two_streams_may_overlap(tmp_path: Path) -> None:
    rows = [*launched_kernel("first", 1, 100, 5, 1), launch_row(2, 2), kernel_row("k", 101, 5, 2, stream=9)]
    assert codes(read_trace(made(tmp_path, rows))) == {}


def test_doubled_rows(tmp_path: Path) -> None:
    trace = read(tmp_path, EAGER, lambda rows: [*rows, *by_time(rows)[:3]])
    assert codes(trace)["kernels-sharing-a-launch"] == ("trace", 3)


@pytest.mark.parametrize("line", ["Dropped 12 activity records", "lost events", "Out of GPU buffer space"])
def test_dropped_event_markers(tmp_path: Path, line: str) -> None:
    rows = launched_kernel("k", 1, 100, 5, 1)
    assert codes(read_trace(made(tmp_path, rows, WARNING=[line]))) == {"dropped-events": ("trace", 1)}
    assert codes(read_trace(made(tmp_path, rows, WARNING=["Profiler clears events"]))) == {}


def test_a_mark_on_the_gpu_without_kernels(tmp_path: Path) -> None:
    rows = [mark_row("ProfilerStep#0", 1, 5), mark_row("ProfilerStep#1", 10, 5)]
    rows += launched_kernel("k", 2, 100, 5, 1)
    seen = {**kernel_row("ProfilerStep#1", 110, 5), "cat": "gpu_user_annotation"}
    assert codes(read_trace(made(tmp_path, [*rows, seen])))["marks-disagree"] == ("trace", 1)
    assert "marks-disagree" not in codes(read_trace(made(tmp_path, rows)))


@pytest.mark.parametrize(
    ("name", "numbers", "found"),
    [
        ("kernelperf_step", [0, 1, 2], {}),
        ("kernelperf_step", [0, 2], {"steps-missing": ("trace", 1)}),
        ("kernelperf_step", [2, 3], {"steps-missing": ("trace", 2)}),
        ("ProfilerStep", [2, 3, 4], {}),  # two waited for: no room for an earlier cycle of three
        ("ProfilerStep", [2, 3], {"earlier-steps-absent": ("step", 2)}),
        ("ProfilerStep", [0, 1, 3], {"steps-missing": ("step", 1)}),
    ],
)
def test_step_numbers(
    tmp_path: Path, name: str, numbers: list[int], found: dict[str, tuple[str, int]]
) -> None:
    rows = []
    for number in numbers:
        at = 10 * (number + 1)
        rows += [mark_row(f"{name}#{number}", at, 5), *launched_kernel("k", at + 1, at + 100, 5, number + 1)]
    assert codes(read_trace(made(tmp_path, rows))) == found


def test_kernels_between_steps(tmp_path: Path) -> None:
    rows = [mark_row("ProfilerStep#0", 1, 5), *launched_kernel("k", 2, 100, 5, 1)]
    rows += launched_kernel("late", 20, 200, 5, 2)
    assert codes(read_trace(made(tmp_path, rows))) == {"kernels-outside-steps": ("step", 1)}
    asked = [{**row, "name": row["name"].replace("ProfilerStep", "mlp")} for row in rows]
    assert codes(read_trace(made(tmp_path, asked), mark="mlp")) == {}  # a part of the work was asked for


def test_steps_without_launches_are_told_by_time_and_say_so(tmp_path: Path) -> None:
    rows = [mark_row("ProfilerStep#0", 1, 50), kernel_row("k", 10, 5), kernel_row("k", 20, 5)]
    trace = read_trace(made(tmp_path, rows))
    assert [len(step.kernels) for step in trace.steps] == [2]
    assert codes(trace) == {"steps-by-time": ("step", 1)}


def test_a_graph_launch_without_anything_on_the_gpu(tmp_path: Path) -> None:
    rows = [launch_row(1, 1, "cudaGraphLaunch"), *launched_kernel("k", 2, 100, 5, 2)]
    assert codes(read_trace(made(tmp_path, rows))) == {"launches-without-kernels": ("trace", 1)}
    copies = {**kernel_row("Memcpy DtoD", 90, 1, 1), "cat": "gpu_memcpy"}
    assert codes(read_trace(made(tmp_path, [*rows, copies]))) == {}


def add(at: float, correlation: int = 0) -> list[Row]:
    """An aten::add with a kernel, or without any call where no correlation is given."""
    op = {**host_row("aten::add", at, 5), "args": {"Input Dims": [[64]]}}
    return [op, *(launched_kernel("add", at + 1, at + 100, 5, correlation) if correlation else [])]


def end(at: float) -> Row:
    return host_row("cudaDeviceSynchronize", at, 1, "cuda_runtime", correlation=99)


def test_ops_after_the_last_call_lost_their_launches(tmp_path: Path) -> None:
    rows = [*add(10, 1), *add(20, 2), *add(30), *add(40)]
    assert codes(read_trace(made(tmp_path, rows))) == {"ops-after-the-end": ("trace", 2)}


def test_ops_without_a_call_before_the_end_may_have_run_on_the_cpu(tmp_path: Path) -> None:
    rows = [*add(10, 1), *add(20), *add(30, 3), end(50)]
    assert codes(read_trace(made(tmp_path, rows))) == {"silent-ops": ("step", 1)}


def test_a_step_whose_op_is_silent_lost_something(tmp_path: Path) -> None:
    rows = [mark_row("mlp#0", 9, 8), *add(10, 1), mark_row("mlp#1", 19, 8), *add(20), end(50)]
    found = codes(read_trace(made(tmp_path, rows), mark="mlp"))
    assert found["silent-steps"] == ("trace", 1)
    whole = [mark_row("mlp#0", 9, 8), *add(10, 1), mark_row("mlp#1", 19, 8), *add(20, 2), end(50)]
    assert codes(read_trace(made(tmp_path, whole), mark="mlp")) == {}


def test_files_of_two_processes_in_one(tmp_path: Path) -> None:
    rows = launched_kernel("k", 1, 100, 5, 1)
    other = [{**row, "pid": 2} for row in launched_kernel("other", 11, 110, 5, 2)]
    assert codes(read_trace(made(tmp_path, [*rows, *other]))) == {"several-processes": ("trace", 2)}


def test_a_mark_that_was_asked_for_and_isnt_there(tmp_path: Path) -> None:
    rows = [mark_row("block", 1, 50), *launched_kernel("k", 2, 100, 5, 1)]
    trace = read_trace(made(tmp_path, rows), mark="blok")
    assert codes(trace) == {"mark-absent": ("step", 1)}
    assert trace.problems[0].message.endswith(
        "named 'blok' or 'blok#N', so there are no steps; it has 'block'"
    )


def copy_row(name: str, start: float, correlation: int) -> Row:
    return {**kernel_row(name, start, 1, correlation), "cat": "gpu_memcpy"}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([copy_row("Memcpy DtoD", 50, 5)], {}),
        ([], {"calls-without-transfers": ("trace", 1)}),
        ([copy_row("Memcpy DtoD", 50, 5)] * 2, {"doubled-transfers": ("trace", 1)}),
        (
            [copy_row("Memcpy DtoD", 50, 5), copy_row("Memcpy HtoD", 60, 6)],
            {"transfers-without-calls": ("trace", 1)},
        ),
    ],
)
def test_lost_and_doubled_transfers(
    tmp_path: Path, rows: list[Row], found: dict[str, tuple[str, int]]
) -> None:
    call = launch_row(3, 5, "cudaMemcpyAsync")
    trace = read_trace(made(tmp_path, [call, *launched_kernel("k", 1, 100, 5, 1), *rows]))
    assert codes(trace) == found


def test_launches_of_one_correlation(tmp_path: Path) -> None:
    rows = [*launched_kernel("k", 1, 100, 5, 1), launch_row(3, 1)]
    assert codes(read_trace(made(tmp_path, rows))) == {"launches-sharing-a-correlation": ("trace", 1)}


def test_of_two_calls_of_one_correlation_the_launch_is_the_kernels(tmp_path: Path) -> None:
    rows = [launch_row(1, 1, "cudaMalloc"), *launched_kernel("k", 3, 100, 5, 1)]
    (kernel,) = read_trace(made(tmp_path, rows)).kernels
    assert kernel.launch is not None
    assert kernel.launch.name == "cudaLaunchKernel"


def test_a_correlation_of_zero_is_none(tmp_path: Path) -> None:
    rows = [host_row("cudaMalloc", 1, 1, "cuda_runtime", correlation=0), launch_row(3, 0)]
    found = codes(read_trace(made(tmp_path, [*rows, kernel_row("k", 100, 5)])))
    assert found["kernels-without-launches"] == ("trace", 1)
    assert found["launches-without-kernels"] == ("trace", 1)


@pytest.mark.parametrize("gone", ["ts", "dur"])
@pytest.mark.parametrize("place", [0, 1])
def test_host_rows_without_times(tmp_path: Path, gone: str, place: int) -> None:
    rows = [host_row("aten::mm", 1, 9), *launched_kernel("k", 2, 100, 5, 1)]
    del rows[place][gone]
    assert codes(read_trace(made(tmp_path, rows)))["host-rows-without-times"] == ("trace", 1)


def test_ops_and_kernels_without_any_call(tmp_path: Path) -> None:
    trace = read_trace(made(tmp_path, [host_row("aten::mm", 1, 9), kernel_row("k", 2, 5)]))
    assert codes(trace) == {"no-launches": ("step", 1)}
    assert not summarize(trace).ops_known


def test_a_replay_that_lost_kernels_differs_from_the_others(tmp_path: Path) -> None:
    rows = []
    for replay, kernels in ((1, "abc"), (2, "ab"), (3, "abc")):
        rows += [launch_row(replay, replay, "cudaGraphLaunch")]
        rows += [kernel_row(name, 100 * replay + 10 * n, 5, replay) for n, name in enumerate(kernels)]
    assert codes(read_trace(made(tmp_path, rows))) == {"graph-replays-differ": ("step", 1)}


def test_steps_whose_kernels_op_began_before_them(tmp_path: Path) -> None:
    """An annotation around the whole loop is around each launch; it is no step's own op."""
    rows = [mark_row("epoch", 1, 100)]
    for step, grid in enumerate(([1, 1, 1], [2, 1, 1])):
        at = 10 * (step + 1)
        rows += [mark_row(f"it#{step}", at, 8), host_row("aten::t", at + 1, 1)]
        rows += [launch_row(at + 4, step + 1), kernel_row("k", 200 + at, 5, step + 1, grid=grid)]
    assert codes(read_trace(made(tmp_path, rows), mark="it")) == {"steps-differ": ("step", 2)}


def test_huge_step_numbers_are_only_numbers(tmp_path: Path) -> None:
    rows = [mark_row("req#17", 1, 5), mark_row(f"req#{10**12}", 10, 5), mark_row("req#" + "9" * 5000, 20, 5)]
    trace = read_trace(made(tmp_path, [*rows, *launched_kernel("k", 2, 100, 5, 1)]), mark="req")
    assert [len(step.kernels) for step in trace.steps] == [1, 0, 0]
    ours = [mark_row("kernelperf_step#0", 1, 5), mark_row(f"kernelperf_step#{10**12}", 10, 5)]
    found = codes(read_trace(made(tmp_path, [*ours, *launched_kernel("k", 2, 100, 5, 1)])))
    assert found["steps-missing"] == ("trace", 10**12 - 1)
