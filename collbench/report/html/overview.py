"""The section "Overview": what was measured, where, how fast, and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from collbench.analysis.best import Peak, differing, peaks
from collbench.analysis.concerns import BROKEN, DOUBTFUL, FINDING, MISSING, NOTE, WRONG, Concern
from collbench.analysis.launches import Launches
from collbench.report.cases import NOTHING, doubtful, limited_by, remarks, value_of
from collbench.report.headlines import (
    NO_CONCERNS,
    circumstances,
    concern_sentence,
    figure,
    has_share,
    latency,
    short,
    speed,
    subject,
    where,
)
from collbench.report.html.chart import Section, Table
from collbench.report.html.material import Material
from collbench.report.hunt import describe_hunt
from collbench.report.pairs import measured
from collbench.report.training import title, trainings
from collbench.results.flags import FLAGS, explain
from collbench.results.reader import Run
from collbench.results.row import Row

if TYPE_CHECKING:
    from collbench.analysis.pairs import PairEffects
    from collbench.results.rounds import StoredPairs


# The peaks as a table: a row each, or a row for each operation and a column for each backend if there are many.

MOST, _MANY = 80, 12
Peaks = Sequence[tuple[Launches, Peak]]


def peak_table(best: Peaks) -> Table:
    """Return the table of the first 80 peaks, with the name of the run if there are several, and with the fields that differ."""
    varying = differing(peak for _, peak in best)
    named = len({id(table) for table, _ in best}) > 1
    backends = list(dict.fromkeys(peak.row.backend for _, peak in best))
    if len(best) > _MANY and 1 < len(backends) <= 6:
        return _crossed(best, varying, named, backends)
    shown = best[:MOST]
    rows = [[*_name(each, ["operation", "backend", *varying], named), *_cases(*each)] for each in shown]
    titles = ["operation", "backend", *varying, "peak", "at", "smallest message"]
    return Table([*(["run"] if named else []), *titles], rows, marks=_marks([[peak.row] for _, peak in shown]))


def _cases(table: Launches, peak: Peak) -> list[str]:
    row = peak.row
    text = " · ".join(part for part in (figure(row), remarks(row)) if part)
    return [short(text), where(row, table.rows), latency(peak)]


def _crossed(best: Peaks, varying: Sequence[str], named: bool, backends: Sequence[str]) -> Table:
    lines: dict[tuple[object, ...], dict[str, Row]] = {}
    for table, peak in best:  # two runs may have one name
        name = (id(table), *_name((table, peak), ["operation", *varying], named))
        lines.setdefault(name, {})[peak.row.backend] = peak.row
    shown = list(lines.items())[:MOST]
    rows = [[*map(str, name[1:]), *(_at(of.get(backend)) for backend in backends), _limits(of)] for name, of in shown]
    titles = [*(["run"] if named else []), "operation", *varying, *(short(backend, 40) for backend in backends), "limited by"]
    return Table(titles, rows, marks=_marks([list(of.values()) for _, of in shown]))


def _name(each: tuple[Launches, Peak], fields: Sequence[str], named: bool) -> list[str]:
    table, peak = each
    return [*([short(table.name, 80)] if named else []), *(short(value_of(peak.row, name), 80) for name in fields)]


def _at(row: Row | None) -> str:
    if row is None:
        return NOTHING
    return short(speed(row)) if row.na is not None or row.wrong else f"{short(speed(row))} at {where(row, [row])}"


def _limits(of: dict[str, Row]) -> str:
    """Return what limits the rows: once if it is the same for all, else with the backends."""
    limits: dict[str, list[str]] = {}
    for backend, row in of.items():
        if has_share(row):
            limits.setdefault(limited_by(row), []).append(backend)
    if len(limits) == 1:
        return short(next(iter(limits)))
    return short("; ".join(f"{', '.join(backends)}: {limit}" for limit, backends in limits.items()), 600)


def _marks(lines: Sequence[Sequence[Row]]) -> dict[int, str]:
    """Return the style of each line, by its worst row; "na" if none was measured."""
    marks = {number: "wrong" if any(row.wrong for row in rows) else "doubtful" if any(map(doubtful, rows)) else ""
             for number, rows in enumerate(lines)}  # fmt: skip
    marks |= {number: "na" for number, rows in enumerate(lines) if all(row.na is not None for row in rows)}
    return {number: mark for number, mark in marks.items() if mark}


_MOST_RUNS, _MOST_BAD = 5, 3
_BARE = ("group", "ranks", "nodes")  # values that need their name
_BAD = (WRONG, BROKEN, FINDING)
_MARKS = {WRONG: "wrong", BROKEN: "wrong", FINDING: "wrong", DOUBTFUL: "doubtful", MISSING: "na", NOTE: ""}
_PEAKS = "Peaks: the highest bus bandwidth of each operation over each backend, and the expected one"


def section(material: Material) -> Section | None:
    """Return the section: what was measured, peaks, concerns. It is never empty."""
    found = material.concerns
    subjects = _subjects(material)
    measured_on = [("What was measured", _side_by_side(subjects))] if subjects else []
    concerns = [(f"Findings and flags, worst first ({len(found)})", _concerns(found))] if found else []
    best = [(table, each) for table in material.tables for each in peaks(material.rows(table))]
    highest = [(_caption(best, shown), shown)] if best and (shown := peak_table(best)) else []
    texts = [*_judged(material), *_summary(found), *_against(material), *_left_out(subjects)]
    return Section("overview", "Overview", texts, [*measured_on, *highest, *concerns])


def _summary(found: Sequence[Concern]) -> list[str]:
    """Return the number of concerns of each severity, and the worst ones as sentences."""
    if not found:
        return [NO_CONCERNS]
    counts = Counter(each.severity for each in found)
    numbers = ", ".join(f"{number} × {severity}" for severity, number in counts.items())
    bad = [concern_sentence(each) for each in found if each.severity in _BAD]
    return [f"Concerns: {numbers}.", *(f"{short(sentence, 600)}." for sentence in bad[:_MOST_BAD])]


def _judged(material: Material) -> list[str]:
    """Return the verdict of the gate, if there is one."""
    if material.verdict is None:
        return []
    from collbench.report.verdict import headline, judged

    return [f"Gate: {headline(material.verdict)} ({judged(material.verdict)})."]


def _against(material: Material) -> list[str]:
    """Return a sentence for each of the first comparisons with the baseline."""
    from collbench.report.html.against import sentence

    return [f"Compared with {short(each.a.name, 80)}: {sentence(each)}" for each in material.comparisons[:_MOST_BAD]]


def _subjects(material: Material) -> list[tuple[str, dict[str, str]]]:
    """Return the name of each table and matrix with its facts."""
    tables = [(table.name, subject(table)) for table in material.tables]
    matrices = zip(material.pairs, material.effects, strict=True)
    others = [
        *((run, describe_hunt({**stored.about, "rounds": len(stored.rounds)})) for run, stored in material.hunts),
        *((run, "; ".join(map(title, trainings(rows)))) for run, _, rows in material.trainings),
    ]
    return [
        *tables, *((run.path.resolve().name, _of_pairs(run, stored, effects)) for (run, stored), effects in matrices),
        *((run.path.resolve().name, {"measured": short(text, 600), **circumstances(run)}) for run, text in others),
    ]  # fmt: skip


def _of_pairs(run: Run, stored: StoredPairs, effects: PairEffects) -> dict[str, str]:
    about = {**stored.about, "rounds": len({one.round for one in stored.rounds if not one.again})}
    return {"measured": short(measured(effects.matrix, about)), **circumstances(run)}


def _side_by_side(subjects: Sequence[tuple[str, dict[str, str]]]) -> Table:
    """Return a table with a column for each run, without empty rows."""
    shown = subjects[:_MOST_RUNS]
    facts = [fact for fact in dict.fromkeys(fact for _, known in shown for fact in known) if any(known.get(fact) for _, known in shown)]
    return Table(["", *(short(name, 80) for name, _ in shown)], [[fact, *(known.get(fact, "") for _, known in shown)] for fact in facts])


def _left_out(subjects: Sequence[object]) -> list[str]:
    more = len(subjects) - _MOST_RUNS
    return [f"The table below shows the first {_MOST_RUNS} runs; {more} more are in the other sections."] if more > 0 else []


def _caption(best: Sequence[object], shown: Table) -> str:
    left = f"; {len(best)} peaks, the first {MOST} lines" if len(shown.rows) == MOST else ""
    return f"{_PEAKS}{left}"


def _concerns(found: Sequence[Concern]) -> Table:
    """Return the table of concerns; it has a column for the place if any concern has one."""
    rows = [[each.severity, short(_meant(each), 600), short(each.where, 600)] for each in found]
    marks = {number: mark for number, each in enumerate(found) if (mark := _MARKS[each.severity])}
    columns = 3 if any(each.where for each in found) else 2
    return Table(["severity", "what", "where"][:columns], [row[:columns] for row in rows], marks=marks)


def _meant(concern: Concern) -> str:
    """Return the meaning of a flag ("drift: the median moved …"), or the sentence of any other concern."""
    return explain([concern.flag])[0] if concern.flag in FLAGS else concern.what
