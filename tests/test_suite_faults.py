"""Every fact of the suite fails on a recorded fault, and only the facts that the fault breaks.

`tests/data/faults` holds the suite's workloads recorded on one GPU, healthy and with the faults that
`tests/faults/record_faults.py` plants.  For each fault the suite replays the healthy ones with the faulty
recording in the place of one of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kernelperf.recording import read_recording, stale_sources, trace_path, write_workload
from kernelperf.recording.records import WorkloadRecording

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data" / "faults"
RECORD = "pytest tests/faults/record_faults.py --kperf-record tests/data/faults --kperf-no-timing"

SMALL, LARGE = "1024x32x64-bf16", "8192x768x3072-bf16"
EAGER_LINEAR, COMPILED_LINEAR = f"linear_eager-{LARGE}", f"linear_compiled-{LARGE}"
EAGER, COMPILED, LIGER = "geglu_eager-bf16", "geglu_compiled-bf16", "geglu_liger-bf16"

VIEW_OPS = ("t", "transpose", "reshape", "view", "as_strided", "_unsafe_view")
EAGER_FIVE, EAGER_TRAFFIC = "eager_runs_five_kernels", "eager_moves_five_tensors_between_the_gemms"
COMPILED_FOUR, COMPILED_FUSES = "compiled_runs_four_kernels", "compiled_fuses_gelu_and_mul"
COMPILED_TRAFFIC, COMPILED_GEMMS = (
    "compiled_moves_three_tensors_between_the_gemms",
    "compiled_keeps_the_gemms",
)
COMPILED_ROWS = "compiled_pays_with_compile_rows"
LIGER_FOUR, LIGER_KERNEL = "liger_runs_four_kernels", "liger_runs_its_own_fused_kernel"
LIGER_TRAFFIC, LIGER_GEMMS = "liger_moves_three_tensors_between_the_gemms", "liger_keeps_the_gemms"
LIGER_NEW_SHAPES = {"liger_compiles_nothing_for new_batch", "liger_compiles_nothing_for new_seq"}
LIGER_NEW_HIDDEN = "liger_compiles_once_for_a_new_hidden_size"
COMPILED_NEW_SHAPES = {"compiled_recompiles_for new_batch", "compiled_recompiles_for new_seq"}
SAME_LINEAR = "compiled_linear_runs_the_same_kernels"


@dataclass(frozen=True, slots=True)
class Case:
    """A recording that takes the place of a healthy one, and the tests that must then fail.

    A test is named without ``test_``, with what it is parametrized by beside the workload.
    """

    recording: str
    place: str
    fails: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.recording} as {self.place}"


def case(recording: str, place: str, *fails: str | set[str]) -> Case:
    names = [name for each in fails for name in ([each] if isinstance(each, str) else each)]
    return Case(recording, place, frozenset(names))


def views_of(op: str) -> set[str]:
    """Return the tests that a kernel beneath this op breaks: those of the ops around it, too."""
    around = {"as_strided": ("as_strided", "transpose", "t"), "transpose": ("transpose", "t")}
    around["view"] = ("view", "reshape")
    return {f"view_ops_launch_no_kernel aten::{each}" for each in around.get(op, (op,))}


CASES = (
    # nn.Linear, eager
    case("fault_bias_outside", EAGER_LINEAR, "linear_calls_t_then_addmm", "no_separate_add",
         "bias_is_folded_into_the_gemm", SAME_LINEAR),
    case("fault_strided_bias-linear_eager", EAGER_LINEAR, "bias_is_folded_into_the_gemm", SAME_LINEAR),
    case("fault_t_computes", EAGER_LINEAR, "t_launches_no_kernel", SAME_LINEAR),
    case("fault_wrong_bias-linear_eager", EAGER_LINEAR, "linear_eager_matches_float64"),
    case(f"linear_eager-{SMALL}", EAGER_LINEAR, SAME_LINEAR, "the_linears_compute_the_same"),
    # by hand
    case(EAGER_LINEAR, f"matmul_add-{LARGE}", "matmul_add_is_two_kernels"),
    case("fault_wrong_bias-matmul_add", f"matmul_add-{LARGE}", "matmul_add_matches_float64"),
    # nn.Linear, compiled
    case(EAGER_LINEAR, COMPILED_LINEAR, "compiled_linear_pays_with_compile_rows",
         {f"compiled_linear_drops_the_view_ops aten::{op}"
          for op in ("linear", "t", "transpose", "as_strided")}),
    case("fault_strided_bias-linear_compiled", COMPILED_LINEAR, SAME_LINEAR,
         "compiled_linear_calls_a_bare_addmm", "compiled_linear_drops_the_view_ops aten::as_strided"),
    case("fault_wrong_bias-linear_compiled", COMPILED_LINEAR, "linear_compiled_matches_float64"),
    # the MLP, eager
    *(case(f"fault_view_computes-{op}", EAGER, EAGER_FIVE, EAGER_TRAFFIC, views_of(op)) for op in VIEW_OPS),
    case("fault_one_expression", EAGER, EAGER_FIVE),
    case("fault_narrow", EAGER, EAGER_TRAFFIC, "the_intermediate_is_50_331_648_bytes",
         "the_mlps_compute_the_same"),
    case("fault_contiguous-geglu_eager", EAGER, EAGER_FIVE),
    case("fault_swapped-geglu_eager", EAGER, "geglu_eager_matches_float64"),
    # the MLP, compiled
    case("fault_graph_break", COMPILED, COMPILED_FOUR, COMPILED_FUSES, COMPILED_TRAFFIC, COMPILED_NEW_SHAPES,
         "compiled_is_one_graph"),
    case("fault_unfused", COMPILED, COMPILED_FOUR, COMPILED_FUSES, COMPILED_TRAFFIC),
    case("fault_contiguous-geglu_compiled", COMPILED, COMPILED_FOUR),
    case("fault_triton_gemms", COMPILED, COMPILED_GEMMS, "compiled_calls_three_bare_mm"),
    case("fault_dynamic", COMPILED, COMPILED_NEW_SHAPES),
    case("fault_late_guard", COMPILED, "compiled_settles_after_the_first_call"),
    case("fault_swapped-geglu_compiled", COMPILED, "geglu_compiled_matches_float64"),
    case(EAGER, COMPILED, COMPILED_FOUR, COMPILED_FUSES, COMPILED_TRAFFIC, COMPILED_ROWS, COMPILED_NEW_SHAPES,
         {f"compiled_drops_the_view_ops aten::{op}" for op in ("linear", "t", "reshape")},
         "compiled_calls_three_bare_mm", "compiled_is_one_graph"),
    # the MLP, with Liger's kernel
    case("fault_compile_row", LIGER, "liger_needs_no_compiler", LIGER_NEW_SHAPES),
    case("fault_contiguous-geglu_liger", LIGER, LIGER_FOUR),
    case("fault_triton_gemms", LIGER, LIGER_GEMMS, LIGER_KERNEL, LIGER_TRAFFIC, LIGER_NEW_HIDDEN,
         LIGER_NEW_SHAPES, "liger_needs_no_compiler"),
    case("fault_swapped-geglu_liger", LIGER, "geglu_liger_matches_float64"),
    case(EAGER, LIGER, LIGER_FOUR, LIGER_KERNEL, LIGER_TRAFFIC, LIGER_NEW_HIDDEN),
    case(COMPILED, LIGER, LIGER_KERNEL, LIGER_TRAFFIC, LIGER_NEW_HIDDEN, LIGER_NEW_SHAPES,
         "liger_needs_no_compiler"),
)  # fmt: skip

# Holds of any two recordings whose references differ; tests/test_compare.py breaks what it relies on.
NEEDS_NO_FAULT = {"speeds_of_variants_that_disagree_are_not_compared"}

# Runs the suite once a folder, all in one process: starting Python and pytest takes longer than the tests.
RUN = """
import json, sys
import pytest

