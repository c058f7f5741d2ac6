"""Helpers that all readers share: numbers, PCI addresses, names and XML from untrusted sources."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from collbench.errors import UsageError
from collbench.untrusted import parse_json

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from collbench.machine.model import Machine


# Sets of CPUs and NUMA nodes as the kernel, hwloc and NCCL print them: lists ("0-3,8") and masks in words of 32 bits ("00000000,0000ff01").

_MOST = 1 << 16
_RANGE = re.compile(r"^(\d{1,6})(?:-(\d{1,6}))?$")
_WORD = re.compile(r"(?:0x)?[0-9a-fA-F]{1,8}|")
_LONGEST_WORD = 11  # with 0x and a comma


def cpu_list(text: str | None) -> frozenset[int]:
    """Return the numbers in "0-3,8"; empty for other text and for impossible numbers."""
    numbers: set[int] = set()
    for part in (text or "").strip().split(","):
        match = _RANGE.match(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first or last >= _MOST:
            return frozenset()
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def cpu_mask(text: str | None) -> frozenset[int] | None:
    """Return the numbers in "00000000,0000ff01" (the kernel, NCCL) and "0x1,,0x00ff00ff" (hwloc), last word first; None for other text."""
    stripped = (text or "").strip()
    if not stripped or len(stripped) > _MOST // 32 * _LONGEST_WORD:
        return None
    words = stripped.split(",")
    if len(words) * 32 > _MOST or not all(_WORD.fullmatch(word.strip()) for word in words):
        return None
    value = int("".join(word.strip().removeprefix("0x").zfill(8) for word in words), 16)
    return frozenset(place for place, bit in enumerate(reversed(f"{value:b}")) if bit == "1")


def written(numbers: Iterable[int]) -> str:
    """Return numbers in the kernel's list format: "0-3,8"; "" for none."""
    counter = count()
    runs = [list(run) for _, run in groupby(sorted(numbers), key=lambda number: number - next(counter))]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


# What a reader finds besides facts. Doubts are limited to a readable number.

_MOST_DOUBTS = 8


@dataclass
class Notes:
    """Why facts are unknown, by fact path, and doubts about values; see `Machine`."""

    unknown: dict[str, str] = field(default_factory=dict)
    _parts: dict[str, list[str]] = field(default_factory=dict)  # by doubt

    def doubt(self, why: str, part: str = "") -> None:
        """Add a doubt about a value; doubts about several parts for one reason become one sentence."""
        parts = self._parts.setdefault(why, [])
        if part:
            parts.append(part)

    @property
    def doubts(self) -> list[str]:
        """One sentence per reason, with the parts that it applies to."""
        return [f"{several(parts)}: {why}" if parts else why for why, parts in self._parts.items()]


def few(doubts: Sequence[str]) -> tuple[str, ...]:
    """Return the first doubts of one kind, and the number of others: a damaged file of a big machine gives thousands."""
    more = len(doubts) - _MOST_DOUBTS
    if more <= 0:
        return tuple(doubts)
    return (*doubts[:_MOST_DOUBTS], f"{more} more doubts of this kind: the source is damaged, or not of one machine")


def several(parts: Sequence[str], most: int = 4) -> str:
    """Return parts that share a doubt, shortened for users: "a, b, c, d and 12 more"."""
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more


HEAD = 64 << 10  # characters at the start of a text from which a reader detects its kind
MOST_BYTES = 64 << 20  # of one text; the largest known one has 3 MB
_ADDRESS = re.compile(r"^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2,4}):([0-9a-f]{2})(?:\.([0-9a-f]{1,2}))?$", re.IGNORECASE)
_SPEED = re.compile(r"(?<![\d.-])(\d{1,4}(?:\.\d{1,3})?)\s*GT/s", re.IGNORECASE)
_NOT_PRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_KNOWN_GT = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class Unreadable(UsageError):
    """A source cannot be read: the message has the file, the place and the remedy."""


class Reader(msgspec.Struct, frozen=True):
    """The converter of one kind of text to a machine.

    kind        the name of the kind in messages: "ibstat"
    recognizes  (start of a text) -> true if the text is of this kind
    read        (text, file name) -> the machine. Raises Unreadable
    lists       the lists of a machine that the text describes completely, so that an empty one means none
    starts      (line) -> true if the line begins the output of this tool; None for files that are not concatenated with others
    """

    kind: str
    recognizes: Callable[[str], object]
    read: Callable[[str, str], Machine]
    lists: frozenset[str] = frozenset()
    starts: Callable[[str], object] | None = None

    def looks_like(self, text: str) -> bool:
        """Return whether the text is of this kind, by its beginning."""
        return bool(self.recognizes(text[:HEAD]))


def pci_address(text: str) -> str | None:
    """Return a PCI address in full form, lower case: "0000:19:00.0" for "19:00.0", "00000000:19:00.0"; None for other text."""
    match = _ADDRESS.match(text.strip())
    if not match:
        return None
    domain = (match[1] or "0000").lower()
    if not domain[:-4].strip("0"):
        domain = domain[-4:]
    return f"{domain}:{match[2].lower()}:{match[3].lower()}.{(match[4] or '0').lower().lstrip('0') or '0'}"


def gigatransfers(text: str) -> float | None:
    """Return the GT/s per lane in "16.0 GT/s PCIe", "32GT/s", "32 GT/s PCIe/s"; None for "", "Unknown" and rates that are not PCIe's."""
    match = _SPEED.search(text)
    value = float(match[1]) if match else None
    return value if value in _KNOWN_GT else None


