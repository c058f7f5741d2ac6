"""Judge the evidence by the criteria: each figure, and what follows for each host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from collbench.analysis.ceilings import hosts_of
from collbench.analysis.health import FEWEST_SAMPLES, LIBRARY_BOUND, MOST_OF_TCP, TCP_BACKENDS, CheckOutcome, interval_of_percent
from collbench.analysis.launches import allocation_of, grouped, together
from collbench.gating.verdict import PASSED, UNDECIDED
from collbench.machine.doctor.finding import SEVERITIES
from collbench.machine.peak.ceiling import MOST_OF_MEASURED
from collbench.plugins.certify.certificate import FAIL, FAULTY, INCOMPLETE, NOT_VETTED, PASS, VETTED, HostVerdict, Judgement, Word
from collbench.plugins.certify.criteria import Criteria, Criterion
from collbench.plugins.certify.losses import losing_hosts, loss_figures
from collbench.plugins.certify.sources import EvidenceSet
from collbench.plugins.hunt.kind import HUNT
from collbench.plugins.hunt.protocol import AT_BOTH_ENDS, CLEARED, CONFIRMED, INCONCLUSIVE
from collbench.plugins.hunt.records import NO_VERDICT, place_hosts, read_hunt
from collbench.plugins.hunt.text import finding, headline
from collbench.report.health import read_check
from collbench.results.quality import UNRELIABLE, quality_of
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_size, listed, parse_size, plural

_MOST_NAMES = 8
_UNDER_OTHER_WORK = ("overlap", "load")  # modes whose times include other work
Fields = dict[str, Any]


def judge(criteria: Criteria, evidence: EvidenceSet) -> tuple[list[Judgement], list[HostVerdict]]:
    """Return the judgements, in the order of the criteria, and the verdict about each host."""
    judgements: list[Judgement] = []
    faulty: list[str] = []
    aliases = evidence.aliases()
    used = {name: criterion for name, criterion in criteria.criteria.items() if criterion.used}
    for name, criterion in used.items():
        made = [_judgement(name, **_renamed(fields, aliases)) for fields in _JUDGES[criterion.evidence](criterion, evidence, faulty)]
        judgements += made
        faulty += [host for judgement in made for host in judgement.faulty if host not in faulty]
    required = [name for name, criterion in used.items() if criterion.required]
    others = [host for host in evidence.hosts if host not in faulty]
    for name in required:
        judgements += _missing(name, criteria, judgements, others)
    order = list(used)
    judgements.sort(key=lambda judgement: order.index(judgement.criterion))
    return judgements, [_host_verdict(host, required, judgements, faulty) for host in evidence.hosts]


def _judgement(criterion: str, *, verdict: Word, hosts: Sequence[str], source: object = "", **fields: Any) -> Judgement:
    subject = fields.pop("subject", "") or listed(hosts, _MOST_NAMES) or "no host"
    return Judgement(criterion=criterion, verdict=verdict, subject=subject, hosts=tuple(hosts), source=str(source), **fields)


def _renamed(fields: Fields, aliases: Mapping[str, str]) -> Fields:
    """Return the fields of a judgement with one name for each host."""
    hosts = tuple(dict.fromkeys(aliases.get(host, host) for host in fields["hosts"]))
    faulty = tuple(aliases.get(host, host) for host in fields.get("faulty", ()))
    return {**fields, "hosts": hosts, "faulty": faulty}


def _missing(name: str, criteria: Criteria, judgements: Sequence[Judgement], hosts: Sequence[str]) -> Iterator[Judgement]:
    """Yield what no evidence covers: hosts, and of operations each that was not measured on them."""
    criterion = criteria.criteria[name]
    for operation, backend in product(criterion.operations or ("",), criterion.backends or ("",)):
        same = [judgement for judgement in judgements if judgement.criterion == name]
        same = [judgement for judgement in same if operation in ("", judgement.case.partition(" ")[0])]
        same = [judgement for judgement in same if not backend or backend in judgement.case.split()]
        lacking = [host for host in hosts if not any(host in judgement.hosts for judgement in same)]
        if lacking or not same:
            command = f"collbench {criteria.steps[criterion.step]}" if criterion.step else ""
            case = f"{operation} {backend}".strip()
            text = f"{case} not measured".strip()
            yield _judgement(name, verdict=INCOMPLETE, hosts=lacking, case=case, evidence=text, command=command)


def _host_verdict(host: str, required: Sequence[str], judgements: Sequence[Judgement], faulty: Sequence[str]) -> HostVerdict:
    """Return the verdict: vetted if each case of each required criterion passed, and none failed.

    A group that fails with a faulty host shows nothing about its other hosts.
    """
    about = [judgement for judgement in judgements if host in judgement.hosts]
    if host in faulty:
        against = [f"{judgement.criterion}: {judgement.evidence}" for judgement in about if host in judgement.faulty]
        return HostVerdict(host=host, verdict=FAULTY, reasons=tuple(against))
    reasons = [f"{name}: not measured" for name in required if name not in {judgement.criterion for judgement in about}]
    for (name, _), case in grouped(about, lambda judgement: (judgement.criterion, judgement.case)).items():
        counting = [judgement for judgement in case if judgement.verdict != FAIL or not set(judgement.hosts) & set(faulty)]
        failed = [judgement for judgement in counting if judgement.verdict == FAIL]
        sources = grouped(counting, lambda judgement: judgement.source).values()
        passed = any(all(judgement.verdict == PASS for judgement in same) for same in sources)
        if failed:
            reasons.append(f"{name}: {failed[0].evidence}")
        elif name in required and not counting:
            reasons.append(f"{name}: {case[0].case} measured only with a host that failed")
        elif name in required and not passed:
            undecided = next(judgement for judgement in counting if judgement.verdict != PASS)
            reasons.append(f"{name}: {undecided.evidence}")
    return HostVerdict(host=host, verdict=NOT_VETTED if reasons else VETTED, reasons=tuple(dict.fromkeys(reasons)))


def _doctor(criterion: Criterion, evidence: EvidenceSet, faulty: Sequence[str]) -> Iterator[Fields]:
    bad = SEVERITIES[: SEVERITIES.index(criterion.severity) + 1]
    for examination in evidence.examinations:
        problems = [problem for problem in examination.findings if problem.severity in bad]
        for problem in problems:
            hosts = [host for host in examination.hostnames if problem.hostname in (host, None)]
            text = f"{problem.code}: {problem.what} ({problem.evidence})"
            named = tuple(hosts) if problem.hostname else ()
            yield {"verdict": FAIL, "hosts": hosts, "faulty": named, "source": examination.source, "evidence": text}
        names = {problem.hostname for problem in problems}
        fine = [host for host in examination.hostnames if host not in names and None not in names]
        if fine:
            gaps = f"; not examined: {'; '.join(examination.not_looked_at)}" if examination.not_looked_at else ""
            yield {"verdict": PASS, "hosts": fine, "source": examination.source, "evidence": f"no {criterion.severity} finding{gaps}"}


def _hunt(criterion: Criterion, evidence: EvidenceSet, faulty: Sequence[str]) -> Iterator[Fields]:
    for run in evidence.runs:
        if HUNT.holds(run):
            yield from ({"source": run.path, **fields} for fields in _of_hunt(run))


def _of_hunt(run: Run) -> Iterator[Fields]:
    stored = read_hunt(run)
    hunt, hosts = stored.shown, place_hosts(stored.about)
    measured: set[str] = set()
    for hunt_round in stored.rounds:
        for group, wrong, na in zip(hunt_round.groups, hunt_round.wrong, hunt_round.na, strict=True):
            names = {hosts[place] for place in group}
            measured |= names if na is None else set()
            if wrong:
                yield {"verdict": FAIL, "hosts": sorted(names), "evidence": "wrong data was received"}
    verdict = hunt.verdict
    if verdict is None or "slowed" in run.info or stored.about.get("virtual") or stored.warnings:
        text = "the hunt stopped early, is damaged or simulated, or was slowed on purpose"
        yield {"verdict": INCOMPLETE, "hosts": list(dict.fromkeys(hosts)), "evidence": text}
        return
    suspects: set[str] = set()
    unknown = verdict.slow_place_unknown
    for suspect in hunt.suspects:
        if suspect.state == CLEARED and unknown:
            continue  # as the others: one of them is slow
        named = tuple(dict.fromkeys(hosts[place] for place in suspect.places))
        word = {CONFIRMED: FAIL, INCONCLUSIVE: INCOMPLETE, CLEARED: PASS}[suspect.state]
        suspects |= set(named)
        text = finding(suspect, hunt.places)
        yield {
            "verdict": word,
            "hosts": named,
            "faulty": named if word == FAIL and suspect.kind not in AT_BOTH_ENDS else (),
            "evidence": text,
        }
    others = [host for host in dict.fromkeys(hosts) if host in measured - suspects]
    if others and unknown:
        yield {"verdict": INCOMPLETE, "hosts": others, "evidence": unknown}
    elif others:
        yield {"verdict": INCOMPLETE if verdict.result == NO_VERDICT else PASS, "hosts": others, "evidence": headline(verdict)}


def _losses(criterion: Criterion, evidence: EvidenceSet, faulty: Sequence[str]) -> Iterator[Fields]:
    figures = [figure for run in evidence.runs if "slowed" not in run.info for figure in loss_figures(run)]
    named = losing_hosts(figures)
    for host, text in named.items():
        yield {"verdict": FAIL, "hosts": [host], "faulty": (host,), "evidence": text}
    fine: dict[str, str] = {}
    lost: dict[tuple[str, ...], str] = {}
    for figure in figures:
        groups: list[tuple[str, ...]] = list(figure.pairs.items()) or [tuple(figure.counts)]
        for group in groups:
            senders = group[:1] if figure.pairs else group
            if figure.is_clean(group):
                fine |= dict.fromkeys(group, figure.source)
            elif set(figure.lossy) & set(senders) and not {*faulty, *named} & set(group):
                lost[group] = figure.source
    for group, source in lost.items():
        text = "packets between these hosts are lost, and none of them is named: measure with other partners"
        yield {"verdict": FAIL, "hosts": group, "source": source, "evidence": text}
    for source, hosts in grouped([host for host in fine if host not in named], lambda host: fine[host]).items():
        yield {"verdict": PASS, "hosts": hosts, "source": source, "evidence": "no packets lost beyond what full queues explain"}


def _operations(criterion: Criterion, evidence: EvidenceSet, faulty: Sequence[str]) -> Iterator[Fields]:
    least = parse_size(criterion.least_size)
    for table in together([run for run in evidence.runs if read_check(run.path) is None])[0]:
        rows = [row for row in table.rows if row.operation in criterion.operations and row.size_bytes >= least]
        rows = [row for row in rows if row.mode not in _UNDER_OTHER_WORK]
        rows = [row for row in rows if row.group == "all" or row.operation.startswith("p2p")]
        rows = [row for row in rows if row.backend in (criterion.backends or (row.backend,))]
        rows = [row for row in rows if row.wrong or not any(_broke_off(run) for run in table.runs)]
        damaged = any(run.warnings for run in table.runs)
        for case, same in grouped(rows, partial(_case, by_backend=bool(criterion.backends))).items():
            wrong = [row for row in same if row.wrong]
            row = max(wrong or same, key=lambda row: interval_of_percent(row)[0] or 0.0)  # the fastest backend
            verdict, text = _of_row(row, criterion.share)
            if verdict == PASS and damaged:
                verdict, text = INCOMPLETE, "stored results are missing or damaged"
            if verdict == PASS and len(evidence.hosts) > 1 and (row.nodes or 1) < 2:
                verdict, text = INCOMPLETE, "measured inside one host"
            low, high = interval_of_percent(row)
            compared = row.comparison
            yield {
                "verdict": verdict, "hosts": hosts_of(table.runs[0]), "case": case, "source": table.runs[0].path, "evidence": text,
                "subject": f"{row.operation} over {row.backend} at {format_size(row.size_bytes)}",
                "percent": compared.percent if compared else None, "low": low, "high": high, "required": 100 * criterion.share,
                "measured_bytes_per_s": row.busbw_bytes_per_s, "expected_bytes_per_s": row.ceiling.bytes_per_s if row.ceiling else None,
            }  # fmt: skip


def _case(row: Row, by_backend: bool) -> str:
    """Return the name of what has to pass by itself: the fastest backend of it counts, unless backends are required."""
    words = [row.operation, format_size(row.size_bytes), row.backend if by_backend else "", row.device, row.dtype]
    if (row.nodes or 1) < 2:
        words.append("inside a host")
    return " ".join(word for word in words if word)


def _broke_off(run: Run) -> bool:
    """Return whether a run did not come to its end, or hung or crashed: its figures may be those of another state."""
    return not run.finished or any(event.get("kind") in ("abort", "hang") for event in run.events)


def _of_row(row: Row, share: float) -> tuple[Word, str]:
    """Return the verdict about a row, and why."""
    low, high = interval_of_percent(row)
    if row.wrong:
        return FAIL, f"wrong data: {row.wrong_detail or plural(row.wrong, 'element')}"
    unusable = _why_unusable(row)
    if unusable or low is None or high is None or row.ceiling is None:
        return INCOMPLETE, unusable or "no interval"
    if low >= 100 * share:
        return PASS, f"limited by {row.ceiling.limited_by}"
    undecided = "the interval is on both sides of the required share" if high >= 100 * share else _why_not_slow(row)
    return (INCOMPLETE, undecided) if undecided else (FAIL, f"limited by {row.ceiling.limited_by}")


def _why_unusable(row: Row) -> str:
    """Return why a row shows nothing about this hardware; "" if it does."""
    quality = quality_of(row)
    ceiling = row.ceiling
    compared = row.comparison
    if row.na is not None or not row.checked:
        return f"not measured: {row.na}" if row.na else "the data was not verified"
    if ceiling is not None and ceiling.disturbed:
        return "the measured reference was disturbed"
    if ceiling is None or ceiling.kind in ("given", "simulated") or compared is None:
        return "the expected bandwidth of this hardware is unknown"
    if quality is None or quality.word == UNRELIABLE or row.n < FEWEST_SAMPLES:
        return f"unreliable: {', '.join(row.flags)}"
    if ceiling.kind == "measured" and compared.percent > 100 * MOST_OF_MEASURED:
        return "more than the measured reference, which was disturbed"
    return ""


def _why_not_slow(row: Row) -> str:
    """Return why a row below the share does not show slow hardware; "" if it does."""
    quality = quality_of(row)
    ceiling = row.ceiling
    over_tcp = row.backend in TCP_BACKENDS and ceiling is not None and (ceiling.bytes_per_s or 0.0) > MOST_OF_TCP
    if over_tcp or (row.operation in LIBRARY_BOUND and ceiling is not None and ceiling.kind == "measured"):
        return "the library does not reach what this hardware carries: measure with another backend"
    if quality is None or set(quality.remedies) - {"network"}:
        return "noise may explain it: measure longer on idle hosts"
    return ""


def _check(criterion: Criterion, evidence: EvidenceSet, faulty: Sequence[str]) -> Iterator[Fields]:
    words = {CheckOutcome.OK: PASS, CheckOutcome.INCONCLUSIVE: INCOMPLETE}
    for run in evidence.runs:
        verdict = read_check(run.path)
        if verdict is None:
            continue
        kinds = {row.ceiling.kind for row in run.rows if row.ceiling is not None}
        word, text = words.get(verdict.outcome, FAIL), str(verdict)
        if "slowed" in run.info or run.warnings or kinds & {"given", "simulated"} or any(row.backend == "simulated" for row in run.rows):
            word, text = INCOMPLETE, "the check was simulated, slowed on purpose, damaged, or has a typed rate (--ceiling)"
        yield {"verdict": word, "hosts": hosts_of(run), "source": run.path, "evidence": text}


def _gate(criterion: Criterion, evidence: EvidenceSet, faulty: Sequence[str]) -> Iterator[Fields]:
    for path, verdict in evidence.verdicts:
        judged_runs = [run for run in evidence.runs if (allocation_of(run) or run.path.resolve().name) in verdict.candidates]
        hosts = list(dict.fromkeys(host for run in judged_runs for host in hosts_of(run)))
        word = {PASSED: PASS, UNDECIDED: INCOMPLETE}.get(verdict.result, FAIL)
        text = "; ".join(map(str, verdict.reasons)) or "no case is slower than its limit"
        if not hosts and word == PASS:
            word = INCOMPLETE
            text = "which hosts the gate judged is unknown: name its runs, too"
        subject = listed(verdict.candidates)
        yield {"verdict": word, "subject": subject, "hosts": hosts or evidence.hosts, "source": path, "evidence": text}


_JUDGES: Mapping[str, Callable[[Criterion, EvidenceSet, Sequence[str]], Iterator[Fields]]] = {
    "doctor": _doctor, "hunt": _hunt, "losses": _losses, "operations": _operations, "check": _check, "gate": _gate,
}  # fmt: skip
