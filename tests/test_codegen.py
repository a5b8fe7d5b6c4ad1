"""Code is generated without a GPU, each check in a process of its own; what can't be told is never answered.

The specimens are real modules through real compilers.  They are generated side by side, once for all tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kernelperf.cli import main
from kernelperf.codegen import ARCHES, CodegenRecord, generate
from kernelperf.errors import KernelperfError, NotDeterminable, UnusableInput

pytest.importorskip("triton")

SPECIMENS = Path(__file__).parent / "codegen" / "specimens.py"
TENSOR_BYTES = 50_331_648  # one intermediate of the MLP
MM, ADDMM = "extern_kernels.mm", "extern_kernels.addmm"
SPECIMEN_NAMES = (
    "geglu unfused graph_break residual biased packed erf eager scan loss attention unaligned autotuned "
    "on_a_real_device dynamic "
    "trained on_the_cpu nothing failing"
).split()


@pytest.fixture(scope="module")
def outcomes() -> Any:
    """The record of each specimen, or what it raised, by name and architecture."""
    wanted = [(name, "sm_90") for name in SPECIMEN_NAMES]
    wanted += [("geglu", "sm_80"), ("geglu", "sm_100"), ("residual", "sm_100")]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        futures = {
            (name, arch): threads.submit(generate, f"{SPECIMENS}:{name}", arch) for name, arch in wanted
        }
        for name, params in (("variants", {}), ("variants fp16", {"dtype": "fp16"})):
            submitted = threads.submit(generate, f"{SPECIMENS}:variants", "sm_90", params)
            futures[name, "sm_90"] = submitted
    return futures


@pytest.fixture
def record(outcomes: Any) -> Any:
    def of(name: str, arch: str = "sm_90") -> CodegenRecord:
        future: Future[CodegenRecord] = outcomes[name, arch]
        return future.result()

    return of


# --- what is generated


@pytest.mark.parametrize("arch", ARCHES)
def test_the_mlp_is_three_gemms_and_one_fused_kernel(record: Any, arch: str) -> None:
    found = record("geglu", arch)
    assert (found.arch, found.graphs, found.extern_calls) == (arch, 1, [MM] * 3)
    (kernel,) = found.kernels
    assert kernel.fused_ops == ["_unsafe_view", "gelu", "mul"]
    assert kernel.bytes == 3 * TENSOR_BYTES
    wide, narrow = kernel.candidates
    assert (wide.config, narrow.config) == ("XBLOCK=1024 warps=4 stages=1", "XBLOCK=512 warps=8 stages=1")
    assert wide.loads_128bit == 2
    assert (wide.stores_128bit, wide.spills, wide.shared_bytes) == (1, 0, 0)
    assert narrow.loads_128bit == 0
    assert wide.registers > narrow.registers > 0


def test_the_versions_are_those_that_generated_it(record: Any) -> None:
    import torch
    import triton

    found = record("geglu")
    assert (found.torch, found.triton) == (str(torch.__version__), triton.__version__)
    assert "extern_kernels.mm" in found.sources[0]


# --- controls: each of these has to differ from the MLP


def test_without_fusion_there_are_two_kernels_and_more_bytes(record: Any) -> None:
    found = record("unfused")
    assert len(found.kernels) == 2
    assert sum(kernel.bytes for kernel in found.kernels) > 3 * TENSOR_BYTES


def test_a_graph_break_is_two_graphs_and_parts_gelu_from_mul(record: Any) -> None:
    found = record("graph_break")
    assert (found.graphs, found.extern_calls) == (2, [MM] * 3)
    assert [set(kernel.fused_ops) & {"gelu", "mul"} for kernel in found.kernels] == [{"gelu"}, {"mul"}]


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_a_norm_and_a_residual_are_kernels_of_their_own(record: Any, arch: str) -> None:
    found = record("residual", arch)
    assert [kernel.fused_ops[-1] for kernel in found.kernels] == ["native_layer_norm", "mul", "add"]
    norm = found.kernel("layer_norm")
    assert norm.name.startswith("triton_per")
    assert norm.bytes < TENSOR_BYTES


def test_a_bias_is_an_addmm(record: Any) -> None:
    assert record("biased").extern_calls == [ADDMM] * 3


def test_packed_projections_are_two_gemms(record: Any) -> None:
    found = record("packed")
    assert found.extern_calls == [MM] * 2
    assert "split" in found.kernels[0].fused_ops


def test_an_erf_gelu_has_the_same_name_and_ops(record: Any) -> None:
    """What the name can't tell: which GELU it is.  Its code differs."""
    erf, tanh = record("erf"), record("geglu")
    assert erf.kernels[0].name == tanh.kernels[0].name
    assert erf.kernels[0].fused_ops == tanh.kernels[0].fused_ops
    assert erf.sources != tanh.sources
    assert "erf" in erf.sources[0]


