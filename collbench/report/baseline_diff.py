"""What `collbench baseline diff` prints: what changed besides, and what moved further than chance moves it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import log

from collbench.analysis.outcome import MARGIN, Outcome, count
from collbench.gate.allocation import COLUMNS, Allocation, counted
from collbench.gate.diff import Moved, Moves
from collbench.gate.history import CELL
from collbench.report.baseline import hosts_of
from collbench.report.columns import NOTHING
from collbench.report.flags import printable
from collbench.report.history import day
from collbench.report.outcome_text import count_text, format_margin
from collbench.report.table import Line
from collbench.results.store import plain

FORMATS = ("table", "json")
_MOST, _MOST_NAMED = 60, 8
_BY_CHANCE = "a comparison, not a gate: of cells that are unchanged chance moves about one in 500 beyond its limit"


def lines(moves: Moves, format: str) -> Iterator[Line]:
    """What is between two sides, in `format`, one of FORMATS; in JSON one object."""
    yield from _json(moves) if format == "json" else _table(moves)


def _table(moves: Moves) -> Iterator[Line]:
    beyond = worst_first([each for each in moves.moved if each.beyond])
    cells = [each for each in moves.moved if each.about.kind == CELL]
    for name, side in zip((moves.old, moves.new), moves.sides, strict=True):
        yield Line(printable(f"{name}: {_about(side)}"), "head")
    yield Line(_how_many(cells), "head")
    yield from (Line(printable(_told(each)), "doubtful") for each in beyond[:_MOST])
    if len(beyond) > _MOST:
        yield Line(f"and {len(beyond) - _MOST} more: see --format json", "foot")
    yield from (Line(printable(each), "foot") for each in _feet(moves, cells))
    yield Line("what changed besides:" if moves.changes else "nothing else that is recorded changed", "head")
    yield from (Line(printable(f"  {each.sentence()}")) for each in moves.changes)


def _how_many(cells: Sequence[Moved]) -> str:
    """Return how many cells have each of the four outcomes."""
    notes = {Outcome.NO_CHANGE: f" (limit inside {format_margin(MARGIN)})"}
    return f"{counted(len(cells), 'cell')}: {count_text(count(each.outcome for each in cells), notes)}"


def worst_first(moved: Sequence[Moved]) -> list[Moved]:
    """The furthest first, slower or faster."""
    return sorted(moved, key=lambda each: -abs(log(each.factor)))


def _about(side: Sequence[Allocation]) -> str:
    """ "6 allocations, the last one night-6 of 2026-11-12 on node1, node2"; of a single one "2026-11-12 on node1, node2"."""
    last = side[-1]
    many = f"{counted(len(side), 'allocation')}, the last one {last.name} of " if len(side) > 1 else ""
    return f"{many}{day(last.began_utc) or 'an unknown day'} on {hosts_of(last)}"


def _told(each: Moved) -> str:
    limit = NOTHING if each.limit is None else f"{100 * ((each.limit if each.factor > 1 else 1 / each.limit) - 1):+.1f} %"
    return f"  {each.outcome}: {each.about.name}: {100 * (each.factor - 1):+.1f} % time; noise limit {limit}"


def _feet(moves: Moves, cells: Sequence[Moved]) -> Iterator[str]:
    unknown = sum(each.limit is None for each in cells)
    if unknown:
        yield f"of {counted(unknown, 'cell')} nothing is known of chance: too few allocations measured them"
    if len(cells) > unknown:
        yield _BY_CHANCE
    for name, only in ((moves.old, moves.only_old), (moves.new, moves.only_new)):
        if only:
            more = f" and {len(only) - _MOST_NAMED} more" if len(only) > _MOST_NAMED else ""
            yield f"only in {name}: {', '.join(each.name for each in only[:_MOST_NAMED])}{more}"


def _summary(moves: Moves) -> dict[str, int]:
    """Return the number of cells with each outcome."""
    counts = count(each.outcome for each in moves.moved if each.about.kind == CELL)
    return {each.value.replace(" ", "_"): number for each, number in counts.items()}


def _json(moves: Moves) -> Iterator[Line]:
    found = {
        "old": moves.old, "new": moves.new, "allocations": [[each.name for each in side] for side in moves.sides],
        "changes": [vars(each) for each in moves.changes],
        "margin": MARGIN, "summary": _summary(moves),
        "moved": [
            {"kind": each.about.kind, "name": each.about.name, "cell": dict(zip(COLUMNS, each.about.cell or (), strict=False)),
             "factor": each.factor, "limit": each.limit, "beyond": each.beyond, "outcome": each.outcome.value}
            for each in moves.moved
        ],
        "only_old": [each.name for each in moves.only_old], "only_new": [each.name for each in moves.only_new],
    }  # fmt: skip
    yield Line(json.dumps(plain(found), allow_nan=False))
