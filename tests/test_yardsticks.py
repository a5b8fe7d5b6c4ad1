"""The yardsticks' machine code is the one that lies here, for every architecture that can run it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
from kernelperf.worker.yardsticks import FMA_ENTRY, FMA_FOLDER, machine_code  # noqa: E402

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@pytest.mark.parametrize(
    ("capability", "built_for"),
    [((8, 0), 80), ((8, 6), 80), ((8, 9), 80), ((9, 0), 90), ((10, 0), 100), ((10, 3), 100), ((12, 1), 120)],
)
def test_a_card_gets_the_code_of_its_own_major_version(capability: tuple[int, int], built_for: int) -> None:
    assert machine_code(*capability) == (FMA_FOLDER / f"sm_{built_for}.cubin").read_bytes()


@pytest.mark.parametrize("capability", [(7, 5), (11, 0), (13, 0)])
def test_a_card_that_none_was_built_for_gets_none(capability: tuple[int, int]) -> None:
    assert machine_code(*capability) is None


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_the_code_is_multiply_adds_and_nothing_else_in_its_loop(name: str, tmp_path: Path) -> None:
    tool = shutil.which("cuobjdump", path=str(TOOLS))
    assert tool is not None
    shown = subprocess.run(
        [tool, "-sass", str(FMA_FOLDER / f"{name}.cubin")], capture_output=True, text=True, check=True
    ).stdout
    assert f"Function : {FMA_ENTRY.decode()}" in shown
    assert len(re.findall(r"\bFFMA\b", shown)) == 64
    assert not re.search(r"\b(LDG|HMMA|BAR)\b", shown)


def test_the_source_that_it_was_assembled_from_lies_beside_it() -> None:
    source = (FMA_FOLDER / "fma.ptx").read_text()
    assert source.count("fma.rn.f32") == 64
    assert f".entry {FMA_ENTRY.decode()}(" in source
