"""Return each case's expected bandwidth and hard limit: given by the user, simulated, measured on the host, or from
link speeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.machine.interfaces import Interface, interface_with, read_interface
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import Ceiling, HostRates, ceiling_from_rate, memory_ceiling, no_ceiling, stream_ceiling
from collbench.measure.open_backends import members_of, ranks_by_host
from collbench.measure.probing import probed
from collbench.measure.references import measure_memory, measure_streams
from collbench.measure.request import Request
from collbench.operations.case import Case
from collbench.operations.groups import Groups, groups_of
from collbench.operations.operation import Operation

if TYPE_CHECKING:  # what follows from links is imported where a case crosses hosts or runs on GPUs
    from collbench.machine.peak.links import Link
    from collbench.machine.peak.node import Node
    from collbench.measure.link_ceilings import CeilingPair, GpuNodes, RunningCase


@dataclass
class Ceilings:
    """The limits of this launch's hosts. All ranks make it together; rank 0 reads it."""

    request: Request
    world: World
    interfaces: list[Interface] = field(default_factory=list)
    machines: list[Machine] = field(default_factory=list)
    status: Callable[[str], None] = lambda text: None
    rates: HostRates = field(default_factory=lambda: HostRates({}, {}))
    _memory: dict[tuple[str, str], HostRates] = field(default_factory=dict)
    _found: dict[tuple[Any, ...], CeilingPair] = field(default_factory=dict)
    _gpu_nodes: dict[str, GpuNodes] = field(default_factory=dict)
    _hosts: dict[str, list[str]] = field(default_factory=dict)

    def prepare(self, backends: Sequence[Backend], cases: Sequence[tuple[Operation, Case]]) -> None:
        """Probe the hosts and measure the references that the cases need. All ranks must call it; only rank 0 gets the machines."""
        self.status("reading the hardware…")
        own = asdict(read_interface(interface_with(self.world.me.address)))
        found = self.world.allgather(own, "reading the interfaces")
        by_host = {member.host: found[member.rank] for member in reversed(self.world.members)}
        self.interfaces = [Interface(**by_host[host]) for host in self.world.hosts]  # of each host the one with the ranks' addresses
        self.machines = probed(self.world) or []
        if self.request.ceiling is not None or self.world.size < 2 or self.world.oversubscribed:
            return
        if any(_on_loopback(backend) for backend in backends):
            self.status("measuring loopback TCP…")
            one, both = measure_streams(self.world)
            self.rates = HostRates({}, {}, one, both)
        inside = [one for backend in backends if _in_memory(backend) for one in cases if self._stays_inside(*one, backend)]
        if inside:
            self.status("measuring memory copy…")
        with_sum = any(operation.reduces for operation, _ in inside)
        for key in dict.fromkeys((case.dtype.name, case.buffers) for _, case in inside):  # each once, at all sizes of its cases
            chosen = {case.size_bytes: case for _, case in inside if (case.dtype.name, case.buffers) == key}
            with self.world.watchdog.phase("measuring the memory"):
                self._memory[key] = measure_memory(self.world, list(chosen.values()), with_sum, self.request.budget.max_time_s / 20)

    def _stays_inside(self, operation: Operation, case: Case, backend: Backend) -> bool:
        """Return whether a case of this backend moves data, but none between hosts."""
        if case.backend != backend.name or operation.is_barrier:
            return False
        return not any(self._crosses(backend, group) for group in groups_of(operation, case, backend.ranks))

    def of(self, operation: Operation, case: Case, backend: Backend, groups: Sequence[Sequence[int]]) -> CeilingPair:
        """Return (expected bandwidth, hard limit or None) of a case that runs over these groups of ranks: those of the slowest group."""
        if operation.is_barrier:
            return no_ceiling(f"{operation.name} moves nothing"), None
        if self.request.ceiling is not None:
            return ceiling_from_rate(self.request.ceiling), None
        if operation.aggregate:
            ceiling, bound = self.of(replace(operation, aggregate=False), case, backend, groups)
            return _of_all(ceiling, len(groups)), bound and _of_all(bound, len(groups))
        if backend.own_ceiling:
            return backend.own_ceiling, None
        if case.device == "cpu" and not any(self._crosses(backend, group) for group in groups):
            return self._inside(operation, case, backend, max(map(len, groups), default=1)), None
        known = (backend.name, case.device, operation.name, case.root, case.traffic, case.size_bytes if operation.uneven else 0)
        key = (*known, tuple(map(tuple, groups)))
        if key not in self._found:
            self._found[key] = self._of_links(operation, case, backend, key[-1])
        return self._found[key]

    def _inside(self, operation: Operation, case: Case, backend: Backend, n: int) -> Ceiling:
        """Return the rate measured inside the hosts for groups of n ranks, with all ranks active at the same time."""
        if self.world.oversubscribed:
            return no_ceiling("more ranks than cores")
        if (case.streams or 1) > 1:
            return no_ceiling("the reference is one loopback TCP stream, not several")
        if _on_loopback(backend):
            return stream_ceiling(operation.bidirectional if operation.pair else not operation.rooted, self.rates)
        if _in_memory(backend):
            rates = self._memory.get((case.dtype.name, case.buffers), self.rates)
            return memory_ceiling(operation.cpu_model, case.size_bytes, rates, n)
        return no_ceiling(f"{backend.name} does not report its path inside a host")

    def _of_links(self, operation: Operation, case: Case, backend: Backend, groups: Groups) -> CeilingPair:
        """Return (expected bandwidth, hard limit) from the machines' links.

        Of several groups those that cross hosts count, and on GPUs the others as well.
        """
        from collbench.measure.link_ceilings import RunningCase

        crossing = tuple(group for group in groups if self._crosses(backend, group))
        host_of = self._host_of(backend)
        hosts = [[host_of[rank] for rank in group] for group in crossing]
        sharing = _sharing(operation, hosts) if operation.pair and crossing else 1
        running = RunningCase(operation, case, groups, host_of, {}, self.request.oversubscription)
        if case.device == "cuda":
            return self._of_gpus(running, backend, sharing, len(crossing))
        return self._between_hosts(replace(running, groups=crossing), backend, sharing)

    def _of_gpus(self, running: RunningCase, backend: Backend, sharing: int, crossing: int) -> CeilingPair:
        from collbench.measure.link_ceilings import GpuNodes, ceiling_of_gpu_pairs, ceiling_of_gpus

        if backend.name not in self._gpu_nodes:
            hosts = ranks_by_host(backend, self.world)
            self._gpu_nodes[backend.name] = GpuNodes(self.machines, backend.gpus, self.world.hosts, hosts)
        nodes = self._gpu_nodes[backend.name]
        if running.operation.pair:
            return ceiling_of_gpu_pairs(nodes, running.oversubscription, sharing, crossing > 0, crossing < len(running.groups))
        return ceiling_of_gpus(nodes, running)

    def _between_hosts(self, running: RunningCase, backend: Backend, sharing: int) -> CeilingPair:
        from collbench.machine.peak.collective import ceilings
        from collbench.machine.peak.links import unknown
        from collbench.machine.peak.node import Job, Node
        from collbench.measure.link_ceilings import ceiling_of

        inside, links = unknown("shared memory of the host"), self.leaving(backend)

        def node(host: str, ranks: tuple[int, ...], group: tuple[int, ...] = ()) -> Node:
            return Node(len(ranks), inside, links[host], neighbours=inside, host=host)

        if running.operation.pair:
            whole = tuple(node(host, tuple(ranks)) for host, ranks in zip(links, ranks_by_host(backend, self.world), strict=True))
            bound = ceilings("p2p", Job(whole, running.oversubscription, pairs=sharing)).bound
            ceiling = bound or no_ceiling("no pair crosses hosts")
        else:
            leaving = {host: Job((node(host, ()),), running.oversubscription).egress(node(host, ())) for host in links}
            ceiling, bound = ceiling_of(replace(running, leaving=leaving), node)
        if ceiling.bytes_per_s is None or bound is None or bound.bytes_per_s is None:
            return ceiling, None
        return replace(ceiling, kind="network"), replace(bound, kind="network")

    def leaving(self, backend: Backend) -> dict[str, Link]:
        """Return, by host, the link that a backend on host memory sends over: its RDMA devices, or TCP."""
        from collbench.machine.peak.links import PcieTree, egress_of, tcp_link

        rdma = [[nic for nic in machine.nics if nic.rdma and nic.virtual is None] for machine in self.machines]
        if _in_memory(backend) and rdma and all(any(port.rate_bits_per_s for nic in nics for port in nic.ports) for nics in rdma):
            links = [egress_of(machine, PcieTree(machine)).link for machine in self.machines]
            links = [
                replace(link.without_constants(), source=f"{link.source}; assumes that {backend.name} uses these NICs") for link in links
            ]
        else:
            links = [tcp_link(interface) for interface in self.interfaces]
        return dict(zip(self.world.hosts, links, strict=True))

    def _crosses(self, backend: Backend, group: Sequence[int]) -> bool:
        """Return whether a group's ranks are on several hosts."""
        return len(self.world.hosts) > 1 and len({self._host_of(backend)[rank] for rank in group}) > 1

    def _host_of(self, backend: Backend) -> list[str]:
        """Return the host of each of a backend's ranks."""
        if backend.name not in self._hosts:
            self._hosts[backend.name] = [member.host for member in members_of(backend, self.world)]
        return self._hosts[backend.name]

    def topology(self) -> dict[str, Any]:
        """Return the machines, their links and the references, JSON-ready, for topology.json."""
        from collbench.machine.snapshot import topology_json

        members = [asdict(member) for member in self.world.members]
        interfaces = [asdict(interface) for interface in self.interfaces]
        return {**topology_json(self.machines), "members": members, "interfaces": interfaces}


def _of_all(ceiling: Ceiling, pairs: int) -> Ceiling:
    """Return the rate of all pairs together from that of the slowest pair: the row's time ends with the last pair."""
    if ceiling.bytes_per_s is None:
        return ceiling
    low, high = ceiling.low_bytes_per_s, ceiling.high_bytes_per_s
    return replace(
        ceiling, bytes_per_s=ceiling.bytes_per_s * pairs, low_bytes_per_s=low and low * pairs, high_bytes_per_s=high and high * pairs
    )


def _sharing(operation: Operation, hosts: Sequence[Sequence[str]]) -> int:
    """Return how many pairs, given by their hosts, share one direction of the busiest host's NICs."""
    senders, receivers = Counter(pair[0] for pair in hosts), Counter(pair[-1] for pair in hosts)
    if operation.bidirectional:
        return max((senders + receivers).values())
    most = max(*senders.values(), *receivers.values())
    return max(1, most // 2) if operation.self_synchronizing else most  # ping-pongs can alternate: one sends while the other replies


def _on_loopback(backend: Backend) -> bool:
    return backend.local_path == "loopback"


def _in_memory(backend: Backend) -> bool:
    return backend.local_path == "memory"
