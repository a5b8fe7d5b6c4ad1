"""A run stores one record a kernel: how it was launched, and its median duration over the steps."""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelperf.conductor.structure import Structure, read_structure
from kernelperf.errors import NotMeasurable
from kernelperf.trace.roles import RoleRules

# Ten steps each, as a worker recorded them on an H200.
STEPS = Path(__file__).parent / "data" / "steps"
GEGLU = STEPS / "geglu_compiled-bf16.json.gz"
LINEAR = STEPS / "linear_eager-1024x32x64-bf16.json.gz"

Event = dict[str, Any]


def structure(path: Path, steps: int = 10, rules: RoleRules | None = None) -> Structure:
    return read_structure(path, steps=steps, rules=rules or RoleRules())


def events(path: Path) -> list[Event]:
    found: list[Event] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def kernels(path: Path) -> list[Event]:
    return sorted((each for each in events(path) if each.get("cat") == "kernel"), key=lambda each: each["ts"])


@pytest.fixture
def without(tmp_path: Path) -> Callable[[Path, Callable[[Event], bool]], Path]:
    """Write a trace again without some of its events."""

    def write(path: Path, dropped: Callable[[Event], bool]) -> Path:
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [event for event in trace["traceEvents"] if not dropped(event)]
        changed = tmp_path / "changed.json.gz"
        changed.write_bytes(gzip.compress(json.dumps(trace).encode()))
        return changed

    return write


def test_there_is_a_record_for_each_kernel_in_launch_order() -> None:
    found = structure(GEGLU).kernels
    assert [kernel.role for kernel in found] == ["gemm", "gemm", "pointwise", "gemm"]
    assert [kernel.op for kernel in found] == ["aten::mm", "aten::mm", found[2].name, "aten::mm"]
    assert found[2].name == "triton_poi_fused__unsafe_view_gelu_mul_0"
    assert "XBLOCK=512" in found[2].config
    assert found[0].config == ""


def test_a_records_duration_is_the_median_over_the_steps() -> None:
    (record,) = structure(LINEAR).kernels
    durations_ns = [1_000 * kernel["dur"] for kernel in kernels(LINEAR)]
    assert len(durations_ns) == 10
    assert len(set(durations_ns)) > 1, "the steps must differ for a median to show"
    assert record.duration_ns == pytest.approx(statistics.median(durations_ns), abs=1)


def test_the_counts_are_of_one_step() -> None:
    counts = structure(GEGLU).counts
    assert counts.kernels == 4
    assert 0 < counts.host_ops < 40


def test_a_users_rules_give_roles() -> None:
    rules = RoleRules(extra=(("gelu_mul", "other"),))
    assert structure(GEGLU, rules=rules).kernels[2].role == "other"


def test_a_kernel_that_the_profiler_lost_makes_the_trace_unusable(
    without: Callable[[Path, Callable[[Event], bool]], Path],
) -> None:
    lost = kernels(GEGLU)[5]
    with pytest.raises(NotMeasurable):
        structure(without(GEGLU, lambda event: event == lost))


def test_a_step_that_launched_something_else_is_not_averaged_in(
    without: Callable[[Path, Callable[[Event], bool]], Path],
) -> None:
    """The first step without its first kernel, that kernel's launch, and its op: it launched three."""
    gone = kernels(GEGLU)[0]["args"]["correlation"]
    op = min((each for each in events(GEGLU) if each["name"] == "aten::mm"), key=lambda each: each["ts"])

    def dropped(event: Event) -> bool:
        return event == op or event.get("args", {}).get("correlation") == gone

    assert len(structure(without(GEGLU, dropped)).kernels) == 4


def test_a_launch_lost_with_its_kernel_makes_the_trace_unusable(
    without: Callable[[Path, Callable[[Event], bool]], Path],
) -> None:
    gone = kernels(GEGLU)[0]["args"]["correlation"]
    with pytest.raises(NotMeasurable, match="an op launched nothing that launched a kernel in another step"):
        structure(without(GEGLU, lambda event: event.get("args", {}).get("correlation") == gone))


def test_a_step_that_launched_nothing_among_others_makes_the_trace_unusable(
    without: Callable[[Path, Callable[[Event], bool]], Path],
) -> None:
    """All of the last step's rows but its mark are gone: no row disagrees with another."""
    mark = next(each for each in events(GEGLU) if each["name"] == "kernelperf_step#9" and "dur" in each)
    launched = {
        each["args"]["correlation"]
        for each in events(GEGLU)
        if "correlation" in each.get("args", {}) and within(each, mark)
    }

    def dropped(event: Event) -> bool:
        gone = event.get("args", {}).get("correlation") in launched
        return gone or (within(event, mark) and event["name"] != mark["name"])

    with pytest.raises(NotMeasurable, match="kernelperf_step#9 launched no kernels, the other steps did"):
        structure(without(GEGLU, dropped))


def test_a_kernel_without_times_makes_the_trace_unusable(tmp_path: Path) -> None:
    trace = json.loads(gzip.decompress(GEGLU.read_bytes()))
    next(each for each in trace["traceEvents"] if each.get("cat") == "kernel").update(ts=0, dur=0)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    with pytest.raises(NotMeasurable, match="1 kernel without a start time"):
        structure(path)


def within(event: Event, mark: Event) -> bool:
    return mark["ts"] <= event.get("ts", 0) < mark["ts"] + mark["dur"] and event.get("pid") == mark["pid"]


def test_a_trace_must_hold_every_step_that_was_recorded() -> None:
    with pytest.raises(NotMeasurable, match="10 of 12 recorded steps are in the trace"):
        structure(GEGLU, steps=12)
