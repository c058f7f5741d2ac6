"""Words that a planned and a measured training step have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from collbench.units import format_time

_NUMBER = re.compile(r"\d+")


def headline(regime: str, model: str, parameters: int, words: Sequence[str]) -> str:
    """A training in one line: "data-parallel · bert-large, 340,000,000 parameters · float32 · 4 ranks · 2 nodes"."""
    counted = [f"{parameters:,} parameters"] if parameters else []  # unknown where it could not be laid out
    return " · ".join([regime, ", ".join([*filter(None, [model]), *counted]), *words])


def told(options: Mapping[str, str]) -> list[str]:
    """Options that have a value: "update sharded", "top-k 2"."""
    return [f"{name.replace('_', '-')} {value}" for name, value in options.items() if value]


def counted(count: int, what: str) -> str:
    """ "1 rank", "2 ranks"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def milliseconds(seconds: float) -> str:
    """To four significant digits, without exponent: "10934", "97.94", "0.2345"."""
    return format_time(seconds / 1000)


def nameless(what: str) -> str:
    """The name without its numbers: what neighbours share that are buckets of one model."""
    return _NUMBER.sub("#", what)


def span(first: str, last: str) -> str:
    """Both names in one: "bucket 1 of 14" and "bucket 13 of 14" are "bucket 1–13 of 14"; both, where they differ in more."""
    if nameless(first) != nameless(last):
        return f"{first} … {last}"
    ends = iter(_NUMBER.findall(last))

    def merged(match: re.Match[str]) -> str:
        end = next(ends)
        return match[0] if end == match[0] else f"{match[0]}–{end}"

    return _NUMBER.sub(merged, first)


def aligned(table: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """The cells in columns of equal width, those of `right` at their right edge."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.rjust(widths[at]) if at in right else cell.ljust(widths[at]) for at, cell in enumerate(cells)).rstrip()
        for cells in table
    ]