class Outcomes:
    def __init__(self): self.found = {}
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid] = report.outcome

for folder in sys.argv[1:]:
    outcomes = Outcomes()
    status = pytest.main(
        ["perf_tests", "-q", "--tb=short", "-p", "no:cacheprovider", "--kperf-no-timing",
         "--ignore=perf_tests/test_codegen.py",  # of the working tree, not of a recording
         "--kperf-replay", folder, "--kperf-baselines", folder + "/../no-baselines"],
        plugins=[outcomes],
    )
    print()
    print("OUTCOMES", json.dumps([int(status), outcomes.found]))
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one replay of the suite came to."""

    status: int
    tests: dict[str, str]  # node id → passed, failed, skipped

    def named(self, outcome: str) -> set[str]:
        return {short_name(test) for test, found in self.tests.items() if found == outcome}


def short_name(nodeid: str) -> str:
    """Return a test's name without ``test_``, with what it is parametrized by beside the workload."""
    name, _, parameters = nodeid.rpartition("::test_")[2].partition("[")
    return " ".join([name, *re.findall(r"aten::\w+|new_(?:batch|seq)", parameters)])


def take_place(faulty: WorkloadRecording, healthy: WorkloadRecording) -> WorkloadRecording:
    """Return the faulty recording under the healthy one's identity.

    It names no sources, so that nothing in it is stale: what is put to the proof is a fact, on a trace that
    is data, whatever the code that it was recorded from has become.
    """
    return replace(
        faulty,
        id=healthy.id,
        name=healthy.name,
        params=healthy.params,
        mode=healthy.mode,
        declared_in=healthy.declared_in,
        definition=healthy.definition,
        sources=(),
    )