def lanes(text: str) -> int | None:
    """Return the number of lanes in "16", "x16"; None for "", "0", "63", "255" and other invalid widths."""
    digits = text.strip().lower().removeprefix("x")
    return int(digits) if digits in {"1", "2", "4", "8", "12", "16", "32"} else None


def whole(text: str | None, low: int = 0, high: int = 1 << 62) -> int | None:
    """Return an integer, decimal or 0x…, within bounds; None for anything else."""
    stripped = (text or "").strip()
    if not stripped or len(stripped) > 40:
        return None
    try:
        value = int(stripped, 0) if stripped.lower().startswith(("0x", "-0x")) else int(stripped)
    except ValueError:
        return None
    return value if low <= value <= high else None


def numa_of(text: str | None) -> int | None:
    """Return a NUMA node's number; None for "-1", "" and "N/A", which mean unknown."""
    return whole(text, 0, 4095)


def printable(text: str, most: int = 200) -> str:
    """Return the text without control characters and direction marks, cut to `most` characters."""
    return _NOT_PRINTABLE.sub("?", text)[:most].strip()


def bounded(text: str, name: str, most: int, what: str, again: str) -> str:
    """Return the text. Raises Unreadable for more than `most` characters. `what`: the content, for the message; `again`: the remedy."""
    if len(text) > most:
        raise Unreadable(f"{printable(name)} has {len(text) >> 20} Mi characters, more than {what}: {again}")
    return text


def decoded(data: bytes, name: str) -> str:
    """Return the text of a file's bytes. Raises Unreadable when it is empty, too large or binary."""
    if not data.strip():
        raise Unreadable(f"{printable(name)} is empty: save the tool's output into it again")
    if len(data) > MOST_BYTES:
        raise Unreadable(f"{printable(name)} has {len(data) >> 20} MiB, the most is {MOST_BYTES >> 20}: give the output for one machine")
    if b"\x00" in data[:HEAD]:
        raise Unreadable(f"{printable(name)} is binary, not a text collbench knows: see `collbench probe --help` for what can be read")
    return data.decode("utf-8", errors="replace")


def json_of(text: str, problem: str) -> Any:
    """Return the values in JSON. Raises Unreadable with `problem` for invalid JSON."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        raise Unreadable(problem) from None


# XML from untrusted sources: entities, depth, number of elements and length of a tag are bounded.

LONGEST_TAG = 1 << 20  # characters of names and values


class FileLimits(msgspec.Struct, frozen=True):
    """The limits of files of one kind.

    what        the content, for the error: "a machine's topology"
    again       the remedy in every message
    doctype     whether files of this kind begin with a DOCTYPE; entities are rejected in any case
    """

    what: str
    again: str
    characters: int
    depth: int
    elements: int
    doctype: bool = False


def top_element(text: str, name: str, limits: FileLimits) -> Element:
    """Return the top element. Raises Unreadable for broken and hostile XML, and beyond the limits."""
    from defusedxml.ElementTree import XMLParser

    shown_name = printable(name)
    bounded(text, shown_name, limits.characters, limits.what, limits.again)
    # Parsed as a whole: in blocks, the parser would restart an unfinished token with every block, in quadratic time.
    parser = XMLParser(target=_Tree(shown_name, limits), forbid_dtd=not limits.doctype)
    try:
        parser.feed(text.lstrip("\ufeff \t\r\n"))
        top: Element | None = parser.close()
    except (SyntaxError, ValueError, LookupError, AssertionError) as why:
        reason = printable(str(why) or type(why).__name__, 120)
        raise Unreadable(f"{shown_name} is broken XML ({reason}): {limits.again}") from None
    if top is None:
        raise Unreadable(f"{shown_name} holds no XML: {limits.again}")
    return top


def nested(top: Element, tags: Container[str]) -> Iterator[tuple[Element, Element | None]]:
    """Yield each element with one of these tags and the one that contains it (None: `top`), outer ones first, in the file's order.

    Elements with other tags are skipped with their content.
    """
    waiting: list[tuple[Element, Element | None]] = [(child, None) for child in reversed(top) if child.tag in tags]
    while waiting:
        element, inside = waiting.pop()
        yield element, inside
        waiting += [(child, element) for child in reversed(element) if child.tag in tags]


class _Tree:
    """Builds the elements, as the parser calls it, within the limits."""

    def __init__(self, name: str, limits: FileLimits) -> None:
        from xml.etree.ElementTree import TreeBuilder

        self._builder = TreeBuilder()
        self._name = name
        self._limits = limits
        self._depth = 0
        self._count = 0
        self.data = self._builder.data
        self.close = self._builder.close

    def start(self, tag: str, attributes: dict[str, str]) -> Any:
        """Begin an element."""
        self._depth += 1
        self._count += 1
        if self._depth > self._limits.depth or self._count > self._limits.elements:
            self._refuse("nests deeper or has more elements than a machine does")
        if sum(map(len, (tag, *attributes, *attributes.values()))) > LONGEST_TAG:
            self._refuse(f"has a tag longer than {LONGEST_TAG >> 20} Mi characters, which no machine has")
        return self._builder.start(tag, attributes)

    def end(self, tag: str) -> Any:
        """End an element."""
        self._depth -= 1
        return self._builder.end(tag)

    def _refuse(self, why: str) -> NoReturn:
        raise Unreadable(f"{self._name} {why}: {self._limits.again}")
