"""The bytes of a file that should hold a trace → JSON text, or the reason it can't be."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from kernelperf.errors import UnusableInput

RECORD_AGAIN = "export it again with torch.profiler's export_chrome_trace"

_GZIP = b"\x1f\x8b"
# What a file starts with when it isn't a trace, and what to do then.
_FOREIGN_STARTS = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer, not the file itself",
        "run `git lfs pull`",
    ),
    (b"<<<<<<< ", "a file with merge markers", "resolve the merge and take one side's file"),
    (b"PK\x03\x04", "a zip archive (torch.save writes such)", "unpack the trace, or " + RECORD_AGAIN),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed", "unpack it with `zstd -d`"),
    (b"SQLite format 3", "an Nsight Systems SQLite export", "record with torch.profiler instead"),
    (b"\xff\xfe", "UTF-16 text", "save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "save it as UTF-8"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_STRING_OR_NUMBER = re.compile(
    rb'"(?>[^"\\]|\\.)*+"|(?<=[:\[,\s])[-+]?(?:inf(?:inity)?|nan)(?=\s*[,}\]])', re.DOTALL | re.IGNORECASE
)
_BAD_IN_STRING = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\|[\x00-\x1f]')


def read_text(path: Path) -> bytes:
    """Return the JSON text in a file, unpacked if it holds gzip, whatever its name.

    Raises `UnusableInput`, with the place and the remedy, for anything that can't be a trace.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise UnusableInput(f"{path}: no such file; expected a chrome trace") from error
    except OSError as error:
        raise UnusableInput(f"{path}: can't be read ({error.strerror}); expected a chrome trace") from error
    if data.startswith(_GZIP):
        data = _unpack(path, data)
    data = data.removeprefix(_BYTE_ORDER_MARK)
    _refuse_foreign(path, data)
    return data


def repair(text: bytes) -> bytes:
    """Return JSON text with the harmless faults of real profilers mended.

    Bare ``inf``, ``Infinity`` and ``NaN`` become null (kineto writes them for occupancy and bandwidth); raw
    control characters in a string become spaces; backslashes that escape nothing are doubled; bytes that
    aren't UTF-8 are replaced.
    """
    return _STRING_OR_NUMBER.sub(_mend, text.decode("utf-8", "replace").encode())


def _mend(token: re.Match[bytes]) -> bytes:
    text = token.group()
    return _BAD_IN_STRING.sub(_mend_in_string, text) if text.startswith(b'"') else b"null"


def _mend_in_string(found: re.Match[bytes]) -> bytes:
    text = found.group()
    if text == b"\\":
        return b"\\\\"
    return text if text.startswith(b"\\") else b" "


def _unpack(path: Path, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except EOFError as error:
        raise UnusableInput(
            f"{path}: its gzip data ends early, at byte {len(data)}; the file is truncated: copy it again or "
            f"{RECORD_AGAIN}"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UnusableInput(f"{path}: its gzip data is corrupt ({error}); {RECORD_AGAIN}") from error


def _refuse_foreign(path: Path, data: bytes) -> None:
    if not data.strip():
        raise UnusableInput(f"{path}: is empty ({len(data)} bytes); expected a chrome trace: {RECORD_AGAIN}")
    for start, what, remedy in _FOREIGN_STARTS:
        if data.startswith(start):
            raise UnusableInput(f"{path}: is {what}; expected a chrome trace: {remedy}")
    if _PICKLE.match(data):
        raise UnusableInput(
            f"{path}: is a pickle, which is not opened; expected a chrome trace: {RECORD_AGAIN}"
        )
    if data.lstrip()[:1] not in b"{[":
        found = data.lstrip()[:20]
        raise UnusableInput(f"{path}: starts with {found!r} at byte 0, not JSON; {RECORD_AGAIN}")
