"""Runs of training traffic, for reports: how they are printed, and their answer on a page."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from collbench.plugins.training.records import StepRow
from collbench.plugins.training.text import STEPS, milliseconds
from collbench.report.kinds import DeclaredKind, StoredRecords
from collbench.units import format_percent, format_rate, plural
from collbench.untrusted import dict_of

if TYPE_CHECKING:
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material
    from collbench.results.reader import Run


def step_time_of(about: Mapping[str, Any]) -> float | None:
    """Return the time of computing from run.json's "workload", in seconds; None if it is missing or not valid."""
    value = about.get("step_time_s")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf") else None


class TrainingKind(DeclaredKind):
    """The exchanges of training steps."""

    name = "workload"
    what = "training traffic"
    declared = STEPS

    def read(self, run: Run) -> StoredRecords:
        """Return the rows, with the user's computing time of a step."""
        rows, warnings = super().read(run)
        step_time_s = step_time_of(dict_of(run.info.get(self.name)))
        return StoredRecords([row.replace(step_time_s=step_time_s) for row in rows], warnings)

    def place_of(self, row: StepRow) -> str:
        """Return the kind of training and the backend."""
        return f"{row.regime} on {row.backend}"

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the time of the step of the fastest backend, and its share of the expected rate."""
        from collbench.report.html.first_screen import BAD, DOUBT, GOOD, FirstScreen, LargeFigure, line_of

        runs = material.of_kind(self.name)
        rows = [row for _, found in runs for row in found]
        if not rows:
            return None
        line = line_of(runs[0][0])
        timed = [(row, row.time_s.p50) for row in rows if row.time_s is not None]
        first = min(timed, key=itemgetter(1))[0] if timed else rows[0]
        of = f" of {first.model}" if first.model else ""
        what = f"{first.regime} training{of} on {plural(first.nodes, 'node')}, {plural(first.ranks, 'rank')}"
        if first.time_s is None:
            return FirstScreen(f"{what}: not measured ({first.na})", (DOUBT, "NOT MEASURED"), (), line, (), "training")
        compared = first.comparison
        time = f"{milliseconds(first.time_s.p50)} ms"
        figures = [LargeFigure(time, f"exchange of a step over {first.backend}")]
        title = f"{what}: a step's exchange takes {time} over {first.backend}"
        if compared and first.ceiling:
            percent, expected = format_percent(compared.percent), format_rate(compared.expected_bytes_per_s)
            figures.append(LargeFigure(percent, f"of {expected} GB/s expected"))
            title += f", {format_rate(compared.busbw_bytes_per_s)} of {expected} GB/s ({percent}), limited by {first.ceiling.limited_by}"
        badge = (BAD, "WRONG DATA") if any(row.wrong for row in rows) else (GOOD if compared else DOUBT, "MEASURED")
        others = [f"{row.backend}: {milliseconds(time_s)} ms" for row, time_s in timed if row is not first]
        return FirstScreen(title, badge, figures, line, others, "training")


TRAINING = TrainingKind()
