"""The lines of a file that another tool's output went into: what terminals and shells made of them."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator

from collbench.errors import UsageError

_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,40}[A-Za-z]")
_PACKED = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"\xfd7zXZ": "unxz", b"BZh": "bunzip2", b"PK\x03\x04": "unzip"}
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # PowerShell's > writes it
_ENDS = (b"\n", b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xa9")  # of str.splitlines
_LONGEST_LINE = 16 << 20  # bytes, of which each may take four in memory
_MOST_LINES = 1 << 22  # an empty one takes a byte, and 8 of memory before anybody has read it


def lines_of(data: bytes) -> list[str]:
    """The lines without their ends, without colours; UTF-16 by its mark, else UTF-8. Raises UsageError for what is packed, or too long."""
    tool = next((tool for start, tool in _PACKED.items() if data.startswith(start)), None)
    if tool:
        raise UsageError(f"it is compressed: unpack it first ({tool})")
    if len(data) > _MOST_LINES and sum(map(data.count, _ENDS)) > _MOST_LINES:
        raise UsageError(f"it has more than {_MOST_LINES:,} lines: cut out the part with the tables")
    lines = _lines(data)
    return [_COLOURS.sub("", line) for line in lines] if b"\x1b" in data else list(lines)


def _lines(data: bytes) -> Iterator[str]:
    """One after another: a text of its own would take as much memory as all of them once more, or four times as much."""
    if data.startswith(_WIDE):
        yield from data.decode("utf-16", errors="replace").splitlines()
        return
    for number, piece in enumerate(io.BytesIO(data.removeprefix(codecs.BOM_UTF8)), 1):
        if len(piece) > _LONGEST_LINE:
            raise UsageError(
                f"line {number} has more than {_LONGEST_LINE >> 20} MiB, which no tool prints: cut out the part with the tables"
            )
        yield from piece.decode(errors="replace").splitlines()
