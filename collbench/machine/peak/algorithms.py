"""The rate at which an algorithm moves data over a job's links, for the expected bandwidth of an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.machine.peak.links import Link, narrowest
from collbench.machine.peak.node import Job, Node
from collbench.machine.peak.rates import rates

Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "direct"]
_MOST_RANKS = 1 << 20  # of a hypercube on unlike nodes: the bytes of each rank are counted


class Throughput(NamedTuple):
    """A bus bandwidth in bytes per second, and the links that limit it."""

    bytes_per_s: float
    links: Sequence[Link]


_UNLIMITED = Throughput(inf, ())


def _slowest(limits: Sequence[Throughput]) -> Throughput:
    return min(limits, key=lambda limit: limit.bytes_per_s)


# Each function has the links' rates from the job (`Job.as_nccl_takes_it` for NCCL's), and applies NCCL's shares for the algorithm itself
# only with `constants`. It returns None if the algorithm cannot run on the job. n ranks are on m nodes of g GPUs each.


def ring(job: Job, constants: bool) -> Throughput:
    """Return the rate of the slowest link that a ring has to cross.

    Where it leaves each node once, it has g-1 edges inside each node instead of g, so that the GPUs' links carry g/(g-1) as much.
    """
    limits = []
    for node, _ in job.kinds:
        has_edge_less = job.several and node.apart and node.gpus > 1
        limits.append(Throughput(node.injection.rate * (node.gpus / (node.gpus - 1) if has_edge_less else 1.0), (node.injection,)))
    limits += [Throughput(side.bytes_per_s, side.links) for partition, _ in job.partitions for side in partition]
    return _slowest(limits)


def tree(job: Job, constants: bool) -> Throughput | None:
    """Return the rate of NCCL's double binary tree; on two nodes it moves half of a ring's bytes between them.

    Each of two nodes sends S to the other one; of more nodes, the busiest sends 2 S. Each GPU sends S up and S down a chain in its node.
    The bus bandwidth counts 2(n-1)/n·S. On other than two nodes a ring has the higher rate, but a tree the lower latency.
    """
    nodes = [node for node, _ in job.kinds]
    of_library = all(node.egress.nccl_bytes_per_s is not None for node in nodes) or not job.several
    if not of_library or not all(node.apart or node.gpus == 1 for node in nodes):
        return None
    share = rates().algorithms.tree if constants else 1.0
    passes = share * (job.ranks - 1) / job.ranks
    inside = [Throughput(passes * node.injection.rate, (node.injection,)) for node in nodes if node.gpus > 1]
    between = _between(job, passes * (2 if len(job.nodes) == 2 else 1)) if job.several else []
    return _slowest([*inside, *between])


def nvls(job: Job, constants: bool) -> Throughput | None:
    """Return the rate of NVLink SHARP inside one NVLink domain: NCCL's rate of a GPU's NVLinks, its efficiency, 15/16, and 2(n-1)/n."""
    if job.several or not _reduces(job.nodes[0]):
        return None
    return _of_switches(job, job.nodes[0], constants)


def nvls_tree(job: Job, constants: bool) -> Throughput | None:
    """Return the rate of NVLink SHARP inside each domain and a tree between them, which on two domains moves half of a ring's bytes."""
    nodes = [node for node, _ in job.kinds]
    if not job.several or not all(map(_reduces, nodes)):
        return None
    factor = 2 * (job.ranks - 1) / job.ranks if len(job.nodes) == 2 else 1.0
    return _slowest([*(_of_switches(job, node, constants) for node in nodes), *_between(job, factor)])


def _reduces(node: Node) -> bool:
    return node.uses_nvls and node.nvls_share > 0 and node.gpus > 1 and node.injection.bytes_per_s is not None


def _of_switches(job: Job, node: Node, constants: bool) -> Throughput:
    share = node.nvls_share if constants else 1.0
    return Throughput(node.injection.rate * share * 2 * (job.ranks - 1) / job.ranks, (node.injection.under(nvls=True),))


def _between(job: Job, factor: float) -> list[Throughput]:
    return [Throughput(factor * job.egress(node).rate, (job.egress(node),)) for node, _ in job.kinds]


ALL_REDUCE: Mapping[Algorithm, Callable[[Job, bool], Throughput | None]] = {
    "ring": ring,
    "nvls": nvls,
    "nvls_tree": nvls_tree,
    "tree": tree,
}


def nodes_of_ranks(job: Job) -> NDArray[np.intp]:
    """Return the index of each rank's node, for ranks in blocks."""
    return np.repeat(np.arange(len(job.nodes)), [node.gpus for node in job.nodes])


# A hypercube has fixed steps: in step k all ranks exchange 2^k parts of S/n with the rank at distance 2^k.


def check_hypercube(job: Job) -> None:
    """Raise UsageError unless the number of ranks is a power of two."""
    if job.ranks & (job.ranks - 1):
        raise UsageError(f"hypercube needs 2, 4, 8, 16 … ranks, not {job.ranks:,}: change --nodes or --gpus-per-node")


def hypercube(job: Job, constants: bool) -> Throughput:
    """Return the rate of the steps one after the other, each at its slowest link."""
    leaving, staying = _steps(job)
    nodes = list(enumerate(job.nodes)) if leaving.shape[1] > 1 else [(0, job.nodes[0])]
    time = 0.0
    slowest = _UNLIMITED
    for step in range(len(leaving)):
        times = [(leaving[step, index] / job.egress(node).rate, job.egress(node)) for index, node in nodes if leaving[step, index]]
        times += [(staying[step] / node.neighbours.rate, node.neighbours) for _, node in nodes if staying[step] and node.gpus > 1]
        time_of_step, link = max(times, key=lambda pair: pair[0])
        time += time_of_step
        slowest = _slowest([slowest, Throughput(1 / time_of_step if time_of_step else inf, (link,))])
    return Throughput((job.ranks - 1) / job.ranks / time if time else inf, slowest.links)


