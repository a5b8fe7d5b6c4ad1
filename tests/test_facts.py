"""Facts hold on real traces, fail on planted faults, and refuse to speak of what isn't there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelperf import NotMeasurable, facts
from kernelperf.protocol import TritonSource
from kernelperf.recording.records import Counts
from kernelperf.trace import Step
from kernelperf.trace.kineto import read_trace
from tests.traces import Change, Row, is_kernel, read, real

LINEAR = "linear_eager-8192x768x3072-bf16"
INTERMEDIATE = 50_331_648
VIEWS = [f"aten::{name}" for name in ("t", "transpose", "reshape", "view", "as_strided", "_unsafe_view")]


def step_of(name: str) -> Step:
    return facts.single_step(read_trace(real(name)))


def test_an_eager_linear() -> None:
    step = step_of(LINEAR)
    assert facts.children(step, "aten::linear") == ("aten::t", "aten::addmm")
    assert facts.kernels_of(step, "aten::t") == ()
    assert facts.gpu_time_ns(step, "aten::t") == 0
    assert facts.gpu_time_ns(step, "aten::addmm") > 50_000
    assert facts.bias_folded(step)
    assert facts.compile_rows(step) == ()
    assert "_bias_" in facts.kernel_names(step)[0]


def test_a_memset_beneath_the_addmm_leaves_the_bias_folded() -> None:
    step = step_of(LINEAR)
    assert facts.counts(step) == Counts(kernels=1, memsets=1, memcpys=0, host_ops=5, runtime_calls=2)
    assert facts.bias_folded(step)


def test_a_copy_beneath_the_addmm_is_no_folded_bias() -> None:
    step = step_of("fault_strided_bias-linear_eager")
    assert "copy" in facts.roles(step) or "pointwise" in facts.roles(step)
    assert not facts.bias_folded(step)


@pytest.mark.parametrize("op", VIEWS)
def test_view_ops_launch_nothing_until_they_compute(op: str) -> None:
    assert facts.kernels_of(step_of("geglu_eager-bf16"), op) == ()
    faulty = step_of(f"fault_view_computes-{op.removeprefix('aten::')}")
    assert len(facts.kernels_of(faulty, op)) > 0
    assert facts.gpu_time_ns(faulty, op) > 0


def test_what_the_mlps_move() -> None:
    eager, compiled, liger = (step_of(f"geglu_{kind}-bf16") for kind in ("eager", "compiled", "liger"))
    sources = [TritonSource("triton_poi_fused__unsafe_view_gelu_mul_0", ["in_out_ptr0", "in_ptr0"])]

    def moved(step: Step, sources: list[TritonSource]) -> list[float]:
        pointwise = [kernel for kernel in step.kernels if kernel.role == "pointwise"]
        return [facts.logical_bytes(step, kernel, sources) / INTERMEDIATE for kernel in pointwise]

    assert moved(eager, []) == [2, 3]
    assert moved(compiled, sources) == [3]
    assert moved(liger, []) == [3]
    with pytest.raises(NotMeasurable, match="its pointers are unknown"):
        moved(compiled, [])


def test_tensor_bytes() -> None:
    gelu = next(op for op in step_of("geglu_eager-bf16").ops if op.name == "aten::gelu")
    assert facts.tensor_bytes(gelu, 0) == INTERMEDIATE
    with pytest.raises(NotMeasurable, match="without the shape of argument 7"):
        facts.tensor_bytes(gelu, 7)


def test_fused_ops_and_compile_rows() -> None:
    step = step_of("geglu_compiled-bf16")
    assert [facts.fused_ops(kernel) for kernel in step.kernels] == [
        (),
        (),
        ("_unsafe_view", "gelu", "mul"),
        (),
    ]
    rows = facts.compile_rows(step)
    assert rows[0] == "TorchDynamo Cache Lookup"
    assert any(row.startswith("Torch-Compiled Region") for row in rows)
    assert any(row.startswith("## Call CompiledFxGraph") for row in rows)
    assert facts.compile_rows(step_of("fault_compile_row")) != ()
    assert facts.compile_rows(step_of("geglu_liger-bf16")) == ()


def test_an_absent_op_proves_nothing() -> None:
    step = step_of("linear_compiled-8192x768x3072-bf16")
    assert not facts.has_op(step, "aten::t")
    for fact in (facts.kernels_of, facts.gpu_time_ns, facts.children):
        with pytest.raises(NotMeasurable, match="no op 'aten::t'"):
            fact(step, "aten::t")
    with pytest.raises(NotMeasurable, match="no op 'aten::addmm'"):
        facts.bias_folded(step_of("geglu_eager-bf16"))


def without_kernels(rows: list[Row]) -> list[Row]:
    return [row for row in rows if not is_kernel(row)]


def without_host_rows(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.get("cat") != "cpu_op"]


def launched_by_a_graph(rows: list[Row]) -> list[Row]:
    for row in rows:
        if row.get("cat") in {"cuda_runtime", "cuda_driver"} and "Launch" in row["name"]:
            row["name"] = "cudaGraphLaunch"
    return rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_kernels, "launched no kernels"),
        (without_host_rows, "no host rows"),
        (launched_by_a_graph, "not determinable: a CUDA graph"),
    ],
)
def test_no_op_is_absent_where_ops_cannot_be_seen(tmp_path: Path, change: Change, message: str) -> None:
    step = read(tmp_path, LINEAR, change).steps[-1]
    with pytest.raises(NotMeasurable, match=message):
        facts.has_op(step, "aten::add")


def test_a_trace_that_lost_kernels_has_no_step(tmp_path: Path) -> None:
    def lost(rows: list[Row]) -> list[Row]:
        first = next(row for row in rows if is_kernel(row))
        return [row for row in rows if row is not first]

    with pytest.raises(NotMeasurable, match="1 launch without kernels"):
        facts.single_step(read(tmp_path, LINEAR, lost))


def test_steps_that_differ_have_no_single_step(tmp_path: Path) -> None:
    def renamed(rows: list[Row]) -> list[Row]:
        next(row for row in rows if is_kernel(row))["name"] = "another"
        return rows

    with pytest.raises(NotMeasurable, match="10 steps launch 2 different things"):
        facts.single_step(read(tmp_path, LINEAR, renamed))
