"""The overlap of communication and computation as text: columns of a table, and the lines below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from collbench.report.cases import name_of
from collbench.report.frame import printable
from collbench.results.overlap import Overlap, OverlapEstimate, overlap_of
from collbench.results.row import Row
from collbench.units import format_time

_PAYERS = {"computation": "computation pays", "waiting": "waiting pays"}


def text_of(row: Row, column: str) -> str | None:
    """Return the text of a column of `blocks.COLUMNS` in µs or percent; None if the row has no such value."""
    known = overlap_of(row.overlap)
    if known is None:
        return None
    texts = {
        "communication": format_time(known.communication_s),
        "computation": format_time(known.computation_s),
        "overlap": format_overlap(known.percent),
        "exposed": format_time(known.exposed_s.value),
        "slowdown": format_slowdown(known.slowdown),
        "assisted": format_overlap(known.assisted.percent) if known.assisted else None,
        "outcome": format_outcome(known),
    }
    return texts[column]


def format_overlap(percent: OverlapEstimate) -> str:
    """Return "85 % (80–89)" limited to 0–100 as OSU's; "85 %" without an interval."""
    value, low, high = (None if each is None else min(100.0, max(0.0, each)) for each in (percent.value, percent.low, percent.high))
    return f"{value:.0f} %" if low is None or high is None else f"{value:.0f} % ({low:.0f}–{high:.0f})"


def format_slowdown(slowdown: OverlapEstimate) -> str:
    """Return by how much longer the computation takes during the communication: "+12 %"."""
    return f"{100 * (slowdown.value - 1):+.0f} %"


def format_outcome(overlap: Overlap) -> str:
    """Return the outcome, and what takes the exposed time: "exposed, waiting pays"."""
    payer = _PAYERS.get(overlap.payer) if overlap.outcome != "inconclusive" else None
    return ", ".join([overlap.outcome, *([payer] if payer else [])])


def overlap_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yield how to read the columns, how each backend makes progress, and why a row is inconclusive."""
    known = [(row, each) for row in rows if (each := overlap_of(row.overlap)) is not None]
    if known:
        yield "time: of both together; overlap: 100 · (1 − (both − compute) / comm), limited to 0–100, with its 95 % confidence interval"
        yield "exposed: both − compute; outcome: hidden above 75 %, exposed below 25 %, else partial"
    for backend, progress in dict.fromkeys((row.backend, each.progress) for row, each in known):
        how = "in threads of the library" if progress == "threads" else "only within calls of the library"
        yield printable(f"{backend}: data moves {how}")
    for row, each in known:
        if each.doubt:
            yield printable(f"{name_of(row)} on {row.backend}: inconclusive: {each.doubt.render()}")
