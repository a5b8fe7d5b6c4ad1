"""However a whole trace is damaged, the reader says what is wrong or counts right: nothing in between."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelperf import UnusableInput
from kernelperf.trace import Trace
from kernelperf.trace.kineto import read_trace
from kernelperf.trace.summary import summarize
from tests.traces import Row, is_kernel, real, rows_of

SOURCES = {
    name: [
        row
        for row in rows_of(real(name))
        if row.get("ph") == "X" and row.get("cat") in {"cpu_op", "user_annotation", "cuda_runtime",
                                                        "cuda_driver", "kernel", "gpu_memset"}
    ]
    for name in ("geglu_compiled-bf16", "linear_eager-1024x32x64-bf16")
}  # fmt: skip
KERNELS = {name: sum(map(is_kernel, rows)) for name, rows in SOURCES.items()}
# The same examples each time, so that nobody's pull request fails by luck.
PROPERTY = settings(
    max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
names = st.sampled_from(sorted(SOURCES))
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def read(rows: list[Row]) -> Trace:
    return read_text(json.dumps({"traceEvents": rows}).encode())


def read_text(text: bytes) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(text)
        return read_trace(path)


def trace_problems(trace: Trace) -> set[str]:
    return {problem.code for problem in trace.problems_of("trace")}


@PROPERTY
@given(name=names, data=st.data())
def test_rows_in_any_order_are_the_same_trace(name: str, data: st.DataObject) -> None:
    rows = data.draw(st.permutations(SOURCES[name]))
    shuffled, whole = read(list(rows)), read(SOURCES[name])
    assert [kernel.name for kernel in shuffled.kernels] == [kernel.name for kernel in whole.kernels]
    assert [len(step.kernels) for step in shuffled.steps] == [len(step.kernels) for step in whole.steps]
    assert shuffled.problems == whole.problems == ()


@PROPERTY
@given(name=names, data=st.data())
def test_lost_kernels_are_counted_to_the_last(name: str, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, KERNELS[name] - 1), min_size=1))
    kernels = [row for row in SOURCES[name] if is_kernel(row)]
    gone = {id(kernels[index]) for index in lost}
    trace = read([row for row in SOURCES[name] if id(row) not in gone])
    counts = {problem.code: problem.count for problem in trace.problems}
    assert counts["launches-without-kernels"] == len(lost)
    assert summarize(trace).kernels == KERNELS[name] - len(lost)


@PROPERTY
@given(name=names, data=st.data())
def test_lost_launches_are_counted_to_the_last(name: str, data: st.DataObject) -> None:
    ran = {row["args"]["correlation"] for row in SOURCES[name] if is_kernel(row)}
    calls = [row for row in SOURCES[name] if "cuda_" in row["cat"] and row["args"]["correlation"] in ran]
    gone = {id(row) for row in data.draw(st.lists(st.sampled_from(calls), min_size=1, unique_by=id))}
    trace = read([row for row in SOURCES[name] if id(row) not in gone])
    counts = {problem.code: problem.count for problem in trace.problems}
    assert counts["kernels-without-launches"] == len(gone)
    assert not summarize(trace).valid


@PROPERTY
@given(name=names, data=st.data())
def test_launches_lost_with_their_kernels_are_noticed(name: str, data: st.DataObject) -> None:
    """The ops remain, in marked steps: some of these are silent now."""
    ran = sorted({row["args"]["correlation"] for row in SOURCES[name] if is_kernel(row)})
    lost = data.draw(st.sets(st.sampled_from(ran), min_size=1, max_size=len(ran) // 2))
    rows = [row for row in SOURCES[name] if row.get("args", {}).get("correlation") not in lost]
    trace = read(rows)
    assert len(trace.kernels) == KERNELS[name] - len(lost)
    assert {problem.code for problem in trace.problems} & {"steps-differ", "silent-steps", "silent-ops"}


@PROPERTY
@given(name=names, data=st.data())
def test_annotations_and_unknown_rows_change_no_count(name: str, data: st.DataObject) -> None:
    category = data.draw(
        st.sampled_from(["gpu_user_annotation", "overhead", "cuda_sync", "python_function", "Trace"])
    )
    copies = data.draw(st.lists(st.sampled_from(SOURCES[name]), max_size=20))
    extra = [{**row, "cat": category} for row in copies]
    trace = read([*SOURCES[name], *extra])
    assert len(trace.kernels) == KERNELS[name]
    assert trace_problems(trace) <= {"marks-disagree"}


@PROPERTY
@given(name=names, data=st.data())
def test_a_field_of_any_value_is_read_or_refused(name: str, data: st.DataObject) -> None:
    rows = copy.deepcopy(SOURCES[name])
    row = data.draw(st.sampled_from(rows))
    place, field = data.draw(
        st.sampled_from([(row, key) for key in row] + [(row["args"], key) for key in row.get("args", {})])
    )
    place[field] = data.draw(values)
    try:
        trace = read(rows)
        summary = summarize(trace)
        [op.input_dims for op in trace.ops]
    except UnusableInput:
        return
    whole = summarize(read(SOURCES[name]))
    counts = (whole.kernels, whole.kernels_per_step, whole.roles)
    assert (summary.kernels, summary.kernels_per_step, summary.roles) == counts or summary.problems


@PROPERTY
@given(name=names, data=st.data())
def test_bytes_of_any_value_are_read_or_refused(name: str, data: st.DataObject) -> None:
    text = bytearray(json.dumps({"traceEvents": SOURCES[name][:40]}).encode())
    for place in data.draw(st.lists(st.integers(0, len(text) - 1), min_size=1, max_size=4)):
        text[place] = data.draw(st.integers(0, 255))
    try:
        trace = read_text(bytes(text))
        [op.input_dims for op in trace.ops]
    except UnusableInput:
        pass


@PROPERTY
@given(name=names, cut=st.floats(0, 1, exclude_max=True))
def test_a_text_that_ends_early_is_refused(name: str, cut: float) -> None:
    text = json.dumps({"traceEvents": SOURCES[name]}).encode()
    with pytest.raises(UnusableInput):
        read_text(text[: int(cut * (len(text) - 1))])


@PROPERTY
@given(data=st.data())
def test_any_json_is_read_or_refused(data: st.DataObject) -> None:
    leaves: Any = st.recursive(
        values, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
    )
    content = data.draw(st.one_of(leaves, st.fixed_dictionaries({"traceEvents": leaves}), st.lists(leaves)))
    try:
        trace = read_text(json.dumps(content).encode())
    except UnusableInput:
        return
    assert not summarize(trace).valid
