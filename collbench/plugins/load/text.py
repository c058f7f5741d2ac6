"""Output of `collbench load`: a table of the victims' times with aggressors off and on, or a record per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from collbench.analysis.launches import known as known_number
from collbench.columns import value_columns
from collbench.plugins.load.interference import FEWEST_GROUPS, LoadInconclusive, fewest_samples, unknown_quantiles
from collbench.plugins.load.records import SHARES, LoadQuantile, LoadRow, SharedLink
from collbench.reason import decode_or_text
from collbench.records import RecordKind, printed
from collbench.report.cases import NOTHING, rate
from collbench.report.forms import FORMATS, csv_lines, frame_of
from collbench.report.frame import Column, Frame, Line, TextLayout, escaped, escaped_line, items, markdown_lines, printable
from collbench.report.headlines import short
from collbench.report.kinds import DeclaredKind
from collbench.report.screen import check_format, wrapped
from collbench.results.estimate import Estimate
from collbench.results.flags import explain
from collbench.results.row import UNDER_LOAD
from collbench.results.store import to_line
from collbench.units import first_of, format_percent, format_size, format_span, format_time, plural

if TYPE_CHECKING:
    from collbench.analysis.compare import CaseRatio
    from collbench.analysis.concerns import Concern
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material
    from collbench.results.row import Row


_MOST_NAMED, _MOST_COMPARED = 4, 16
_TITLES = {"p50": "p50", "p99": "p99", "p99_9": "p99.9"}
_LEAST = {"target": 13, "achieved": 8, "GB/s": 27, "wrong": 5, "result": 15} | {
    f"{name} {part}": width for name in _TITLES.values() for part, width in (("off µs", 9), ("on µs", 9), ("factor", 18))
}  # columns of a table whose rows are printed one after the other


def factor_text(factor: Estimate) -> str:
    """Return "1.82× (1.75–1.90×)"; without an interval a dash."""
    if factor.value is None or factor.low is None or factor.high is None:
        return NOTHING
    return f"{times_text(factor.value)} ({_digits(factor.low)}–{times_text(factor.high)})"


def times_text(factor: float) -> str:
    """Return "1.82×"."""
    return f"{_digits(factor)}×"


def _digits(factor: float) -> str:
    if factor >= 100:
        return f"{factor:.3g}"
    return f"{factor:.2f}" if factor < 10 else f"{factor:.1f}"


def _factor(name: str, drop: int) -> Column[LoadRow]:
    """Return the column of a quantile's factor, which stays longer than that of its times."""
    column: Column[LoadRow] = Column.of(
        _DECLARED[f"{name}_factor"], lambda row: factor_text(row.quantiles.get(name, LoadQuantile()).factor)
    )
    return replace(column, drop=drop)


def _aggressor_rate(row: LoadRow) -> str:
    if row.rate_bytes_per_s is None:
        return NOTHING
    share = f" ({format_percent(row.percent_of_link)} of the link)" if row.percent_of_link is not None else ""
    return f"{rate(row.rate_bytes_per_s)}{share}"


_DECLARED = {column.name: column for column in value_columns(LoadRow)}
_COLUMNS: tuple[Column[LoadRow], ...] = (
    Column.of(_DECLARED["aggressors"]),
    Column.of(_DECLARED["level"], lambda row: f"{100 * row.level:g} %" if row.level else "0 % (control)"),
    Column.of(_DECLARED["achieved"], lambda row: NOTHING if row.achieved is None else format_percent(100 * row.achieved)),
    Column.of(_DECLARED["rate_bytes_per_s"], _aggressor_rate),
    *(
        column
        for name, drop in (("p50", 0), ("p99", 2), ("p99_9", 3))
        for column in (Column.of(_DECLARED[f"{name}_off_s"]), Column.of(_DECLARED[f"{name}_on_s"]), _factor(name, drop))
    ),
    Column.of(_DECLARED["wrong"]),
    Column.of(_DECLARED["verdict"], lambda row: row.verdict if row.na is None else f"n/a ({row.na})", wrap=True),
)


