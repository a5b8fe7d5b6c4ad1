"""A trace is read as it was launched: kernels to ops and steps by their launches, nothing else counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kernelperf import UnusableInput
from kernelperf.trace.kineto import read_trace
from tests.traces import DATA, Row, changed, codes, is_kernel, read, real, rows_of

EAGER, COMPILED = "geglu_eager-bf16", "geglu_compiled-bf16"


@pytest.mark.parametrize(
    ("name", "kernels", "memsets"),
    [(EAGER, 5, 2), (COMPILED, 4, 2), ("geglu_liger-bf16", 4, 2), ("linear_eager-1024x32x64-bf16", 1, 0)],
)
def test_each_of_ten_steps_has_its_kernels_and_its_memsets_apart(
    name: str, kernels: int, memsets: int
) -> None:
    trace = read_trace(real(name))
    assert trace.problems == ()
    assert [len(step.kernels) for step in trace.steps] == [kernels] * 10
    assert [len(step.transfers) for step in trace.steps] == [memsets] * 10
    assert len(trace.kernels) == 10 * kernels


def test_a_trace_without_marks_has_no_steps() -> None:
    trace = read_trace(DATA / "traces" / "linear_eager_8192x768x3072.json.gz")
    assert trace.steps == ()
    assert [kernel.op_name for kernel in trace.kernels] == ["aten::addmm"] * 3


def test_another_mark_makes_steps() -> None:
    trace = read_trace(DATA / "traces" / "geglu_eager.json.gz", mark="mlp_fwd")
    assert [len(step.kernels) for step in trace.steps] == [5, 5, 5]


def test_profiler_steps_are_steps_where_there_are_no_marks_of_ours(tmp_path: Path) -> None:
    def renamed(rows: list[Row]) -> list[Row]:
        return [{**row, "name": row["name"].replace("kernelperf_step", "ProfilerStep")} for row in rows]

    assert [step.name for step in read(tmp_path, EAGER, renamed).steps][:2] == [
        "ProfilerStep#0",
        "ProfilerStep#1",
    ]


def test_annotations_on_the_gpu_are_no_kernels(tmp_path: Path) -> None:
    def annotated(rows: list[Row]) -> list[Row]:
        kernel = next(row for row in rows if is_kernel(row))
        names = ("mlp_fwd", "ProfilerStep#3", "## Call CompiledFxGraph abc ##")
        extra = [{**kernel, "cat": "gpu_user_annotation", "name": name, "dur": 9999} for name in names]
        return [*rows, *extra]

    trace = read(tmp_path, EAGER, annotated)
    assert len(trace.kernels) == 50
    assert max(kernel.duration_ns for kernel in trace.kernels) < 100_000


def test_a_triton_kernel_with_a_host_row_of_its_name_is_one_kernel() -> None:
    step = read_trace(real(COMPILED)).steps[0]
    (fused,) = [kernel for kernel in step.kernels if kernel.name.startswith("triton_")]
    assert fused.op_name == fused.name
    assert fused.triton_config is not None
    assert fused.triton_config.startswith("XBLOCK=")


def test_a_kernel_belongs_to_the_step_that_launched_it_however_late_it_ran(tmp_path: Path) -> None:
    def late(rows: list[Row]) -> list[Row]:
        return [{**row, "ts": row["ts"] + 1e6} if is_kernel(row) else row for row in rows]

    assert [len(step.kernels) for step in read(tmp_path, EAGER, late).steps] == [5] * 10


def test_what_another_thread_launches_within_the_mark_is_the_steps(tmp_path: Path) -> None:
    """A backward pass runs on autograd's thread while the marked one waits."""

    def moved(rows: list[Row]) -> list[Row]:
        return [
            {**row, "tid": 77}
            if row.get("cat") in {"cpu_op", "cuda_runtime", "cuda_driver"} and row["ph"] == "X"
            else row
            for row in rows
        ]

    trace = read(tmp_path, EAGER, moved)
    assert [len(step.kernels) for step in trace.steps] == [5] * 10
    assert {kernel.launch.thread.split(":")[1] for kernel in trace.kernels if kernel.launch} == {"77"}


