"""The bytes of a file that should hold a trace → JSON text, or the reason it can't be."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from kernelperf.errors import UnusableInput
from kernelperf.trace.foreign import RECORD_AGAIN, start_of

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# All that is sound from some place on: tokens outside strings that can't begin a bare inf or NaN, null, and
# strings without raw control characters or backslashes that escape nothing.
_ESCAPE = rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_SOUND = re.compile(rb'(?>[^"iInN]++|null|"(?>[^"\\\x00-\x1f]++|' + _ESCAPE + rb')*+")*+')
_STRING = re.compile(rb'"(?>[^"\\]|\\.)*+"', re.DOTALL)
_BARE_NUMBER = re.compile(rb"(?:inf(?:inity)?|nan)(?=\s*[,}\]])", re.IGNORECASE)
_BAD_IN_STRING = re.compile(_ESCAPE + rb"|\\|[\x00-\x1f]")


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
    for _ in range(2):  # some tools gzip what is gzip already
        data = _unpack(path, data) if data.startswith(_GZIP) else data
    data = data.removeprefix(_BYTE_ORDER_MARK)
    _refuse_foreign(path, data)
    return data


def repair(text: bytes) -> bytes:
    """Return JSON text with the harmless faults of real profilers mended.

    Bare ``inf``, ``Infinity`` and ``NaN`` become null (kineto writes them for occupancy and bandwidth); raw
    control characters in a string become spaces; backslashes that escape nothing are doubled; bytes that
    aren't UTF-8 are replaced.
    """
    text = text.decode("utf-8", "replace").encode()
    pieces, place = [], 0
    while place < len(text):
        end = _SOUND.match(text, place).end()  # type: ignore[union-attr]  # it matches the empty string, too
        pieces.append(text[place:end])
        place = end
        if string := _STRING.match(text, place):
            pieces.append(_BAD_IN_STRING.sub(_mend_in_string, string.group()))
            place = string.end()
        elif number := _BARE_NUMBER.match(text, place):
            pieces[-1] = pieces[-1].rstrip(b"+-")
            pieces.append(b"null")
            place = number.end()
        elif text.startswith(b'"', place):  # never closed: the file ends early
            pieces.append(text[place:])
            break
        else:  # no fault of these kinds: left for the decoder to name
            pieces.append(text[place : place + 1])
            place += 1
    return b"".join(pieces)


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
    if foreign := start_of(data):
        what, remedy = foreign
        raise UnusableInput(f"{path}: is {what}; expected a chrome trace: {remedy}")
    if data.lstrip()[:1] not in b"{[":
        found = data.lstrip()[:20]
        raise UnusableInput(f"{path}: starts with {found!r} at byte 0, not JSON; {RECORD_AGAIN}")
