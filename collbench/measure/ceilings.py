"""Chooses each cell's ceiling: given, simulated, measured on this host, or the network between hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.machine.interfaces import Interface, interface_with, read_interface
from collbench.machine.peak.ceiling import Ceiling, given, nothing
from collbench.machine.peak.host import HostRates, memory_ceiling, stream_ceiling
from collbench.measure.launch import members_of, ranks_by_host
from collbench.measure.probing import probed
from collbench.measure.reference import measure_memory, measure_streams
from collbench.measure.request import Request
from collbench.operations.cell import Cell
from collbench.operations.groups import Groups, groups_of
from collbench.operations.operation import Operation

if TYPE_CHECKING:
    from collbench.machine.model import Machine
    from collbench.machine.peak.link import Link
    from collbench.measure.gpu_ceilings import GpuNodes
    from collbench.measure.group_ceilings import Running

Found = tuple[Ceiling, Ceiling | None]


@dataclass
class Ceilings:
    """What this launch knows of its hosts' limits. Made by all ranks together; asked by rank 0."""

    request: Request
    world: World
    interfaces: list[Interface] = field(default_factory=list)
    machines: list[Machine] = field(default_factory=list)
    rates: HostRates = field(default_factory=lambda: HostRates({}, {}))
    _memory: dict[tuple[str, str], HostRates] = field(default_factory=dict)
    _found: dict[tuple[Any, ...], Found] = field(default_factory=dict)
    _gpu_nodes: dict[str, GpuNodes] = field(default_factory=dict)
    _hosts: dict[str, list[str]] = field(default_factory=dict)

    def prepare(self, backends: Sequence[Backend], cells: Sequence[tuple[Operation, Cell]]) -> None:
        """Probes the hosts (the machines are rank 0's alone) and measures the references that the cells will need."""
        self.interfaces = _everyones_interfaces(self.world)
        self.machines = probed(self.world) or []
        if self.request.ceiling is not None or self.world.size < 2 or self._oversubscribed():
            return
        if any(_on_loopback(backend) for backend in backends):
            one, both = measure_streams(self.world)
            self.rates = HostRates({}, {}, one, both)
        inside = [one for backend in backends if _in_memory(backend) for one in cells if self._stays_inside(*one, backend)]
        if inside:
            self._measure_memory(inside)

    def _stays_inside(self, operation: Operation, cell: Cell, backend: Backend) -> bool:
        """Whether a cell of this backend moves something, and nothing between hosts."""
        if cell.backend != backend.name or operation.meets:
            return False
        return not any(self._crosses(backend, group) for group in groups_of(operation, cell, backend.ranks))

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

    def of(self, operation: Operation, cell: Cell, backend: Backend, groups: Sequence[Sequence[int]]) -> Found:
        """(the ceiling, the hard limit or None) of a cell that runs over these groups of ranks: the slowest one's."""
        if operation.meets:
            return nothing(f"{operation.name} moves nothing"), None
        if self.request.ceiling is not None:
            return given(self.request.ceiling), None
        if backend.own_ceiling:
            return backend.own_ceiling, None
        if cell.device == "cpu" and not any(self._crosses(backend, group) for group in groups):
            return self._inside(operation, cell, backend, max(map(len, groups), default=1)), None
        known = (backend.name, cell.device, operation.name, cell.root, cell.traffic, cell.size_bytes if operation.uneven else 0)
        key = (*known, tuple(map(tuple, groups)))
        if key not in self._found:
            self._found[key] = self._of_links(operation, cell, backend, key[-1])
        return self._found[key]

    def _inside(self, operation: Operation, cell: Cell, backend: Backend, n: int) -> Ceiling:
        """What was measured inside the hosts, with all ranks at it as all groups are, for groups of n ranks."""
        if self._oversubscribed():
            return nothing("more ranks than cores")
        if (cell.streams or 1) > 1:
            return nothing("the reference is one loopback TCP stream, not several")
        if _on_loopback(backend):
            return stream_ceiling(operation.both_ways if operation.pair else not operation.rooted, self.rates)
        if _in_memory(backend):
            rates = self._memory.get((cell.dtype.name, cell.buffers), self.rates)
            return memory_ceiling(operation.cpu_model, cell.size_bytes, rates, n)
        return nothing(f"{backend.name} does not say which path it takes inside a host")

    def _of_links(self, operation: Operation, cell: Cell, backend: Backend, groups: Groups) -> Found:
        """From the links that the machines have; of several groups those that cross hosts, and on GPUs the others as well."""
        from collbench.measure.group_ceilings import Running  # here, since most launches are of one host and every rank pays

        crossing = tuple(group for group in groups if self._crosses(backend, group))
        host_of = self._host_of(backend)
        hosts = [[host_of[rank] for rank in group] for group in crossing]
        sharing = _sharing(operation, hosts) if operation.pair and crossing else 1
        running = Running(operation, cell, groups, host_of, {}, self.request.oversubscription)
        if cell.device == "cuda":
            return self._of_gpus(running, backend, sharing, len(crossing))
        return self._between_hosts(replace(running, groups=crossing), backend, sharing)

    def _of_gpus(self, running: Running, backend: Backend, sharing: int, crossing: int) -> Found:
        from collbench.measure.gpu_ceilings import GpuNodes, ceiling_of_gpu_pairs, ceiling_of_gpus

        if backend.name not in self._gpu_nodes:
            hosts = ranks_by_host(backend, self.world)
            self._gpu_nodes[backend.name] = GpuNodes(self.machines, backend.gpus, self.world.hosts, hosts)
        nodes = self._gpu_nodes[backend.name]
        if running.operation.pair:
            return ceiling_of_gpu_pairs(nodes, running.oversubscription, sharing, crossing > 0, crossing < len(running.groups))
        return ceiling_of_gpus(nodes, running)

    def _between_hosts(self, running: Running, backend: Backend, sharing: int) -> Found:
        from collbench.machine.peak.collective import ceilings
        from collbench.machine.peak.job import Job
        from collbench.machine.peak.link import unknown
        from collbench.machine.peak.node import Node
        from collbench.measure.group_ceilings import ceiling_of

        inside, links = unknown("memory that the ranks of a host share"), self._leaving(backend)

        def node(host: str, ranks: tuple[int, ...], group: tuple[int, ...] = ()) -> Node:
            return Node(len(ranks), inside, links[host], neighbours=inside, host=host)

        if running.operation.pair:
            whole = tuple(node(host, tuple(ranks)) for host, ranks in zip(links, ranks_by_host(backend, self.world), strict=True))
            bound = ceilings("p2p", Job(whole, running.oversubscription, pairs=sharing)).bound
            ceiling = bound or nothing("no pair crosses hosts")
        else:
            leaving = {host: Job((node(host, ()),), running.oversubscription).egress(node(host, ())) for host in links}
            ceiling, bound = ceiling_of(replace(running, leaving=leaving), node)
        if ceiling.bytes_per_s is None or bound is None or bound.bytes_per_s is None:
            return ceiling, None
        return replace(ceiling, kind="network"), replace(bound, kind="network")

    def _leaving(self, backend: Backend) -> dict[str, Link]:
        """By host what a backend on host memory sends over: its RDMA devices, or TCP."""
        from collbench.machine.peak.network import tcp_link
        from collbench.machine.peak.nics import egress_of
        from collbench.machine.peak.pcie import PcieTree

        if _in_memory(backend) and self.machines and all(_has_rdma(machine) for machine in self.machines):
            links = [egress_of(machine, PcieTree(machine)).link for machine in self.machines]
            links = [replace(link, source=f"{link.source}; taken for granted: {backend.name} uses these NICs") for link in links]
        else:
            links = [tcp_link(interface) for interface in self.interfaces]
        return dict(zip(self.world.hosts, links, strict=True))

    def _crosses(self, backend: Backend, group: Sequence[int]) -> bool:
        """Whether a group's ranks are on several hosts."""
        return len(self.world.hosts) > 1 and len({self._host_of(backend)[rank] for rank in group}) > 1

    def _host_of(self, backend: Backend) -> list[str]:
        """The host of each of a backend's ranks."""
        if backend.name not in self._hosts:
            self._hosts[backend.name] = [member.host for member in members_of(backend, self.world)]
        return self._hosts[backend.name]

    def topology(self) -> dict[str, Any]:
        """What is known of the machines, for topology.json."""
        from collbench.machine.snapshot import topology_json

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
