"""Output of `collbench doctor`: findings, worst first and combined over hosts, then what was examined; and `--launch`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TextIO

import msgspec
from msgspec.structs import replace

from collbench.errors import FINE, NEGATIVE
from collbench.launch.explain import Explanation, LauncherProgram
from collbench.launch.software import NAMES
from collbench.machine.doctor.examine import ExaminedLog, examined_parts, sentence, unexamined_parts
from collbench.machine.doctor.finding import SEVERITIES, Finding, pages
from collbench.machine.doctor.gpus import states
from collbench.machine.model import Machine
from collbench.report.frame import Column, Frame, Line, TextLayout, printable
from collbench.report.frame import table_lines as text_of
from collbench.report.screen import check_format, print_lines, wants_color, width_of, wrapped
from collbench.units import listed, plural

# How this shell would launch: its place, MPI, launchers, problems, and the commands to use; as text or JSON.

SCHEMA = 1
FORMATS = ("table", "json")
_MOST_NAMES = 8
_MOST_SOFTWARE_HOSTS = 8
_MOST_HOSTS = 6
_STYLES = {"severe": "wrong", "warning": "doubtful", "note": ""}
_LABEL: Column[tuple[str, ...]] = Column("", "", itemgetter(0), least=10)
_PURPOSE: Column[tuple[str, ...]] = Column("", "", itemgetter(0))
_TEXT: Column[tuple[str, ...]] = Column("", "", itemgetter(1), wrap=True)


def write_launch(explanation: Explanation, format: str, stream: TextIO, *, color: str = "auto") -> int:
    """Print the explanation on `stream` as "table" or "json". Returns the exit code: 1 with a severe problem, else 0."""
    lines = [Line(json.dumps(_launch_json(explanation), default=str))] if format == "json" else _launch_lines(explanation, width_of(stream))
    print_lines(lines, stream, wants_color(stream, color))
    return NEGATIVE if explanation.severe else FINE


def _launch_lines(explanation: Explanation, width: int | None) -> Iterator[Line]:
    """Yield where this shell is and what it has, then a line for each problem, then the commands to use."""
    library = explanation.library
    file = f" ({library.path})" if library.path else ""
    names = [f"{name.name} {', '.join(name.addresses) or 'does not resolve'}" for name in explanation.names]
    names[0] += " (this host)"
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [f"{len(names) - _MOST_NAMES} more"]
    records = [
        *(("this shell", place) for place in explanation.places),
        ("names", "; ".join(names)),
        ("MPI", f"mpi4py {library.mpi4py} loads {library.name}{file}" if library.name else "no library"),
    ]
    yield from text_of(Frame([_LABEL, _TEXT], records), width)
    yield from text_of(_launchers(explanation.launchers), width)
    yield from text_of(Frame([_LABEL, _TEXT], list(_hosts(explanation.hosts))), width)
    problems = [Line(printable(f"{problem.severity}: {problem.what}"), _STYLES[problem.severity]) for problem in explanation.problems]
    yield from wrapped(problems, width)
    commands = [(f"  {command.purpose}", command.line) for command in explanation.commands]
    frame = Frame([_PURPOSE, _TEXT], commands, title="what to type")
    if width is None or TextLayout(frame, None).line_width <= width:
        yield from text_of(frame, width)
        return
    yield Line(frame.title, "head")
    for purpose, command in commands:
        yield from (*wrapped([Line(printable(f"{purpose}:"))], width), Line(printable(f"    {command}")))  # whole, to be copied


def _launchers(programs: Sequence[LauncherProgram]) -> Frame[tuple[str, ...]]:
    if not programs:
        return Frame([_LABEL, _TEXT], [("launchers", "none found: collbench starts ranks on this host by itself")])
    records = [
        ("" if number else "launchers", program.name, str(program.path), _version(program)) for number, program in enumerate(programs)
    ]
    return Frame([_LABEL, Column("", "", itemgetter(1)), Column("", "", itemgetter(2)), Column("", "", itemgetter(3), wrap=True)], records)


def _hosts(hosts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the software of the hosts; hosts with the same software are combined."""
    for number, software in enumerate(hosts):
        names = ", ".join(software["hosts"][:_MOST_SOFTWARE_HOSTS])
        more = ", …" if len(software["hosts"]) > _MOST_SOFTWARE_HOSTS else ""
        versions = ", ".join(f"{NAMES[name]} {software[name]}" for name in NAMES if name in software and name != "native")
        yield "" if number else "software", f"{names}{more}: {versions}"


def _version(program: LauncherProgram) -> str:
    version = f"{program.family} {program.version}".rstrip() if program.family else f"does not report its version: {program.trouble}"
    plugins = f", --mpi={'|'.join(program.plugins)}" if program.plugins else ""
    return f"{version}{plugins}{'' if program.first else ' (not the first in PATH)'}"


