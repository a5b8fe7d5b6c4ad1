"""The recordings that are shipped can be read, aren't stale, and are what the README says they are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelperf.baselines import check_acceptable
from kernelperf.recording import read_recording, stale_sources

ROOT = Path(__file__).parent.parent
BASELINE, EXAMPLE = ROOT / "baselines" / "nvidia-h200", ROOT / "examples" / "recording"


def cards(folder: Path) -> set[str]:
    return {run.card for rec in read_recording(folder).workloads for run in rec.runs}


def test_the_baseline_could_be_accepted_again() -> None:
    accepted = check_acceptable(read_recording(BASELINE))
    assert len(accepted) == 9
    assert all(len(rec.runs) >= 5 and rec.reason for rec in accepted)


def test_the_example_is_of_another_card_of_the_same_hardware() -> None:
    assert len(cards(BASELINE)) == len(cards(EXAMPLE)) == 1
    assert cards(BASELINE) != cards(EXAMPLE)
    keys = {
        rec.environment.hardware for each in (BASELINE, EXAMPLE) for rec in read_recording(each).workloads
    }
    assert len(keys) == 1


@pytest.mark.parametrize("folder", [BASELINE, EXAMPLE], ids=["baseline", "example"])
def test_nothing_shipped_is_stale(folder: Path) -> None:
    stale = {rec.id: stale_sources(rec, ROOT) for rec in read_recording(folder).workloads}
    assert {name: files for name, files in stale.items() if files} == {}


@pytest.mark.parametrize("folder", [BASELINE, EXAMPLE], ids=["baseline", "example"])
def test_nothing_shipped_names_a_machine(folder: Path) -> None:
    text = "".join(path.read_text() for path in folder.glob("*/timings.json"))
    assert "kernelperf" in text
    assert re.findall(r"/(?:home|root|work|tmp|opt|Users)/\S*", text) == []


def test_pytest_benchmark_reads_the_baseline_from_the_root_of_the_repository() -> None:
    files = [str(path) for path in sorted(BASELINE.glob("*/timings.json"))]
    command = [sys.executable, "-c", "from pytest_benchmark.cli import main; main()", "compare", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "benchmark 'gpu_time': 9 tests" in done.stdout


def test_the_suite_replays_green_without_torch() -> None:
    """``pytest perf_tests`` on a machine without a GPU; the environment says that it is no CI.

    Without the checks of generated code, which are of the working tree and need torch.
    """
    program = (
        "import sys, pytest; status = pytest.main(['perf_tests', '-q', '-p', 'no:cacheprovider',"
        "'--ignore=perf_tests/test_codegen.py']);"
        "print('torch imported:', 'torch' in sys.modules); sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--"],
        cwd=ROOT,
        env={"PATH": "", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "torch imported: False" in done.stdout
    assert "kernelperf: 9 workloads: 9 same; REPLAY of examples/recording (NVIDIA H200" in done.stdout
