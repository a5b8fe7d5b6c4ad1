"""What a trace holds, and what differs between two → text for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kernelperf.compare.comparison import KernelChange
from kernelperf.compare.traces import CallChange, TraceComparison
from kernelperf.render.explain import change_text
from kernelperf.render.tables import (
    change_of_duration,
    duration,
    kernel_table,
    percent,
    share_of,
    shortened,
    table,
)
from kernelperf.trace import Device, Problem, Trace
from kernelperf.trace.summary import Summary

_SHOWN_KERNELS = 40
_SHOWN_OPS = 40
_SHOWN_CHANGES = 40
# Of a recording's facts: what adds up over its workloads.
_ADDED = ("kernels", "memsets", "memcpys", "roles", "gpu_busy_us", "gpu_span_us", "ops", "steps")
_JOINED = ("problems", "kernels_per_step", "kernel_names")
_SHOWN_NS = 50.0  # what one decimal of a µs shows


def facts_text(trace: Trace, summary: Summary) -> str:
    """Return what a trace holds: totals, the kernels of its last step or the first of all, ops, problems."""
    blocks = [_totals(summary), _problems(summary.problems), _kernels(trace), _ops(summary)]
    return "\n\n".join(block for block in blocks if block)


def facts_content(summary: Summary) -> dict[str, Any]:
    """Return what a trace holds, as ``kernelperf facts --json`` writes it: times in µs."""
    return {
        "valid": summary.valid,
        "problems": [msgspec.structs.asdict(problem) for problem in summary.problems],
        "steps": summary.steps,
        "kernels": summary.kernels,
        "memsets": summary.memsets,
        "memcpys": summary.memcpys,
        "kernels_per_step": summary.kernels_per_step,
        "roles": dict(summary.roles),
        "kernel_names": summary.kernel_names,
        "gpu_busy_us": summary.gpu_busy_ns / 1000,
        "gpu_span_us": summary.gpu_span_ns / 1000,
        "ops": {
            op.name: {"calls": op.calls, "kernels": op.kernels, "gpu_time_us": op.gpu_time_ns / 1000}
            for op in summary.ops
        },
        "ops_determinable": summary.ops_known,
        "device": _device(summary.devices[0]) if summary.devices else {},
        "devices": [_device(device) for device in summary.devices],
        "streams": summary.streams,
    }


def recording_content(contents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of a recording's workloads, and over all of them, as one object.

    Counts and times add up, lists follow one another, in the order of the workloads; a problem names its
    workload, and the device is the first one's.
    """
    whole: dict[str, Any] = {}
    for name, facts in contents.items():
        problems = [{**each, "message": f"{name}: {each['message']}"} for each in facts["problems"]]
        whole = _added(whole, {**facts, "problems": problems}) if whole else {**facts, "problems": problems}
    return {**whole, "workloads": dict(contents)}


def comparison_text(comparison: TraceComparison) -> str:
    """Return what differs between two traces, the time first."""
    lines = [_headline(comparison)]
    ranked = _ranked(comparison)
    lines += [f"  kernel   {_kernel_change(change, comparison)}" for change in ranked[:_SHOWN_CHANGES]]
    if len(ranked) > _SHOWN_CHANGES:
        left_ns = sum(change.delta_ns for change in ranked[_SHOWN_CHANGES:])
        share = share_of(left_ns, comparison.delta_ns)
        lines.append(
            f"  kernel   and {len(ranked) - _SHOWN_CHANGES} more (all of them: --format json)  {share}"
        )
    lines += [
        f"  rest     {name}  {share_of(ns, comparison.delta_ns)}"
        for name, ns in comparison.rest
        if abs(ns) >= _SHOWN_NS
    ]
    lines += [f"  busy     {_busy(comparison)}"] if _busy(comparison) else []
    lines += [f"  count    {_call(change)}" for change in comparison.count_changes]
    lines += [f"  op       {_call(change)}" for change in comparison.op_changes or ()]
    if comparison.op_changes is None:
        lines.append("  op       not determinable: no host rows, or a CUDA graph launched the kernels")
    lines += [f"  runtime  {_call(change)}" for change in comparison.call_changes]
    lines += [f"  note     {note}" for note in comparison.notes]
    lines.append("  note     one trace a side: times have no interval, and this is no verdict")
    return "\n".join(lines)


def comparison_json(comparison: TraceComparison) -> str:
    """Return what differs between two traces as JSON: times in ns."""
    content = {
        **{name: getattr(comparison, name) for name in comparison.__dataclass_fields__},
        "delta_ns": comparison.delta_ns,
        "ratio": comparison.ratio,
        "structure": "same" if comparison.same_structure else "changed",
        "rest": [{"what": name, "delta_ns": ns} for name, ns in comparison.rest],
    }
    return as_json(content)


