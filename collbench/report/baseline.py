"""What `collbench baseline show` prints: the allocations, and of each cell the smallest slowdown that a gate on it would see."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import exp, isfinite
from pathlib import Path
from shlex import quote

from collbench.gate.allocation import COLUMNS, Allocation, Cell, counted
from collbench.gate.baseline import Baseline, scheme_of, times_of
from collbench.gate.rule import ENOUGH, FEWEST, Limits, learn
from collbench.gate.state import steady_baseline
from collbench.report.columns import NOTHING
from collbench.report.flags import printable
from collbench.report.table import Line
from collbench.units import format_percent, format_size, format_time

FORMATS = ("table", "json")
_FIRST = ("operation", "size_bytes", "backend")
_MOST_HOSTS = 4
_TITLES = ("cell", "allocations", "time µs", "smallest slowdown visible")


def lines(baseline: Baseline, format: str) -> Iterator[Line]:
    """The baseline in `format`, one of FORMATS; in JSON one object for each cell."""
    cells = baseline.cells
    learned, left_out = steady_baseline(baseline)
    limits = learn(times_of(learned.allocations, cells), scheme_of(cells))
    sentences = [*left_out, *_sentences(baseline.path, len(learned.allocations), limits)]
    yield from _json(cells, limits) if format == "json" else _table(baseline, cells, limits, sentences)


def after_adding(path: Path, held: int) -> str:
    """How many allocations there are, and what is typed next."""
    there, folder = f"{path} has {counted(held, 'allocation')}", quote(str(path))
    if held < FEWEST:
        return f"{there}; a verdict needs {FEWEST}, {ENOUGH} are sound: collbench baseline add {folder} RUN…"
    few = f" ({ENOUGH} are sound)" if held < ENOUGH else ""
    return f"{there}{few}; what they let a gate see: collbench baseline show {folder}"


def _table(baseline: Baseline, cells: Sequence[Cell], limits: Limits, sentences: Sequence[str]) -> Iterator[Line]:
    yield Line(printable(f"{baseline.path}: {counted(len(baseline.allocations), 'allocation')}, {counted(len(cells), 'cell')}"), "head")
    yield from (Line(printable(f"  {_about(each)}")) for each in baseline.allocations)
    yield from (Line(printable(text), "foot") for text in sentences)
    yield Line("")
    names = _names(cells)
    visible = limits.visible()
    rows = [[printable(name), *_figures(limits, number, float(visible[number]))] for number, name in enumerate(names)]
    wide = [max(map(len, column)) for column in zip(_TITLES, *rows, strict=True)]
    for number, row in enumerate([list(_TITLES), *rows]):
        text = "  ".join([row[0].ljust(wide[0]), *(cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True))])
        yield Line(text.rstrip(), "head" if number == 0 else "")


def _about(allocation: Allocation) -> str:
    """ "night-3  2026-11-21T18:12  8 cells, 5 launches  node1, node2"."""
    counts = f"{counted(len(allocation.cells), 'cell')}, {counted(allocation.launches, 'launch')}"
    return f"{allocation.name}  {allocation.began_utc[:16]}  {counts}  {hosts_of(allocation)}"


def hosts_of(allocation: Allocation) -> str:
    """ "node1, node2"; of many "512 hosts, node001 to node512" in the order of their names."""
    told = allocation.facts.get("hosts", {}).get("names")
    if not told:
        return "hosts unknown"
    names = told.split(", ")
    return told if len(names) <= _MOST_HOSTS else f"{len(names)} hosts, {names[0]} to {names[-1]}"


def _sentences(path: Path, allocations: int, limits: Limits) -> Iterator[str]:
    if allocations < FEWEST:
        more = f"add {FEWEST - allocations} more: collbench baseline add {quote(str(path))} RUN…"
        yield f"with fewer than {FEWEST} allocations a gate gives no verdict; {more}"
    elif allocations < ENOUGH:
        yield f"a thin baseline: {ENOUGH} allocations or more make sound limits"
    known = [(group, exp(limit) - 1) for group, limit in zip(limits.scheme.groups, limits.groups, strict=True) if isfinite(limit)]
    if allocations >= FEWEST:
        yield from (f"{group}: the median over its cells shows {_percent(share)}" for group, share in known)
        yield f"all cells: their median shows {_percent(exp(limits.whole) - 1)}"


def _figures(limits: Limits, number: int, visible: float) -> list[str]:
    centre = float(limits.centre[number])
    time = format_time(exp(centre)) if isfinite(centre) else NOTHING
    return [str(int(limits.allocations[number])), time, _percent(visible - 1) if isfinite(visible) else NOTHING]


def _percent(share: float) -> str:
    return format_percent(100 * share) if share < 9 else f"{share + 1:.0f} times"


def _names(cells: Sequence[Cell]) -> list[str]:
    """Each cell in words: operation, size, backend, and whatever else differs between the cells."""
    differing = [place for place, name in enumerate(COLUMNS) if name not in _FIRST and len({cell[place] for cell in cells}) > 1]
    shown = [*(COLUMNS.index(name) for name in _FIRST), *differing]
    return [" ".join(_word(place, cell[place]) for place in shown) for cell in cells]


def _word(place: int, value: object) -> str:
    name = COLUMNS[place]
    if name == "size_bytes":
        return format_size(value) if isinstance(value, int) and value else NOTHING
    if name == "in_place":
        return "in place" if value else "out of place"
    return str(value) if name in _FIRST else f"{name} {NOTHING if value is None else value}"


def _json(cells: Sequence[Cell], limits: Limits) -> Iterator[Line]:
    visible = limits.visible()
    for number, cell in enumerate(cells):
        centre, factor = float(limits.centre[number]), float(visible[number])
        figures = {
            "allocations": int(limits.allocations[number]),
            "time_s": exp(centre) if isfinite(centre) else None,
            "visible_slowdown": factor - 1 if isfinite(factor) else None,
        }
        yield Line(json.dumps({**dict(zip(COLUMNS, cell, strict=True)), **figures}))
