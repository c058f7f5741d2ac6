"""The expected time of each size, as tables: a line for each series below a report's rows, and all rows on a page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from collbench.analysis.expected_time import HOLDS_WITHIN, not_saturated
from collbench.analysis.latency import series_of
from collbench.analysis.launches import grouped
from collbench.report.cases import COLUMN_OF_KEY, NOTHING, identity_column, of_expected_time, value_of
from collbench.report.frame import Column, Frame, printable
from collbench.report.plan import PlanSummary, operation_name
from collbench.results.expectation import (
    FromNcclConstants,
    FromNcclLog,
    FromRunAndReference,
    FromRunSizes,
    OffTheLine,
    OutsideOfSizes,
    TooFewSizes,
)
from collbench.results.row import SERIES, Row
from collbench.units import first_of, format_percent, format_size, plural

_ALWAYS = ("operation", "backend")
_MOST_SIZES = 2
_NCCL_NOTE = "by NCCL's own model, healthy machines are slower than expected at small and medium sizes"
_SIZES_NOTE = "a line through the run's own sizes does not show whether the largest size is fast: see % of expected"


class SeriesExpectation(msgspec.Struct, frozen=True):
    """The rows of a series, ascending in size, of which at least one has a percentage or an expected time."""

    rows: Sequence[Row]

    @property
    def first(self) -> Row:
        """The row of the smallest size."""
        return self.rows[0]

    @property
    def percents(self) -> list[tuple[float, int]]:
        """(Percentage of the expected time, size in bytes) of each row that has one."""
        expectations = [(row.expectation, row.size_bytes) for row in self.rows if row.expectation is not None]
        percents = [(expectation.percent_of_expected_time, size) for expectation, size in expectations]
        return [(percent, size) for percent, size in percents if percent is not None]

    @property
    def unmodelled(self) -> list[int]:
        """The sizes without a model."""
        return [row.size_bytes for row in self.rows if row.expectation is not None and row.expectation.expected_time_s is None]

    @property
    def origin(self) -> str:
        """The model of the series as text; of NCCL's models without the choices, which differ from size to size."""
        origins = [row.expectation.origin for row in self.rows if row.expectation is not None]
        for origin in origins:
            if isinstance(origin, FromNcclLog):
                return "NCCL's table in the log"
            if isinstance(origin, FromNcclConstants):
                return "NCCL's constants"
            if isinstance(origin, FromRunSizes):
                return f"{format_size(origin.smallest)}–{format_size(origin.largest)} of the run"
            if isinstance(origin, FromRunAndReference):
                return origin.render()
        return "this run's sizes"


def series_frame(rows: Sequence[Row]) -> Frame[SeriesExpectation] | None:
    """Return the table with a line for each series that has a model, and sentences below; None without any of them."""
    series = _series(rows)
    sentences = [fact.render() for fact in not_saturated(rows)]
    if not series and not sentences:
        return None
    origins = {type(row.expectation.origin) for member in series for row in member.rows if row.expectation is not None}
    if origins & {FromNcclLog, FromNcclConstants}:
        sentences.append(_NCCL_NOTE)
    if origins & {FromRunSizes}:
        sentences.append(_SIZES_NOTE)
    if OffTheLine in origins:
        sentences.append(
            f"no model: times that differ from the line by more than a factor of {HOLDS_WITHIN:g}, as after a switch of algorithm"
        )
    if OutsideOfSizes in origins:
        sentences.append("no model: sizes below the smallest or above the largest reliable size")
    columns = [
        Column[SeriesExpectation]("", identity_column(name).title, partial(_value_of_series, name=name))
        for name in _names([member.first for member in series])
    ]
    return Frame([*columns, *_SERIES_COLUMNS], series, foot=sentences, names_hidden=True)


def rows_frame(rows: Sequence[Row]) -> Frame[Row] | None:
    """Return the table with a line for each row that has an expectation, by series and size; None without an expected time."""
    shown = [row for series in _series(rows) for row in series.rows if row.expectation is not None]
    columns = [*map(identity_column, _names(shown)), *(COLUMN_OF_KEY[key] for key in _ROW_COLUMNS)]
    return Frame(columns, shown) if shown else None


def slow_sizes_sentence(rows: Sequence[Row]) -> list[str]:
    """Return one sentence on the sizes that take longer than the run's other sizes explain; nothing without any."""
    slow = []
    for row in rows:
        expectation = row.expectation
        if expectation is None or not isinstance(expectation.origin, FromRunSizes):
            continue
        percent = expectation.percent_of_expected_time_high or expectation.percent_of_expected_time
        if percent is not None and percent < 100 / HOLDS_WITHIN:
            slow.append((percent, row))
    if not slow:
        return []
    _, worst = min(slow, key=lambda pair: pair[0])
    name = f"{operation_name(worst.operation)} over {worst.backend} at {format_size(worst.size_bytes)}"
    line = f"expected time: {name} reaches {of_expected_time(worst)} of what this run's other sizes predict"
    return [f"{line} (and {plural(len(slow) - 1, 'more row')})" if len(slow) > 1 else line]


def _series(rows: Sequence[Row]) -> list[SeriesExpectation]:
    modelled = [row for row in rows if row.expectation is not None and not isinstance(row.expectation.origin, TooFewSizes)]
    groups = grouped(modelled, series_of).values()
    return [SeriesExpectation(sorted(members, key=lambda row: row.size_bytes)) for members in groups]


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the fields that name a series: operation and backend, and those that differ within an operation over a backend."""
    within = PlanSummary.of(rows).within
    return [name for name in SERIES if name in _ALWAYS or name in within]


def _value_of_series(series: SeriesExpectation, name: str) -> str:
    return value_of(series.first, name)


def _range(series: SeriesExpectation) -> str:
    """Return "84–140 %"; a dash where no row has a percentage."""
    if not series.percents:
        return NOTHING
    low, high = (format_percent(pick(series.percents)[0]) for pick in (min, max))
    return low if low == high else f"{low.removesuffix(' %')}–{high}"


_SERIES_COLUMNS: tuple[Column[SeriesExpectation], ...] = (
    Column("", COLUMN_OF_KEY["percent_of_time"].title, _range, right=True),
    Column("", "lowest at", lambda series: format_size(min(series.percents)[1]) if series.percents else NOTHING, right=True, drop=1),
    Column("", "no model", lambda series: first_of(map(format_size, series.unmodelled), _MOST_SIZES) or NOTHING, drop=2),
    Column("", COLUMN_OF_KEY["expected_from"].title, lambda series: printable(series.origin), drop=3),
)
_ROW_COLUMNS = ("size", "time", "expected_time", "percent_of_time", "expected_from")
