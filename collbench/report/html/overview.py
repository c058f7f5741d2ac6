"""The section "Results": what was measured, the headline of each operation over each backend, and what is wrong or missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.analysis.best import headlines, is_shown_as_time
from collbench.analysis.concerns import BROKEN, DOUBTFUL, FINDING, MISSING, NOTE, WRONG, Concern
from collbench.analysis.launches import Launches
from collbench.report.headlines import headline_frame, short, subject
from collbench.report.html.chart import Section, Table, marks_of
from collbench.report.material import Material
from collbench.results.flags import FLAGS, explain
from collbench.results.row import Row
from collbench.units import plural

MOST, _MOST_RUNS = 80, 8
_MARKS = {WRONG: "wrong", BROKEN: "wrong", FINDING: "wrong", DOUBTFUL: "doubtful", MISSING: "na"}
_FACTS = ("measured", "how", "launches", "imported from")


def section(material: Material) -> Section | None:
    """Return the section; None if there is nothing beyond the first screen."""
    best = [(table, each) for table in material.tables for each in headlines(material.rows(table))]
    known = (NOTE,) if best else (NOTE, FINDING, DOUBTFUL, WRONG)  # hunts, pairs and training have sections of their own
    found = [each for each in material.concerns if each.severity not in known]
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
    tables += [("Findings, and what is doubtful or missing", _concerns(found))] if found else []
    return Section("overview", "Results", list(_measured(material.tables)), tables) if tables else None


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


def _concerns(found: Sequence[Concern]) -> Table:
    """Return the table of concerns; it has a column for the place if any concern has one. A flag has its meaning."""
    columns = 3 if any(each.where for each in found) else 2
    rows = [(each.severity, explain([each.flag])[0] if each.flag in FLAGS else each.what, each.where)[:columns] for each in found]
    return Table(["severity", "what", "where"][:columns], rows, marks=marks_of(_MARKS[each.severity] for each in found))
