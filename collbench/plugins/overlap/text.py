"""The overlap of communication and computation as text: columns of a table, and the lines below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from collbench.analysis.launches import case_of, grouped
from collbench.operations.unsupported import decode_reason
from collbench.plugins.overlap.records import Overlap, OverlapEstimate, Progress, StepOverlap, overlap_of
from collbench.plugins.training.records import StepRow, computing_of
from collbench.report.cases import NOTHING, name_of
from collbench.report.frame import Column, Frame, printable
from collbench.results.flags import DOUBTFUL
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
    *(
        Column("", title, lambda row, name=name: text_of(row, name) or NOTHING, right=name != "outcome")  # type: ignore[misc]
        for name, title in (
            ("communication", "comm µs"), ("computation", "compute µs"), ("both", "both µs"), ("exposed", "exposed µs"),
            ("overlap", "overlap"), ("slowdown", "compute slower"), ("assisted", "with test calls"), ("outcome", "outcome"),
        )
    ),
)  # fmt: skip


def overlap_frame(rows: Sequence[Row]) -> Frame[Row]:
    """Return the table of the rows that have an overlap, with what is doubtful marked."""

    def style(row: Row) -> str:
        known = overlap_of(row.overlap)
        return "doubtful" if known and known.doubt else ""

    return Frame(_CASES, rows, style=style, names_hidden=True)


_MOVES: Mapping[Progress, str] = {
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
        yield printable(f"{backend}: data moves {_MOVES[progress]}")
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


# Training steps that compute while they communicate.


class ShownStep(NamedTuple):
    """A line of the table of steps with computing: a backend, its result, and whether a flag of the row makes it doubtful."""

    backend: str
    result: StepOverlap
    doubtful: bool = False


def _of_step(title: str, text: Callable[[Overlap], str], drop: int = 0, right: bool = True) -> Column[ShownStep]:
    def shown(each: ShownStep) -> str:
        return text(each.result.overlap) if each.result.overlap else NOTHING

    return Column("", title, shown, right=right, drop=drop)


_STEPS: tuple[Column[ShownStep], ...] = (
    Column("", "backend", lambda each: each.backend),
    _of_step("compute ms", lambda known: format_time(known.computation_s / 1000)),
    _of_step("exchanges ms", lambda known: format_time(known.communication_s / 1000)),
    _of_step("both ms", lambda known: format_time(known.both_s / 1000)),
    _of_step("exposed ms", lambda known: _exposed_ms(known.exposed_s), drop=1),
    _of_step("overlap", lambda known: format_overlap(known.percent)),
    _of_step("compute slower", lambda known: format_slowdown(known.slowdown), drop=3),
    _of_step("outcome", format_outcome, drop=2, right=False),
    Column("", "scaling efficiency", lambda each: f"{'? ' if each.doubtful else ''}{format_efficiency(each.result)}", right=False),
)


def computing_frame(rows: Sequence[StepRow]) -> Frame[ShownStep]:
    """Return the table of a training that computes while it communicates, a line per backend; empty without such rows."""
    shown = [
        ShownStep(row.backend, known, bool(DOUBTFUL & set(row.flags))) for row in rows if (known := computing_of(row)) and known.overlap
    ]
    return Frame(_STEPS, shown, names_hidden=True)


def computing_sentences(row: StepRow) -> Iterator[str]:
    """Yield how the computation of a row was chosen, how data moves meanwhile, and why it is inconclusive."""
    known = computing_of(row)
    if known is None:
        return
    if known.overlap is None:
        reason = decode_reason(known.refusal)
        yield f"not measured with computing: {reason.render() if reason else 'unknown reason'}"
        return
    chosen = "as stated by --step-time" if known.stated else "as long as the exchanges; state it by --step-time"
    how = _MOVES[known.overlap.progress]
    yield f"with computing of {format_time(known.goal_s / 1000)} ms, {chosen}: efficiency = compute / both; data moves {how}"
    if known.overlap.doubt:
        what = "overlap" if known.conclusive else "overlap and scaling efficiency"
        yield f"{what} inconclusive: {known.overlap.doubt.render()}"


def format_efficiency(result: StepOverlap) -> str:
    """Return "81.2 % (79.9–82.6 %)", or "inconclusive"."""
    found = result.efficiency
    if found is None or not result.conclusive:
        return "inconclusive"
    interval = "" if found.low is None or found.high is None else f" ({100 * found.low:.1f}–{100 * found.high:.1f} %)"
    return f"{100 * found.value:.1f} %{interval}"


def computing_values(row: StepRow) -> dict[str, Any]:
    """Return the fields of CSV and DataFrames, by name; None in rows that were not measured with computing."""
    known = computing_of(row)
    overlap, efficiency = (known.overlap, known.efficiency) if known else (None, None)
    percent, exposed = (overlap.percent, overlap.exposed_s) if overlap else (None, None)
    found: dict[str, Any] = {
        "computing_s": overlap and overlap.computation_s, "computing_exchanges_s": overlap and overlap.communication_s,
        "computing_both_s": overlap and overlap.both_s, "computing_outcome": overlap and overlap.outcome,
        "computing_payer": overlap and overlap.payer, "computing_blocks": overlap and overlap.blocks,
    }  # fmt: skip
    for name, unit, each in (("exposed", "_s", exposed), ("percent", "", percent), ("efficiency", "", efficiency)):
        for end, of in (("", "value"), ("_low", "low"), ("_high", "high")):
            found[f"computing_{name}{end}{unit}"] = getattr(each, of, None)
    return found


def _exposed_ms(exposed: OverlapEstimate) -> str:
    value, low, high = (None if each is None else f"{1e3 * each:.4g}" for each in (exposed.value, exposed.low, exposed.high))
    return f"{value}" if low is None else f"{value} ({low}–{high})"
