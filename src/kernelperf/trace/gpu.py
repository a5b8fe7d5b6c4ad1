"""The GPU's rows of a trace → kernels and transfers, joined to the calls that launched them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np

from kernelperf.trace import Kernel, RuntimeCall, Transfer
from kernelperf.trace.chrome import Contents, GpuArgs, decode_all_args, decode_raw
from kernelperf.trace.host import Host, Ops
from kernelperf.trace.roles import RoleRules, role_of

_NO_CORRELATION = -1


class Gpu:
    """Kernels and transfers, in launch order: by the time of their launch, or else of their own start."""

    def __init__(
        self, contents: Contents, rows: dict[str | None, list[int]], host: Host, rules: RoleRules
    ) -> None:
        self._contents = contents
        self._launches = host.launches
        self._rules = rules
        self.kernels: tuple[Kernel, ...] = _in_launch_order(
            [self._kernel(*each) for each in self._with_args(rows["kernel"])]
        )
        kinds: tuple[Literal["memset", "memcpy"], ...] = ("memset", "memcpy")
        self.transfers: tuple[Transfer, ...] = _in_launch_order(
            [self._transfer(kind, *each) for kind in kinds for each in self._with_args(rows[f"gpu_{kind}"])]
        )

    def _with_args(self, positions: list[int]) -> Iterator[tuple[Any, int, int, GpuArgs]]:
        """Return row, start, duration and args of each."""
        contents, columns = self._contents, np.array(positions, dtype=np.intp)
        rows = [contents.rows[position] for position in positions]
        return zip(
            rows,
            contents.starts_ns[columns].tolist(),
            contents.durations_ns[columns].tolist(),
            decode_all_args(rows, GpuArgs, contents.path),
            strict=True,
        )

    def _kernel(self, row: Any, start_ns: int, duration_ns: int, args: GpuArgs) -> Kernel:
        launch = self._launches.get(args.correlation) if args.correlation else None
        return Kernel(
            name=row.name,
            role=role_of(row.name, _op_names(launch), self._rules),
            start_ns=start_ns,
            duration_ns=duration_ns,
            device=_number(args.device if args.device is not None else row.pid),
            stream=_number(args.stream if args.stream is not None else row.tid),
            correlation=_NO_CORRELATION if args.correlation is None else args.correlation,
            grid=decode_raw(row, args.grid, _numbers, self._contents.path),
            block=decode_raw(row, args.block, _numbers, self._contents.path),
            registers=_whole(args.registers),
            shared_memory_bytes=_whole(args.shared_memory),
            launch=launch,
        )

    def _transfer(
        self, kind: Literal["memset", "memcpy"], row: Any, start_ns: int, duration_ns: int, args: GpuArgs
    ) -> Transfer:
        return Transfer(
            kind=kind,
            name=row.name,
            start_ns=start_ns,
            duration_ns=duration_ns,
            size_bytes=_whole(args.size_bytes),
            launch=self._launches.get(args.correlation) if args.correlation else None,
        )


def _in_launch_order(things: list[Any]) -> tuple[Any, ...]:
    def key(thing: Any) -> tuple[int, int]:
        return (thing.launch.start_ns if thing.launch else thing.start_ns, thing.start_ns)

    return tuple(sorted(things, key=key))


def _op_names(launch: RuntimeCall | None) -> tuple[str, ...]:
    ops = launch.ops if launch is not None else ()
    return ops.names if isinstance(ops, Ops) else ()


def _whole(number: float | None) -> int:
    """Return a number that is there and finite, else 0."""
    return int(number) if number is not None and math.isfinite(number) else 0


@lru_cache(maxsize=4096)
def _number(text: Any) -> int:
    """Return a stream or a device as a number; ROCm writes a stream's address, other text is no number."""
    try:
        return int(text, 0) if isinstance(text, str) else int(text or 0)
    except ValueError:
        return 0


@lru_cache(maxsize=65536)
def _numbers(raw: bytes) -> tuple[int, ...]:
    return msgspec.json.decode(raw, type=tuple[int, ...], strict=False)
