"""Sections and drawings about nodes: the findings of doctor, and what probe and peak know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from collbench.machine.doctor.examine import sentence
from collbench.machine.doctor.finding import Finding
from collbench.machine.doctor.gpus import states
from collbench.machine.doctor.log_summary import summarize, summary_lines
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.collective import CollectiveCeilings, lines
from collbench.machine.peak.node import Job
from collbench.machine.readers.nccl_log import NcclLog
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.machine import machine_charts, node_ceiling
from collbench.report.machine import disagreement_lines, safe, unknown_lines
from collbench.units import listed

_MARKS = {"severe": "wrong", "warning": "doubtful"}
_MOST_ROWS, _MOST_HOSTS, _LONGEST = 300, 6, 600


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
    """Return drawings of the other machines than the first, differences, what is unknown, and findings. There is at least one machine."""
    unknown = [
        safe(text, 400) for each in machines[:_MOST_HOSTS] for text in (*unknown_lines(each), *each.doubts, *disagreement_lines(each))
    ]
    texts = (("differences", "Differences between the nodes", [safe(text, 400) for text in differences]),
             ("unknown", "Unknown and doubtful", unknown))  # fmt: skip
    found = doctor_sections(findings, machines, ()) if findings else []
    return [*_other_machines(machines, node_ceiling(machines[0])), *(Section(*each) for each in texts if each[2]), *found]


def peak_sections(
    operation: str, measured: float | None, found: CollectiveCeilings, job: Job, machines: Sequence[Machine]
) -> list[Section]:
    """Return how the expected rate follows, and drawings of the other machines than the first with its limit marked."""
    texts = [f"{short(printable(text), _LONGEST)}." for text in lines(operation, measured, found, job)]
    return [Section("rates", "How it follows", texts), *_other_machines(machines, found.ring or found.bound)]


def machine_chart(machines: Sequence[Machine], ceiling: Ceiling | None) -> Chart | None:
    """Return the drawing of the first machine, with what sets the ceiling marked; None for hardware that was only typed."""
    return next(iter(machine_charts(machines, ceiling)), None)


def _other_machines(machines: Sequence[Machine], ceiling: Ceiling | None) -> list[Section]:
    drawings = machine_charts(machines, ceiling)[1:]
    return [Section("machine", "Other machines", (), (), drawings)] if drawings else []
