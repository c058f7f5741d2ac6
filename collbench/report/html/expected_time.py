"""The section "Expected time": what a model expects of each size, and what was measured."""

from __future__ import annotations

from msgspec.structs import replace

from collbench.analysis.latency import line_fits
from collbench.report.expected_time import rows_frame, series_frame
from collbench.report.headlines import EXPECTED_TIME_TITLE, fit_frame, short
from collbench.report.html.chart import Section, Table
from collbench.report.material import Material

_METHOD = (
    "The percentage is expected time / measured time: below 100 % a row is slower than expected. The time is by NCCL's own model where the "
    "run allows it. Else it is on the line through the run's smallest and largest reliable size, which have no percentage themselves."
)
_MOST = 200
_FITS = "latency α and bandwidth of large messages, from a line through the times of all sizes (n½ reaches half of that bandwidth)"


def section(material: Material) -> Section | None:
    """Return the section; None if no run has an expected time."""
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    for table in material.drawn:
        rows = material.rows(table)
        series = series_frame(rows)
        frame = rows_frame(rows)
        name = f"{short(table.name, 80)}: " if len(material.tables) > 1 else ""
        if series is not None:
            texts += [f"{name}{text}" for text in series.foot]
        if frame is not None:
            more = (
                f" (the first {_MOST} of {len(frame.records)}; `collbench report --csv FILE` has all)" if len(frame.records) > _MOST else ""
            )
            tables.append((f"{name}each size{more}", Table.of(replace(frame, records=frame.records[:_MOST]))))
        fits = line_fits(rows)
        if fits:
            tables.append((f"{name}{_FITS}", Table.of(fit_frame(fits))))
    if not texts and not tables:
        return None
    return Section("expected-time", EXPECTED_TIME_TITLE.capitalize(), [_METHOD, *texts], tables)
