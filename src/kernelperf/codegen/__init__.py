"""A step's generated code without a GPU: each check in a process of its own, with caches of its own.

Nothing of it touches the caller: neither torch, which is not even imported here, nor the environment, nor the
compile caches.  So checks may run side by side.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kernelperf.codegen.records import Candidate, CodegenRecord, GeneratedKernel, to_json
from kernelperf.codegen.request import Refusal, Reply, Request
from kernelperf.errors import KernelperfError, NotDeterminable, UnusableInput

__all__ = ["ARCHES", "Candidate", "CodegenRecord", "GeneratedKernel", "generate", "to_json"]

ARCHES = ("sm_80", "sm_90", "sm_100")
TIME_LIMIT_S = 300.0
_LOG_LINES = 20
# A build without CUDA ends the process over some questions, instead of raising an error.
_NEEDS_DRIVER = "not linked with support for cuda devices"


def generate(
    target: str,
    arch: str = "sm_90",
    params: Mapping[str, object] | None = None,
    *,
    sys_path: Sequence[str] = (),
    time_limit_s: float = TIME_LIMIT_S,
) -> CodegenRecord:
    """Generate the code of a step for an architecture, in a fresh process.

    ``target`` is ``MODULE:FACTORY``: a dotted module or a path to a file, and in it a declared workload, or a
    function without arguments that returns ``(module, example inputs)``, a callable, or a
    `kernelperf.Subject`.  A module that such a function returns is compiled with ``torch.compile``.
    ``params`` choose a variant of a declared workload, by value or by the label in its id; without them it is
    the first.

    Raises `NotDeterminable` for what only a GPU can tell, `UnusableInput` for a target, an architecture or
    a version of torch that can't be used, and `KernelperfError`, with the end of the log, for a step that
    fails.
    """
    if arch not in ARCHES:
        raise UnusableInput(f"architecture {arch!r} is unknown; use one of {', '.join(ARCHES)}")
    module, colon, name = target.rpartition(":")
    if not colon or not module or not name:
        raise UnusableInput(f"{target!r} names no factory; expected MODULE:FACTORY, such as models.mlp:build")
    request = Request(
        module=module,
        name=name,
        params=dict(params or {}),
        arch=arch,
        sys_path=[*sys_path, *(str(Path(entry or ".").resolve()) for entry in sys.path)],
    )
    with tempfile.TemporaryDirectory(prefix="kernelperf-codegen-") as scratch:
        return _run(target, request, Path(scratch), time_limit_s)


def _run(target: str, request: Request, scratch: Path, time_limit_s: float) -> CodegenRecord:
    asked, answered, log = scratch / "request.json", scratch / "reply.json", scratch / "log"
    asked.write_bytes(msgspec.json.encode(request))
    command = [sys.executable, "-P", "-m", "kernelperf.codegen.child", str(asked), str(answered)]
    with log.open("wb") as output:
        try:
            status = subprocess.run(
                command,
                env=_environ(scratch),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=time_limit_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise KernelperfError(
                f"{target}: its code was not generated within {time_limit_s:g} s\n{_tail(log)}"
            ) from None
    if not answered.exists():
        if _NEEDS_DRIVER in log.read_text(errors="replace"):
            raise NotDeterminable(
                f"{target} cannot be determined without a GPU: the step needs the CUDA driver"
            )
        raise KernelperfError(
            f"{target}: the process that generates its code ended with {status}\n{_tail(log)}"
        )
    return _taken(target, msgspec.json.decode(answered.read_bytes(), type=Reply), log)


def _taken(target: str, reply: CodegenRecord | Refusal, log: Path) -> CodegenRecord:
    if isinstance(reply, CodegenRecord):
        return reply
    if reply.kind == "undeterminable":
        raise NotDeterminable(f"{target} {reply.message}")
    if reply.kind == "unusable":
        raise UnusableInput(f"{target}: {reply.message}")
    raise KernelperfError(f"{target}: {reply.message}\n{reply.detail or _tail(log)}")


def _environ(scratch: Path) -> dict[str, str]:
    """The caller's environment, with caches of its own and no GPU: with one, torch would use it."""
    return {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
    }


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
