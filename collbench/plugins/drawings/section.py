"""The section "Machines" of a page: the hosts with their links, and the machines as drawings with the link that limits marked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.analysis.ceilings import OF_LINKS, link_rates
from collbench.machine.cluster import folded
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.links import limiting_parts
from collbench.machine.readers.text import Unreadable
from collbench.machine.snapshot import SCHEMA, machines_of, topology_json
from collbench.plugins.drawings.host_links import SLOW, SUSPECT, HostLink, describe_links, host_links, network_picture
from collbench.plugins.drawings.machine import UsedInterface, picture
from collbench.plugins.drawings.svg import embedded
from collbench.report.html.chart import Chart, Section, Table, marks_of
from collbench.report.kinds import SuspectLink
from collbench.report.kinds import kinds as run_kinds
from collbench.report.machine import part_texts, safe, system_text, title
from collbench.report.material import Material
from collbench.results.folder import TOPOLOGY, topology_of
from collbench.results.reader import Run
from collbench.units import format_percent

_KINDS_MOST = 64  # different machines at most


class MachineKind(msgspec.Struct, frozen=True):
    """Machines that differ only in their names, with equal links: the first of them as in the last run, the hosts, and its links."""

    machine: Machine
    hosts: tuple[str, ...]
    links: tuple[HostLink, ...] = ()

    @property
    def names(self) -> str:
        """The hosts, as Slurm folds names."""
        return safe(folded(self.hosts) or "machine without a name")


_Described = tuple[Machine, tuple[str, ...]]  # a machine, and the names of all its hosts


def _described(runs: Sequence[Run]) -> tuple[list[_Described], list[str]]:
    """Return the machines of the runs, at most 64, and sentences for what cannot be read."""
    described: list[_Described] = []
    doubts: list[str] = []
    for run in runs:
        listed = topology_of(run.path).get("machines")
        for entry in listed if isinstance(listed, list) else []:
            try:
                described.append(_read(entry, f"{run.path / TOPOLOGY}"))
            except Unreadable as error:
                doubts.append(str(error))
    if len(described) > _KINDS_MOST:
        doubts.append(f"{len(described) - _KINDS_MOST} more descriptions of machines are left out here: each run's {TOPOLOGY} has them")
    return described[:_KINDS_MOST], list(dict.fromkeys(doubts))


def _read(entry: Any, name: str) -> _Described:
    """Return a machine of topology.json, for the first of its hosts, and its hosts. Raises Unreadable."""
    if not isinstance(entry, dict):
        raise Unreadable(f"{name} lists something that is not a machine: write it again with `collbench probe --format json`")
    hosts = entry.get("hostnames") or [entry.get("hostname")]
    names = [host for host in hosts if isinstance(host, str)] if isinstance(hosts, list) else []
    first_host = {**entry, "hostnames": names[:1]} if names else {key: value for key, value in entry.items() if key != "hostnames"}
    return machines_of({"schema": SCHEMA, "machines": [first_host]}, name)[0], tuple(names)


def _kinds(described: Sequence[_Described], links: Sequence[HostLink] = ()) -> list[MachineKind]:
    """Return the kinds of these machines, in the order of the first host of each.

    A host is one machine, as it was described last, if only the rates of its ports differ between its descriptions.
    """
    links_of: defaultdict[str, list[HostLink]] = defaultdict(list)
    for link in links:
        links_of[link.host].append(link)
    numbers = _numbered([machine for machine, _ in described])
    shapes = _numbered([_without_rates(machine) for machine, _ in described])
    last: dict[tuple[str, int], int] = {}  # by host and shape the place of its last description; without a host by number
    for place, (_, hosts) in enumerate(described):
        for key in [(host, shapes[place]) for host in hosts] or [("", -numbers[place])]:
            last[key] = place
    first_places = {number: place for place, number in reversed(list(enumerate(numbers)))}
    groups: defaultdict[tuple[int, tuple[HostLink, ...]], list[str]] = defaultdict(list)
    for (host, _), place in last.items():
        groups[numbers[place], tuple(replace(link, host="") for link in links_of[host])].append(host)
    return [
        MachineKind(described[first_places[number]][0], tuple(filter(None, hosts)), tuple(links_of[hosts[0]]))
        for (number, _), hosts in groups.items()
    ]


def _numbered(machines: Sequence[Machine]) -> list[int]:
    """Return a number for each machine, the same one for equal machines."""
    named = [replace(machine, hostname=str(place)) for place, machine in enumerate(machines)]
    numbers = [0] * len(machines)
    for number, entry in enumerate(topology_json(named)["machines"] if named else []):
        for place in entry["hostnames"]:
            numbers[int(place)] = number
    return numbers


def _without_rates(machine: Machine) -> Machine:
    """Return the machine without the rates of its ports."""
    nics = [
        replace(nic, ports=tuple(replace(port, rate_bits_per_s=None, rate_text=None, shaped_bits_per_s=None) for port in nic.ports))
        for nic in machine.nics
    ]
    return replace(machine, nics=tuple(nics))


def _changed(kinds: Sequence[MachineKind]) -> list[str]:
    """Return a sentence about the hosts of two kinds, which were another machine in another run; [] without any."""
    hosts = [host for kind in kinds for host in kind.hosts]
    twice = sorted({host for host in hosts if hosts.count(host) > 1}) if len(hosts) <= 10_000 else []
    return [f"not the same machine in all runs (see what differs, below): {safe(folded(twice))}"] if twice else []


_MOST_DRAWN = 4
_MOST_LIMITS = 40
_MOST_ROWS = 300
_METHOD = (
    "Read from the machine when the run began (topology.json beside the rows; `collbench probe` prints the same). Equal machines are drawn "
    "once. Marked is what limits the expected rates of the rows, and what a finding of the run names as slow."
)
_NETWORK_METHOD = (
    "A line for each interface that carried the bytes of the rows, by the counters of each host; without counters the interface chosen for "
    "the traffic. Its rate is that of its port or of a traffic shaper (`tc`), before → after where runs differ: the reported speed of a "
    "virtual interface means nothing. Slow is a link that a finding names, or with a rate that fell."
)


def section(material: Material) -> Section | None:
    """Return the hosts with their links, and drawings of the machines with the limiting and slow links marked.

    None if the runs have no information about their machines.
    """
    slow = [link for kind in run_kinds().values() for link in kind.slow_links(material)]
    links = host_links(material.runs, slow)
    described, doubts = _described(material.runs)
    limits = _limits(material.runs, links)
    links = _with_limits(links, _kinds(described), limits)
    kinds = _kinds(described, links)
    doubts += _changed(kinds)
    kinds = [kind for kind in kinds if kind.machine.gpus or kind.machine.nics]  # others have nothing to show
    network = _network_chart(links, [link for link in slow if len(link.hosts) > 1])
    if not kinds and not doubts and network is None:
        return None
    kinds.sort(key=lambda kind: not any(link.mark in (SLOW, SUSPECT) for link in kind.links))
    charts = [] if network is None else [network]
    charts += [
        _chart(number, kind, kinds, limits, first=number == 0 and network is None) for number, kind in enumerate(kinds[:_MOST_DRAWN])
    ]
    if rest := kinds[_MOST_DRAWN:]:
        hosts = sum(len(kind.hosts) for kind in rest)
        more = f"{hosts} more machines of {len(rest)} other kinds are not drawn"
        doubts.insert(0, f"{more}: `collbench probe --from TOPOLOGY.json --svg FILE` draws all.")
    return Section("machine", "Machines", doubts, (), charts)


def drawings(machines: Sequence[Machine], ceiling: Ceiling | None) -> Section:
    """Return drawings of machines without a run, with what limits the ceiling marked; equal machines are drawn once, and four at most."""
    kinds = _kinds([(machine, (machine.hostname,) if machine.hostname else ()) for machine in machines[:_KINDS_MOST]])
    limits = {ceiling.limited_by: ceiling} if ceiling is not None and ceiling.bytes_per_s else {}
    charts = [_chart(number, kind, kinds, limits, first=number == 0) for number, kind in enumerate(kinds[:_MOST_DRAWN])]
    return Section("machine", "Other machines", (), (), charts)  # the first one is on the first screen


def _limits(runs: Sequence[Run], links: Sequence[HostLink]) -> dict[str, Ceiling]:
    """Return the first ceilings that links set, by their text: those of runs whose links had the rates of the last run."""
    rates = {(link.host, link.interface): link.after for link in links}
    limits: dict[str, Ceiling] = {}
    for run in runs:
        if all(rates.get(key, rate) == rate for key, rate in link_rates(run).items()):
            for row in run.rows:
                if row.comparison is not None and row.comparison.ceiling.kind in OF_LINKS and len(limits) < _MOST_LIMITS:
                    limits.setdefault(row.comparison.ceiling.limited_by, row.comparison.ceiling)
    return limits


def _with_limits(links: Sequence[HostLink], kinds: Sequence[MachineKind], limits: Mapping[str, Ceiling]) -> list[HostLink]:
    """Return the links, with the information which of them limit.

    Rows of earlier versions do not have the links of a ceiling: a ceiling of the network is then that of the slowest interfaces.
    """
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for kind in kinds:
        for keys in _marked(kind, kinds, limits).values():
            for host in kind.hosts:
                parts[host] |= keys
    slowest = None
    if any(_has_no_parts(ceiling) for ceiling in limits.values()):
        slowest = min((link.after for link in links if link.after is not None), default=None)
    is_slowest = [link.after is not None and link.after == slowest for link in links]
    return [
        replace(link, limits=link.interface in parts[link.host] or slowest_of_all)
        for link, slowest_of_all in zip(links, is_slowest, strict=True)
    ]


def _has_no_parts(ceiling: Ceiling) -> bool:
    """Return whether a ceiling is that of the network in a row of an earlier version, which does not have the links."""
    return ceiling.kind == "network" and not ceiling.limited_by_parts


def _marked(kind: MachineKind, kinds: Sequence[MachineKind], limits: Mapping[str, Ceiling]) -> dict[str, frozenset[str]]:
    """Return by the text of a ceiling the limiting parts of this machine that a drawing has; not those of links on another host."""
    elsewhere = {host for other in kinds if other is not kind for host in other.hosts if host not in kind.hosts}
    limiting = {text: ceiling for text, ceiling in limits.items() if elsewhere.isdisjoint(part.host for part in ceiling.limited_by_parts)}
    return {text: limiting_parts(kind.machine, ceiling.limited_by_parts) for text, ceiling in limiting.items()}


def _network_chart(links: Sequence[HostLink], paths: Sequence[SuspectLink]) -> Chart | None:
    """Return the drawing of the hosts with their links; None for one host, and if nothing is known of the links."""
    if len({link.host for link in links}) < 2 or not (paths or any(link.interface or link.mark for link in links)):
        return None
    rows = [
        (safe(link.host), safe(link.interface), _gigabits(link.before), _gigabits(link.after), link.rate if link.share else "", link.mark)
        for link in links[:_MOST_ROWS]
    ]
    rows += [(" – ".join(map(safe, path.hosts)), "path", "", "", "", SLOW if path.is_confirmed else SUSPECT) for path in paths]
    head = ("host", "interface", "first run, Gb/s", "last run, Gb/s", "measured", "mark")
    table = Table(head, rows, frozenset({2, 3}), marks_of("wrong" if row[5] == SLOW else "" for row in rows))
    drawing = embedded(network_picture(links, paths), first=True)
    return Chart("machine-network", "Hosts and their links", describe_links(links, paths), _NETWORK_METHOD, table, drawing, wide=True)


def _gigabits(bits_per_s: float | None) -> str:
    return "" if bits_per_s is None else f"{bits_per_s / 1e9:g}"


def _chart(number: int, kind: MachineKind, kinds: Sequence[MachineKind], limits: Mapping[str, Ceiling], *, first: bool) -> Chart:
    machine = kind.machine
    marks = _marked(kind, kinds, limits)
    limiting_links = frozenset(link.interface for link in kind.links if link.limits)
    for text, ceiling in limits.items():
        if _has_no_parts(ceiling) and any(link.after is not None for link in kind.links):
            marks[text] = limiting_links
    parts = frozenset().union(*marks.values())
    virtual = {nic.name for nic in machine.nics if nic.virtual is not None}
    used = {name: UsedInterface("") for name in sorted(parts & virtual)}
    for link in kind.links:
        rate = link.rate if link.before != link.after or link.interface in virtual else ""
        if link.share is not None:
            rate = format_percent(100 * link.share)
        used[link.interface] = UsedInterface(rate, link.mark)
    name = f"{kind.names}{f' ({len(kind.hosts)} equal machines)' if len(kind.hosts) > 1 else ''}"
    marked = [safe(text) for text, keys in marks.items() if keys]
    missing = [safe(text) for text, keys in marks.items() if not keys and not _has_no_parts(limits[text])]
    slow = [link.sentence(kind.names) for link in kind.links if link.mark in (SLOW, SUSPECT)]
    sentences = [f"Slow: {'; '.join(slow)}."] if slow else []
    sentences += [f"Marked as limiting: {'; '.join(marked)}."] if marked else []
    sentences += [f"Limiting, but not marked in this drawing: {'; '.join(missing)}."] if missing else []
    drawing = embedded(picture(replace(machine, hostname=folded(kind.hosts) or None), parts, used), first=first)
    caption = f"{title(machine, kind.names)}. {' '.join(sentences) or 'None of its links is a limit.'}"
    table = _parts_table(machine, parts, used)
    return Chart(f"machine-{number}", name, caption, _METHOD, table, drawing, wide=True)


def _parts_table(machine: Machine, limiting: frozenset[str], used: Mapping[str, UsedInterface]) -> Table:
    """Return a table of the processors, and of every GPU and NIC that is drawn."""
    own = {gpu.key: {gpu.key, gpu.address, *(link.key for link in machine.gpu_links if link.a == gpu.key)} for gpu in machine.gpus}
    own |= {nic.key: {nic.key, nic.address} for nic in machine.nics}
    system = [("processors", ", ".join(system_text(machine.system)), "")] if system_text(machine.system) else []
    rows = []
    for key, text in part_texts(machine, used).items():
        mark = used[key].mark if key in used else ""
        rows.append((text.title, text.about, mark or ("limits" if limiting & own.get(key, set()) else "")))
    return Table(("part", "what is known", "mark"), [*system, *rows])
