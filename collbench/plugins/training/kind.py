"""Runs of training traffic, for reports: how they are printed, and their answer on a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from collbench.plugins.training.records import StepRow, read_workload
from collbench.plugins.training.text import FORMATS, milliseconds, write_steps
from collbench.report.kinds import Destination, RunKind
from collbench.report.screen import check_format
from collbench.results.folder import WORKLOAD as FILE
from collbench.units import format_percent, format_rate, plural

if TYPE_CHECKING:
    from collbench.analysis.concerns import Concern
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material
    from collbench.results.reader import Run


def step_time_of(about: Mapping[str, Any]) -> float | None:
    """Return the time of computing from run.json's "workload", in seconds; None if it is missing or not valid."""
    value = about.get("step_time_s")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf") else None


class TrainingKind(RunKind):
    """The exchanges of training steps."""

    name, file, what = "workload", FILE, "training traffic"

    def read(self, run: Run) -> tuple[Mapping[str, Any], list[StepRow]]:
        """Return (run.json's "workload", the rows)."""
        about, rows, _ = read_workload(run)
        return about, rows

    def warnings(self, run: Run) -> Sequence[str]:
        """Return what could not be read of the rows."""
        return read_workload(run)[2]

    def show(self, run: Run, material: Material, to: Destination) -> bool:
        """Print the steps; a CSV without steps has no header."""
        check_format(to.format, FORMATS, " for workload")
        about, rows, warnings = read_workload(run)
        to.begin(run, f"{plural(len(rows), 'row')}{'' if run.finished else ', not finished'}", warnings)
        step_time_s = step_time_of(about)
        write_steps(rows, to.format, to.out, color=to.color, step_time_s=step_time_s, run=run.path.resolve().name, headed=to.headed)
        return to.headed or bool(rows)

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the time of the step of the fastest backend, and its share of the expected rate."""
        from collbench.report.html.first_screen import BAD, DOUBT, GOOD, FirstScreen, LargeFigure, line_of

        runs = material.of_kind(self.name)
        rows = [row for _, (_, found) in runs for row in found]
        if not rows:
            return None
        line = line_of(runs[0][0])
        timed = [(row, row.time_s.p50) for row in rows if row.time_s is not None]
        first = min(timed, key=itemgetter(1))[0] if timed else rows[0]
        of = f" of {first.model}" if first.model else ""
        what = f"{first.regime} training{of} on {plural(first.nodes, 'node')}, {plural(first.ranks, 'rank')}"
        if first.time_s is None:
            return FirstScreen(f"{what}: not measured ({first.na})", (DOUBT, "NOT MEASURED"), (), line, (), "training")
        ceiling, percent, rate = first.ceiling, first.percent_of_ceiling, first.busbw_bytes_per_s
        time = f"{milliseconds(first.time_s.p50)} ms"
        figures = [LargeFigure(time, f"exchange of a step over {first.backend}")]
        title = f"{what}: a step's exchange takes {time} over {first.backend}"
        if ceiling is not None and ceiling.bytes_per_s and percent is not None and rate is not None:
            figures.append(LargeFigure(format_percent(percent), f"of {format_rate(ceiling.bytes_per_s)} GB/s expected"))
            share = f"{format_rate(rate)} of {format_rate(ceiling.bytes_per_s)} GB/s ({format_percent(percent)})"
            title += f", {share}, limited by {ceiling.limited_by}"
        badge = (BAD, "WRONG DATA") if any(row.wrong for row in rows) else (DOUBT if percent is None else GOOD, "MEASURED")
        others = [f"{row.backend}: {milliseconds(time_s)} ms" for row, time_s in timed if row is not first]
        return FirstScreen(title, badge, figures, line, others, "training")


TRAINING = TrainingKind()


def concerns(material: Material) -> Iterator[Concern]:
    """Yield wrong data, and why a training was not measured."""
    from collbench.plugins.training.page import concerns_of

    for _, (_, rows) in material.of_kind(TRAINING.name):
        for row in rows:
            yield from concerns_of(row)
