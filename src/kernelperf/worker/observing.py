"""What a worker can tell beside the times: memory, compilations, numerics, what each probe compiled.

Imported by workers only.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from kernelperf.errors import UnusableInput
from kernelperf.protocol import Observations, ProbeResult, TritonSource
from kernelperf.workload import Subject

# The digest's projections are rounded to this: far above what the order of float64 sums changes (1e-12),
# far below what another input, weight or seed does.
_DIGEST_FORMAT = ".6e"
_DIGEST_FREQUENCIES = (0.7, 1.9, 3.1, 4.3)


@dataclass(frozen=True, slots=True)
class Compilations:
    """How much was compiled in this process so far."""

    dynamo_graphs: int
    graph_breaks: int
    triton: int


class TritonCounter:
    """Counts the specializations that Triton's JIT compiles: hand-written kernels, not Inductor's.

    Make it before the workload is built.  Inductor compiles its kernels past the JIT, and says so in the
    hook where it is told to call it.
    """

    def __init__(self) -> None:
        self.count = 0
        try:
            from triton import knobs  # type: ignore[import-untyped]  # it has no annotations
        except ImportError:
            return
        knobs.runtime.jit_post_compile_hook = self._compiled

    def _compiled(self, *, already_compiled: bool = False, **_: Any) -> None:
        if not already_compiled:
            self.count += 1

    def compilations(self) -> Compilations:
        """Return the counts as they stand now; Dynamo's are 0 in a process that never imported it."""
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is None:
            return Compilations(0, 0, self.count)
        counters = utils.counters
        return Compilations(
            dynamo_graphs=counters["stats"]["unique_graphs"],
            graph_breaks=sum(counters["graph_break"].values()),
            triton=self.count,
        )


def observe(
    subject: Subject, counter: TritonCounter, after_first_call: Compilations, inductor_cache: Path
) -> Observations:
    """Observe the workload; the probes come last, because they may compile anew."""
    peak_memory_bytes = _peak_memory(subject.step)
    numerics = _numerics(subject)
    before_probes = counter.compilations()
    sources = triton_sources(inductor_cache)
    return Observations(
        peak_memory_bytes=peak_memory_bytes,
        dynamo_graphs=after_first_call.dynamo_graphs,
        graph_breaks=before_probes.graph_breaks,
        recompiles=before_probes.dynamo_graphs - after_first_call.dynamo_graphs,
        triton_compilations=before_probes.triton,
        relative_error=numerics.relative_error,
        reference_norm=numerics.reference_norm,
        reference_digest=numerics.reference_digest,
        probes=[_probe(name, probe, counter) for name, probe in subject.probes.items()],
        triton_sources=sources,
    )


def triton_sources(inductor_cache: Path) -> list[TritonSource]:
    """Return the kernels that Inductor wrote to its cache, with the names of their pointer arguments."""
    if not inductor_cache.is_dir():
        return []
    found = {
        (kernel.name, tuple(kernel.pointers))
        for path in sorted(inductor_cache.rglob("*.py"))
        for kernel in _kernels_in(path.read_text(encoding="utf-8"))
    }
    return [TritonSource(name=name, pointers=list(pointers)) for name, pointers in sorted(found)]


def _kernels_in(source: str) -> Iterator[TritonSource]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and any(_is_triton_jit(each) for each in node.decorator_list):
            names = [argument.arg for argument in node.args.args]
            yield TritonSource(name=node.name, pointers=[name for name in names if "_ptr" in name])


def _is_triton_jit(decorator: ast.expr) -> bool:
    return ast.unparse(decorator) == "triton.jit"


def _peak_memory(step: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


@dataclass(frozen=True, slots=True)
class Numerics:
    """How far the step's output is from its float64 reference; None without a reference."""

    relative_error: float | None = None
    reference_norm: float | None = None
    reference_digest: str | None = None


def _numerics(subject: Subject) -> Numerics:
    if subject.reference is None:
        return Numerics()
    # A copy: the step may write its output to the same memory each time.
    outputs = [leaf.detach().double() for leaf in _tensors(subject.step())]
    return compare_with_reference(outputs, _tensors(subject.reference()))


def compare_with_reference(outputs: list[Any], references: list[Any]) -> Numerics:
    """Compare all of an output's tensors with the reference's as one vector.

    Raises `UnusableInput` where they differ in number or shape, or the reference isn't float64.
    """
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (outputs, references)]
    if shapes[0] != shapes[1]:
        raise UnusableInput(f"the step returns tensors of shapes {shapes[0]}, its reference {shapes[1]}")
    if any(tensor.dtype != torch.float64 for tensor in references):
        raise UnusableInput(f"the reference returns {[str(each.dtype) for each in references]}, not float64")
    reference = torch.cat([tensor.detach().reshape(-1) for tensor in references])
    output = torch.cat([tensor.reshape(-1).to(reference) for tensor in outputs])
    norm = float(torch.linalg.vector_norm(reference))
    distance = float(torch.linalg.vector_norm(output - reference))
    return Numerics(
        relative_error=distance / norm if norm else float("inf") if distance else 0.0,
        reference_norm=norm,
        reference_digest=_digest(reference, str(shapes[1])),
    )


def _digest(reference: Any, shapes: str) -> str:
    """Tell two references apart, and not the same one computed twice: by a few rounded projections."""
    index = torch.arange(reference.numel(), dtype=torch.float64, device=reference.device)
    projections = [float(torch.dot(torch.cos(index * each), reference)) for each in _DIGEST_FREQUENCIES]
    rounded = " ".join(format(projection, _DIGEST_FORMAT) for projection in projections)
    return hashlib.sha256(f"{shapes} {rounded}".encode()).hexdigest()[:16]


def _tensors(output: Any) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _probe(name: str, probe: Callable[[], Any], counter: TritonCounter) -> ProbeResult:
    before = counter.compilations()
    probe()
    torch.cuda.synchronize()
    after = counter.compilations()
    return ProbeResult(
        name=name,
        dynamo_graphs=after.dynamo_graphs - before.dynamo_graphs,
        triton_compilations=after.triton - before.triton,
    )
