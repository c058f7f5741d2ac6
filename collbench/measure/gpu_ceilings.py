"""The ceiling of a cell whose buffers lie on GPUs: from their links, the machines' NICs, and which GPU each rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from collbench.errors import UsageError
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling, nothing
from collbench.machine.peak.collective import ceilings
from collbench.machine.peak.domain import joined_by_clique
from collbench.machine.peak.job import Job
from collbench.machine.peak.link import Link, unknown
from collbench.machine.peak.node import Node, neighbours_of, node_of
from collbench.measure.group_ceilings import Found, Running, ceiling_of


@dataclass
class GpuNodes:
    """The hosts of a launch with the GPUs of some of their ranks, each such node made once.

    machines   one per host, in the hosts' order; gpus: PCI addresses by rank; ranks: the ranks of each host
    """

    machines: Sequence[Machine]
    gpus: Sequence[str]
    hosts: Sequence[str]
    ranks: Sequence[Sequence[int]]
    _made: dict[tuple[str, tuple[int, ...]], Node] = field(default_factory=dict)

    def whole(self) -> tuple[Node, ...] | Ceiling:
        """A node per host with the GPUs of all its ranks, or no ceiling, and why."""
        if not self.gpus or len(self.machines) != len(self.hosts):
            return nothing("which GPU each rank has is not known")
        if any(len({self.gpus[rank] for rank in ranks}) < len(ranks) for ranks in self.ranks):
            return nothing("several ranks share a GPU: no link lies between them")
        try:
            return tuple(self.node(host, tuple(ranks)) for host, ranks in zip(self.hosts, self.ranks, strict=True))
        except UsageError as error:
            return nothing(str(error))

    def node(self, host: str, ranks: tuple[int, ...]) -> Node:
        """A host with the GPUs of these ranks. Raises UsageError for a GPU that no source tells of."""
        if (host, ranks) not in self._made:
            machine = self.machines[self.hosts.index(host)]
            self._made[host, ranks] = replace(node_of(machine, [self.gpus[rank] for rank in ranks]), host=host)
        return self._made[host, ranks]

    def in_ring(self, host: str, ranks: tuple[int, ...], group: Sequence[int]) -> Node:
        """The same with the links that a ring through the group, in its order, uses inside this host."""
        inside, after = set(ranks), dict(zip(group, [*group[1:], group[0]], strict=True))
        edges = [(self.gpus[rank], self.gpus[after[rank]]) for rank in ranks if after[rank] in inside]
        machine = self.machines[self.hosts.index(host)]
        return replace(self.node(host, ranks), neighbours=neighbours_of(machine, [self.gpus[rank] for rank in ranks], edges))


def link_between(machine: Machine, a: str, b: str) -> Link:
    """What lies between the GPUs at two PCI addresses, in one direction: NVLink, or PCIe; unknown where no source tells of both."""
    try:
        return node_of(machine, [a, b]).pair
    except UsageError:
        return unknown(f"no source tells of both GPUs, {a} and {b}")


def ceiling_of_gpus(nodes: GpuNodes, running: Running) -> Found:
    """(ring reference, else hard limit; hard limit or None) of a collective; `running.leaving` is found here."""
    whole = nodes.whole()
    if isinstance(whole, Ceiling):
        return whole, None
    leaving = {host: _leaving(node, whole, running.oversubscription) for host, node in zip(nodes.hosts, whole, strict=True)}

    def node(host: str, ranks: tuple[int, ...], group: tuple[int, ...]) -> Node:
        return nodes.in_ring(host, ranks, group) if running.operation.name == "sendrecv" else nodes.node(host, ranks)

    return ceiling_of(replace(running, leaving=leaving), node)


def _leaving(node: Node, whole: Sequence[Node], oversubscription: float) -> Link:
    """Return what carries a node's bytes to the others: its NICs, or unknown where an NVLink domain joins it with some of them."""
    if node.clique is not None and sum(other.clique == node.clique for other in whole) > 1:
        return unknown(f"NVLink domain {node.clique} joins this node with others")
    return Job((node,), oversubscription).egress(node)


def ceiling_of_gpu_pairs(nodes: GpuNodes, oversubscription: float, sharing: int, crossing: bool, staying: bool) -> Found:
    """That of the slowest pair: of those that cross hosts, `sharing` of them at the busiest one, and of those that stay inside one."""
    whole = nodes.whole()
    if isinstance(whole, Ceiling):
        return whole, None
    jobs = [Job(joined_by_clique(whole), oversubscription, pairs=sharing)] if crossing else []
    jobs += [Job((node,)) for node in whole if node.gpus > 1] if staying else []
    bounds = [bound for job in jobs if (bound := ceilings("p2p", job).bound)]
    slowest = min(bounds, key=lambda each: each.bytes_per_s or 0.0)
    return slowest, slowest if slowest.bytes_per_s is not None else None
