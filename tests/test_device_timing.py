"""A step is timed behind a queue that is filled ahead, long enough that the events' own cost is small."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Any

import pytest

from kernelperf.worker import device_timing
from kernelperf.worker.device_timing import MAX_SLEEP_NS, PAIR_TARGET_NS, QUEUE_LIMIT, GpuClock, wall_burst

HOST_NS = 5_000.0  # what a launch costs the host
EVENT_NS = 2_000.0  # what an event pair adds, as on an H200
QUEUE_DEPTH = 1024
CYCLES_PER_NS = 1.98


class Gpu:
    """A GPU and its host on one virtual clock: a queue of 1,024 launches, worked off in order."""

    def __init__(self) -> None:
        self.host_ns = self.free_ns = 0.0
        self.pending: deque[float] = deque()
        self.launches = self.most_pending = 0

    def launch(self, duration_ns: float, host_ns: float = HOST_NS) -> float:
        self.host_ns += host_ns
        while self.pending and self.pending[0] <= self.host_ns:
            self.pending.popleft()
        if len(self.pending) >= QUEUE_DEPTH:
            self.host_ns = self.pending.popleft()
        self.free_ns = max(self.free_ns, self.host_ns) + duration_ns
        self.pending.append(self.free_ns)
        self.most_pending = max(self.most_pending, len(self.pending))
        self.launches += 1
        return self.free_ns

    def synchronize(self) -> None:
        self.host_ns = max(self.host_ns, self.free_ns)

    def _sleep(self, cycles: int) -> None:
        self.launch(cycles / CYCLES_PER_NS)

    def Event(self, enable_timing: bool) -> Event:
        return Event(self)

    def perf_counter_ns(self) -> int:
        return round(self.host_ns)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at_ns = gpu, 0.0

    def record(self) -> None:
        self.at_ns = self.gpu.launch(EVENT_NS / 2, host_ns=1_000.0)

    def query(self) -> bool:
        return self.at_ns <= self.gpu.host_ns

    def elapsed_time(self, end: Event) -> float:
        return (end.at_ns - self.at_ns + EVENT_NS / 2) / 1e6


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    monkeypatch.setattr(device_timing, "_cuda", gpu)
    monkeypatch.setattr(device_timing.torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(device_timing.time, "perf_counter_ns", gpu.perf_counter_ns)
    return gpu


def clock(gpu: Gpu, duration_ns: float, launches: int = 1) -> GpuClock:
    def step() -> None:
        for _ in range(launches):
            gpu.launch(duration_ns / launches)

    return GpuClock(step, launches)


@pytest.mark.parametrize("duration_ns", [2_700.0, 58_000.0, 206_800.0, 5_000_000.0])
def test_a_step_reads_its_own_time_within_half_a_percent(gpu: Gpu, duration_ns: float) -> None:
    samples = clock(gpu, duration_ns).burst(10)
    assert samples.held
    assert len(samples.durations_ns) == 10
    assert statistics.median(samples.durations_ns) == pytest.approx(duration_ns, rel=0.0055)


@pytest.mark.parametrize(("duration_ns", "least"), [(2_700.0, 140), (206_800.0, 2), (5_000_000.0, 1)])
def test_a_pair_spans_enough_steps(gpu: Gpu, duration_ns: float, least: int) -> None:
    timer = clock(gpu, duration_ns)
    assert least <= timer.repeats <= least * 1.1
    assert timer.repeats * duration_ns + EVENT_NS >= PAIR_TARGET_NS


def test_the_queue_is_never_filled_to_where_the_host_blocks(gpu: Gpu) -> None:
    timer = clock(gpu, 5_400.0, launches=2)
    assert timer.repeats * 2 * 10 > QUEUE_LIMIT, "the burst must need more than one fill"
    assert timer.burst(10).held
    assert gpu.most_pending < QUEUE_DEPTH


def test_launches_that_the_trace_did_not_tell_of_end_up_not_held(gpu: Gpu) -> None:
    def step() -> None:
        for _ in range(8):
            gpu.launch(1_000.0)

    assert not GpuClock(step, launches_per_step=1).burst(10).held


def test_a_step_that_synchronizes_is_not_held_and_soon_given_up(gpu: Gpu) -> None:
    def step() -> None:
        gpu.launch(500_000.0)
        gpu.synchronize()

    timer = GpuClock(step, 1)
    assert not timer.burst(10).held
    before_ns = gpu.host_ns
    assert not timer.burst(10).held
    assert gpu.host_ns - before_ns < 10 * 500_000.0 + MAX_SLEEP_NS / 100


def test_a_step_with_a_slow_host_gets_a_sleep_to_match(gpu: Gpu) -> None:
    def step() -> None:
        gpu.launch(20_000.0, host_ns=150_000.0)

    timer = GpuClock(step, 1)
    samples = timer.burst(10)
    assert samples.held
    assert statistics.median(samples.durations_ns) == pytest.approx(20_000.0, rel=0.01)


def test_the_sleep_shrinks_again_after_a_hiccup(gpu: Gpu) -> None:
    timer = clock(gpu, 206_800.0)
    timer.burst(10)
    usual_ns = timer._sleep_ns
    timer._sleep_ns = MAX_SLEEP_NS
    timer.burst(10)
    assert timer._sleep_ns == pytest.approx(usual_ns)


def test_the_wall_time_of_a_step_includes_host_and_gpu(gpu: Gpu) -> None:
    samples = wall_burst(lambda: gpu.launch(40_000.0), 10)
    assert samples.durations_ns == [HOST_NS + 40_000.0] * 10


def test_garbage_collection_is_on_again_after_a_burst_that_raised(gpu: Gpu) -> None:
    import gc

    def step() -> Any:
        assert not gc.isenabled()
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        wall_burst(step, 1)
    assert gc.isenabled()
