"""A Step → values to assert: roles, which op launched what, folded bias, fused ops, logical bytes.

Each fact is one function.  Where the trace can't answer (no kernels, no such op) it raises `NotMeasurable`: a
fact about what isn't there proves nothing.  Where no trace could (a CUDA graph hides the ops), it raises
`NotDeterminable`: a test that asks then neither passes nor fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from kernelperf.errors import NotDeterminable, NotMeasurable
from kernelperf.protocol import TritonSource
from kernelperf.recording.records import Counts
from kernelperf.trace import Kernel, Op, Role, RuntimeCall, Step, Trace
from kernelperf.trace.roles import fused_op_names

_COMPILE_ROW = re.compile(
    r"TorchDynamo|Torch-Compiled Region|Pregraph bytecode|AOTDispatcher|CompiledFxGraph|CompiledFunction"
    r"|^triton_[a-z]+_fused_"
)
_FOLDED: frozenset[tuple[Role, ...]] = frozenset({("gemm",), ("gemm", "splitk_reduce")})
# The types as the profiler names them, and their sizes.
_SIZE_BYTES = {
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "float": 4,
    "double": 8,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "short int": 2,
    "int": 4,
    "long int": 8,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}


def single_step(trace: Trace) -> Step:
    """Return the last step of a whole trace whose steps all launch the same.

    Raises `NotMeasurable` for a trace without kernels or steps, one that lost something, or one whose steps
    differ.
    """
    broken = [problem.message for problem in trace.problems_of("trace")]
    if broken:
        raise NotMeasurable("; ".join(broken))
    unclear = [problem.message for problem in trace.problems if problem.code == "marks-overlap"]
    if not trace.steps:
        raise NotMeasurable("; ".join(unclear) or "the trace has no marked steps")
    differ = [problem.message for problem in trace.problems if problem.code == "steps-differ"]
    if differ:
        raise NotMeasurable("; ".join(differ))
    step = trace.steps[-1]
    if not step.kernels:
        raise NotMeasurable(f"step {step.name!r} launched no kernels: it proves nothing about the GPU")
    return step


def roles(step: Step) -> tuple[Role, ...]:
    """Return the kernels' roles, in launch order."""
    return tuple(kernel.role for kernel in step.kernels)


def kernel_names(step: Step) -> tuple[str, ...]:
    """Return the kernels' names, in launch order."""
    return tuple(kernel.name for kernel in step.kernels)


def op_names(step: Step) -> tuple[str, ...]:
    """Return the name of every host row in the step, in the order in which they start."""
    return tuple(op.name for op in _ops(step))


def has_op(step: Step, op_name: str) -> bool:
    """Tell whether an op of this name ran in the step."""
    return op_name in op_names(step)


def kernels_of(step: Step, op_name: str) -> tuple[Kernel, ...]:
    """Return the kernels launched inside ops of this name; the op must be there."""
    _present(step, op_name)
    return tuple(kernel for kernel in step.kernels if _is_inside(kernel.launch, op_name))


def gpu_time_ns(step: Step, op_name: str) -> int:
    """Return how long the GPU ran what was launched inside ops of this name; the op must be there."""
    kernels_ns = sum(kernel.duration_ns for kernel in kernels_of(step, op_name))
    transfers_ns = sum(
        transfer.duration_ns for transfer in step.transfers if _is_inside(transfer.launch, op_name)
    )
    return kernels_ns + transfers_ns


def children(step: Step, op_name: str) -> tuple[str, ...]:
    """Return the names of the ops directly inside the first op of this name; the op must be there."""
    parent = _present(step, op_name)
    return tuple(op.name for op in step.ops if op.parent == parent.index)


def bias_folded(step: Step) -> bool:
    """Tell whether beneath every ``aten::addmm`` ran one GEMM, its split-K reduction if any, and no more."""
    _present(step, "aten::addmm")
    addmms = [op for op in step.ops if op.name == "aten::addmm"]
    return all(_roles_inside(step, addmm) in _FOLDED for addmm in addmms)


def compile_rows(step: Step) -> tuple[str, ...]:
    """Return the names of the rows that only compiled code has: Dynamo's, AOTDispatcher's, Inductor's."""
    return tuple(name for name in op_names(step) if _COMPILE_ROW.search(name))


