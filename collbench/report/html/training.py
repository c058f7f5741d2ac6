"""The section "Training": the steps of each training on its backends, their parts, and the workers of asynchronous training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from collbench.report.frame import Frame, printable
from collbench.report.headlines import short
from collbench.report.html.chart import Section, Table
from collbench.report.training import frames, remarks, title, trainings

if TYPE_CHECKING:
    from collbench.report.material import Material

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
        tables += [(f"{head}{what}", Table.of(frame)) for what, frame in zip(_CAPTIONS, shown, strict=True) if frame.records]
    return Section("training", "Training: exchanges of a step", list(dict.fromkeys(texts)), tables)
