"""Outcomes of comparisons as text, the same in every output: changes, intervals, one case, and the summary of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from collbench.analysis.compare import CaseRatio, Comparison, Summary
from collbench.analysis.launches import why_inconclusive
from collbench.analysis.outcome import Doubt, Outcome
from collbench.report.cases import NOTHING, not_available
from collbench.stats.launches import Ratio
from collbench.units import plural

_MULTIPLES = 2.0  # a time that is longer by this factor is shown as a multiple: "3.5×"
_LEAST = 0.01  # and one that is shorter by this factor, since "-100.0 %" would be wrong
_COARSE = 0.1  # an interval that is wider supports whole percentages only
_REASONS = {"cores": "ranks share cores", "blocks": "fewer than 4 pairs of blocks"}
_ORDER = (Outcome.SLOWER, Outcome.FASTER, Outcome.NO_CHANGE, Outcome.INCONCLUSIVE)


def describe(case: CaseRatio) -> str:
    """Return "slower +12.0 % (+11.0 to +13.0 %)", "inconclusive (one launch each): +12 %" or "n/a (reason) in B"."""
    sides = (("A", case.a), ("B", case.b))
    if case.outcome is None:
        return "; ".join(f"{not_available(row)} in {name}" for name, row in sides if row.na is not None) or "no time"
    if case.time is None:
        reasons = [(name, why_inconclusive(row)) for name, row in sides]
        return f"{case.outcome} ({'; '.join(f'{_REASONS[reason]} in {name}' for name, reason in reasons if reason)})"
    if case.doubt in (Doubt.ONE_RUN_EACH, Doubt.NO_INTERVAL):
        return f"{case.outcome} ({case.doubt}): {format_roughly(case.time)}"
    change = format_change(case.time)
    against = {Outcome.NO_CHANGE: ", inside ", Outcome.INCONCLUSIVE: ", wider than "}.get(case.outcome)
    margin = f"{against}{format_margin(case.margin)}" if against else ""
    return f"{case.outcome} {change} ({format_interval(case.time)}){margin}"


def format_margin(margin: float) -> str:
    """Return "±5 %"."""
    return f"±{100 * margin:.3g} %"


def format_change(ratio: Ratio | None) -> str:
    """Return "+12.0 %", from the double on "3.5×"; a dash without a ratio."""
    if ratio is None:
        return NOTHING
    return _multiple(ratio.value, _coarse(ratio)) if _in_multiples(ratio) else f"{_percent(ratio.value, _coarse(ratio))} %"


def format_roughly(ratio: Ratio) -> str:
    """Return "+12 %", from the double on "3.5×": a change of one launch each, which supports whole percentages only."""
    return _multiple(ratio.value, True) if _in_multiples(Ratio(ratio.value, None, None, ratio.n)) else f"{_percent(ratio.value, True)} %"


def format_interval(ratio: Ratio) -> str:
    """Return "+11.0 to +13.0 %" or "0.94–8.8×"; "" without an interval."""
    if ratio.low is None or ratio.high is None:
        return ""
    if _in_multiples(ratio):
        return f"{_multiple(ratio.low, _coarse(ratio))[:-1]}–{_multiple(ratio.high, _coarse(ratio))}"
    low, high = (_percent(end, _coarse(ratio)) for end in (ratio.low, ratio.high))
    return f"{low} to {high} %"


def describe_summary(summary: Summary, margin: float, cases: Sequence[CaseRatio] = ()) -> str:
    """Return "8 cases: 7 slower (+21.1 to +25.7 %), 0 faster, 0 no change (±5 %), 1 inconclusive"; `cases` give the sizes of changes."""
    number = sum(summary.outcomes.values()) + summary.not_available + summary.wrong_data
    notes = {Outcome.NO_CHANGE: f" ({format_margin(margin)})"}
    for outcome in (Outcome.SLOWER, Outcome.FASTER):
        span = describe_span(case for case in cases if case.outcome is outcome and not case.wrong)
        if span:
            notes[outcome] = f" ({span})"
    if summary.one_run_each:
        span = describe_span((case for case in cases if case.doubt is Doubt.ONE_RUN_EACH), format_roughly)
        has_all = summary.one_run_each == summary.outcomes[Outcome.INCONCLUSIVE]
        doubt = str(Doubt.ONE_RUN_EACH) if has_all else f"{summary.one_run_each} with {Doubt.ONE_RUN_EACH}"
        notes[Outcome.INCONCLUSIVE] = f" ({doubt}; {span})" if span else f" ({doubt})"
    counts = [count_text(summary.outcomes, notes)]
    if summary.wrong_data:
        counts.append(f"{summary.wrong_data} with wrong data")
    if summary.not_available:
        counts.append(f"{summary.not_available} n/a")
    return f"{plural(number, 'case')}: {', '.join(counts)}"


def count_text(counts: Mapping[Outcome, int], notes: Mapping[Outcome, str]) -> str:
    """Return "7 slower, 0 faster, 0 no change (±5 %), 1 inconclusive"; `notes` follow the outcome that they belong to."""
    return ", ".join(f"{counts.get(outcome, 0)} {outcome}{notes.get(outcome, '')}" for outcome in _ORDER)


def describe_comparison(comparison: Comparison) -> str:
    """Return the summary of a comparison as one sentence without a full stop."""
    return describe_summary(comparison.summary, comparison.margin, comparison.cases)


def describe_span(cases: Iterable[CaseRatio], form: Callable[[Ratio], str] = format_change) -> str:
    """Return "+21.1 to +25.7 %", the smallest and the largest change; "" without cases."""
    ratios = sorted((case.time for case in cases if case.time is not None), key=lambda ratio: ratio.value)
    if not ratios:
        return ""
    low = form(ratios[0])
    high = form(ratios[-1])
    if low == high:
        return low
    return f"{low.removesuffix(' %') if high.endswith('%') else low} to {high}"


def _in_multiples(ratio: Ratio) -> bool:
    return max(ratio.value, ratio.high or 0.0) >= _MULTIPLES or ratio.value < _LEAST


def _coarse(ratio: Ratio) -> bool:
    return ratio.low is not None and ratio.high is not None and ratio.high - ratio.low >= _COARSE * max(1.0, ratio.value)


def _percent(value: float, coarse: bool) -> str:
    digits = 0 if coarse else 1
    change = round(100 * (value - 1), digits)
    return f"{change or 0.0:+.{digits}f}"  # never "-0"


def _multiple(value: float, coarse: bool) -> str:
    digits = 2 if coarse else 3
    text = f"{value:#.{digits}g}".removesuffix(".")
    return f"{float(text):.0f}×" if "e+" in text else f"{text}×"
