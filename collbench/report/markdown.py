"""Runs as Markdown, for wikis and pull requests: the peaks, what is wrong, every row, the comparison, what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from collbench.analysis.best import Peak, differing, peaks
from collbench.analysis.launches import Launches
from collbench.report.columns import Column, not_available, shown_columns, value_of
from collbench.report.flags import FLAGS
from collbench.report.headlines import figure, latency, short, subject, where
from collbench.report.markdown_text import escaped, escaped_line, items, table
from collbench.report.plan import plan_of
from collbench.results.row import Row

if TYPE_CHECKING:
    from collbench.analysis.compare import Comparison
    from collbench.report.html.material import Material

_MOST_ROWS, _FEWEST_ROWS, _MOST_PEAKS = 200, 20, 80  # a comment on GitHub holds 65,536 letters
_CLEAN = "Nothing stands out: no finding, no flag on any row, nothing missing."


def markdown(material: Material) -> str:
    """The whole text. Nothing of it is markup, a link or a mention but what stands here; a long table is cut, and that is said."""
    return "\n".join([*_overview(material), *_compared(material), *_tables(material), *_pairs(material)]) + "\n"


def _most_rows(material: Material) -> int:
    """How many rows each table may have: several tables and comparisons share the room."""
    return max(_FEWEST_ROWS, _MOST_ROWS // max(1, 2 * len(material.tables) - 1))


def _overview(material: Material) -> Iterator[str]:
    yield from ("# collbench report", "")
    yield from items(f"{each.name}: {' · '.join(text for text in subject(each).values() if text)}" for each in material.tables)
    best = [(each, peak) for each in material.tables for peak in peaks(material.rows(each))]
    if best:
        yield from ("", "## Peaks", "", *_peaks(best[:_MOST_PEAKS], named=len(material.tables) > 1))
    if len(best) > _MOST_PEAKS:
        yield from ("", f"The first {_MOST_PEAKS} of {len(best)} peaks.")
    yield from ("", "## Findings and flags, worst first", "", *items(_concerns(material) or [_CLEAN]))


def _peaks(best: Sequence[tuple[Launches, Peak]], named: bool) -> list[str]:
    telling = ["operation", "backend", *differing(peak for _, peak in best)]
    rows = [
        [short(each.name, 80), *(short(value_of(peak.row, name), 80) for name in telling), short(figure(peak.row)),
         where(peak.row, each.rows), latency(peak)]
        for each, peak in best
    ]  # fmt: skip
    titles = ("run", *telling, "peak", "at", "smallest message")
    first = 0 if named else 1
    return table(titles[first:], [row[first:] for row in rows], [False] * len(titles[first:]))


def _concerns(material: Material) -> list[str]:
    return [f"{each.severity}: {short(each.sentence(), 600)}{_meaning(each.flag)}" for each in material.concerns]


def _meaning(flag: str | None) -> str:
    return f": {FLAGS[flag]}" if flag in FLAGS else ""


def _compared(material: Material) -> Iterator[str]:
    """Every other run against the first one, as `collbench compare` says it."""
    if not material.comparisons:
        return
    for found in material.comparisons:
        yield from ("", f"## {escaped(short(found.b.name, 80))} against {escaped(short(found.a.name, 80))}", "")
        yield from _comparison(found, _most_rows(material))
    more = len(material.tables) - 1 - len(material.comparisons)
    if more > 0:
        yield from ("", f"{more} more runs are not compared here.")


def _comparison(found: Comparison, most: int) -> Iterator[str]:
    from collbench.analysis.compare import largest_first, why_nothing_in_common, worst_first
    from collbench.report.compare import markdown_lines

    if not found.cells:
        yield from items([f"no cell in common: {short(why_nothing_in_common(found))}"])
        yield from items(f"A → B: {short(each.sentence(), 600)}" for each in found.differences)
        return
    ordered, first = (largest_first, "largest changes:") if found.without_intervals else (worst_first, "worst")
    if len(found.cells) > most:
        yield from (f"The {first} {most} of {len(found.cells)} cells; `collbench compare … --format csv` has all.", "")
    yield from (line.text for line in markdown_lines(replace(found, cells=ordered(found.cells)[:most])))


def _tables(material: Material) -> Iterator[str]:
    for each in material.tables:
        yield from ("", f"## {escaped(short(each.name, 80))}", "", *_table(each, material.rows(each), _most_rows(material)))


def _table(each: Launches, rows: Sequence[Row], most: int) -> Iterator[str]:
    plan = plan_of(each.runs[0], rows, each.name)
    columns = shown_columns(plan)
    shown = [[short(text) for text in _cells(row, columns)] for row in rows[:most]]
    yield from table([column.title for column in columns], shown, [column.right for column in columns])
    if len(rows) > most:
        yield from ("", f"The first {most} of {len(rows)} rows; `collbench report … --csv FILE` has all.")


def _cells(row: Row, columns: Sequence[Column]) -> list[str]:
    """A row's columns; of one that is n/a its reason in place of the first figure."""
    if row.na is None:
        return [column.text(row) for column in columns]
    what = [column.text(row) for column in columns if not column.figure]
    return [*what, not_available(row), *[""] * (len(columns) - len(what) - 1)]


def _pairs(material: Material) -> Iterator[str]:
    from collbench.report.pairs import measured

    for (run, stored), effect in zip(material.pairs, material.effects, strict=True):
        yield from ("", f"## {escaped(short(run.path.resolve().name, 80))}", "", escaped_line(measured(effect.matrix, stored.about)))
