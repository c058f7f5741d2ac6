"""The gate's section of the page: why, and groups, suspects and changes with their limits. The first screen has the result."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from collbench.analysis.outcome import Outcome
from collbench.gating.verdict import CLEARED, CONFIRMED, Change, FloorState, Suspicion, Verdict
from collbench.report import verdict as texts_of
from collbench.report.charts import RatioLine, RatioMark, RatioPanel
from collbench.report.frame import Column, Frame
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.picture import ratio_chart
from collbench.report.material import Material
from collbench.report.verdict import of, slower, worst_groups

MOST_LINES = 60
_LEAST = 1.03  # so that equal values look equal
_AXIS = "← faster · time relative to the baseline · slower →"


class JudgedLine(msgspec.Struct, frozen=True):
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
    def over(self) -> list[bool]:
        """By allocation that measured it, whether it exceeds its limit there; empty where it is not judged."""
        return [] if self.first is None else [factor > (self.limit or 0.0) for factor in self.factors if factor is not None]

    def drawn(self) -> RatioLine:
        """Return its line of the chart: the first allocation filled, later ones open, and the limit."""
        role = "quiet"
        if self.state == CONFIRMED:
            role = "slower"
        elif self.over[:1] == [True]:
            role = "ink"
        measured = [(number, factor) for number, factor in enumerate(self.factors) if factor is not None]
        marks = [
            RatioMark(factor, Outcome.SLOWER if over else Outcome.NO_CHANGE, role, is_open=number > 0)
            for (number, factor), over in zip(measured, self.over, strict=True)
        ]
        words = f"{slower(self.first)}, limit {slower(self.limit)}"
        return RatioLine(self.name, marks, limit=self.limit, words=words, tooltip=f"{self.name}\n{self.tooltip}")


_MOST_ROWS = 20  # of open tables
_MOST_FOLDED = 200  # rows of tables that are folded below a chart
_MOST_SENTENCES = 20
_FIGURES = "by allocation"
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
    reasons = texts_of.sentences(verdict.reasons, _MOST_SENTENCES)
    texts = [f"{text}." for text in (*texts_of.fallen(verdict)[:_MOST_SENTENCES], *reasons)]
    texts += [f"Note: {text}." for text in texts_of.sentences(verdict.notes, _MOST_SENTENCES)]
    slow = [part for part in (*texts_of.open_ones(verdict), *texts_of.cleared(verdict)) if isinstance(part, Suspicion)]
    groups = worst_groups(verdict.groups)
    group_lines = []  # of each group its own median where it is judged as one, else its worst case
    for group in groups:
        factors, limit = (group.factors, group.limit) if group.limit is not None else ((group.worst_factor,), group.worst_limit)
        group_lines.append(JudgedLine(texts_of.name_of(group), factors, limit, group.state, f"{group.state}: {of(group)}"))
    group_table = Table.of(texts_of.group_frame(groups[:_MOST_FOLDED], _FIGURES))
    group_chart = _chart("gate-groups", "Every group against its limit", group_lines, group_table)
    case_lines = [
        JudgedLine(texts_of.name_of(case), case.factors, case.limit, case.state, f"{case.state}: {texts_of.slower_in_each(case.factors)}")
        for case in slow
        if case.kind == "cell"
    ]
    case_table = _figures([part for part in verdict.suspicions if part.kind == "cell"], _MOST_FOLDED)
    case_chart = _chart("gate-cells", "Cases that exceeded their limit", case_lines, case_table)
    parts = [part for part in slow if case_chart is None or part.kind != "cell"]
    floors = sorted(verdict.floors, key=lambda floor: (floor.state == CLEARED, floor.state != CONFIRMED))
    tables = [
        (_title("Slower, confirmed and worst first, cleared last", parts), _figures(parts)),
        (_title("Changes, the most plausible cause first", verdict.changes), _changes(verdict)),
        (_title("Required shares of the expected bandwidth (--min-percent)", floors), _figures(floors)),
    ]
    charts = [chart for chart in (group_chart, case_chart) if chart is not None]
    return Section("gate", "Gate", texts, [(title, table) for title, table in tables if table.rows], charts)


def _title(subject: str, parts: Sequence[object]) -> str:
    return f"{subject} ({_MOST_ROWS} of {len(parts)}; verdict.json has all)" if len(parts) > _MOST_ROWS else subject


def _figures(parts: Sequence[Suspicion | FloorState], most: int = _MOST_ROWS) -> Table:
    return Table.of(texts_of.part_frame(parts[:most], _FIGURES))


def _changes(verdict: Verdict) -> Table:
    columns: list[Column[Change]] = [
        Column("", "kind", lambda change: change.kind),
        Column("", "what", lambda change: change.what),
        Column("", "before", lambda change: change.before),
        Column("", "now", lambda change: change.after),
        Column("", "as a cause", lambda change: str(change.plausible or "")),
        Column("", "announced", lambda change: texts_of.announced(change.announced)),
    ]
    shown = verdict.changes[:_MOST_ROWS]
    return Table.of(Frame(columns, shown, style=lambda change: "doubtful" if change.announced is None else ""))


def _chart(key: str, title: str, lines: Sequence[JudgedLine], table: Table) -> Chart | None:
    """Return the chart of groups or of cases; None where nothing has both a time and a limit."""
    shown = sorted((line for line in lines if line.first is not None), key=lambda line: line.state != CONFIRMED)[:MOST_LINES]
    if not shown:
        return None
    panel = RatioPanel("", [line.drawn() for line in shown], _AXIS, _LEAST)
    always = sum(all(line.over) for line in shown)
    first = sum(line.over[0] for line in shown)
    cut = f" {len(shown)} of {len(lines)} are drawn." if len(shown) < len(lines) else ""
    again = f"; {first - always} only in the first one (largest point)" if first > always else ""
    caption = f"{always} of {len(shown)} exceed their limit (vertical mark) in every allocation{again}.{cut}"
    return ratio_chart(Chart(key, title, caption, _METHOD, table), panel)
