"""The verdict as Markdown, for a pull request or the summary of a GitHub step: the result first, the worst 20 rows, the rest folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from collbench.gate.verdict import PASSED, REGRESSION, UNDECIDED, WRONG_DATA, FloorState, GroupState, Suspicion, Verdict
from collbench.report.columns import NOTHING
from collbench.report.headlines import short
from collbench.report.markdown_text import escaped, escaped_line, items, table
from collbench.report.words import (
    LONGEST_NAME,
    cleared,
    describe_outcomes,
    fallen,
    headline,
    judged,
    name_of,
    of,
    of_change,
    of_floor,
    of_group,
    open_ones,
    sentences,
    worst_groups,
)

LARGEST = 1_000_000  # bytes: GitHub drops a step's summary of more than 1,024 KiB
_MOST_ROWS, _MOST_REASONS, _MOST_CHANGES, _MOST_FOLDED = 20, 10, 10, 1000
_MARKS = {PASSED: "✅", REGRESSION: "❌", WRONG_DATA: "❌", UNDECIDED: "❔"}
_LEFT_OUT = "More would not fit here: `collbench gate --verdict FILE` shows what `--out FILE` wrote."


def markdown(verdict: Verdict, room: int = LARGEST) -> str:
    """The whole text; what would make it larger than `room` bytes is left out, and that is said, but the first part stays.

    Nothing of it is markup, a link or a mention but what stands here.
    """
    lines = list(_first(verdict))
    size = sum(map(_size, lines)) + _size(_LEFT_OUT) + 1
    left_out = False
    for part in _folded(verdict):
        more = sum(map(_size, part))
        fits = size + more <= room
        lines, size, left_out = ([*lines, *part], size + more, left_out) if fits else (lines, size, True)
    return "\n".join([*lines, *(["", _LEFT_OUT] if left_out else [])]) + "\n"


def _size(line: str) -> int:
    return len(line.encode()) + 1


def _first(verdict: Verdict) -> Iterator[str]:
    """What everybody reads: the result, why, what is slower, what changed."""
    yield f"## {_MARKS.get(verdict.result, '')} collbench gate: {escaped(headline(verdict))}"
    if describe_outcomes(verdict):
        yield from ("", escaped_line(describe_outcomes(verdict)))
    if verdict.ceilings:
        yield from ("", *items(fallen(verdict)[:_MOST_REASONS]))
    if verdict.cause is not None:
        yield from ("", f"Points at {escaped(short(verdict.cause.sentence))}")
    if verdict.reasons:
        yield from ("", *items(sentences(verdict.reasons, _MOST_REASONS)))
    found = list(open_ones(verdict))
    if found:
        yield from ("", *_table(found[:_MOST_ROWS]))
    if len(found) > _MOST_ROWS:
        yield from ("", f"The first {_MOST_ROWS} of {len(found)}, the surest and worst first; the others are below.")
    if verdict.changes:
        since = "Differs between the old stack and the new one" if verdict.mode == "paired" else "Changed since the last good allocation"
        yield from ("", f"**{since}**, the most plausible cause first:", "", *items(_changes(verdict, 0, _MOST_CHANGES)))
    yield from ("", escaped_line(judged(verdict)))


def _changes(verdict: Verdict, first: int, most: int) -> list[str]:
    return [of_change(each) for each in verdict.changes[first : first + most]]


def _table(found: Iterable[Suspicion | FloorState]) -> list[str]:
    return table(("state", "what", "time, by allocation"), [(each.state, name_of(each), of(each)) for each in found], [False] * 3)


def _folded(verdict: Verdict) -> Iterator[list[str]]:
    """The details, each of which may be left out whole."""
    found = list(open_ones(verdict))
    if verdict.groups:
        yield _details(f"Groups ({len(verdict.groups)})", _groups(verdict.groups), len(verdict.groups))
    if len(found) > _MOST_ROWS:
        yield _details("All that is slower", _table(found[:_MOST_FOLDED]), len(found))
    again = cleared(verdict)
    if again:
        yield _details(f"Cleared: slower at first, and not again ({len(again)})", _table(again[:_MOST_FOLDED]), len(again))
    unknown = [each for each in verdict.floors if each.state == UNDECIDED]
    if unknown:
        rows = [(name_of(each), of_floor(each)) for each in unknown[:_MOST_FOLDED]]
        yield _details(f"Share of the ceiling not known ({len(unknown)})", table(("cell", "share"), rows, [False] * 2), len(unknown))
    if len(verdict.changes) > _MOST_CHANGES:
        yield _details("All that changed", items(_changes(verdict, 0, _MOST_FOLDED)), len(verdict.changes))
    if verdict.notes or len(verdict.reasons) > _MOST_REASONS:
        told = [*verdict.reasons[_MOST_REASONS:], *verdict.notes]
        yield _details(f"Notes ({len(told)})", items(sentences(told, _MOST_FOLDED)), len(told))


def _groups(groups: Sequence[GroupState]) -> list[str]:
    """Those that did not pass first."""
    order = worst_groups(groups)
    rows = [
        (short(each.state, 20), each.outcome or NOTHING, short(each.name, LONGEST_NAME), str(each.cells), of_group(each))
        for each in order[:_MOST_FOLDED]
    ]
    return table(("state", "outcome", "group", "cells", "time, by allocation"), rows, [False, False, False, True, False])


def _details(title: str, lines: Sequence[str], number: int) -> list[str]:
    more = [] if number <= _MOST_FOLDED else ["", f"The first {_MOST_FOLDED} of {number}."]
    return ["", f"<details><summary>{title}</summary>", "", *lines, *more, "", "</details>"]
