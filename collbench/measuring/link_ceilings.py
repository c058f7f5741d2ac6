"""The ceiling of groups that run at the same time, from each group's own limits and from the host NICs that the groups share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling, no_ceiling
from collbench.machine.peak.collective import KIND, OPERATIONS, ceilings, like
from collbench.machine.peak.job import joined_by_clique
from collbench.machine.peak.links import Link, unknown
from collbench.machine.peak.node import Job, Node, neighbours_of, node_of
from collbench.measuring.crossing import LeastBytes, least
from collbench.operations.case import Case
from collbench.operations.groups import Groups
from collbench.operations.operation import Operation
from collbench.operations.traffic import elements, elements_by_rank

Layout = tuple[tuple[str, tuple[int, ...]], ...]
CeilingPair = tuple[Ceiling, Ceiling | None]
MakeNode = Callable[[str, tuple[int, ...], tuple[int, ...]], Node]


class RunningCase(msgspec.Struct, frozen=True):
    """The groups of a case that run at the same time, and the hosts that they run on.

    groups      ranks of the job, in the order of their rank within the group
    host_of     the host of each rank of the job
    leaving     by host, the link that its NICs offer to all ranks that use them
    oversubscription   the fabric's rate is divided by this
    """

    operation: Operation
    case: Case
    groups: Groups
    host_of: Sequence[str]
    leaving: Mapping[str, Link]
    oversubscription: float = 1.0

    def crosses(self, group: Sequence[int]) -> bool:
        """Return whether the ranks of a group are on several hosts."""
        return len({self.host_of[rank] for rank in group}) > 1

    def layout(self, group: Sequence[int]) -> Layout:
        """Return a group's ranks by host, hosts in order of appearance. In a rooted operation the root and its host come first."""
        root = group[self.case.root or 0] if self.operation.rooted else group[0]
        by_host: dict[str, list[int]] = {}
        for rank in (root, *(rank for rank in group if rank != root)):
            by_host.setdefault(self.host_of[rank], []).append(rank)
        return tuple((host, tuple(ranks)) for host, ranks in by_host.items())

    def least(self, group: tuple[int, ...]) -> LeastBytes:
        """Return the minimum of bytes that one group must send out of and into its hosts."""
        return least(self.operation, self.case, (group,), {rank: self.host_of[rank] for rank in group})


def ceiling_of(running: RunningCase, node_of: MakeNode) -> CeilingPair:
    """Return (expected bandwidth, hard limit) of the slowest group, which sets the figures of the row.

    Without an expected bandwidth the hard limit takes its place. node_of makes a node from a host, the group's ranks
    there, and the group. Groups that cross hosts share the NICs there. Two limits follow: all groups together must send
    a least number of bytes, and each ring has its part of each host's NICs.
    """
    if running.operation.neighbours:
        return _neighbour_ceilings(running)
    if running.operation.name not in OPERATIONS:
        return no_ceiling(f"the expected bandwidth of {running.operation.name} is unknown"), None
    limits_of_groups = [ceilings(running.operation.name, _job(running, group, node_of)) for group in running.groups]
    expectations = [limits.expected for limits in limits_of_groups if limits.expected]
    bounds = [limits.bound for limits in limits_of_groups if limits.bound]
    unknown_bound = next((bound for bound in bounds if bound.bytes_per_s is None), None)
    if unknown_bound or not bounds:
        return replace(unknown_bound or no_ceiling("it moves nothing"), model="ring"), None
    shared = _Shared.of(running)
    bound = _slowest([*bounds, *shared.bounds()])
    expected = _slowest(expectations)
    if expected.model == "ring":
        expected = _slowest([expected, *shared.rings()])
    if expected.model != "ring" or like(running.operation.name) == "scan":  # the order of the chain of a scan is that of the ranks
        expected = _slowest([expected, replace(bound, model=expected.model)])
    return expected, _no_less(bound, expected)


