"""What readers of tables share: numbers in text, a row of a cell without a figure, how many ranks there were."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isfinite

from collbench.errors import UsageError
from collbench.results.peers.peer import Given, PeerRun
from collbench.results.peers.rows import Kind, agreed
from collbench.results.record import Row

MOST_RANKS = 2_000_000
_LONGEST_DIGITS = 18
# mpirun --tag-output, srun -l and pdsh: who printed the line stands before it.
_PREFIX = re.compile(r"(?:\[\d{1,7}(?:,\d{1,7})?\](?:<std(?:out|err)>)?:? ?|\d{1,7}: ?|[A-Za-z][\w.-]{0,79}: ?(?=\s*[#\d]))")


def unprefixed(lines: Iterable[str]) -> list[str]:
    """The lines without what a launcher put before each: "[1,0]<stdout>:", "0: ", "node01: "."""
    return [line[found.end() :] if line[:1] not in "# " and (found := _PREFIX.match(line)) else line for line in lines]


def missing(given: Given) -> list[str]:
    """What none of these tools tells, and the user has not said either."""
    nodes = [] if given.nodes else ["no number of nodes (--nodes N says it)"]
    return ["no interval", "no samples", "no per-rank data", "no names of hosts", *nodes]


def some(runs: Sequence[PeerRun], tool: str) -> list[PeerRun]:
    """The runs that have rows, or lines that could not be read. Raises UsageError where none has."""
    found = [run for run in runs if run.rows or run.doubts]
    if not found:
        raise UsageError(f"no line in it is a figure of {tool}: give the output from its title on, with the lines of figures")
    return found


def number(text: str) -> float | None:
    """The finite number from 0 on that `text` is; None: it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def whole(text: str) -> int | None:
    """The whole number from 0 on that `text` is, below 10**18; None: it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_DIGITS else None


def ranks_of(given: Given, told: int | None, where: str) -> int:
    """How many ranks took part, by the output (None: it does not say) or the user.

    Raises UsageError where neither says, where they contradict each other, and for a number that no machine has.
    """
    ranks = agreed("ranks", given.ranks, told, where)
    if not 1 <= ranks <= MOST_RANKS:
        raise UsageError(f"{where}: {ranks} ranks cannot be; check --ranks and the file")
    return ranks


def without_figures(kind: Kind, size_bytes: int, count: int, line: int, why: str) -> Row:
    """The row of a cell for which the output shows no usable figure."""
    row = kind.row(size_bytes, 1.0, count=count, line=line)
    return replace(row, na=why, time_s=None, algbw_bytes_per_s=None, busbw_bytes_per_s=None)
