"""Where no test uses a workload and no option is given, the plugin does and loads nothing."""

from __future__ import annotations

import json
import subprocess
import sys

PLAIN = """
    import json, sys

    def test_plain():
        names = ("torch", "numpy", "pynvml", "kernelperf.plugin.session", "kernelperf.plugin.plugin_state")
        json.dump([name for name in names if name in sys.modules], open("loaded.json", "w"))
"""


def test_a_session_without_workloads_is_left_alone(project):
    project.write("test_plain.py", PLAIN)
    project.ini("kperf_fallback_recording = nowhere", "kperf_advisory = true")
    result = project.pytester.runpytest_subprocess("-v")
    result.assert_outcomes(passed=1)
    assert json.loads((project.root / "loaded.json").read_text()) == []
    assert "kernelperf:" not in result.stdout.str()
    assert "== kernelperf ==" not in result.stdout.str()
    assert not (project.root / ".kernelperf").exists()


def test_deselected_workloads_count_as_none(project):
    project.guard()
    project.write("test_plain.py", PLAIN)
    result = project.pytester.runpytest_subprocess("-m", "not kernelperf")
    result.assert_outcomes(passed=1, deselected=2)
    assert json.loads((project.root / "loaded.json").read_text()) == []
    assert "kernelperf:" not in result.stdout.str()


def test_an_option_makes_it_speak(project):
    project.write("test_plain.py", "def test_plain(): ...\n")
    project.record()
    result = project.replay()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["kernelperf: REPLAY of recording: NVIDIA H200 *"])


def test_importing_the_plugin_imports_no_torch():
    probe = (
        "import sys, kernelperf.plugin; print([m for m in ('torch', 'numpy', 'pynvml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_replay_imports_no_torch(project):
    project.guard(
        """
        import sys
        import kernelperf

        @kernelperf.workload(dtype=["bf16"])
        def mlp(dtype): ...

        def test_time(gpu_benchmark, mlp):
            gpu_benchmark(mlp)
            assert "torch" not in sys.modules
            assert "pynvml" not in sys.modules
        """
    )
    project.record()
    project.accept()
    project.pytester.runpytest_subprocess("--kperf-replay", "recording").assert_outcomes(passed=1)
