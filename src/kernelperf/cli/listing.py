"""A project's tests, collected by pytest in a process of its own → the workloads they declare and gate.

Loaded there as a plugin (``-p kernelperf.cli.listing``), where it writes what it finds; nothing is run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from kernelperf.errors import UnusableInput
from kernelperf.plugin.selection import Use, use_of
from kernelperf.workload import Variant, registered

_OUTPUT = "KERNELPERF_LISTING"
_SHOWN_LINES = 15


class Listed(msgspec.Struct, frozen=True):
    """A declared variant: which metrics its selected tests gate, and by what tolerance."""

    id: str
    name: str
    declared_in: str
    selected: bool
    gated: list[str]
    tolerance_fractions: list[float]  # that the tests' marks give; none for the default


def declared(root: Path, arguments: Sequence[str] = ()) -> tuple[Listed, ...]:
    """Collect the tests under ``root`` and return the variants declared there.

    ``arguments`` go to pytest.  Raises `UnusableInput` with pytest's own words where collection fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "listing.json"
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", __name__, *arguments]
        done = subprocess.run(
            command,
            cwd=root,
            env={**os.environ, _OUTPUT: str(output)},
            capture_output=True,
            text=True,
            check=False,
        )
        if (
            done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
            or not output.exists()
        ):
            told = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_SHOWN_LINES:])
            raise UnusableInput(
                f"the tests in {root} can't be collected, so what they declare is unknown; run "
                f"`pytest --collect-only {' '.join(arguments)}` and mend what it says:\n{told}"
            )
        return tuple(msgspec.json.decode(output.read_bytes(), type=list[Listed]))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write down the declared variants, and what the selected tests gate."""
    output = os.environ.get(_OUTPUT)
    if output:
        Path(output).write_bytes(msgspec.json.encode(_listed(session)))


def _listed(session: pytest.Session) -> list[Listed]:
    uses = [use for item in session.items if (use := use_of(item)) is not None]
    return [
        _row(variant, [use for use in uses if variant.id in use.workloads], session.config.rootpath)
        for declaration in registered().values()
        for variant in declaration.variants()
    ]


def _row(variant: Variant, uses: Sequence[Use], root: Path) -> Listed:
    judging = [use.guard for use in uses if use.judged]
    gated = {"structure", *(metric for guard in judging for metric in guard.metrics)}
    tolerances = {guard.tolerance_fraction for guard in judging if guard.tolerance_fraction is not None}
    return Listed(
        id=variant.id,
        name=variant.declaration.name,
        declared_in=os.path.relpath(variant.declaration.file, root),
        selected=bool(uses),
        gated=sorted(gated),
        tolerance_fractions=sorted(tolerances),
    )
