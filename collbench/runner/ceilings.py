"""Chooses each cell's ceiling: given, simulated, measured on this host, or the network between hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Backend
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation
from collbench.peak.ceiling import Ceiling, given, nothing
from collbench.peak.host import HostRates, memory_ceiling, stream_ceiling
from collbench.runner.launch import members_of, ranks_by_host
from collbench.runner.probing import probed
from collbench.runner.request import Request
from collbench.timing.reference import measure_memory, measure_streams
from collbench.topology.interfaces import Interface, interface_with, read_interface
from collbench.world.world import World

if TYPE_CHECKING:
    from collbench.peak.node import Node
    from collbench.topology.model import Machine


@dataclass
class Ceilings:
    """What this launch knows of its hosts' limits. Made by all ranks together; asked by rank 0."""

    request: Request
    world: World
    interfaces: list[Interface] = field(default_factory=list)
    machines: list[Machine] = field(default_factory=list)
    rates: HostRates = field(default_factory=lambda: HostRates({}, {}))
    _memory: dict[tuple[str, str], HostRates] = field(default_factory=dict)

    def prepare(self, backends: Sequence[Backend], cells: Sequence[tuple[Operation, Cell]]) -> None:
        """Probes the hosts (the machines are rank 0's alone) and measures the references that the cells will need."""
        self.interfaces = _everyones_interfaces(self.world)
        self.machines = probed(self.world) or []
        if self.request.ceiling is not None or self.world.size < 2 or self._oversubscribed():
            return
        if any(_on_loopback(backend) for backend in backends):
            one, both = measure_streams(self.world)
            self.rates = HostRates({}, {}, one, both)
        if any(_in_memory(backend) for backend in backends):
            self._measure_memory([(operation, cell) for operation, cell in cells if cell.backend in _names(backends, _in_memory)])

    def _measure_memory(self, cells: Sequence[tuple[Operation, Cell]]) -> None:
        """Every dtype and buffer reuse once, at all sizes of its cells."""
        for key in dict.fromkeys((cell.dtype.name, cell.buffers) for _, cell in cells):
            chosen = {cell.size_bytes: cell for _, cell in cells if (cell.dtype.name, cell.buffers) == key}
            with_sum = any(operation.reduces for operation, _ in cells)
            share = self.request.budget.max_time_s / 20
            with self.world.watchdog.phase("measuring the memory"):
                self._memory[key] = measure_memory(self.world, list(chosen.values()), with_sum, share)

    def _oversubscribed(self) -> bool:
        return bool(self.world.oversubscribed)

    def of(self, operation: Operation, cell: Cell, backend: Backend, groups: Sequence[Sequence[int]]) -> tuple[Ceiling, Ceiling | None]:
        """(the ceiling, the hard bound or None) of a cell that runs over these groups of ranks."""
        if self.request.ceiling is not None:
            return given(self.request.ceiling), None
        if backend.own_ceiling:
            return backend.own_ceiling, None
        members = members_of(backend, self.world)
        hosts = [[members[rank].host for rank in group] for group in groups]
        if cell.device == "cuda":
            return self._of_gpus(operation, backend, hosts)
        crossing = [each for each in hosts if len(set(each)) > 1]
        if crossing and len(crossing) == len(hosts):
            return self._between_hosts(operation, backend, crossing)
        return self._not_between(operation, cell, backend, bool(crossing)), None

    def _not_between(self, operation: Operation, cell: Cell, backend: Backend, some_cross: bool) -> Ceiling:
        if some_cross:
            return nothing("some pairs cross hosts and some do not")
        if len(self.world.hosts) > 1:
            return nothing("pairs inside hosts: references are measured in jobs of one host")
        return self._inside(operation, cell, backend)

    def _inside(self, operation: Operation, cell: Cell, backend: Backend) -> Ceiling:
        if self._oversubscribed():
            return nothing("more ranks than cores")
        if _on_loopback(backend):
            return stream_ceiling(operation.both_ways or operation.cpu_model != "copy", self.rates)
        if _in_memory(backend):
            return memory_ceiling(operation.cpu_model, cell.size_bytes, self._memory.get((cell.dtype.name, cell.buffers), self.rates))
        return nothing(f"{backend.name} does not say which path it takes inside a host")

    def _between_hosts(self, operation: Operation, backend: Backend, hosts: Sequence[Sequence[str]]) -> tuple[Ceiling, Ceiling | None]:
        from collbench.peak.collective import OPERATIONS, ceilings  # here, since most launches are of one host and every rank pays
        from collbench.peak.job import Job

        name = "p2p" if operation.pair else operation.name
        if name not in OPERATIONS:
            return nothing(f"no ceiling is known for {name}"), None
        pairs = _sharing(operation, hosts) if operation.pair else 1
        found = ceilings(name, Job(self._nodes(backend), self.request.oversubscription, pairs=pairs))
        ceiling, bound = found.ring or found.bound or nothing(f"{name} moves nothing"), found.bound
        if ceiling.bytes_per_s is None or bound is None or bound.bytes_per_s is None:
            return ceiling, None
        return replace(ceiling, kind="network"), replace(bound, kind="network")

    def _of_gpus(self, operation: Operation, backend: Backend, hosts: Sequence[Sequence[str]]) -> tuple[Ceiling, Ceiling | None]:
        from collbench.runner.gpu_ceilings import ceiling_inside, ceiling_of_gpus, nodes_of

        nodes = nodes_of(self.machines, backend.gpus, ranks_by_host(backend, self.world))
        if isinstance(nodes, Ceiling):
            return nodes, None
        crossing = [each for each in hosts if len(set(each)) > 1]
        if operation.pair and not crossing:  # ranks dealt out to the hosts in turn may have their partners on their own
            return ceiling_inside(operation, nodes)
        if operation.pair and len(crossing) < len(hosts):
            return nothing("some pairs cross hosts and some do not"), None
        pairs = _sharing(operation, hosts) if operation.pair else 1
        return ceiling_of_gpus(operation, nodes, self.request.oversubscription, pairs)

    def _nodes(self, backend: Backend) -> tuple[Node, ...]:
        """The hosts as a backend on host memory uses them: what leaves one goes over its RDMA devices, or over TCP."""
        from collbench.peak.link import unknown
        from collbench.peak.network import tcp_link
        from collbench.peak.nics import egress_of
        from collbench.peak.node import Node
        from collbench.peak.pcie import PcieTree

        inside = unknown("memory that the ranks of a host share")
        ranks = [len(self.world.on_host(host)) for host in self.world.hosts]
        if _in_memory(backend) and self.machines and all(_has_rdma(machine) for machine in self.machines):
            links = [egress_of(machine, PcieTree(machine)).link for machine in self.machines]
            links = [replace(link, source=f"{link.source}; taken for granted: {backend.name} uses these NICs") for link in links]
        else:
            links = [tcp_link(interface) for interface in self.interfaces]
        return tuple(Node(count, inside, link, host=host) for count, link, host in zip(ranks, links, self.world.hosts, strict=True))

    def topology(self) -> dict[str, Any]:
        """What is known of the machines, for topology.json."""
        from collbench.topology.snapshot import topology_json

        members = [asdict(member) for member in self.world.members]
        interfaces = [asdict(interface) for interface in self.interfaces]
        return {**topology_json(self.machines), "members": members, "interfaces": interfaces}