def test_a_kernel_with_a_function_before_its_own_is_compiled(record: Any) -> None:
    (kernel,) = record("scan").kernels
    assert kernel.fused_ops == ["cumsum"]
    assert kernel.candidates


def test_constants_are_computed_without_a_device(record: Any) -> None:
    assert "nll_loss_forward" in record("loss").kernels[-1].fused_ops


def test_an_eager_step_generates_nothing(record: Any) -> None:
    found = record("eager")
    assert (found.graphs, found.extern_calls, found.kernels) == (0, [], [])


def test_one_kernel_is_named_by_part_of_its_name(record: Any) -> None:
    found = record("residual")
    assert found.kernel("gelu_mul") is found.kernels[1]
    with pytest.raises(ValueError, match=r"expected one kernel with 'relu' in its name, found 0 \(triton_"):
        found.kernel("relu")
    with pytest.raises(ValueError, match="expected one kernel with 'triton'"):
        found.kernel("triton")


# --- what can't be told, and what can't be used


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("unaligned", "Inductor decides by timing candidates on the device"),
        ("autotuned", "Inductor decides by timing candidates on the device"),
        ("attention", "which attention runs, fused or not, is chosen for the device"),
        ("on_a_real_device", "the step reads a number from the device"),
        ("dynamic", "the graph's shapes are symbolic"),
        ("trained", "its mode is forward_backward, and no training graphs are generated"),
    ],
)
def test_what_only_a_gpu_can_tell_is_not_answered(record: Any, name: str, why: str) -> None:
    with pytest.raises(NotDeterminable, match="cannot be determined without a GPU: " + why):
        record(name)


def test_a_step_on_the_cpu_is_refused(record: Any) -> None:
    with pytest.raises(UnusableInput, match="the step computes on cpu, not on CUDA: put its module"):
        record("on_the_cpu")


def test_a_factory_that_returns_no_step_is_refused(record: Any) -> None:
    with pytest.raises(UnusableInput, match="'nothing' returned a int, expected"):
        record("nothing")


def test_a_factory_that_fails_shows_its_traceback(record: Any) -> None:
    with pytest.raises(KernelperfError, match=r"(?s)failing: RuntimeError: no such model\nTraceback"):
        record("failing")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("models", "'models' names no factory; expected MODULE:FACTORY"),
        (":build", "':build' names no factory"),
        ("no_such_module:build", "No module named 'no_such_module'"),
        ("no/such/file.py:build", "there is no file 'no/such/file.py'"),
        (f"{SPECIMENS}:missing", "has no workload and no function 'missing'; it declares"),
    ],
)
def test_a_target_that_is_not_there_is_told(target: str, message: str) -> None:
    with pytest.raises(UnusableInput, match=message):
        generate(target)


def test_an_unknown_architecture_lists_those_there_are() -> None:
    with pytest.raises(UnusableInput, match="architecture 'sm_75' is unknown; use one of sm_80, sm_90"):
        generate(f"{SPECIMENS}:geglu", "sm_75")


