"""What `collbench history` prints: a line for each group and each cell with its course, and below it where it changed, and what else did.

A course has a character for each allocation. On a terminal they are bars; else figures from 0 (the fastest of the line) to 9.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from math import exp, isfinite

from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, counted
from collbench.gate.history import CELL, GROUP, WHOLE, History, Series, Step
from collbench.report.columns import NOTHING
from collbench.report.flags import printable
from collbench.report.table import Line
from collbench.results.store import plain
from collbench.units import format_time

FORMATS = ("table", "json")
BARS, FIGURES = "▁▂▃▄▅▆▇█", "0123456789"
_UNKNOWN = {BARS: "·", FIGURES: "."}
MOST_ALLOCATIONS, _MOST_CELLS, _MOST_NAMED = 60, 60, 3
_TITLES = ("", "allocations", "time µs", "trend", "course")
_TWO_SIDED = 1.96  # standard errors to either side: 95 %


def chosen(history: History, pattern: str) -> list[Series]:
    """The cells whose name fits the pattern (`*` is anything), and the groups that they are of. Raises UsageError where none does."""
    cells = [each for each in history.of_kind(CELL) if fnmatchcase(each.about.name, pattern)]
    if not cells:
        names = ", ".join(each.about.name for each in history.of_kind(CELL)[:_MOST_NAMED])
        raise UsageError(f"--only '{pattern}' fits no cell: names are such as {names}; * is anything")
    groups = {each.about.group for each in cells}
    whole = history.of_kind(WHOLE) if len(cells) == len(history.of_kind(CELL)) else []
    return [*whole, *(each for each in history.of_kind(GROUP) if each.about.group in groups), *cells]


def letters_for(encoding: str | None, painted: bool) -> str:
    """BARS on a stream that is painted and can write them, else FIGURES."""
    try:
        BARS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return FIGURES
    return BARS if painted else FIGURES


def lines(history: History, format: str, pattern: str = "*", letters: str = FIGURES) -> Iterator[Line]:
    """The history in `format`, one of FORMATS; `letters` are those of a course: BARS or FIGURES. Raises UsageError as `chosen` does."""
    shown = chosen(history, pattern)
    yield from _json(history, shown) if format == "json" else _table(history, shown, letters)


def _table(history: History, shown: Sequence[Series], letters: str) -> Iterator[Line]:
    cells, others = (by_step([each for each in shown if (each.about.kind == CELL) == is_cell]) for is_cell in (True, False))
    yield Line(printable(f"{history.of}: {title(history)}"), "head")
    yield from (Line(printable(note), "doubtful") for note in history.notes)
    yield Line(_reading(len(history.allocations), letters), "foot")
    listed = [*others, *cells[:_MOST_CELLS]]
    rows = [_row(each, len(history.allocations), letters) for each in listed]
    wide = [max(map(len, column)) for column in zip(_TITLES, *rows, strict=True)]
    yield Line(_aligned(_TITLES, wide), "head")
    for each, row in zip(listed, rows, strict=True):
        yield Line(_aligned(row, wide), "doubtful" if each.steps else "")
        yield from (Line(printable(f"    {told}")) for told in sentences(history, each))
    if len(cells) > _MOST_CELLS:
        yield Line(f"and {len(cells) - _MOST_CELLS} more cells: ask for some with --only PATTERN, or for all with --format json", "foot")


def title(history: History) -> str:
    """ "20 allocations from 2026-11-01 to 2026-11-20, 336 cells; changes: 1 group, 12 cells"."""
    began = [day(each.began_utc) for each in history.allocations]
    stepped = [each for each in history.series if each.steps]
    whole, groups, cells = (sum(each.about.kind == kind for each in stepped) for kind in (WHOLE, GROUP, CELL))
    told = ["all cells together"] * whole + [counted(number, name) for number, name in ((groups, "group"), (cells, "cell")) if number]
    what = f"{counted(len(began), 'allocation')} from {began[0]} to {began[-1]}, {counted(len(history.of_kind(CELL)), 'cell')}"
    return f"{what}; changed: {', '.join(told) or 'nothing'}"


def by_step(series: Sequence[Series]) -> list[Series]:
    """All cells together first, then those with the largest change; without one they keep their order."""
    return sorted(series, key=lambda each: (each.about.kind != WHOLE, -each.largest))


def sentences(history: History, series: Series) -> Iterator[str]:
    """A sentence for each step, and one for where it was not measured."""
    yield from (step_told(history, step) for step in series.steps)
    missing = history.missing(series)
    if missing:
        yield missing


def step_told(history: History, step: Step) -> str:
    """ "slower × 1.050 (1.046 to 1.054; by chance up to × 1.020) since night-11, 2026-11-11; with it: software mpi: 4.3 → 5.0"."""
    low, high = interval(step)
    limit = exp(step.limit if step.change > 0 else -step.limit)
    since = history.allocations[step.at]
    way = "slower" if step.change > 0 else "faster"
    numbers = f"{way} × {exp(step.change):.3f} ({low:.3f} to {high:.3f}; by chance up to × {limit:.3f})"
    return f"{numbers} since {since.name}, {day(since.began_utc)}; with it: {with_it(history, step)}"


def interval(step: Step) -> tuple[float, float]:
    """95 %, as factors; a little too far from 1, since the place with the largest change was chosen."""
    return exp(step.change - _TWO_SIDED * step.error), exp(step.change + _TWO_SIDED * step.error)


def with_it(history: History, step: Step) -> str:
    """What else changed with a step: "software mpi: 4.3 → 5.0"."""
    state = history.state(step)
    found = [*([state] if state else []), *(each.sentence() for each in history.between(step.before, step.at))]
    more = [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    return "; ".join([*found[:_MOST_NAMED], *more]) or "nothing that is recorded"


def day(began_utc: str) -> str:
    """The day of a moment in ISO 8601."""
    return began_utc[:10]


def _reading(allocations: int, letters: str) -> str:
    last = f" (the last {MOST_ALLOCATIONS})" if allocations > MOST_ALLOCATIONS else ""
    scale = f"{letters[0]} fastest to {letters[-1]} slowest of its line; differences too small to matter stay in the middle"
    return f"course: a sign for each allocation{last}, {scale}; {_UNKNOWN[letters]} not measured. trend: the last level over the first"


def _row(series: Series, allocations: int, letters: str) -> list[str]:
    time = format_time(exp(series.levels[-1].value)) if series.about.kind == CELL and series.levels else NOTHING
    trend = f"× {series.trend:.3f}" if series.trend is not None else NOTHING
    return [printable(series.about.name), f"{len(series.known)} of {allocations}", time, trend, course(series, letters)]


def course(series: Series, letters: str) -> str:
    """A letter for each of the last allocations, the first one for the fastest; a span of two floors at least: noise stays flat."""
    values = [float(each) for each in series.values[-MOST_ALLOCATIONS:]]
    there = [each for each in values if isfinite(each)]
    low, high = min(there, default=0.0), max(there, default=0.0)
    span, middle = max(high - low, 2 * series.floor), (low + high) / 2
    steps = len(letters) - 1
    return "".join(letters[round(steps * ((each - middle) / span + 0.5))] if isfinite(each) else _UNKNOWN[letters] for each in values)


def _aligned(row: Sequence[str], wide: Sequence[int]) -> str:
    last = len(row) - 1
    cells = [
        cell.rjust(width) if 0 < place < last else cell.ljust(width) for place, (cell, width) in enumerate(zip(row, wide, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _json(history: History, shown: Sequence[Series]) -> Iterator[Line]:
    """An object for each series: what it is of, its values by allocation, its steps."""
    names = [each.name for each in history.allocations]
    for each in shown:
        columns = dict(zip(COLUMNS, each.about.cell, strict=True)) if each.about.cell else {}
        found = {
            "kind": each.about.kind, "name": each.about.name, "cell": columns, "allocations": names,
            "time_s" if each.about.cell else "factor": [exp(value) if isfinite(value) else None for value in map(float, each.values)],
            "trend": each.trend, "steps": [_step_json(history, step) for step in each.steps], "missing": history.missing(each),
        }  # fmt: skip
        yield Line(json.dumps(plain(found), allow_nan=False))


def _step_json(history: History, step: Step) -> dict[str, object]:
    low, high = interval(step)
    since = history.allocations[step.at]
    return {
        "since": since.name, "began_utc": since.began_utc, "last_before": history.allocations[step.before].name,
        "factor": exp(step.change), "low": low, "high": high, "limit": exp(step.limit),
        "state": history.state(step), "changes": [each.sentence() for each in history.between(step.before, step.at)],
    }  # fmt: skip
