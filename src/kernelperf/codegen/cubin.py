"""A cubin → registers, spills and vector accesses, read with the tools that Triton brings along."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kernelperf.errors import UnusableInput

_SPILL = re.compile(r"\b(?:STL|LDL)\b")
_LOAD_128 = re.compile(r"\bLDG\.E[.\w]*\.128\b")
_STORE_128 = re.compile(r"\bSTG\.E[.\w]*\.128\b")
_ARCH = re.compile(r"code for (sm_\d+)")
_REGISTERS = re.compile(r"\bREG:(\d+)")


@dataclass(frozen=True, slots=True)
class MachineCode:
    """What a kernel's machine code holds."""

    arch: str  # "sm_90"
    registers: int
    spills: int
    loads_128bit: int
    stores_128bit: int


def read_cubin(cubin: bytes) -> MachineCode:
    """Disassemble a cubin of one kernel.

    Raises `UnusableInput` where the tool is missing or can't read it.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _cuobjdump("--dump-resource-usage", file.name)
        code = _cuobjdump("-sass", file.name)
    return MachineCode(
        arch=_found(_ARCH, code, "architecture"),
        registers=int(_found(_REGISTERS, usage, "registers")),
        spills=len(_SPILL.findall(code)),
        loads_128bit=len(_LOAD_128.findall(code)),
        stores_128bit=len(_STORE_128.findall(code)),
    )


def _found(pattern: re.Pattern[str], text: str, what: str) -> str:
    match = pattern.search(text)
    if match is None:
        raise UnusableInput(f"cuobjdump tells no {what} of a cubin: {text.strip()[:200]!r}")
    return match.group(1)


def _cuobjdump(option: str, file: str) -> str:
    tool = _tool("cuobjdump")
    done = subprocess.run([tool, option, file], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnusableInput(f"{tool.name} {option} failed on a cubin: {done.stderr.strip()[:200]}")
    return done.stdout


def _tool(name: str) -> Path:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise UnusableInput("triton is not installed; pip install 'pytest-kernelperf[torch]'")
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / name
    if not path.is_file():
        raise UnusableInput(
            f"this triton has no {name} ({path.parent.name}/ beside its nvidia backend lacks it)"
        )
    return path
