"""The first screen of a page: the answer as a sentence, a badge, at most four large figures, and one line of circumstances.

Every kind of result of the core has its answer here, those of plug-ins in their `RunKind.screen`. A page without an answer is not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import exp, inf
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import force_setattr

from collbench.analysis.best import is_shown_as_time
from collbench.analysis.ceilings import present_percents
from collbench.analysis.compare import CaseRatio, Comparison, why_nothing_in_common
from collbench.analysis.health import (
    OF_LINKS,
    CheckOutcome,
    CheckVerdict,
    HiddenByNoise,
    MissesExpected,
    Reach,
    ReachesExpected,
    SeriesCheck,
    verdict_of,
)
from collbench.analysis.outcome import Outcome
from collbench.errors import UsageError
from collbench.machine.peak.ceiling import ABOVE_LIMIT, MOST_OF_MEASURED, is_above_limit
from collbench.report.answer import Answer, HeadlineRate, answers
from collbench.report.headlines import circumstances, short
from collbench.report.kinds import kinds
from collbench.report.material import Material
from collbench.report.outcome_text import describe_comparison, describe_span, format_change, format_margin
from collbench.results.flags import FLAGS
from collbench.results.quality import OK, run_quality
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import first_of, format_percent, format_rate, format_size, format_span, listed, noun_of, plural

if TYPE_CHECKING:
    from collbench.gating.history import CaseHistory, History
    from collbench.machine.doctor.examine import ExaminedLog
    from collbench.machine.doctor.finding import Finding
    from collbench.machine.model import Machine
    from collbench.machine.peak.ceiling import Ceiling
    from collbench.machine.peak.collective import CollectiveCeilings
    from collbench.machine.peak.node import Job

# The badge's color and shape: a green circle, a triangle, a diamond; an open circle without a color.
GOOD, BAD, DOUBT, PLAIN = "good", "bad", "doubt", "plain"
_COLORS = {Outcome.SLOWER: BAD, Outcome.FASTER: GOOD, Outcome.NO_CHANGE: GOOD, Outcome.INCONCLUSIVE: DOUBT}
MOST_FIGURES = 4
_MOST_ANSWERS = 6
_MOST_RATES = 3


class LargeFigure(msgspec.Struct, frozen=True):
    """A figure in large letters: "99 %", and below it what it is: "of expected: allreduce over mpi at 64 MiB"."""

    value: str
    label: str


class FirstScreen(msgspec.Struct, frozen=True):
    """The answer of a page. Its texts are made printable and cut, and of more than four figures the first four stay.

    title          the answer as a sentence without a full stop
    badge          (one of GOOD, BAD, DOUBT and PLAIN, a word); None where nothing was judged
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

    def __post_init__(self) -> None:
        figures = [LargeFigure(figure.value, short(figure.label, 120)) for figure in self.figures[:MOST_FIGURES]]
        force_setattr(self, "title", short(self.title, 400))
        force_setattr(self, "figures", figures)
        force_setattr(self, "circumstances", short(self.circumstances, 600))
        force_setattr(self, "more", [short(text, 400) for text in self.more])


def first_screen(material: Material) -> FirstScreen | None:
    """Return the answer of the runs; None if there is none."""
    for answer in (_of_gate, *(kind.screen for kind in kinds().values()), _of_comparison, _of_check, _of_rows):
        screen = answer(material)
        if screen is not None:
            return screen
    return None


# A gate: its result, the slowest groups, and the most plausible cause.


def _of_gate(material: Material) -> FirstScreen | None:
    verdict = material.verdict
    if verdict is None:
        return None
    from collbench.gating.verdict import PASSED, UNDECIDED
    from collbench.report import verdict as texts

    color = {PASSED: GOOD, UNDECIDED: DOUBT}.get(verdict.result, BAD)
    measured = [group for group in texts.worst_groups(verdict.groups) if group.factors and group.factors[0] is not None]
    worst = measured[: MOST_FIGURES - 1]
    figures = [
        LargeFigure(texts.slower(group.factors[0]), f"{short(group.name, 60)}, limit {texts.slower(group.limit)}") for group in worst
    ]
    reasons: list[str] = []
    if any(True for _ in texts.open_ones(verdict)):
        exceeded = [f"{group.name}: {texts.slower(group.factors[0])} time" for group in worst if group.state != PASSED]
        title = short("; ".join(exceeded[:2]) or texts.describe_counts(verdict) or verdict.result, 300)
    else:
        title, *reasons = texts.sentences(verdict.reasons, 3) or ["no case is slower than its limit"]
    cause = "" if verdict.unexpected_cause is None else f"; most plausible cause: {verdict.unexpected_cause.sentence()}"
    more = [] if verdict.cause is None else [f"likely cause: {verdict.cause.render()}"]
    more += [*reasons, *filter(None, [texts.describe_outcomes(verdict)])]
    figures.append(LargeFigure(str(verdict.cases), f"{noun_of(verdict.cases, 'case')} judged"))
    badge = (color, verdict.result.upper())
    operation = worst[0].operation if worst else ""
    return FirstScreen(f"{title}{cause}", badge, figures, texts.judged(verdict), more, section="gate", operation=operation)


