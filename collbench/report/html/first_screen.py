"""The first screen of a page: the answer as a sentence, a badge, at most four large figures, and one line of circumstances.

Every kind of result has its answer here. A page without an answer is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from collbench.analysis.compare import CaseRatio, Comparison, why_nothing_in_common
from collbench.analysis.health import CheckOutcome, verdict_of
from collbench.analysis.outcome import Outcome
from collbench.report.answer import Answer, answers
from collbench.report.headlines import circumstances, short
from collbench.report.html.material import Material
from collbench.report.outcome_text import describe_comparison, describe_span, format_change, format_margin
from collbench.results.quality import OK, run_quality
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_percent, format_rate, format_size, format_time, plural

GOOD, BAD, DOUBT = "good", "bad", "doubt"  # the badge's color and shape: a circle, a triangle, a diamond
_MOST_FIGURES, _MOST_ANSWERS = 4, 6


@dataclass(frozen=True)
class LargeFigure:
    """A figure in large letters: "99 %", and below it what it is: "of expected: allreduce over mpi at 64 MiB"."""

    value: str
    label: str


@dataclass(frozen=True)
class FirstScreen:
    """The answer of a page.

    title          the answer as a sentence without a full stop
    badge          (one of GOOD, BAD and DOUBT, a word); None where nothing was judged
    figures        at most four
    circumstances  hosts, software and date in one line
    more           further sentences of the answer: one per operation, or per finding
    """

    title: str
    badge: tuple[str, str] | None = None
    figures: Sequence[LargeFigure] = ()
    circumstances: str = ""
    more: Sequence[str] = ()


def first_screen(material: Material) -> FirstScreen | None:
    """Return the answer of the runs; None if there is none."""
    answers: tuple[Callable[[Material], FirstScreen | None], ...] = (_of_gate, _of_hunt, _of_training, _of_pairs, _of_comparison, _of_rows)
    found = next((found for of in answers if (found := of(material)) is not None), None)
    if found is None:
        return None
    figures = [LargeFigure(each.value, short(each.label, 120)) for each in found.figures]
    return replace(found, figures=figures, circumstances=short(found.circumstances, 600), more=[short(text, 400) for text in found.more])


# A gate: its result, the slowest groups, and the most plausible cause.


def _of_gate(material: Material) -> FirstScreen | None:
    if (verdict := material.verdict) is None:
        return None
    from collbench.gate.verdict import PASSED, UNDECIDED
    from collbench.report.verdict import describe_outcomes, headline, judged, open_ones, sentences, slower, worst_groups

    badge = (GOOD, "PASSED") if verdict.result == PASSED else (DOUBT if verdict.result == UNDECIDED else BAD, verdict.result.upper())
    worst = [each for each in worst_groups(verdict.groups) if each.factors and each.factors[0] is not None][: _MOST_FIGURES - 1]
    figures = [LargeFigure(slower(each.factors[0]), f"{short(each.name, 60)}, limit {slower(each.limit)}") for each in worst]
    figures.append(LargeFigure(str(verdict.cases), f"{plural(verdict.cases, 'case')[len(str(verdict.cases)) + 1 :]} judged"))
    title = short(headline(verdict).partition("; ")[0].removeprefix(f"{verdict.result}: "), 300)
    cause = "" if verdict.unexpected_cause is None else f"; most plausible cause: {verdict.unexpected_cause.sentence()}"
    several = sum(1 for _ in open_ones(verdict))
    why = sentences(verdict.reasons, 3) if not several else []
    return FirstScreen(
        short(f"{title if several else why[0] if why else 'no case is slower than its limit'}{cause}", 400),
        badge,
        figures,
        judged(verdict),
        [text for text in (*why[1:], describe_outcomes(verdict)) if text],
    )


# A hunt: the confirmed suspects with their evidence.


def _of_hunt(material: Material) -> FirstScreen | None:
    from collbench.report import hunt

    if not material.hunts:
        return None
    run, stored = material.hunts[0]
    about = {**stored.about, "rounds": len(stored.rounds)}
    verdict = about.get("verdict")
    if not verdict:
        return FirstScreen(
            "the hunt stopped early, without a verdict", (DOUBT, "NO VERDICT"), (), _line_of(run), [hunt.describe_hunt(about)]
        )
    confirmed = [each for each in verdict["suspects"] if each["state"] == "confirmed"]
    badge = (BAD, "FAULTY") if confirmed else (GOOD, "HEALTHY") if verdict["result"] == "nobody" else (DOUBT, "NO VERDICT")
    sentences = [hunt.sentence(each, about["places"]).removeprefix("confirmed: ") for each in confirmed]
    figures = [
        LargeFigure(format_percent(100 * each["ratio"]), short(f"of the others: {_places(each, about)}", 80))
        for each in confirmed[: _MOST_FIGURES - 1]
        if isinstance(each.get("ratio"), int | float) and isfinite(each["ratio"])
    ]
    figures.append(LargeFigure(str(len(about["places"])), f"{about.get('by', 'endpoint')}s searched"))
    rest = f"; and {len(sentences) - 2} more" if len(sentences) > 2 else ""
    title = f"{'; '.join(sentences[:2])}{rest}" if sentences else hunt.headline(verdict)
    more = [hunt.describe_hunt(about), *([typical] if (typical := hunt.describe_typical(about)) else [])]
    return FirstScreen(short(title, 400), badge, figures, _line_of(run), more)


def _places(suspect: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    return " and ".join(about["places"][place] for place in suspect["places"])


# A training: the time of its step, and the share of the expected rate.


def _of_training(material: Material) -> FirstScreen | None:
    from collbench.report.training import milliseconds

    rows = [row for _, _, found in material.trainings for row in found]
    if not rows:
        return None
    run = material.trainings[0][0]
    timed = [row for row in rows if row.time_s is not None]
    first = min(timed, key=lambda row: row.time_s.p50 if row.time_s else 0.0, default=rows[0])
    of = f" of {first.model}" if first.model else ""
    what = f"{first.regime} training{of} on {plural(first.nodes, 'node')}, {plural(first.ranks, 'rank')}"
    if first.time_s is None:
        return FirstScreen(short(f"{what}: not measured ({first.na})", 400), (DOUBT, "NOT MEASURED"), (), _line_of(run))
    ceiling, percent, rate = first.ceiling, first.percent_of_ceiling, first.busbw_bytes_per_s
    figures = [LargeFigure(f"{milliseconds(first.time_s.p50)} ms", f"exchange of a step over {first.backend}")]
    title = f"{what}: a step's exchange takes {milliseconds(first.time_s.p50)} ms over {first.backend}"
    if ceiling is not None and ceiling.bytes_per_s and percent is not None and rate is not None:
        figures.append(LargeFigure(format_percent(percent), f"of {format_rate(ceiling.bytes_per_s)} GB/s expected"))
        share = f"{format_rate(rate)} of {format_rate(ceiling.bytes_per_s)} GB/s ({format_percent(percent)})"
        title += f", {share}, limited by {ceiling.limited_by}"
    badge = (BAD, "WRONG DATA") if any(row.wrong for row in rows) else (GOOD, "MEASURED") if percent is not None else (DOUBT, "MEASURED")
    others = [f"{row.backend}: {milliseconds(row.time_s.p50)} ms" for row in timed if row is not first and row.time_s]
    return FirstScreen(short(title, 400), badge, figures, _line_of(run), others)


# Pairs: places and paths that are slower than the others explain.


def _of_pairs(material: Material) -> FirstScreen | None:
    if not material.pairs:
        return None
    from collbench.report.pairs import measured

    (run, stored), effects = material.pairs[0], material.effects[0]
    names = effects.matrix.places
    findings = [each.sentence(names) for each in effects.findings()]
    about = {**stored.about, "rounds": len({one.round for one in stored.rounds if not one.again})}
    open_ones = effects.inconclusive()
    badge = (BAD, "SLOW") if findings else (DOUBT, "INCONCLUSIVE") if open_ones else (GOOD, "EVEN")
    title = findings[0] if findings else open_ones[0] if open_ones else f"no place and no pair among {len(names)} is slower than the others"
    rates = sorted(float(rate) for rate in effects.matrix.bandwidth.ravel() if rate > 0)
    worst = effects.findings()[: _MOST_FIGURES - 1]
    figures = [LargeFigure(format_percent(100 * each.ratio), short(f"of the others: {each.name(names)}", 80)) for each in worst]
    if rates:
        figures.append(LargeFigure(f"{format_rate(rates[len(rates) // 2])} GB/s", "median of all pairs"))
    return FirstScreen(short(title, 400), badge, figures, _line_of(run), [short(measured(effects.matrix, about)), *findings[1:4]])


# Two runs or more: how much slower or faster than the first one.


def _of_comparison(material: Material) -> FirstScreen | None:
    if not material.comparisons:
        return None
    found = max(material.comparisons, key=lambda each: each.summary.outcomes.get(Outcome.SLOWER, 0))
    of_outcome = {each: [case for case in found.cases if case.outcome is each and not case.wrong] for each in Outcome}
    changed = of_outcome[Outcome.SLOWER] or of_outcome[Outcome.FASTER]
    same, unclear = (len(of_outcome[each]) for each in (Outcome.NO_CHANGE, Outcome.INCONCLUSIVE))
    if found.summary.wrong_data:
        badge = (BAD, "WRONG DATA")
    elif changed:
        badge = (BAD, "SLOWER") if of_outcome[Outcome.SLOWER] else (GOOD, "FASTER")
    else:
        badge = (GOOD, "NO CHANGE") if same > unclear else (DOUBT, "INCONCLUSIVE")
    fallen = found.fallen.sentences()
    title = _compared(found, changed or of_outcome[Outcome.NO_CHANGE if same > unclear else Outcome.INCONCLUSIVE])
    worst = sorted((case for case in changed if case.time is not None), key=lambda case: case.time.value if case.time else 0.0)
    shown = [worst[0], worst[-1]] if len(worst) > 1 else worst
    figures = [LargeFigure(format_change(case.time), _case(case.b)) for case in shown]
    if same:
        figures.append(LargeFigure(str(same), f"{'case' if same == 1 else 'cases'} without change"))
    if unclear:
        figures.append(LargeFigure(str(unclear), f"inconclusive {'case' if unclear == 1 else 'cases'}"))
    more = [f"{short(found.b.name, 80)} against {short(found.a.name, 80)}, the baseline: {describe_comparison(found)}", *fallen[1:3]]
    title = f"{title}{f'; {fallen[0]}' if fallen else ''}"
    return FirstScreen(short(title, 400), badge, figures[:_MOST_FIGURES], _line_of(material.runs[0]), more)


def _compared(found: Comparison, cases: Sequence[CaseRatio]) -> str:
    """Return "allreduce slower (+21.1 to +25.7 %) in 7 of 8 cases"; `cases` are those of the outcome that counts."""
    every = plural(len(found.cases), "case")
    if found.summary.wrong_data:
        return f"wrong data in {found.summary.wrong_data} of {every}"
    if not found.cases:
        return f"no case in common: {why_nothing_in_common(found)}"
    if not cases:
        return f"none of {every} was measured in both runs"
    names = sorted({case.a.operation for case in cases})
    what = f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
    outcome = cases[0].outcome
    span = format_margin(found.margin) if outcome is Outcome.NO_CHANGE else describe_span(cases)
    of_size = f" ({span})" if span and outcome is not Outcome.INCONCLUSIVE else ""
    return f"{what}{':' if outcome in (Outcome.NO_CHANGE, Outcome.INCONCLUSIVE) else ''} {outcome}{of_size} in {len(cases)} of {every}"


def _case(row: Row) -> str:
    size = f" at {format_size(row.size_bytes)}" if row.size_bytes else ""
    return short(f"{row.operation} over {row.backend}{size}", 60)


# The rows of one run: the best rate of each operation against the expected one.


def _of_rows(material: Material) -> FirstScreen | None:
    if not material.tables:
        return None
    table = material.tables[0]
    rows = material.rows(table)
    found = answers(rows)
    if not found:
        return None
    outcome = verdict_of(rows, []).outcome
    badge = ({CheckOutcome.OK: GOOD, CheckOutcome.INCONCLUSIVE: DOUBT}.get(outcome, BAD), outcome.value)
    ranks, nodes = max(row.ranks for row in rows), max(row.nodes or 1 for row in rows)
    operations = list(dict.fromkeys(each.operation for each in found))
    what = operations[0] if len(operations) == 1 else f"{len(operations)} operations"
    title = f"{what} on {plural(nodes, 'node')}, {plural(ranks, 'rank')}: {_result(found)}"
    quality = run_quality(rows)
    more = [each.render() for each in found] if len(found) <= _MOST_ANSWERS else []
    more += [f"quality: {quality.render()}"] if quality.cases and quality.word != OK else []
    return FirstScreen(short(title, 400), badge, _figures(found), _line_of(table.runs[0]), [short(text, 400) for text in more])


def _result(found: Sequence[Answer]) -> str:
    """Return the best rate of one operation; of several the lowest and the highest percentage; without a rate the time."""
    if wrong := [each for each in found if each.verification is not None and each.verification.wrong]:
        return f"WRONG DATA in {', '.join(each.name for each in wrong[:3])}"
    rated = sorted((each for each in found if each.rate is not None), key=lambda each: each.rate.bytes_per_s if each.rate else 0.0)
    if not rated:
        return next((each.result() for each in found if not each.missing), found[0].result())
    percents = sorted((each.rate.percent, each.name) for each in rated if each.rate is not None and each.rate.percent is not None)
    if len({each.operation for each in found}) == 1 or not percents:
        return rated[-1].rate.render() if rated[-1].rate else ""
    (low, slowest), (high, fastest) = percents[0], percents[-1]
    return f"{format_percent(low)} ({slowest}) to {format_percent(high)} ({fastest}) of the expected bandwidth"


def _figures(found: Sequence[Answer]) -> list[LargeFigure]:
    """Return the percentage of the fastest backend of each operation, and the latency of the first."""
    best: dict[str, Answer] = {}
    for each in found:
        known = best.setdefault(each.operation, each)
        if each.rate is not None and (known.rate is None or each.rate.bytes_per_s > known.rate.bytes_per_s):
            best[each.operation] = each
    figures = []
    for each in best.values():
        if (rate := each.rate) is not None:
            of = f"of {format_rate(rate.expected_bytes_per_s)} GB/s expected: " if rate.expected_bytes_per_s else ""
            value = f"{format_rate(rate.bytes_per_s)} GB/s" if rate.percent is None or not of else format_percent(rate.percent)
            figures.append(LargeFigure(value, f"{of}{each.name} at {format_size(rate.size_bytes)}"))
    latencies = [
        (each.latency.times_s[0], each.latency.size_bytes, each.name) for each in found if each.latency and each.latency.size_bytes
    ]
    if latencies:
        time_s, size, name = min(latencies)
        figures = [*figures[: _MOST_FIGURES - 1], LargeFigure(f"{format_time(time_s)} µs", f"{name} at {format_size(size)}")]
    return figures[:_MOST_FIGURES]


def _line_of(run: Run) -> str:
    """Return hosts, machine, software and date in one line."""
    return " · ".join(text for text in circumstances(run).values() if text)
