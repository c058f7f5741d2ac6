"""Backend against backend: the ratio of their times, size by size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log10
from typing import TYPE_CHECKING, Any

from collbench.analysis.launches import known, time_of
from collbench.report.html.chart import Chart, Section
from collbench.report.html.curves import Curve, Point, chart_panel, curve_spots, curves_of, draw_curves, span
from collbench.report.html.draw import INK, log_axis, size_axis, svg_of
from collbench.report.html.material import Material
from collbench.report.html.names import cut
from collbench.report.html.records import size_table
from collbench.report.html.series import Series, Sheet, remark, sheets, state_of, time_words
from collbench.report.html.words import Wish, write_words
from collbench.results.row import Row
from collbench.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collbench.analysis.compare import CellRatio

# What must be the same, so that two rows may be compared; in all else it is one way of doing it against another.
_SAME = ("device", "dtype", "redop", "root", "mode", "in_place", "buffers", "window", "group", "ranks", "nodes", "traffic")
_WORDS = {"in_place": "placing", "redop": "reduction"}
_TEXT = (
    "How many times as long one backend takes as another, for the same cell: above 1 it is slower. Rows of another mode, buffers or "
    "placing are not compared."
)
_FURTHEST = 1e6  # a ratio beyond says that a file is broken


@dataclass(frozen=True)
class Pair:
    """A row and the one that it is compared with."""

    row: Row
    base: Row
    ratio: CellRatio


def section(material: Material) -> Section | None:
    """The section, or None where nothing was measured over two backends."""
    all_sheets = list(sheets(material))
    if all(len(sheet.series) < 2 for sheet in all_sheets):
        return None
    base = _base(all_sheets)
    charts = [chart for sheet in all_sheets if (chart := _chart(sheet, base)) is not None]
    texts = [text for sheet in all_sheets if (text := _not_compared(sheet))]
    return Section("ratios", "Backend against backend", [_TEXT, *dict.fromkeys(texts)], (), charts) if charts or texts else None


def _base(found: Sequence[Sheet]) -> list[str]:
    """Backends, the one first that all others are compared with: it is the fastest in most cells. Ties go by name."""
    wins: Counter[str] = Counter()
    for sheet in found:
        for rows in _cells(sheet).values():
            if len({row.backend for row in rows}) > 1:
                wins[min(rows, key=_time).backend] += 1
    names = {row.backend for sheet in found for row in sheet.rows}
    return sorted(names, key=lambda name: (-wins[name], name))


def _cells(sheet: Sheet) -> dict[tuple[Any, ...], list[Row]]:
    """The rows with a time that may be compared with one another."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in sheet.rows:
        if time_of(row) is not None:
            found.setdefault((*(getattr(row, name) for name in _SAME), row.size_bytes), []).append(row)
    return found


def _chart(sheet: Sheet, order: Sequence[str]) -> Chart | None:
    """None where no two rows may be compared."""
    base = next((name for name in order if any(row.backend == name and time_of(row) is not None for row in sheet.rows)), None)
    pairs = {id(pair.row): pair for pair in _pairs(sheet, base)}
    series = [replace(each, rows=[row for row in each.rows if id(row) in pairs]) for each in sheet.series]
    shown = Sheet(sheet.key, sheet.title, [each for each in series if each.rows], sheet.launches)
    curves = curves_of(shown.series, lambda each, row: _point(each, pairs[id(row)]))
    reach = span(curves)
    if base is None or reach is None:
        return None
    name = cut(base)
    key, title = f"ratios-{sheet.key}", f"{sheet.title}: time against {name}"
    figure, axes = chart_panel(curves)
    _scale(axes, shown.sizes, reach, name)
    draw_curves(axes, curves)
    write_words(axes, [Wish(f"as fast as {name}", INK, [(x, 1.0) for x in axes.get_xlim()])], [each.known for each in curves])
    table = size_table(shown, shown.series, lambda _, row: _words(pairs[id(row)]))
    made = _made(sheet, name)
    return Chart(key, title, _says(curves, pairs, name), made, svg_of(figure, key, title), table, curve_spots(axes, curves))


def _pairs(sheet: Sheet, base: str | None) -> Iterator[Pair]:
    """Each row of another backend, or of another way of the same one, with the base's row of its cell: the one left to its own choice."""
    for rows in _cells(sheet).values():
        own = sorted((row for row in rows if row.backend == base), key=_choices)
        for row in rows:
            if own and row is not own[0]:
                yield Pair(row, own[0], _ratio(own[0], row))


def _choices(row: Row) -> int:
    """How much the library was told to do."""
    return sum(value is not None for value in (row.algorithm, row.protocol, row.registration, row.streams))