def test_an_internal_that_moved_is_one_error_that_names_it() -> None:
    from kernelperf.codegen.deviceless import internal

    with pytest.raises(UnusableInput, match=r"torch\._inductor\.graph\.Gone is missing in torch 2\.\d+"):
        internal("torch._inductor.graph", "Gone")
    with pytest.raises(UnusableInput, match=r"torch\._gone\.Graph is missing"):
        internal("torch._gone", "Graph")


def test_the_architectures_that_are_offered_are_those_that_are_known() -> None:
    from kernelperf.codegen.deviceless import ARCHITECTURES

    assert tuple(ARCHITECTURES) == ARCHES


# --- variants of a declared workload


@pytest.mark.parametrize(("name", "dtype"), [("variants", "bf16"), ("variants fp16", "fp16")])
def test_a_variant_is_chosen_by_its_values_and_is_else_the_first(record: Any, name: str, dtype: str) -> None:
    found = record(name)
    assert found.kernels[0].bytes == 2 * 1024 * 1024 * 2
    assert f"*{dtype}" in found.sources[0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"dtype": "fp8"},
            r"workload 'variants' has no variant with \{'dtype': 'fp8'\}; it has variants-",
        ),
        ({"size": "3"}, r"workload 'variants' has no axis 'size'; it has \['dtype'\]"),
    ],
)
def test_a_variant_that_is_not_there_is_told(params: dict[str, str], message: str) -> None:
    with pytest.raises(UnusableInput, match=message):
        generate(f"{SPECIMENS}:variants", params=params)


# --- isolation


def test_the_caller_imports_no_torch_and_keeps_its_environment() -> None:
    program = f"""
import os, sys
before = dict(os.environ)
from kernelperf.codegen import generate
found = generate({str(SPECIMENS)!r} + ":eager")
assert found.graphs == 0
assert "torch" not in sys.modules and "triton" not in sys.modules
assert dict(os.environ) == before
"""
    environ = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": "/nowhere/at/all",
        "TRITON_CACHE_DIR": "/nowhere/either",
    }
    subprocess.run([sys.executable, "-c", program], check=True, env=environ)


