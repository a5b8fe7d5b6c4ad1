"""Record sets of fresh runs: the suite's workloads unchanged, planted slowdowns, and yardsticks, in turn.

    python benchmarks/record_sets.py --sets 20 -o sets.json.gz

One set is a fresh worker with fresh compile caches for each workload of the suite, each of `planted.PLANTED`,
and the dial, timed round-robin as the product times, and the yardsticks in the same turns.  While one set is
timed, the next one's workers import torch on the other half of the cores.  ``--peers`` makes four of the
workers time their step with other tools too, one after another, when all rounds are done.  The file is
written after every set, so that a run that is cut short leaves what it had.  Needs a CUDA GPU.

What differs from a run of the suite: after each burst a chain of launches of next to nothing is timed, to
tell how far apart this process's kernels start (`launches.py`); the first calls that autotune nothing are
made side by side; and neither wall time nor probes are taken.  ``--at-once`` makes several sets ready
together, with the first calls of all side by side; they are timed one after another all the same.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from kernelperf import environment
from kernelperf.conductor import Plan, Settings
from kernelperf.conductor.crew import Crew, Member
from kernelperf.conductor.worker_process import gather
from kernelperf.environment import GpuWatch, Sample
from kernelperf.protocol import Burst, Failed, FirstCall, FirstCallDone, Samples
from kernelperf.workload import registered

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import planted  # noqa: E402
from study_worker import PEERS, OnStream, Peer, ReadProbe, TurnTo  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelperf.conductor.structure import Structure
    from kernelperf.workload import Variant

WORKER = (sys.executable, "-P", str(ROOT / "benchmarks" / "study_worker.py"))
ROUNDS, STEPS = 15, 10
# Its autotuning is part of what is measured, so nobody disturbs it.
AUTOTUNED = "geglu_compiled-bf16"
WITH_PEERS = (
    "linear_eager-8192x768x3072-bf16",
    "geglu_eager-bf16",
    "geglu_compiled-bf16",
    "geglu_liger-bf16",
)


@dataclass
class Timed:
    """One step of a worker: its workload, or a level of the dial."""

    member: Member
    level: str  # "" for a workload
    structure: Structure | None = None
    rounds_ns: list[float] = field(default_factory=list)
    launch_ns: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    held: bool = True
    repeats: int = 0

    @property
    def name(self) -> str:
        """The workload's id, with the dial's level."""
        return self.member.id + self.level


def variants(*, with_planted: bool) -> list[Variant]:
    """Return the suite's bf16 variants and the planted ones."""
    for module in ("fixtures.linear", "fixtures.geglu"):
        importlib.import_module(module)
    declared = [variant for each in registered().values() for variant in each.variants()]
    planted_file = Path(planted.__file__).resolve()
    return [
        variant
        for variant in declared
        if not variant.marks and (with_planted or variant.declaration.file != planted_file)
    ]


