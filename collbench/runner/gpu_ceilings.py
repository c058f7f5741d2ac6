"""The ceiling of a cell whose buffers lie on GPUs: from their links, the machines' NICs, and which GPU each rank has."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.errors import UsageError
from collbench.operations.operation import Operation
from collbench.peak.ceiling import Ceiling, nothing
from collbench.peak.collective import OPERATIONS, ceilings
from collbench.peak.job import Job
from collbench.peak.node import Node, node_of
from collbench.topology.model import Machine


def nodes_of(machines: Sequence[Machine], gpus: Sequence[str], hosts: Sequence[Sequence[int]]) -> tuple[Node, ...] | Ceiling:
    """A node per host with the GPUs of its ranks, or no ceiling, and why.

    gpus: PCI addresses by rank; hosts: the ranks of each host, in the machines' order.
    """
    if not gpus or len(machines) != len(hosts):
        return nothing("which GPU each rank has is not known")
    try:
        return tuple(node_of(machine, [gpus[rank] for rank in ranks]) for machine, ranks in zip(machines, hosts, strict=True))
    except UsageError as error:
        return nothing(str(error))


def ceiling_of_gpus(operation: Operation, nodes: tuple[Node, ...], oversubscription: float, pairs: int) -> tuple[Ceiling, Ceiling | None]:
    """(ring reference, hard bound or None) of an operation over these nodes; `pairs` of ranks share a node's NICs in one direction."""
    name = "p2p" if operation.pair else operation.name
    if name not in OPERATIONS:
        return nothing(f"no ceiling is known for {name}"), None
    found = ceilings(name, Job(nodes, oversubscription, pairs=pairs))
    ceiling = found.ring or found.bound or nothing(f"{name} moves nothing")
    return ceiling, found.bound if ceiling.bytes_per_s is not None else None