def _neighbour_ceilings(running: RunningCase) -> CeilingPair:
    """Return (rate that messages sent by each rank itself can reach, hard limit), both by the hosts' NICs alone.

    In neighbor_allgather two neighbors on one host receive the same data. The hard limit counts that data once.
    """
    crossing = tuple(group for group in running.groups if running.crosses(group))
    shared = _Shared(running, tuple(running.least(group) for group in crossing))
    # by host, how many messages of half a size its ranks send to neighbors on other hosts; as many come in
    rings = [list(zip(group, [*group[1:], group[0]], strict=True)) for group in crossing]
    ways = [way for ring in rings for a, b in ring for way in ((a, b), (b, a))]
    messages = Counter(running.host_of[a] for a, b in ways if running.host_of[a] != running.host_of[b])
    bounds = shared.bounds()
    if not bounds:
        return no_ceiling(f"the expected bandwidth of {running.operation.name} inside a host is unknown"), None
    silent = next((running.leaving[host].name for host in messages if running.leaving[host].bytes_per_s is None), None)
    if silent:
        return no_ceiling(f"the rate between nodes is unknown: {silent}"), None
    expected = _slowest([shared.ring(host, count / 2) for host, count in sorted(messages.items())])
    return expected, _no_less(_slowest(bounds), expected)


def _job(running: RunningCase, group: tuple[int, ...], node_of: MakeNode) -> Job:
    layout = running.layout(group)
    nodes = joined_by_clique([node_of(host, ranks, group) for host, ranks in layout])
    placement = None
    if running.operation.name == "hypercube":  # the index of the node of each rank, in the group's order
        in_blocks = [index for index, node in enumerate(nodes) for _ in range(node.gpus)]
        node_of_rank = dict(zip((rank for _, ranks in layout for rank in ranks), in_blocks, strict=True))
        placement = tuple(node_of_rank[rank] for rank in group)
    traffic = _traffic(running, group, layout) if running.operation.uneven else None
    return Job(nodes, running.oversubscription, placement=placement, traffic=traffic)


def _traffic(running: RunningCase, group: Sequence[int], layout: Layout) -> Sequence[Sequence[float]]:
    """Return the bytes from rank to rank, or the row of the ranks' parts, in the order of the nodes' ranks."""
    case = running.case
    n = len(group)
    count = running.operation.count(case, n)
    place = {rank: index for index, rank in enumerate(group)}
    order = [place[rank] for _, ranks in layout for rank in ranks]
    if running.operation.by_rank:
        shares = elements_by_rank(case.traffic, n, count)
        return [[float(shares[index] * case.dtype.size) for index in order]]
    parts = elements(case.traffic, n, count)
    matrix: list[list[float]] = (parts[np.ix_(order, order)] * case.dtype.size).tolist()
    return matrix