class Sets:
    """What was recorded so far; launches and counts are stored once."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._launches: list[Any] = []
        self._counts: list[Any] = []
        self._environment: Any = None
        self._sets: list[dict[str, Any]] = []

    def add(self, seen: Any, one: dict[str, Any], timed: list[Timed], watch: GpuWatch) -> None:
        """Take in a set and write all of them down."""
        self._environment = self._environment or msgspec.to_builtins(seen)
        one["runs"] = [self._row(each, watch, len(timed)) for each in timed if each.structure]
        self._sets.append(one)
        content = {
            "environment": self._environment,
            "launches": self._launches,
            "counts": self._counts,
            "sets": self._sets,
        }
        partial = self._output.with_suffix(".partial")
        text = json.dumps(content, separators=(",", ":"))
        partial.write_bytes(gzip.compress(text.encode(), mtime=0))
        partial.replace(self._output)

    def _row(self, timed: Timed, watch: GpuWatch, processes: int) -> dict[str, Any]:
        assert timed.structure is not None
        rows = [msgspec.to_builtins(kernel) for kernel in timed.structure.kernels]
        durations = [round(row.pop("duration_ns"), 1) for row in rows]
        return {
            "workload": timed.name,
            "rounds_ns": [float(f"{ns:.6g}") for ns in timed.rounds_ns],
            "kernel_ns": durations,
            "launch_ns": [round(ns, 1) for ns in timed.launch_ns],
            "launches": _index(self._launches, rows),
            "counts": _index(self._counts, msgspec.to_builtins(timed.structure.counts)),
            "held": timed.held,
            "repeats": timed.repeats,
            "first_call_s": round(timed.member.first_call_s, 3),
            "sm_clock_mhz": watch.state(timed.samples, processes).sm_clock_mhz,
        }


def _index(known: list[Any], value: Any) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)


def record(
    crews: list[Crew], sets: Sets, first: int, peers: dict[int, tuple[str, ...]], *, streams: bool
) -> None:
    """Carry sets through, from started workers to their rows: ready at the same time, timed one by one."""
    begun = time.monotonic()
    with ThreadPoolExecutor(len(crews)) as threads:
        list(threads.map(Crew.build, crews))
        _say(f"from set {first}: built at {time.monotonic() - begun:.1f} s")
        list(threads.map(first_calls, crews))
    _say(f"from set {first}: called at {time.monotonic() - begun:.1f} s")
    for number, crew in enumerate(crews, first):
        timed = profiled(crew)
        measure(crew, timed, sets, peers.get(number, ()), streams=streams)
        _say(f"set {number}: done at {time.monotonic() - begun:.1f} s, {len(timed)} steps")


def measure(crew: Crew, timed: list[Timed], sets: Sets, peers: tuple[str, ...], *, streams: bool) -> None:
    """Time one set's steps in turn, and keep what they read."""
    device = crew.members[0].built.device  # type: ignore[union-attr]
    watch = GpuWatch(device.uuid)
    try:
        time_rounds(crew, timed, watch)
        read = crew.yardsticks.result(watch, len(crew.members) + 1) if crew.yardsticks else None
        stack = {key: value for each in crew.members for key, value in each.built.stack.items()}
        seen = environment.assemble(device, environment.find_gpu(device.uuid), stack)
        one = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "yardsticks_ns": {name: round(ns, 1) for name, ns in read.times_ns} if read else {},
            "state": msgspec.to_builtins(read.state) if read else None,
            "peers_ns": time_peers(crew, peers),
            "streams": time_streams(crew, timed) if streams else {},
        }
        sets.add(seen, one, timed, watch)
    finally:
        watch.close()


def first_calls(crew: Crew) -> None:
    by_process = {member.process: member for member in crew.members}
    for autotuned in (False, True):
        calls = {p: FirstCall() for p, m in by_process.items() if (m.id == AUTOTUNED) is autotuned}
        for process, reply in gather(calls):
            member = by_process[process]
            if isinstance(reply, Failed):
                _say(f"{member.id}: {reply.cause}\n{reply.detail}")
                crew.fail(member, reply)
            elif isinstance(reply, FirstCallDone) and member.built is not None:
                member.first_call_s = reply.seconds
                member.built = msgspec.structs.replace(member.built, stack=reply.stack)


def profiled(crew: Crew) -> list[Timed]:
    timed = []
    for member in crew.members:
        dial = member.plan.variant.declaration.name == "dial"
        for level in [f"+{percent:g}%" for percent in planted.DIAL_PERCENT] if dial else [""]:
            if level:
                crew.ask(member, TurnTo(level))
            crew.take_trace(member)
            timed.append(Timed(member, level, member.structure))
    return timed


def time_rounds(crew: Crew, timed: list[Timed], watch: GpuWatch) -> None:
    for _ in range(ROUNDS):
        if crew.yardsticks is not None:
            crew.yardsticks.burst(STEPS, watch)
        for each in timed:
            if each.member not in crew.members:
                continue
            if each.level:
                crew.ask(each.member, TurnTo(each.level))
            reply = crew.ask(
                each.member, Burst(steps=STEPS), lambda to=each: to.samples.append(watch.sample())
            )
            if isinstance(reply, Samples):
                each.rounds_ns.append(statistics.median(reply.durations_ns))
                each.held = each.held and reply.held
                each.repeats = reply.repeats
    for each in timed:  # the probe's readings lie in the order of the worker's bursts
        if each.member in crew.members and not each.level:
            reply = crew.ask(each.member, ReadProbe())
            each.launch_ns = reply.durations_ns if isinstance(reply, Samples) else []


