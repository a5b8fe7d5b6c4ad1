"""The host's rows of a trace → ops, nested by time on their threads, and the runtime calls among them.

A trace has far more ops than anybody asks for: their nesting is kept as two columns, and an `Op` is built
when it is looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from itertools import compress, count
from operator import not_
from typing import Any, NamedTuple, overload

import msgspec
import numpy as np

from kernelperf.trace import Op, RuntimeCall
from kernelperf.trace.chrome import (
    CallArgs,
    Contents,
    OpArgs,
    decode_all_args,
    decode_args,
    decode_raw,
)

_NO_OP = -1
_ROUNDING_NS = 10  # starts and durations are each rounded to a nanosecond


class _Walk(NamedTuple):
    """Rows in the order in which they are met: by start, of those that start together the longest first."""

    rows: list[Any]
    threads: list[int]
    starts_ns: list[int]
    ends_ns: list[int]
    are_ops: list[bool]


class Host:
    """Ops by the order of their start, who is around whom, and the runtime calls.

    ``op_rows`` and ``call_rows`` are positions in ``contents.rows``.
    """

    def __init__(self, contents: Contents, op_rows: list[int], call_rows: list[int]) -> None:
        self._path = contents.path
        self._built: dict[int, Op] = {}
        self._by_external_id: dict[int, int] | None = None
        walk = _walk(contents, op_rows, call_rows)
        self._rows = list(compress(walk.rows, walk.are_ops))
        self._starts_ns = list(compress(walk.starts_ns, walk.are_ops))
        self._ends_ns = list(compress(walk.ends_ns, walk.are_ops))
        around = self._nest(walk)
        self._parents = list(compress(around, walk.are_ops))
        self.calls = self._calls(walk, around)
        correlated = [call for call in reversed(self.calls) if call.correlation]
        correlated.sort(key=lambda call: call.launches_kernels)  # of two, the one that launches counts
        self.launches = {call.correlation: call for call in correlated}
        self.ops = Ops(self, range(len(self._rows)))

    def op(self, index: int) -> Op:
        """Return the op of this index."""
        if index not in self._built:
            self._built[index] = self._build(index)
        return self._built[index]

    def name(self, index: int) -> str:
        """Return an op's name without building the op."""
        return str(self._rows[index].name)

    def category(self, index: int) -> str:
        """Return an op's category without building the op."""
        return str(self._rows[index].cat)

    def indices_of(self, names: Container[str]) -> list[int]:
        """Return the indices of the ops of these names."""
        return [index for index, row in enumerate(self._rows) if row.name in names]

    def chain(self, index: int) -> Ops:
        """Return an op and all ops around it, outermost first."""
        indices, parents = [index], self._parents
        while (index := parents[index]) != _NO_OP:
            indices.append(index)
        return Ops(self, indices[::-1])

    def ops_around(self, calls: Iterable[RuntimeCall]) -> set[int]:
        """Return the indices of all ops around any of these calls."""
        found: set[int] = set()
        for call in calls:
            index = _NO_OP if call.op is None else call.op
            while index != _NO_OP and index not in found:
                found.add(index)
                index = self._parents[index]
        return found

    def between(self, start_ns: int, end_ns: int) -> Ops:
        """Return the ops that start within a span."""
        first = bisect_left(self._starts_ns, start_ns)
        return Ops(self, range(first, max(first, bisect_left(self._starts_ns, end_ns))))

    def _nest(self, walk: _Walk) -> list[int]:
        """Return, for each row, the index of the innermost op around it on its thread.

        Each thread is walked in time; at any row, the thread's stack holds the ops around it.  An op that
        outlasts another is not inside it.
        """
        ends_ns, around, index = self._ends_ns, [], 0
        stacks: list[list[int]] = [[] for _ in range(max(walk.threads, default=-1) + 1)]
        for thread, start_ns, is_op in zip(walk.threads, walk.starts_ns, walk.are_ops, strict=True):
            stack = stacks[thread]
            while stack and ends_ns[stack[-1]] <= start_ns:
                stack.pop()
            if not is_op:
                around.append(stack[-1] if stack else _NO_OP)
                continue
            inside_until_ns = ends_ns[index] - _ROUNDING_NS
            holders = (each for each in reversed(stack) if ends_ns[each] >= inside_until_ns)
            around.append(next(holders, _NO_OP))
            stack.append(index)
            index += 1
        return around

    def _calls(self, walk: _Walk, around: list[int]) -> tuple[RuntimeCall, ...]:
        columns = zip(walk.rows, walk.starts_ns, walk.ends_ns, around, strict=True)
        calls = list(compress(columns, map(not_, walk.are_ops)))
        args = decode_all_args([call[0] for call in calls], CallArgs, self._path)
        return tuple([self._call(*call, each) for call, each in zip(calls, args, strict=True)])

    def _call(self, row: Any, start_ns: int, end_ns: int, around: int, args: CallArgs) -> RuntimeCall:
        if around == _NO_OP and args.external_id is not None and self._rows:
            around = self._of_external_id(args.external_id)
        return RuntimeCall(
            row.name,
            _thread(row.pid, row.tid),
            start_ns,
            end_ns - start_ns,
            args.correlation,
            None if around == _NO_OP else around,
            self,
        )

    def _of_external_id(self, external_id: int) -> int:
        """Return the op that the profiler itself says has launched, for a thread that recorded none."""
        if self._by_external_id is None:
            ids = [args.external_id for args in decode_all_args(self._rows, OpArgs, self._path)]
            found = {key: index for index, key in enumerate(ids) if key is not None}
            self._by_external_id = found
        return self._by_external_id.get(external_id, _NO_OP)

    def _build(self, index: int) -> Op:
        row, parent = self._rows[index], self._parents[index]
        args = decode_args(row, OpArgs, self._path)
        return Op(
            index=index,
            name=row.name,
            category=row.cat,
            thread=_thread(row.pid, row.tid),
            start_ns=self._starts_ns[index],
            duration_ns=self._ends_ns[index] - self._starts_ns[index],
            parent=None if parent == _NO_OP else parent,
            input_dims=decode_raw(row, args.input_dims, _dims, self._path),
            input_types=decode_raw(row, args.input_types, _types, self._path),
            triton_config=_triton_config(args),
        )