def _ratio(base: Row, row: Row) -> CellRatio:
    """Over the medians of launches where there are several of both, else from within a launch."""
    from collbench.analysis.compare import CellRatio, median_of
    from collbench.stats.launches import ratio_of_launches, ratio_of_medians

    a, b = _launches(base), _launches(row)
    if min(len(a), len(b)) > 1:
        return CellRatio(base, row, ratio_of_launches(a, b), True, (None, None), (len(a), len(b)))
    return CellRatio(base, row, ratio_of_medians(median_of(base), median_of(row)), False, (None, None))


def _launches(row: Row) -> list[float]:
    """The medians of the launches behind a combined row."""
    medians = row.evidence.get("launch_medians_s") if row.launches > 1 else None
    return [float(each) for each in medians if known(each)] if isinstance(medians, list) else []


def _point(series: Series, pair: Pair) -> Point:
    ratio = pair.ratio.time
    name = f"{series.label} {format_size(pair.row.size_bytes)}"
    if ratio is None or not 1 / _FURTHEST < ratio.value < _FURTHEST:
        return Point(pair.row.size_bytes, _state(pair), None, None, None, f"{name}: no ratio")
    low, high = (None, None) if ratio.low is None or ratio.high is None else (ratio.low, ratio.high)
    return Point(pair.row.size_bytes, _state(pair), ratio.value, low, high, f"{name}: {_words(pair)}{remark(pair.row)}")


def _state(pair: Pair) -> str:
    """That of the row, else that of the base: the ratio is as doubtful as the worse of the two."""
    return state_of(pair.row) or state_of(pair.base)


def _words(pair: Pair) -> str:
    """Return "slower +12.0 % (+8.0 to +17.0 %)", with a mark where either of the two is doubtful."""
    from collbench.report.outcome_text import describe

    return f"{'? ' if _state(pair) else ''}{describe(pair.ratio)}"


def _scale(axes: Axes, sizes: Sequence[int], reach: tuple[float, float], base: str) -> None:
    """Logarithmic, with 1 in view, and never so narrow that noise looks like a difference."""
    size_axis(axes, sizes)
    low, high = min(reach[0], 0.8), max(reach[1], 1.25)
    spare = 10 ** (0.06 * log10(high / low))
    log_axis(axes, max(low / spare, 1e-7), min(high * spare, 1e7))
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_ylabel(f"times as long as {base}")


def _says(curves: Sequence[Curve], pairs: dict[int, Pair], base: str) -> str:
    """Return how often each curve has each of the four outcomes; never an average of the ratios."""
    from collbench.analysis.outcome import MARGIN
    from collbench.report.outcome_text import format_margin

    told = (_count(each, [pairs[id(row)] for row in each.series.rows]) for each in curves)
    return f"Against {base}: {'; '.join(told)}. No change: the whole interval is inside {format_margin(MARGIN)}."


def _count(curve: Curve, pairs: Sequence[Pair]) -> str:
    from collbench.analysis.outcome import count
    from collbench.report.outcome_text import count_text

    outcomes = count(outcome for pair in pairs if (outcome := pair.ratio.outcome) is not None)
    values = [point.value for point in curve.points if point.value is not None]
    low, high = (f"{pick(values):.3g}" if values else "" for pick in (min, max))
    ends = f" ({low if low == high else f'{low} to {high}'} times as long)" if values else ""
    return f"{curve.series.label} at {len(pairs)} size{'' if len(pairs) == 1 else 's'}: {count_text(outcomes, {})}{ends}"


def _made(sheet: Sheet, base: str) -> str:
    return (
        f"The time divided by that of {base} for the same cell; a time is {time_words(sheet)}. Slower and faster: the whole interval of "
        "the ratio is on one side of 1. "
        f"{base} is the reference because it is the fastest in most cells of this report. The axis is logarithmic: half and twice are "
        "equally far from 1."
    )


def _not_compared(sheet: Sheet) -> str:
    """Why backends of one operation have no cell in common, with what would make them comparable."""
    backends = {row.backend for row in sheet.rows if time_of(row) is not None}
    if len(backends) < 2 or any(len({row.backend for row in rows}) > 1 for rows in _cells(sheet).values()):
        return ""
    differing = [_WORDS.get(name, name) for name in _SAME if not _common(sheet.rows, name)]
    why = f"they differ in {', '.join(differing)}" if differing else "they have no cell in common"
    remedy = ": --in-place measures both in place" if differing == ["placing"] else ""
    return f"{sheet.title}: {cut(', '.join(sorted(backends)), 80)} are not compared, {why}{remedy}."


def _common(rows: Iterable[Row], name: str) -> bool:
    """Whether any value of the field occurs with all backends."""
    values: dict[str, set[Any]] = {}
    for row in rows:
        if time_of(row) is not None:
            values.setdefault(row.backend, set()).add(getattr(row, name))
    return bool(set.intersection(*values.values())) if values else True


def _time(row: Row) -> float:
    time_s = time_of(row)
    return float("inf") if time_s is None else time_s
