"""The tables in what the OSU Micro-Benchmarks print: the lines of figures, under which titles, and what the heads say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collbench.results.importers.osu_tests import Test, test_of
from collbench.results.importers.rows import short

_TITLE = re.compile(
    r"^#?\s*OSU (?:One Sided )?(?P<library>[A-Za-z_+]{1,24})(?:-(?P<memory>CUDA MANAGED|CUDA|ROCM|OPENACC|MANAGED|CXL))?"
    r"\s*(?P<title>[^\n]{0,100}?)\s*Test(?: v(?P<version>[\w.]{1,16}))?\s*$",
    re.IGNORECASE,
)
_COLUMN = re.compile(
    r"P\d{1,2} Tail (?:BW ?\(MB/s\)|Lat ?\(us\))|(?:Avg |Min |Max )?Latency ?\(us\)|Bandwidth ?\(MB/s\)|Overall ?\(us\)|Compute ?\(us\)"
    r"|Coll\. Init ?\(us\)|MPI_Test ?\(us\)|MPI_Wait ?\(us\)|(?:Pure|Min|Max) Comm\. ?\(us\)|Overlap ?\(%\)|MB/s|Messages/s|Iterations"
    r"|Validation|Transmit Size|Size"
)
_WINDOWS = re.compile(r"^#(?:\s+\d{1,9})+\s*$")
_PAIRS = re.compile(r"^#\s*\[ pairs: (\d{1,9}) \]\s*\[ window size: (\w{1,9}) \]")
_DATATYPE = re.compile(r"^#\s*Datatype: (\w{1,40})")
_MEMORY = re.compile(r"^# (?:Send Buffer|Rank 0 Memory) on (\w{1,40}).{0,200}? on (\w{1,40})")
_FACTS = re.compile(r"^# (Window creation|Synchronization): (.{1,60})")
_LONGEST_TITLE = 200  # the expression takes long on lines that nobody prints
_GRAPH = ("Dimensions size", "Time took to create topology graph")  # before the title
_MESSAGE_RATES = "# Message Rate Profile"


@dataclass
class Table:
    """Lines of figures under one line of column titles, and what was said before it.

    columns   titles, each without the blank before its unit; of -V the windows, as numbers
    lines     (number of the line in the file, its words)
    bad       numbers of lines of figures that do not have one word per column
    """

    test: Test
    library: str
    memory: str | None
    version: str | None
    number: int
    said: dict[str, Any]
    columns: list[str] = field(default_factory=list)
    lines: list[tuple[int, list[str]]] = field(default_factory=list)
    bad: list[int] = field(default_factory=list)

    @property
    def windows(self) -> bool:
        """Whether the columns are windows, with a rate in each."""
        return bool(self.columns) and self.columns[0].isdigit()


def is_title(line: str) -> bool:
    """Whether it is the title of an OSU test."""
    return _title(line) is not None


def tables_in(lines: Sequence[str]) -> Iterator[Table]:
    """All tables of the output; those of message rates, which say the same as the rates, are left out."""
    table: Table | None = None
    neighbours = False
    for number, line in enumerate(lines, start=1):
        if line[:1] == "#" or "OSU" in line:
            following = _heads(table, line, (number, neighbours))
            if table is not None and following is not table:
                yield table
            table, neighbours = following, neighbours and following is table
        elif line.startswith(_GRAPH):
            neighbours = True
        elif table is not None and table.columns:
            _figures(table, line, number)
        elif table is not None and _columns_in(line):  # osu_ibarrier with overlap has titles without #
            _learn(table, line)
    if table is not None:
        yield table


def _heads(table: Table | None, line: str, at: tuple[int, bool]) -> Table | None:
    """The table that a line of the head belongs to, a new one where it begins another; at: its number, whether ranks are neighbours."""
    if title := _title(line):
        return _titled(title, *at)
    if table is None:
        return None
    if (table.lines or table.bad) and not _DATATYPE.match(line) and not _columns_in(line) and not line.startswith(_MESSAGE_RATES):
        return table
    if table.lines or table.bad:
        table = replace(table, number=at[0], said=dict(table.said), columns=[], lines=[], bad=[])
    _learn(table, line)
    return table


def _title(line: str) -> re.Match[str] | None:
    return _TITLE.match(line) if "OSU" in line and len(line) <= _LONGEST_TITLE else None


def _titled(title: re.Match[str], number: int, neighbours: bool) -> Table:
    library, words = title["library"], title["title"]
    if library.upper().startswith("MPI_"):  # one-sided: "OSU MPI_Put Latency Test"
        library, words = "MPI", f"{library[4:]} {words}"
    return Table(test_of(words, neighbours), library.upper(), title["memory"], title["version"], number, {})


def _learn(table: Table, line: str) -> None:
    if line.startswith(_MESSAGE_RATES):
        table.said["skip"] = True
    elif found := _PAIRS.match(line):
        table.said |= {"pairs": int(found[1]), "window": int(found[2]) if found[2].isdecimal() else None}
    elif found := _DATATYPE.match(line):
        table.said["datatype"], table.said["skip"] = found[1], False
    elif found := _MEMORY.match(line):
        table.said["memory"] = [found[1], found[2]]
    elif found := _FACTS.match(line):
        table.said[found[1].lower()] = short(found[2].strip())
    elif columns := _columns_in(line):
        table.columns = [] if table.said.get("skip") else columns


def _columns_in(line: str) -> list[str]:
    if _WINDOWS.match(line):
        return line[1:].split()
    found = [title.replace(" (", "(") for title in _COLUMN.findall(line)]
    return found if any("(" in title or title == "MB/s" for title in found) else []


def _figures(table: Table, line: str, number: int) -> None:
    words = line.split()
    if not words or not words[0].replace(".", "", 1).isdigit():
        if line.startswith("DATA VALIDATION ERROR"):
            table.said["failed"] = f"line {number}: {short(line)}"
        return
    complete = len(words) == len(table.columns) + table.windows
    (table.lines.append((number, words)) if complete else table.bad.append(number))
