"""The section "Results": what was measured, the headline of each operation over each backend, and what is wrong or missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.analysis.best import Headline, differing, headlines, is_shown_as_time
from collbench.analysis.concerns import BROKEN, DOUBTFUL, FINDING, MISSING, NOTE, WRONG
from collbench.analysis.launches import Launches
from collbench.report.cases import of_ceiling, remarks, value_of
from collbench.report.charts import Bar, BarPanel, point_of
from collbench.report.headlines import headline_frame, short, subject
from collbench.report.html.chart import Chart, Section, Table, marks_of
from collbench.report.html.picture import bar_chart
from collbench.report.material import Material
from collbench.results.flags import FLAGS, explain
from collbench.results.row import Row
from collbench.units import format_size, plural

MOST = 80
_MOST_RUNS = 8
_MARKS = {WRONG: "wrong", BROKEN: "wrong", FINDING: "wrong", DOUBTFUL: "doubtful", MISSING: "na"}
_MOST_BARS = 24
_METHOD = (
    "For each operation over each backend, the bus bandwidth at the largest size of at least 4 MiB that is not unreliable (else at the "
    "largest size), divided by the expected bandwidth; the line is the 95 % interval of the median. The vertical mark is 100 %. An open "
    "bar is doubtful or has wrong data. Nothing is averaged over sizes."
)
_FACTS = ("measured", "how", "launches", "imported from")


def section(material: Material) -> Section | None:
    """Return the section; None if there is nothing beyond the first screen."""
    best = [(table, headline) for table in material.tables for headline in headlines(material.rows(table))]
    left_out = (NOTE,) if best else (NOTE, FINDING, DOUBTFUL, WRONG)  # hunts, pairs and training have sections of their own
    concerns = [concern for concern in material.concerns if concern.severity not in left_out]
    timed = [record for record in best if _has_only_a_time(record[1].row)]
    rated = [record for record in best if not _has_only_a_time(record[1].row)]
    tables = []
    for title, figure, records in (
        ("Bus bandwidth of large messages", "bus bandwidth", rated),
        ("Time of operations without a bandwidth", "time", timed),
    ):
        more = f" (the first {MOST} of {len(records)})" if len(records) > MOST else ""
        if records:
            tables.append((f"{title}{more}", Table.of(headline_frame(records[:MOST], figure))))
    charts = [chart for chart in [_rates_chart([headline for _, headline in best])] if chart is not None]
    if concerns:  # with a column for the place if any concern has one; a flag has its meaning
        columns = 3 if any(concern.where for concern in concerns) else 2
        texts = [explain([concern.flag])[0] if concern.flag in FLAGS else concern.what for concern in concerns]
        rows = [(concern.severity, text, concern.where)[:columns] for concern, text in zip(concerns, texts, strict=True)]
        marks = marks_of(_MARKS[concern.severity] for concern in concerns)
        tables.append(("Findings, and what is doubtful or missing", Table(["severity", "what", "where"][:columns], rows, marks=marks)))
    return Section("overview", "Results", list(_measured(material.tables)), tables, charts) if tables else None


def _rates_chart(best: Sequence[Headline]) -> Chart | None:
    """Return the share of the expected bandwidth of each operation over each backend, the worst first; None for one operation."""
    points = [(headline, point_of(headline.row)) for headline in best if not is_shown_as_time(headline.row)]
    rated = [(headline, point.percent, bool(point.state)) for headline, point in points if point.percent is not None]
    if len({headline.row.operation for headline, _, _ in rated}) < 2:
        return None
    rated.sort(key=lambda entry: entry[1].value)
    backends = list(dict.fromkeys(headline.row.backend for headline in best))
    fields = ["operation", "backend", *differing(headline for headline, _, _ in rated)]
    bars: list[Bar] = []
    rows: list[list[str]] = []
    for headline, percent, is_open in rated:
        row = headline.row
        interval = None if percent.low is None or percent.high is None else (percent.low, percent.high)
        values = [value_of(row, field) for field in fields]
        text = f"{of_ceiling(row)} at {format_size(row.size_bytes)}"
        color = backends.index(row.backend)
        bars.append(Bar(" ".join(values), text, percent.value, interval, 100.0, color, is_open=is_open))
        rows.append([*values, text, remarks(row)])
    shown = bars[:_MOST_BARS]
    less = f" Drawn are the lowest {len(shown)} of {len(bars)}." if len(shown) < len(bars) else ""
    caption = f"{bars[0].name}: {bars[0].text}; {bars[-1].name}: {bars[-1].text}.{less}"
    table = Table([*fields, "of the expected bandwidth", "remarks"], rows)
    chart = Chart("operations", "Each operation, as a share of what is expected", caption, _METHOD, table)
    return bar_chart(chart, BarPanel("", shown, "% of the expected bandwidth"))


def _has_only_a_time(row: Row) -> bool:
    return row.na is None and not row.wrong and is_shown_as_time(row)


def _measured(tables: Sequence[Launches]) -> Iterator[str]:
    """Yield what was measured, and how; with the name of the run if there are several."""
    for table in tables[:_MOST_RUNS]:
        facts = subject(table)
        name = f"{short(table.name, 80)}: " if len(tables) > 1 else ""
        yield f"{name}{'; '.join(facts[fact] for fact in _FACTS if facts.get(fact))}."
    if len(tables) > _MOST_RUNS:
        yield f"And {plural(len(tables) - _MOST_RUNS, 'more run')}."