# Two runs or more: how much slower or faster than the first one.


def _of_comparison(material: Material) -> FirstScreen | None:
    if material.alternatives is not None:
        return material.alternatives.screen(line_of(material.runs[0]))
    if not material.comparisons:
        return None
    comparison = max(material.comparisons, key=lambda comparison: comparison.summary.outcomes.get(Outcome.SLOWER, 0))
    by_outcome = {outcome: [case for case in comparison.cases if case.outcome is outcome and not case.wrong] for outcome in Outcome}
    same = by_outcome[Outcome.NO_CHANGE]
    unclear = by_outcome[Outcome.INCONCLUSIVE]
    outcome = Outcome.NO_CHANGE if len(same) > len(unclear) else Outcome.INCONCLUSIVE
    outcome = next((change for change in (Outcome.SLOWER, Outcome.FASTER) if by_outcome[change]), outcome)
    badge = (BAD, "WRONG DATA") if comparison.summary.wrong_data else (_COLORS[outcome], outcome.upper())
    changed = by_outcome[Outcome.SLOWER] or by_outcome[Outcome.FASTER]
    fallen = comparison.fallen.sentences()
    title = _compared(comparison, by_outcome[outcome])
    worst = sorted((case for case in changed if case.time is not None), key=lambda case: case.time.value if case.time else 0.0)
    ends = worst if len(worst) < 2 else (worst[0], worst[-1])
    figures = [LargeFigure(f"{format_change(case.time)} time", _case(case.b)) for case in ends]
    if same:
        figures.append(LargeFigure(str(len(same)), f"{noun_of(len(same), 'case')} without change"))
    if unclear:
        figures.append(_count(len(unclear), "inconclusive case"))
    sides = f"{short(comparison.b.name, 80)} against {short(comparison.a.name, 80)}, the baseline"
    more = [f"{sides}: {describe_comparison(comparison)}", *fallen[1:3], *present_percents(material.rows(comparison.b))]
    title = "; ".join([title, *fallen[:1]])
    operation = worst[-1].b.operation if worst else ""
    # the chart of one operation shows both runs; of several operations the ratios of all cases are the overview
    section = "curves" if len({case.b.operation for case in comparison.cases}) == 1 else "against"
    return FirstScreen(title, badge, figures, line_of(material.runs[0]), more, section=section, operation=operation)


def _compared(comparison: Comparison, cases: Sequence[CaseRatio]) -> str:
    """Return "allreduce slower (+21.1 to +25.7 %) in 7 of 8 cases"; `cases` are those of the outcome that counts."""
    total = plural(len(comparison.cases), "case")
    if comparison.summary.wrong_data:
        return f"wrong data in {comparison.summary.wrong_data} of {total}"
    if not comparison.cases:
        return f"no case in common: {why_nothing_in_common(comparison)}"
    if not cases:
        return f"none of {total} was measured in both runs"
    names = sorted({case.a.operation for case in cases})
    operations = f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''}"
    outcome = cases[0].outcome
    if outcome is Outcome.INCONCLUSIVE:
        doubts = Counter(case.doubt.value for case in cases if case.doubt is not None)
        return f"{operations}: {outcome} in {len(cases)} of {total} ({', '.join(doubt for doubt, _ in doubts.most_common())})"
    is_same = outcome is Outcome.NO_CHANGE
    span = format_margin(comparison.margin) if is_same else describe_span(cases)
    return f"{operations}{':' if is_same else ''} {outcome}{f' ({span})' if span else ''} in {len(cases)} of {total}"