def style(row: LoadRow) -> str:
    """Return the style of the row's line."""
    if row.wrong:
        return "wrong"
    if row.na:
        return "na"
    return "doubtful" if row.verdict == "inconclusive" else ""


def sorted_rows(rows: Sequence[LoadRow]) -> list[LoadRow]:
    """Return the rows in ascending level, pattern after pattern; they are measured in random order."""
    patterns = list(dict.fromkeys(row.aggressors for row in rows))
    return sorted(rows, key=lambda row: (patterns.index(row.aggressors), row.level))


class ShownTimes(NamedTuple):
    """A line of the table of the victims' times: a row, with aggressors off or on."""

    row: LoadRow
    on: bool

    def text(self, name: str) -> str:
        """Return a quantile in µs with its 95 % interval, as far as they are known: "12.1 (11.9–12.6)"."""
        quantile = self.row.quantiles.get(name, LoadQuantile())
        time = quantile.on if self.on else quantile.off
        if time.value is None:
            return NOTHING
        interval = "" if time.low is None or time.high is None else f" ({format_time(time.low)}–{format_time(time.high)})"
        return f"{format_time(time.value)}{interval}"


_TIMES: tuple[Column[ShownTimes], ...] = (
    Column("", "aggressors", lambda times: times.row.aggressors),
    Column("", "target", lambda times: f"{100 * times.row.level:g} %", right=True),
    Column("", "state", lambda times: "on" if times.on else "off"),
    Column("", "samples", lambda times: f"{times.row.n_on if times.on else times.row.n_off:,}", right=True),
    *(Column("", f"{_TITLES[name]} µs (95 % CI)", partial(ShownTimes.text, name=name), right=True) for name in SHARES),
)


def times_frame(rows: Sequence[LoadRow]) -> Frame[ShownTimes]:
    """Return the table of the victims' times with aggressors off and on, with the intervals of the quantiles."""
    return Frame(_TIMES, [ShownTimes(row, on) for row in sorted_rows(rows) if row.na is None for on in (False, True)])


def title(rows: Sequence[LoadRow]) -> str:
    """Return the headline: "allreduce 8 B on mpi · 2 victim ranks · 2 aggressor ranks · 2 nodes"."""
    first = rows[0]
    parts = [
        f"{first.victim} {format_size(first.size_bytes)} on {first.backend}", plural(len(first.victims), "victim rank"),
        plural(len(first.others), "aggressor rank"), f"messages of {format_size(first.message_bytes)}", plural(first.nodes, "node"),
    ]  # fmt: skip
    if first.preset:
        parts.append(f"preset {first.preset}")
    return " · ".join(parts)


def row_name(row: LoadRow) -> str:
    """Return "incast at 50 %"."""
    return f"{row.aggressors} at {100 * row.level:g} %"


def remarks(rows: Sequence[LoadRow]) -> list[str]:
    """Return the sentences below the table: the shared links, missing quantiles, why rows are inconclusive, and the flags' meanings."""
    return list(dict.fromkeys(_remarks(rows)))


