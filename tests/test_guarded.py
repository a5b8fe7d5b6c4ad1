"""A workload's fixture gives a test what was recorded of it, and refuses what proves nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kernelperf import NotMeasurable, facts
from kernelperf.guarded import BaselineOf, GuardedWorkload, speed_ratio, trace_reader
from kernelperf.trace.roles import RoleRules
from tests import builders

STEPS = Path(__file__).parent / "data" / "steps"


def not_asked(metric):
    raise AssertionError(f"a comparison by {metric} was asked for")


def guarded(trace, **changes):
    rec = builders.recording()
    values = {
        "id": rec.id,
        "params": {"dtype": "bf16"},
        "recording": rec,
        "baseline_of": BaselineOf(None, "", "no baseline here"),
        "read": trace_reader(trace, RoleRules()),
        "compare": not_asked,
    }
    return GuardedWorkload(**{**values, **changes})


def test_the_step_is_that_of_the_trace():
    workload = guarded(STEPS / "geglu_compiled-bf16.json.gz")
    assert facts.roles(workload.step) == ("gemm", "gemm", "pointwise", "gemm")
    assert len(workload.steps) > 1
    assert workload.step == workload.steps[-1]


def test_a_role_of_ones_own_kernel_is_found():
    rules = RoleRules((("triton_poi_fused__unsafe_view", "reduce"),))
    trace = STEPS / "geglu_compiled-bf16.json.gz"
    workload = guarded(trace, read=trace_reader(trace, rules))
    assert facts.roles(workload.step) == ("gemm", "gemm", "reduce", "gemm")


def test_a_trace_is_read_once():
    workload = guarded(STEPS / "linear_eager-1024x32x64-bf16.json.gz")
    assert workload.trace is workload.trace


def test_a_trace_that_lost_a_kernel_proves_nothing(tmp_path):
    trace = json.loads(gzip.decompress((STEPS / "geglu_compiled-bf16.json.gz").read_bytes()))
    lost = next(event for event in trace["traceEvents"] if event.get("cat") == "kernel")
    trace["traceEvents"].remove(lost)
    damaged = tmp_path / "trace.json.gz"
    damaged.write_bytes(gzip.compress(json.dumps(trace).encode()))
    with pytest.raises(
        NotMeasurable, match=r"the trace of geglu_compiled-bf16 isn't whole: .*; record it again"
    ):
        assert guarded(damaged).step


def test_check_kernels_skips_without_a_baseline_and_says_why():
    with pytest.raises(
        pytest.skip.Exception, match=r"geglu_compiled-bf16: no kernels to compare with: no baseline here"
    ):
        guarded(STEPS / "none").check_kernels()


def test_check_kernels_holds_nothing_against_a_baseline_that_is_being_replaced():
    other = builders.recording(runs=builders.runs(kernels=(builders.kernel(),)))
    guarded(STEPS / "none", baseline_of=BaselineOf(other, "baselines/x", updating=True)).check_kernels()
    with pytest.raises(pytest.fail.Exception, match="its kernels are not those of the baseline baselines/x"):
        guarded(STEPS / "none", baseline_of=BaselineOf(other, "baselines/x")).check_kernels()


def test_speed_is_compared_between_workloads_that_compute_the_same():
    fast = guarded(STEPS / "none")
    slow = guarded(STEPS / "none", recording=builders.recording(runs=builders.runs(2 * 206.8)))
    assert speed_ratio(slow, fast, tolerance=0.01) == pytest.approx(2.0)


def test_speed_of_workloads_that_disagree_is_refused():
    off = builders.runs(observations=builders.observations(relative_error=0.2))
    with pytest.raises(NotMeasurable, match=r"off its float64 reference by 0\.2"):
        speed_ratio(
            guarded(STEPS / "none"),
            guarded(STEPS / "none", recording=builders.recording(runs=off)),
            tolerance=0.01,
        )
    other = builders.runs(observations=builders.observations(reference_digest="other"))
    with pytest.raises(NotMeasurable, match=r"don't compute the same"):
        speed_ratio(
            guarded(STEPS / "none"),
            guarded(STEPS / "none", recording=builders.recording(runs=other)),
            tolerance=0.01,
        )


def test_a_failed_assert_shows_its_id_alone():
    assert repr(guarded(STEPS / "geglu_compiled-bf16.json.gz")) == "<workload geglu_compiled-bf16>"
