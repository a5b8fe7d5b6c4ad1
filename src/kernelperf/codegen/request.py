"""What a check's process is asked, and what it answers."""

from __future__ import annotations

from typing import Any

import msgspec

from kernelperf.codegen.records import CodegenRecord


class Request(msgspec.Struct, frozen=True):
    """Generate the code of one step."""

    module: str  # dotted, or a path that ends in .py
    name: str
    params: dict[str, Any]
    arch: str
    sys_path: list[str]


class Refusal(msgspec.Struct, tag=True, frozen=True):
    """Why there is no record.  ``kind``: undeterminable, unusable, failed."""

    kind: str
    message: str  # one line
    detail: str = ""  # traceback


Reply = CodegenRecord | Refusal