def _case(row: Row) -> str:
    size = f" at {format_size(row.size_bytes)}" if row.size_bytes else ""
    return short(f"{row.operation} over {row.backend}{size}", 60)


# A check: its own verdict.

_BADGES = {CheckOutcome.OK: GOOD, CheckOutcome.INCONCLUSIVE: DOUBT}
_ABOVE = "above_bound"  # the flag of rows above the hard limit


def _of_check(material: Material) -> FirstScreen | None:
    return None if material.check is None else of_check(material.check, line_of(material.runs[0]), material.runs[0].rows)


def of_check(verdict: CheckVerdict, line: str = "", rows: Sequence[Row] = ()) -> FirstScreen:
    """Return the first screen of a check of these rows: the causes of its outcome, what decides in each operation, and the evidence."""
    decisive = [cause.best for cause in verdict.causes if isinstance(cause, MissesExpected)]
    decisive += [check for cause in verdict.causes if isinstance(cause, ReachesExpected) for check in cause.series]
    figures = []
    for check in decisive:
        if check.percent is not None and check.expected:
            label = f"of {format_rate(check.expected)} GB/s expected: {_series(check)} at {format_size(check.size_bytes)}"
            figures.append(LargeFigure(format_percent(check.percent), label))
    timed = [check for check in verdict.evidence if isinstance(check, SeriesCheck) and check.reach is Reach.LATENCY]
    latencies = [(check.time_s, check.size_bytes, _series(check)) for check in timed if check.time_s]
    badge, doubts = _badge_of(verdict, rows)
    title = "; ".join([verdict.reasons(), *doubts])
    return FirstScreen(title, badge, _with_latency(figures, latencies), line, [*verdict.backend_lines(), *map(str, verdict.evidence)])


def _badge_of(verdict: CheckVerdict, rows: Sequence[Row]) -> tuple[tuple[str, str], list[str]]:
    """Return the badge of a verdict about rows, and why it is not green: rates above a limit, or far below the expected bandwidth."""
    if verdict.outcome is not CheckOutcome.OK:
        return (_BADGES.get(verdict.outcome, BAD), verdict.outcome.value), []
    measured = [row for row in rows if row.na is None]
    above = sum(_ABOVE in row.flags for row in measured)
    if above:
        return (DOUBT, "DOUBTFUL"), [f"above the hard limit: {above} of {plural(len(measured), 'case')}; {FLAGS[_ABOVE].text}"]
    checks = [check for cause in verdict.causes if isinstance(cause, ReachesExpected) for check in cause.series]
    rates = [(answer.rate, answer.name) for answer in answers(rows) if answer.rate is not None]
    percents = [(check.percent or 0.0, _series(check)) for check in checks]
    percents += [(rate.percent, name) for rate, name in rates if rate.percent is not None]
    lowest, name = min(percents)
    if lowest < 100 * OF_LINKS:
        reached = f"{name} reaches only {format_percent(lowest)} of the expected bandwidth"
        return (PLAIN, "OK"), [f"{reached}: compare with an earlier run of this machine"]
    highest, name = max(((rate.percent or 0.0, name) for rate, name in rates if rate.measured), default=(0.0, ""))
    if is_above_limit(highest):
        return (PLAIN, "OK"), [f"{name} reaches {format_percent(highest)} of a measured reference, {ABOVE_LIMIT}"]
    return (GOOD, "OK"), []


def _series(check: SeriesCheck) -> str:
    return f"{check.operation} over {check.backend}"


def _with_latency(figures: Sequence[LargeFigure], latencies: Sequence[tuple[float, int, str]]) -> list[LargeFigure]:
    """Return at most four figures with the shortest of (latency in seconds, size in bytes, what it is of) as the last one."""
    if not latencies:
        return [*figures[:MOST_FIGURES]]
    time_s, size, name = min(latencies)
    return [*figures[: MOST_FIGURES - 1], LargeFigure(format_span(time_s), f"{name} at {format_size(size)}")]


# A history: the largest slowdown, else the largest improvement, with its date and what else changed then.


