"""Return each case's expected bandwidth and hard limit: given by the user, simulated, measured on the host, or from link speeds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from collbench.backends.backend import Backend
from collbench.control.world import World
from collbench.machine.interfaces import Interface, interface_with, read_interface
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import (
    DIRECT_COPY,
    LEAST_BYTES,
    LOOPBACK_TCP,
    SHARED_MEMORY,
    Ceiling,
    HostPart,
    HostPath,
    HostRates,
    HostWork,
    ceiling_from_rate,
    host_ceiling,
    no_ceiling,
    recipes,
)
from collbench.measuring.open_backends import members_of, ranks_by_host
from collbench.measuring.probing import probed
from collbench.measuring.request import Request
from collbench.operations.case import Case
from collbench.operations.groups import Groups, groups_of
from collbench.operations.operation import Operation, Place
from collbench.units import format_size

if TYPE_CHECKING:  # what follows from links is imported where a case crosses hosts or runs on GPUs
    from collbench.machine.peak.links import Link
    from collbench.machine.peak.node import Node
    from collbench.measuring.link_ceilings import CeilingPair, GpuNodes, RunningCase


_SHARE_OF_COMMAND = 0.25  # for the references, of the time that a command has left


class Ceilings(msgspec.Struct):
    """The limits of this launch's hosts. All ranks make it together; rank 0 reads it.

    ends_s  when the last case must have ended, in seconds on CLOCK_MONOTONIC; None: no limit
    """

    request: Request
    world: World
    interfaces: list[Interface] = msgspec.field(default_factory=list)
    machines: list[Machine] = msgspec.field(default_factory=list)
    status: Callable[[str], None] = lambda text: None
    ends_s: float | None = None
    rates: dict[tuple[str, str], HostRates] = msgspec.field(default_factory=dict)  # of the references, by data type and kind of buffers
    _of_cases: dict[tuple[Any, ...], CeilingPair] = msgspec.field(default_factory=dict)
    _gpu_nodes: dict[str, GpuNodes] = msgspec.field(default_factory=dict)
    _hosts: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def prepare(self, backends: Sequence[Backend], cases: Sequence[tuple[Operation, Case]]) -> None:
        """Probe the hosts and measure the references that the cases need. All ranks must call it; only rank 0 gets the machines."""
        self.status("reading the hardware…")
        interface = msgspec.to_builtins(read_interface(interface_with(self.world.me.address)))
        by_rank = self.world.allgather(interface, "reading the interfaces")
        by_host = {member.host: by_rank[member.rank] for member in reversed(self.world.members)}
        self.interfaces = [Interface(**by_host[host]) for host in self.world.hosts]  # of each host the one with the ranks' addresses
        self.machines = probed(self.world) or []
        if self.request.ceiling is not None or self.world.size < 2 or self.world.oversubscribed:
            return
        by_buffers: dict[tuple[str, str], dict[int, tuple[Case, set[HostPart]]]] = {}
        for backend in backends:
            paths: tuple[HostPath, ...] = ()  # that the backend may take inside a host
            if backend.local_path == "memory":
                paths = SHARED_MEMORY, DIRECT_COPY
            elif backend.local_path == "loopback" and len(self.world.hosts) == 1:
                paths = (LOOPBACK_TCP,)
            for operation, case in cases:
                if case.backend != backend.name or operation.is_barrier or case.size_bytes < LEAST_BYTES:
                    continue
                groups = groups_of(operation, case, backend.ranks)
                if any(self._crosses(backend, group) for group in groups):
                    continue
                by_size = by_buffers.setdefault((case.dtype.name, case.buffers), {})
                _, parts = by_size.setdefault(case.size_bytes, (case, set()))
                work = _work_of(operation, case, max(map(len, groups), default=1))
                parts.update(part for path in paths for recipe in recipes(path, work) for part, _ in recipe)
        if not by_buffers:
            return
        from collbench.measuring.references import MOST_TOTAL_S, measure_references

        limit_s = MOST_TOTAL_S
        if self.ends_s is not None:
            limit_s = min(limit_s, _SHARE_OF_COMMAND * max(self.ends_s - time.monotonic(), 0.0))
        share_s = self.request.budget.max_time_s / 20
        for key, by_size in by_buffers.items():
            wanted = [(case, frozenset(parts)) for case, parts in by_size.values()]
            with self.world.watchdog.phase("measuring the references"):
                self.rates[key] = measure_references(self.world, wanted, share_s, limit_s / len(by_buffers), self.status)

    def of(
        self, operation: Operation, case: Case, backend: Backend, groups: Sequence[Sequence[int]], directly: bool | None = True
    ) -> CeilingPair:
        """Return (expected bandwidth, hard limit or None) of a case that runs over these groups of ranks: those of the slowest group.

        directly: whether the kernel copied the data of a case inside a host from process to process, if it permits that; None: unknown
        """
        if operation.is_barrier:
            return no_ceiling(f"{operation.name} moves nothing"), None
        if self.request.ceiling is not None:
            return ceiling_from_rate(self.request.ceiling), None
        if operation.aggregate:
            ceiling, bound = self.of(replace(operation, aggregate=False), case, backend, groups, directly)
            return _together(ceiling, len(groups)), bound and _together(bound, len(groups))
        if backend.own_ceiling:
            return backend.own_ceiling, None
        if case.device == "cpu" and not any(self._crosses(backend, group) for group in groups):
            return self._inside(operation, case, backend, max(map(len, groups), default=1), directly), None
        all_groups = tuple(map(tuple, groups))
        size_bytes = case.size_bytes if operation.uneven else 0
        key = (backend.name, case.device, operation.name, case.root, case.traffic, size_bytes, all_groups)
        if key not in self._of_cases:
            self._of_cases[key] = self._of_links(operation, case, backend, all_groups)
        return self._of_cases[key]

    def _inside(self, operation: Operation, case: Case, backend: Backend, n: int, directly: bool | None) -> Ceiling:
        """Return the rate measured inside the hosts for groups of n ranks, with all ranks active at the same time."""
        reason = self._why_no_reference(case, backend)
        if reason:
            return no_ceiling(reason)
        rates = self.rates.get((case.dtype.name, case.buffers), {})
        work = _work_of(operation, case, n)
        if backend.local_path == "loopback":
            return host_ceiling(LOOPBACK_TCP, work, case.size_bytes, rates)
        direct = host_ceiling(DIRECT_COPY, work, case.size_bytes, rates)
        if direct.kind == "measured" and directly is None:
            return no_ceiling("the kernel's counters do not show whether it copied the data from process to process")
        return direct if direct.kind == "measured" and directly else host_ceiling(SHARED_MEMORY, work, case.size_bytes, rates)

    def _why_no_reference(self, case: Case, backend: Backend) -> str | None:
        """Return why nothing was measured that a case inside a host is compared with; None if something was."""
        if self.world.oversubscribed:
            return "more ranks than cores"
        if (case.streams or 1) > 1:
            return "the reference is one loopback TCP stream, not several"
        if not backend.local_path:
            return f"{backend.name} does not report its path inside a host"
        if case.size_bytes < LEAST_BYTES:
            return f"messages below {format_size(LEAST_BYTES)} fit into caches"
        return None

    def _of_links(self, operation: Operation, case: Case, backend: Backend, groups: Groups) -> CeilingPair:
        """Return (expected bandwidth, hard limit) from the machines' links.

        Of several groups those that cross hosts count, and on GPUs the others as well.
        """
        from collbench.measuring.link_ceilings import GpuNodes, RunningCase, ceiling_of_gpu_pairs, ceiling_of_gpus

        crossing = tuple(group for group in groups if self._crosses(backend, group))
        host_of = self._host_of(backend)
        hosts = [[host_of[rank] for rank in group] for group in crossing]
        sharing = _sharing(operation, hosts) if operation.pair and crossing else 1
        running = RunningCase(operation, case, groups, host_of, {}, self.request.oversubscription)
        if case.device != "cuda":
            return self._between_hosts(replace(running, groups=crossing), backend, sharing)
        if backend.name not in self._gpu_nodes:
            ranks = ranks_by_host(backend, self.world)
            self._gpu_nodes[backend.name] = GpuNodes(self.machines, backend.gpus, self.world.hosts, ranks)
        nodes = self._gpu_nodes[backend.name]
        if operation.pair:
            return ceiling_of_gpu_pairs(nodes, running.oversubscription, sharing, len(crossing) > 0, len(crossing) < len(groups))
        return ceiling_of_gpus(nodes, running)

    def _between_hosts(self, running: RunningCase, backend: Backend, sharing: int) -> CeilingPair:
        from collbench.machine.peak.collective import ceilings
        from collbench.machine.peak.links import unknown
        from collbench.machine.peak.node import Job, Node
        from collbench.measuring.link_ceilings import ceiling_of

        inside = unknown("shared memory of the host")
        links = self.leaving(backend)

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
        from collbench.machine.peak.links import PcieTree, egress_of, has_rdma, tcp_link

        trees = [PcieTree(machine) for machine in self.machines]
        rdma = [[nic for nic in tree.machine.nics if has_rdma(nic, tree) and nic.virtual is None] for tree in trees]
        in_memory = backend.local_path == "memory"
        if in_memory and rdma and all(any(port.rate_bits_per_s for nic in nics for port in nic.ports) for nics in rdma):
            links = [egress_of(tree.machine, tree).link for tree in trees]
            links = [
                replace(link.without_constants(), source=f"{link.source}; assumes that {backend.name} uses these NICs") for link in links
            ]
        else:
            links = [tcp_link(interface) for interface in self.interfaces]
        return dict(zip(self.world.hosts, links, strict=True))

    def _crosses(self, backend: Backend, group: Sequence[int]) -> bool:
        return len(self.world.hosts) > 1 and len({self._host_of(backend)[rank] for rank in group}) > 1

    def _host_of(self, backend: Backend) -> list[str]:
        """Return the host of each of a backend's ranks."""
        if backend.name not in self._hosts:
            self._hosts[backend.name] = [member.host for member in members_of(backend, self.world)]
        return self._hosts[backend.name]

    def topology(self) -> dict[str, Any]:
        """Return the machines, their links and the references, JSON-ready, for topology.json."""
        from collbench.machine.snapshot import topology_json

        hosts: dict[str, Any] = msgspec.to_builtins({"members": self.world.members, "interfaces": self.interfaces})
        return topology_json(self.machines) | hosts


