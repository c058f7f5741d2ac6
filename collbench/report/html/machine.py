"""Sections about nodes: the machines as drawings with the link that limits marked, the findings of doctor, and what probe and peak know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collbench.analysis.differences import topology_of
from collbench.errors import UsageError
from collbench.machine.cluster import folded
from collbench.machine.doctor.examine import ExaminedLog, sentence
from collbench.machine.doctor.finding import Finding
from collbench.machine.doctor.gpus import states
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.collective import CollectiveCeilings, ceilings
from collbench.machine.peak.comparison import lines, sentences_of_sizes
from collbench.machine.peak.limits import Limit
from collbench.machine.peak.links import limiting_parts
from collbench.machine.peak.node import Job, node_of
from collbench.machine.peak.time_model import ExpectedTime
from collbench.machine.readers.text import Unreadable
from collbench.machine.snapshot import SCHEMA, machines_of, topology_json
from collbench.report.charts import Bar, BarPanel
from collbench.report.html.chart import Chart, Section, Table, marks_of
from collbench.report.html.picture import bar_chart
from collbench.report.machine import disagreement_lines, part_texts, safe, system_text, title, unknown_lines
from collbench.report.machine_picture import embedded, picture
from collbench.report.material import Material
from collbench.results.folder import TOPOLOGY
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_percent, format_rate, format_size, format_time, listed

# The machines of the runs, with equal ones once.

_KINDS_MOST = 64  # different machines at most


@dataclass(frozen=True)
class MachineKind:
    """Machines that differ only in their names: the first of them, and the hosts."""

    machine: Machine
    hosts: tuple[str, ...]

    @property
    def names(self) -> str:
        """The hosts, as Slurm folds names."""
        return safe(folded(self.hosts) or "machine without a name")


def kinds_of(runs: Sequence[Run]) -> tuple[list[MachineKind], list[str]]:
    """Return the kinds of machine in the order of their first run, and sentences for what cannot be read or differs between runs."""
    described: list[tuple[Machine, tuple[str, ...]]] = []
    doubts: list[str] = []
    for run in runs:
        listed = topology_of(run).get("machines")
        for entry in listed if isinstance(listed, list) else []:
            try:
                described.append(_read(entry, f"{run.path / TOPOLOGY}"))
            except Unreadable as error:
                doubts.append(str(error))
    kinds = _kinds(described[:_KINDS_MOST])
    if len(described) > _KINDS_MOST:
        doubts.append(f"{len(described) - _KINDS_MOST} more descriptions of machines are left out here: each run's {TOPOLOGY} has them")
    return kinds, [*dict.fromkeys(doubts), *_changed(kinds)]


def _read(entry: Any, name: str) -> tuple[Machine, tuple[str, ...]]:
    """Return (a machine of topology.json, for the first of its hosts; the names of all its hosts). Raises Unreadable."""
    if not isinstance(entry, dict):
        raise Unreadable(f"{name} lists something that is not a machine: write it again with `collbench probe --format json`")
    hosts = entry.get("hostnames") or [entry.get("hostname")]
    names = [host for host in hosts if isinstance(host, str)] if isinstance(hosts, list) else []
    one = {**entry, "hostnames": names[:1]} if names else {key: value for key, value in entry.items() if key != "hostnames"}
    return machines_of({"schema": SCHEMA, "machines": [one]}, name)[0], tuple(names)


def _kinds(described: Sequence[tuple[Machine, tuple[str, ...]]]) -> list[MachineKind]:
    """Return equal machines of all runs together, numbered instead of named."""
    numbered = [replace(machine, hostname=str(number)) for number, (machine, _) in enumerate(described)]
    found = []
    for entry in topology_json(numbered)["machines"] if numbered else []:
        same = [described[int(number)] for number in entry["hostnames"]]
        found.append(MachineKind(same[0][0], tuple(dict.fromkeys(host for _, hosts in same for host in hosts))))
    return found


def _changed(kinds: Sequence[MachineKind]) -> list[str]:
    """Return a sentence about the hosts of two kinds, which were another machine in another run; [] without any."""
    hosts = [host for kind in kinds for host in kind.hosts]
    twice = sorted({host for host in hosts if hosts.count(host) > 1}) if len(hosts) <= 10_000 else []
    return [f"not the same machine in all runs (see what differs, below): {safe(folded(twice))}"] if twice else []


_MOST_DRAWN, _MOST_LIMITS = 4, 40
_OF_LINKS = ("network", "topology")  # kinds of ceilings from links, not from a measured or given rate
_METHOD = (
    "Read from the machine when the run began (topology.json beside the rows; `collbench probe` prints the same). Equal machines are drawn "
    "once. Marked is what limits the expected rates of the rows."
)


def section(material: Material) -> Section | None:
    """Return drawings of the machines with the limiting links marked; None if the runs have no information about their machines."""
    kinds, doubts = kinds_of(material.runs)
    kinds = [kind for kind in kinds if kind.machine.gpus or kind.machine.nics]  # others have nothing to show
    if not kinds and not doubts:
        return None
    limits = _limits(row for table in material.tables for row in table.rows)
    charts = [_chart(number, kind, _marked(kind, kinds, limits)) for number, kind in enumerate(kinds[:_MOST_DRAWN])]
    if rest := kinds[_MOST_DRAWN:]:
        hosts = sum(len(kind.hosts) for kind in rest)
        more = f"{hosts} more machines of {len(rest)} other kinds are not drawn"
        doubts.insert(0, f"{more}: `collbench probe --from TOPOLOGY.json --svg FILE` draws all.")
    return Section("machine", "Machines", doubts, (), charts)


def _drawings(machines: Sequence[Machine], ceiling: Ceiling | None) -> Section:
    """Return drawings of machines without a run, with what limits the ceiling marked; equal machines are drawn once, and four at most."""
    kinds = _kinds([(machine, (machine.hostname,) if machine.hostname else ()) for machine in machines[:_KINDS_MOST]])
    limits = {ceiling.limited_by: ceiling.limited_by_parts} if ceiling is not None and ceiling.bytes_per_s else {}
    charts = [_chart(number, kind, _marked(kind, kinds, limits)) for number, kind in enumerate(kinds[:_MOST_DRAWN])]
    return Section("machine", "Other machines", (), (), charts)  # the first one is on the first screen


def node_ceiling(machine: Machine) -> Ceiling | None:
    """Return the expected all-reduce bandwidth between two machines like this one; None if it is unknown."""
    try:
        expected = ceilings("allreduce", Job((node_of(machine),) * 2)).expected
    except UsageError:
        return None
    return expected if expected is not None and expected.bytes_per_s else None


def _limits(rows: Iterable[Row]) -> dict[str, tuple[Limit, ...]]:
    """Return the parts of the first ceilings that links set, by their text."""
    found: dict[str, tuple[Limit, ...]] = {}
    for row in rows:
        if row.comparison is not None and row.comparison.ceiling.kind in _OF_LINKS and len(found) < _MOST_LIMITS:
            found.setdefault(row.comparison.ceiling.limited_by, row.comparison.ceiling.limited_by_parts)
    return found


def _marked(kind: MachineKind, kinds: Sequence[MachineKind], limits: Mapping[str, tuple[Limit, ...]]) -> dict[str, frozenset[str]]:
    """Return by the text of a ceiling the limiting parts of this machine that a drawing has; not those of links on another host."""
    elsewhere = {host for other in kinds if other is not kind for host in other.hosts if host not in kind.hosts}
    limiting = {text: parts for text, parts in limits.items() if elsewhere.isdisjoint(part.host for part in parts)}
    return {text: limiting_parts(kind.machine, parts) for text, parts in limiting.items()}


def _chart(number: int, kind: MachineKind, marks: Mapping[str, frozenset[str]]) -> Chart:
    machine = kind.machine
    parts = frozenset().union(*marks.values())
    name = f"{kind.names}{f' ({len(kind.hosts)} equal machines)' if len(kind.hosts) > 1 else ''}"
    marked = [safe(text) for text, keys in marks.items() if keys]
    missing = [safe(text) for text, keys in marks.items() if not keys]  # a virtual interface, or a limit of an earlier version
    sentences = [f"Marked as limiting: {'; '.join(marked)}."] if marked else []
    sentences += [f"Limiting, but not marked in this drawing: {'; '.join(missing)}."] if missing else []
    drawing = embedded(picture(machine, parts), first=number == 0)
    caption = f"{title(machine, kind.names)}. {' '.join(sentences) or 'None of its links is a limit.'}"
    return Chart(f"machine-{number}", name, caption, _METHOD, _parts_table(machine, parts), drawing, wide=True)


def _parts_table(machine: Machine, limiting: frozenset[str]) -> Table:
    """Return a table of the processors, and of every GPU and NIC."""
    own = {gpu.key: {gpu.key, gpu.address, *(link.key for link in machine.gpu_links if link.a == gpu.key)} for gpu in machine.gpus}
    own |= {nic.key: {nic.key, nic.address} for nic in machine.nics}
    system = [("processors", ", ".join(system_text(machine.system)), "")] if system_text(machine.system) else []
    rows = [(text.title, text.about, "limits" if limiting & own.get(key, set()) else "") for key, text in part_texts(machine).items()]
    return Table(("part", "what is known", "limits"), [*system, *rows])


# The findings of doctor, and what probe and peak know.

_MARKS = {"severe": "wrong", "warning": "doubtful"}
_MOST_ROWS, _MOST_HOSTS = 300, 6


def doctor_sections(findings: Sequence[Finding], machines: Sequence[Machine], logs: Sequence[ExaminedLog]) -> list[Section]:
    """Return the findings, worst first, equal ones of several hosts together; and what was examined."""
    listing = list(by_host(findings).items())[:_MOST_ROWS]
    several = len(machines) > 1
    rows = [
        [each.severity, each.code, *([safe(listed(names, _MOST_HOSTS))] if several else []), each.what, each.evidence, each.remedy]
        for each, names in listing
    ]
    head = ("severity", "code", *(["hosts"] if several else []), "finding", "evidence", "remedy")
    table = Table(head, rows, marks=marks_of(_MARKS.get(each.severity, "") for each, _ in listing))
    found = Section("findings", "Findings", (), [("Worst first; `collbench explain CODE` has more", table)])
    summaries = [text for each in logs for text in each.lines]
    examined = [*summaries, *states(machines, [each.log for each in logs]), sentence(machines, logs)]
    return [*([found] if rows else []), Section("examined", "What was examined", examined)]


def by_host(findings: Sequence[Finding]) -> dict[Finding, list[str]]:
    """Return the findings without their hosts, in their order, each with the hosts that have it."""
    hosts: defaultdict[Finding, list[str]] = defaultdict(list)
    for each in findings:
        hosts[replace(each, hostname=None)].append(each.hostname or "unnamed host")
    return dict(hosts)


def probe_sections(machines: Sequence[Machine], differences: Sequence[str], findings: Sequence[Finding]) -> list[Section]:
    """Return drawings of the machines, differences, what is unknown, and findings. There is at least one machine."""
    unknown = [text for each in machines[:_MOST_HOSTS] for text in (*unknown_lines(each), *each.doubts, *disagreement_lines(each))]
    texts = (("differences", "Differences between the nodes", differences), ("unknown", "Unknown and doubtful", unknown))
    found = doctor_sections(findings, machines, ()) if findings else []
    return [_drawings(machines, node_ceiling(machines[0])), *(Section(*each) for each in texts if each[2]), *found]


_RATES_METHOD = (
    "The expected rate follows from the slowest link on the way of the algorithm that the library is expected to use; the hard limit is "
    "that of any algorithm. The section How it follows has each step."
)


def peak_sections(
    operation: str, measured: float | None, found: CollectiveCeilings, job: Job, machines: Sequence[Machine]
) -> list[Section]:
    """Return how the expected rate follows, and drawings of the machines with its limit marked."""
    texts = [f"{text}." for text in lines(operation, measured, found, job)]
    charts = [chart for chart in [_rates_chart(operation, measured, found)] if chart is not None]
    rates = Section("rates", "How it follows", texts, charts=charts)
    return [rates, *_of_sizes(found.sizes, job.ranks, measured), _drawings(machines, found.expected)]


def _rates_chart(operation: str, measured: float | None, found: CollectiveCeilings) -> Chart | None:
    """Return the measured, the expected and the highest possible rate as bars; None without an expected rate."""
    expected = found.expected.bytes_per_s if found.expected is not None else None
    if not expected:
        return None
    bound = found.bound.bytes_per_s if found.bound is not None else None
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


def _of_sizes(times: Sequence[ExpectedTime], ranks: int, measured: float | None) -> list[Section]:
    """Return the table of the expected times; nothing without sizes."""
    if not times:
        return []
    rows = [
        (
            format_size(row.size_bytes),
            format_time(row.seconds),
            format_rate(row.busbw_bytes_per_s),
            format_percent(row.plateau_percent),
            row.how,
        )
        for row in times
    ]
    texts = [f"{text}." for text in sentences_of_sizes(times, ranks, measured)]
    head = ("size", "expected time (µs)", "busbw (GB/s)", "of plateau", "algorithm/protocol")
    return [Section("sizes", "Expected time by size", texts, [("expected times", Table(head, rows, frozenset(range(4))))])]
