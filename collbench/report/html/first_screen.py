"""The first screen of a page: the answer as a sentence, a badge, at most four large figures, and one line of circumstances.

Every kind of result has its answer here. A page without an answer is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from collbench.analysis.compare import CaseRatio, Comparison, why_nothing_in_common
from collbench.analysis.health import CheckOutcome, CheckVerdict, MissesExpected, Reach, ReachesExpected, SeriesCheck, verdict_of
from collbench.analysis.outcome import Outcome
from collbench.errors import UsageError
from collbench.report.answer import Answer, answers
from collbench.report.headlines import circumstances, short
from collbench.report.material import Material
from collbench.report.outcome_text import describe_comparison, describe_span, format_change, format_margin
from collbench.results.quality import OK, run_quality
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_percent, format_rate, format_size, format_time, listed, noun_of, plural

if TYPE_CHECKING:
    from collbench.gate.history import CaseHistory, History
    from collbench.machine.doctor.finding import Finding
    from collbench.machine.model import Machine
    from collbench.machine.peak.ceiling import Ceiling
    from collbench.machine.peak.collective import CollectiveCeilings
    from collbench.machine.peak.node import Job
    from collbench.machine.readers.nccl_log import NcclLog

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
    section        the key of the section of which the first chart belongs to the answer
    operation      that of the chart in the section "curves"; "": the first one
    """

    title: str
    badge: tuple[str, str] | None = None
    figures: Sequence[LargeFigure] = ()
    circumstances: str = ""
    more: Sequence[str] = ()
    section: str = "curves"
    operation: str = ""


def first_screen(material: Material) -> FirstScreen | None:
    """Return the answer of the runs; None if there is none."""
    answers: tuple[Callable[[Material], FirstScreen | None], ...] = (
        _of_gate, _of_hunt, _of_training, _of_pairs, _of_comparison, _of_check, _of_rows,
    )  # fmt: skip
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
    from collbench.report.verdict import describe_counts, describe_outcomes, judged, open_ones, sentences, slower, worst_groups

    badge = (GOOD, "PASSED") if verdict.result == PASSED else (DOUBT if verdict.result == UNDECIDED else BAD, verdict.result.upper())
    worst = [each for each in worst_groups(verdict.groups) if each.factors and each.factors[0] is not None][: _MOST_FIGURES - 1]
    figures = [LargeFigure(slower(each.factors[0]), f"{short(each.name, 60)}, limit {slower(each.limit)}") for each in worst]
    figures.append(LargeFigure(str(verdict.cases), f"{noun_of(verdict.cases, 'case')} judged"))
    exceeded = [f"{each.name}: {slower(each.factors[0])} time" for each in worst if each.state != PASSED]
    title = short("; ".join(exceeded[:2]) or describe_counts(verdict) or verdict.result, 300)
    change = verdict.unexpected_cause
    cause = "" if change is None else f"; most plausible cause: {change.sentence()}"
    likely = "" if verdict.cause is None else short(f"likely cause: {verdict.cause.render()}", 400)
    several = sum(1 for _ in open_ones(verdict))
    why = sentences(verdict.reasons, 3) if not several else []
    return FirstScreen(
        short(f"{title if several else why[0] if why else 'no case is slower than its limit'}{cause}", 400),
        badge,
        figures,
        judged(verdict),
        [text for text in (likely, *why[1:], describe_outcomes(verdict)) if text],
        operation=worst[0].operation if worst else "",
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
            "the hunt stopped early, without a verdict", (DOUBT, "NO VERDICT"), (), _line_of(run), [hunt.describe_hunt(about)], "hunt"
        )
    confirmed = [each for each in verdict["suspects"] if each["state"] == "confirmed"]
    badge = (BAD, "FAULTY") if confirmed else (GOOD, "HEALTHY") if verdict["result"] == "nobody" else (DOUBT, "NO VERDICT")
    sentences = [hunt.finding(each, about["places"]) for each in confirmed]
    figures = [
        LargeFigure(format_percent(100 * each["ratio"]), short(f"of the others: {_places(each, about)}", 80))
        for each in confirmed[: _MOST_FIGURES - 1]
        if isinstance(each.get("ratio"), int | float) and isfinite(each["ratio"])
    ]
    figures.append(LargeFigure(str(len(about["places"])), f"{about.get('by', 'endpoint')}s searched"))
    rest = f"; and {len(sentences) - 2} more" if len(sentences) > 2 else ""
    title = f"{'; '.join(sentences[:2])}{rest}" if sentences else hunt.headline(verdict)
    more = [*_drains(run), hunt.describe_hunt(about), *([typical] if (typical := hunt.describe_typical(about)) else [])]
    return FirstScreen(short(title, 400), badge, figures, _line_of(run), more, "hunt")