def _launch_json(explanation: Explanation) -> dict[str, Any]:
    """Return one object: schema, places, the MPI library, launchers, problems, commands."""
    library = explanation.library
    fields = {
        "name": "name", "path": "path", "family": "family", "version": "version", "first_in_path": "first", "mpi_plugins": "plugins",
        "trouble": "trouble",
    }  # fmt: skip
    launchers = [{key: getattr(launcher, field) for key, field in fields.items()} for launcher in explanation.launchers]
    names = [{key: getattr(name, key) for key in ("name", "own", "addresses", "reachable")} for name in explanation.names]
    return {
        "schema": SCHEMA,
        "places": explanation.places,
        "names": names,
        "mpi": {"library": library.name, "path": library.path, "mpi4py": library.mpi4py, "problem": library.problem},
        "hosts": list(map(dict, explanation.hosts)),
        "launchers": launchers,
        "problems": msgspec.to_builtins(explanation.problems),
        "type": msgspec.to_builtins(explanation.commands),
    }


# Findings, worst first, then what was examined.


def print_findings(
    findings: Sequence[Finding],
    machines: Sequence[Machine],
    logs: Sequence[ExaminedLog],
    format: str,
    stream: TextIO,
    *,
    color: str = "auto",
    verbose: bool = False,
) -> int:
    """Print the findings on `stream`. Returns the exit code: 1 with a severe one, else 0. Raises UsageError for an unknown format."""
    check_format(format, FORMATS)
    width = None if format == "json" else width_of(stream)
    text = table_lines(findings, machines, logs, width, verbose)
    lines = json_lines(findings, machines, logs) if format == "json" else wrapped(text, width)
    print_lines(lines, stream, wants_color(stream, color))
    return NEGATIVE if any(finding.severity == "severe" for finding in findings) else FINE


def table_lines(
    findings: Sequence[Finding], machines: Sequence[Machine], logs: Sequence[ExaminedLog], width: int | None = None, verbose: bool = False
) -> Iterator[Line]:
    """Yield three lines per finding, their number, a summary of each log, a line per state of GPUDirect RDMA, and what was examined.

    verbose: with all hosts by name, and what each finding means and how to check it by hand.
    """
    several = len({machine.hostname for machine in machines}) > 1

    def on_hosts(names: Sequence[str | None]) -> str:
        if not several or [*names] == [None]:
            return ""
        return f"{listed([name or 'unnamed host' for name in names], len(names) if verbose else _MOST_HOSTS)}: "

    hosts: dict[Finding, list[str | None]] = {}  # findings that differ only in the host are combined
    for finding in findings:
        hosts.setdefault(replace(finding, hostname=None), []).append(finding.hostname)
    columns: list[Column[Finding]] = [
        Column("", "", lambda finding: finding.severity, least=len("warning")),
        Column("", "", lambda finding: finding.code),
        Column("", "", lambda finding: f"{on_hosts(hosts[finding])}{finding.what}", wrap=True),
    ]
    layout = TextLayout(Frame(columns, list(hosts), style=lambda finding: _STYLES[finding.severity]), width)
    for finding in hosts:
        yield from layout.lines(finding)
        yield Line(printable(f"  evidence: {finding.evidence}"))
        yield Line(printable(f"  remedy:   {finding.remedy}"))
        page = pages().get(finding.code) if verbose else None
        if page:
            yield Line(f"  means:    {' '.join(page.means.split())}")
            yield Line("  check:")
            yield from (Line(f"    {text}") for text in page.check.strip().splitlines())
    summary = "no findings"
    if findings:
        counts = Counter(finding.severity for finding in findings)
        texts = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity])
        summary = f"{plural(len(findings), 'finding')}: {texts}; `collbench explain {findings[0].code}` explains the first"
    yield Line(printable(summary), "head")
    foot = [text for examined in logs for text in examined.lines]
    foot += [*states(machines, [examined.log for examined in logs]), sentence(machines, logs)]
    if not machines:
        log_hosts = listed(list(dict.fromkeys(host for examined in logs for host in examined.log.hosts)), _MOST_HOSTS)
        reason = f"the log was not written here, but on {log_hosts}" if log_hosts else "the log does not name the host that wrote it"
        foot.append(f"no machine was looked at, as {reason}: --from adds its files")
    yield from (Line(printable(text), "foot") for text in foot)


def json_lines(findings: Sequence[Finding], machines: Sequence[Machine], logs: Sequence[ExaminedLog]) -> Iterator[Line]:
    """Yield one object: schema, findings (worst first), hosts, what was examined and what not, GPUDirect RDMA, a summary of each log."""
    document = {
        "schema": SCHEMA,
        "findings": msgspec.to_builtins(findings),
        "hostnames": [machine.hostname for machine in machines],
        "looked_at": examined_parts(machines, logs),
        "not_looked_at": unexamined_parts(machines, logs),
        "gpudirect": states(machines, [examined.log for examined in logs]),
        "logs": [examined.summary for examined in logs],
    }
    yield Line(json.dumps(document, default=lambda member: member.value))  # enumerations
