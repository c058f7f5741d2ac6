"""Ceilings and link rates that changed between two runs: a link that became slower lowers the ceiling, and percentages hide the loss.

Only ceilings from links are compared. A measured reference varies with the load of the machine, and the user sets a given one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from collbench.analysis.launches import grouped, known
from collbench.columns import column
from collbench.machine.peak.ceiling import Ceiling
from collbench.results.folder import topology_of
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import first_of, format_percent, format_rate
from collbench.untrusted import list_of

OF_LINKS = ("network", "topology")  # kinds of ceiling
FELL = 0.99  # a change to more than this share of the old rate is rounding
_MOST_BACKENDS = 4


class LinkCeiling(NamedTuple):
    """A ceiling that comes from links, with the columns that it depends on.

    model        the algorithm of the expected bandwidth, such as "ring"; "bound" for the hard limit
    bytes_per_s  its rate
    limited_by   the link, as text for users
    constants    the origin of the share of the links' rate that the algorithm reaches; "" for the rate itself
    """

    operation: str
    backend: str
    group: str
    ranks: int
    nodes: int | None
    traffic: str | None
    model: str
    bytes_per_s: float
    limited_by: str
    constants: str = ""  # with this default last, so that stored baselines load

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the columns that two ceilings must have in common to be compared."""
        return (*self[:7], self.constants)


class CeilingChange(msgspec.Struct, frozen=True):
    """A lower ceiling of an operation on a backend than before; rates in bytes per second."""

    operation: Annotated[str, column("The operation.")]
    backend: Annotated[str, column("The backend.")]
    model: Annotated[str, column("The model, as in `Ceiling`.")]
    before: Annotated[float, column("The earlier rate.", key="before_bytes_per_s")]
    after: Annotated[float, column("The later rate.", key="after_bytes_per_s")]
    limited_before: Annotated[str, column("The link that set the earlier rate.")]
    limited_after: Annotated[str, column("The link that set the later rate.")]


class LinkChange(msgspec.Struct, frozen=True):
    """A link of a host that became slower; rates in bits per second."""

    host: Annotated[str, column("The host.")]
    name: Annotated[str, column("The link's name.")]
    before: Annotated[float, column("The earlier rate in bits per second.", key="before_bits_per_s")]
    after: Annotated[float, column("The later rate in bits per second.", key="after_bits_per_s")]

    def sentence(self) -> str:
        """Return "eth0 of cb1h2: 1 → 0.8 Gb/s"."""
        return f"{self.name} of {self.host}: {self.before / 1e9:g} → {self.after / 1e9:g} Gb/s"


class CeilingDrops(msgspec.Struct, frozen=True):
    """The links that became slower between two runs, and the ceilings that they lower.

    same_hosts  whether the runs have a host in common, or do not name their hosts; else the ceilings are of different machines
    """

    links: Annotated[tuple[LinkChange, ...], column("The links that became slower.")]
    ceilings: Annotated[tuple[CeilingChange, ...], column("The ceilings that these lower.")]
    same_hosts: bool

    def sentences(self) -> list[str]:
        """Return one sentence for each link, and one for each rate of the ceilings."""
        return [*(link.sentence() for link in self.links), *ceiling_sentences(self.ceilings)]


def ceiling_sentences(changes: Iterable[CeilingChange]) -> list[str]:
    """Return "expected bandwidth of allreduce on gloo, mpi: 0.120 → 0.0956 GB/s (-20 %), limited by NIC …", one for each rate."""
    all_changes = list(changes)
    expected = {(change.operation, change.backend) for change in all_changes if change.model != "bound"}
    groups: dict[tuple[str, float, float, str], list[str]] = {}
    for change in all_changes:
        if change.model != "bound" or (change.operation, change.backend) not in expected:  # a hard limit follows the expected bandwidth
            groups.setdefault((change.operation, change.before, change.after, change.limited_after), []).append(change.backend)
    sentences = []
    for (operation, before, after, limited), backends in groups.items():
        fell = f"{format_rate(before)} → {format_rate(after)} GB/s ({100 * (after / before - 1):+.0f} %)"
        on = first_of(dict.fromkeys(backends), _MOST_BACKENDS)
        sentences.append(f"expected bandwidth of {operation} on {on}: {fell}, limited by {limited}")
    return sentences


def link_ceilings(rows: Iterable[Row]) -> tuple[LinkCeiling, ...]:
    """Return the ceilings of rows that come from links, each once; those that differ between sizes are left out."""
    by_key: dict[tuple[Any, ...], set[LinkCeiling]] = {}
    for row in rows:
        for ceiling in (row.ceiling, row.hard_bound):
            if ceiling is not None and ceiling.kind in OF_LINKS and known(ceiling.bytes_per_s) and ceiling.bytes_per_s:
                place = (row.operation, row.backend, row.group, row.ranks, row.nodes, row.traffic)
                link_ceiling = LinkCeiling(*place, ceiling.model, float(ceiling.bytes_per_s), ceiling.limited_by, ceiling.constants)
                by_key.setdefault(link_ceiling.key, set()).add(link_ceiling)
    return tuple(next(iter(same_key)) for same_key in by_key.values() if len(same_key) == 1)


def dropped_ceilings(before: Iterable[LinkCeiling], after: Iterable[LinkCeiling]) -> tuple[CeilingChange, ...]:
    """Return the ceilings that are lower in `after`, each once."""
    ceilings_before = {ceiling.key: ceiling for ceiling in before}
    pairs = [(ceilings_before[ceiling.key], ceiling) for ceiling in after if ceiling.key in ceilings_before]
    changes = (
        CeilingChange(new.operation, new.backend, new.model, old.bytes_per_s, new.bytes_per_s, old.limited_by, new.limited_by)
        for old, new in pairs
        if new.bytes_per_s < FELL * old.bytes_per_s
    )
    return tuple(dict.fromkeys(changes))


