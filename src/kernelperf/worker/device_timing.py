"""A step → durations in nanoseconds: on the GPU behind a pre-filled queue, or by the host's clock.

Imported by workers only.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernelperf.protocol import Samples

# An event pair adds 1.3 to 2 us of its own (measured on an H200: a Linear of 3.8 us reads 5.4 us alone in
# a pair, 3.83 us in one of 32).  In a pair of this length that is at most 0.5 %, and one repeat more or
# less, as the calibration may find, moves the result by at most 0.15 %.
PAIR_TARGET_NS = 400_000
MAX_REPEATS = 1024
# The driver queues 1,024 launches and then blocks the host, so that a longer fill outlasts its sleep.
QUEUE_LIMIT = 900
# The sleep is made this much longer than the enqueueing took last time.
SLEEP_MARGIN = 2.0
MIN_SLEEP_NS = 200_000
MAX_SLEEP_NS = 400_000_000
# A step that synchronizes can't be queued ahead, however long the sleep: it is given up after this many.
MAX_TRIES = 5
_PROBE_CYCLES = 2_000_000
_NS_PER_MS = 1e6

Step = Callable[[], Any]
# Its events and its sleep carry no annotations.
_cuda: Any = torch.cuda


class GpuClock:
    """Times a step on the GPU, and remembers what it learnt about it: repeats, and how long to sleep."""

    def __init__(self, step: Step, launches_per_step: int, pair_target_ns: float = PAIR_TARGET_NS) -> None:
        self._step = step
        self._pair_target_ns = pair_target_ns
        self._launches_per_step = max(1, launches_per_step)
        self._cycles_per_ns = _cycles_per_ns()
        self._sleep_ns = float(MIN_SLEEP_NS)
        self._can_hold = True
        self.repeats = 1
        self._calibrate()

    def burst(self, steps: int) -> Samples:
        """Time ``steps`` event pairs, in as many fills of the queue as their launches need."""
        durations: list[float] = []
        held = True
        fills = math.ceil(steps / self._pairs_per_fill())
        for fill in range(fills):  # of about equal length, since the sleep is sized by the one before
            fill_ns, fill_held = self._held_fill(steps * (fill + 1) // fills - steps * fill // fills)
            durations.extend(fill_ns)
            held = held and fill_held
        return Samples(durations_ns=durations, held=held, repeats=self.repeats)

    def _calibrate(self) -> None:
        """Raise the repeats until a pair spans its target; twice, since a short pair is mostly its events."""
        for _ in range(3):
            durations, _ = self._held_fill(min(5, self._pairs_per_fill()))
            pair_ns = sorted(durations)[len(durations) // 2] * self.repeats
            if pair_ns >= self._pair_target_ns:
                return
            wanted = math.ceil(self.repeats * self._pair_target_ns / max(pair_ns, 1.0))
            self.repeats = min(wanted, MAX_REPEATS, max(1, QUEUE_LIMIT // self._launches_per_step))

    def _pairs_per_fill(self) -> int:
        return max(1, QUEUE_LIMIT // (self.repeats * self._launches_per_step + 2))

    def _held_fill(self, pairs: int) -> tuple[list[float], bool]:
        """Fill the queue again, behind a longer sleep, until the sleep outlasts the enqueueing."""
        for _ in range(MAX_TRIES if self._can_hold else 1):
            durations, held, enqueue_ns = self._fill(pairs)
            if held:
                self._sleep_ns = max(SLEEP_MARGIN * enqueue_ns, MIN_SLEEP_NS)
                return durations, held
            self._sleep_ns = min(SLEEP_MARGIN * max(enqueue_ns, self._sleep_ns), MAX_SLEEP_NS)
        self._can_hold, self._sleep_ns = False, float(MIN_SLEEP_NS)
        return durations, held

    def _fill(self, pairs: int) -> tuple[list[float], bool, int]:
        """Enqueue a sleep and event pairs; held if the sleep still ran when all of them were enqueued."""
        slept, *events = (_cuda.Event(enable_timing=True) for _ in range(1 + 2 * pairs))
        step, repeats = self._step, range(self.repeats)
        with _no_garbage_collection():
            torch.cuda.synchronize()
            start_ns = time.perf_counter_ns()
            _cuda._sleep(round(self._sleep_ns * self._cycles_per_ns))
            slept.record()
            for index in range(pairs):
                events[2 * index].record()
                for _ in repeats:
                    step()
                events[2 * index + 1].record()
            held = not slept.query()
            enqueue_ns = time.perf_counter_ns() - start_ns
            torch.cuda.synchronize()
        ends = zip(events[::2], events[1::2], strict=True)
        durations = [begin.elapsed_time(end) * _NS_PER_MS / self.repeats for begin, end in ends]
        return durations, held, enqueue_ns


def wall_burst(step: Step, steps: int) -> Samples:
    """Time ``steps`` steps by the host's clock, each until the GPU is idle again."""
    durations: list[float] = []
    with _no_garbage_collection():
        torch.cuda.synchronize()
        for _ in range(steps):
            start_ns = time.perf_counter_ns()
            step()
            torch.cuda.synchronize()
            durations.append(float(time.perf_counter_ns() - start_ns))
    return Samples(durations_ns=durations, held=True, repeats=1)


def _cycles_per_ns() -> float:
    """How many cycles `torch.cuda._sleep` spins in a nanosecond of this GPU's time."""
    begin, end = (_cuda.Event(enable_timing=True) for _ in range(2))
    _cuda._sleep(_PROBE_CYCLES)  # wakes the clock up
    begin.record()
    _cuda._sleep(_PROBE_CYCLES)
    end.record()
    torch.cuda.synchronize()
    elapsed_ms: float = begin.elapsed_time(end)
    return _PROBE_CYCLES / (elapsed_ms * _NS_PER_MS)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a burst delays the host by up to 0.25 s, with torch loaded."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
