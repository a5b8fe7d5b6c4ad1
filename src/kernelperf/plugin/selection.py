"""Collected tests → which variants they use: parametrization, marks, and one Use a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from kernelperf.errors import UnusableInput
from kernelperf.plugin.marks import MARK, Guard, merged_guard
from kernelperf.workload import AxisValue, Declaration, Variant, registered

# The fixtures that need times of the workloads beside them.
TIMING_FIXTURES = frozenset({"gpu_benchmark", "gpu_speed_ratio"})


@dataclass(frozen=True, slots=True)
class Use:
    """One test that uses workloads."""

    test: str
    variants: tuple[Variant, ...]
    timed: bool  # it needs their times
    judged: bool  # it compares them with the baseline
    guard: Guard
    skipped: bool  # by a mark that is already known

    @property
    def workloads(self) -> tuple[str, ...]:
        """The ids of its variants."""
        return tuple(variant.id for variant in self.variants)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each combination of its workloads' variants that agree on the axes they share."""
    known = registered()
    used = [known[name] for name in metafunc.fixturenames if name in known]
    if not used:
        return
    combinations = joint_variants(used)
    if not combinations:
        raise pytest.Collector.CollectError(_never_together(metafunc.definition.nodeid, used))
    metafunc.parametrize(
        [declaration.name for declaration in used],
        [
            pytest.param(*variants, id=joint_id(variants), marks=_distinct_marks(variants))
            for variants in combinations
        ],
        indirect=True,
    )


def joint_variants(used: Sequence[Declaration]) -> tuple[tuple[Variant, ...], ...]:
    """Return the combinations of one variant of each declaration that agree on the axes they share."""
    combinations: list[tuple[Variant, ...]] = [()]
    for declaration in used:
        combinations = [
            (*chosen, variant)
            for chosen in combinations
            for variant in declaration.variants()
            if _agrees(variant, chosen)
        ]
    return tuple(combinations)


def joint_id(variants: Sequence[Variant]) -> str:
    """Return the id of a test's parameters: ``geglu_compiled+geglu_eager-bf16``."""
    names = "+".join(sorted(variant.declaration.name for variant in variants))
    choices: dict[str, AxisValue] = {}
    for variant in variants:
        choices.update(variant.choices)
    return "-".join([names, *(value.label for value in choices.values())])


def mark(item: pytest.Item) -> None:
    """Give an item that uses workloads the mark ``kernelperf``, so that ``-m`` can select by it.

    Raises `pytest.UsageError` for arguments that the mark doesn't take, and for a test of times without a
    workload.
    """
    _guard(item)
    if not _variants(item) and _judges(item):
        raise pytest.UsageError(
            f"{item.nodeid} uses gpu_benchmark without a workload; name one among its parameters"
        )
    if _variants(item) and item.get_closest_marker(MARK) is None:  # ours would shadow the user's
        item.add_marker(MARK)


def use_of(item: pytest.Item) -> Use | None:
    """Return what an item uses, None for one that uses no workload."""
    variants = _variants(item)
    if not variants:
        return None
    fixtures = _fixtures(item)
    return Use(
        test=item.nodeid,
        variants=variants,
        timed=bool(fixtures & TIMING_FIXTURES),
        judged=_judges(item),
        guard=_guard(item),
        skipped=item.get_closest_marker("skip") is not None,
    )


def variant_of(request: pytest.FixtureRequest, declaration: Declaration) -> Variant:
    """Return the variant that a workload's fixture stands for in this test."""
    variant = getattr(request, "param", None)
    if isinstance(variant, Variant):
        return variant
    raise UnusableInput(
        f"{request.node.nodeid} asks for workload {declaration.name!r} while it runs, when nothing can be "
        f"measured any more; name {declaration.name!r} among the test's parameters"
    )


def _agrees(variant: Variant, chosen: Iterable[Variant]) -> bool:
    ours = variant.params
    return all(ours.get(axis, value) == value for other in chosen for axis, value in other.params.items())


def _never_together(test: str, used: Sequence[Declaration]) -> str:
    axes = "; ".join(f"{declaration.name} ({_axes(declaration)})" for declaration in used)
    return (
        f"{test}: no variants of its workloads agree on the axes they share: {axes}; give them a common value"
    )


def _axes(declaration: Declaration) -> str:
    return ", ".join(f"{axis}={[each.value for each in values]}" for axis, values in declaration.axes)


def _distinct_marks(variants: Sequence[Variant]) -> tuple[pytest.MarkDecorator | pytest.Mark, ...]:
    found: list[pytest.MarkDecorator | pytest.Mark] = []
    for variant in variants:
        found += [each for each in variant.marks if each not in found]
    return tuple(found)


def _variants(item: pytest.Item) -> tuple[Variant, ...]:
    callspec = getattr(item, "callspec", None)
    params: Mapping[str, object] = callspec.params if callspec else {}
    return tuple(value for value in params.values() if isinstance(value, Variant))


def _fixtures(item: pytest.Item) -> frozenset[str]:
    return frozenset(getattr(item, "fixturenames", ()))


def _judges(item: pytest.Item) -> bool:
    return "gpu_benchmark" in _fixtures(item)


def _guard(item: pytest.Item) -> Guard:
    try:
        return merged_guard((found.args, found.kwargs) for found in item.iter_markers(MARK))
    except UnusableInput as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}") from error
