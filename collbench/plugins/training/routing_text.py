"""Tables of expert-parallel training over several routings: the distribution of the step time, the imbalance tax, and each routing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collbench.plugins.training.records import RoutedStep, RoutingResult
from collbench.report.cases import NOTHING
from collbench.report.frame import Column, Frame, without_empty
from collbench.results.estimate import Estimate
from collbench.units import format_bytes, format_rate, format_time, plural

if TYPE_CHECKING:
    from collbench.plugins.training.records import StepRow

MOST_SHOWN = 24  # routings in the table; JSON has all


@dataclass(frozen=True)
class ShownRouting:
    """A line of the table of routings: the backend, in its first line only, and the routing."""

    backend: str
    step: RoutedStep


@dataclass(frozen=True)
class ShownResult:
    """A line of the table of distributions: a backend and its result."""

    backend: str
    result: RoutingResult


def routing_frames(rows: Sequence[StepRow]) -> tuple[Frame[ShownResult], Frame[ShownRouting]]:
    """Return the tables of one training on some backends: the distribution over the routings, and the routings; empty without any."""
    results = [ShownResult(row.backend, row.routing) for row in rows if row.routing]
    steps = [ShownRouting("" if number else each.backend, step) for each in results for number, step in enumerate(shown_steps(each.result))]
    kept = without_empty(_ROUTINGS, steps)
    return Frame(_DISTRIBUTION, results, names_hidden=True), Frame(kept, steps, names_hidden=True)


def shown_steps(result: RoutingResult) -> list[RoutedStep]:
    """Return the routings of the table, by number: all, or the slowest."""
    slowest = sorted(result.steps, key=lambda step: step.time_s.value or 0.0, reverse=True)[:MOST_SHOWN]
    return sorted(slowest, key=lambda step: step.step)


def routing_sentences(row: StepRow) -> Iterator[str]:
    """Yield the sentences below the tables of one row: the tax, and the bytes of dispatch and combine."""
    result = row.routing
    if result is None:
        return
    tax = format_tax(result.tax)
    routings = plural(len(result.steps), "routing")
    if result.tax.value is not None:
        yield (
            f"imbalance tax: {tax} of the time of a step with as many tokens that are routed evenly; {routings}, "
            f"measured in turn with even ones, {plural(result.rounds, 'round')}"
        )
    each = [f"{name} {format_bytes(way.bytes)} ({way.dtype})" for name, way in _ways(result) if way.bytes is not None]
    if each:
        yield f"all tokens of a step: {', '.join(each)}"
    if len(result.steps) > MOST_SHOWN:
        yield f"the slowest {MOST_SHOWN} of {routings} are shown; JSON has all"


def _ways(result: RoutingResult) -> tuple[tuple[str, Any], ...]:
    return ("dispatch", result.dispatch), ("combine", result.combine)


def format_tax(tax: Estimate) -> str:
    """Return "+71.0 % (70.6 to 71.8 %)", with as many digits as the interval supports; a dash if it is unknown."""
    if tax.value is None:
        return NOTHING
    if tax.low is None or tax.high is None:
        return f"{100 * (tax.value - 1):+.0f} %"
    digits = 0 if tax.high - tax.low >= 0.02 else 1
    low, high = (100 * (end - 1) for end in (tax.low, tax.high))
    return f"{100 * (tax.value - 1):+.{digits}f} % ({low:.{digits}f} to {high:.{digits}f} %)"


def _milliseconds(time_s: Estimate) -> str:
    """Return "966.1 (962.0–970.5)"; without the interval where it is unknown."""
    if time_s.value is None:
        return NOTHING
    if time_s.low is None or time_s.high is None:
        return format_time(time_s.value / 1000)
    low, high = (format_time(end / 1000) for end in (time_s.low, time_s.high))
    return f"{format_time(time_s.value / 1000)} ({low}–{high})"


def _of_expected(step: RoutedStep) -> str:
    if step.busbw_bytes_per_s is None or step.expected_bytes_per_s is None or step.percent_of_expected is None:
        return NOTHING
    rate, expected = format_rate(step.busbw_bytes_per_s), format_rate(step.expected_bytes_per_s)
    return f"{rate} of {expected} GB/s ({step.percent_of_expected:.0f} %)"


_DISTRIBUTION: tuple[Column[ShownResult], ...] = (
    Column("", "backend", lambda each: each.backend),
    Column("", "routings", lambda each: str(len(each.result.steps)), right=True, drop=3),
    Column("", "even ms", lambda each: _milliseconds(each.result.even_time_s), right=True, drop=2),
    Column("", "p5 ms", lambda each: _milliseconds(each.result.time_s.p5), right=True, drop=4),
    Column("", "p50 ms", lambda each: _milliseconds(each.result.time_s.p50), right=True),
    Column("", "p95 ms", lambda each: _milliseconds(each.result.time_s.p95), right=True, drop=1),
    Column("", "slowest ms", lambda each: _milliseconds(each.result.time_s.max), right=True),
    Column("", "imbalance tax", lambda each: format_tax(each.result.tax), right=True),
)
_ROUTINGS: tuple[Column[ShownRouting], ...] = (
    Column("", "backend", lambda each: each.backend),
    Column("", "routing", lambda each: str(each.step.step), right=True),
    Column("", "step ms", lambda each: _milliseconds(each.step.time_s), right=True),
    Column("", "imbalance tax", lambda each: format_tax(each.step.tax), right=True),
    Column("", "busiest rank", lambda each: str(each.step.busiest_rank), right=True),
    Column("", "its share", lambda each: _share(each.step.busiest_share), right=True),
    Column("", "imbalance", lambda each: NOTHING if each.step.imbalance is None else f"{each.step.imbalance:.2f}×", right=True, drop=1),
    Column("", "moves", lambda each: NOTHING if (moved := each.step.moved_bytes) is None else format_bytes(moved), right=True, drop=3),
    Column("", "of expected", lambda each: _of_expected(each.step), drop=2),
)


def _share(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.1f} %"
