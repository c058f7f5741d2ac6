"""Reads what the Intel MPI Benchmarks print: IMB-MPI1 and IMB-NBC whole, of the others the times.

What a figure is (source of 2021.11): each rank's mean over the repetitions, t_min and t_max of the fastest and the slowest rank,
t_avg their mean. The row's time is t_max, from which IMB takes its own Mbytes/sec (10**6 bytes since version 2019; not taken here).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from collbench.errors import UsageError
from collbench.results.importers.figures import missing, some
from collbench.results.importers.imb_rows import Block, rows_of
from collbench.results.importers.log_context import Contexts, LogContext, start_facts, with_hosts
from collbench.results.importers.peer import Given, PeerRun, Reader, Reading, read_tables
from collbench.results.importers.prefixes import without_prefixes
from collbench.results.importers.rows import short

_VERSION = re.compile(r"^#\s{1,40}Intel ?\(R\) MPI Benchmark(?:s| Suite)? {1,4}(?:V(?:ersion)? ?)?([\w.]{1,20})", re.IGNORECASE)
_BENCHMARK = re.compile(r"^# Benchmarking (Multi-)?(\S{1,64})")
_PROCESSES = re.compile(r"^# #processes = (\d{1,9})")
_GROUPS = re.compile(r"^# \( ?(\d{1,9}) groups of (\d{1,9}) processes each")
_GROUP = re.compile(r"^# Group +\d+:((?: +\d{1,9})+)")
_CONTINUED = re.compile(r"^#((?: +\d{1,9})+)\s*$")
_FACT = re.compile(
    r"^# (Machine|System|Release|MPI Version|MPI_Datatype(?: for reductions)?|MPI_Op|Minimum message length in bytes)\s*:\s*(.*)$"
)
_PART = re.compile(r"\b(MPI-1|NBC|RMA|EXT|MPI-2|IO|MPI-4|MT|P2P) part", re.IGNORECASE)
_SEQUENCE = re.compile(r"^# (\S*IMB-\w+.*)$")
_TITLES = re.compile(r"#bytes|#repetitions|Group|(?:t|t_\w+)\[usec\]|Mbytes/sec|Msg/sec|overlap\[%\]|defects")


@dataclass
class _State:
    """What was read so far: the head of the file, and the block that is being read."""

    version: str | None = None
    part: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    block: Block | None = None


def knows(lines: Sequence[str]) -> bool:
    """Whether one of these lines is the head of an IMB output, or of one of its blocks with its number of processes."""
    lines = without_prefixes(lines)
    blocks = any(_BENCHMARK.match(line) for line in lines) and any(_PROCESSES.match(line) or _GROUPS.match(line) for line in lines)
    return blocks or any(_VERSION.match(line) for line in lines)


def read(lines: Sequence[str], given: Given) -> Reading:
    """One run per block. Raises UsageError where --ranks names a number that no block has."""
    state = _State()
    blocks = [block for block in _blocks(state, without_prefixes(lines)) if block.lines]
    if given.ranks is not None and blocks and given.ranks not in {block.ranks for block in blocks}:
        found = ", ".join(str(ranks) for ranks in sorted({block.ranks for block in blocks}))
        raise UsageError(f"IMB prints how many ranks ran ({found}), and --ranks {given.ranks} is not one of them: leave --ranks out")
    contexts = Contexts(lines)
    reading = read_tables(blocks, lambda block: [_run(state, block, given, contexts.at(block.number))], lambda block: block.number)
    return some(reading, "IMB")


IMB = Reader("imb", "Intel MPI Benchmarks", knows, read)


def _blocks(state: _State, lines: Sequence[str]) -> Iterator[Block]:
    for number, line in enumerate(lines, start=1):
        if line[:1] == "#":
            begun = _BENCHMARK.match(line)
            if begun:
                if state.block:
                    yield state.block
                state.block = Block(short(begun[2]), number)
            elif not (state.block and _head_of_block(state.block, line)):
                _head(state, line)
        elif state.block:
            _body(state.block, line, number)
    if state.block:
        yield state.block


def _head(state: _State, line: str) -> None:
    if found := _VERSION.match(line):
        part = _PART.search(line)
        state.version, state.part = found[1], part[1] if part else None
    elif found := _FACT.match(line):
        state.facts[found[1]] = short(found[2].strip())
    elif found := _SEQUENCE.match(line):
        state.facts["command"] = " ".join(short(word) for word in found[1].split()[:32])


def _head_of_block(block: Block, line: str) -> bool:
    """Takes what says how many ranks there are, and in which groups."""
    if found := _PROCESSES.match(line):
        block.ranks = block.group_size = int(found[1])
    elif found := _GROUPS.match(line):
        block.group_size = int(found[2])
        block.ranks = int(found[1]) * block.group_size
    elif found := _GROUP.match(line):
        block.groups.append([int(rank) for rank in found[1].split()])
    elif block.groups and not block.columns and (found := _CONTINUED.match(line)):
        block.groups[-1] += [int(rank) for rank in found[1].split()]
    else:
        return False
    return True


def _body(block: Block, line: str, number: int) -> None:
    words = line.split()
    if not words:
        return
    if not block.columns and words[0] in ("#bytes", "#repetitions", "Group"):
        block.columns = _TITLES.findall(line)
    elif block.columns and words[0].isdigit():
        block.lines.append((number, words))


def _run(state: _State, block: Block, given: Given, context: LogContext) -> PeerRun:
    hosts = with_hosts(context, block.ranks)
    nodes = given.nodes or len(set(hosts)) or None
    rows, statistic, bad = rows_of(block, nodes, {**state.facts, "version": state.version})
    doubts = [f"{len(bad)} lines of {block.name} could not be read and were left out, the first is line {bad[0]}"] if bad else []
    program = f"IMB-{(state.part or 'MPI1').replace('-1', '1')} {block.name}"
    facts = {**state.facts, **start_facts(context)}
    return PeerRun("imb", state.version, program, statistic, rows, hosts, facts, missing(nodes, hosts), doubts)
