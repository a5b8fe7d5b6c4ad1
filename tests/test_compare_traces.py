"""Two traces are compared kernel by kernel; what is explained and the rest add up to the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelperf import NotMeasurable, UnusableInput
from kernelperf.compare.traces import CallChange, TraceComparison, compare_traces
from kernelperf.trace import Trace
from kernelperf.trace.kineto import read_trace
from tests.traces import DATA, Row, host_row, kernel_row, launched_kernel, made, mark_row, read, real, zoo

EAGER, COMPILED, LIGER = (f"geglu_{kind}-bf16" for kind in ("eager", "compiled", "liger"))


def compared(base: str, now: str) -> TraceComparison:
    return compare_traces(read_trace(real(base)), read_trace(real(now)))


def explained_ns(found: TraceComparison) -> float:
    return sum(change.delta_ns for change in found.kernel_changes) + sum(ns for _, ns in found.rest)


@pytest.mark.parametrize("now", [EAGER, COMPILED, LIGER, "fault_unfused", "fault_graph_break"])
@pytest.mark.parametrize("base", [EAGER, COMPILED, LIGER])
def test_what_is_explained_adds_up_to_the_difference(base: str, now: str) -> None:
    found = compared(base, now)
    assert found.delta_ns == pytest.approx(explained_ns(found), abs=1e-6)
    assert sum(abs(ns) for _, ns in found.rest) < 0.05 * (found.base_ns or 0)


def test_a_trace_against_itself_differs_in_nothing() -> None:
    found = compared(COMPILED, COMPILED)
    assert found.same_structure
    assert (
        found.delta_ns,
        found.kernel_changes,
        found.count_changes,
        found.op_changes,
        found.call_changes,
    ) == (
        0,
        (),
        (),
        (),
        (),
    )


def test_a_lost_fusion() -> None:
    found = compared(COMPILED, "fault_unfused")
    assert [(change.kind, change.position) for change in found.kernel_changes if change.kind == "added"] == [
        ("added", 1)
    ]
    reconfigured = [change for change in found.kernel_changes if change.kind == "reconfigured"]
    assert [(change.before, change.now) for change in reconfigured] == [
        ("XBLOCK=512 warps=8", "XBLOCK=1024 warps=4")
    ]
    assert CallChange("kernels", 4, 5) in found.count_changes
    assert CallChange("cuLaunchKernel", 1, 2) in found.call_changes
    assert not found.same_structure


def test_eager_against_compiled_names_the_rows_that_came_and_went() -> None:
    found = compared(EAGER, COMPILED)
    changes = {change.name: (change.before, change.now) for change in found.op_changes or ()}
    assert changes["aten::gelu"] == (1, 0)
    assert changes["aten::linear"] == (3, 0)
    assert changes["TorchDynamo Cache Lookup"] == (0, 1)
    assert changes["## Call CompiledFxGraph ##"] == (0, 1)
    assert {change.kind for change in found.kernel_changes} >= {"removed", "added"}


def test_a_bias_that_fell_out_of_the_gemm() -> None:
    found = compared("linear_eager-8192x768x3072-bf16", "fault_strided_bias-linear_eager")
    changes = {change.name: (change.before, change.now) for change in found.count_changes}
    assert changes["kernels"] == (1, 2)
    kinds = {change.kind: change.role for change in found.kernel_changes}
    assert kinds == {"added": "copy", "renamed": "gemm"}


def test_a_new_cast_appears_as_op_and_kernel(tmp_path: Path) -> None:
    def side(extra: list[Row]) -> Trace:
        rows = [mark_row("ProfilerStep#0", 1, 90), host_row("aten::mm", 2, 10)]
        return read_trace(made(tmp_path, [*rows, *launched_kernel("gemm", 3, 100, 60, 1), *extra]))

    cast = [host_row("aten::copy_", 20, 10), *launched_kernel("elementwise_kernel", 21, 200, 7, 2)]
    found = compare_traces(side([]), side(cast))
    assert found.op_changes == (CallChange("aten::copy_", 0, 1, 7_000),)
    assert [(change.kind, change.op, change.delta_ns) for change in found.kernel_changes] == [
        ("added", "aten::copy_", 7_000)
    ]


def test_a_compiler_that_takes_the_other_config_is_seen() -> None:
    base, now = (read_trace(DATA / "traces" / "geglu_compiled.json.gz"), read_trace(real(COMPILED)))
    with pytest.raises(UnusableInput, match="now has 10 marked steps, the base has none"):
        compare_traces(base, now)
    marked = read_trace(DATA / "traces" / "geglu_compiled.json.gz", mark="mlp_fwd")
    kinds = {change.kind: change for change in compare_traces(marked, now).kernel_changes}
    assert kinds["reconfigured"].before == "XBLOCK=1024 warps=4"
    assert kinds["reconfigured"].now == "XBLOCK=512 warps=8"
    assert kinds["reconfigured"].delta_ns > 15_000


def test_a_trace_that_lost_kernels_is_not_compared(tmp_path: Path) -> None:
    lost = read(tmp_path, EAGER, lambda rows: [row for row in rows if row.get("cat") != "kernel"])
    whole = read_trace(real(EAGER))
    with pytest.raises(NotMeasurable, match="now isn't whole: the trace has no kernels"):
        compare_traces(whole, lost)
    with pytest.raises(NotMeasurable, match="the base isn't whole"):
        compare_traces(lost, whole)


def test_under_a_graph_the_ops_are_not_determinable() -> None:
    eager, graph = (read_trace(zoo(name), mark="mlp_fwd") for name in ("eager", "cuda_graph"))
    found = compare_traces(eager, graph)
    assert found.op_changes is None
    assert CallChange("cudaGraphLaunch", 0, 1) in found.call_changes
    assert {change.kind for change in found.kernel_changes} <= {"slower", "faster", "renamed"}


def test_steps_that_differ_are_told_apart(tmp_path: Path) -> None:
    def renamed(rows: list[Row]) -> list[Row]:
        next(row for row in rows if row.get("cat") == "kernel")["name"] = "warm_up"
        return rows

    found = compare_traces(read_trace(real(EAGER)), read(tmp_path, EAGER, renamed))
    assert found.notes == ("now: 9 of 10 steps, which launch the same; the others differ",)
    assert found.same_structure


def test_thousands_of_other_kernels_are_aligned_in_a_moment(tmp_path: Path) -> None:
    def side(suffix: str) -> Trace:
        rows = [kernel_row(f"kernel_{n}{suffix}", 10 * n + 1, 5) for n in range(3000)]
        return read_trace(made(tmp_path, rows))

    changes = compare_traces(side(""), side("_v2")).kernel_changes
    assert [change.kind for change in changes] == ["renamed"] * 3000


def test_what_is_wrong_with_a_side_is_a_note(tmp_path: Path) -> None:
    typo = read_trace(real(EAGER), mark="typo")
    found = compare_traces(typo, typo)
    assert found.what == "the whole trace"
    assert found.notes[0].startswith("the base: no annotation on the host is named 'typo'")


def test_another_gpu_is_a_note(tmp_path: Path) -> None:
    rows = [kernel_row("k", 1, 5)]
    sides = [
        read_trace(made(tmp_path, rows, deviceProperties=[{"id": 0, "name": name}])) for name in ("A", "B")
    ]
    assert compare_traces(*sides).notes == ("another GPU: A → B",)
    assert compare_traces(sides[0], sides[0]).notes == ()