class _Shared(msgspec.Struct, frozen=True):
    """The data that the groups that cross hosts must move together: bytes per host and direction, and the number of groups."""

    running: RunningCase
    least: tuple[LeastBytes, ...]

    @classmethod
    def of(cls, running: RunningCase) -> _Shared:
        """Return the shared traffic of a case. A single group is described by its job, unless its bytes depend on the order of the ranks.

        This is the case for the edges of a sendrecv ring, and for the sums of a scan that enter a host.
        """
        crossing = [group for group in running.groups if running.crosses(group)]
        alone = len(crossing) == 1 and like(running.operation.name) not in ("sendrecv", "scan")
        return cls(running, () if alone else tuple(running.least(group) for group in crossing))

    def bounds(self) -> list[Ceiling]:
        """Return the hard limits: of each host's NICs, from the bytes that all groups must move there, and of all NICs together."""
        out = _sums(group.out for group in self.least)
        into = _sums(group.into for group in self.least)
        hosts = sorted({*out, *into})
        rates = {host: self.running.leaving[host].rate for host in hosts}
        moved = self._moved()
        bounds = []
        for host in hosts:
            busier = max(out[host], into[host])
            bounds.append(self._ceiling(host, rates[host] * moved / busier, self._sharing(host, busier), "bound"))
        total = sum(group.total for group in self.least)
        if bounds and total:
            slowest = min(hosts, key=lambda host: (rates[host], host))
            bounds.append(self._ceiling(slowest, sum(rates.values()) * moved / total, self._sharing(slowest, 0.0), "bound"))
        return bounds

    def rings(self) -> list[Ceiling]:
        """Return the rates of each group's ring. It has one edge out of a host and one into it, where its algorithm needs them."""
        return [
            self._ceiling(host, self.running.leaving[host].as_nccl_takes_it().rate / self._groups(host), self._sharing(host, 0.0), "ring")
            for host in sorted({host for group in self.least for host in (*group.out, *group.into)})
        ]

    def ring(self, host: str, sizes: float) -> Ceiling:
        """Return the rate of a host that sends `sizes` message sizes in an iteration."""
        return self._ceiling(host, self.running.leaving[host].rate / sizes, self._sharing(host, 0.0), "ring")

    def _moved(self) -> float:
        """Return the bytes that the bus bandwidth counts in one iteration."""
        return self.running.case.size_bytes * self.running.operation.bus_factor(len(self.running.groups[0]))

    def _groups(self, host: str) -> int:
        """Return how many groups share the busier direction of a host's NICs."""
        return max(sum(bool(group.out.get(host)) for group in self.least), sum(bool(group.into.get(host)) for group in self.least))

    def _sharing(self, host: str, busier: float) -> str:
        """Return the groups that share a host's NICs, as text."""
        if self.running.operation.name == "sendrecv":
            edges = round(busier / self._moved()) if busier else 1
            rings = "rings" if len(self.running.groups) > 1 else "ring"
            return f" shared by {edges} edges of the {rings}" if edges > 1 else ""
        groups = self._groups(host)
        return f" shared by {groups} groups" if groups > 1 else ""

    def _ceiling(self, host: str, rate: float, sharing: str, model: str) -> Ceiling:
        link = self.running.leaving[host]
        names = {leaving.name for leaving in self.running.leaving.values()}
        where = f" of {host}" if len(names) > 1 else ""
        parts = () if link.part is None else (link.part.of(host=host if where else None),)
        return Ceiling(KIND, rate, f"{link.name}{where}{sharing}", model, link.source, limited_by_parts=parts)


def _sums(amounts_by_host: Iterable[Mapping[str, float]]) -> defaultdict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for amounts in amounts_by_host:
        for host, amount in amounts.items():
            sums[host] += amount
    return sums


def _slowest(limits: Sequence[Ceiling]) -> Ceiling:
    return min(limits, key=lambda limit: limit.bytes_per_s or 0.0)


def _no_less(bound: Ceiling, expected: Ceiling) -> Ceiling:
    """Return the hard limit, corrected for rounding so that it is not below the expected bandwidth."""
    return replace(bound, bytes_per_s=expected.bytes_per_s) if (bound.bytes_per_s or 0.0) < (expected.bytes_per_s or 0.0) else bound