def of_history(history: History, shown: Sequence[CaseHistory]) -> FirstScreen:
    """Return the first screen of a history; `shown`: the chosen series."""
    from collbench.gating.history import CASE, GROUP, LEAST
    from collbench.report.baseline import day, extent, title, with_it

    line = short(f"history of {history.of}", 200)
    count = _count(len(history.allocations), "allocation")
    steps = [(series, step) for series in shown for step in series.steps]
    if not steps:
        if len(history.allocations) >= 2 * LEAST:
            return FirstScreen(f"no change: {extent(history)}", (GOOD, "NO CHANGE"), [count], line, section="changes")
        few = f"too few allocations to find a change: {extent(history)}"
        return FirstScreen(few, (DOUBT, "TOO FEW"), [count], line, [f"A change needs {LEAST} allocations before and after it."], "changes")
    series, step = max(steps, key=lambda pair: (pair[1].change > 0, abs(pair[1].change)))
    since = history.allocations[step.at]
    name = series.about.name
    percent = _percent(exp(step.change))
    change = f"{'slower' if step.change > 0 else 'faster'} ({percent} time)"
    sentence = f"{name} {change} since {day(since.began_utc)} ({since.name}); with it: {with_it(history, step)}"
    figures = [LargeFigure(percent, f"time of {name} ({_percent(step.low)} to {_percent(step.high)})"), count]
    for kind, noun in ((GROUP, "group"), (CASE, "case")):
        number = sum(series.about.kind == kind and bool(series.steps) for series in shown)
        if number:
            figures.append(LargeFigure(str(number), f"{noun_of(number, noun)} changed"))
    badge = (BAD, "SLOWER") if step.change > 0 else (GOOD, "FASTER")
    return FirstScreen(sentence, badge, figures, line, [f"{title(history)}."], "changes")


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.1f} %"


# Nodes without a run: doctor, probe and peak.


def of_doctor(findings: Sequence[Finding], machines: Sequence[Machine], logs: Sequence[ExaminedLog]) -> FirstScreen:
    """Return the first screen of doctor: the worst finding with its evidence and remedy, and how many there are."""
    from collbench.machine.doctor.examine import examined_parts
    from collbench.machine.doctor.finding import SEVERITIES
    from collbench.report.html.machine import by_host

    line = short(f"examined {examined_parts(machines, logs)}", 400)
    if not findings:
        names = listed([machine.hostname or "unnamed host" for machine in machines], 4) if machines else "these logs"
        return FirstScreen(f"no findings on {names}", (GOOD, "NO FINDINGS"), (), line)
    hosts = by_host(findings)
    worst, worst_hosts = next(iter(hosts.items()))
    where = f"{first_of(worst_hosts, 1)}: " if machines else ""
    badge = {"severe": (BAD, "SEVERE"), "warning": (DOUBT, "WARNING")}.get(worst.severity, (PLAIN, "NOTE"))
    counts = [(severity, sum(finding.severity == severity for finding in hosts)) for severity in SEVERITIES]
    figures = [_count(count, "severe finding" if severity == "severe" else severity) for severity, count in counts if count]
    more = [f"evidence: {worst.evidence}", f"remedy: {worst.remedy}", *map(_finding, [*hosts][1:_MOST_ANSWERS])]
    return FirstScreen(f"{where}{worst.what} ({worst.code})", badge, figures, line, more)


def _finding(finding: Finding) -> str:
    return f"{finding.severity} {finding.code}: {finding.what}"


def of_probe(machines: Sequence[Machine], differences: Sequence[str], findings: Sequence[Finding]) -> FirstScreen:
    """Return the first screen of probe: what the nodes are, and what limits all-reduce between two of them."""
    from collbench.report.html.machine import node_ceiling
    from collbench.report.machine import system_text, title

    if not machines:
        raise UsageError("--html: no machine was read, so there is nothing for a page")
    first = machines[0]
    name = title(first) if len(machines) == 1 else f"{plural(len(machines), 'node')} like {title(first)}"
    ceiling = node_ceiling(first)
    rate = _rate_of(ceiling)
    limit = ""
    figures = []
    if ceiling is not None and rate:
        limit = f"; all-reduce between two such nodes can reach {format_rate(rate)} GB/s, limited by {ceiling.limited_by}"
        figures.append(LargeFigure(f"{format_rate(rate)} GB/s", "all-reduce between two such nodes, expected"))
    severe = sum(finding.severity == "severe" for finding in findings)
    counts = ((len(first.gpus), "GPU"), (sum(not nic.virtual for nic in first.nics), "NIC"), (severe, "severe finding"))
    figures += [_count(count, noun) for count, noun in counts if count]
    badge = (DOUBT, "NODES DIFFER") if differences else None
    if severe:
        badge = (BAD, "SEVERE FINDINGS")
    more = [*differences[:2], *map(_finding, findings[:2])]
    return FirstScreen(f"{name}{limit}", badge, figures, " · ".join(system_text(first.system)), more, "machine")


