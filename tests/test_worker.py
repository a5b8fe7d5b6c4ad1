"""A worker tells why it can't build a workload, and is gone when its conductor is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from kernelperf.conductor import FailedRun, Outcome, Plan, Settings, record_run
from kernelperf.errors import UnusableInput
from kernelperf.worker import cuda_fault, describe_failure
from kernelperf.workload import Declaration, Unavailable, registered

# Each behaves in its own way when a worker builds it.  On a machine without CUDA the good one fails too,
# but later: its factory has returned.
DECLARED = """
import os, signal, time
import kernelperf

@kernelperf.workload(how=["raises", "nothing", "module", "segfault", "exits", "unavailable", "skips", "good"])
def odd(how):
    print("building", how)
    match how:
        case "raises":
            raise ValueError("no weights\\nfor this size")
        case "module":
            import torch
            return torch.nn.Linear(2, 2)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exits":
            os._exit(3)
        case "unavailable":
            raise kernelperf.Unavailable("the Hub can't be reached\\nand there is no cache")
        case "skips":
            import pytest
            pytest.skip("needs sm_100")
        case "good":
            return lambda: None

@kernelperf.workload(time_limit_s=6)
def hangs():
    time.sleep(600)
"""
# Imports well where it is declared, and not in a fresh process.
BROKEN = """
import os
import kernelperf

if os.environ.get("KERNELPERF_TEST_CONDUCTOR") != "1":
    import nowhere_to_be_found

@kernelperf.workload()
def unimportable():
    return print
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """All of them, run once side by side, by real workers with the real torch."""
    root = tmp_path_factory.mktemp("project")
    (root / "odd_workloads.py").write_text(DECLARED)
    (root / "broken_workload.py").write_text(BROKEN)
    before = set(registered())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        patch.setenv("KERNELPERF_TEST_CONDUCTOR", "1")
        import broken_workload
        import odd_workloads

        patch.delenv("KERNELPERF_TEST_CONDUCTOR")
        declared = [each for name, each in registered().items() if name not in before]
        plans = [Plan(variant, timing=True) for each in declared for variant in each.variants()]
        done = record_run(plans, root / "scratch", Settings(root=root), lambda _: None, lambda _: None)
    for module in (broken_workload, odd_workloads):
        del sys.modules[module.__name__]
    forget(declared)
    return {outcome.variant.id: outcome for outcome in done}


def forget(declared: list[Declaration]) -> None:
    for each in declared:
        del sys.modules["kernelperf.workload"]._registry[each.name]


def failure(outcomes: dict[str, Outcome], variant: str) -> FailedRun:
    outcome = outcomes[variant]
    assert isinstance(outcome, FailedRun)
    return outcome


