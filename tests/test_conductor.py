"""The conductor gives the workers their turns, and one that fails harms no other.

The workers are scripted: what comes after CUDA is needed can't be had from real ones everywhere.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kernelperf import conductor, environment
from kernelperf.conductor import FailedRun, Outcome, Plan, Recorded, Settings, crew, record_run
from kernelperf.environment import GpuInfo, GpuState, Sample, card_hash
from kernelperf.workload import AxisValue, Declaration, Variant
from tests.scripted_worker import DEVICE

WORKER = Path(__file__).with_name("scripted_worker.py")
GPU = GpuInfo("NVIDIA H200", "9.0", 150754820096, "", 700, "580.159.04", f"GPU-{DEVICE['uuid']}", False)
ROUNDS, WALL_ROUNDS = 3, 2
SETTINGS = {"rounds": ROUNDS, "wall_rounds": WALL_ROUNDS, "side_by_side": True, "yardsticks": False}


@dataclass
class Bench:
    """Runs variants a-1, a-2, … of one workload with scripted workers."""

    folder: Path
    progress: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)

    def run(
        self,
        workers: int,
        script: dict[str, dict[str, str]] | None = None,
        *,
        timing: bool = True,
        time_limit_s: float = 60.0,
        on_progress: Callable[[str], None] = lambda _: None,
        **changes: Any,
    ) -> dict[str, Outcome]:
        (self.folder / "script.json").write_text(json.dumps(script or {}))

        def progress(message: str) -> None:
            self.progress.append(message)
            on_progress(message)

        settings = Settings(
            root=self.folder,
            worker_command=(sys.executable, str(WORKER), str(self.folder)),
            **{
                "rounds": ROUNDS,
                "wall_rounds": WALL_ROUNDS,
                "side_by_side": True,
                "yardsticks": False,
                **changes,
            },
        )
        outcomes = record_run(
            [Plan(variant, timing) for variant in variants(workers, time_limit_s)],
            self.folder / "scratch",
            settings,
            progress,
            lambda outcome: self.settled.append(outcome.variant.id),
        )
        assert [each.variant.id for each in outcomes] == [f"a-{number}" for number in range(1, workers + 1)]
        return {each.variant.id: each for each in outcomes}

    @property
    def journal(self) -> list[str]:
        return (self.folder / "journal").read_text().splitlines()

    def turns(self, command: str) -> list[str]:
        """Whose turn it was, in order."""
        return [line.split()[0] for line in self.journal if line.endswith(f" {command} begins")]

    def living(self) -> list[int]:
        pids = [int(path.read_text()) for path in self.folder.glob("*.pid")]
        return [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


def variants(count: int, time_limit_s: float) -> tuple[Variant, ...]:
    values = tuple(AxisValue(number) for number in range(1, count + 1))
    file = Path(__file__).resolve()
    return Declaration("a", file, "nowhere", 1, "forward", time_limit_s, (("size", values),)).variants()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(environment, "find_gpu", lambda *_: None)
    return Bench(tmp_path)


def recorded(outcome: Outcome) -> Recorded:
    assert isinstance(outcome, Recorded), outcome
    return outcome


def failed(outcome: Outcome) -> FailedRun:
    assert isinstance(outcome, FailedRun), outcome
    return outcome


def test_a_run_holds_what_its_worker_told(bench: Bench) -> None:
    run = recorded(bench.run(1)["a-1"]).run
    assert run.gpu_time_ns == (104_500.0, 204_500.0, 304_500.0)  # medians of bursts of ten
    assert run.wall_time_ns == (5e4, 5e4)
    assert (run.queue_held, run.repeats, run.first_call_s) == (True, 107, 1.5)
    assert run.observations.relative_error == 0.00167
    assert run.card == card_hash(DEVICE["uuid"])


def test_a_run_holds_the_kernels_of_its_trace(bench: Bench) -> None:
    run = recorded(bench.run(1)["a-1"]).run
    (kernel,) = run.kernels
    assert kernel.role == "gemm"
    assert kernel.op == "aten::addmm"
    assert 2_500 < kernel.duration_ns < 3_200
    assert run.counts.kernels == 1


def test_what_only_the_first_call_imported_is_recorded_too(bench: Bench) -> None:
    outcome = recorded(bench.run(1)["a-1"])
    assert outcome.built.sources == {"models/lazy.py": "9f86d081884c7d65"}
    assert outcome.environment.stack == (("liger-kernel", "0.8.5"), ("torch", "2.11.0"))


def test_what_is_recorded_does_not_name_the_card(bench: Bench) -> None:
    outcome = recorded(bench.run(1)["a-1"])
    assert outcome.built.device.uuid == ""
    assert DEVICE["uuid"] not in repr(outcome)


def test_the_conductor_imports_no_torch() -> None:
    program = "import sys, kernelperf.conductor; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_workers_build_side_by_side(bench: Bench) -> None:
    bench.run(3, {f"a-{number}": {"Build": "sleep 0.5"} for number in (1, 2, 3)})
    builds = [line for line in bench.journal if " Build " in line]
    assert all(line.endswith("begins") for line in builds[:3])


@pytest.mark.parametrize("command", ["FirstCall", "Profile", "Burst", "WallBurst", "Observe"])
def test_from_the_first_call_on_one_worker_has_the_turn(bench: Bench, command: str) -> None:
    bench.run(3, {"a-1": {command: "sleep 0.1"}, "a-2": {"FirstCall": "sleep 0.1"}})
    lines = [line for line in bench.journal if " Build " not in line and " Stop " not in line]
    assert lines, "the journal must hold turns"
    for begins, ends in zip(lines[::2], lines[1::2], strict=True):
        assert begins.removesuffix("begins") == ends.removesuffix("ends")


def test_bursts_go_round_robin_and_wall_bursts_come_after(bench: Bench) -> None:
    bench.run(3)
    assert bench.turns("Burst") == ["a-1", "a-2", "a-3"] * ROUNDS
    assert bench.turns("WallBurst") == ["a-1", "a-2", "a-3"] * WALL_ROUNDS
    kinds = [kind for kind, _ in itertools.groupby(line.split()[1] for line in bench.journal)]
    assert kinds == ["Build", "FirstCall", "Profile", "Burst", "WallBurst", *["Observe", "Stop"] * 3]


def test_without_timing_only_the_structure_is_recorded(bench: Bench) -> None:
    run = recorded(bench.run(2, timing=False)["a-2"]).run
    assert bench.turns("Burst") == bench.turns("WallBurst") == []
    assert (run.gpu_time_ns, run.wall_time_ns) == ((), ())
    assert run.kernels
    assert run.state == GpuState()


def test_a_burst_that_was_not_held_marks_the_run(bench: Bench) -> None:
    outcomes = bench.run(2, {"a-1": {"Burst:2": "not held"}})
    assert [recorded(outcomes[each]).run.queue_held for each in ("a-1", "a-2")] == [False, True]


@dataclass
class Watch:
    """Stands in for `GpuWatch`: a clock that falls by 15 MHz with each sample."""

    uuid: str
    bench: Bench
    asked: list[tuple[list[int | None], int]] = field(default_factory=list)
    sampled: list[str] = field(default_factory=list)
    closed: bool = False

    def sample(self) -> Sample:
        self.sampled.append(self.bench.journal[-1])
        return Sample(sm_clock_mhz=1995 - 15 * len(self.sampled))

    def state(self, samples: list[Sample], own_processes: int) -> GpuState:
        self.asked.append(([sample.sm_clock_mhz for sample in samples], own_processes))
        return GpuState(sm_clock_mhz=samples[0].sm_clock_mhz)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def watches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Watch]:
    made: list[Watch] = []

    def watch(uuid: str) -> Watch:
        made.append(Watch(uuid, bench))
        return made[-1]

    monkeypatch.setattr(crew, "GpuWatch", watch)
    return made


def test_the_state_is_sampled_in_every_burst(bench: Bench, watches: list[Watch]) -> None:
    outcomes = bench.run(2)
    (watch,) = watches
    assert (watch.uuid, watch.closed) == (DEVICE["uuid"], True)
    assert len(watch.sampled) == 2 * ROUNDS
    assert watch.asked == [([1980, 1950, 1920], 2), ([1965, 1935, 1905], 2)]
    assert [recorded(outcomes[each]).run.state.sm_clock_mhz for each in ("a-1", "a-2")] == [1980, 1965]


def test_yardsticks_take_the_first_turn_in_every_round(bench: Bench, watches: list[Watch]) -> None:
    outcomes = bench.run(2, yardsticks=True)
    turns = [line.split()[0] for line in bench.journal if "Burst" in line and "Wall" not in line][::2]
    assert turns == ["yardsticks", "a-1", "a-2"] * ROUNDS
    read = recorded(outcomes["a-1"]).run.yardsticks
    assert read == recorded(outcomes["a-2"]).run.yardsticks
    assert read is not None
    assert read.times_ns == (("copy", 2_500.0), ("fixed", 2_500.0))  # of the last two of three rounds
    assert read.state.sm_clock_mhz == 1980
    assert {own for _, own in watches[0].asked} == {3}
    assert bench.living() == []


@pytest.mark.parametrize("when", ["BuildYardsticks", "BurstYardsticks:2"])
@pytest.mark.parametrize("how", ["crash", "fail cuda"])
def test_without_yardsticks_the_run_goes_on(bench: Bench, when: str, how: str) -> None:
    outcomes = bench.run(2, {"yardsticks": {when: how}}, yardsticks=True)
    for each in outcomes.values():
        assert recorded(each).run.yardsticks is None
        assert len(recorded(each).run.gpu_time_ns) == ROUNDS
    assert any(line.startswith("going on without yardsticks: ") for line in bench.progress)


def test_yardsticks_are_not_started_for_structure_alone(bench: Bench) -> None:
    bench.run(1, timing=False, yardsticks=True)
    assert "yardsticks" not in "".join(bench.journal)


def test_a_card_that_admits_one_process_has_no_yardsticks_beside_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    exclusive = dataclasses.replace(GPU, exclusive=True)
    monkeypatch.setattr(environment, "find_gpu", lambda *_: exclusive)
    outcomes = bench.run(1, yardsticks=True, side_by_side=None)
    assert recorded(outcomes["a-1"]).run.yardsticks is None
    assert "yardsticks" not in "".join(bench.journal)


@pytest.mark.parametrize("command", ["Build", "FirstCall", "Profile", "Burst:2", "WallBurst:1", "Observe"])
def test_a_crash_harms_no_other(bench: Bench, command: str) -> None:
    outcomes = bench.run(3, {"a-2": {command: "crash"}})
    crashed = failed(outcomes["a-2"])
    assert crashed.kind == "crash"
    assert crashed.cause == f"the worker was killed by SIGSEGV during {command.partition(':')[0]}"
    assert "about to crash" in crashed.detail
    for other in ("a-1", "a-3"):
        assert len(recorded(outcomes[other]).run.gpu_time_ns) == ROUNDS


def test_a_hang_in_a_burst_is_ended_and_harms_no_other(bench: Bench) -> None:
    outcomes = bench.run(2, {"a-1": {"Burst:2": "hang"}}, time_limit_s=2.0)
    assert failed(outcomes["a-1"]).kind == "timeout"
    assert failed(outcomes["a-1"]).cause.startswith(
        "Burst was still running when the workload's time limit of 2 s"
    )
    assert len(recorded(outcomes["a-2"]).run.gpu_time_ns) == ROUNDS
    assert bench.living() == []


def test_waiting_for_ones_turn_does_not_use_up_the_time_limit(bench: Bench) -> None:
    slow = {"FirstCall": "sleep 2"}
    outcomes = bench.run(3, {"a-1": slow, "a-2": slow}, time_limit_s=3.5)
    assert all(isinstance(outcome, Recorded) for outcome in outcomes.values())


def test_all_of_a_workers_turns_together_count_against_its_time_limit(bench: Bench) -> None:
    outcomes = bench.run(1, {"a-1": {"FirstCall": "sleep 1.2", "Observe": "sleep 30"}}, time_limit_s=2.0)
    assert failed(outcomes["a-1"]).cause.startswith("Observe was still running")


def test_an_answer_that_is_none_is_a_fault_of_the_worker(bench: Bench) -> None:
    outcomes = bench.run(2, {"a-1": {"Burst:1": "nonsense"}})
    assert failed(outcomes["a-1"]).kind == "crash"
    assert "the worker's answer to Burst can't be read" in failed(outcomes["a-1"]).cause
    recorded(outcomes["a-2"])


def test_a_worker_that_tells_of_a_fault_is_not_asked_again(bench: Bench) -> None:
    outcomes = bench.run(2, {"a-1": {"FirstCall": "fail step"}})
    fault = failed(outcomes["a-1"])
    assert (fault.kind, fault.cause, fault.detail) == ("step", "as told", "traceback")
    assert bench.turns("Profile") == ["a-2"]


def test_a_failure_is_told_at_once_and_the_others_when_they_are_done(bench: Bench) -> None:
    bench.run(3, {"a-2": {"FirstCall": "fail step"}})
    assert bench.settled == ["a-2", "a-1", "a-3"]
    assert "a-2: step: as told" in bench.progress


@pytest.mark.parametrize("lost", ["lose one kernel", "lose all kernels"])
def test_a_trace_that_lost_kernels_is_taken_again(bench: Bench, lost: str) -> None:
    outcomes = bench.run(1, {"a-1": {"Profile:1": lost, "Profile:2": lost}})
    assert len(bench.turns("Profile")) == 3
    assert recorded(outcomes["a-1"]).run.counts.kernels == 1


def test_a_trace_is_taken_again_three_times_at_most(bench: Bench) -> None:
    outcomes = bench.run(2, {"a-1": {"Profile": "lose one kernel"}})
    assert bench.turns("Profile") == ["a-1"] * 4 + ["a-2"]
    fault = failed(outcomes["a-1"])
    assert fault.kind == "profiler"
    assert fault.cause.startswith("its trace was not whole in 4 takes: ")
    recorded(outcomes["a-2"])


def test_a_trace_without_all_its_steps_is_taken_again(bench: Bench) -> None:
    outcomes = bench.run(1, profile_steps=11)
    assert "10 of 11 recorded steps are in the trace" in failed(outcomes["a-1"]).cause


@pytest.mark.parametrize("kind", ["busy", "oom"])
def test_a_fault_that_the_others_may_have_caused_is_tried_again_alone(bench: Bench, kind: str) -> None:
    outcomes = bench.run(3, {"a-2": {"FirstCall": f"crowded {kind}"}})
    assert all(isinstance(outcome, Recorded) for outcome in outcomes.values())
    assert bench.settled == ["a-1", "a-3", "a-2"]
    assert "a-2: again, alone" in bench.progress


def test_a_worker_that_was_killed_beside_others_is_tried_again_alone(bench: Bench) -> None:
    outcomes = bench.run(2, {"a-1": {"FirstCall": "crowded-killed"}})
    assert all(isinstance(outcome, Recorded) for outcome in outcomes.values())


@pytest.mark.parametrize(("does", "kind"), [("fail oom", "oom"), ("fail busy", "busy"), ("killed", "crash")])
def test_a_fault_that_comes_alone_too_is_final(bench: Bench, does: str, kind: str) -> None:
    outcomes = bench.run(2, {"a-1": {"Build": does}})
    assert failed(outcomes["a-1"]).kind == kind
    assert bench.turns("Build").count("a-1") == 2
    assert bench.settled == ["a-2", "a-1"]


def test_one_after_another_each_worker_ends_before_the_next_begins(bench: Bench) -> None:
    bench.run(3, side_by_side=False)
    owners = [owner for owner, _ in itertools.groupby(line.split()[0] for line in bench.journal)]
    assert owners == ["a-1", "a-2", "a-3"]


@pytest.mark.parametrize(
    ("side_by_side", "exclusive", "memory_gib", "at_once"),
    [
        (None, False, 120, 9),
        (None, True, 120, 1),
        (True, True, 120, 9),
        (False, False, 120, 1),
        (None, False, 7, 4),
        (None, False, 1, 1),
        (None, False, None, 9),
    ],
)
def test_how_many_workers_live_at_once(
    monkeypatch: pytest.MonkeyPatch,
    side_by_side: bool | None,
    exclusive: bool,
    memory_gib: int | None,
    at_once: int,
) -> None:
    available = None if memory_gib is None else memory_gib * 2**30
    monkeypatch.setattr(environment, "host_memory_available_bytes", lambda: available)
    gpu = GpuInfo(**{**{name: getattr(GPU, name) for name in GPU.__slots__}, "exclusive": exclusive})
    settings = Settings(root=Path(), side_by_side=side_by_side)
    assert conductor._workers_at_once(settings, gpu, 9) == at_once


def test_a_session_waits_for_another_on_the_same_gpu(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_gpu", lambda *_: GPU)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(bench.folder))
    holding = (
        "import fcntl, sys, time\n"
        "lock = open(sys.argv[1], 'w')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "time.sleep(1)\n"
    )
    lock = bench.folder / f"kernelperf-{GPU.card}.lock"
    holder = subprocess.Popen([sys.executable, "-c", holding, str(lock)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    begun = time.monotonic()
    bench.run(1)
    holder.communicate()
    assert bench.progress[0].startswith("waiting for another kernelperf session on this GPU")
    assert time.monotonic() - begun > 0.5


def test_an_interrupt_ends_every_worker(bench: Bench) -> None:
    def interrupt(message: str) -> None:
        if message.startswith("timing: round 2"):
            assert len(bench.living()) == 3
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run(3, on_progress=interrupt)
    assert bench.living() == []


def test_compile_caches_are_fresh_and_gone_afterwards(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelperf.conductor import crew

    environs: list[dict[str, str]] = []
    original = crew._worker_environ

    def note(cache: Path) -> dict[str, str]:
        environs.append(original(cache))
        cache.mkdir()
        return environs[-1]

    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere/warm")
    monkeypatch.setattr(crew, "_worker_environ", note)
    outcomes = bench.run(2)
    caches = {
        environ[name] for environ in environs for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    }
    assert len(caches) == 4
    assert "/somewhere/warm" not in caches
    left = {path.name for path in recorded(outcomes["a-1"]).trace.parent.iterdir()}
    assert left == {"trace.json.gz", "worker.log"}


def test_two_runs_of_a_variant_keep_their_traces_apart(bench: Bench) -> None:
    traces = [recorded(bench.run(1)["a-1"]).trace for _ in range(2)]
    assert traces[0] != traces[1]
    assert all(trace.is_file() for trace in traces)