class Ops(Sequence[Op]):
    """Some of a host's ops, built when they are looked at."""

    __slots__ = ("_host", "indices")

    def __init__(self, host: Host, indices: Sequence[int]) -> None:
        self._host = host
        self.indices = indices

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, without building the ops."""
        return tuple(map(self._host.name, self.indices))

    @property
    def categories(self) -> tuple[str, ...]:
        """Their categories, without building the ops."""
        return tuple(map(self._host.category, self.indices))

    @overload
    def __getitem__(self, position: int) -> Op: ...
    @overload
    def __getitem__(self, position: slice) -> Ops: ...
    def __getitem__(self, position: int | slice) -> Op | Ops:
        if isinstance(position, slice):
            return Ops(self._host, self.indices[position])
        return self._host.op(self.indices[position])

    def __len__(self) -> int:
        return len(self.indices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ops) and self._host is other._host and self.indices == other.indices

    def __hash__(self) -> int:
        return hash((id(self._host), tuple(self.indices)))


def _walk(contents: Contents, op_rows: list[int], call_rows: list[int]) -> _Walk:
    positions = np.array([*op_rows, *call_rows], dtype=np.intp)
    starts_ns, durations_ns = contents.starts_ns[positions], contents.durations_ns[positions]
    order = np.lexsort((-durations_ns, starts_ns))
    rows = [contents.rows[position] for position in positions[order].tolist()]
    number = count()
    numbers: dict[object, dict[object, int]] = defaultdict(lambda: defaultdict(number.__next__))
    return _Walk(
        rows=rows,
        threads=[numbers[row.pid][row.tid] for row in rows],
        starts_ns=starts_ns[order].tolist(),
        ends_ns=(starts_ns + durations_ns)[order].tolist(),
        are_ops=(order < len(op_rows)).tolist(),
    )


@lru_cache(maxsize=4096)
def _thread(pid: object, tid: object) -> str:
    return f"{pid}:{tid}"


def _triton_config(args: OpArgs) -> str | None:
    if args.kernel_kwargs is None:
        return None
    sizes = args.kernel_kwargs.replace(",", " ")
    return " ".join(f"{sizes} warps={args.num_warps} stages={args.num_stages}".split())


@lru_cache(maxsize=65536)
def _dims(raw: bytes) -> tuple[tuple[int, ...], ...]:
    """Decode ``Input Dims``; a list of tensors, whose entry holds a shape each, is not one shape."""
    return tuple(
        tuple(argument) if all(isinstance(size, int) for size in argument) else ()
        for argument in msgspec.json.decode(raw, type=list[list[Any]])
    )


@lru_cache(maxsize=65536)
def _types(raw: bytes) -> tuple[str, ...]:
    return tuple(str(kind) for kind in msgspec.json.decode(raw, type=list[Any]))