def _drains(run: Run) -> list[str]:
    """Return the commands that drain the first faulty nodes; none if recommendation.json is missing or not valid."""
    from collbench.deploy.drain import read

    try:
        drains = (read(run.path) or {"drains": []})["drains"]
    except UsageError:
        return []  # the section has the error
    return [f"to drain {each['node']}: `{each['line']}`" for each in drains[: _MOST_FIGURES - 1] if each["line"]]


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
        return FirstScreen(short(f"{what}: not measured ({first.na})", 400), (DOUBT, "NOT MEASURED"), (), _line_of(run), (), "training")
    ceiling, percent, rate = first.ceiling, first.percent_of_ceiling, first.busbw_bytes_per_s
    figures = [LargeFigure(f"{milliseconds(first.time_s.p50)} ms", f"exchange of a step over {first.backend}")]
    title = f"{what}: a step's exchange takes {milliseconds(first.time_s.p50)} ms over {first.backend}"
    if ceiling is not None and ceiling.bytes_per_s and percent is not None and rate is not None:
        figures.append(LargeFigure(format_percent(percent), f"of {format_rate(ceiling.bytes_per_s)} GB/s expected"))
        share = f"{format_rate(rate)} of {format_rate(ceiling.bytes_per_s)} GB/s ({format_percent(percent)})"
        title += f", {share}, limited by {ceiling.limited_by}"
    badge = (BAD, "WRONG DATA") if any(row.wrong for row in rows) else (GOOD, "MEASURED") if percent is not None else (DOUBT, "MEASURED")
    others = [f"{row.backend}: {milliseconds(row.time_s.p50)} ms" for row in timed if row is not first and row.time_s]
    return FirstScreen(short(title, 400), badge, figures, _line_of(run), others, "training")


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
    more = [short(measured(effects.matrix, about)), *findings[1:4]]
    return FirstScreen(short(title, 400), badge, figures, _line_of(run), more, "pairs")


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
    of_most = worst[-1].b.operation if worst else ""
    return FirstScreen(short(title, 400), badge, figures[:_MOST_FIGURES], _line_of(material.runs[0]), more, operation=of_most)


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


# A check: its own verdict.

_BADGES = {CheckOutcome.OK: GOOD, CheckOutcome.INCONCLUSIVE: DOUBT, CheckOutcome.SLOW: BAD, CheckOutcome.BROKEN: BAD}


def _of_check(material: Material) -> FirstScreen | None:
    return None if material.check is None else of_check(material.check, _line_of(material.runs[0]))


def of_check(verdict: CheckVerdict, line: str = "") -> FirstScreen:
    """Return the first screen of a check: the causes of its outcome, what decides in each operation, and the evidence."""
    title = verdict.reasons()
    more = [short(each.render(), 400) for each in verdict.evidence]
    return FirstScreen(short(title, 400), (_BADGES[verdict.outcome], verdict.outcome.value), _figures_of_check(verdict), line, more)


