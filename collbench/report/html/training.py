"""The section "Training": the steps of each training on its backends, their parts, and the workers of asynchronous training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from collbench.analysis.concerns import MISSING, WRONG, Concern
from collbench.report.frame import Frame, printable
from collbench.report.headlines import short
from collbench.report.html.chart import Section, Table
from collbench.report.training import frames, remarks, title, trainings

if TYPE_CHECKING:
    from collbench.report.material import Material
    from collbench.results.steps import StepRow

_CAPTIONS = ("the whole step", "its exchanges alone", "its workers")


def section(material: Material) -> Section | None:
    """Return the section, or None if no run measured training."""
    if not material.trainings:
        return None
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    found = [(run, about, those) for run, about, rows in material.trainings for those in trainings(rows)]
    for run, about, those in found:
        name = f"{printable(run.path.resolve().name)}: " if len(material.trainings) > 1 else ""
        head = short(f"{name}{title(those)}: ", 200) if len(found) > 1 else ""  # the first screen names a single one
        texts += [f"{head}{short(text, 600)}" for text in remarks(those, about.get("step_time_s"))]
        shown: Iterable[Frame[Any]] = frames(those)
        tables += [(f"{head}{caption}", _table(frame)) for caption, frame in zip(_CAPTIONS, shown, strict=True) if frame.records]
    return Section("training", "Training: exchanges of a step", list(dict.fromkeys(texts)), tables)


def concerns_of(row: StepRow) -> Iterator[Concern]:
    """Yield wrong data, and why a training was not measured."""
    where = f"{row.regime} on {row.backend}"
    if row.wrong:
        yield Concern(WRONG, row.wrong_detail or "wrong data", where)
    if row.na is not None:
        yield Concern(MISSING, row.na, where)


def _table(frame: Frame[Any]) -> Table:
    columns, records = frame.columns, list(frame.records)
    right = frozenset(number for number, column in enumerate(columns) if column.right)
    marks = {number: mark for number, record in enumerate(records) if (mark := frame.style(record))}
    return Table([column.title for column in columns], [[short(c.text(record), 600) for c in columns] for record in records], right, marks)
