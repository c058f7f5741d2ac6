"""The section "Interference": the victims' times with aggressors off and on, by pattern and level."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from collbench.analysis.concerns import DOUBTFUL, FINDING, MISSING, WRONG, Concern
from collbench.report.frame import printable
from collbench.report.html.chart import Section, Table
from collbench.report.load import factor_text, frame_of, remarks, row_name, times_frame, title

if TYPE_CHECKING:
    from collbench.report.material import Material
    from collbench.results.load import LoadRow


def section(material: Material) -> Section | None:
    """Return the section, or None if no run measured interference."""
    if not material.loads:
        return None
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    for run, rows in material.loads:
        name = f"{printable(run.path.resolve().name)}: " if len(material.loads) > 1 else ""
        for head, those in groupby(rows, key=lambda row: title([row])):
            shown = list(those)
            tables.append((f"{name}{head}", Table.of(frame_of(shown))))
            if (times := times_frame(shown)).records:
                tables.append((f"{name}times of the victims, with the intervals of the quantiles", Table.of(times)))
            texts += [f"{name}{text}" for text in remarks(shown)]
    return Section("load", "Interference of other ranks", list(dict.fromkeys(texts)), tables)


def concerns_of(row: LoadRow) -> Iterator[Concern]:
    """Yield wrong data, interference, and rows that were not measured or are inconclusive."""
    where = f"{row.victim} on {row.backend} against {row_name(row)}"
    if row.wrong:
        yield Concern(WRONG, row.wrong_detail or "wrong data", where)
    if row.na is not None:
        yield Concern(MISSING, row.na, where)
    elif row.verdict == "interference":
        yield Concern(FINDING, f"interference: {factor_text(row.factor)}", where)
    elif row.verdict == "inconclusive":
        yield Concern(DOUBTFUL, "inconclusive", where)