def as_json(content: Any) -> str:
    """Return a document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def _totals(summary: Summary) -> str:
    steps = "no steps marked" if summary.steps is None else f"{summary.steps} steps"
    if summary.kernels_per_step:
        counts = sorted(set(summary.kernels_per_step))
        steps += f" of {counts[0] if len(counts) == 1 else f'{counts[0]}–{counts[-1]}'} kernels"
    roles = ", ".join(f"{number} {role}" for role, number in summary.roles) or "none"
    rows = [
        ("valid", "yes" if summary.valid else "NO"),
        ("steps", steps),
        ("kernels", f"{summary.kernels}  ({roles})"),
        ("transfers", f"{summary.memsets} memsets, {summary.memcpys} memcpys"),
        ("GPU", f"busy {duration(summary.gpu_busy_ns)} of {duration(summary.gpu_span_ns)}"),
        ("device", ", ".join(_device_text(device) for device in summary.devices) or "–"),
    ]
    return "\n".join(f"{name:<10} {text}" for name, text in rows)


def _device_text(device: Device) -> str:
    return device.name or f"GPU {device.index}, which the trace doesn't describe"


def _kernels(trace: Trace) -> str:
    step = trace.steps[-1] if trace.steps else None
    kernels = step.kernels if step else trace.kernels
    if not kernels:
        return ""
    title = f"kernels of {step.name}" if step else "kernels"
    left = len(kernels) - _SHOWN_KERNELS
    more = [f"… and {left} more (all of them: --json)"] if left > 0 else []
    return "\n".join([f"{title}, in launch order", kernel_table(kernels[:_SHOWN_KERNELS]), *more])


def _ops(summary: Summary) -> str:
    if not summary.ops_known:
        return "ops: not determinable (no host rows, or a CUDA graph launched the kernels)"
    ranked = sorted(summary.ops, key=lambda op: -op.gpu_time_ns)
    rows = [
        (str(op.calls), str(op.kernels), duration(op.gpu_time_ns), shortened(op.name))
        for op in ranked[:_SHOWN_OPS]
    ]
    left = len(ranked) - _SHOWN_OPS
    more = [f"… and {left} more (all of them: --json)"] if left > 0 else []
    shown = table(("calls", "kernels", "GPU time", "op"), rows, right=(0, 1, 2))
    return "\n".join(["ops, each with what was launched inside it", shown, *more])


def _problems(problems: Sequence[Problem]) -> str:
    rows = [(problem.scope, problem.code, problem.message) for problem in problems]
    return table(("scope", "problem", ""), rows) if rows else ""


def _device(device: Device) -> dict[str, Any]:
    return {
        "index": device.index,
        "name": device.name,
        "sm_count": device.sm_count,
        "memory_bytes": device.memory_bytes,
        "compute_capability": ".".join(map(str, device.compute_capability)),
    }


def _added(whole: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **whole,
        **{key: _sum(whole[key], more[key]) for key in (*_ADDED, *_JOINED)},
        "valid": whole["valid"] and more["valid"],
        "ops_determinable": whole["ops_determinable"] and more["ops_determinable"],
        "devices": [*whole["devices"], *(each for each in more["devices"] if each not in whole["devices"])],
        "streams": max(whole["streams"], more["streams"]),
    }


def _sum(one: Any, other: Any) -> Any:
    if one is None or other is None:  # such as steps, where one workload has none marked
        return None
    if isinstance(one, list | tuple):
        return [*one, *other]
    if isinstance(one, dict):
        return {
            key: _sum(one[key], other[key]) if key in one and key in other else one.get(key, other.get(key))
            for key in {**one, **other}
        }
    return one + other


def _headline(comparison: TraceComparison) -> str:
    structure = "same kernels, launched alike" if comparison.same_structure else "other kernels or launches"
    if comparison.base_ns is None or comparison.now_ns is None:
        return f"{comparison.what}: {structure}; the times of one trace can't be used"
    change = change_of_duration(comparison.base_ns, comparison.now_ns)
    return f"{comparison.what}: GPU time {change}  {percent(comparison.ratio)}  ({structure})"


def _ranked(comparison: TraceComparison) -> list[KernelChange]:
    return sorted(comparison.kernel_changes, key=lambda change: -abs(change.delta_ns))


def _kernel_change(change: KernelChange, comparison: TraceComparison) -> str:
    if comparison.delta_ns is None:
        return f"#{change.position} {change.kind}: {shortened(change.name)}"
    return f"#{change.position} {change_text(change, comparison.delta_ns)}"


def _busy(comparison: TraceComparison) -> str:
    """The time in which any kernel ran, where that isn't the sum: kernels that overlap count once."""
    base, now = comparison.base_busy_ns, comparison.now_busy_ns
    return "" if base is None or now is None else f"GPU busy with kernels {change_of_duration(base, now)}"


def _call(change: CallChange) -> str:
    kind = "new: " if not change.before else "lost: " if not change.now else ""
    time = f"  (GPU time inside {share_of(change.delta_ns, None)})" if change.delta_ns else ""
    return f"{kind}{shortened(change.name)} {change.before} → {change.now}{time}"
