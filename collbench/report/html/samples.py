"""The section "Spread of the samples": the distribution of the cases with doubtful times. Without such cases it is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from collbench.analysis.launches import case_of, time_of
from collbench.errors import UsageError
from collbench.report.cases import NOTHING, doubtful, name_of, remarks, two_modes, value_of
from collbench.report.figures import DASHES, set_ratio_axis, within
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.picture import PAGE, WIDE, Picture, drawn
from collbench.report.material import Material
from collbench.results.row import Row
from collbench.stats.median import quantile, sound
from collbench.units import format_percent, format_span, format_time, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collbench.analysis.launches import Launches
    from collbench.results.reader import Run


class Sampled(msgspec.Struct, frozen=True):
    """A case with its samples in seconds, ascending (at least one), of all its launches. `time_s` is the median of the row."""

    row: Row
    ordered: NDArray[np.float64]
    time_s: float

    def at(self, share: float) -> float:
        """Return a quantile in seconds; `share` from 0 to 1."""
        return quantile(self.ordered, share)

    def ratio(self, share: float) -> float:
        """Return a quantile / the median of the row."""
        return self.at(share) / self.time_s

    def text(self, share: float) -> str:
        """Return a quantile in µs, as text."""
        return format_time(self.at(share))

    @property
    def spread(self) -> float:
        """Return the 99th percentile / the first."""
        return self.at(0.99) / self.at(0.01)


def sampled(material: Material, table: Launches) -> tuple[list[Sampled], list[Row]]:
    """Return the cases of a table with samples, and the rows with a time but without samples (imported, or samples.bin was cut)."""
    cases: list[Sampled] = []
    without: list[Row] = []
    stored: dict[tuple[object, ...], list[tuple[Run, Row]]] = {}
    for run in table.runs:
        for row in run.rows:
            stored.setdefault(case_of(row), []).append((run, row))
    for row in material.rows(table):
        time_s = time_of(row)
        if time_s is None or row.size_bytes < 0:
            continue
        samples = np.concatenate([np.empty(0), *(_samples(run, stored_row) for run, stored_row in stored.get(case_of(row), ()))])
        if len(samples):
            cases.append(Sampled(row, np.sort(samples), time_s))
        else:
            without.append(row)
    return cases, without


def both_modes(row: Row) -> str:
    """Return both values of bimodal samples: "2.345 µs (82 %) and 10.70 µs (18 %)"; a dash for one mode."""
    return " and ".join(f"{format_span(time_s)} ({format_percent(100 * share)})" for time_s, share in two_modes(row)) or NOTHING


def _samples(run: Run, row: Row) -> NDArray[np.float64]:
    """Return the valid samples of a row; none if they were not stored, or are not a series of numbers."""
    try:
        stored = run.array(row, "max_s")
    except UsageError:
        return np.empty(0)
    series = sound(stored.astype(np.float64)) if stored.ndim == 1 else np.empty(0)
    return series[(series > 1e-15) & (series < 1e12)]


_MOST_CURVES = 6
_MOST_ROWS = 60
_STEPS = 60  # of a curve
_MOST_NAMED = 3
_HEIGHT = 320  # pixels
_FURTHEST = 20.0  # larger ratios to the median are drawn at the edge
_SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
_METHOD = (
    "A sample is the time of one iteration, the maximum over the ranks; all samples of all launches count. For each time, the share of "
    "samples that took no longer; times are divided by the median of the case. A steep rise is a value around which the samples gather; a "
    "level stretch between two rises separates two values; a long slope at the top is a tail."
)


def section(material: Material) -> Section | None:
    """Return the section: cases with flags that make their time doubtful, bimodal ones first, then those with the largest spread."""
    texts: list[str] = []
    charts: list[Chart] = []
    for number, table in enumerate(material.drawn):
        cases, without = sampled(material, table)
        where = f" ({short(table.name, 40)})" if len(material.tables) > 1 else ""
        doubted = [case for case in cases if doubtful(case.row) and case.spread > 1]
        doubted.sort(key=lambda case: (not two_modes(case.row), -case.spread))
        if doubted:
            charts.append(_chart(f"spread-{number}", f"Distribution of the samples of doubtful cases{where}", doubted))
        lost = [row for row in without if "imported" not in row.flags]
        if lost:
            texts.append(_without(table, lost))
    return Section("spread", "Spread of the samples", texts, (), charts) if charts or texts else None


def _chart(key: str, title: str, cases: Sequence[Sampled]) -> Chart:
    named = [(short(f"{name_of(case.row)} {value_of(case.row, 'backend')}", 60), case) for case in cases]
    head = ("case", "samples", *(f"{format_percent(100 * share)} up to µs" for share in _SHARES), "modes", "flags")
    rows = [
        [name, str(len(case.ordered)), *map(case.text, _SHARES), both_modes(case.row), remarks(case.row)]
        for name, case in named[:_MOST_ROWS]
    ]
    name, worst = named[0]
    more = f"; {_MOST_CURVES} of them are shown" if len(cases) > _MOST_CURVES else ""
    spread = f"is bimodal: {both_modes(worst.row)}" if two_modes(worst.row) else f"ranges from {worst.text(0.01)} to {worst.text(0.99)} µs"
    caption = f"{plural(len(cases), 'doubtful case')}{more}. {name} {spread}."
    table = Table(head, rows, frozenset(range(1, 9)))
    return drawn(Chart(key, title, caption, _METHOD, table), lambda picture: _draw(picture, named[:_MOST_CURVES]), WIDE, _HEIGHT)


def _draw(picture: Picture, named: Sequence[tuple[str, Sampled]]) -> None:
    """Draw for each case the share of samples up to each time, relative to its median."""
    axes = picture.axes()
    ratios = [min(_FURTHEST, max(1 / _FURTHEST, case.ratio(share))) for _, case in named for share in (0.005, 0.995)]
    set_ratio_axis(axes, ratios, 1.1)
    axes.axvline(1.0, color=PAGE.ink, linewidth=1.0)
    for number, (name, case) in enumerate(named):
        look = {"color": PAGE.of_series(number), "linestyle": DASHES[number % len(DASHES)]}
        shares = np.linspace(0, 1, min(_STEPS, len(case.ordered)) + 1)
        inside = [within(axes, case.ratio(float(share))) for share in shares]
        axes.plot(inside, 100 * shares, label=printable(name), gid=f"line {number}", **look)
        marks = [within(axes, case.ratio(share)) for share in _SHARES]
        axes.plot(marks, [100 * share for share in _SHARES], marker="o", linestyle="none", color=look["color"], gid=f"shares {number}")
        for share, ratio in zip(_SHARES, marks, strict=True):
            text = f"{name}: {format_percent(100 * share)} took at most {case.text(share)} µs"
            picture.tip(axes, ratio, 100 * share, text)
    axes.set_ylim(0, 103)
    axes.set_xlabel("sample / median of the case")
    axes.set_ylabel("% of the samples up to here")
    picture.legend(2)


def _without(table: Launches, rows: Sequence[Row]) -> str:
    first = ", ".join(f"{name_of(row)} {row.backend}" for row in rows[:_MOST_NAMED])
    more = ", …" if len(rows) > _MOST_NAMED else ""
    return printable(f"{table.name}: no samples for {plural(len(rows), 'case')} with a time (samples.bin is incomplete): {first}{more}.")
