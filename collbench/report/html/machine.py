"""The machines as drawings, with the link that limits marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collbench.analysis.differences import topology_of
from collbench.analysis.launches import known
from collbench.errors import UsageError
from collbench.machine.cluster import folded
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.limits import Limit
from collbench.machine.peak.links import limiting_parts
from collbench.machine.peak.node import Job, node_of
from collbench.machine.readers.text import Unreadable
from collbench.machine.snapshot import SCHEMA, machines_of, topology_json
from collbench.report.cases import NOTHING
from collbench.report.frame import printable
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.material import Material
from collbench.report.machine import gigabits, part_texts, safe, system_text, title
from collbench.report.machine_picture import embedded, picture
from collbench.results.folder import TOPOLOGY
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_rate

# The network interfaces that carried the traffic, as a table. For hosts without a probe it is all that is known about their links.

_MOST = 40


def interfaces_table(runs: Sequence[Run]) -> Table | None:
    """Return a table of interface, rate, MTU and hosts, with equal ones once; None if no run has any."""
    hosts: dict[tuple[str, ...], dict[str, None]] = {}
    for run in runs:
        for host, interface in _interfaces(run):
            hosts.setdefault(_words(interface), {})[host] = None
    rows = [(*words, safe(folded([*names]))) for words, names in hosts.items()]
    more = [(f"and {len(rows) - _MOST} more", "", "", "")] if len(rows) > _MOST else []
    return Table(("interface", "rate", "MTU", "hosts"), [*rows[:_MOST], *more], frozenset({2})) if rows else None


def _interfaces(run: Run) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each interface with its host: there is one per host, in the order of run.json's hosts."""
    listed, hosts = topology_of(run).get("interfaces"), run.info.get("hosts")
    names = [str(host) for host in hosts] if isinstance(hosts, list) else []
    for number, interface in enumerate(listed if isinstance(listed, list) else []):
        if isinstance(interface, dict):
            yield names[number] if number < len(names) else "host unknown", interface


def _words(interface: Mapping[str, Any]) -> tuple[str, str, str]:
    mtu = interface.get("mtu")
    return safe(str(interface.get("name"))), _rate(interface), str(mtu) if known(mtu) else NOTHING


def _rate(interface: Mapping[str, Any]) -> str:
    shaped, speed, virtual = (interface.get(name) for name in ("shaped_bits_per_s", "speed_bits_per_s", "virtual"))
    if shaped is not None and known(shaped):
        return f"{gigabits(shaped)} (traffic shaper)"
    if speed is not None and known(speed):
        return gigabits(speed)
    return f"unknown ({safe(virtual)} has no speed of its own)" if isinstance(virtual, str) else "unknown (the kernel does not report it)"


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
_MADE = (
    "Read from the machine when the run began (topology.json beside the rows; `collbench probe` prints the same): the kernel's files, the "
    "drivers and the tools named. Equal machines are drawn once. Marked is what the ceilings of the rows name: the slowest link that a "
    "ring has to cross, or, where a backend is faster than a ring can be, the link that no algorithm gets around."
)


@dataclass(frozen=True)
class _Limit:
    """What limits an operation of a backend: the ceiling's text, its parts, its model, and its lowest and highest rate."""

    operation: str
    backend: str
    text: str
    model: str
    parts: tuple[Limit, ...]
    rates: tuple[float, ...]


def section(material: Material) -> Section | None:
    """Return drawings, the limit of each operation, and the interfaces; None if the runs have no information about their machines."""
    kinds, doubts = kinds_of(material.runs)
    interfaces = interfaces_table(material.runs)
    if not kinds and interfaces is None:
        return None
    limits = _limits(row for table in material.tables for row in table.rows)
    marked = [_marked(kind, kinds, limits) for kind in kinds]
    tables = [("What limits", _limits_table(limits, marked))] if limits else []
    tables += [("Network interfaces that carry the traffic between ranks", interfaces)] if interfaces else []
    drawn = [_chart(number, kind, marks) for number, (kind, marks) in enumerate(zip(kinds, marked, strict=True)) if number < _MOST_DRAWN]
    return Section("machine", "Machines", [*_texts(kinds), *doubts], tables, drawn)


# Machines without a run: what `probe` and `peak` show.


def machine_charts(machines: Sequence[Machine], operation: str, ceiling: Ceiling | None) -> list[Chart]:
    """Return drawings of the machines, with what limits the ceiling marked; equal machines are drawn once, and four at most."""
    kinds = _kinds([(machine, (machine.hostname,) if machine.hostname else ()) for machine in machines[:_KINDS_MOST]])
    limits = []
    if ceiling is not None and ceiling.bytes_per_s:
        limits = [_Limit(operation, "", ceiling.limited_by, ceiling.model, ceiling.limited_by_parts, (ceiling.bytes_per_s,))]
    return [_chart(number, kind, _marked(kind, kinds, limits)) for number, kind in enumerate(kinds[:_MOST_DRAWN])]