# With --streams, as many further rounds are taken, each on the next of this many streams.
STREAMS = 8


def time_streams(crew: Crew, timed: list[Timed]) -> dict[str, Any]:
    """Time the steps on one stream after another: the value of each round, and the probe's, by workload."""
    rounds: dict[str, list[float]] = {}
    for number in range(2 * STREAMS):
        for each in timed:
            crew.ask(each.member, OnStream(number % STREAMS))
            reply = crew.ask(each.member, Burst(steps=STEPS))
            if isinstance(reply, Samples):
                rounds.setdefault(each.name, []).append(round(statistics.median(reply.durations_ns), 1))
    probes = {}
    for each in timed:
        reply = crew.ask(each.member, ReadProbe())
        probes[each.name] = [round(ns, 1) for ns in reply.durations_ns] if isinstance(reply, Samples) else []
    return {"rounds_ns": rounds, "launch_ns": probes}


def time_peers(crew: Crew, peers: tuple[str, ...]) -> dict[str, dict[str, float]]:
    read: dict[str, dict[str, float]] = {}
    for peer in peers:
        for member in crew.members:
            if member.id not in WITH_PEERS:
                continue
            reply = crew.ask(member, Peer(peer))
            if isinstance(reply, Samples):
                read.setdefault(peer, {})[member.id] = round(reply.durations_ns[0], 1)
    return read


@contextmanager
def cores(chosen: set[int]) -> Iterator[None]:
    """What is started meanwhile stays on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def started(chosen: list[Variant], scratch: Path, number: int, side: int, lives: ExitStack) -> Crew:
    settings = Settings(root=ROOT, worker_command=WORKER)
    plans = [Plan(variant, timing=True) for variant in chosen]
    folder = scratch / str(number)
    crew = lives.enter_context(Crew(plans, folder, settings, lambda _: None, _settled))
    ours = sorted(os.sched_getaffinity(0))
    half = len(ours) // 2
    with cores(set(ours[:half] if side else ours[half:])):
        crew.start()
    return crew


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _settled(outcome: Any) -> None:
    _say(f"{outcome.variant.id}: {outcome.kind}: {outcome.cause}\n{outcome.detail}")


@click.command()
@click.option("--sets", "wanted", default=20, show_default=True)
@click.option("--seconds", default=1e9, help="start no set after this long")
@click.option("--peers", "peer_sets", default=0, show_default=True, help="sets in which other tools time too")
@click.option(
    "--peer", "peers", multiple=True, default=tuple(PEERS), help="one of the tools; may be repeated"
)
@click.option("--at-once", default=1, show_default=True, help="sets made ready together")
@click.option("--streams", is_flag=True, help="time a workload on eight streams in turn, too")
@click.option("--suite-only", is_flag=True, help="nothing planted")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(
    wanted: int,
    seconds: float,
    peer_sets: int,
    peers: tuple[str, ...],
    suite_only: bool,
    streams: bool,
    at_once: int,
    output: Path,
) -> None:
    """Record sets of fresh runs."""
    chosen = variants(with_planted=not suite_only)
    begun = time.monotonic()
    sets = Sets(output)
    with tempfile.TemporaryDirectory() as scratch:

        def start(first: int, lives: ExitStack) -> list[Crew]:
            count = min(at_once, wanted - first)
            side = first // at_once % 2
            numbers = range(first, first + count)
            return [started(chosen, Path(scratch), number, side, lives) for number in numbers]

        coming = ExitStack()
        crews = start(0, coming)
        for first in range(0, wanted, at_once):
            lives, coming = coming, ExitStack()
            with lives:
                current = crews
                more = first + at_once < wanted and time.monotonic() - begun < seconds
                crews = start(first + at_once, coming) if more else []
                record(current, sets, first, dict.fromkeys(range(peer_sets), peers), streams=streams)
            if not more:
                break


if __name__ == "__main__":
    main()
