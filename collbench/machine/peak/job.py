"""The job that a user describes: machines from files, repeated as often as there are nodes, with hardware that options give.

Multi-node NVLink: nodes in one NVLink fabric count as one node with all of their GPUs (GB200 NVL72: 18 nodes of 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.model import Machine
from collbench.machine.peak.links import PcieTree, egress_of, narrowest, reachable, unknown
from collbench.machine.peak.node import Job, Node, UserOverride, node_from_user, node_of, with_override
from collbench.units import plural

_MOST_NODES = 1_000_000
_MOST_GPUS = 1024


def nodes_of(
    machines: Sequence[Machine],
    override: UserOverride,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    domain: int | None = None,
) -> tuple[Node, ...]:
    """Return the nodes of a job, each with one rank per GPU.

    machines       as read from files: one for all nodes, or one each; none: the nodes have only the hardware of `override`
    override       the hardware that the user gave, in place of what was read
    nodes          their number; None: 1, or as many as there are machines
    gpus_per_node  GPUs that take part on each; None: all, without machines 1
    domain         GPUs that one NVLink fabric joins across nodes; None: by the nodes' clique ids

    Raises UsageError for too many nodes or GPUs, for another number of machines than nodes, and for a machine with fewer GPUs.
    """
    if (nodes or 1) > _MOST_NODES or (gpus_per_node or 1) > _MOST_GPUS:
        raise UsageError(f"at most {_MOST_NODES} --nodes of {_MOST_GPUS} --gpus-per-node: ask for fewer")
    if machines:
        probed = [
            node_of(machine, gpus_per_node, pcie=override.pcie, nics=override.nics, domain_known=domain is not None) for machine in machines
        ]
        separate = repeated([with_override(node, override) for node in probed], nodes)
    else:
        separate = (node_from_user(gpus_per_node or 1, override),) * (nodes or 1)
    return joined(separate, domain) if domain is not None else joined_by_clique(separate)


def check_ranks(operation: str, job: Job) -> None:
    """Raise UsageError for a job of one rank, which moves nothing, and for more pairs of multipair than its ranks make."""
    if job.ranks < 2:
        raise UsageError(f"peak {operation} needs two ranks or more: add --nodes, --gpus-per-node, or --from with their machine")
    if operation == "multipair" and (job.pairs or 1) > job.ranks // 2:
        most = plural(job.ranks // 2, "pair")
        raise UsageError(f"--pairs {job.pairs}: {job.ranks} ranks make at most {most}: use a smaller number, or leave out --pairs")


def repeated(nodes: Sequence[Node], node_count: int | None) -> tuple[Node, ...]:
    """Return one machine's node as often as requested, or one each. Raises UsageError if --from lists another number of machines."""
    if len(nodes) == 1:
        return (nodes[0],) * (node_count or 1)
    if node_count not in (None, len(nodes)):
        raise UsageError(f"--from has {len(nodes)} machines, but --nodes is {node_count}: give one machine for all nodes, or one for each")
    return tuple(nodes)


def job_on(machines: Sequence[Machine], ranks: int, nodes: int | None, device: str) -> Job:
    """Return a job of so many ranks on these machines, one rank per GPU, or on host memory (device "cpu").

    Machines of one NVLink domain, by their clique ids, count as one node.
    Raises UsageError if the number of nodes is unknown, the ranks do not spread evenly over them, or a machine has fewer GPUs.
    """
    if nodes is None:
        raise UsageError("the number of nodes is unknown: add --nodes N")
    if ranks % nodes:
        raise UsageError(f"{ranks} ranks do not spread evenly over {nodes} nodes: which links they share is not known")
    make = _on_host if device == "cpu" else node_of
    return Job(joined_by_clique(repeated([make(machine, ranks // nodes) for machine in machines], nodes)))


def _on_host(machine: Machine, ranks: int) -> Node:
    """Return a node with only the links that leave the host. Its memory is not known from files."""
    inside = unknown("what memory carries between ranks of a host is measured, and in no file")
    tree = PcieTree(machine)
    egress = reachable(egress_of(machine, tree), tree, None)
    return Node(ranks, inside, egress.without_constants(), neighbours=inside, host=machine.hostname)


# Multi-node NVLink domains.


def joined(nodes: Sequence[Node], gpus: int) -> tuple[Node, ...]:
    """Return the nodes merged, in order, into domains of `gpus` GPUs each. The last domain may be smaller.

    Raises UsageError if a domain would end inside a node, or the GPUs of a node have no NVLinks.
    """
    counts = {node.gpus for node in nodes}
    gpus_per_node = min(counts)
    if len(counts) > 1 or gpus % gpus_per_node or gpus < gpus_per_node:
        sizes = " or ".join(map(str, sorted(counts)))
        raise UsageError(
            f"--nvlink-domain {gpus}: not a multiple of the {sizes} GPUs of a node; give the GPUs of one domain (GB200 NVL72: 72)"
        )
    if not all(node.apart and node.gpus > 1 for node in nodes):
        raise UsageError("--nvlink-domain needs NVLinks between the GPUs of a node: give --nvlink GB/s and --gpus-per-node")
    size = gpus // gpus_per_node
    by_identities: dict[tuple[int, ...], Node] = {}  # equal domains are the same object
    domains = []
    for first in range(0, len(nodes), size):
        members = nodes[first : first + size]
        domains.append(by_identities.setdefault(tuple(map(id, members)), _as_one_node(members)))
    return tuple(domains)


def joined_by_clique(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes with consecutive nodes of the same clique id merged. Nodes without a clique id stay as they are."""
    joined_nodes: list[Node] = []
    for clique, group in groupby(nodes, key=lambda node: node.clique if node.apart and node.gpus > 1 else None):
        if clique is None:
            joined_nodes += group
        else:
            joined_nodes.append(_as_one_node(list(group)))
    return tuple(joined_nodes)


def _as_one_node(nodes: Sequence[Node]) -> Node:
    """Return a domain as one node: its GPUs reach each other over NVLink, and it sends to other domains over the NICs of all its nodes."""
    if len(nodes) == 1:
        return nodes[0]
    injection = narrowest(node.injection for node in nodes)
    links = [node.egress for node in nodes]
    nccl_rates = [link.nccl_bytes_per_s for link in links if link.nccl_bytes_per_s is not None]
    egress = replace(
        links[0].under(nodes=len(links)),
        bytes_per_s=sum(link.rate for link in links),
        nccl_bytes_per_s=sum(nccl_rates) if len(nccl_rates) == len(links) else None,
    )
    own_nics = [node.own_nic for node in nodes if node.own_nic]
    return replace(
        nodes[0],
        gpus=sum(node.gpus for node in nodes),
        injection=injection,
        egress=next((link for link in links if link.bytes_per_s is None), egress),  # unknown where those of one node are
        pcie=narrowest(node.pcie for node in nodes),
        pair=injection,
        neighbours=injection,
        nics=tuple(nic for node in nodes for nic in node.nics),
        own_nic=narrowest(own_nics) if len(own_nics) == len(nodes) else None,
        nvls=nodes[0].nvls if len({node.nvls for node in nodes}) == 1 else "no",
        cuts=(),
        doubts=tuple(dict.fromkeys(doubt for node in nodes for doubt in node.doubts)),
        machines=sum(node.machines for node in nodes),
    )