def _figures_of_check(verdict: CheckVerdict) -> list[LargeFigure]:
    """Return the percentage that decides in each operation, and the shortest latency."""
    decisive = [cause.best for cause in verdict.causes if isinstance(cause, MissesExpected)]
    decisive += [each for cause in verdict.causes if isinstance(cause, ReachesExpected) for each in cause.series]
    figures = [
        LargeFigure(format_percent(each.percent), f"of {format_rate(each.expected)} GB/s expected: {each.operation} over {each.backend} "
                    f"at {format_size(each.size_bytes)}")
        for each in decisive if each.percent is not None and each.expected
    ]  # fmt: skip
    latencies = [each for each in verdict.evidence if isinstance(each, SeriesCheck) and each.reach is Reach.LATENCY and each.time_s]
    if latencies:
        best = min(latencies, key=lambda each: each.time_s or 0.0)
        what = f"{best.operation} over {best.backend} at {format_size(best.size_bytes)}"
        figures = [*figures[: _MOST_FIGURES - 1], LargeFigure(f"{format_time(best.time_s or 0.0)} µs", what)]
    return figures[:_MOST_FIGURES]


# A history: the largest slowdown, else the largest improvement, with its date and what else changed then.


def of_history(history: History, shown: Sequence[CaseHistory]) -> FirstScreen:
    """Return the first screen of a history; `shown`: the chosen series."""
    from math import exp

    from collbench.gate.history import CELL, GROUP, LEAST
    from collbench.report.baseline import day, extent, interval, title, with_it

    line = short(f"history of {history.of}", 200)
    count = _count(len(history.allocations), "allocation")
    every = [(each, step) for each in shown for step in each.steps]
    if not every:
        few = len(history.allocations) < 2 * LEAST
        badge = (DOUBT, "TOO FEW") if few else (GOOD, "NO CHANGE")
        found = f"{'too few allocations to find a change' if few else 'no change'}: {extent(history)}"
        reason = [f"A change needs {LEAST} allocations before and after it."] if few else []
        return FirstScreen(short(found, 400), badge, [count], line, reason)
    series, step = max(every, key=lambda pair: (pair[1].change > 0, abs(pair[1].change)))
    since, (low, high) = history.allocations[step.at], interval(step)
    since_when = f"since {day(since.began_utc)} ({since.name})"
    way = f"{'slower' if step.change > 0 else 'faster'} ({_percent(exp(step.change))} time)"
    sentence = f"{series.about.name} {way} {since_when}; with it: {with_it(history, step)}"
    changed = [
        (name, sum(each.about.kind == kind and bool(each.steps) for each in shown)) for kind, name in ((GROUP, "group"), (CELL, "case"))
    ]
    figures = [LargeFigure(_percent(exp(step.change)), f"time of {series.about.name} ({_percent(low)} to {_percent(high)})"), count]
    figures += [LargeFigure(str(number), f"{noun_of(number, name)} changed") for name, number in changed if number]
    badge = (BAD, "SLOWER") if step.change > 0 else (GOOD, "FASTER")
    return FirstScreen(short(sentence, 400), badge, figures, line, [short(f"{title(history)}.", 400)])


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.1f} %"


# Nodes without a run: doctor, probe and peak.


def of_doctor(findings: Sequence[Finding], machines: Sequence[Machine], logs: Sequence[NcclLog]) -> FirstScreen:
    """Return the first screen of doctor: the worst finding with its evidence and remedy, and how many there are."""
    from collbench.machine.doctor.examine import examined_parts
    from collbench.machine.doctor.finding import SEVERITIES
    from collbench.report.html.health import by_host

    examined = f"examined {examined_parts(machines, logs)}"
    if not findings:
        return FirstScreen(short(f"no findings on {_hosts(machines)}", 400), (GOOD, "NO FINDINGS"), (), short(examined, 400))
    hosts = by_host(findings)
    worst, names = next(iter(hosts.items()))
    counts = [(severity, sum(each.severity == severity for each in hosts)) for severity in SEVERITIES]
    where = f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: " if machines else ""
    badge = {"severe": (BAD, "SEVERE"), "warning": (DOUBT, "WARNING")}.get(worst.severity, (GOOD, "NOTE"))
    figures = [_count(count, "severe finding" if severity == "severe" else severity) for severity, count in counts if count]
    more = [f"evidence: {worst.evidence}", f"remedy: {worst.remedy}"]
    more += [f"{each.severity} {each.code}: {each.what}" for each in [*hosts][1:_MOST_ANSWERS]]
    return FirstScreen(
        short(f"{where}{worst.what} ({worst.code})", 400), badge, figures, short(examined, 400), [short(text) for text in more]
    )


