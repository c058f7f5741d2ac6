"""The ceiling of a cell whose buffers lie on GPUs: from their links, the machines' NICs, and which GPU each rank has."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.errors import UsageError
from collbench.operations.operation import Operation
from collbench.peak.ceiling import Ceiling, nothing
from collbench.peak.collective import OPERATIONS, ceilings
from collbench.peak.job import Job
from collbench.peak.link import Link, unknown
from collbench.peak.node import Node, node_of
from collbench.topology.model import Machine


def nodes_of(machines: Sequence[Machine], gpus: Sequence[str], hosts: Sequence[Sequence[int]]) -> tuple[Node, ...] | Ceiling:
    """A node per host with the GPUs of its ranks, or no ceiling, and why.

    gpus: PCI addresses by rank; hosts: the ranks of each host, in the machines' order.
    """
    if not gpus or len(machines) != len(hosts):
        return nothing("which GPU each rank has is not known")
    if any(len({gpus[rank] for rank in ranks}) < len(ranks) for ranks in hosts):
        return nothing("several ranks share a GPU: no link lies between them")
    try:
        return tuple(node_of(machine, [gpus[rank] for rank in ranks]) for machine, ranks in zip(machines, hosts, strict=True))
    except UsageError as error:
        return nothing(str(error))


def link_between(machine: Machine, a: str, b: str) -> Link:
    """What lies between the GPUs at two PCI addresses, in one direction: NVLink, or PCIe; unknown where no source tells of both."""
    try:
        return node_of(machine, [a, b]).pair
    except UsageError:
        return unknown(f"no source tells of both GPUs, {a} and {b}")


def ceiling_of_gpus(operation: Operation, nodes: tuple[Node, ...], oversubscription: float, pairs: int) -> tuple[Ceiling, Ceiling | None]:
    """(ring reference, hard bound or None) of an operation over these nodes; `pairs` of ranks share a node's NICs in one direction."""
    name = "p2p" if operation.pair else operation.name
    if name not in OPERATIONS:
        return nothing(f"no ceiling is known for {name}"), None
    found = ceilings(name, Job(nodes, oversubscription, pairs=pairs))
    ceiling = found.ring or found.bound or nothing(f"{name} moves nothing")
    return ceiling, found.bound if ceiling.bytes_per_s is not None else None


def ceiling_inside(operation: Operation, nodes: tuple[Node, ...]) -> tuple[Ceiling, Ceiling | None]:
    """That of pairs which all stay inside their nodes: the slowest node's, as the row's time is the slowest pair's."""
    found = [ceiling_of_gpus(operation, (node,), 1.0, 1) for node in nodes]
    return min(found, key=lambda each: each[0].bytes_per_s or 0.0)