def fused_ops(kernel: Kernel) -> tuple[str, ...]:
    """Return the ops that an Inductor kernel's name says were fused: ``_unsafe_view``, ``gelu``, ``mul``."""
    return fused_op_names(kernel.name)


def tensor_bytes(op: Op, argument: int) -> int:
    """Return the size in bytes of a tensor argument, by the shape and type that the profiler recorded."""
    if argument >= len(op.input_dims) or argument >= len(op.input_types):
        raise NotMeasurable(f"{op.name} was recorded without the shape of argument {argument}")
    return _bytes(op, op.input_dims[argument], argument)


def logical_bytes(step: Step, kernel: Kernel, sources: Sequence[TritonSource] = ()) -> int:
    """Return the bytes that a pointwise kernel must read and write, each tensor once.

    An eager op, or an autograd function such as Liger's, reads its tensors and writes one of their broadcast
    shape.  An Inductor kernel reads and writes what its pointers' names say (``in_ptr0``, ``out_ptr0``,
    ``in_out_ptr0``); ``sources`` gives them.
    """
    if kernel not in step.kernels or kernel.role != "pointwise" or not kernel.ops:
        raise NotMeasurable(f"{kernel.name!r} is no pointwise kernel that an op of this step launched")
    op = kernel.ops[-1]
    if fused_op_names(kernel.name):
        return _inductor_bytes(op, kernel, sources)
    tensors = [argument for argument, dims in enumerate(op.input_dims) if dims]
    if not tensors:
        raise NotMeasurable(f"{op.name} was recorded without shapes: profile with record_shapes=True")
    read = sum(tensor_bytes(op, argument) for argument in tensors)
    written = _broadcast([op.input_dims[argument] for argument in tensors])
    return read + _bytes(op, written, tensors[0])


def counts(step: Step) -> Counts:
    """Return what the step does, counted."""
    return Counts(
        kernels=len(step.kernels),
        memsets=sum(transfer.kind == "memset" for transfer in step.transfers),
        memcpys=sum(transfer.kind == "memcpy" for transfer in step.transfers),
        host_ops=sum(op.category == "cpu_op" for op in step.ops),
        runtime_calls=len(step.runtime_calls),
    )


def _ops(step: Step) -> Sequence[Op]:
    """Return the step's ops, where they can be known at all."""
    if any(kernel.launch is not None and kernel.launch.is_graph for kernel in step.kernels):
        raise NotDeterminable("not determinable: a CUDA graph launched the kernels, and its ops left no rows")
    if not step.kernels:
        raise NotMeasurable(f"step {step.name!r} launched no kernels: it proves nothing about the GPU")
    if not step.ops:
        raise NotDeterminable(
            "not determinable: the trace has no host rows (profile with ProfilerActivity.CPU)"
        )
    if any(kernel.launch is None for kernel in step.kernels):
        raise NotDeterminable("not determinable: the trace doesn't say which call launched each kernel")
    return step.ops


def _present(step: Step, op_name: str) -> Op:
    for op in _ops(step):
        if op.name == op_name:
            return op
    raise NotMeasurable(
        f"the step has no op {op_name!r}, so nothing can be said of it; it has {sorted(set(op_names(step)))}"
    )


def _is_inside(launch: RuntimeCall | None, op_name: str) -> bool:
    return launch is not None and any(op.name == op_name for op in launch.ops)


def _roles_inside(step: Step, addmm: Op) -> tuple[Role, ...]:
    return tuple(kernel.role for kernel in step.kernels if addmm in kernel.ops)


def _inductor_bytes(op: Op, kernel: Kernel, sources: Sequence[TritonSource]) -> int:
    source = next((source for source in sources if source.name == kernel.name), None)
    if source is None:
        raise NotMeasurable(f"the source of {kernel.name!r} was not recorded: its pointers are unknown")
    touched = 0
    for argument, pointer in enumerate(source.pointers):
        touched += tensor_bytes(op, argument) * (2 if pointer.startswith("in_out") else 1)
    return touched


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def _bytes(op: Op, dims: tuple[int, ...], argument: int) -> int:
    kind = op.input_types[argument]
    if kind not in _SIZE_BYTES:
        raise NotMeasurable(f"argument {argument} of {op.name} is {kind!r}, whose size is unknown")
    return math.prod(dims) * _SIZE_BYTES[kind]