@pytest.mark.parametrize(
    ("variant", "kind", "cause"),
    [
        ("unimportable", "import", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("odd-raises", "factory", "ValueError: no weights"),
        ("odd-unavailable", "unavailable", "the Hub can't be reached"),
        ("odd-skips", "unavailable", "needs sm_100"),
        ("odd-segfault", "crash", "the worker was killed by SIGSEGV during Build"),
        ("odd-exits", "crash", "the worker exited with status 3 during Build"),
    ],
)
def test_a_failure_has_its_kind_and_its_cause(
    outcomes: dict[str, Outcome], variant: str, kind: str, cause: str
) -> None:
    found = failure(outcomes, variant)
    assert (found.kind, found.cause) == (kind, cause)


@pytest.mark.parametrize(
    ("variant", "found"), [("odd-nothing", "returned None"), ("odd-module", "return (module, inputs)")]
)
def test_a_wrong_return_says_what_was_expected(
    outcomes: dict[str, Outcome], variant: str, found: str
) -> None:
    outcome = failure(outcomes, variant)
    assert outcome.kind == "factory"
    assert found in outcome.cause
    assert "expected a Subject, a callable without arguments, or a pair (module, inputs)" in outcome.cause


def test_the_detail_is_a_traceback_into_the_factory(outcomes: dict[str, Outcome]) -> None:
    detail = failure(outcomes, "odd-raises").detail
    assert "odd_workloads.py" in detail
    assert "for this size" in detail


def test_a_crash_quotes_what_the_worker_printed_and_where_it_was(outcomes: dict[str, Outcome]) -> None:
    detail = failure(outcomes, "odd-segfault").detail
    assert "building segfault" in detail
    assert "Fatal Python error: Segmentation fault" in detail
    assert "imported odd_workloads" in detail


def test_a_hang_is_ended_at_the_workloads_own_time_limit(outcomes: dict[str, Outcome]) -> None:
    outcome = failure(outcomes, "hangs")
    assert outcome.kind == "timeout"
    assert outcome.cause.startswith(
        "Build was still running when the workload's time limit of 6 s was used up"
    )
    assert "time_limit_s=" in outcome.cause


def test_the_log_is_kept_and_the_compile_caches_are_not(outcomes: dict[str, Outcome]) -> None:
    log = failure(outcomes, "odd-raises").log
    assert log is not None
    assert "building raises" in log.read_text()
    assert [path.name for path in log.parent.iterdir()] == ["worker.log"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells what happens without CUDA")
def test_without_a_gpu_a_workload_that_builds_says_so(outcomes: dict[str, Outcome]) -> None:
    outcome = failure(outcomes, "odd-good")
    assert outcome.kind == "cuda"
    assert outcome.cause.startswith(f"torch {torch.__version__} sees no CUDA GPU in the worker; check")


def test_a_worker_is_gone_when_its_conductor_died_even_while_it_hangs(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import time, kernelperf\n"
        "@kernelperf.workload()\n"
        "def hangs():\n    print('hanging', flush=True)\n    time.sleep(600)\n"
    )
    conductor = textwrap.dedent("""
        import os, sys, time
        from pathlib import Path
        import hanging
        from kernelperf.conductor import crew
        from kernelperf.conductor.plans import Plan, Settings
        from kernelperf.workload import registered
        (variant,) = registered()["hangs"].variants()
        settings = Settings(root=Path.cwd())
        Path("scratch").mkdir()
        member = crew._start(Plan(variant, timing=True), Path("scratch"), settings)
        member.process.send(crew._build(variant, settings))
        while "hanging" not in member.process.log.read_text():
            time.sleep(0.05)
        print(member.process.pid, flush=True)
        os._exit(0)
    """)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", conductor],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert is_gone(int(done.stdout), within_s=5.0)


def is_gone(pid: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":  # ended; only its parent hasn't taken note
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "busy"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 500.00 GiB.", "oom"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "oom"),
        ("RuntimeError: CUDA error: out of memory", "oom"),
        ("AcceleratorError: CUDA error: an illegal memory access was encountered", "cuda"),
        ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", "cuda"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", None),
    ],
)
def test_cuda_faults_are_told_apart_by_what_cuda_says(said: str, kind: str | None) -> None:
    assert cuda_fault(said) == kind


def test_torchs_own_exception_for_memory_is_an_oom() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 500.00 GiB.")
    assert describe_failure(error, "step").kind == "oom"


def test_what_is_no_cuda_fault_is_told_by_the_stage_it_came_at() -> None:
    failed = describe_failure(RuntimeError("shapes cannot be multiplied\nhint"), "step")
    assert (failed.kind, failed.cause) == ("step", "RuntimeError: shapes cannot be multiplied")


def test_an_error_of_our_own_is_quoted_without_its_class() -> None:
    assert describe_failure(UnusableInput("the reference returns float32"), "step").cause == (
        "the reference returns float32"
    )


def test_unavailable_without_a_word_still_has_a_cause() -> None:
    failed = describe_failure(Unavailable(), "factory")
    assert (failed.kind, failed.cause) == ("unavailable", "unavailable")
