"""The ranks of a job on its nodes, and the partitions of them that ceilings are computed over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isinf

from collbench.machine.peak.cut import Side
from collbench.machine.peak.inside import Partition
from collbench.machine.peak.link import Link
from collbench.machine.peak.node import Node


@dataclass(frozen=True)
class Job:
    """Nodes with their ranks, and what is assumed of the fabric between them.

    nodes               one per node; rank 0 and the root are on the first. Equal nodes may be the same object
    oversubscription    the fabric carries a node's rate divided by this; 1: non-blocking
    sharp               the fabric's switches add (InfiniBand SHARP)
    ring_edges          edges of the sendrecv ring that leave the busiest node
    pairs               point-to-point pairs at once that send over the busiest node's NICs in the same direction
    given               a ceiling that the user gave, bytes per second
    traffic             alltoallv: bytes from rank (row) to rank (column), ranks in the nodes' order; None: even
    """

    nodes: tuple[Node, ...]
    oversubscription: float = 1.0
    sharp: bool = False
    ring_edges: int = 1
    pairs: int = 1
    given: float | None = None
    traffic: Sequence[Sequence[float]] | None = None

    @cached_property
    def ranks(self) -> int:
        """N."""
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def machines(self) -> int:
        """The number of machines: several of them may be one node here, joined by NVLink."""
        return sum(node.machines for node in self.nodes)

    @property
    def several(self) -> bool:
        """More than one node, where nodes that NVLink joins are one."""
        return len(self.nodes) > 1

    @cached_property
    def kinds(self) -> tuple[tuple[Node, int], ...]:
        """Nodes that are the same object together, with their number; the root's first."""
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(id(node), []).append(node)
        return tuple((same[0], len(same)) for same in found.values())

    def egress(self, node: Node) -> Link:
        """What a node can send into the fabric."""
        by = self.oversubscription
        return node.egress if by == 1 else node.egress.shared(by, f"{node.egress.name}, fabric {by:g}:1")

    @cached_property
    def singles(self) -> Partition:
        """Every GPU for itself."""
        return tuple(_times(self._with_nics(node, side), times) for node, times in self.kinds for side in node.singles)

    def of_gpus(self, node: Node) -> Partition:
        """Every GPU of one node, in the order of its ranks."""
        return tuple(replace(self._with_nics(node, side), times=1) for side in node.singles for _ in range(side.times))

    @cached_property
    def partitions(self) -> tuple[tuple[Partition, bool], ...]:
        """The nodes if there are several (True), then the cuts inside them (False; single GPUs are `singles`)."""
        return tuple(self._partitions())

    def _partitions(self) -> Iterator[tuple[Partition, bool]]:
        if self.several:
            yield tuple(Side(node.gpus, self.egress(node).known, self.egress(node).name, times) for node, times in self.kinds), True
        for level in range(1, max(len(node.cuts) for node, _ in self.kinds)):
            yield tuple(_times(side, times) for node, times in self.kinds for side in self._cut(node, level)), False

    def _cut(self, node: Node, level: int) -> Partition:
        return tuple(self._with_nics(node, side) for side in (node.cuts[level] if level < len(node.cuts) else node.singles))

    def _with_nics(self, node: Node, side: Side) -> Side:
        """Some GPUs of a node of several: where NICs have a way of their own, bytes leave by these as well as by the links inside."""
        if not (self.several and node.apart) or isinf(side.bytes_per_s):
            return side
        nics = self.egress(node)
        alone, shared = side.bytes_per_s + nics.known, side.bytes_per_s + nics.known * side.ranks / node.gpus
        return Side(side.ranks, alone, f"{side.name} and {nics.name}", side.times, shared)

    def as_nccl_takes_it(self) -> Job:
        """The same job with NCCL's constants."""
        changed = {id(node): node.as_nccl_takes_it() for node, _ in self.kinds}
        return replace(self, nodes=tuple(changed[id(node)] for node in self.nodes))

    def host_of(self, name: str) -> str:
        """ " of node7" when the nodes differ and one with a link of this name is known, else nothing."""
        if len({(node.injection.name, self.egress(node).name) for node, _ in self.kinds}) == 1:
            return ""
        named = (node.host for node, _ in self.kinds if node.host and name in _names(self, node))
        host = next(named, None)
        return f" of {host}" if host else ""


def _names(job: Job, node: Node) -> set[str]:
    inside = {node.injection.name, *(side.name for cut in node.cuts for side in cut)}
    nics = job.egress(node).name
    return {nics, node.pcie.name, *inside, *(f"{name} and {nics}" for name in inside)}


def _times(side: Side, times: int) -> Side:
    return side if times == 1 else replace(side, times=side.times * times)
