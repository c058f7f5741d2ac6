"""Alternatives in a report: their table, the first screen of a page, and its sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collbench.analysis.launches import Launches, grouped
from collbench.analysis.outcome import Outcome
from collbench.plugins.alternatives.analysis import Alternatives, alternatives
from collbench.plugins.alternatives.text import foot, frame, head, is_decided, largest_differences, lines, operation_of_answer
from collbench.report.frame import Line
from collbench.report.html.chart import Section, Table
from collbench.report.html.first_screen import BAD, DOUBT, FirstScreen, LargeFigure
from collbench.report.material import Material, OtherComparison


@dataclass(frozen=True)
class AlternativesInReport(OtherComparison):
    """The comparison of runs as alternatives."""

    compared: Alternatives

    def answer(self) -> str:
        """Return which is the fastest, or how it scales."""
        return head(self.compared)[0]

    def lines(self, format: str, width: int | None = None) -> Iterator[Line]:
        """Yield the comparison as a table or as Markdown."""
        return lines(self.compared, format, width)

    def screen(self, circumstances: str) -> FirstScreen:
        """Return the answer of a page: which is the fastest, or how an operation scales."""
        figures = [LargeFigure(value, label) for value, label in largest_differences(self.compared)]
        badge = None if is_decided(self.compared) else (DOUBT, "INCONCLUSIVE")
        if any(alternative.row.wrong for alternative in self.compared.times):
            badge = (BAD, "WRONG DATA")
        answer, *more = head(self.compared, has_badge=True)
        return FirstScreen(answer, badge, figures, circumstances, more, operation=operation_of_answer(self.compared))


def comparison(tables: Sequence[Launches]) -> AlternativesInReport | None:
    """Return these tables as alternatives; None if they are none."""
    compared = alternatives(tables)
    return None if compared is None else AlternativesInReport(compared)


def section(material: Material) -> Section | None:
    """Return the answer, and a table for each operation with a difference; None without alternatives."""
    if not isinstance(material.alternatives, AlternativesInReport):
        return None
    compared = material.alternatives.compared
    texts = [*(f"{text}." for text in head(compared)), f"{'. '.join(foot(compared))}."]
    return Section("against", "Alternatives", texts, _tables(compared, differ=True))


def equal_section(material: Material) -> Section | None:
    """Return the tables of the operations without a decided difference between the alternatives; None without any."""
    if not isinstance(material.alternatives, AlternativesInReport):
        return None
    tables = _tables(material.alternatives.compared, differ=False)
    return Section("equal", "Operations without a decided difference", [], tables) if tables else None


def _tables(compared: Alternatives, *, differ: bool) -> list[tuple[str, Table]]:
    """Return (title, table) of each operation of which an alternative is slower than another; else of each one without."""
    tables = []
    for operation, groups in grouped(compared.groups, lambda group: group.row.operation).items():
        times = [alternative for group in groups for alternative in group.times.values()]
        if any(alternative.outcome is Outcome.SLOWER or alternative.efficiency for alternative in times) == differ:
            shown = frame(compared, groups)
            tables.append((f"{operation}: {shown.title}", Table.of(shown)))
    return tables