def test_a_check_that_hangs_is_ended(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\n\ndef build():\n    time.sleep(600)\n")
    with pytest.raises(KernelperfError, match=r"was not generated within 2 s"):
        generate(f"{tmp_path / 'slow.py'}:build", time_limit_s=2)


def test_a_process_that_dies_is_told_with_its_log(tmp_path: Path) -> None:
    code = "import os\n\ndef build():\n    print('on the edge', flush=True)\n    os.abort()\n"
    (tmp_path / "dying.py").write_text(code)
    with pytest.raises(KernelperfError, match=r"(?s)ended with -6\n.*on the edge"):
        generate(f"{tmp_path / 'dying.py'}:build")


def test_a_build_without_cuda_that_ends_itself_needs_a_gpu(tmp_path: Path) -> None:
    said = "PyTorch is not linked with support for cuda devices"
    code = f"import os\n\ndef build():\n    print({said!r}, flush=True)\n    os.abort()\n"
    (tmp_path / "dying.py").write_text(code)
    with pytest.raises(NotDeterminable, match="the step needs the CUDA driver"):
        generate(f"{tmp_path / 'dying.py'}:build")


# --- the command


def test_the_command_shows_a_table(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record("residual")
    monkeypatch.setattr("kernelperf.cli.generate", lambda *_, **__: found)
    shown = CliRunner().invoke(main, ["codegen", "models:block"])
    assert shown.exit_code == 0
    lines = shown.output.splitlines()
    assert lines[0].startswith("models:block  sm_90  torch ")
    assert lines[0].endswith("  1 graph")
    assert lines[1] == "  extern   extern_kernels.mm ×3"
    assert any("fuses _unsafe_view gelu mul  150,994,944 bytes" in line for line in lines)
    assert any(line.split()[:3] == ["XBLOCK=1024", "warps=4", "stages=1"] for line in lines)


def test_the_commands_json_is_the_record(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record("geglu")
    monkeypatch.setattr("kernelperf.cli.generate", lambda *_, **__: found)
    told = json.loads(CliRunner().invoke(main, ["codegen", "models:mlp", "--json"]).output)
    assert sorted(told) == ["arch", "extern_calls", "graphs", "kernels", "torch", "triton"]
    (kernel,) = told["kernels"]
    assert sorted(kernel) == ["bytes", "candidates", "fused_ops", "name"]
    assert sorted(kernel["candidates"][0]) == [
        "config",
        "loads_128bit",
        "registers",
        "shared_bytes",
        "spills",
        "stores_128bit",
    ]


@pytest.mark.parametrize(("name", "code"), [("on_the_cpu", 2), ("dynamic", 3), ("failing", 2)])
def test_the_command_says_by_its_exit_code_what_went_wrong(
    outcomes: Any, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    monkeypatch.setattr("kernelperf.cli.generate", lambda *_, **__: outcomes[name, "sm_90"].result())
    shown = CliRunner().invoke(main, ["codegen", f"models:{name}"])
    assert shown.exit_code == code
    assert shown.output.startswith("kernelperf: error: ")


def test_the_command_chooses_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("kernelperf.cli.generate", lambda *given, **_: asked.append(given) or 1 / 0)
    CliRunner().invoke(
        main, ["codegen", "m:f", "--arch", "sm_80", "--param", "dtype=bf16", "--param", "n=a=b"]
    )
    assert asked == [("m:f", "sm_80", {"dtype": "bf16", "n": "a=b"})]
    shown = CliRunner().invoke(main, ["codegen", "m:f", "--param", "dtype"])
    assert (shown.exit_code, "expected AXIS=VALUE" in shown.output) == (2, True)


# --- the fixture


TEST = """
def test_mlp(gpu_codegen):
    found = gpu_codegen("models:build", arch="sm_90")
    assert found is gpu_codegen("models:build", arch="sm_90")
    assert found is not gpu_codegen("models:build", arch="sm_80")
    assert found.graphs == 1
"""


def test_the_fixture_generates_once_a_session(pytester: pytest.Pytester, monkeypatch: Any) -> None:
    calls = []

    def generated(target: str, arch: str, *_: Any, **__: Any) -> CodegenRecord:
        calls.append((target, arch))
        return CodegenRecord(1, [], [], arch, "2.13.0", "3.8.0")

    monkeypatch.setattr("kernelperf.plugin.codegen_fixture.generate", generated)
    pytester.makepyfile(TEST)
    pytester.runpytest("-p", "no:hypothesispytest").assert_outcomes(passed=1)
    assert calls == [("models:build", "sm_90"), ("models:build", "sm_80")]


@pytest.mark.parametrize(("arguments", "outcome"), [([], "skipped"), (["--kperf-strict"], "failed")])
def test_what_cannot_be_told_skips_and_fails_when_strict(
    pytester: pytest.Pytester, monkeypatch: Any, arguments: list[str], outcome: str
) -> None:
    def generated(*_: Any, **__: Any) -> CodegenRecord:
        raise NotDeterminable("cannot be determined without a GPU: because")

    monkeypatch.setattr("kernelperf.plugin.codegen_fixture.generate", generated)
    pytester.makepyfile(TEST)
    result = pytester.runpytest("-rs", "-p", "no:hypothesispytest", *arguments)
    result.assert_outcomes(**{outcome: 1})
    assert "cannot be determined without a GPU: because" in result.stdout.str()


def test_where_torch_is_missing_nothing_is_generated(pytester: pytest.Pytester, monkeypatch: Any) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "kernelperf.plugin.codegen_fixture.importlib.util.find_spec",
        lambda name: None if name == "torch" else find(name),
    )
    pytester.makepyfile(TEST)
    result = pytester.runpytest("-rs", "-p", "no:hypothesispytest")
    result.assert_outcomes(skipped=1)
    assert "no code can be generated: torch not installed" in result.stdout.str()
