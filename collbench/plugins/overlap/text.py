"""The overlap of communication and computation as text: columns of a table, and the lines below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from collbench.analysis.launches import case_of, grouped
from collbench.plugins.overlap.records import Overlap, OverlapEstimate, Progress, overlap_of
from collbench.report.cases import COLUMN_OF_KEY, NOTHING, name_of
from collbench.report.frame import Column, Frame, printable
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
        "both": format_time(known.both_s),
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


_CASES: tuple[Column[Row], ...] = (
    Column("", "case", lambda row: printable(name_of(row))),
    Column("", "backend", lambda row: printable(row.backend)),
    COLUMN_OF_KEY["communication"],
    COLUMN_OF_KEY["computation"],
    Column("", "both µs", lambda row: text_of(row, "both") or NOTHING, right=True),
    *(COLUMN_OF_KEY[key] for key in ("exposed", "overlap", "slowdown", "assisted", "outcome")),
)


def overlap_frame(rows: Sequence[Row]) -> Frame[Row]:
    """Return the table of the rows that have an overlap, with what is doubtful marked."""

    def style(row: Row) -> str:
        known = overlap_of(row.overlap)
        return "doubtful" if known and known.doubt else ""

    return Frame(_CASES, rows, style=style, names_hidden=True)


MOVES: Mapping[Progress, str] = {
    "threads": "in threads of the library", "calls": "only within calls of the library",
    "kernels": "in kernels of the library, on the GPU on which collbench's kernel computes",
}  # fmt: skip


def overlap_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yield how to read the columns, how each backend makes progress, and why a row is inconclusive."""
    known = [(row, each) for row in rows if (each := overlap_of(row.overlap)) is not None]
    if known:
        yield "time: of both together; overlap: 100 · (1 − (both − compute) / comm), limited to 0–100, with its 95 % confidence interval"
        yield "exposed: both − compute; outcome: hidden above 75 %, exposed below 25 %, else partial"
    for backend, progress in dict.fromkeys((row.backend, each.progress) for row, each in known):
        yield printable(f"{backend}: data moves {MOVES[progress]}")
    for row, each in known:
        if each.doubt:
            yield printable(f"{name_of(row)} on {row.backend}: inconclusive: {each.doubt.render()}")


_MOST_COMPARED = 16


def exposed_sentences(a: Iterable[Row], b: Iterable[Row]) -> Iterator[str]:
    """Yield the exposed time and the overlap of each case of both sides, with the range of their intervals over all launches."""
    sides = [grouped((row for row in rows if overlap_of(row.overlap)), case_of) for rows in (a, b)]
    both = [(before, after) for case, before in sides[0].items() if (after := sides[1].get(case))]
    if both:
        yield "outcome and A, B: of the time of both, computation and communication"
    for before, after in both[:_MOST_COMPARED]:
        yield f"exposed µs of {printable(name_of(before[0]))} on {printable(before[0].backend)}: {_exposed(before)} → {_exposed(after)}"
    if len(both) > _MOST_COMPARED:
        yield f"and {len(both) - _MOST_COMPARED} more: see CSV of `collbench report`"


def _exposed(rows: Iterable[Row]) -> str:
    known = [each.exposed_s for row in rows if (each := overlap_of(row.overlap))]
    lows, highs = ([end for end in ends if end is not None] for ends in zip(*((each.low, each.high) for each in known), strict=True))
    interval = f" ({1e6 * min(lows):.4g}–{1e6 * max(highs):.4g})" if len(lows) == len(highs) == len(known) else ""
    return f"{1e6 * median(each.value for each in known):.4g}{interval}"
