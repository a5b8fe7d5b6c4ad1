"""Render a value as JSON that reviews well: sorted keys, one record or one row of samples a line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SIGNIFICANT_DIGITS = 5
_INDENT = 1


@dataclass(frozen=True, slots=True)
class Rows:
    """A flat list that is written one row a line."""

    rows: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """An object whose numbers share a line; what isn't a number gets lines of its own before them."""

    fields: Mapping[str, object]


def rounded(value: float) -> float:
    """Return the value to 5 significant digits: finer than any timing repeats."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def dump(value: object) -> str:
    """Return the value as JSON text, ending in a newline."""
    return _block(value, 0) + "\n"


def _block(value: object, depth: int) -> str:
    if isinstance(value, Rows):
        return _enclosed("[]", [", ".join(map(_inline, row)) for row in value.rows if row], depth)
    if isinstance(value, Record):
        return _enclosed("{}", _record_lines(value, depth + 1), depth)
    if isinstance(value, Mapping):
        entries = [f"{_inline(key)}: {_block(value[key], depth + 1)}" for key in sorted(value)]
        return _enclosed("{}", entries, depth)
    if isinstance(value, (list, tuple)) and not _is_row(value):
        items = [_inline(item) if _is_flat(item) else _block(item, depth + 1) for item in value]
        return _enclosed("[]", items, depth)
    return _inline(value)


def _record_lines(record: Record, depth: int) -> list[str]:
    def line(key: str, text: str) -> str:
        return f"{_inline(key)}: {text}"

    fields = record.fields
    wide = [key for key in sorted(fields) if not _is_scalar(fields[key])]
    narrow = [key for key in sorted(fields) if _is_scalar(fields[key])]
    together = ", ".join(line(key, _inline(fields[key])) for key in narrow)
    return [line(key, _block(fields[key], depth)) for key in wide] + ([together] if together else [])


def _enclosed(brackets: str, lines: Sequence[str], depth: int) -> str:
    if not lines:
        return brackets
    inner, outer = "\n" + " " * (_INDENT * (depth + 1)), "\n" + " " * (_INDENT * depth)
    return brackets[0] + inner + ("," + inner).join(lines) + outer + brackets[1]


def _inline(value: object) -> str:
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> object:
    """Write a whole float as an integer, inside containers too."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float))


def _is_row(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_scalar, value))


def _is_flat(value: object) -> bool:
    """Whether an item of a list is a record or a row, and so takes one line."""
    if isinstance(value, Mapping):
        return all(_is_scalar(item) or _is_row(item) for item in value.values())
    return _is_scalar(value) or _is_row(value)