def _together(ceiling: Ceiling, pairs: int) -> Ceiling:
    """Return the rate of all pairs together from that of the slowest pair: the row's time ends with the last pair."""
    if ceiling.bytes_per_s is None:
        return ceiling
    low = ceiling.low_bytes_per_s
    high = ceiling.high_bytes_per_s
    return replace(
        ceiling, bytes_per_s=ceiling.bytes_per_s * pairs, low_bytes_per_s=low and low * pairs, high_bytes_per_s=high and high * pairs
    )


def _sharing(operation: Operation, hosts: Sequence[Sequence[str]]) -> int:
    """Return how many pairs, given by their hosts, share one direction of the busiest host's NICs."""
    senders = Counter(pair[0] for pair in hosts)
    receivers = Counter(pair[-1] for pair in hosts)
    if operation.bidirectional:
        return max((senders + receivers).values())
    most = max(*senders.values(), *receivers.values())
    return max(1, most // 2) if operation.self_synchronizing else most  # ping-pongs can alternate: one sends while the other replies


def _work_of(operation: Operation, case: Case, n: int) -> HostWork:
    """Return what a case does inside a host, in groups of n ranks."""
    place = Place(case.root or 0, n, operation.count(case, n), case)
    copied = 0
    if operation.cpu_model == "copy" and not case.in_place:
        blocks = operation.expected_blocks(place)
        from_itself = [block.count for block in blocks if list(block.sources) == [place.rank]]
        copied = sum(from_itself) if len(from_itself) < len(blocks) else 0  # the root of a scatter copies while the others receive
    one_way = not operation.bidirectional if operation.pair else operation.rooted
    return HostWork(operation.cpu_model, n, operation.bus_factor(n), one_way, copied * case.dtype.size / case.size_bytes)
