"""What readers of tables share: numbers in text, a row of a case without a figure, what most tools do not print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from collbench.errors import UsageError
from collbench.results.importers.peer import Reading
from collbench.results.importers.rows import Kind
from collbench.results.row import Row

_LONGEST_DIGITS = 18


def missing(nodes: int | None, hosts: Sequence[str] = ()) -> list[str]:
    """What most of these tools do not print; nodes and hosts as far as they are known from elsewhere."""
    unnamed = [] if hosts else ["no names of hosts"]
    return ["no interval", "no samples", "no per-rank data", *unnamed, *([] if nodes else ["no number of nodes (use --nodes N)"])]


def some(reading: Reading, tool: str) -> Reading:
    """The reading without empty runs. Raises UsageError where no run has rows or lines that could not be read."""
    found = [run for run in reading.runs if run.rows or run.doubts]
    if not found:
        raise UsageError(f"no line in it is a figure of {tool}: use the output from its title on, with the lines of figures")
    return Reading(found, reading.skipped)


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


def without_figures(kind: Kind, size_bytes: int, count: int, line: int, why: str) -> Row:
    """The row of a cell for which the output shows no usable figure."""
    row = kind.row(size_bytes, 1.0, count=count, line=line)
    return replace(row, na=why, time_s=None, algbw_bytes_per_s=None, busbw_bytes_per_s=None)