@pytest.fixture(scope="session")
def recordings() -> dict[str, WorkloadRecording]:
    return {rec.id: rec for rec in read_recording(DATA).workloads}


def write_replay(recordings: dict[str, WorkloadRecording], folder: Path, stands_in: Case | None) -> Path:
    """Write the healthy recordings, one of them replaced."""
    for healthy in recordings.values():
        if healthy.name.startswith("fault_"):
            continue
        replaced = stands_in is not None and healthy.id == stands_in.place
        rec = recordings[stands_in.recording] if replaced else healthy
        write_workload(take_place(rec, healthy), folder / healthy.id, trace_path(DATA / rec.id))
    return folder


@pytest.fixture(scope="session")
def outcomes(recordings, tmp_path_factory) -> dict[Case | None, Outcome]:
    """Replay the suite on the healthy recordings, and once with each stand-in."""
    base = tmp_path_factory.mktemp("replays")
    replayed = (None, *CASES)
    folders = [
        write_replay(recordings, base / str(number) / "recording", each)
        for number, each in enumerate(replayed)
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, folders)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = re.findall(r"^OUTCOMES (.*)$", done.stdout, re.MULTILINE)
    assert len(lines) == len(folders), done.stdout[-4000:] + done.stderr[-4000:]
    return {each: Outcome(*json.loads(line)) for each, line in zip(replayed, lines, strict=True)}


def test_healthy_recordings_break_no_fact(outcomes):
    assert outcomes[None].named("failed") == set()
    assert outcomes[None].named("passed") >= {name for each in CASES for name in each.fails}


@pytest.mark.parametrize("stands_in", CASES, ids=lambda each: each.name)
def test_a_fault_breaks_its_facts_and_no_other(stands_in, outcomes):
    assert outcomes[stands_in].named("failed") == stands_in.fails
    assert outcomes[stands_in].status == pytest.ExitCode.TESTS_FAILED


def test_every_fact_is_broken_by_some_fault(outcomes):
    broken = {name for each in CASES for name in each.fails}
    assert outcomes[None].named("passed") - broken == NEEDS_NO_FAULT


def test_every_recorded_fault_is_used(recordings):
    recorded = {name for name in recordings if name.startswith("fault_")}
    assert recorded == {each.recording for each in CASES if each.recording.startswith("fault_")}


def test_the_recordings_are_of_the_sources_beside_them(recordings):
    """The proof above stands without it; it is of today's code only while this holds."""
    stale = sorted({file for rec in recordings.values() for file in stale_sources(rec, ROOT)})
    if stale:
        pytest.skip(f"changed since tests/data/faults was recorded: {', '.join(stale)}; on a GPU: {RECORD}")
