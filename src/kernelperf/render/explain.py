"""A comparison → why it failed: number first, cause second, then what to do."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelperf.compare.comparison import Code, Comparison, KernelChange, Verdict
from kernelperf.compare.suite import others_shift
from kernelperf.render.tables import change_of_duration, percent, share_of, shortened, signed

_SHOWN_CHANGES = 3
_SHARE_BETWEEN_KERNELS = 0.5
_HOST_COUNTS = ("host_ops", "runtime_calls")
_COMPILE_COUNTS = ("recompiles", "graph_breaks", "dynamo_graphs", "triton_compilations")
_LAUNCH_COUNTS = ("kernels", "memcpys", "memsets")


def failure_text(
    comparison: Comparison,
    others: Sequence[Comparison] = (),
    *,
    repro: str = "",
    recording: Path | None = None,
) -> str:
    """Return the block that a failed workload shows: number first, cause second, then what to do.

    ``others`` are the session's comparisons; ``repro`` is the command that runs this workload again.
    Without ``recording`` there is no accept line: a replay's numbers are nobody's to accept.
    """
    lines = [_headline(comparison)]
    lines += [_field("kernel", text) for text in _kernel_lines(comparison)]
    lines.append(_field("cause", cause_text(comparison)))
    lines.append(_field("machine", _machine_text(comparison, others)))
    lines.append(_field("repro", repro or f"pytest -k {shlex.quote(comparison.workload)}"))
    if recording is not None:
        where = shlex.quote(str(recording))
        lines.append(_field("accept", f'kernelperf accept {where} --only {comparison.workload} --reason "…"'))
    return "\n".join(lines)


def cause_text(comparison: Comparison) -> str:
    """Return the layers that changed, the likeliest cause first, and what stayed the same."""
    layers = list(_changed_layers(comparison)) or ["nothing recorded explains it"]
    unchanged = [
        layer
        for layer, changes in (("kernels", comparison.kernel_changes), ("counts", comparison.count_changes))
        if not changes
    ]
    if unchanged:
        layers.append(f"{' and '.join(unchanged)} unchanged")
    stack = ", ".join(_stack_texts(comparison))
    layers.append(f"stack: {stack}" if stack else "stack unchanged")
    return "; ".join(layers)


def changes_text(comparison: Comparison) -> str:
    """Return what changed against the baseline, a line each; "" where nothing did."""
    kernels = [change_text(change, None) for change in comparison.kernel_changes]
    counts = [_count_text(change) for change in comparison.count_changes]
    return "\n".join([*kernels, *counts, *_stack_texts(comparison), *comparison.state_changes])


def _stack_texts(comparison: Comparison) -> list[str]:
    return [f"{name} {old or '–'} → {new or '–'}" for name, old, new in comparison.stack_changes]


def _headline(c: Comparison) -> str:
    front = f"{c.verdict.value.replace('_', ' ')} {c.workload}"
    if c.reason.code is Code.COUNTS or c.base_ns is None or c.now_ns is None:
        front = f"{front}  {c.reason.sentence}"
    if c.base_ns is None or c.now_ns is None or c.lower is None or c.upper is None:
        return front
    return "  ".join(
        [
            front,
            f"{c.metric} {change_of_duration(c.base_ns, c.now_ns)}",
            percent(c.ratio),
            f"[{signed(c.lower)}, {signed(c.upper)}]",
            f"tolerance {c.tolerance_fraction * 100:g} %",
            f"({_counted(c.now_runs, 'run')} against {c.base_runs})",
        ]
    )


def _kernel_lines(comparison: Comparison) -> list[str]:
    """The kernels that changed most, and how much each explains; with positions where names repeat."""
    ranked = sorted(comparison.kernel_changes, key=lambda change: -abs(change.delta_ns))
    names = Counter(change.name for change in ranked)
    lines = [
        (f"#{change.position} " if names[change.name] > 1 else "") + change_text(change, comparison.delta_ns)
        for change in ranked[:_SHOWN_CHANGES]
    ]
    if len(ranked) > _SHOWN_CHANGES:
        left_ns = sum(change.delta_ns for change in ranked[_SHOWN_CHANGES:])
        lines.append(f"and {len(ranked) - _SHOWN_CHANGES} more  {share_of(left_ns, comparison.delta_ns)}")
    return lines


def change_text(change: KernelChange, whole_ns: float | None) -> str:
    """Return what became of a kernel, and its share of a difference."""
    share = share_of(change.delta_ns, whole_ns)
    under = f" under {change.op}" if change.op else ""
    if change.kind == "added":
        return f"new: {shortened(change.now)}{under}  {share}"
    if change.kind == "removed":
        return f"lost: {shortened(change.before)}{under}  {share}"
    if change.kind == "renamed":
        return f"{shortened(change.before)} → {shortened(change.now)}{under}  {share}"
    detail = f";  {_config_text(change)}" if change.kind == "reconfigured" else f";  {change.kind}"
    return f"{shortened(change.name)}  {share}{detail}"


def _config_text(change: KernelChange) -> str:
    before, now = (_parts(text) for text in (change.before, change.now))
    names = {**before, **now}
    return ", ".join(f"{name} {before.get(name, '–')} → {now.get(name, '–')}" for name in names)


def _parts(config: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition("=") for part in config.split())}


def _changed_layers(comparison: Comparison) -> Iterator[str]:
    if comparison.reason.code is Code.COMMON_SHIFT:
        yield comparison.reason.sentence
    kinds = {change.kind for change in comparison.kernel_changes}
    if "reconfigured" in kinds:
        yield "launch config"
    if kinds & {"added", "removed", "renamed"}:
        yield "new or lost kernel"
    if "slower" in kinds:
        yield "kernel time"
    yield from _between_kernels(comparison)
    yield from _count_layers(comparison)


def _between_kernels(comparison: Comparison) -> Iterator[str]:
    """Time that no kernel accounts for, where it is most of a slowdown."""
    delta_ns, kernel_ns = comparison.delta_ns, comparison.kernel_delta_ns
    if comparison.verdict is not Verdict.SLOWER or not delta_ns or delta_ns <= 0 or kernel_ns is None:
        return
    if comparison.reason.code is not Code.COUNTS and delta_ns - kernel_ns > _SHARE_BETWEEN_KERNELS * delta_ns:
        yield f"not in the kernels: they take {share_of(kernel_ns, delta_ns)}"


def _count_layers(comparison: Comparison) -> Iterator[str]:
    layers = (
        ("launches", _LAUNCH_COUNTS),
        ("host", _HOST_COUNTS),
        ("recompile or graph break", _COMPILE_COUNTS),
        ("memory", ("peak_memory_bytes",)),
    )
    for layer, names in layers:
        changed = [_count_text(change) for change in comparison.count_changes if change[0] in names]
        if changed:
            yield f"{layer}: {', '.join(changed)}"


def _count_text(change: tuple[str, int, int]) -> str:
    name, before, now = change
    return f"{name} {before} → {now}"


def _machine_text(comparison: Comparison, others: Sequence[Comparison]) -> str:
    state = ", ".join((*comparison.state_changes, comparison.machine)) if comparison.machine else ""
    told = [state or ", ".join(comparison.state_changes) or "its state is not known"]
    if comparison.card_shift is not None:
        told.append(f"{signed(comparison.card_shift)} % taken off for the card, as the others read on it")
    if comparison.yardsticks:
        told.append("yardsticks " + ", ".join(f"{n} {signed(r)} %" for n, r in comparison.yardsticks))
    moved = others_shift(comparison, others)
    if moved is not None:
        count, shift = moved
        told.append(f"the other {_counted(count, 'workload')}: {signed(1 + shift)} %")
    return "; ".join(told)


def _field(name: str, text: str) -> str:
    return f"  {name:<8} {text}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
