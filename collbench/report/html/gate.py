"""The gate's section of the page: why, and groups, suspects and changes with their limits. The first screen has the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.gate.verdict import ACCEPTED, CLEARED, CONFIRMED, PASSED, FloorState, GroupState, Suspicion, Verdict
from collbench.report.cases import NOTHING
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.forest import SAME, SLOWER, ForestLine, ForestMark, forest
from collbench.report.material import Material
from collbench.report.verdict import (
    announced,
    cleared,
    fallen,
    name_of,
    of,
    of_floor,
    of_group,
    open_ones,
    sentences,
    slower,
    slower_in_each,
    worst_groups,
)

MOST_LINES = 60
_LEAST = 1.03  # so that equal values look equal
_AXIS = "← faster · time relative to the baseline · slower →"


@dataclass(frozen=True)
class JudgedLine:
    """A group or a case: its factors by allocation, their limit (None: not judged), its state, and the text of its tooltip."""

    name: str
    factors: Sequence[float | None]
    limit: float | None
    state: str
    tooltip: str

    @property
    def first(self) -> float | None:
        """In the first allocation, where it is known and there is something to judge it by."""
        return self.factors[0] if self.factors and self.limit is not None else None

    @property
    def over(self) -> bool:
        """Whether it exceeds its limit there."""
        return self.first is not None and self.limit is not None and self.first > self.limit

    @property
    def always_over(self) -> bool:
        """Whether it exceeds its limit in every allocation that measured it."""
        return self.over and all(factor > self.limit for factor in self.factors if factor is not None and self.limit is not None)

    def drawn(self) -> ForestLine:
        """Return its line of the chart: the first allocation filled, later ones open, and the limit."""
        color = "bad" if self.state == CONFIRMED else "ink" if self.over else "quiet"
        marks = [
            ForestMark(factor, SLOWER if self.limit is not None and factor > self.limit else SAME, f"{color}{' open' if number else ''}")
            for number, factor in enumerate(self.factors)
            if factor is not None
        ]
        words = f"{slower(self.first)}, limit {slower(self.limit)}"
        return ForestLine(self.name, marks, words, f"{self.name}\n{self.tooltip}", limit=self.limit)


_CASES = "gate-cells"
_MOST_ROWS, _MOST_FOLDED, _MOST_SENTENCES = 20, 200, 20  # rows of open tables, and of those folded below a chart
_METHOD = (
    "The time of an allocation is the median over its launches' medians, divided by the median over the baseline's allocations. "
    "The limit is what chance explains: three standard deviations between the baseline's allocations, pooled over cases of one kind, and "
    "at least a fixed minimum. Each point is an allocation of the candidate; the first one is the largest. What exceeds its limit in the "
    "first one is a suspect; what exceeds it in all three is confirmed."
)


def section(material: Material) -> Section | None:
    """Return the section; None without a verdict."""
    verdict = material.verdict
    if verdict is None:
        return None
    texts = [f"{text}." for text in (*fallen(verdict)[:_MOST_SENTENCES], *sentences(verdict.reasons, _MOST_SENTENCES))]
    notes = [f"Note: {text}." for text in sentences(verdict.notes, _MOST_SENTENCES)]
    charts = _charts(verdict)
    in_charts = "cell" if any(chart.key == _CASES for chart in charts) else None
    parts = [each for each in (*open_ones(verdict), *cleared(verdict)) if isinstance(each, Suspicion) and each.kind != in_charts]
    floors = sorted(verdict.floors, key=lambda each: (each.state == CLEARED, each.state != CONFIRMED))
    tables = [(_title("Slower, confirmed and worst first, cleared last", parts), _figures(parts)),
              (_title("Changes, the most plausible cause first", verdict.changes), _changes(verdict)),
              (_title("Required shares of the expected bandwidth (--min-percent)", floors), _figures(floors))]  # fmt: skip
    return Section("gate", "Gate", [*texts, *notes], [each for each in tables if each[1].rows], charts)


def _title(what: str, found: Sequence[object]) -> str:
    return f"{what} ({_MOST_ROWS} of {len(found)}; verdict.json has all)" if len(found) > _MOST_ROWS else what


def _figures(found: Sequence[Suspicion | FloorState], most: int = _MOST_ROWS) -> Table:
    shown = found[:most]
    rows = [[each.state, name_of(each), of(each) if isinstance(each, Suspicion) else of_floor(each)] for each in shown]
    return Table(["state", "what", "by allocation"], rows, marks=_marks([each.state for each in shown]))


def _changes(verdict: Verdict) -> Table:
    shown = verdict.changes[:_MOST_ROWS]
    rows = [
        [
            short(each.kind, 40),
            *(short(text) for text in (each.what, each.before, each.after, str(each.plausible or ""))),
            announced(each.announced),
        ]
        for each in shown
    ]
    marks = {place: "doubtful" for place, each in enumerate(shown) if each.announced is None}
    return Table(["kind", "what", "before", "now", "as a cause", "announced"], rows, marks=marks)


def _charts(verdict: Verdict) -> list[Chart]:
    """Return the charts of groups and of slower cases; none where nothing has both a time and a limit."""
    groups = [_of_group(each) for each in worst_groups(verdict.groups)]
    cases = [_of_case(each) for each in (*open_ones(verdict), *cleared(verdict)) if isinstance(each, Suspicion) and each.kind == "cell"]
    of_cases = _figures([each for each in verdict.suspicions if each.kind == "cell"], _MOST_FOLDED)
    charts = [("gate-groups", "Every group against its limit", groups, _group_table(verdict.groups)),
              (_CASES, "Cases that exceeded their limit", cases, of_cases)]  # fmt: skip
    return [chart for key, title, lines, table in charts if (chart := _chart(key, title, lines, table)) is not None]


def _chart(key: str, title: str, lines: Sequence[JudgedLine], table: Table) -> Chart | None:
    shown = sorted((each for each in lines if each.first is not None), key=lambda each: each.state != CONFIRMED)[:MOST_LINES]
    if not shown:
        return None
    picture = forest([each.drawn() for each in shown], _AXIS, _LEAST)
    always, first = sum(each.always_over for each in shown), sum(each.over for each in shown)
    cut = f" {len(shown)} of {len(lines)} are drawn." if len(shown) < len(lines) else ""
    again = f"; {first - always} only in the first one (largest point)" if first > always else ""
    caption = f"{always} of {len(shown)} exceed their limit (vertical mark) in every allocation{again}.{cut}"
    return Chart(key, title, caption, _METHOD, picture.markup(title), table, picture.tooltips, wide=True)


def _of_group(each: GroupState) -> JudgedLine:
    """Return its line: its own median where it is judged as one, else its worst case."""
    if each.limit is not None:
        return JudgedLine(name_of(each), each.factors, each.limit, each.state, f"{each.state}: {of_group(each)}")
    return JudgedLine(name_of(each), (each.worst_factor,), each.worst_limit, each.state, f"{each.state}: {of_group(each)}")


def _of_case(each: Suspicion) -> JudgedLine:
    return JudgedLine(name_of(each), each.factors, each.limit, each.state, f"{each.state}: {slower_in_each(each.factors)}")


def _group_table(groups: Sequence[GroupState]) -> Table:
    shown = worst_groups(groups)[:_MOST_FOLDED]
    rows = [[short(each.state, 20), each.outcome or NOTHING, name_of(each), str(each.cases), of_group(each)] for each in shown]
    return Table(["state", "outcome", "group", "cases", "by allocation"], rows, frozenset({3}), _marks([each.state for each in shown]))


def _marks(states: Sequence[str]) -> dict[int, str]:
    marks = {CONFIRMED: "wrong", PASSED: "", ACCEPTED: "", CLEARED: ""}
    return {place: mark for place, state in enumerate(states) if (mark := marks.get(state, "doubtful"))}
