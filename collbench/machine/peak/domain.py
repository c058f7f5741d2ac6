"""Multi-node NVLink: nodes in one NVLink fabric count as one node with all of their GPUs (GB200 NVL72: 18 nodes of 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from collbench.errors import UsageError
from collbench.machine.peak.links import Link, narrowest
from collbench.machine.peak.node import Node


def joined(nodes: Sequence[Node], gpus: int) -> tuple[Node, ...]:
    """Return the nodes merged, in order, into domains of `gpus` GPUs each. The last domain may be smaller.

    Raises UsageError if a domain would end inside a node, or the GPUs of a node have no NVLinks.
    """
    each = {node.gpus for node in nodes}
    if len(each) > 1 or gpus % min(each) or gpus < min(each):
        sizes = " or ".join(map(str, sorted(each)))
        raise UsageError(
            f"--nvlink-domain {gpus}: not a multiple of the {sizes} GPUs of a node; give the GPUs of one domain (GB200 NVL72: 72)"
        )
    if not all(node.apart and node.gpus > 1 for node in nodes):
        raise UsageError("--nvlink-domain needs NVLinks between the GPUs of a node: give --nvlink GB/s and --gpus-per-node")
    size = gpus // min(each)
    whole: dict[tuple[int, ...], Node] = {}
    found = []
    for first in range(0, len(nodes), size):
        part = nodes[first : first + size]
        found.append(whole.setdefault(tuple(map(id, part)), _one(part)))
    return tuple(found)


def joined_by_clique(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the nodes with consecutive nodes of the same clique id merged. Nodes without a clique id stay as they are."""
    found: list[Node] = []
    for clique, part in groupby(nodes, key=lambda node: node.clique if node.apart and node.gpus > 1 else None):
        same = list(part)
        found += [_one(same)] if clique is not None else same
    return tuple(found)


def _one(nodes: Sequence[Node]) -> Node:
    """Return a domain as one node: its GPUs reach each other over NVLink, and its traffic to other domains uses the NICs of all its
    nodes.
    """
    if len(nodes) == 1:
        return nodes[0]
    injection = narrowest(node.injection for node in nodes)
    return replace(
        nodes[0],
        gpus=sum(node.gpus for node in nodes),
        injection=injection,
        egress=_together(nodes),
        pcie=narrowest(node.pcie for node in nodes),
        pair=injection,
        neighbours=injection,
        nics=tuple(nic for node in nodes for nic in node.nics),
        own_nic=narrowest(node.own_nic for node in nodes if node.own_nic) if all(node.own_nic for node in nodes) else None,
        nvls=nodes[0].nvls if len({node.nvls for node in nodes}) == 1 else "no",
        cuts=(),
        doubts=tuple(dict.fromkeys(doubt for node in nodes for doubt in node.doubts)),
        machines=sum(node.machines for node in nodes),
    )


def _together(nodes: Sequence[Node]) -> Link:
    """Return the NICs of all nodes as one link; unknown where those of one node are unknown."""
    links = [node.egress for node in nodes]
    silent = next((link for link in links if link.bytes_per_s is None), None)
    if silent is not None:
        return silent
    nccl = [link.nccl_bytes_per_s for link in links]
    return replace(
        links[0].under(nodes=len(links)),
        bytes_per_s=sum(link.known for link in links),
        nccl_bytes_per_s=None if None in nccl else sum(value for value in nccl if value is not None),
    )
