"""Declare workloads: a factory that a fresh process can import, and the axes over which it varies.

Loading this module imports neither torch nor a GPU library; the factory runs only in a worker.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import pytest

from kernelperf.errors import UnusableInput

Mode = Literal["forward", "backward", "forward_backward"]
Scalar = str | int | float | bool
Value = Scalar | tuple[Scalar, ...]

DEFAULT_TIME_LIMIT_S = 300.0
_DEFINITION_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Subject:
    """Return this from a factory: the step to guard, and what describes it.

    ``step`` is called with no arguments; one call is one step.  ``reference`` returns the step's output
    in float64, from the same weights and inputs.  ``probes`` are further calls, each made once, in order,
    after all timing; the compilations that each causes are recorded under its name.
    """

    step: Callable[[], Any]
    reference: Callable[[], Any] | None = None
    probes: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)


class Unavailable(Exception):
    """Raise this in a factory when the variant can't be built here; the first line is shown as the cause."""


@dataclass(frozen=True, slots=True)
class AxisValue:
    """One value of an axis, with the pytest marks that its variants carry."""

    value: Value
    marks: tuple[pytest.MarkDecorator | pytest.Mark, ...] = ()

    @property
    def label(self) -> str:
        """The value as it stands in a variant's name: ``bf16``, ``1024x32x64``."""
        if isinstance(self.value, tuple):
            return "x".join(str(part) for part in self.value)
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared workload: where its factory is, and its axes."""

    name: str
    file: Path
    module: str
    line: int
    mode: Mode
    time_limit_s: float
    axes: tuple[tuple[str, tuple[AxisValue, ...]], ...]

    def variants(self) -> tuple[Variant, ...]:
        """Return every combination of the axes' values, in declaration order."""
        names = [axis for axis, _ in self.axes]
        combinations = itertools.product(*(values for _, values in self.axes))
        return tuple(Variant(self, tuple(zip(names, values, strict=True))) for values in combinations)


@dataclass(frozen=True, slots=True)
class Variant:
    """A declaration with one value chosen on each axis: what a worker builds and a baseline stores."""

    declaration: Declaration
    choices: tuple[tuple[str, AxisValue], ...]

    @property
    def id(self) -> str:
        """The name of its folder in a recording, such as ``linear_eager-1024x32x64-bf16``."""
        return "-".join([self.declaration.name, *(value.label for _, value in self.choices)])

    @property
    def params(self) -> dict[str, Value]:
        """The factory's keyword arguments."""
        return {axis: value.value for axis, value in self.choices}

    @property
    def definition(self) -> str:
        """A fingerprint of name, parameters and mode: recordings of two definitions are never compared."""
        described = [self.declaration.name, self.declaration.mode, sorted(self.params.items())]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:_DEFINITION_DIGITS]

    @property
    def marks(self) -> tuple[pytest.MarkDecorator | pytest.Mark, ...]:
        """The pytest marks of all its values."""
        return tuple(mark for _, value in self.choices for mark in value.marks)


_registry: dict[str, Declaration] = {}
_factories: dict[str, Callable[..., Any]] = {}


def registered() -> Mapping[str, Declaration]:
    """Return the declarations that the imported modules made, by name."""
    return dict(_registry)


def factory_of(name: str) -> Callable[..., Any]:
    """Return the declared workload's factory: what a worker calls, where pytest sees a fixture."""
    return _factories[name]


def workload(
    *, mode: Mode = "forward", time_limit_s: float = DEFAULT_TIME_LIMIT_S, **axes: Sequence[Any]
) -> Callable[[Callable[..., Any]], Any]:
    """Declare a workload: register its factory, and make a pytest fixture of the same name.

    Each keyword is an axis: a list of values that can be written as JSON (or ``pytest.param(value,
    marks=...)``), passed to the factory under the axis's name.  ``mode`` says what one step is:
    ``forward`` runs without gradients, ``backward`` and ``forward_backward`` with them.  ``time_limit_s``
    bounds one run of one variant, start-up and compilation included.

    The factory runs in a worker, never in the pytest process; import torch inside it.  It returns a
    `Subject`, a callable taking no arguments, or a pair ``(module, inputs)``.

    Raises `UnusableInput` for a name declared twice, an unknown mode, or an axis that does not fit the
    factory's signature.
    """

    def declare(factory: Callable[..., Any]) -> Any:
        declaration = _declaration(factory, mode, time_limit_s, axes)
        _register(declaration)
        _factories[declaration.name] = factory

        @pytest.fixture(name=declaration.name)
        def guarded(request: pytest.FixtureRequest) -> Any:
            from kernelperf.plugin import guarded_workload

            return guarded_workload(request, declaration)

        return guarded

    return declare


def _declaration(
    factory: Callable[..., Any], mode: Mode, time_limit_s: float, axes: Mapping[str, Sequence[Any]]
) -> Declaration:
    name, place = factory.__name__, f"{inspect.getsourcefile(factory)}:{factory.__code__.co_firstlineno}"
    if mode not in get_args(Mode):
        raise UnusableInput(f"{place}: workload {name!r} has mode {mode!r}; use one of {get_args(Mode)}")
    takes = tuple(inspect.signature(factory).parameters)
    if set(takes) != set(axes):
        raise UnusableInput(
            f"{place}: workload {name!r} varies over {sorted(axes)}, but its factory takes {sorted(takes)}; "
            "name the same parameters in both"
        )
    return Declaration(
        name=name,
        file=Path(inspect.getsourcefile(factory) or "").resolve(),
        module=factory.__module__,
        line=factory.__code__.co_firstlineno,
        mode=mode,
        time_limit_s=time_limit_s,
        axes=tuple(
            (axis, tuple(_axis_value(place, axis, v) for v in values)) for axis, values in axes.items()
        ),
    )


def _axis_value(place: str, axis: str, value: Any) -> AxisValue:
    marks: tuple[Any, ...] = ()
    if hasattr(value, "values") and hasattr(value, "marks"):  # what pytest.param returns
        (value,), marks = value.values, tuple(value.marks)
    value = tuple(value) if isinstance(value, list) else value
    parts = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(part, Scalar) for part in parts):
        raise UnusableInput(
            f"{place}: axis {axis!r} holds {value!r}; use strings, numbers, or tuples of them"
        )
    return AxisValue(value, marks)


def _register(declaration: Declaration) -> None:
    known = _registry.get(declaration.name)
    if known is not None and (known.file, known.line) != (declaration.file, declaration.line):
        raise UnusableInput(
            f"two workloads are named {declaration.name!r}: {known.file}:{known.line} and "
            f"{declaration.file}:{declaration.line}; rename one"
        )
    _registry[declaration.name] = declaration
