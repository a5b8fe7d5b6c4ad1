"""Stands in for a worker where there is no CUDA: answers as a real one would, and fails where it is told to.

Called as ``scripted_worker.py FOLDER READ_FD WRITE_FD``.  ``FOLDER/script.json`` tells for each variant what
to do instead of answering, by command and occasion: ``{"a-1": {"Burst:3": "crash"}}``.  Each command is noted
in ``FOLDER/journal`` when it begins and when it ends.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

TRACE = Path(__file__).parent / "data" / "steps" / "linear_eager-1024x32x64-bf16.json.gz"
DEVICE = {
    "name": "NVIDIA H200",
    "sm_count": 132,
    "memory_bytes": 150109880320,
    "compute_capability": "9.0",
    "uuid": "a33884df-6f51-bb7a-adbc-e267c962ebc2",
}
STACK = {"torch": "2.11.0", "liger-kernel": "0.8.5"}
OBSERVATIONS = {
    "peak_memory_bytes": 34_603_008,
    "dynamo_graphs": 0,
    "graph_breaks": 0,
    "recompiles": 0,
    "triton_compilations": 0,
    "relative_error": 0.00167,
}


class Scripted:
    def __init__(self, folder: Path, replies: int) -> None:
        self.folder, self.replies = folder, replies
        self.variant = ""
        self.script: dict[str, str] = {}
        self.times: Counter[str] = Counter()

    def take(self, command: dict[str, Any]) -> None:
        kind = command["type"]
        if kind == "Build":
            self.variant = "-".join([command["workload"], *map(str, command["params"].values())])
            script = json.loads((self.folder / "script.json").read_text())
            self.script = script.get(self.variant, {})
            (self.folder / f"{self.variant}.pid").write_text(str(os.getpid()))
        if kind == "BuildYardsticks":
            self.variant = "yardsticks"
            self.script = json.loads((self.folder / "script.json").read_text()).get(self.variant, {})
            (self.folder / f"{self.variant}.pid").write_text(str(os.getpid()))
        self.times[kind] += 1
        self.note(f"{kind} begins")
        self.misbehave(kind)
        reply = self.answer(kind, command)
        self.note(f"{kind} ends")
        self.send(reply)

    def misbehave(self, kind: str) -> None:
        what = self.script.get(f"{kind}:{self.times[kind]}") or self.script.get(kind)
        match (what or "").split(" "):
            case ["crash"]:
                print("about to crash", flush=True)
                os.kill(os.getpid(), signal.SIGSEGV)
            case ["killed"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["hang"]:
                time.sleep(600)
            case ["sleep", seconds]:
                time.sleep(float(seconds))
            case ["nonsense"]:
                os.write(self.replies, b'{"type":"Samples","durations_ns":"none"}\n')
                time.sleep(600)
            case ["fail", kind_of_fault]:
                self.note(f"{kind} fails")
                self.send(
                    {"type": "Failed", "kind": kind_of_fault, "cause": "as told", "detail": "traceback"}
                )
                time.sleep(600)
            case ["crowded", kind_of_fault] if self.others():
                self.send({"type": "Failed", "kind": kind_of_fault, "cause": "CUDA says so", "detail": ""})
                time.sleep(600)
            case ["crowded-killed"] if self.others():
                os.kill(os.getpid(), signal.SIGKILL)

    def others(self) -> bool:
        """Whether another worker of this folder lives."""
        pids = [int(path.read_text()) for path in self.folder.glob("*.pid")]
        return any(pid != os.getpid() and Path(f"/proc/{pid}/exe").exists() for pid in pids)

    def answer(self, kind: str, command: dict[str, Any]) -> dict[str, Any]:
        match kind:
            case "Build":
                return {
                    "type": "Built",
                    "device": DEVICE,
                    "stack": {},
                    "about": {},
                    "sources": {},
                }
            case "FirstCall":
                sources = {"models/lazy.py": "9f86d081884c7d65"}
                return {"type": "FirstCallDone", "seconds": 1.5, "stack": STACK, "sources": sources}
            case "Profile":
                self.write_trace(Path(command["path"]))
                return {"type": "Profiled"}
            case "Burst":
                held = "not held" not in self.script.get(f"{kind}:{self.times[kind]}", "")
                durations = [1e5 * self.times[kind] + 1e3 * each for each in range(command["steps"])]
                return {"type": "Samples", "durations_ns": durations, "held": held, "repeats": 107}
            case "WallBurst":
                return {
                    "type": "Samples",
                    "durations_ns": [5e4] * command["steps"],
                    "held": True,
                    "repeats": 1,
                }
            case "BuildYardsticks":
                return {"type": "YardsticksBuilt", "uuid": DEVICE["uuid"]}
            case "BurstYardsticks":
                each = [1e3 * self.times[kind]] * command["steps"]
                return {"type": "YardstickSamples", "durations_ns": {"copy": each, "fixed": each}}
            case "TurnTo" | "OnStream":  # of the studies
                return {"type": "Profiled"}
            case "ReadProbe" | "Peer":
                return {"type": "Samples", "durations_ns": [1_700.0], "held": True, "repeats": 1}
            case "Observe":
                return {"type": "Observations", **OBSERVATIONS}
        raise ValueError(kind)

    def write_trace(self, path: Path) -> None:
        """A real one, or one from which the profiler lost a kernel or all of them."""
        take = self.script.get(f"Profile:{self.times['Profile']}") or self.script.get("Profile")
        if take is None:
            shutil.copy(TRACE, path)
            return
        trace = json.loads(gzip.decompress(TRACE.read_bytes()))
        kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        lost = kernels[:1] if take == "lose one kernel" else kernels
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event not in lost]
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))

    def note(self, what: str) -> None:
        with (self.folder / "journal").open("a") as journal:
            journal.write(f"{self.variant} {what}\n")

    def send(self, reply: dict[str, Any]) -> None:
        os.write(self.replies, json.dumps(reply).encode() + b"\n")


def main(folder: str, commands: str, replies: str) -> None:
    scripted = Scripted(Path(folder), int(replies))
    with os.fdopen(int(commands)) as lines:
        for line in lines:
            command = json.loads(line)
            if command["type"] == "Stop":
                scripted.note("Stop begins")
                return
            scripted.take(command)


if __name__ == "__main__":
    main(*sys.argv[1:])
