"""The peaks as a table: a line each, or, where they are many, a line for each operation and a column for each backend."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.analysis.best import Peak, differing
from collbench.analysis.launches import Launches
from collbench.report.columns import NOTHING, doubtful, limited_by, remarks, value_of
from collbench.report.headlines import figure, has_share, latency, short, speed, where
from collbench.report.html.chart import Table
from collbench.results.row import Row

MOST, _MANY = 80, 12
Peaks = Sequence[tuple[Launches, Peak]]


def peak_table(best: Peaks) -> Table:
    """The first 80 peaks (of many, lines of peaks), with the run where there are several, and what tells them apart where it differs."""
    telling = differing(peak for _, peak in best)
    named = len({id(table) for table, _ in best}) > 1
    backends = list(dict.fromkeys(peak.row.backend for _, peak in best))
    if len(best) > _MANY and 1 < len(backends) <= 6:
        return _crossed(best, telling, named, backends)
    shown = best[:MOST]
    rows = [[*_name(each, ["operation", "backend", *telling], named), *_cells(*each)] for each in shown]
    titles = ["operation", "backend", *telling, "peak", "at", "smallest message"]
    return Table([*(["run"] if named else []), *titles], rows, marks=_marks([[peak.row] for _, peak in shown]))


def _cells(table: Launches, peak: Peak) -> list[str]:
    row = peak.row
    told = " · ".join(text for text in (figure(row), remarks(row)) if text)
    return [short(told), where(row, table.rows), latency(peak)]


def _crossed(best: Peaks, telling: Sequence[str], named: bool, backends: Sequence[str]) -> Table:
    lines: dict[tuple[object, ...], dict[str, Row]] = {}
    for table, peak in best:  # two runs may have one name
        name = (id(table), *_name((table, peak), ["operation", *telling], named))
        lines.setdefault(name, {})[peak.row.backend] = peak.row
    shown = list(lines.items())[:MOST]
    rows = [[*map(str, name[1:]), *(_at(of.get(backend)) for backend in backends), _limits(of)] for name, of in shown]
    titles = [*(["run"] if named else []), "operation", *telling, *(short(backend, 40) for backend in backends), "limited by"]
    return Table(titles, rows, marks=_marks([list(of.values()) for _, of in shown]))


def _name(each: tuple[Launches, Peak], fields: Sequence[str], named: bool) -> list[str]:
    table, peak = each
    return [*([short(table.name, 80)] if named else []), *(short(value_of(peak.row, name), 80) for name in fields)]


def _at(row: Row | None) -> str:
    if row is None:
        return NOTHING
    return short(speed(row)) if row.na is not None or row.wrong else f"{short(speed(row))} at {where(row, [row])}"


def _limits(of: dict[str, Row]) -> str:
    """What limits: once where it is the same, else with the backends that it limits."""
    limits: dict[str, list[str]] = {}
    for backend, row in of.items():
        if has_share(row):
            limits.setdefault(limited_by(row), []).append(backend)
    if len(limits) == 1:
        return short(next(iter(limits)))
    return short("; ".join(f"{', '.join(backends)}: {limit}" for limit, backends in limits.items()), 600)


def _marks(lines: Sequence[Sequence[Row]]) -> dict[int, str]:
    """The style of each line, by what is worst in it; n/a where nothing in it was measured."""
    marks = {number: "wrong" if any(row.wrong for row in rows) else "doubtful" if any(map(doubtful, rows)) else ""
             for number, rows in enumerate(lines)}  # fmt: skip
    marks |= {number: "na" for number, rows in enumerate(lines) if all(row.na is not None for row in rows)}
    return {number: mark for number, mark in marks.items() if mark}
