"""Sections about the state of nodes: the evidence of a check, the findings of doctor, and what probe and peak know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from collbench.analysis.health import CheckVerdict, DoctorSummary, Reach
from collbench.machine.doctor.examine import sentence
from collbench.machine.doctor.finding import Finding
from collbench.machine.doctor.gpus import states
from collbench.machine.doctor.log_summary import summarize, summary_lines
from collbench.machine.model import Machine
from collbench.machine.peak.collective import CollectiveCeilings, lines
from collbench.machine.peak.node import Job
from collbench.machine.readers.nccl_log import NcclLog
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.machine import machine_charts, node_ceiling
from collbench.report.html.material import Material
from collbench.report.machine import disagreement_lines, safe, title, unknown_lines
from collbench.units import format_rate, listed

_MARKS = {"severe": "wrong", "warning": "doubtful"}
_MARKS_OF_REACH = {Reach.WRONG: "wrong", Reach.MISSED: "wrong", Reach.NOISY: "doubtful", Reach.UNKNOWN: "doubtful", Reach.ABSENT: "na"}
_MOST_ROWS, _MOST_HOSTS = 300, 6


def section(material: Material) -> Section | None:
    """Return the evidence of the check that stored the run; None if no check did."""
    return None if material.check is None else check_section(material.check)


def check_section(verdict: CheckVerdict) -> Section:
    """Return the causes of a check's verdict, what each operation reaches, and what doctor found."""
    rows: list[list[str]] = []
    marks: dict[int, str] = {}
    for each in verdict.evidence:
        if isinstance(each, DoctorSummary):
            what = ("doctor", "", each.render().removeprefix("doctor: "))
            mark = "wrong" if each.severe else "doubtful" if each.warnings else ""
        else:
            what = (each.operation, each.backend, each.render().partition(": ")[2])
            mark = _MARKS_OF_REACH.get(each.reach, "")
        if mark:
            marks[len(rows)] = mark
        rows.append([short(text, 300) for text in what])
    causes = [f"{short(cause.render(), 400)}." for cause in verdict.causes]
    return Section("check", "Check", causes, [("What was examined", Table(("what", "backend", "result"), rows, marks=marks))])


def doctor_sections(findings: Sequence[Finding], machines: Sequence[Machine], logs: Sequence[NcclLog]) -> list[Section]:
    """Return the findings, worst first, equal ones of several hosts together; and what was examined."""
    hosts = by_host(findings)
    rows = [
        [each.severity, each.code, *([_names(names)] if len(machines) > 1 else []), *map(short, (each.what, each.evidence, each.remedy))]
        for each, names in hosts.items()
    ][:_MOST_ROWS]
    marks = {place: mark for place, each in enumerate(list(hosts)[:_MOST_ROWS]) if (mark := _MARKS.get(each.severity))}
    head = ("severity", "code", *(["hosts"] if len(machines) > 1 else []), "finding", "evidence", "remedy")
    found = Section("findings", "Findings", (), [("Worst first; `collbench explain CODE` has more", Table(head, rows, marks=marks))])
    examined = [*(text for log in logs for text in summary_lines(summarize(log))), *states(machines, logs), sentence(machines, logs)]
    return [*([found] if rows else []), Section("examined", "What was examined", [short(printable(text), 1000) for text in examined])]


def by_host(findings: Sequence[Finding]) -> dict[Finding, list[str]]:
    """Return the findings without their hosts, in their order, each with the hosts that have it."""
    hosts: defaultdict[Finding, list[str]] = defaultdict(list)
    for each in findings:
        hosts[replace(each, hostname=None)].append(each.hostname or "unnamed host")
    return dict(hosts)


def _names(hosts: Sequence[str]) -> str:
    return safe(listed(hosts, _MOST_HOSTS))


def probe_sections(machines: Sequence[Machine], differences: Sequence[str], findings: Sequence[Finding]) -> list[Section]:
    """Return drawings of the machines, with what limits all-reduce between two of them marked; differences, findings, what is unknown."""
    ceiling = node_ceiling(machines[0]) if machines else None
    texts = [short(title(each)) for each in machines[:_MOST_HOSTS]]
    if ceiling is not None and ceiling.bytes_per_s:
        rate = format_rate(ceiling.bytes_per_s)
        texts.append(f"All-reduce between two such nodes can reach {rate} GB/s, limited by {safe(ceiling.limited_by)}.")
    unknown = [
        safe(text, 400) for each in machines[:_MOST_HOSTS] for text in (*unknown_lines(each), *each.doubts, *disagreement_lines(each))
    ]
    sections = [Section("machine", "Machines", texts, (), machine_charts(machines, ceiling)[1:])]
    sections += [Section("differences", "Differences between the nodes", [safe(text, 400) for text in differences])] if differences else []
    sections += doctor_sections(findings, machines, ()) if findings else []
    return [*sections, *([Section("unknown", "Unknown and doubtful", unknown)] if unknown else [])]


def probe_chart(machines: Sequence[Machine]) -> Chart | None:
    """Return the drawing of the first machine, with what limits all-reduce between two of them marked."""
    return next(iter(machine_charts(machines, node_ceiling(machines[0]))), None) if machines else None


def peak_chart(operation: str, found: CollectiveCeilings, machines: Sequence[Machine]) -> Chart | None:
    """Return the drawing of the first machine, with what limits the operation marked; None for hardware that was only typed."""
    return next(iter(machine_charts(machines, found.ring or found.bound)), None)


def peak_sections(
    operation: str, measured: float | None, found: CollectiveCeilings, job: Job, machines: Sequence[Machine]
) -> list[Section]:
    """Return how the expected rate follows, and drawings of the machines with its limit marked."""
    texts = [f"{short(printable(text), 600)}." for text in lines(operation, measured, found, job)]
    known = [
        (name, each)
        for name, each in (("expected (ring)", found.ring), ("hard limit", found.bound), (found.library, found.achievable))
        if each
    ]
    rows = [
        [name, format_rate(each.bytes_per_s) if each.bytes_per_s else "unknown", safe(each.limited_by, 200), safe(each.source, 200)]
        for name, each in known
    ]
    rates = [("Rates", Table(("rate", "GB/s", "limited by", "source"), rows, frozenset({1})))] if rows else []
    drawings = machine_charts(machines, found.ring or found.bound)[1:]
    return [
        Section("rates", "How it follows", texts, rates),
        *([Section("machine", "Machines", (), (), drawings)] if drawings else []),
    ]
