"""Small readers that every source shares: numbers, PCI addresses and names out of text nobody vouches for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.machine.model import Machine

HEAD = 64 << 10  # characters at the start of a text by which a reader knows its kind
MOST_BYTES = 64 << 20  # of one text; the largest real one seen is 3 MB
_ADDRESS = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2,4}):([0-9a-f]{2})(?:\.([0-9a-f]{1,2}))?$", re.IGNORECASE)
_SPEED = re.compile(r"(?<![\d.-])(\d{1,4}(?:\.\d{1,3})?)\s*GT/s", re.IGNORECASE)
_NOT_PRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_KNOWN_GT = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Unreadable(UsageError):
    """A source that cannot be read: the sentence says which, where and what to do."""


@dataclass(frozen=True)
class Reader:
    """How the text of one kind becomes a machine.

    kind        what the text is called in sentences: "ibstat"
    looks_like  (text, file name) -> whether the text is of this kind, by its beginning
    read        (text, file name) -> the machine. Raises Unreadable
    lists       the lists of a machine that the text describes completely, so that an empty one means none
    starts      (line) -> whether the line begins the output of this tool; None for files that nobody pastes below others
    """

    kind: str
    looks_like: Callable[[str, str], bool]
    read: Callable[[str, str], Machine]
    lists: frozenset[str] = frozenset()
    starts: Callable[[str], bool] | None = None


def pci_address(text: str) -> str | None:
    """A PCI address in its full form, lower case: "0000:19:00.0" of "19:00.0", "00000000:19:00.0"; None for other text."""
    match = _ADDRESS.match(text.strip())
    if not match:
        return None
    domain = (match[1] or "0000").lower()
    domain = domain[-4:] if len(domain) > 4 and set(domain[:-4]) == {"0"} else domain
    return f"{domain}:{match[2].lower()}:{match[3].lower()}.{(match[4] or '0').lower().lstrip('0') or '0'}"


def gigatransfers(text: str) -> float | None:
    """GT/s per lane of "16.0 GT/s PCIe", "32GT/s", "32 GT/s PCIe/s"; None for "", "Unknown" and rates that PCIe does not have."""
    match = _SPEED.search(text)
    value = float(match[1]) if match else None
    return value if value in _KNOWN_GT else None


def lanes(text: str) -> int | None:
    """Lanes of "16", "x16"; None for "", "0", "63", "255" and other numbers that are no width."""
    digits = text.strip().lower().removeprefix("x")
    return int(digits) if digits in {"1", "2", "4", "8", "12", "16", "32"} else None


def whole(text: str | None, low: int = 0, high: int = 1 << 62) -> int | None:
    """A whole number, decimal or 0x…, within bounds; None for anything else."""
    stripped = (text or "").strip()
    if not stripped or len(stripped) > 40:
        return None
    try:
        value = int(stripped, 0) if stripped.lower().startswith(("0x", "-0x")) else int(stripped)
    except ValueError:
        return None
    return value if low <= value <= high else None


def numa_of(text: str | None) -> int | None:
    """A NUMA node's number; None for "-1", "" and "N/A", which mean that nobody knows."""
    return whole(text, 0, 4095)


def printable(text: str, most: int = 200) -> str:
    """A name without control characters or direction marks, cut to `most` characters."""
    return _NOT_PRINTABLE.sub("?", text)[:most].strip()


def bounded(text: str, name: str, most: int, what: str, again: str) -> str:
    """The text. Raises Unreadable for more than `most` characters, more than `what` ("a machine's topology") has; `again` is the remedy."""
    if len(text) > most:
        raise Unreadable(f"{printable(name)} has {len(text) >> 20} Mi characters, more than {what}: {again}")
    return text


def decoded(data: bytes, name: str) -> str:
    """Text of a file's bytes. Raises Unreadable when it is empty, huge or binary."""
    if not data.strip():
        raise Unreadable(f"{printable(name)} is empty: save the tool's output into it again")
    if len(data) > MOST_BYTES:
        raise Unreadable(f"{printable(name)} has {len(data) >> 20} MiB, the most is {MOST_BYTES >> 20}: give the output for one machine")
    if b"\x00" in data[:HEAD]:
        raise Unreadable(f"{printable(name)} is binary, not a text collbench knows: see `collbench probe --help` for what can be read")
    return data.decode("utf-8", errors="replace")
