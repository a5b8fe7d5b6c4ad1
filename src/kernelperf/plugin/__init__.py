"""pytest's hooks and fixtures, wired to what decides elsewhere.

Nothing beyond this module's own imports is loaded, and no GPU is looked for, until a collected test uses a
workload or a ``--kperf-`` option is given.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from kernelperf.errors import KernelperfError, UnusableInput
from kernelperf.plugin import selection
from kernelperf.plugin.marks import MARK
from kernelperf.plugin.options import Options, add_options, read_options
from kernelperf.workload import Declaration

if TYPE_CHECKING:
    from kernelperf.guarded import GuardedWorkload
    from kernelperf.plugin.benchmark_fixture import GpuBenchmark
    from kernelperf.plugin.plugin_state import State

_OPTIONS = pytest.StashKey[Options]()
_STATE = pytest.StashKey["State | None"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, and declare the mark."""
    config.addinivalue_line(
        "markers",
        f"{MARK}(tolerance=PERCENT, gate=[METRIC, ...], requires='sm_90' or 'sm_90+'): how a test judges the "
        "workloads that it uses; every test that uses one carries this mark",
    )
    config.stash[_OPTIONS] = read_options(config)
    config.stash[_STATE] = None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for each variant of its workloads."""
    selection.parametrize(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what uses workloads, and let pytest-benchmark read the device clock."""
    selection.mark(item)
    if selection.use_of(item) is not None:
        from kernelperf.plugin.device_clock import set_clock

        set_clock(item)


@pytest.hookimpl(tryfirst=True)  # before the terminal asks for the header's lines
def pytest_collection_finish(session: pytest.Session) -> None:
    """Choose where the evidence comes from; nothing is measured yet."""
    config = session.config
    if config.option.collectonly or config.option.setupplan or hasattr(config, "workerinput"):
        return
    uses = tuple(use for item in session.items if (use := selection.use_of(item)) is not None)
    if not uses and not config.stash[_OPTIONS].given:
        return
    from kernelperf.plugin.plugin_state import State

    with _as_usage_error():
        config.stash[_STATE] = State(config.stash[_OPTIONS], uses)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say where the evidence comes from."""
    state = config.stash[_STATE]
    return state.session.header() if state else []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Measure, or read the recording, before the first test runs."""
    state = session.config.stash[_STATE]
    stopped = session.testsfailed and not session.config.option.continue_on_collection_errors
    if state is not None and not stopped:
        with _as_usage_error():
            state.prepare(session)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the kernels beside a failure, and fail nothing with ``--kperf-advisory``."""
    report = yield
    state = item.config.stash[_STATE]
    if state is not None:
        state.complete_report(item, call, report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: the last line comes after pytest's own
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
    """Write facts, update baselines, and say the last line."""
    state = session.config.stash[_STATE]
    if state is not None:
        state.close(session, exitstatus)
    result = yield
    if state is not None:
        state.last_words(session.config)
    return result


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show what was compared."""
    state = config.stash[_STATE]
    if state is not None:
        state.summarize(terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any] | None:
    """Describe the GPU that was measured, where one was."""
    state = config.stash[_STATE]
    return state.machine_info() if state else None


def guarded_workload(request: pytest.FixtureRequest, declaration: Declaration) -> GuardedWorkload:
    """Return what a workload's fixture stands for in this test."""
    variant = selection.variant_of(request, declaration)
    return _state_of(request, variant.id).session.guarded(variant, request.node.nodeid)


@pytest.fixture
def gpu_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> GpuBenchmark:
    """Hold a workload's times against its baseline: ``gpu_benchmark(workload)``."""
    from kernelperf.plugin.benchmark_fixture import GpuBenchmark

    session = _state_of(request, "a workload").session
    return GpuBenchmark(session, request.node, benchmark)


@pytest.fixture
def gpu_speed_ratio(request: pytest.FixtureRequest) -> Any:
    """Compare two workloads' speed: ``gpu_speed_ratio(a, b, tolerance=...)``, above 1 where b is faster."""
    from kernelperf.guarded import speed_ratio

    options = request.config.stash[_OPTIONS]
    if not options.timing:
        pytest.skip(f"timing is off ({options.timing_off_by})")
    return speed_ratio


@pytest.fixture
def gpu_codegen(request: pytest.FixtureRequest) -> Any:
    """Generate a step's GPU code without a GPU: ``gpu_codegen("models.mlp:build", arch="sm_90")``."""
    from kernelperf.plugin.codegen_fixture import generator

    return generator(request.config, request.config.stash[_OPTIONS])


def _state_of(request: pytest.FixtureRequest, workload: str) -> State:
    if hasattr(request.config, "workerinput"):
        pytest.fail(
            f"{workload} can't be measured under pytest-xdist: tests in several processes would time "
            "each other; run without -n",
            pytrace=False,
        )
    state = request.config.stash[_STATE]
    if state is None:
        raise KernelperfError(f"{workload} was not recorded: the session's collection did not finish")
    return state


class _as_usage_error:  # reads as a statement
    """Turn input that can't be used into pytest's one-line error."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, UnusableInput):
            raise pytest.UsageError(f"kernelperf: {error}") from error
