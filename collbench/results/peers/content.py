"""The lines of a file that another tool's output went into: what terminals and shells made of them."""

from __future__ import annotations

import codecs
import re

from collbench.errors import UsageError

_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,40}[A-Za-z]")
_PACKED = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"\xfd7zXZ": "unxz", b"BZh": "bunzip2", b"PK\x03\x04": "unzip"}
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # PowerShell's > writes it


def lines_of(data: bytes) -> list[str]:
    """The lines without their ends, without colours; UTF-16 by its mark, else UTF-8. Raises UsageError for what is packed."""
    tool = next((tool for start, tool in _PACKED.items() if data.startswith(start)), None)
    if tool:
        raise UsageError(f"it is compressed: unpack it first ({tool})")
    text = data.decode("utf-16" if data.startswith(_WIDE) else "utf-8-sig", errors="replace")
    return (_COLOURS.sub("", text) if "\x1b" in text else text).splitlines()