def _remarks(rows: Sequence[LoadRow]) -> Iterator[str]:
    for row in rows:
        if row.wrong:
            yield row.wrong_detail or "wrong data"
    for link in list(dict.fromkeys(chain.from_iterable(row.shared for row in rows)))[:8]:
        if link.kind == "host":
            yield f"shared link: {link.name} on {link.place}{_directions(link)}"
        else:
            yield "no host has ranks of both sides: they can share only links between hosts, which the probe does not see"
    apart = [row for row in rows if row.shared and all(link.opposite for link in row.shared)]
    if apart:
        yield f"victims and aggressors use opposite directions of the shared links, which full-duplex links carry at once{_of(apart, rows)}"
    for name, share in SHARES.items():
        lacking = [row for row in rows if row.na is None and row.blocks >= FEWEST_GROUPS and name in unknown_quantiles(row.quantiles)]
        if lacking:
            need = f"{FEWEST_GROUPS * fewest_samples(share):,} samples off and as many on"
            yield f"no interval of {_TITLES[name]}{_of(lacking, rows)}: it needs {need}; use a larger --max-time"
    reasons = [(row, decode_or_text(row.reason, LoadInconclusive)) for row in rows if row.reason]
    for reason in dict.fromkeys(_general(fact) for _, fact in reasons):
        doubtful = [(row, fact) for row, fact in reasons if _general(fact) == reason]
        shown = doubtful[0][1] if len(doubtful) == 1 else reason  # several rows have their intervals in the table
        yield f"{shown}{_of([row for row, _ in doubtful], rows)}"
    if any(row.level == 0 for row in rows):
        yield "at 0 % no aggressor sends in either block: the factor must be 1 within its interval"
    yield from explain(flag for row in rows for flag in row.flags)


def _directions(link: SharedLink) -> str:
    """Return ": victims and aggressors send, aggressors receive"; "" if it is unknown."""
    parts = [f"{' and '.join(sides)} {verb}" for sides, verb in ((link.senders, "send"), (link.receivers, "receive")) if sides]
    return f": {', '.join(parts)}" if parts else ""


def _general(fact: object) -> object:
    """Return the reason without the interval of its row."""
    return LoadInconclusive(fact.why, fact.blocks) if isinstance(fact, LoadInconclusive) else fact


def _of(some: Sequence[LoadRow], rows: Sequence[LoadRow]) -> str:
    """Return the names of some of the rows in parentheses, after a space; "" for all of them."""
    return "" if len(some) == len(rows) else f" ({first_of(map(row_name, some), _MOST_NAMED)})"


def compared_sentences(cases: Sequence[CaseRatio]) -> Iterator[str]:
    """Yield how to read the rows of a comparison of load runs, and the factors of both sides with their intervals."""
    loaded = [case for case in cases if case.a.mode == UNDER_LOAD]
    yield "mode load: A, B and the outcome refer to the factor (time under load / time alone); rows without load have times"
    for case in loaded[:_MOST_COMPARED]:
        name = f"{case.a.operation} {format_size(case.a.size_bytes)} {case.a.traffic}"
        yield printable(f"factor of {name}: {_factor_of(case.a)} → {_factor_of(case.b)}")
    if len(loaded) > _MOST_COMPARED:
        yield f"and {len(loaded) - _MOST_COMPARED} more: see --format csv"


def _factor_of(row: Row) -> str:
    numbers = map(row.interference.get, ("factor", "low", "high"))
    factor = Estimate(*(number if known_number(number) else None for number in numbers))
    if factor.low is not None:
        return factor_text(factor)
    return "unknown" if factor.value is None else times_text(factor.value)


def _kept(rows: Sequence[LoadRow]) -> dict[str, str]:
    return {row.wrong_detail or "wrong data": "wrong" for row in rows if row.wrong}


INTERFERENCE = RecordKind("load", LoadRow, title, remarks, sorted_rows, style, _COLUMNS, kept=_kept)


class LoadWriter:
    """The lines of rows that are printed one after the other, each when it is finished. Raises UsageError for an unknown format.

    run    the name of the run's folder, for CSV
    width  columns of the terminal; None: a file, with all columns
    """

    def __init__(self, format: str, run: str, patterns: Sequence[str], width: int | None) -> None:
        check_format(format, FORMATS, " for load")
        self._format = format
        self._run = run
        self._width = width
        columns = [replace(column, least=_LEAST.get(column.title, 0)) for column in _COLUMNS]
        columns[0] = replace(columns[0], least=max(map(len, patterns), default=0))
        frame: Frame[LoadRow] = Frame(columns, (), style=style, instead=lambda row: f"n/a ({row.na})" if row.na else None)
        self._layout = TextLayout(frame, width)
        self._rows: list[LoadRow] = []

    def row(self, row: LoadRow) -> list[Line]:
        """Return the lines of a finished row; of the first one below the headline or the header."""
        self._rows.append(row)
        first = len(self._rows) == 1
        if self._format == "csv":
            return list(csv_lines(INTERFERENCE, [row], self._run, not first))
        if self._format == "json":
            return [Line(to_line(printed(row)))]
        head = [Line(printable(title([row])), "head"), Line(self._layout.heading(), "head")] if first else []
        return [*wrapped(head[:1], self._width), *head[1:], *self._layout.lines(row)]

    def end(self) -> list[Line]:
        """Return the sentences below the table of all rows."""
        if self._format != "table" or not self._rows:
            return []
        sentences = [*self._layout.hidden(), *remarks(self._rows)]
        kept = _kept(self._rows)
        return list(wrapped([Line(printable(text), kept.get(text, "foot")) for text in sentences], self._width))


