"""The fixture ``gpu_codegen``: a step's generated code without a GPU, each generated once a session."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any

import pytest

from kernelperf.codegen import CodegenRecord, generate
from kernelperf.errors import NotDeterminable
from kernelperf.plugin.options import Options

_KNOWN = pytest.StashKey[dict[str, CodegenRecord]]()

Generate = Callable[..., CodegenRecord]


def generator(config: pytest.Config, options: Options) -> Generate:
    """Return what the fixture stands for: ``gpu_codegen("models.mlp:build", arch="sm_90", dtype="bf16")``."""
    known = config.stash.setdefault(_KNOWN, {})

    def generated(target: str, arch: str = "sm_90", **params: Any) -> CodegenRecord:
        """Generate the code of a step; what only a GPU can tell skips the test, and fails it when strict."""
        missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
        if missing:
            pytest.skip(f"no code can be generated: {' and '.join(missing)} not installed")
        key = json.dumps([target, arch, sorted(params.items())], default=str)
        if key not in known:
            try:
                known[key] = generate(target, arch, params, sys_path=[str(options.root)])
            except NotDeterminable as error:
                if options.strict:
                    raise
                pytest.skip(str(error))
        return known[key]

    return generated
