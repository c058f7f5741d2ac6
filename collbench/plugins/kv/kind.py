"""Runs of block transfers, for reports: how they are printed, and their answer on a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collbench.plugins.kv.records import KvRow
from collbench.plugins.kv.text import BLOCK_TRANSFERS, blocks_text, sorted_rows, title
from collbench.report.kinds import DeclaredKind, Destination
from collbench.units import format_percent, format_rate, plural

if TYPE_CHECKING:
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material
    from collbench.results.reader import Run


class KvKind(DeclaredKind):
    """Block transfers."""

    name = "kv"
    what = "block transfers"
    declared = BLOCK_TRANSFERS

    def write(self, run: Run, rows: Sequence[KvRow], to: Destination) -> None:
        """Print the rows, in every format in the order of the table."""
        super().write(run, sorted_rows(rows), to)

    def place_of(self, row: KvRow) -> str:
        """Return the method."""
        return f"kv by {row.method}"

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the fastest method for the most bytes."""
        from collbench.plugins.kv.page import fastest_text, most_bytes, result
        from collbench.report.html.first_screen import BAD, DOUBT, GOOD, FirstScreen, LargeFigure, line_of

        runs = material.of_kind(self.name)
        rows = [row for _, found in runs for row in found]
        if not rows:
            return None
        line = line_of(runs[0][0])
        best = most_bytes(rows)
        if not best:
            return FirstScreen(f"{title(rows)}: not measured ({rows[0].na})", (DOUBT, "NOT MEASURED"), (), line, (), "kv")
        first, *others = best
        figures = [
            LargeFigure(f"{format_rate(first.bytes_per_s or 0.0)} GB/s", f"{first.method}: all blocks, until the last target has them")
        ]
        if first.percent_of_link is not None:
            figures.append(LargeFigure(format_percent(first.percent_of_link), f"of the rate of {first.limited_by}"))
        if first.first_token_percent is not None:
            figures.append(LargeFigure(format_percent(first.first_token_percent), "of the time to first token"))
        badge = (BAD, "WRONG DATA") if any(row.wrong for row in rows) else (GOOD, "MEASURED")
        what = f"{plural(first.blocks, 'block')} of {blocks_text(first)}"
        more = [f"{row.method}: {result(row)}" for row in others]
        return FirstScreen(f"{title(rows)}: {fastest_text(best)} for {what}, {result(first)}", badge, figures, line, more, "kv")


KV = KvKind()
