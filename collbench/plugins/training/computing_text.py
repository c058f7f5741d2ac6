"""Training steps that compute while they communicate, as text: a table, the sentences below it, and the fields of CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from collbench.operations.unsupported import decode_reason
from collbench.plugins.overlap.records import Overlap, OverlapEstimate, StepOverlap
from collbench.plugins.overlap.text import MOVES, format_outcome, format_overlap, format_slowdown
from collbench.plugins.training.records import StepRow
from collbench.report.cases import NOTHING
from collbench.report.frame import Column, Frame
from collbench.results.flags import DOUBTFUL
from collbench.units import format_time


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
        ShownStep(row.backend, row.computing, bool(DOUBTFUL & set(row.flags))) for row in rows if row.computing and row.computing.overlap
    ]
    return Frame(_STEPS, shown, names_hidden=True)


def computing_sentences(row: StepRow) -> Iterator[str]:
    """Yield how the computation of a row was chosen, how data moves meanwhile, and why it is inconclusive."""
    known = row.computing
    if known is None:
        return
    if known.overlap is None:
        reason = decode_reason(known.refusal)
        yield f"not measured with computing: {reason.render() if reason else 'unknown reason'}"
        return
    chosen = "as stated by --step-time" if known.stated else "as long as the exchanges; state it by --step-time"
    how = MOVES[known.overlap.progress]
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


def _exposed_ms(exposed: OverlapEstimate) -> str:
    value, low, high = (None if each is None else f"{1e3 * each:.4g}" for each in (exposed.value, exposed.low, exposed.high))
    return f"{value}" if low is None else f"{value} ({low}–{high})"