def test_kernels_of_a_graph_launch_are_counted_from_the_gpu(tmp_path: Path) -> None:
    def graphed(rows: list[Row]) -> list[Row]:
        """Let the first launch of each step be a graph's, and all kernels of the step share it."""
        calls = {
            row["args"]["correlation"]: row
            for row in rows
            if row.get("cat") in {"cuda_runtime", "cuda_driver"}
        }
        kernels = sorted((row for row in rows if is_kernel(row)), key=lambda row: row["ts"])
        first = {}
        for number, kernel in enumerate(kernels):
            first.setdefault(number // 5, kernel["args"]["correlation"])
            kernel["args"] = {**kernel["args"], "correlation": first[number // 5]}
        for correlation in first.values():
            calls[correlation]["name"] = "cudaGraphLaunch"
        gone = {id(row) for correlation, row in calls.items() if correlation not in first.values()}
        return [row for row in rows if id(row) not in gone]

    trace = read(tmp_path, EAGER, graphed)
    assert [len(step.kernels) for step in trace.steps] == [5] * 10
    assert all(kernel.launch is not None and kernel.launch.is_graph for kernel in trace.kernels)


def test_times_keep_their_nanoseconds_as_numbers_or_strings(tmp_path: Path) -> None:
    def stamped(rows: list[Row]) -> list[Row]:
        kernels = [row for row in rows if is_kernel(row)]
        kernels[0].update(ts="100.7", dur="0.2")
        kernels[1].update(ts=100.7, dur=0.2)
        return rows

    kernels = read(tmp_path, EAGER, stamped).kernels
    assert [(k.start_ns, k.duration_ns) for k in kernels if k.start_ns < 10**9] == [(100_700, 200)] * 2


def test_harmless_faults_of_real_profilers_are_mended(tmp_path: Path) -> None:
    path = changed(tmp_path, EAGER, lambda rows: rows)
    text = path.read_text()
    assert '"queued": 0' in text
    broken = text.replace('"queued": 0', '"queued": inf', 1).replace('"queued": 0', '"queued": NaN', 1)
    path.write_text(
        broken.replace("aten::gelu", "aten::\ngelu", 1).replace('"python3"', '"C:\\dir\\python3"', 1)
    )
    assert len(read_trace(path).kernels) == 50


def test_gzip_is_told_by_content_and_a_bare_list_is_a_trace(tmp_path: Path) -> None:
    misnamed = tmp_path / "trace.json"
    misnamed.write_bytes(real(EAGER).read_bytes())
    assert len(read_trace(misnamed).kernels) == 50
    misnamed.write_text(json.dumps(rows_of(real(EAGER))))
    assert len(read_trace(misnamed).kernels) == 50


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (real(EAGER).read_bytes()[:900], r"gzip data ends early, at byte 900"),
        (gzip.decompress(real(EAGER).read_bytes())[:900], r"ends early, at byte 900"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer.*git lfs pull"),
        (b"<<<<<<< HEAD\n{}\n", "merge markers"),
        (b"\x80\x04\x95abc", "is a pickle"),
        (b'{"schema": "1.1", "nodes": []}', "execution trace"),
        (b'{"benchmarks": []}', "pytest-benchmark's JSON"),
        (b'{"other": []}', "without `traceEvents`"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "Kernel", "name": "k", "ts": 1, "dur": 1}]}',
            "torch before 1.13",
        ),
    ],
)
def test_what_is_no_trace_is_refused_with_its_name_and_the_remedy(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UnusableInput, match=message) as raised:
        read_trace(path)
    assert str(raised.value).startswith(str(path))


@pytest.mark.parametrize(
    "content", [b'{"traceEvents": []}', b"[]", b'{"traceEvents": [{"ph": "M", "name": "p"}]}']
)
def test_a_trace_without_kernels_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert codes(read_trace(path)) == {"no-kernels": ("trace", 1)}