def of_probe(machines: Sequence[Machine], differences: Sequence[str], findings: Sequence[Finding]) -> FirstScreen:
    """Return the first screen of probe: what the nodes are, and what limits all-reduce between two of them."""
    from collbench.report.html.machine import node_ceiling
    from collbench.report.machine import system_text, title

    if not machines:
        raise UsageError("--html: no machine was read, so there is nothing for a page")
    first, ceiling = machines[0], node_ceiling(machines[0])
    name = title(first) if len(machines) == 1 else f"{plural(len(machines), 'node')} like {title(first)}"
    limit, figures = "", []
    if ceiling is not None and (rate := _rate_of(ceiling)):
        limit = f"; all-reduce between two such nodes can reach {format_rate(rate)} GB/s, limited by {ceiling.limited_by}"
        figures.append(LargeFigure(f"{format_rate(rate)} GB/s", "all-reduce between two such nodes, expected"))
    counts = ((len(first.gpus), "GPU"), (len([nic for nic in first.nics if not nic.virtual]), "NIC"))
    figures += [_count(count, what) for count, what in counts if count]
    severe = sum(each.severity == "severe" for each in findings)
    figures += [_count(severe, "severe finding")] if severe else []
    badge = (BAD, "SEVERE FINDINGS") if severe else (DOUBT, "NODES DIFFER") if differences else None
    more = [*differences[:2], *(f"{each.severity} {each.code}: {each.what}" for each in findings[:2])]
    line = " · ".join(system_text(first.system))
    return FirstScreen(short(f"{name}{limit}", 400), badge, figures[:_MOST_FIGURES], short(line, 300), [short(text) for text in more])


def of_peak(operation: str, measured: float | None, found: CollectiveCeilings, job: Job) -> FirstScreen:
    """Return the first screen of peak: the expected rate and its limit; with a measured rate its percentage."""
    from collbench.machine.peak.collective import assumed, chosen, doubts, headline, percents

    model, ceiling = chosen(measured, found)
    of = f"{operation} on {plural(job.machines, 'node')}, {plural(job.ranks, 'rank')}"
    more = [
        short(text) for text in (*(f"assumed: {each}" for each in assumed(operation, job)), *(f"doubt: {each}" for each in doubts(job)))
    ]
    if ceiling is None or not (expected := _rate_of(ceiling)):
        return FirstScreen(short(f"{of}: {headline(measured, found)}", 400), (DOUBT, "UNKNOWN"), (), "", more)
    limited = "" if ceiling.kind == "given" else f", limited by {ceiling.limited_by}"
    rate = f"{format_rate(expected)} GB/s"
    figures = [LargeFigure(rate, "expected" if model == "ring" else "hard limit")]
    if model == "ring" and _rate_of(found.bound) > expected:
        figures.append(LargeFigure(f"{format_rate(_rate_of(found.bound))} GB/s", "hard limit"))
    if measured is None:
        return FirstScreen(short(f"{of}: at most {rate} expected{limited}", 400), None, figures, "", more)
    share = next((percent for percent in percents(measured, found) if percent is not None), None)
    if model == "doubtful" or share is None:
        title, badge = f"{of}: the measured {format_rate(measured)} GB/s exceed the hard limit of {rate}{limited}", (DOUBT, "DOUBTFUL")
    else:
        title, badge = f"{of}: {format_rate(measured)} of {rate} ({format_percent(share)}){limited}", None
        figures.insert(0, LargeFigure(format_percent(share), "of expected"))
    return FirstScreen(short(title, 400), badge, figures[:_MOST_FIGURES], "", more)


def _rate_of(ceiling: Ceiling | None) -> float:
    """Return the rate of a ceiling in bytes per second; 0 if it is unknown."""
    return (ceiling.bytes_per_s if ceiling is not None else None) or 0.0


def _count(count: int, noun: str) -> LargeFigure:
    """Return "3" above "warnings"."""
    return LargeFigure(str(count), noun_of(count, noun))


def _hosts(machines: Sequence[Machine]) -> str:
    names = [each.hostname or "unnamed host" for each in machines]
    return listed(names, 4) if names else "these logs"


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
