"""Real traces of each kind that torch.profiler writes are counted as Nsight Compute counted their kernels."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest

from kernelperf import NotMeasurable, UnusableInput, facts
from kernelperf.trace import Trace
from kernelperf.trace.kineto import read_trace
from kernelperf.trace.summary import summarize
from tests.traces import DATA, codes, zoo

COUNTS = json.loads((DATA / "zoo" / "counts.json").read_text())
# Under a schedule only some of the steps that Nsight Compute saw are kept; one trace is of the CPU alone.
KEPT = {"training": (3, 5), "cycles": (2, 9), "cpu_only": (0, 3)}
PROBLEMS = {
    "cpu_only": {"no-kernels": ("trace", 1), "launches-without-kernels": ("trace", 15)},
    "nccl": {"no-kernels": ("trace", 1)},  # of one GPU: copies only
    "nothing": {"no-kernels": ("trace", 1)},
    "threads": {"step-order-differs": ("step", 2)},
    "cycles": {"earlier-steps-absent": ("step", 7)},
}


def read(name: str) -> Trace:
    marked = read_trace(zoo(name), mark="mlp_fwd")
    return marked if marked.steps else read_trace(zoo(name))


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_kernels_are_as_many_as_nsight_compute_saw(name: str) -> None:
    kept, of = KEPT.get(name, (1, 1))
    assert len(read(name).kernels) * of == COUNTS[name]["ncu_kernels"] * kept


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_transfers_are_as_many_as_torch_holds(name: str) -> None:
    assert len(read(name).transfers) == COUNTS[name]["torch"]["transfers"]


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_only_what_is_wrong_is_a_problem(name: str) -> None:
    assert codes(read(name)) == PROBLEMS.get(name, {})


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("eager", ["gemm", "gemm", "pointwise", "pointwise", "gemm"]),
        ("compiled", ["gemm", "gemm", "pointwise", "gemm"]),
        ("splitk", ["gemm", "splitk_reduce"]),
        ("max_autotune", ["gemm", "gemm", "gemm"]),  # triton_tem_*
        ("bias_not_folded", ["gemm", "copy", "gemm"]),
        ("quantized", ["gemm", "gemm"]),
        ("attention", ["other"]),
        ("copies", ["pointwise", "copy", "copy"]),
        ("cuda_graph", ["gemm", "gemm", "pointwise", "pointwise", "gemm"]),
        ("programmatic_launch", ["other"] * 5),
        ("reductions", ["reduce", "reduce", "reduce", "reduce", "copy", "reduce", "other", "other"]),
    ],
)
def test_roles(name: str, roles: list[str]) -> None:
    assert [kernel.role for kernel in read(name).steps[-1].kernels] == roles


def test_a_backward_pass_is_the_backward_ops() -> None:
    trace = read("training")
    totals = {op.name: op for op in summarize(trace).ops}
    assert [step.name for step in trace.steps] == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    assert totals["aten::linear"].kernels == 9  # three linears a step, one GEMM each
    assert totals["MmBackward0"].kernels == 12  # the weights' and the inputs', but for the first layer's
    threads = {kernel.launch.thread for kernel in trace.kernels if kernel.launch}
    assert len(threads) == 2
    assert {op.thread for op in trace.ops if op.name == "MmBackward0"} <= threads


@pytest.mark.parametrize("name", ["cuda_graph", "reduce_overhead"])
def test_a_graphs_ops_are_not_determinable(name: str) -> None:
    trace = read(name)
    assert not summarize(trace).ops_known
    for fact in (facts.has_op, facts.kernels_of):
        with pytest.raises(NotMeasurable, match="not determinable: a CUDA graph"):
            fact(trace.steps[-1], "aten::mm")


def test_streams_and_synchronization() -> None:
    trace = read("streams")
    assert summarize(trace).streams == 2
    assert Counter(kernel.role for kernel in trace.kernels) == {"gemm": 6}


def test_the_gpu_alone_has_no_ops_and_no_steps() -> None:
    summary = summarize(read("gpu_only"))
    assert (summary.kernels, summary.steps, summary.ops_known, summary.valid) == (15, None, False, True)


def test_kernels_that_begin_early_by_leave_may_overlap() -> None:
    kernels = read("programmatic_launch").kernels
    overlaps = [before.start_ns + before.duration_ns - now.start_ns for before, now in pairwise(kernels)]
    assert max(overlaps) > 300


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("few_buffers_1_of_65536_0", {"ops-after-the-end": ("trace", 440)}),
        ("few_buffers_1_of_65536_1", {"no-kernels": ("trace", 1)}),
        ("few_buffers_3_of_65536_0", {"ops-after-the-end": ("trace", 280)}),
        ("few_buffers_5_of_8192_0", {"ops-after-the-end": ("trace", 521)}),
        (
            "few_buffers_8_of_8192_0",
            {"kernels-without-launches": ("trace", 1), "ops-after-the-end": ("trace", 462)},
        ),
        (
            "few_buffers_marked_1_of_65536",
            {"ops-after-the-end": ("trace", 64), "silent-steps": ("trace", 4), "steps-differ": ("step", 3)},
        ),
        ("few_buffers_marked_3_of_65536", {}),  # they were enough
        ("stopped_early", {"launches-without-kernels": ("trace", 101)}),
        ("started_late", {}),  # what ran on from before is not in the trace
        ("another_subscriber", {"no-kernels": ("trace", 1)}),
        ("another_thread_0", {}),
        ("another_thread_3", {"no-kernels": ("trace", 1), "launches-without-kernels": ("trace", 162)}),
        ("cycles", {"earlier-steps-absent": ("step", 7)}),
        ("two_at_once_same_thread_inner", {}),  # the inner session is whole; the outer one has no trace
    ],
)
def test_provoked_losses_are_told(name: str, found: dict[str, tuple[str, int]]) -> None:
    assert codes(read_trace(DATA / "losses" / f"{name}.json.gz")) == found


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("execution_trace.json", "a PyTorch execution trace"),
        ("memory_timeline.json", "a memory timeline of torch"),
        ("jax_perfetto_0.json.gz", "a trace of the TensorFlow profiler"),
        ("jax_tensorflow_1.json.gz", "a trace of the TensorFlow profiler"),
        ("proton_trace.chrome_trace", "a trace of Triton's Proton"),
        ("proton_tree.hatchet", "a Hatchet profile"),
    ],
)
def test_other_tools_traces_are_refused_by_name(name: str, whose: str) -> None:
    with pytest.raises(
        UnusableInput, match=f"{name}: {whose}.*, not a torch.profiler trace; export it again"
    ):
        read_trace(DATA / "foreign" / name)
