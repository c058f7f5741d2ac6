"""nccl-tests' and rccl-tests' text: tables of any version, with or without their head, among the lines of mpirun, srun and NCCL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from collbench.errors import UsageError
from collbench.results.peers.nccl_lines import Head, Line, parse_line, rccl_version, without_prefix
from collbench.results.peers.nccl_table import Block, runs_of
from collbench.results.peers.peer import Given, PeerRun, Reader

_COMMAND = re.compile(r"(?:^|[\s/])([a-z_]{3,20}_perf)(?=\s|$)")
_OPENS = re.compile(r"#\s*(?:[nr]ccl-tests version|Collective test starting|nThread\s)")
_HEADER = re.compile(r"#\s+size\s+count\s+type\s.*algbw\s+busbw")
_OURS = "# collbench version"
_RCCL = "rccl-tests: Version"


@dataclass
class _Stream:
    """What one writer prints: the blocks that are done, and the one that is being read."""

    program: str | None = None
    version: str | None = None
    blocks: list[Block] = field(default_factory=list)
    head: Head = field(default_factory=Head)
    lines: list[Line] = field(default_factory=list)
    ended: bool = False

    def line(self, number: int, text: str) -> None:
        """Any other line; only those of a table count."""
        if self.ended:
            self.close()
        row = parse_line(number, text, self.head.wide)
        if row is not None:
            self.lines.append(row)

    def comment(self, text: str) -> None:
        """A line that begins with #."""
        if self.lines and (_OPENS.match(text) or _HEADER.match(text) or text.startswith("# Using devices")):
            self.close()
        self.head.take(text)
        self.ended = self.ended or "Avg bus bandwidth" in text
        if "Collective test concluded" in text:
            self.close()

    def close(self) -> None:
        """The table is at its end."""
        if self.lines:
            self.blocks.append(Block(self._completed(), self.lines))
        self.head, self.lines, self.version, self.ended = Head(), [], None, False

    def _completed(self) -> Head:
        """What stood outside of comments goes where the head is silent."""
        if self.version:
            self.head.tool, self.head.version = "rccl-tests", self.head.version or self.version
        if self.program and self.head.program is None:
            self.head.program = self.program
        return self.head


def knows(lines: Sequence[str]) -> bool:
    """Whether it has nccl-tests' header, or a line of its table."""
    found = (without_prefix(line) for line in lines)
    return any(
        _OPENS.match(text) or _HEADER.match(text) if text[:1] == "#" else parse_line(0, text, wide=False) for _, text in filter(None, found)
    )


def read(lines: Sequence[str], given: Given) -> list[PeerRun]:
    """One run per table; where a table's cells come again, each time is a run. Raises UsageError."""
    streams: dict[str, _Stream] = {}
    program: str | None = None
    for number, line in enumerate(lines, 1):
        found = None if _RCCL in line else without_prefix(line)
        if found is None:
            program = _learnt(line, streams, program)
            continue
        stream = streams.setdefault(found[0], _Stream(program))
        if found[1][:1] == "#":
            _refuse_ours(found[1], number)
            stream.program = program
            stream.comment(found[1])
        else:
            stream.line(number, found[1])
    for stream in streams.values():
        stream.close()
    runs = [run for stream in streams.values() for block in stream.blocks for run in runs_of(block, given)]
    if not runs:
        raise UsageError("it has no line of nccl-tests' table with a size and a time: name the file with the program's whole output")
    return runs


def _learnt(line: str, streams: dict[str, _Stream], program: str | None) -> str | None:
    """What other lines say: the program that is started, rccl-tests' version."""
    if "_perf" in line and "NCCL " not in line and (found := _COMMAND.search(line)):
        return found[1]
    if _RCCL in line and (told := rccl_version(line)):
        streams.setdefault(told[0], _Stream(program)).version = told[1]
    return program


def _refuse_ours(text: str, number: int) -> None:
    if text.startswith(_OURS):
        raise UsageError(
            f"line {number} was written by collbench itself, which keeps more in its run folder: name that for `collbench report`"
        )


NCCL_TESTS = Reader("nccl-tests", knows, read)
