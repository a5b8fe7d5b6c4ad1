"""The kernels of a step, before and now → those added, removed, renamed, reconfigured, slower or faster.

Kernels are aligned by launch order and launching op; what stands between two matches is paired by name, then
by role.  An index or a hash that a compiler put at the end of a name is no part of it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher

from kernelperf.compare.comparison import KernelChange
from kernelperf.recording.records import KernelRecord
from kernelperf.trace.roles import portable_name

# Between 14 fresh processes on an H200 the median time of one kernel varied by up to 0.6 % (CV), on a
# second card by 0.8 %; the profiler's clock counts in steps of 32 ns.
KERNEL_TIME_FRACTION = 0.02
KERNEL_TIME_NS = 100.0


def changed_kernels(
    before: Sequence[KernelRecord], now: Sequence[KernelRecord]
) -> tuple[tuple[KernelChange, ...], float]:
    """Return the kernels that changed, in order, and how much longer all kernels together take."""
    total_ns = sum(k.duration_ns for k in now) - sum(k.duration_ns for k in before)
    changes = (_change(position, old, new) for position, old, new in _aligned(before, now))
    return tuple(change for change in changes if change is not None), total_ns


def launch_differences(before: KernelRecord, now: KernelRecord) -> tuple[str, str]:
    """Return the parts of two launch configs that differ: ``XBLOCK=1024 warps=4``, ``XBLOCK=512 warps=8``."""
    left, right = _config_parts(before), _config_parts(now)
    differing = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    if any(key in _config_only(before) | _config_only(now) for key in differing):
        differing = [key for key in differing if key not in ("grid", "block", "registers")]

    def text(parts: dict[str, str]) -> str:
        return " ".join(f"{key}={parts[key]}" for key in differing if key in parts)

    return text(left), text(right)


def _aligned(
    before: Sequence[KernelRecord], now: Sequence[KernelRecord]
) -> Iterator[tuple[int, KernelRecord | None, KernelRecord | None]]:
    matcher = SequenceMatcher(
        None, [_identity(k) for k in before], [_identity(k) for k in now], autojunk=False
    )
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(range(j1, j2), before[i1:i2], now[j1:j2], strict=True)
        else:
            yield from _paired(before[i1:i2], now[j1:j2], i1, j1)


def _paired(
    before: Sequence[KernelRecord], now: Sequence[KernelRecord], before_position: int, now_position: int
) -> Iterator[tuple[int, KernelRecord | None, KernelRecord | None]]:
    """Pair what stands between two matches: by name under another op, by role and op, then by role."""
    left = dict(enumerate(before))
    partner: dict[int, KernelRecord] = {}
    likenesses: list[Callable[[KernelRecord], object]] = [_name, _role_and_op]
    likenesses += [_role] if len(before) == len(now) else []
    for likeness in likenesses:
        waiting: dict[object, deque[int]] = defaultdict(deque)
        for index, old in left.items():
            waiting[likeness(old)].append(index)
        for index, kernel in enumerate(now):
            if index not in partner and waiting[likeness(kernel)]:
                partner[index] = left.pop(waiting[likeness(kernel)].popleft())
    for index, old in left.items():
        yield before_position + index, old, None
    for index, kernel in enumerate(now):
        yield now_position + index, partner.get(index), kernel


def _change(position: int, before: KernelRecord | None, now: KernelRecord | None) -> KernelChange | None:
    shown = now or before
    if shown is None:
        raise ValueError("a kernel must be on one side at least")
    before_ns = before.duration_ns if before else 0.0
    now_ns = now.duration_ns if now else 0.0
    kind, left, right = _kind(before, now)
    if not kind:
        return None
    return KernelChange(
        kind=kind,
        position=position,
        before=left,
        now=right,
        delta_ns=now_ns - before_ns,
        name=shown.name,
        role=shown.role,
        op=shown.op,
        before_ns=before_ns,
        now_ns=now_ns,
    )


def _kind(before: KernelRecord | None, now: KernelRecord | None) -> tuple[str, str, str]:
    if before is None or now is None:
        return ("added" if now else "removed", before.name if before else "", now.name if now else "")
    if portable_name(before.name) != portable_name(now.name):
        return "renamed", before.name, now.name
    if _config_parts(before) != _config_parts(now):
        return "reconfigured", *launch_differences(before, now)
    delta_ns = now.duration_ns - before.duration_ns
    if abs(delta_ns) < max(KERNEL_TIME_NS, KERNEL_TIME_FRACTION * before.duration_ns):
        return "", "", ""
    return ("slower" if delta_ns > 0 else "faster", "", "")


def _identity(kernel: KernelRecord) -> tuple[str, str]:
    return portable_name(kernel.name), portable_name(kernel.op)


def _name(kernel: KernelRecord) -> str:
    return portable_name(kernel.name)


def _role_and_op(kernel: KernelRecord) -> tuple[str, str]:
    return kernel.role, portable_name(kernel.op)


def _role(kernel: KernelRecord) -> str:
    return kernel.role


def _config_only(kernel: KernelRecord) -> set[str]:
    return {part.partition("=")[0] for part in kernel.config.split()}


def _config_parts(kernel: KernelRecord) -> dict[str, str]:
    parts = {key: value for key, _, value in (part.partition("=") for part in kernel.config.split())}
    grid, block = ("x".join(map(str, size)) for size in (kernel.grid, kernel.block))
    return {**parts, "grid": grid, "block": block, "registers": str(kernel.registers)}
