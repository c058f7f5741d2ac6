"""The tables of `nvidia-smi topo`, out of text that terminals, tickets and chats have bent: columns may be glued, never shifted.

A row's cells are words of a small known alphabet, so glued ones ("SYSSYS", "PXBSYS", "X SYS") come apart again without the white space.
Every row must have exactly as many as the header has columns, its X where it meets its own column; otherwise the table is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from collbench.machine.readers.text import Unreadable, bounded, printable

_MOST_COLUMNS, _MOST_CHARACTERS = 256, 2 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[[0-9]{1,2}m(?=\s*GPU|\s*$)")
_GPU = re.compile(r"GPU(\d{1,3})(?!\d)")
_COLUMN = re.compile(r"\s*(GPU\d{1,3}|NIC\d{1,3}|mlx\d_(?:bond_)?\d{1,3}|[A-Za-z][\w.:-]{0,63})")
_PATH = re.compile(r"\s*(NV\d{1,2}|SYS|SOC|NODE|PHB|PXB|PIX|PSB|X)")
_ACCESS = re.compile(r"\s*(CNS|GNS|TNS|NS|OK|DR|U|X)")
_AFFINITIES = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_LEGEND = re.compile(r"^\s*(NIC\d{1,3})\s*:\s*([\w.-]{1,64})\s*$")


@dataclass(frozen=True)
class Table:
    """One matrix: `rows` by name, a cell per column; `rest` is what stands after a row's cells; `affinities` the last headings."""

    places: Mapping[str, int]
    affinities: tuple[str, ...]
    rows: Mapping[str, tuple[str, ...]]
    rest: Mapping[str, str]
    is_access: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The names in the heading."""
        return tuple(self.places)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The columns that are GPUs."""
        return tuple(column for column in self.columns if _GPU.fullmatch(column))

    def cell(self, a: str, b: str) -> str | None:
        """What stands between two columns; the other half of the table when the row is missing."""
        row, other = self.rows.get(a), self.rows.get(b)
        if row:
            return row[self.places[b]]
        return other[self.places[a]] if other else None


@dataclass
class _Header:
    columns: tuple[str, ...]
    affinities: tuple[str, ...]
    rows: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        longest_first = sorted(self.columns, key=len, reverse=True)
        self.row = re.compile(rf"\s*({'|'.join(map(re.escape, longest_first))})(?!\d)(.*)")

    def take(self, line: str) -> None:
        """Keeps the line if it is a row: one of the columns' names, then a cell."""
        match = self.row.match(line)
        if match and _cell(match[2]):
            self.rows.append((match[1], match[2]))


def tables(text: str, name: str) -> list[Table]:
    """Every table of the text, in its order. Raises Unreadable for a row that does not fit its header."""
    bounded(text, name, _MOST_CHARACTERS, "a machine's matrices", "give one machine's output")
    headers: list[_Header] = []
    for line in _plain(text):
        columns = header(line)
        if columns:
            headers.append(_Header(columns, tuple(_AFFINITIES.findall(line))))
        elif headers:
            headers[-1].take(line)
    return [_table(found, name) for found in headers if found.rows]


def legend(text: str) -> dict[str, str]:
    """The names of NICs by the columns' names, out of the "NIC Legend"."""
    return {match[1]: match[2] for line in _plain(text) if (match := _LEGEND.match(line))}


def header(line: str) -> tuple[str, ...]:
    """The columns that a heading names; () when the line is no heading."""
    if not _GPU.match(line.strip()):
        return ()
    names = _AFFINITIES.split(line)[0]
    first = _GPU.match(names.strip())
    if not first or _cell(names.strip()[first.end() :]):
        return ()
    columns = tuple(_words(_COLUMN, names))
    return columns if len(set(columns)) == len(columns) <= _MOST_COLUMNS else ()


def _plain(text: str) -> Iterable[str]:
    return (_COLOUR.sub("", line).rstrip("\r") for line in text.splitlines() if len(line) < 1 << 14)


def _words(pattern: re.Pattern[str], text: str) -> Iterable[str]:
    at = 0
    while match := pattern.match(text, at):
        yield match[1]
        at = match.end()


def _cell(text: str) -> bool:
    """The text begins with a cell: what begins with a GPU's name is then a row."""
    match = _PATH.match(text) or _ACCESS.match(text)
    return bool(match) and not re.match(r"[a-z_]", text[match.end() : match.end() + 1] if match else "")


def _table(found: _Header, name: str) -> Table:
    told = any(_PATH.match(word) and word != "X" for _, text in found.rows for word in text.split())
    is_access = not told and not found.affinities and len(found.columns) > 1
    places = {column: place for place, column in enumerate(found.columns)}
    rows: dict[str, tuple[str, ...]] = {}
    rest: dict[str, str] = {}
    for row, text in found.rows:
        if row in rows:
            raise Unreadable(f"{printable(name)} has two rows {row} under one heading: give the output for one machine")
        rows[row], rest[row] = _cells(_ACCESS if is_access else _PATH, text, row, places, name)
    return Table(places, found.affinities, rows, rest, is_access)


def _cells(alphabet: re.Pattern[str], text: str, row: str, places: Mapping[str, int], name: str) -> tuple[tuple[str, ...], str]:
    """The row's cells and what stands after them. Raises Unreadable when there are too few, too many, or they are shifted."""
    cells: list[str] = []
    at = 0
    while match := alphabet.match(text, at):
        cells.append(match[1])
        at = match.end()
    if len(cells) != len(places) or [place for place, cell in enumerate(cells) if cell == "X"] != [places[row]]:
        raise Unreadable(
            f"{printable(name)}: row {row} does not fit the {len(places)} columns of its heading ({len(cells)} cells read), "
            "so its cells may be shifted: save the output of `nvidia-smi topo -m` into a file again"
        )
    return tuple(cells), text[at:]
