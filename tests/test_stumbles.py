"""What other readers of such traces get wrong, each with the right value."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kernelperf import NotMeasurable, UnusableInput, facts
from kernelperf.compare.kernels import changed_kernels
from kernelperf.compare.traces import compare_traces
from kernelperf.kernel_list import kernel_records
from kernelperf.trace.kineto import read_trace
from kernelperf.trace.summary import summarize
from tests.traces import (
    Row,
    codes,
    host_row,
    kernel_row,
    launch_row,
    launched_kernel,
    made,
    mark_row,
    real,
)

GPU_ANNOTATIONS = ("mlp_fwd", "ProfilerStep#3", "## Call CompiledFxGraph fx ##")
ELEMENTWISE_COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(...)>"


def steps_of_five(lost: int = 0) -> list[Row]:
    """Ten marked steps of five kernels; the kernels, not the launches, of the first ``lost`` are gone."""
    rows = []
    for step in range(10):
        at = 1000 * (step + 1)
        rows.append(mark_row(f"ProfilerStep#{step}", at, 500))
        for number in range(5):
            correlation = step * 5 + number + 1
            launch, kernel = launched_kernel(
                f"kernel_{number}", at + number, at + 600 + 20 * number, 10, correlation
            )
            rows += [launch] if step < lost else [launch, kernel]
    return rows


def test_annotations_on_the_gpus_lane_are_no_kernels(tmp_path: Path) -> None:
    rows = [kernel_row(f"kernel_{n}", 100 + 10 * n, 10) for n in range(5)]
    rows += [
        {**kernel_row(name, 50, 9000), "cat": "gpu_user_annotation", "args": {"External id": 1}}
        for name in GPU_ANNOTATIONS
    ]
    summary = summarize(read_trace(made(tmp_path, rows)))
    assert (summary.kernels, summary.gpu_busy_ns, summary.gpu_span_ns) == (5, 50_000, 50_000)


def test_lost_kernels_are_never_averaged_over(tmp_path: Path) -> None:
    trace = read_trace(made(tmp_path, steps_of_five(lost=3)))
    summary = summarize(trace)
    assert not summary.valid
    assert summary.problems[0].message.startswith("15 launches without kernels (the first, in ProfilerStep#0")
    assert summary.kernels_per_step == (0, 0, 0, 5, 5, 5, 5, 5, 5, 5)
    with pytest.raises(NotMeasurable, match="15 launches without kernels"):
        facts.single_step(trace)


@pytest.mark.parametrize(
    "rows",
    [[], [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}], [host_row("aten::t", 1, 1)]],
)
def test_a_trace_without_kernels_passes_no_fact(tmp_path: Path, rows: list[Row]) -> None:
    marked = [*rows, mark_row("ProfilerStep#0", 0.5, 9)] if rows else rows
    trace = read_trace(made(tmp_path, marked))
    assert not summarize(trace).valid
    with pytest.raises(NotMeasurable, match="no kernels"):
        facts.single_step(trace)
    for step in trace.steps:
        with pytest.raises(NotMeasurable, match="no kernels"):
            facts.has_op(step, "aten::add")
        with pytest.raises(NotMeasurable, match="no kernels"):
            facts.gpu_time_ns(step, "aten::t")


def test_kernels_of_one_name_are_as_many_as_ran(tmp_path: Path) -> None:
    rows = [mark_row("ProfilerStep#0", 1, 50)]
    for number, (name, dur) in enumerate((("gemm", 190), ("gemm", 190), ("gelu", 90), ("mul", 170))):
        rows += launched_kernel(name, 2 + 2 * number, 100 + 200 * number, dur, number + 1)
    summary = summarize(read_trace(made(tmp_path, rows)))
    assert (summary.kernels, summary.kernels_per_step, summary.gpu_busy_ns) == (4, (4,), 640_000)


def test_a_kernel_without_times_counts_and_isnt_timed(tmp_path: Path) -> None:
    rows = [kernel_row(f"kernel_{n}", 100 + 10 * n, 10) for n in range(3)]
    trace = read_trace(made(tmp_path, [*rows, kernel_row("unstamped", 0, 0)]))
    summary = summarize(trace)
    assert (summary.kernels, summary.gpu_busy_ns, summary.gpu_span_ns) == (4, 30_000, 30_000)
    assert codes(trace) == {"zero-timestamp": ("timing", 1)}
    assert summary.valid
    with_it = compare_traces(trace, trace)
    assert with_it.delta_ns is None
    assert with_it.same_structure


@pytest.mark.parametrize(("ts", "dur"), [(100.7, 0.2), ("100.7", "0.2"), ("1.007e2", "2e-1")])
def test_fractions_of_a_microsecond_are_kept(tmp_path: Path, ts: float, dur: float) -> None:
    (kernel,) = read_trace(made(tmp_path, [kernel_row("k", ts, dur)])).kernels
    assert (kernel.start_ns, kernel.duration_ns) == (100_700, 200)


def test_times_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    """Traces of torch before 2.4 count from 1970: more digits than a double holds."""
    path = tmp_path / "trace.json"
    row = json.dumps(kernel_row("k", 0, 0)).replace(
        '"ts": 0, "dur": 0', '"ts": 1796117997772959.123, "dur": 0.25'
    )
    path.write_text(f'{{"traceEvents": [{row}]}}')
    (kernel,) = read_trace(path).kernels
    assert (kernel.start_ns, kernel.duration_ns) == (1_796_117_997_772_959_123, 250)


def test_a_triton_kernel_with_a_host_row_is_one_kernel(tmp_path: Path) -> None:
    name = "triton_poi_fused_gelu_mul_0"
    rows = [host_row(name, 1, 9, kernel_kwargs="XBLOCK=1024", num_warps=4, num_stages=1)]
    trace = read_trace(made(tmp_path, [*rows, *launched_kernel(name, 2, 20, 5, 1)]))
    (kernel,) = trace.kernels
    assert (kernel.op_name, kernel.triton_config) == (name, "XBLOCK=1024 warps=4 stages=1")
    assert summarize(trace).kernels == 1


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("triton_poi_fused_gelu_mul_0", "triton_poi_fused_gelu_mul_7"),
        ("triton_poi_fused_gelu_mul_0", "triton_poi_fused_gelu_mul_0d1d2d3de"),
        ("_geglu_tanh_forward_kernel", "_geglu_tanh_forward_kernel_0d1d2d3de"),
    ],
)
def test_an_index_or_a_hash_is_no_part_of_a_name(tmp_path: Path, before: str, now: str) -> None:
    sides = [
        kernel_records(compare_side(tmp_path, [kernel_row(name, 100, 5), kernel_row("gemm", 200, 5)]))
        for name in (before, now)
    ]
    assert changed_kernels(*sides) == ((), 0)


def compare_side(tmp_path: Path, kernels: list[Row]):
    return read_trace(made(tmp_path, [mark_row("ProfilerStep#0", 1, 999), *kernels])).steps


def test_a_copy_and_a_gemv_under_an_addmm_is_no_folded_bias(tmp_path: Path) -> None:
    rows = [mark_row("ProfilerStep#0", 1, 50), host_row("aten::addmm", 2, 20)]
    rows += launched_kernel(ELEMENTWISE_COPY, 3, 100, 5, 1)
    rows += launched_kernel("void gemv2T_kernel_val<int, int, float>(...)", 6, 110, 5, 2)
    step = facts.single_step(read_trace(made(tmp_path, rows)))
    assert facts.roles(step) == ("copy", "gemm")
    assert not facts.bias_folded(step)


def test_a_memset_and_one_gemm_under_an_addmm_is_a_folded_bias(tmp_path: Path) -> None:
    rows = [mark_row("ProfilerStep#0", 1, 50), host_row("aten::addmm", 2, 20)]
    rows += [launch_row(3, 1, "cudaMemsetAsync")]
    rows += [{**kernel_row("Memset (Device)", 100, 1, 1, bytes=4), "cat": "gpu_memset"}]
    rows += launched_kernel("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT", 6, 110, 5, 2)
    trace = read_trace(made(tmp_path, rows))
    summary = summarize(trace)
    assert (summary.kernels, summary.memsets, summary.memcpys) == (1, 1, 0)
    assert facts.bias_folded(facts.single_step(trace))


def test_the_slower_kernel_of_two_like_traces_is_named(tmp_path: Path) -> None:
    traces = []
    for fused_us in (56, 108):
        rows = [mark_row("ProfilerStep#0", 1, 50)]
        rows += launched_kernel("gemm", 2, 100, 60, 1)
        rows += launched_kernel("fused", 4, 200, fused_us, 2)
        traces.append(read_trace(made(tmp_path, rows)))
    found = compare_traces(*traces)
    assert found.same_structure
    (change,) = found.kernel_changes
    assert (change.kind, change.name, change.delta_ns, found.delta_ns) == ("slower", "fused", 52_000, 52_000)


def test_kernels_of_one_graph_launch_are_counted_on_the_gpu(tmp_path: Path) -> None:
    rows = [mark_row("ProfilerStep#0", 1, 50), host_row("aten::mm", 2, 20)]
    rows += [launch_row(3, 9, "cudaGraphLaunch")]
    rows += [kernel_row(f"kernel_{n}", 100 + 10 * n, 5, 9) for n in range(4)]
    trace = read_trace(made(tmp_path, rows))
    assert codes(trace) == {}
    assert summarize(trace).kernels_per_step == (4,)
    with pytest.raises(NotMeasurable, match="not determinable"):
        facts.kernels_of(trace.steps[0], "aten::mm")


EAGER_BYTES = real("geglu_eager-bf16").read_bytes()
EAGER_TEXT = gzip.decompress(EAGER_BYTES)
A_NUMBER = b'"queued": 0'


@pytest.mark.parametrize(
    "content",
    [
        EAGER_BYTES,  # gzip in a file named .json
        EAGER_TEXT.replace(A_NUMBER, b'"queued": inf', 3),
        EAGER_TEXT.replace(A_NUMBER, b'"queued": -Infinity', 3),
        EAGER_TEXT.replace(A_NUMBER, b'"queued": NaN', 3),
        EAGER_TEXT.replace(b"aten::gelu", b"aten::\ngelu", 3),
        EAGER_TEXT.replace(b"python3", b"C:\\dir\\python3", 3),
        EAGER_TEXT.replace(b"aten::gelu", b"aten::\xff\xfegelu", 3),
        b"\xef\xbb\xbf" + EAGER_TEXT,
        json.dumps(json.loads(EAGER_TEXT)["traceEvents"]).encode(),  # a top-level list
    ],
    ids="gzip inf -Infinity NaN newline backslash not-utf8 byte-order-mark list".split(),
)
def test_harmless_faults_change_no_count(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    trace = read_trace(path)
    assert codes(trace) == {}
    assert [len(step.kernels) for step in trace.steps] == [5] * 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (EAGER_BYTES[:900], "its gzip data ends early, at byte 900; the file is truncated: copy it again"),
        (EAGER_TEXT[:900], "its JSON ends early, at byte 900; the file is truncated: copy it again"),
        (EAGER_BYTES[:400] + b"xxxxxxxx" + EAGER_BYTES[408:], "its gzip data is corrupt"),
        (b"", r"is empty \(0 bytes\)"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer.*: run `git lfs pull`"),
        (b"\x80\x04\x95abc", "is a pickle, which is not opened"),
        (EAGER_TEXT.replace(b'"ph": "X"', b'"ph" "X"', 1), r"not valid JSON: .*byte \d+\), found"),
        (b"[" * 100_000, "not a torch.profiler trace|nested too deeply"),
        (b'{"traceEvents": [{"ph": "X", "args": ' + b"[" * 100_000, "nested too deeply"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "Kernel", "name": "k", "ts": 1, "dur": 1}]}',
            "its categories 'Kernel' are of torch before 1.13, whose traces are not read",
        ),
        (b'{"traceEvents": [], "traceEvents": []}', "has `traceEvents` twice"),
        (b'{"traceEvents": 3}', "not a torch.profiler trace: Expected `array`, got `int`"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "soon"}]}', r"\$\.traceEvents\[0\]\.ts"),
        (
            b'{"traceEvents": [{"ph": "B", "cat": "kernel", "name": "k", "ts": 1}]}',
            "pairs of begin and end rows",
        ),
        (b'{"traceEvents": [{"ph": "X", "cat": "blink", "ts": 1, "dur": 1}]}', "a trace of a web browser"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}]}', "its rows are of categories None"),
        (
            json.dumps({"traceEvents": [kernel_row("k", 1, 1, grid="wide")]}).encode(),
            "the args of row 'k'.*can't be read",
        ),
        (
            json.dumps({"traceEvents": [kernel_row("k", 1, 1, correlation="x")]}).encode(),
            "the args of row 'k'.*can't be read",
        ),
    ],
)
def test_other_faults_are_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UnusableInput, match=message) as raised:
        read_trace(path)
    assert str(raised.value).startswith(str(path))


def test_a_string_that_is_never_closed_takes_no_longer_than_its_length(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": "' + b'\\"' * 2_000_000)
    with pytest.raises(UnusableInput, match="ends early"):
        read_trace(path)


@pytest.mark.parametrize("number", ["inf", "nan", "-inf"])
def test_a_number_that_is_none_is_no_register_count(tmp_path: Path, number: str) -> None:
    row = kernel_row("k", 1, 1, **{"registers per thread": number, "shared memory": number})
    (kernel,) = read_trace(made(tmp_path, [row])).kernels
    assert (kernel.registers, kernel.shared_memory_bytes) == (0, 0)


def test_gzip_of_gzip_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(EAGER_BYTES))
    assert len(read_trace(path).kernels) == 50
