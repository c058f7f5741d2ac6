"""Findings for people and as JSON: worst first, equal ones of several hosts once, and what was looked at below."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from enum import Enum
from typing import TextIO

from collbench.errors import FINE, NEGATIVE, UsageError
from collbench.machine.doctor.examine import looked_at, not_looked_at, sentence
from collbench.machine.doctor.finding import SEVERITIES, Finding, listed, plural
from collbench.machine.doctor.gpus import states
from collbench.machine.doctor.log_summary import summarize, summary_lines
from collbench.machine.model import Machine
from collbench.machine.readers.nccl_log import NcclLog
from collbench.report.flags import printable
from collbench.report.probe_wrap import width_of, wrapped
from collbench.report.screen import PlainScreen, wants_color
from collbench.report.table import Line

FORMATS = ("table", "json")
SCHEMA = 1
_STYLES = {"severe": "wrong", "warning": "doubtful", "note": ""}
_MOST_HOSTS = 6


def tell_findings(
    findings: Sequence[Finding], machines: Sequence[Machine], logs: Sequence[NcclLog], format: str, stream: TextIO, *, color: str = "auto"
) -> int:
    """Prints the findings on `stream`. Returns the exit code: 1 with a severe one, else 0. Raises UsageError for an unknown format."""
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown: choose from {', '.join(FORMATS)}")
    screen = PlainScreen(stream, sys.stderr, wants_color(stream, color))
    as_json = format == "json"
    lines = json_lines(findings, machines, logs) if as_json else table_lines(findings, machines, logs)
    for line in wrapped(lines, None if as_json else width_of(stream)):
        screen.data(line)
    return NEGATIVE if any(finding.severity == "severe" for finding in findings) else FINE


def table_lines(findings: Sequence[Finding], machines: Sequence[Machine], logs: Sequence[NcclLog]) -> Iterator[Line]:
    """Three lines per finding, their number, a summary of each log, a line per state of GPUDirect RDMA, and what was examined."""
    several = len({machine.hostname for machine in machines}) > 1
    for finding, hosts in _together(findings):
        where = f"{listed([host or 'unnamed host' for host in hosts], _MOST_HOSTS)}: " if several and hosts != [None] else ""
        yield Line(printable(f"{finding.severity:<8} {finding.code}  {where}{finding.what}"), _STYLES[finding.severity])
        yield Line(printable(f"  evidence: {finding.evidence}"))
        yield Line(printable(f"  remedy:   {finding.remedy}"))
    yield Line(printable(_summary(findings)), "head")
    for log in logs:
        for text in summary_lines(summarize(log)):
            yield Line(printable(text), "foot")
    for text in (*states(machines, logs), sentence(machines, logs)):
        yield Line(printable(text), "foot")
    if not machines:
        yield Line(printable(f"no machine was looked at, as {_wrote(logs)}: --from adds its files"), "foot")


def json_lines(findings: Sequence[Finding], machines: Sequence[Machine], logs: Sequence[NcclLog]) -> Iterator[Line]:
    """One object: schema, findings (worst first), hosts, what was examined and what not, GPUDirect RDMA, a summary of each log."""
    document = {
        "schema": SCHEMA,
        "findings": [asdict(finding) for finding in findings],
        "hostnames": [machine.hostname for machine in machines],
        "looked_at": looked_at(machines, logs),
        "not_looked_at": not_looked_at(machines, logs),
        "gpudirect": states(machines, logs),
        "logs": [asdict(summarize(log)) for log in logs],
    }
    yield Line(json.dumps(document, default=_value))


def _value(member: object) -> object:
    """An enumeration's value, for JSON. Raises TypeError for another object."""
    if isinstance(member, Enum):
        return member.value
    raise TypeError(f"{type(member).__name__} is not serializable as JSON")


def _wrote(logs: Sequence[NcclLog]) -> str:
    hosts = listed(list(dict.fromkeys(host for log in logs for host in log.hosts)), _MOST_HOSTS)
    return f"this one did not write the log ({hosts} did)" if hosts else "the log does not say which host wrote it"


def _together(findings: Sequence[Finding]) -> list[tuple[Finding, list[str | None]]]:
    """Findings that differ in the host alone, once, with their hosts."""
    found: dict[Finding, list[str | None]] = {}
    for finding in findings:
        found.setdefault(replace(finding, hostname=None), []).append(finding.hostname)
    return list(found.items())


def _summary(findings: Sequence[Finding]) -> str:
    if not findings:
        return "no findings"
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}
    told = ", ".join(f"{count} {severity}" for severity, count in counts.items() if count)
    return f"{plural(len(findings), 'finding')}: {told}; `collbench explain {findings[0].code}` says more"