def hypercube_bound(job: Job) -> Throughput:
    """Return the limit that the NICs set by the bytes of all steps together."""
    if not job.several:
        return _UNLIMITED
    leaving = _steps(job)[0].sum(axis=0)
    nodes = job.nodes if len(leaving) > 1 else job.nodes[:1]
    share = (job.ranks - 1) / job.ranks
    limits = [Throughput(share * job.egress(node).rate / out, (job.egress(node),)) for node, out in zip(nodes, leaving, strict=True) if out]
    return _slowest(limits) if limits else _UNLIMITED


def _steps(job: Job) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the bytes out of each node in each step, and those of a pair that stays inside one (0 without one), for S = 1.

    One column for all nodes if they are equal and hold a power of two of ranks in blocks.
    """
    steps = job.ranks.bit_length() - 1
    sent = np.ldexp(1.0, np.arange(steps)) / job.ranks
    gpus = job.nodes[0].gpus
    if job.placement is None and len(job.kinds) == 1 and gpus & (gpus - 1) == 0:
        leaves = np.arange(steps) >= gpus.bit_length() - 1
        return np.where(leaves, gpus * sent, 0.0)[:, None], np.where(leaves, 0.0, sent)
    if job.ranks > _MOST_RANKS:
        raise UsageError(f"hypercube on {job.ranks:,} ranks needs nodes with the same number of GPUs, 1, 2, 4, 8 …")
    node_of = np.array(job.placement) if job.placement else nodes_of_ranks(job)
    leaving = np.zeros((steps, len(job.nodes)))
    staying = np.zeros(steps)
    for step in range(steps):
        crosses = node_of != node_of[np.arange(job.ranks) ^ (1 << step)]
        leaving[step] = sent[step] * np.bincount(node_of[crosses], minlength=len(job.nodes))
        staying[step] = 0.0 if crosses.all() else sent[step]
    return leaving, staying


# Messages between two ranks: inside a node over the pair's links; between nodes over the NIC and the PCIe link of their GPUs.


def message(operation: str, job: Job, as_expected: bool) -> Link:
    """Return the path of the messages of p2p and sendrecv, as a flow's part of it.

    as_expected   a flow uses its own GPU's NIC where there are as many NICs as GPUs, and paths inside a node have NCCL's rates. The hard
                  limit counts all NICs, and the wires.
    A single pair per node leaves even an oversubscribed fabric with enough capacity for the NICs' rate.
    """
    if not job.several:
        node = job.nodes[0]
        path = node.pair if operation == "p2p" else node.neighbours
        return path.as_nccl_takes_it() if as_expected else path
    is_p2p = operation == "p2p"
    links = []
    for node, _ in job.kinds:
        if is_p2p:
            links.append(_part_of(node.egress, job.pairs or 1, "pairs"))
        else:
            links.append(_part_of(job.egress(node), job.ring_edges, "edges of the ring"))
        links.append(node.pcie)
        if as_expected and node.own_nic:
            halves = 2 if operation == "neighbors" and node.gpus > 1 else 1  # each of two GPUs sends half a size to another node
            links.append(node.own_nic.divided(1 / halves))
        if not is_p2p and node.gpus > 1:
            links.append(node.neighbours.as_nccl_takes_it() if as_expected else node.neighbours)
    return narrowest(links)


def _part_of(link: Link, parts: int, sharing: str) -> Link:
    return link.divided(parts, shared_by=parts, sharing=sharing)


class PairsByNode(NamedTuple):
    """The pairs of multipair: rank i sends to rank i + n/2. By node: how many pairs send out of it, into it, and stay inside."""

    total: int
    out: NDArray[np.int64]
    into: NDArray[np.int64]
    inside: NDArray[np.int64]


def pairs_by_node(job: Job) -> PairsByNode:
    """Return the first `job.pairs` pairs of a job (None: all), with the ranks in blocks on the nodes."""
    ends = np.cumsum(np.fromiter((node.gpus for node in job.nodes), np.int64, len(job.nodes)))
    starts = np.concatenate([[0], ends[:-1]])
    half = job.ranks // 2
    total = min(job.pairs or half, half)

    def ranks_within(ends: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = np.maximum(np.minimum(ends, first + total) - np.maximum(starts, first), 0)
        return counts

    inside = ranks_within(ends - half, 0)
    return PairsByNode(total, ranks_within(ends, 0) - inside, ranks_within(ends, half) - inside, inside)


def slowest_pair(job: Job, as_expected: bool) -> Link:
    """Return the path of the slowest pair of multipair, as a pair's part of it. The time of all pairs ends with this pair.

    as_expected: as of `message`. An oversubscribed fabric is not counted: which pairs share its links is not known.
    """
    pairs = pairs_by_node(job)
    most_pairs: dict[int, int] = {}  # by the identity of the node
    links = []
    for node, sharing, inside in zip(job.nodes, np.maximum(pairs.out, pairs.into).tolist(), pairs.inside.tolist(), strict=True):
        if inside:
            links.append(node.pair.as_nccl_takes_it() if as_expected else node.pair)
        if sharing > most_pairs.get(id(node), 0):
            most_pairs[id(node)] = sharing
            links += [_part_of(node.egress, sharing, "pairs"), node.pcie]
            if as_expected and node.own_nic:
                links.append(node.own_nic)
    return narrowest(links)
