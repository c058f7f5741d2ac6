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
    overlap = overlap_of(row.overlap)
    if overlap is None:
        return None
    texts = {
        "communication": format_time(overlap.communication_s),
        "computation": format_time(overlap.computation_s),
        "both": format_time(overlap.both_s),
        "overlap": format_overlap(overlap.percent),
        "exposed": format_time(overlap.exposed_s.value),
        "slowdown": format_slowdown(overlap.slowdown),
        "assisted": format_overlap(overlap.assisted.percent) if overlap.assisted else None,
        "outcome": format_outcome(overlap),
    }
    return texts[column]


def format_overlap(percent: OverlapEstimate) -> str:
    """Return "85 % (80–89)" limited to 0–100 as OSU's; "85 %" without an interval."""
    ends = (percent.value, percent.low, percent.high)
    value, low, high = (None if end is None else min(100.0, max(0.0, end)) for end in ends)
    return f"{value:.0f} %" if low is None or high is None else f"{value:.0f} % ({low:.0f}–{high:.0f})"


def format_slowdown(slowdown: OverlapEstimate) -> str:
    """Return by how much longer the computation takes during the communication: "+12 %"."""
    return f"{100 * (slowdown.value - 1):+.0f} %"


def format_outcome(overlap: Overlap) -> str:
    """Return the outcome, and what takes the exposed time: "exposed, waiting pays"."""
    payer = _PAYERS.get(overlap.payer) if overlap.outcome != "inconclusive" else None
    return f"{overlap.outcome}, {payer}" if payer else overlap.outcome


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
        overlap = overlap_of(row.overlap)
        return "doubtful" if overlap and overlap.doubt else ""

    return Frame(_CASES, rows, style=style, names_hidden=True)


MOVES: Mapping[Progress, str] = {
    "threads": "in threads of the library", "calls": "only within calls of the library",
    "kernels": "in kernels of the library, on the GPU on which collbench's kernel computes",
}  # fmt: skip


def overlaps_of(rows: Iterable[Row]) -> list[tuple[Row, Overlap]]:
    """Return the rows that have an overlap, with it."""
    overlaps = ((row, overlap_of(row.overlap)) for row in rows)
    return [(row, overlap) for row, overlap in overlaps if overlap is not None]


def overlap_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yield how to read the columns, how each backend makes progress, and why a row is inconclusive."""
    measured = overlaps_of(rows)
    if measured:
        yield "time: of both together; overlap: 100 · (1 − (both − compute) / comm), limited to 0–100, with its 95 % confidence interval"
        yield "exposed: both − compute; outcome: hidden above 75 %, exposed below 25 %, else partial"
    for backend, progress in dict.fromkeys((row.backend, overlap.progress) for row, overlap in measured):
        yield printable(f"{backend}: data moves {MOVES[progress]}")
    for row, overlap in measured:
        if overlap.doubt:
            yield printable(f"{name_of(row)} on {row.backend}: inconclusive: {overlap.doubt.render()}")


_MOST_COMPARED = 16


def exposed_sentences(a: Iterable[Row], b: Iterable[Row]) -> Iterator[str]:
    """Yield the exposed time and the overlap of each case of both sides, with the range of their intervals over all launches."""
    a_by_case, b_by_case = (grouped((row for row, _ in overlaps_of(rows)), case_of) for rows in (a, b))
    both = [(rows, b_by_case[case]) for case, rows in a_by_case.items() if case in b_by_case]
    if both:
        yield "outcome and A, B: of the time of both, computation and communication"
    for before, after in both[:_MOST_COMPARED]:
        yield f"exposed µs of {printable(name_of(before[0]))} on {printable(before[0].backend)}: {_exposed(before)} → {_exposed(after)}"
    if len(both) > _MOST_COMPARED:
        yield f"and {len(both) - _MOST_COMPARED} more: see CSV of `collbench report`"


def _exposed(rows: Iterable[Row]) -> str:
    estimates = [overlap.exposed_s for _, overlap in overlaps_of(rows)]
    lows = [estimate.low for estimate in estimates if estimate.low is not None]
    highs = [estimate.high for estimate in estimates if estimate.high is not None]
    interval = f" ({1e6 * min(lows):.4g}–{1e6 * max(highs):.4g})" if len(lows) == len(highs) == len(estimates) else ""
    return f"{1e6 * median(estimate.value for estimate in estimates):.4g}{interval}"