def node_ceiling(machine: Machine) -> Ceiling | None:
    """Return the expected all-reduce bandwidth between two machines like this one; None if it is unknown."""
    try:
        ring = ceilings("allreduce", Job((node_of(machine),) * 2)).ring
    except UsageError:
        return None
    return ring if ring is not None and ring.bytes_per_s else None


def _texts(kinds: Sequence[MachineKind]) -> Iterator[str]:
    if not kinds:
        yield "The runs have no probe of their machines, so nothing is drawn."
    if len(kinds) > _MOST_DRAWN:
        rest = kinds[_MOST_DRAWN:]
        hosts = sum(len(kind.hosts) for kind in rest)
        draws = "`collbench probe --from TOPOLOGY.json --svg FILE` draws all"
        yield f"{hosts} more machines of {len(rest)} other kinds are not drawn: {draws}."


def _limits(rows: Iterable[Row]) -> list[_Limit]:
    found: defaultdict[tuple[str, str, str, str, tuple[Limit, ...]], list[float]] = defaultdict(list)
    for row in rows:
        ceiling = row.ceiling
        if ceiling is not None and ceiling.kind in _OF_LINKS and known(ceiling.bytes_per_s) and row.percent_of_ceiling is not None:
            of = row.operation, row.backend, ceiling.limited_by, ceiling.model, ceiling.limited_by_parts
            found[of].append(float(ceiling.bytes_per_s or 0))
    return [_Limit(*names, (min(rates), max(rates))) for names, rates in found.items()]


def _marked(kind: MachineKind, kinds: Sequence[MachineKind], limits: Sequence[_Limit]) -> dict[str, frozenset[str]]:
    """Return by the text of a ceiling the limiting parts of this machine; none if the limiting links are on another host."""
    elsewhere = {host for other in kinds if other is not kind for host in other.hosts if host not in kind.hosts}
    limiting = {limit.text: limit.parts for limit in limits[:_MOST_LIMITS] if elsewhere.isdisjoint(part.host for part in limit.parts)}
    return {text: marks for text, parts in limiting.items() if (marks := limiting_parts(kind.machine, parts))}


def _limits_table(limits: Sequence[_Limit], marked: Sequence[dict[str, frozenset[str]]]) -> Table:
    rows = [
        (
            printable(limit.operation),
            printable(limit.backend),
            safe(limit.text),
            limit.model,
            "–".join(dict.fromkeys(map(format_rate, limit.rates))),
            "marked" if any(limit.text in marks for marks in marked[:_MOST_DRAWN]) else "not in a drawing",
        )
        for limit in limits[:_MOST_LIMITS]
    ]
    rest = len(limits) - _MOST_LIMITS
    more = [(f"and {rest} more", *[""] * 5)] if rest > 0 else []
    return Table(("operation", "backend", "limited by", "model", "expected GB/s", "in the drawing"), [*rows, *more], frozenset({4}))


def _chart(number: int, kind: MachineKind, marks: dict[str, frozenset[str]]) -> Chart:
    machine = kind.machine
    parts = frozenset().union(*marks.values())
    name = f"{kind.names}{f' ({len(kind.hosts)} equal machines)' if len(kind.hosts) > 1 else ''}"
    marked = f"Marked as limiting: {'; '.join(map(safe, marks))}." if marks else "No link of it is named as limiting."
    about = f"{title(machine, kind.names)}. {marked}"
    drawing = embedded(picture(machine, parts), first=number == 0)
    return Chart(f"machine-{number}", name, about, f"{_MADE} Read from: {_sources(kind)}.", drawing, _parts_table(kind, parts), wide=True)


def _sources(kind: MachineKind) -> str:
    sources = [safe(source) for source in kind.machine.sources]
    return "; ".join([*sources[:12], *([f"{len(sources) - 12} more"] if len(sources) > 12 else [])]) or NOTHING


def _parts_table(kind: MachineKind, limiting: frozenset[str]) -> Table:
    """Return a table of the processors, and of every GPU and NIC."""
    machine = kind.machine
    own = {gpu.key: {gpu.key, gpu.address, *(link.key for link in machine.gpu_links if link.a == gpu.key)} for gpu in machine.gpus}
    own |= {nic.key: {nic.key, nic.address} for nic in machine.nics}
    system = [("processors", ", ".join(system_text(machine.system)), "")] if system_text(machine.system) else []
    rows = []
    for key, text in part_texts(machine).items():
        rows.append((text.title, text.about, "limits" if limiting & own.get(key, set()) else ""))
    return Table(("part", "what is known", "limits"), [*system, *rows])
