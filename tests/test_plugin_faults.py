"""A workload that can't be built in a fresh process fails its tests with the cause, by real workers."""

from __future__ import annotations

import pytest

from kernelperf import environment
from tests.live import GPU

FAULTS = {
    "raises": (
        "raise RuntimeError('no weights here')",
        "factory: RuntimeError: no weights here",
    ),
    "returns the wrong thing": (
        "return 3",
        "factory: workload 'mlp': its factory returned int 3, expected a Subject, *(module, inputs)",
    ),
    "is unavailable": (
        "raise kernelperf.Unavailable('liger-kernels: no network')",
        "unavailable: mlp: liger-kernels: no network",
    ),
}


@pytest.fixture
def on_gpu(project, monkeypatch):
    """A project where NVML tells of a GPU, and workers are real."""
    monkeypatch.setattr(environment, "find_gpu", lambda *_, **__: GPU)
    return project


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_factory_that(on_gpu, fault):
    body, message = FAULTS[fault]
    on_gpu.guard(
        f"""
        import kernelperf

        @kernelperf.workload()
        def mlp():
            {body}

        def test_kernels(mlp): ...
        """
    )
    result = on_gpu.run("--kperf-require-gpu")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{message}"])


def test_a_declaration_that_a_fresh_process_does_not_make(on_gpu):
    on_gpu.guard(
        """
        import sys
        import kernelperf

        if "pytest_benchmark.plugin" in sys.modules:
            @kernelperf.workload()
            def mlp(): ...

        def test_kernels(mlp): ...
        """
    )
    result = on_gpu.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["mlp could not be measured: import: *test_guarded.py declares no workload 'mlp' when a fresh*"]
    )


def test_a_file_that_a_fresh_process_can_not_import(on_gpu):
    on_gpu.guard(
        """
        import sys
        import kernelperf

        if "pytest_benchmark.plugin" not in sys.modules:
            raise ImportError("only where pytest runs")

        @kernelperf.workload()
        def mlp(): ...

        def test_kernels(mlp): ...
        """
    )
    result = on_gpu.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["mlp could not be measured: import: ImportError: only where pytest runs"])
