"""Sections about nodes: the findings of doctor, and what probe and peak know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.doctor.examine import ExaminedLog, sentence
from collbench.machine.doctor.finding import Finding
from collbench.machine.doctor.gpus import states
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.collective import CollectiveCeilings
from collbench.machine.peak.collective import ceilings as collective_ceilings
from collbench.machine.peak.comparison import lines, sentences_of_sizes
from collbench.machine.peak.node import Job, node_of
from collbench.machine.peak.time_model import ExpectedTime
from collbench.plugin import hooks_of
from collbench.report.charts import Bar, BarPanel
from collbench.report.html.chart import Chart, Section, Table, marks_of
from collbench.report.html.picture import bar_chart
from collbench.report.machine import disagreement_lines, safe, unknown_lines
from collbench.units import format_percent, format_rate, format_size, format_time, listed

_MARKS = {"severe": "wrong", "warning": "doubtful"}
_MOST_ROWS = 300
_MOST_HOSTS = 6


def node_ceiling(machine: Machine) -> Ceiling | None:
    """Return the expected all-reduce bandwidth between two machines like this one; None if it is unknown."""
    try:
        expected = collective_ceilings("allreduce", Job((node_of(machine),) * 2)).expected
    except UsageError:
        return None
    return expected if expected is not None and expected.bytes_per_s else None


def doctor_sections(findings: Sequence[Finding], machines: Sequence[Machine], logs: Sequence[ExaminedLog]) -> list[Section]:
    """Return the findings, worst first, equal ones of several hosts together; and what was examined."""
    listing = list(by_host(findings).items())[:_MOST_ROWS]
    several = len(machines) > 1
    head = ["severity", "code", "finding", "evidence", "remedy"]
    rows = [[finding.severity, finding.code, finding.what, finding.evidence, finding.remedy] for finding, _ in listing]
    if several:
        head.insert(2, "hosts")
        for row, (_, names) in zip(rows, listing, strict=True):
            row.insert(2, safe(listed(names, _MOST_HOSTS)))
    table = Table(head, rows, marks=marks_of(_MARKS.get(finding.severity, "") for finding, _ in listing))
    findings_section = Section("findings", "Findings", (), [("Worst first; `collbench explain CODE` has more", table)])
    summaries = [text for examined in logs for text in examined.lines]
    texts = [*summaries, *states(machines, [examined.log for examined in logs]), sentence(machines, logs)]
    examined_section = Section("examined", "What was examined", texts)
    return [findings_section, examined_section] if rows else [examined_section]


def by_host(findings: Sequence[Finding]) -> dict[Finding, list[str]]:
    """Return the findings without their hosts, in their order, each with the hosts that have it."""
    hosts: defaultdict[Finding, list[str]] = defaultdict(list)
    for finding in findings:
        hosts[replace(finding, hostname=None)].append(finding.hostname or "unnamed host")
    return dict(hosts)


def probe_sections(machines: Sequence[Machine], differences: Sequence[str], findings: Sequence[Finding]) -> list[Section]:
    """Return drawings of the machines, differences, what is unknown, and findings. There is at least one machine."""
    sections = [draw(machines, node_ceiling(machines[0])) for draw in hooks_of("machine_drawings")]
    if differences:
        sections.append(Section("differences", "Differences between the nodes", differences))
    unknown: list[str] = []
    for machine in machines[:_MOST_HOSTS]:
        unknown += [*unknown_lines(machine), *machine.doubts, *disagreement_lines(machine)]
    if unknown:
        sections.append(Section("unknown", "Unknown and doubtful", unknown))
    return [*sections, *doctor_sections(findings, machines, ())] if findings else sections


_RATES_METHOD = (
    "The expected rate follows from the slowest link on the way of the algorithm that the library is expected to use; the hard limit is "
    "that of any algorithm. The section How it follows has each step."
)


def peak_sections(
    operation: str, measured: float | None, ceilings: CollectiveCeilings, job: Job, machines: Sequence[Machine]
) -> list[Section]:
    """Return how the expected rate follows, and drawings of the machines with its limit marked."""
    texts = [f"{text}." for text in lines(operation, measured, ceilings, job)]
    charts = list(filter(None, [_rates_chart(operation, measured, ceilings)]))
    rates = Section("rates", "How it follows", texts, charts=charts)
    drawings = [draw(machines, ceilings.expected) for draw in hooks_of("machine_drawings")]
    return [rates, *_size_sections(ceilings.sizes, job.ranks, measured), *drawings]


def _rates_chart(operation: str, measured: float | None, ceilings: CollectiveCeilings) -> Chart | None:
    """Return the measured, the expected and the highest possible rate as bars; None without an expected rate."""
    expected = ceilings.expected.bytes_per_s if ceilings.expected is not None else None
    if not expected:
        return None
    bound = ceilings.bound.bytes_per_s if ceilings.bound is not None else None
    rates = {"measured": measured, "expected": expected, "hard limit": bound}
    bars = [
        Bar(name, f"{format_rate(rate)} GB/s, {format_percent(100 * rate / expected)} of expected", rate / 1e9, color=number)
        for number, (name, rate) in enumerate(rates.items())
        if rate
    ]
    title = f"{operation}: bus bandwidth"
    caption = f"{'; '.join(f'{bar.name}: {bar.text}' for bar in bars)}."
    table = Table(("", "bus bandwidth"), [(bar.name, bar.text) for bar in bars])
    return bar_chart(Chart("rates-bars", title, caption, _RATES_METHOD, table), BarPanel("", bars, "bus bandwidth, GB/s"))


def _size_sections(times: Sequence[ExpectedTime], ranks: int, measured: float | None) -> list[Section]:
    """Return the table of the expected times; nothing without sizes."""
    if not times:
        return []
    rows = []
    for row in times:
        figures = [format_time(row.seconds), format_rate(row.busbw_bytes_per_s), format_percent(row.plateau_percent)]
        rows.append([format_size(row.size_bytes), *figures, row.how])
    texts = [f"{text}." for text in sentences_of_sizes(times, ranks, measured)]
    head = ("size", "expected time (µs)", "busbw (GB/s)", "of plateau", "algorithm/protocol")
    return [Section("sizes", "Expected time by size", texts, [("expected times", Table(head, rows, frozenset(range(4))))])]
