"""Runs of interference, for reports: how they are printed, and their answer on a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from collbench.plugins.load.records import LoadRow
from collbench.plugins.load.text import INTERFERENCE, factor_text, remarks, row_name, sorted_rows, times_frame, times_text, title
from collbench.report.forms import frame_of
from collbench.report.frame import escaped, escaped_line, items, markdown_lines
from collbench.report.headlines import short
from collbench.report.kinds import DeclaredKind
from collbench.units import format_time, plural

if TYPE_CHECKING:
    from collbench.analysis.concerns import Concern
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material


class LoadKind(DeclaredKind):
    """Interference."""

    name = "load"
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
        rows = [row for _, found in runs for row in found]
        if not rows:
            return None
        line = line_of(runs[0][0])
        worst = max(rows, key=lambda row: (bool(row.wrong), row.verdict == "interference", row.factor.value or 0.0))
        what = f"{worst.victim} on {plural(worst.nodes, 'node')} while {worst.aggressors} runs at {100 * worst.level:g} %"
        if worst.factor.value is None:
            return FirstScreen(f"{what}: not measured", (DOUBT, "NOT MEASURED"), (), line, (), "load")
        badges = {
            "interference": (BAD, "INTERFERENCE"),
            "no interference": (GOOD, "NO INTERFERENCE"),
            "inconclusive": (DOUBT, "INCONCLUSIVE"),
        }
        badge = (BAD, "WRONG DATA") if any(row.wrong for row in rows) else badges[worst.verdict]
        figures = [LargeFigure(times_text(worst.factor.value), "time with aggressors / time without")]
        both = worst.quantiles["p50"]
        for value, label in ((both.off.value, "median time alone"), (both.on.value, "median time with aggressors")):
            if value is not None:
                figures.append(LargeFigure(f"{format_time(value)} µs", label))
        known = [row for row in sorted_rows(rows) if row is not worst and row.factor.value]
        others = [f"{row_name(row)}: {factor_text(row.factor)}, {row.verdict}" for row in known]
        return FirstScreen(f"{what}: {worst.verdict}, factor {factor_text(worst.factor)}", badge, figures, line, others, "load")


LOAD = LoadKind()
