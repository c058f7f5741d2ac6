"""What was measured, on what, how fast, and what is wrong: the first screen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from collbench.analysis.best import Peak, differing, peaks
from collbench.analysis.concerns import BROKEN, DOUBTFUL, FINDING, MISSING, NOTE, WRONG, Concern
from collbench.analysis.launches import Launches
from collbench.report.columns import NOTHING, value_of
from collbench.report.flags import FLAGS
from collbench.report.headlines import circumstances, short, subject
from collbench.report.html import peak_bars
from collbench.report.html.chart import Section, Table
from collbench.report.html.material import Material
from collbench.report.html.peak_table import MOST, peak_table
from collbench.report.pairs import measured
from collbench.results.reader import Run
from collbench.results.row import Row

if TYPE_CHECKING:
    from collbench.analysis.pairs import PairEffects
    from collbench.results.rounds import StoredPairs

_MOST_RUNS, _MOST_BAD = 5, 3
_BARE = ("group", "ranks", "nodes")  # whose values say nothing without their name
_BAD = (WRONG, BROKEN, FINDING)
_MARKS = {WRONG: "wrong", BROKEN: "wrong", FINDING: "wrong", DOUBTFUL: "doubtful", MISSING: "na", NOTE: ""}
_PEAKS = "Peaks: the highest bus bandwidth of each operation over each backend, of what it could be"
_CLEAN = "Nothing stands out: no finding, no flag on any row, nothing missing."


def section(material: Material) -> Section | None:
    """What was measured, the peaks, what is wrong or doubtful; there is always something to say."""
    found = material.concerns
    subjects = _subjects(material)
    measured_on = [("What was measured", _side_by_side(subjects))] if subjects else []
    concerns = [(f"Findings and flags, worst first ({len(found)})", _concerns(found))] if found else []
    best = [(table, each) for table in material.tables for each in peaks(material.rows(table))]
    highest = [(_caption(best, shown), shown)] if best and (shown := peak_table(best)) else []
    drawn = peak_bars.chart(_labelled(best))
    texts = [*_judged(material), *_summary(found), *_against(material), *_left_out(subjects)]
    return Section("overview", "Overview", texts, [*measured_on, *highest, *concerns], [drawn] if drawn else [])


def _summary(found: Sequence[Concern]) -> list[str]:
    """How many there are of each severity, and the worst one in words, where it is bad."""
    if not found:
        return [_CLEAN]
    counts = Counter(each.severity for each in found)
    told = ", ".join(f"{number} × {severity}" for severity, number in counts.items())
    bad = [each.sentence() for each in found if each.severity in _BAD]
    return [f"To know before any figure: {told}.", *(f"{short(sentence, 600)}." for sentence in bad[:_MOST_BAD])]


def _judged(material: Material) -> list[str]:
    """What the gate said, where it was asked."""
    if material.verdict is None:
        return []
    from collbench.report.words import headline, judged

    return [f"The gate says: {headline(material.verdict)} ({judged(material.verdict)})."]


def _against(material: Material) -> list[str]:
    """The first runs against the baseline, in a sentence each."""
    from collbench.report.html.against import sentence

    return [f"Against {short(each.a.name, 80)}: {sentence(each)}" for each in material.comparisons[:_MOST_BAD]]


def _subjects(material: Material) -> list[tuple[str, dict[str, str]]]:
    """The name of each table and matrix with what there is to know of it."""
    tables = [(table.name, subject(table)) for table in material.tables]
    matrices = zip(material.pairs, material.effects, strict=True)
    return [*tables, *((run.path.resolve().name, _of_pairs(run, stored, effects)) for (run, stored), effects in matrices)]


def _of_pairs(run: Run, stored: StoredPairs, effects: PairEffects) -> dict[str, str]:
    about = {**stored.about, "rounds": len({one.round for one in stored.rounds if not one.again})}
    return {"measured": short(measured(effects.matrix, about)), **circumstances(run)}


def _side_by_side(subjects: Sequence[tuple[str, dict[str, str]]]) -> Table:
    """A column for each run; a line that no run has anything to say in is left out."""
    shown = subjects[:_MOST_RUNS]
    facts = [fact for fact in dict.fromkeys(fact for _, known in shown for fact in known) if any(known.get(fact) for _, known in shown)]
    return Table(["", *(short(name, 80) for name, _ in shown)], [[fact, *(known.get(fact, "") for _, known in shown)] for fact in facts])


def _left_out(subjects: Sequence[object]) -> list[str]:
    more = len(subjects) - _MOST_RUNS
    return [f"The table below shows {_MOST_RUNS} runs, {more} more are in the other parts of this page."] if more > 0 else []


def _caption(best: Sequence[object], shown: Table) -> str:
    left = f"; {len(best)} peaks, the first {MOST} lines" if len(shown.rows) == MOST else ""
    return f"{_PEAKS}{left}"


def _labelled(best: Sequence[tuple[Launches, Peak]]) -> list[tuple[str, Row]]:
    """Each peak's row with what tells it from the others: "allreduce · nccl", with the run where there are several, the mode …"""
    alike: dict[tuple[int, str, str], list[Peak]] = defaultdict(list)
    for table, peak in best:
        alike[id(table), peak.row.operation, peak.row.backend].append(peak)
    several = len({id(table) for table, _ in best}) > 1
    return [
        (" · ".join([*([short(table.name, 16)] if several else []), row.operation, row.backend, *_apart(row, differing(rivals))]), row)
        for table, peak in best
        for row, rivals in [(peak.row, alike[id(table), peak.row.operation, peak.row.backend])]
    ]


def _apart(row: Row, names: Sequence[str]) -> list[str]:
    """These fields of it, in words."""
    known = [(name, text) for name in names if (text := value_of(row, name)) != NOTHING]
    return [f"{name} {text}" if name in _BARE else text for name, text in known]


def _concerns(found: Sequence[Concern]) -> Table:
    """What it is and what that means in one column; where, if any of them has a place."""
    rows = [[each.severity, short(_meant(each), 600), short(each.where, 600)] for each in found]
    marks = {number: mark for number, each in enumerate(found) if (mark := _MARKS[each.severity])}
    columns = 3 if any(each.where for each in found) else 2
    return Table(["severity", "what", "where"][:columns], [row[:columns] for row in rows], marks=marks)


def _meant(concern: Concern) -> str:
    """ "drift: the median moved …"; what is no flag explains itself."""
    return f"{concern.what}: {FLAGS[concern.flag]}" if concern.flag in FLAGS else concern.what