def _everyones_interfaces(world: World) -> list[Interface]:
    """The interface of every rank that carries its address to the others, one per host."""
    mine = asdict(read_interface(interface_with(world.me.address)))
    found = world.agree(mine, "reading the interfaces")
    by_host = {member.host: found[member.rank] for member in reversed(world.members)}
    return [Interface(**by_host[host]) for host in world.hosts]


def _sharing(operation: Operation, hosts: Sequence[Sequence[str]]) -> int:
    """How many pairs, given by their hosts, share one direction of the busiest host's NICs."""
    senders, receivers = Counter(pair[0] for pair in hosts), Counter(pair[-1] for pair in hosts)
    if operation.both_ways:
        return max((senders + receivers).values())
    most = max(*senders.values(), *receivers.values())
    return max(1, most // 2) if operation.paces_itself else most  # ping-pongs may take turns: one sends while the other answers


def _has_rdma(machine: Machine) -> bool:
    return any(nic.rdma and nic.virtual is None and any(port.rate_bits_per_s for port in nic.ports) for nic in machine.nics)


def _on_loopback(backend: Backend) -> bool:
    return backend.local_path == "loopback"


def _in_memory(backend: Backend) -> bool:
    return backend.local_path == "memory"


def _names(backends: Sequence[Backend], wanted: Any) -> set[str]:
    return {backend.name for backend in backends if wanted(backend)}