def of_peak(operation: str, measured: float | None, ceilings: CollectiveCeilings, job: Job) -> FirstScreen:
    """Return the first screen of peak: the expected rate and its limit; with a measured rate its percentage."""
    from collbench.machine.peak.ceiling import name_of_model
    from collbench.machine.peak.comparison import assumed, doubts, exceeds_bound, headline, percents

    ceiling = ceilings.expected
    expected = _rate_of(ceiling)
    subject = f"{operation} on {plural(job.machines, 'node')}, {plural(job.ranks, 'rank')}"
    more = [*(f"assumed: {text}" for text in assumed(operation, job)), *(f"doubt: {text}" for text in doubts(job))]
    if ceiling is None or not expected:
        return FirstScreen(f"{subject}: {headline(measured, ceilings)}", (DOUBT, "UNKNOWN"), (), "", more, "machine")
    limited = "" if ceiling.kind == "given" else f", limited by {ceiling.limited_by}"
    bound = _rate_of(ceilings.bound)
    limit = f"{format_rate(bound)} GB/s"
    if measured is not None and exceeds_bound(measured, ceilings):
        title = f"{subject}: the measured {format_rate(measured)} GB/s exceed the hard limit of {limit}{limited}"
        return FirstScreen(title, (DOUBT, "DOUBTFUL"), [LargeFigure(limit, "hard limit")], "", more, "rates")
    rate = f"{format_rate(expected)} GB/s"
    figures = [LargeFigure(rate, "hard limit" if ceiling.model == "bound" else f"expected ({name_of_model(ceiling.model)})")]
    if bound > expected:
        figures.append(LargeFigure(limit, "hard limit"))
    percent = percents(measured, ceilings)[0]
    if measured is None or percent is None:
        return FirstScreen(f"{subject}: at most {rate} expected{limited}", None, figures, "", more, "rates")
    title = f"{subject}: {format_rate(measured)} of {rate} ({format_percent(percent)}){limited}"
    return FirstScreen(title, None, [LargeFigure(format_percent(percent), "of expected"), *figures], "", more, "rates")


def _rate_of(ceiling: Ceiling | None) -> float:
    """Return the rate of a ceiling in bytes per second; 0 if it is unknown."""
    return (ceiling.bytes_per_s if ceiling is not None else None) or 0.0


def _count(count: int, noun: str) -> LargeFigure:
    """Return "3" above "warnings"."""
    return LargeFigure(str(count), noun_of(count, noun))


# The rows of one run: the best rate of each operation against the expected one.


def _of_rows(material: Material) -> FirstScreen | None:
    rows = material.rows(material.tables[0]) if material.tables else []
    run_answers = answers(rows)
    if not run_answers:
        return None
    verdict = verdict_of(rows, [])
    badge, reasons = _badge_of(verdict, rows)
    if verdict.outcome is not CheckOutcome.OK:
        reasons = [cause.render() for cause in verdict.decisive_causes]
    elif badge[0] == PLAIN:
        badge = (PLAIN, "MEASURED")  # the run was no check
    ranks = max(row.ranks for row in rows)
    nodes = max(row.nodes or 1 for row in rows)
    operations = {answer.operation for answer in run_answers}
    subject = run_answers[0].operation if len(operations) == 1 else f"{len(operations)} operations"
    title = f"{subject} on {plural(nodes, 'node')}, {plural(ranks, 'rank')}: {_result(run_answers)}"
    if badge[0] == PLAIN:
        title = "; ".join([title, *reasons])
        reasons = []
    elif badge[0] == DOUBT:
        cause = verdict.causes[0]
        reason = cause.summary() if isinstance(cause, HiddenByNoise) else reasons[0]
        title = f"{title}; {badge[1].lower()}: {reason}"
        if reasons == [reason]:
            reasons = []
    more = reasons
    if len(run_answers) <= _MOST_ANSWERS:
        more += [answer.render() for answer in run_answers]
    quality = run_quality(rows)
    if quality.cases and quality.word != OK:
        more.append(f"quality: {quality.render()}")
    figures = _with_latency(list(_rates(run_answers)), _latencies(rows, run_answers))
    return FirstScreen(title, badge, figures, line_of(material.tables[0].runs[0]), more, section="overview")


