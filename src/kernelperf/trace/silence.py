"""Ops that launched nothing where others like them launched kernels: what was lost with its launches.

When CUPTI has no buffer left it drops launches and kernels alike, and no pair of rows disagrees any more.
Only the ops, which torch itself records, still tell that something ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelperf.trace import Kernel, Op, Step
from kernelperf.trace.host import Host, Ops


@dataclass(frozen=True, slots=True)
class Silence:
    """Calls of ops that launched kernels in other calls, of the same shapes, and made no runtime call here.

    ``after_the_end`` of them come after the trace's last runtime call.  A session ends by waiting for the
    GPU, which is a runtime call: nothing comes after it in a whole trace.  ``elsewhere`` may be calls on CPU
    tensors, too: the trace doesn't say.
    """

    after_the_end: int = 0
    elsewhere: int = 0
    names: tuple[str, ...] = ()


def silent_ops(host: Host, kernels: Iterable[Kernel]) -> Silence:
    """Return the ops of a trace that should have launched something and made no call at all."""
    launching = _launching(kernels)
    if not launching:
        return Silence()
    names = {host.name(index) for index in launching}
    calling = host.ops_around(host.calls)
    silent = [index for index in host.indices_of(names) if index not in calling]
    if not silent:
        return Silence()
    shapes = {_shape(host, index) for index in launching}
    silent = [index for index in silent if _shape(host, index) in shapes]
    end_ns = host.calls[-1].start_ns
    late = sum(host.op(index).start_ns > end_ns for index in silent)
    seen = tuple(sorted({host.name(index) for index in silent}))
    return Silence(late, len(silent) - late, seen)


def silenced_steps(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the names of steps in which an op launched nothing that launched a kernel in another step.

    Steps are held against each other op by op, where they have the same ops, of the same shapes, in the same
    order.
    """
    alike: dict[tuple[str, ...], list[Step]] = {}
    for step in steps:
        if isinstance(step.ops, Ops):
            alike.setdefault(step.ops.names, []).append(step)
    found = {step.name for same in alike.values() for step in _silenced(same)}
    return tuple(step.name for step in steps if step.name in found)


def _silenced(steps: Sequence[Step]) -> Iterable[Step]:
    launching = {place: step for step in steps for place in _places(step, _launching(step.kernels))}
    for step in steps:
        calls = [call for call in step.runtime_calls if call.launches_kernels]
        calling = set(_places(step, (call.op for call in calls if call.op is not None)))
        if any(
            place not in calling and _alike(step.ops[place], other.ops[place])
            for place, other in launching.items()
        ):
            yield step


def _alike(one: Op, other: Op) -> bool:
    return (one.input_dims, one.input_types) == (other.input_dims, other.input_types)


def _places(step: Step, indices: Iterable[int]) -> list[int]:
    """Return where in a step its ops of these indices are; ops that began before it are none of its own."""
    first = step.ops.indices[0] if isinstance(step.ops, Ops) and len(step.ops) else 0
    return [index - first for index in indices if 0 <= index - first < len(step.ops)]


def _launching(kernels: Iterable[Kernel]) -> set[int]:
    """Return the innermost ops that launched a kernel themselves, not as part of a graph."""
    return {
        kernel.launch.op
        for kernel in kernels
        if kernel.launch and kernel.launch.op is not None and not kernel.launch.is_graph
    }


def _shape(host: Host, index: int) -> tuple[object, ...]:
    op = host.op(index)
    return (op.name, op.input_dims, op.input_types)