def ceiling_drops(before: Run, after: Run, rows_before: Iterable[Row], rows_after: Iterable[Row]) -> CeilingDrops:
    """Return the links and ceilings that are lower in the second run; the rows are those of all launches of each side."""
    rates = link_rates(after)
    links = [LinkChange(*link, rate, rates[link]) for link, rate in link_rates(before).items() if rates.get(link, rate) < FELL * rate]
    same = share_hosts(before, after)
    return CeilingDrops(tuple(links), dropped_ceilings(link_ceilings(rows_before), link_ceilings(rows_after)), same)


def share_hosts(before: Run, after: Run) -> bool:
    """Return whether two runs have a host in common, or one does not name its hosts; else they may be of different clusters."""
    hosts_before, hosts_after = (set(hosts_of(run)) for run in (before, after))
    return not hosts_before or not hosts_after or bool(hosts_before & hosts_after)


def with_ceilings_before(changes: Iterable[CeilingChange], name: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the ceilings from before the changes, so that percentages show the loss; `name` is the baseline's.

    Such a row has the original one as `own`.
    """
    fell = grouped(changes, lambda change: (change.operation, change.backend, change.model))
    with_earlier = []
    for row in rows:
        ceiling = row.ceiling
        earlier = _before(fell, name, row, row.ceiling)
        earlier_bound = _before(fell, name, row, row.hard_bound)
        percent = row.comparison and row.comparison.percent
        if percent is not None and ceiling and ceiling.bytes_per_s and earlier and earlier.bytes_per_s and earlier is not ceiling:
            percent *= ceiling.bytes_per_s / earlier.bytes_per_s
        fallen = earlier is not ceiling or earlier_bound is not row.hard_bound
        with_earlier.append(row.compared_with(earlier, earlier_bound, percent).with_figures(own=row) if fallen else row)
    return with_earlier


_ByPlace = Mapping[tuple[str, str, str], Sequence[CeilingChange]]


def _before(fell: _ByPlace, name: str, row: Row, ceiling: Ceiling | None) -> Ceiling | None:
    """Return the ceiling from before it fell, with a text that names both links; the row's own if it did not fall."""
    if ceiling is None or ceiling.kind not in OF_LINKS or not known(ceiling.bytes_per_s):
        return ceiling
    rate = ceiling.bytes_per_s or 0.0
    for change in fell.get((row.operation, row.backend, ceiling.model), ()):
        if FELL <= rate / change.after <= 1 / FELL:
            return replace(ceiling, bytes_per_s=change.before, limited_by=f"{change.limited_before} in {name}, now {ceiling.limited_by}")
    return ceiling


def present_percents(rows: Iterable[Row]) -> list[str]:
    """Return what rows with a baseline's ceiling reach of their own, lower one: one sentence, or none without such rows.

    "of the bandwidth expected now: allreduce over gloo 84 % to 100 %; other percentages are of the bandwidth expected before".
    """
    lowered = grouped((row for row in rows if row.own is not None), lambda row: (row.operation, row.backend))
    texts = []
    for (operation, backend), those in lowered.items():
        percents = [row.own.comparison.percent for row in those if row.own is not None and row.own.comparison is not None]
        if percents:
            span = " to ".join(dict.fromkeys((format_percent(min(percents)), format_percent(max(percents)))))
            texts.append(f"{operation} over {backend} {span}")
    if not texts:
        return []
    return [f"of the bandwidth expected now: {', '.join(texts)}; other percentages are of the bandwidth expected before"]


def link_rates(run: Run) -> dict[tuple[str, str], float]:
    """Return the rate in bits per second of each network link that is known, by (host, name)."""
    topology = topology_of(run.path)
    rates: dict[tuple[str, str], float] = {}
    for machine in list_of(topology.get("machines"), dict):
        for nic in list_of(machine.get("nics"), dict):
            ports = list_of(nic.get("ports"), dict)
            for port in ports:
                rate = _rate(port, "rate_bits_per_s", virtual=nic.get("virtual") is not None)
                name = f"{nic.get('name')} port {port.get('number')}" if len(ports) > 1 else str(nic.get("name"))
                rates |= {(host, name): rate for host in list_of(machine.get("hostnames"), str) if rate}
    for host, interface in zip(hosts_of(run), list_of(topology.get("interfaces"), dict), strict=False):
        rate = _rate(interface, "speed_bits_per_s", virtual=interface.get("virtual") is not None)
        if rate:
            rates[host, str(interface.get("name"))] = rate
    return rates


def carrying(run: Run) -> set[tuple[str, str]]:
    """Return (host, name) of the interfaces that carry the traffic between the ranks of a run."""
    interfaces = list_of(topology_of(run.path).get("interfaces"), dict)
    return {(host, str(interface.get("name"))) for host, interface in zip(hosts_of(run), interfaces, strict=False)}


def _rate(part: Mapping[str, Any], name: str, virtual: bool) -> float | None:
    """Return the actual rate of a link: a traffic shaper's, if it has one. The reported speed of a virtual link means nothing."""
    rates = [part.get("shaped_bits_per_s")]
    if not virtual:
        rates.append(part.get(name))
    return min((float(rate) for rate in rates if rate is not None and known(rate) and rate), default=None)


def hosts_of(run: Run) -> list[str]:
    """Return the names of the hosts of a run; [] if it does not have them."""
    return list_of(run.info.get("hosts"), str)