def _latencies(rows: Sequence[Row], run_answers: Sequence[Answer]) -> list[tuple[float, int, str]]:
    """Return (seconds, size in bytes, name) of the operations that measure a latency, such as a ping-pong; without any, of all others.

    The time of one of many messages on the way is no latency.
    """
    pipelined = {row.operation for row in rows if (row.window or 1) > 1}
    measuring_latency = {row.operation for row in rows if row.busbw_bytes_per_s is not None and is_shown_as_time(row)}
    timed = [answer for answer in run_answers if answer.latency and answer.latency.size_bytes and answer.operation not in pipelined]
    chosen = [answer for answer in timed if answer.operation in measuring_latency] or timed
    return [(answer.latency.times_s[0], answer.latency.size_bytes, answer.name) for answer in chosen if answer.latency]


def _result(run_answers: Sequence[Answer]) -> str:
    """Return the best rate of one operation; of several the lowest and the highest percentage; without a rate the time."""
    wrong = [answer.name for answer in run_answers if answer.verification is not None and answer.verification.wrong]
    if wrong:
        return f"WRONG DATA in {', '.join(wrong[:3])}"
    rates = {answer.name: answer.rate for answer in run_answers if answer.rate is not None}
    if not rates:
        timed = [answer for answer in run_answers if answer.latency is not None and not answer.missing]
        if not timed:
            return run_answers[0].result()
        shortest = min(timed, key=lambda answer: answer.latency.times_s[0] if answer.latency else inf)
        return shortest.render() if len(run_answers) > 1 else shortest.result()
    percents = sorted(
        (rate.percent, _described(name, rate)) for name, rate in rates.items() if rate.percent is not None and not _exceeds_reference(rate)
    )
    if len({answer.operation for answer in run_answers}) == 1 or not percents:
        return max(rates.values(), key=lambda rate: rate.bytes_per_s).render()
    ends = percents if len(percents) == 1 else [percents[0], percents[-1]]
    return f"{' to '.join(f'{format_percent(percent)} ({name})' for percent, name in ends)} of the expected bandwidth"


def _described(name: str, rate: HeadlineRate) -> str:
    return f"{name}, {ABOVE_LIMIT}" if rate.is_above_limit else name


def _rates(run_answers: Sequence[Answer]) -> Iterator[LargeFigure]:
    """Yield the percentage of the fastest backend of one operation; of several the lowest two and the highest, as in the title."""
    rated = [(answer.rate, answer) for answer in run_answers if answer.rate is not None]
    operations = list(dict.fromkeys(answer.operation for answer in run_answers))
    compared = sorted((pair for pair in rated if pair[0].percent is not None), key=lambda pair: pair[0].percent or 0.0)
    if len(operations) > 1 and compared:
        ends = compared if len(compared) <= _MOST_RATES else [*compared[: _MOST_RATES - 1], compared[-1]]
        yield from (_large_figure(rate, answer.name) for rate, answer in ends)
        return
    for operation in operations:
        rates = [(rate, answer.name) for rate, answer in rated if answer.operation == operation]
        if rates:
            yield _large_figure(*max(rates, key=lambda pair: pair[0].bytes_per_s))


def _large_figure(rate: HeadlineRate, name: str) -> LargeFigure:
    """Return the percentage of a rate; the rate itself where that means nothing."""
    where = _described(f"{name} at {format_size(rate.size_bytes)}", rate)
    if _exceeds_reference(rate) or rate.percent is None or not rate.expected_bytes_per_s:
        return LargeFigure(f"{format_rate(rate.bytes_per_s)} GB/s", where)
    return LargeFigure(format_percent(rate.percent), f"of {format_rate(rate.expected_bytes_per_s)} GB/s expected: {where}")


def _exceeds_reference(rate: HeadlineRate) -> bool:
    """Return whether a rate is so far above a measured reference that its percentage means nothing."""
    return rate.measured and rate.percent is not None and rate.percent > 100 * MOST_OF_MEASURED


def line_of(run: Run) -> str:
    """Return hosts, machine, software and date in one line."""
    return " · ".join(text for text in circumstances(run).values() if text)
