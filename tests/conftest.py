"""A project of someone else's, in which the plugin's tests run pytest."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from kernelperf import environment

pytest_plugins = ["pytester"]

# pytester forgets the modules that a run in this process imported; those that the plugin loads when it is
# first needed must stay the same ones.
for _module in (
    "plugin.benchmark_fixture",
    "plugin.codegen_fixture",
    "plugin.live",
    "plugin.plugin_state",
    "trace.kineto",
):
    importlib.import_module(f"kernelperf.{_module}")


@pytest.fixture
def project(pytester, monkeypatch):
    """An empty project without a GPU, whose declarations are forgotten afterwards."""
    from tests.project import Project

    declarations = sys.modules["kernelperf.workload"]  # the package's attribute is the decorator
    monkeypatch.setattr(declarations, "_registry", {})
    monkeypatch.setattr(declarations, "_factories", {})
    monkeypatch.setattr(environment, "find_gpu", lambda *_, **__: None)
    monkeypatch.delenv("CI", raising=False)
    # its summary imports all of hypothesis, in every run anew
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    return Project(pytester, Path(pytester.path))


@pytest.fixture
def live(project, monkeypatch):
    """The project on an H200 whose workers are scripted."""
    from tests.live import scripted

    return scripted(project, monkeypatch)
