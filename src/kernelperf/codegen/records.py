"""What generated code says of a step: graphs, extern calls, kernels, and what each candidate compiles to."""

from __future__ import annotations

import msgspec


class Candidate(msgspec.Struct, frozen=True):
    """A launch config that a kernel may be given, and what its machine code for the architecture holds."""

    config: str  # "XBLOCK=1024 warps=4 stages=1"
    registers: int  # a thread
    spills: int  # instructions that move registers to local memory or back
    shared_bytes: int  # a block
    loads_128bit: int  # instructions
    stores_128bit: int


class GeneratedKernel(msgspec.Struct, frozen=True):
    """One launch of a Triton kernel, Inductor's or written by hand.

    ``bytes`` are the logical bytes read and written: each buffer once, whatever the caches do.  A kernel
    written by hand has no ``fused_ops``, and its ``bytes`` are those of its tensor arguments.
    """

    name: str
    fused_ops: list[str]  # of ATen, in the order in which they are computed
    bytes: int
    candidates: list[Candidate]


class CodegenRecord(msgspec.Struct, tag=True, frozen=True):
    """What one call of a step generates and launches on an architecture."""

    graphs: int
    extern_calls: list[str]  # "extern_kernels.mm", in order
    kernels: list[GeneratedKernel]  # in order, one entry a launch
    arch: str  # "sm_90"
    torch: str
    triton: str
    sources: list[str] = []  # the code that Inductor generated, a graph each; not part of the JSON

    def kernel(self, part_of_name: str) -> GeneratedKernel:
        """Return the one kernel whose name contains this.

        Raises `ValueError`, naming the kernels there are, for none or several.
        """
        found = [kernel for kernel in self.kernels if part_of_name in kernel.name]
        if len(found) != 1:
            names = ", ".join(kernel.name for kernel in self.kernels) or "none"
            raise ValueError(
                f"expected one kernel with {part_of_name!r} in its name, found {len(found)} ({names})"
            )
        return found[0]


def to_json(record: CodegenRecord) -> str:
    """Return the record as indented JSON, without its sources."""
    content = {
        key: value for key, value in msgspec.to_builtins(record).items() if key not in ("type", "sources")
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"
