"""Reads nccl-tests' and rccl-tests' text: tables of any version, with or without their head, among the lines of mpirun, srun and NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from collbench.errors import UsageError
from collbench.results.importers.log_context import Contexts
from collbench.results.importers.nccl_lines import Head, Line, parse_line, rccl_version, split_line
from collbench.results.importers.nccl_table import Block, runs_of
from collbench.results.importers.peer import Given, Reader, Reading, read_tables

_OPENS = re.compile(r"#\s*(?:[nr]ccl-tests version|Collective test starting|nThread\s)")
_HEADER = re.compile(r"#\s+(?:size\s+count|bytes\s+N)\s+(?:\(elements\)\s+)?type\s.*algbw\s+busbw")
_OURS = "# collbench version"
_RCCL = "rccl-tests: Version"


@dataclass
class _Stream:
    """What one writer prints: the finished blocks, and the one that is being read."""

    version: str | None = None
    blocks: list[tuple[Head, list[Line]]] = field(default_factory=list)
    head: Head = field(default_factory=Head)
    lines: list[Line] = field(default_factory=list)
    ended: bool = False

    def line(self, number: int, text: str) -> None:
        """Takes any other line; only those of a table count."""
        if self.ended:
            self.close()
        row = parse_line(number, text, self.head.wide)
        if row is not None:
            self.lines.append(row)

    def comment(self, text: str) -> None:
        """Takes a line that begins with #."""
        if self.lines and (_OPENS.match(text) or _HEADER.match(text) or text.startswith("# Using devices")):
            self.close()
        self.head.take(text)
        self.ended = self.ended or "Avg bus bandwidth" in text
        if "Collective test concluded" in text:
            self.close()

    def close(self) -> None:
        """Ends the table."""
        if self.lines:
            if self.version:  # rccl-tests prints it outside of its comments
                self.head.tool, self.head.version = "rccl-tests", self.head.version or self.version
            self.blocks.append((self.head, self.lines))
        self.head, self.lines, self.version, self.ended = Head(), [], None, False


def knows(lines: Sequence[str]) -> bool:
    """Whether it has nccl-tests' header, or a line of its table."""
    found = (split_line(line) for line in lines)
    return any(
        _OPENS.match(text) or _HEADER.match(text) if text[:1] == "#" else parse_line(0, text, wide=False) for _, text in filter(None, found)
    )


def read(lines: Sequence[str], given: Given) -> Reading:
    """One run per table; where a table's cases come again, each time is a run. Raises UsageError."""
    reading = read_tables(_blocks(lines), lambda block: runs_of(block, given), lambda block: block.lines[0].number)
    if not reading.runs:
        raise UsageError("it has no line of nccl-tests' table with a size and a time: name the file with the program's whole output")
    return reading


def _blocks(lines: Sequence[str]) -> Iterator[Block]:
    """The tables of all writers."""
    streams: dict[str, _Stream] = {}
    for number, line in enumerate(lines, 1):
        found = None if _RCCL in line else split_line(line)
        if found is None:
            if _RCCL in line and (told := rccl_version(line)):
                streams.setdefault(told[0], _Stream()).version = told[1]
            continue
        stream = streams.setdefault(found[0], _Stream())
        if found[1][:1] == "#":
            _refuse_ours(found[1], number)
            stream.comment(found[1])
        else:
            stream.line(number, found[1])
    contexts = Contexts(lines)
    for stream in streams.values():
        stream.close()
        for head, table in stream.blocks:
            yield Block(head, table, contexts.at(table[-1].number))


def _refuse_ours(text: str, number: int) -> None:
    if text.startswith(_OURS):
        raise UsageError(f"line {number} was written by collbench itself, which keeps more in its run folder: use `collbench report`")


NCCL_TESTS = Reader("nccl-tests", "nccl-tests and rccl-tests, text", knows, read)