class GpuNodes(msgspec.Struct):
    """The hosts of a launch with the GPUs of some of their ranks. Each node is made once.

    machines   one per host, in the hosts' order
    gpus       PCI address of each rank's GPU
    ranks      the ranks of each host
    """

    machines: Sequence[Machine]
    gpus: Sequence[str]
    hosts: Sequence[str]
    ranks: Sequence[Sequence[int]]
    _made: dict[tuple[str, tuple[int, ...]], Node] = msgspec.field(default_factory=dict)

    def whole(self) -> tuple[Node, ...] | Ceiling:
        """Return a node per host with the GPUs of all its ranks, or an unknown ceiling with the reason."""
        if not self.gpus or len(self.machines) != len(self.hosts):
            return no_ceiling("the GPU of each rank is unknown")
        if any(len({self.gpus[rank] for rank in ranks}) < len(ranks) for ranks in self.ranks):
            return no_ceiling("several ranks share a GPU: no link is between them")
        try:
            return tuple(self.node(host, tuple(ranks)) for host, ranks in zip(self.hosts, self.ranks, strict=True))
        except UsageError as error:
            return no_ceiling(str(error))

    def node(self, host: str, ranks: tuple[int, ...]) -> Node:
        """Return a host with the GPUs of these ranks. Raises UsageError for a GPU that no source lists."""
        if (host, ranks) not in self._made:
            machine = self.machines[self.hosts.index(host)]
            self._made[host, ranks] = replace(node_of(machine, [self.gpus[rank] for rank in ranks]), host=host)
        return self._made[host, ranks]

    def in_ring(self, host: str, ranks: tuple[int, ...], group: Sequence[int]) -> Node:
        """Return as `node`, with only the links inside this host that a ring through the group, in its order, uses."""
        after = dict(zip(group, [*group[1:], group[0]], strict=True))
        edges = [(self.gpus[rank], self.gpus[after[rank]]) for rank in ranks if after[rank] in ranks]
        machine = self.machines[self.hosts.index(host)]
        return replace(self.node(host, ranks), neighbours=neighbours_of(machine, [self.gpus[rank] for rank in ranks], edges))


def link_between(machine: Machine, a: str, b: str) -> Link:
    """Return the link between the GPUs at two PCI addresses, in one direction: NVLink or PCIe. Unknown where no source lists both."""
    try:
        return node_of(machine, [a, b]).pair
    except UsageError:
        return unknown(f"no source has both GPUs, {a} and {b}")


def ceiling_of_gpus(nodes: GpuNodes, running: RunningCase) -> CeilingPair:
    """Return (expected bandwidth, hard limit or None) of a collective on GPUs. `running.leaving` is replaced by what is found here."""
    whole = nodes.whole()
    if isinstance(whole, Ceiling):
        return whole, None
    leaving = {host: _leaving(node, whole, running.oversubscription) for host, node in zip(nodes.hosts, whole, strict=True)}

    def node(host: str, ranks: tuple[int, ...], group: tuple[int, ...]) -> Node:
        return nodes.in_ring(host, ranks, group) if running.operation.name == "sendrecv" else nodes.node(host, ranks)

    return ceiling_of(replace(running, leaving=leaving), node)


def _leaving(node: Node, whole: Sequence[Node], oversubscription: float) -> Link:
    """Return the link that carries a node's bytes to the others: its NICs.

    Unknown where an NVLink domain joins the node with some of the others.
    """
    if node.clique is not None and sum(member.clique == node.clique for member in whole) > 1:
        return unknown(f"NVLink domain {node.clique} joins this node with others")
    return Job((node,), oversubscription).egress(node)


def ceiling_of_gpu_pairs(nodes: GpuNodes, oversubscription: float, sharing: int, crossing: bool, staying: bool) -> CeilingPair:
    """Return (expected bandwidth, hard limit) of the slowest pair on GPUs.

    crossing and staying state whether there are pairs between hosts and pairs inside one. sharing is the number of
    pairs at the host with the most.
    """
    whole = nodes.whole()
    if isinstance(whole, Ceiling):
        return whole, None
    jobs = []
    if crossing:
        jobs.append(Job(joined_by_clique(whole), oversubscription, pairs=sharing))
    if staying:
        jobs += [Job((node,)) for node in whole if node.gpus > 1]
    limits_of_jobs = [ceilings("p2p", job) for job in jobs]
    bound = _slowest([limits.bound for limits in limits_of_jobs if limits.bound])
    expected = _slowest([limits.expected for limits in limits_of_jobs if limits.expected])
    return expected, bound if bound.bytes_per_s is not None else None
