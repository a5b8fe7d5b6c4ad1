"""A worker counts what was compiled, and tells how far the output is from its float64 reference."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from kernelperf.errors import UnusableInput
from kernelperf.protocol import TritonSource
from kernelperf.worker.observing import TritonCounter, compare_with_reference, triton_sources

# What Inductor (torch 2.11) writes to its cache for the fused kernel of a GeGLU MLP.
INDUCTOR_KERNEL = """
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers, triton_heuristics

@triton_heuristics.pointwise(size_hints={'x': 33554432}, filename=__file__)
@triton.jit
def triton_poi_fused__unsafe_view_gelu_mul_0(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 25165824
"""


def reference() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(64, 48, generator=generator, dtype=torch.float64)


def test_the_error_is_relative_to_the_references_norm() -> None:
    exact = reference()
    numerics = compare_with_reference([exact * 1.01], [exact])
    assert numerics.relative_error == pytest.approx(0.01)
    assert numerics.reference_norm == pytest.approx(float(exact.norm()))


def test_all_of_an_outputs_tensors_count_as_one_vector() -> None:
    exact = reference()
    numerics = compare_with_reference([exact, exact * 2], [exact, exact])
    assert numerics.relative_error == pytest.approx(1 / 2**0.5)


def test_a_nan_in_the_output_is_no_small_error() -> None:
    exact = reference()
    broken = exact.clone()
    broken[0, 0] = float("nan")
    error = compare_with_reference([broken], [exact]).relative_error
    assert error is not None
    assert not error < 1e9


def test_the_digest_is_the_same_for_sums_in_another_order() -> None:
    exact = reference()
    nudged = exact * (1 + 1e-13)
    digests = {compare_with_reference([exact], [each]).reference_digest for each in (exact, nudged)}
    assert len(digests) == 1


@pytest.mark.parametrize("change", ["one value", "another shape", "another order"])
def test_the_digest_tells_another_reference_apart(change: str) -> None:
    exact, other = reference(), reference()
    if change == "one value":
        other[5, 5] += 0.01
    elif change == "another shape":
        other = other.reshape(48, 64)
    else:
        other = other.flip(0)
    one, two = (compare_with_reference([each], [each]).reference_digest for each in (exact, other))
    assert one != two


def test_shapes_that_differ_are_an_error_naming_both() -> None:
    with pytest.raises(UnusableInput, match=r"\[\(48, 64\)\], its reference \[\(64, 48\)\]"):
        compare_with_reference([reference().reshape(48, 64)], [reference()])


def test_a_reference_in_another_precision_is_an_error() -> None:
    with pytest.raises(UnusableInput, match=r"torch\.float32.*not float64"):
        compare_with_reference([reference().float()], [reference().float()])


def test_inductors_kernels_are_found_with_their_pointers(tmp_path: Path) -> None:
    (tmp_path / "rp").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "rp" / name).write_text(INDUCTOR_KERNEL)
    (tmp_path / "rp" / "wrapper.py").write_text("def call(args):\n    return args\n")
    found = triton_sources(tmp_path)
    assert found == [TritonSource("triton_poi_fused__unsafe_view_gelu_mul_0", ["in_out_ptr0", "in_ptr0"])]


def test_no_cache_means_that_inductor_wrote_none(tmp_path: Path) -> None:
    assert triton_sources(tmp_path / "nothing") == []


def test_a_process_that_never_imported_dynamo_has_no_graphs() -> None:
    program = """
        import sys
        from kernelperf.worker.observing import Compilations, TritonCounter
        assert "torch._dynamo.utils" not in sys.modules
        print(TritonCounter().compilations() == Compilations(0, 0, 0))
    """
    assert run_python(program) == "True"


def test_dynamos_graphs_and_breaks_are_counted() -> None:
    program = """
        import torch
        from kernelperf.worker.observing import TritonCounter
        counter = TritonCounter()
        def step(x):
            y = x.sin()
            torch._dynamo.graph_break()
            return y.cos()
        compiled = torch.compile(step, backend="eager")
        compiled(torch.ones(4))
        compiled(torch.ones(4))
        print(counter.compilations().dynamo_graphs, counter.compilations().graph_breaks)
    """
    assert run_python(program) == "2 1"


def test_triton_compilations_are_counted_once_a_specialization(tmp_path: Path) -> None:
    """With Triton's own compiler, for a GPU that need not be here."""
    (tmp_path / "kernels.py").write_text(
        textwrap.dedent("""
        import triton
        import triton.language as tl

        @triton.jit
        def double(out, x, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + at, 2 * tl.load(x + at, at < n), at < n)
        """)
    )
    program = """
        import torch
        from triton.backends.compiler import GPUTarget
        from triton.runtime.driver import driver
        from kernelperf.worker.observing import TritonCounter

        class Compiling:
            def get_current_target(self): return GPUTarget("cuda", 90, 32)
            def get_current_device(self): return 0
            def get_current_stream(self, device): return 0

        driver.set_active(Compiling())
        counter = TritonCounter()
        from kernels import double
        seen = []
        for size, block in ((64, 16), (64, 16), (64, 32), (65, 32)):
            double.warmup(torch.float32, torch.float32, size, BLOCK=block, grid=(1,))
            seen.append(counter.compilations().triton)
        print(seen)
    """
    # 64 is a multiple of 16, which Triton specializes on; 65 is not
    assert run_python(program, cwd=tmp_path, TRITON_CACHE_DIR=str(tmp_path / "cache")) == "[1, 1, 2, 3]"


def test_compilations_that_inductor_reports_are_not_the_jits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.knobs.runtime.jit_post_compile_hook", None)
    counter = TritonCounter()
    counter._compiled(key="", repr="", fn=None, compile=None, is_manual_warmup=False, already_compiled=True)
    assert counter.count == 0


def run_python(program: str, cwd: Path | None = None, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
