"""The section "Self-consistency": operations that take longer than what can replace them, and dips in bandwidth."""

from __future__ import annotations

from collbench.report.guidelines import CONSISTENCY_TITLE, consistency_frame
from collbench.report.headlines import short
from collbench.report.html.chart import Section, Table
from collbench.report.material import Material

_METHOD = (
    "A library can do an operation by others that it has, such as an all-reduce by a reduce and a broadcast. If it takes longer, "
    "it chose a bad algorithm at that size. Compared are the medians with their 95 % intervals, and a difference of at least 5 % counts."
)


def section(material: Material) -> Section | None:
    """Return the section; None if no run has operations or sizes to compare."""
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    for table in material.drawn:
        frame = consistency_frame(material.rows(table))
        if frame is None:
            continue
        name = f"{short(table.name, 80)}: " if len(material.tables) > 1 else ""
        texts += [f"{name}{text}" for text in (frame.title, *frame.foot) if text]
        if frame.records:
            tables.append((f"{name}{frame.title}", Table.of(frame)))
    if not texts:
        return None
    return Section("consistency", CONSISTENCY_TITLE.capitalize(), [_METHOD, *texts], tables)