# The kind of run.


class LoadKind(DeclaredKind):
    """Interference."""

    what = "interference"
    drawn = True
    declared = INTERFERENCE

    def place_of(self, row: LoadRow) -> str:
        """Return the victims and the aggressors."""
        return f"{row.victim} on {row.backend} against {row_name(row)}"

    def concerns_of(self, row: LoadRow) -> Iterator[Concern]:
        """Yield wrong data, interference, and rows that were not measured or are inconclusive."""
        from collbench.analysis.concerns import DOUBTFUL, FINDING, Concern

        yield from super().concerns_of(row)
        if row.na is None and row.verdict == "interference":
            yield Concern(FINDING, f"interference: {factor_text(row.factor)}", self.place_of(row))
        if row.na is None and row.verdict == "inconclusive":
            yield Concern(DOUBTFUL, "inconclusive", self.place_of(row))

    def markdown(self, material: Material) -> Iterator[str]:
        """Yield the tables and remarks of each run."""
        for run, rows in material.of_kind(self.name):
            if rows:
                yield from ("", f"## {escaped(short(run.path.resolve().name, 80))}", "", escaped_line(title(rows)), "")
                yield from (line.text for line in markdown_lines(frame_of(INTERFERENCE, rows)))
                yield from ("", *(line.text for line in markdown_lines(times_frame(rows))), "", *items(remarks(rows)))

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the largest factor."""
        from collbench.report.html.first_screen import BAD, DOUBT, GOOD, FirstScreen, LargeFigure, line_of

        runs = material.of_kind(self.name)
        rows = [row for _, run_rows in runs for row in run_rows]
        if not rows:
            return None
        line = line_of(runs[0][0])
        worst = max(rows, key=lambda row: (bool(row.wrong), row.verdict == "interference", row.factor.value or 0.0))
        measured = f"{worst.victim} on {plural(worst.nodes, 'node')} while {worst.aggressors} runs at {100 * worst.level:g} %"
        if worst.factor.value is None:
            return FirstScreen(f"{measured}: not measured", (DOUBT, "NOT MEASURED"), (), line, (), "load")
        badges = {
            "interference": (BAD, "INTERFERENCE"),
            "no interference": (GOOD, "NO INTERFERENCE"),
            "inconclusive": (DOUBT, "INCONCLUSIVE"),
        }
        badge = (BAD, "WRONG DATA") if any(row.wrong for row in rows) else badges[worst.verdict]
        figures = [LargeFigure(times_text(worst.factor.value), "time with aggressors / time without")]
        times = worst.quantiles["p50"]
        for value, label in ((times.off.value, "median time alone"), (times.on.value, "median time with aggressors")):
            if value is not None:
                figures.append(LargeFigure(format_span(value), label))
        compared = [row for row in sorted_rows(rows) if row is not worst and row.factor.value]
        notes = [f"{row_name(row)}: {factor_text(row.factor)}, {row.verdict}" for row in compared]
        answer = f"{worst.verdict}, {factor_text(worst.factor)} the time without aggressors"
        return FirstScreen(f"{measured}: {answer}", badge, figures, line, notes, "load")


LOAD = LoadKind()
