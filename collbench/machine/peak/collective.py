"""Reference rates of a collective on a job: the ring reference, the hard limit, and the rate with NCCL's constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isinf
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import TOLERANCE, Ceiling, ceiling_from_rate, no_ceiling, percent_of
from collbench.machine.peak.limits import GpuLinkLimit, LimitedBy, NicLimit
from collbench.machine.peak.links import NCCL, Link
from collbench.machine.peak.node import BUS_FACTOR, Job, LeastTime, Node, Side, least_time
from collbench.machine.peak.published import published
from collbench.reason import Fact, Text
from collbench.units import format_percent, format_rate, plural

# The ranks of a job on its nodes, and the partitions of ranks from which the rates are computed.


KIND = "topology"
_EVEN = 0.01  # parts that differ by less are equal parts, rounded to elements
_RINGS = ("allreduce", "allgather", "reducescatter", "hypercube", "broadcast", "reduce", "scan")
# Operations that move the same bytes over the same links: one-sided messages of a pair; half a size to each of two ring neighbors.
_LIKE = {"put": "p2p", "get": "p2p", "accumulate": "p2p", "neighbor-allgather": "sendrecv", "neighbor-alltoall": "sendrecv"}
_LIKE["init"] = "barrier"  # groups are made: no data moves
_LIKE["exscan"] = "scan"  # both need rank 0's data at all other ranks
# Operations with a part of its own size for each rank, and the operation that they are with equal parts.
_BY_RANK = {"allgatherv": "allgather", "gatherv": "gather", "scatterv": "scatter", "reducescatterv": "reducescatter"}
OPERATIONS = (*_RINGS, "alltoall", "alltoallv", "barrier", "gather", "scatter", "sendrecv", "p2p", "multipair", *_BY_RANK, *_LIKE)


@dataclass(frozen=True)
class CollectiveCeilings:
    """The reference rates of an operation's busbw, in bytes per second.

    None: the operation has none of this kind. A `Ceiling` without a rate has the reason.

    ring          the rate of a ring on the slowest link
    bound         the hard limit, which no algorithm can exceed
    achievable    the ring (else the bound) with the constants of NCCL or RCCL for the links
    library       the library of `achievable`
    """

    ring: Ceiling | None
    bound: Ceiling | None
    achievable: Ceiling | None
    library: str = NCCL


def ceilings(operation: str, cluster: Job) -> CollectiveCeilings:
    """Return the reference rates for an operation of OPERATIONS. Raises UsageError for any other operation."""
    if operation not in OPERATIONS:
        raise UsageError(f"no ceiling is known for '{operation}': write one of {', '.join(OPERATIONS)}")
    alone = operation == "neighbor-allgather" and cluster.ranks == 2  # both neighbors are the same rank, which needs the same bytes once
    operation = like(operation)
    if cluster.traffic is None:
        operation = _BY_RANK.get(operation, operation)
    if cluster.ceiling_from_user is not None:
        return CollectiveCeilings(ceiling_from_rate(cluster.ceiling_from_user / 1e9), None, None)
    if operation == "barrier":
        return CollectiveCeilings(None, None, None)
    why = _why_none(cluster)
    if why:
        return CollectiveCeilings(no_ceiling(why) if _has_ring(operation, cluster) else None, replace(no_ceiling(why), model="bound"), None)
    bound = _bound(operation, cluster)
    if bound.bytes_per_s is None:
        return CollectiveCeilings(replace(bound, model="ring") if _has_ring(operation, cluster) else None, bound, None)
    if alone:
        return CollectiveCeilings(None, replace(bound, bytes_per_s=2 * bound.bytes_per_s), None)
    ring = _ring(cluster) if _has_ring(operation, cluster) else None
    return CollectiveCeilings(ring, _no_less(bound, ring), _achievable(operation, cluster), _library(cluster))


def _has_ring(operation: str, job: Job) -> bool:
    """Return whether a ring is a reference for the operation: not where the parts of the ranks differ by more than rounding."""
    if operation in _RINGS:
        return True
    if _BY_RANK.get(operation) not in _RINGS or job.traffic is None:
        return False
    parts = job.traffic[0]
    return max(parts) <= (1 + _EVEN) * min(parts)


def like(operation: str) -> str:
    """Return the operation with the same reference rates; mostly the operation itself."""
    return _LIKE.get(operation, operation)


class InputGiven(Fact, frozen=True):
    """A value behind the hard limit was set with an option. If a rate exceeds the limit, check this option first."""

    what: str
    option: str

    def render(self) -> str:
        """Return "NIC 4×100 Gb/s was given with --nic"."""
        return f"{self.what} was given with {self.option}"


class InputRead(Fact, frozen=True):
    """A value behind the hard limit was read from a file or tool. If a rate exceeds the limit, check this source first."""

    what: str
    source: str

    def render(self) -> str:
        """Return "NIC 4×100 Gb/s is from SOURCE"."""
        return f"{self.what} is from {self.source}"


class SumsNotCounted(Fact, frozen=True):
    """The hard limit does not include reductions inside switches (NVLink SHARP, InfiniBand SHARP), because no source shows them.

    If the job uses them, a rate can exceed the limit. Add `--nvls` or `--sharp` to include them.
    """

    option: Literal["--nvls", "--sharp"]
    link: str = ""
    source: str = ""

    def render(self) -> str:
        """Return the sentence with the option that counts them."""
        where = f"{self.link} is from {self.source}, and " if self.link else ""
        kind = "NVLink SHARP" if self.option == "--nvls" else "InfiniBand SHARP"
        return f"{where}reductions inside switches ({kind}) are not counted: add {self.option} if they are in use"


def doubtful_input(operation: str, cluster: Job) -> InputGiven | InputRead | SumsNotCounted | Text:
    """Return the input to check first when a rate exceeds the hard limit: first what is not counted from hardware."""
    bound = ceilings(operation, cluster).bound
    parts = bound.limited_by_parts if bound else ()
    links = [link for node, _ in cluster.kinds for link in (node.egress, node.injection, node.pcie)]
    limiting = [link for link in links if parts and link.part is not None and link.part.alone() == parts[0].alone()]
    if any(part.fabric != 1 for part in parts):
        return InputGiven(f"a fabric of {cluster.oversubscription:g}:1", "--oversubscription")
    for link in limiting:
        if link.is_from_user:
            return InputGiven(link.name, link.source)
    if operation == "allreduce" and not cluster.several and not any(node.nvls for node, _ in cluster.kinds):
        return SumsNotCounted("--nvls")
    if operation == "allreduce" and cluster.several and not cluster.sharp and any(isinstance(link.part, NicLimit) for link in limiting):
        return SumsNotCounted("--sharp", limiting[0].name, limiting[0].source)
    doubt = next((doubt for node, _ in cluster.kinds for doubt in node.doubts), None)
    if doubt is not None:
        return Text(doubt)
    return InputRead(limiting[0].name, limiting[0].source) if limiting else Text("the number of ranks, or the measured rate")


def _why_none(job: Job) -> str | None:
    if job.ranks < 2:
        return "one rank moves nothing"
    if job.several:
        silent = next((node for node, _ in job.kinds if node.egress.bytes_per_s is None), None)
        return f"the rate between nodes is unknown: {_at(silent.host)}{silent.egress.name}" if silent else None
    node = job.nodes[0]
    return f"{_at(node.host)}{node.injection.name}" if node.injection.bytes_per_s is None else None


def _no_less(bound: Ceiling, ring: Ceiling | None) -> Ceiling:
    """Return the bound, at least the ring: rounding could put it slightly below."""
    if ring and ring.bytes_per_s and bound.bytes_per_s and bound.bytes_per_s < ring.bytes_per_s:
        return replace(bound, bytes_per_s=ring.bytes_per_s)
    return bound


def _at(host: str | None) -> str:
    return f"{host}: " if host else ""


def _ring(job: Job) -> Ceiling:
    """Return the rate of the slowest link that a ring has to cross."""
    sides = [Side(1, node.injection.known, (node.injection,)) for node, _ in job.kinds]
    sides += [side for partition, _ in job.partitions for side in partition]
    slowest = min(sides, key=lambda side: side.bytes_per_s)
    return _ceiling(job, slowest.bytes_per_s, slowest.links, "ring")


def _bound(operation: str, job: Job) -> Ceiling:
    if operation in ("sendrecv", "p2p"):
        link = _flow(operation, job)
        if link.bytes_per_s is None:
            return replace(no_ceiling(link.name), model="bound")
        return _ceiling(job, link.known, (link,), "bound")
    if operation == "multipair":
        link, pairs = _slowest_pair(job), pairs_by_node(job).total
        if link.bytes_per_s is None:
            return replace(no_ceiling(link.name), model="bound")
        return _ceiling(job, link.known * pairs, (link,), "bound")
    if operation in ("alltoallv", *_BY_RANK) and job.traffic is not None:
        rate, side = uneven(operation, job)
        return (
            _ceiling(job, rate, side.links, "bound") if side else replace(no_ceiling("no byte crosses a link of known rate"), model="bound")
        )
    adds = job.sharp or any(node.nvls for node, _ in job.kinds)
    least = _of_singles(operation, job)
    for partition, between_nodes in job.partitions:
        one = least_time(operation, partition, job.sharp if between_nodes else adds)
        least = max(least, one, key=lambda found: found.seconds_per_byte)
    rate = BUS_FACTOR[operation](job.ranks) / least.seconds_per_byte if least.seconds_per_byte else inf
    return _ceiling(job, rate, least.side.links if least.side else (), "bound")


def _of_singles(operation: str, job: Job) -> LeastTime:
    """Return the least time with each GPU as its own set: its links within the node, and the NICs where they have a separate path."""
    plain = least_time(operation, job.singles)
    if operation != "allreduce" or not any(node.nvls for node, _ in job.kinds):
        return plain
    each = [_with_nvls(job, node, side) for node, _ in job.kinds for side in node.singles]
    return min(plain, max(each, key=lambda least: least.seconds_per_byte), key=lambda least: least.seconds_per_byte)


def _with_nvls(job: Job, node: Node, side: Side) -> LeastTime:
    """Return the least time of a GPU with NVLink SHARP, which sends S(1 + 1/g): S, and its part of the sum for the multicast."""
    nics = job.egress(node).known / node.gpus if job.several and node.apart else 0.0
    inside = side.bytes_per_s * node.gpus / (node.gpus + 1) if node.nvls else side.bytes_per_s
    links = tuple(link.under(nvls=node.nvls) if isinstance(link.part, GpuLinkLimit) else link for link in side.links)
    return LeastTime(1 / (inside + nics), replace(side, links=links))


def _flow(operation: str, job: Job) -> Link:
    """Return the path of messages between two ranks: inside a node the pair's links; between nodes the shared NICs and the GPU's PCIe link.

    A single pair per node leaves even an oversubscribed fabric with enough capacity for the NICs' rate.
    """
    if not job.several:
        return job.nodes[0].pair if operation == "p2p" else job.nodes[0].neighbours
    pairs = operation == "p2p"
    sharing = (job.pairs or 1) if pairs else job.ring_edges
    leaving = [node.egress if pairs else job.egress(node) for node, _ in job.kinds]
    links = [link.divided(sharing, shared_by=sharing, sharing="pairs" if pairs else "edges of the ring") for link in leaving]
    links += [node.pcie for node, _ in job.kinds]
    if not pairs:
        links += [node.neighbours for node, _ in job.kinds if node.gpus > 1]
    return min(links, key=lambda link: link.known)


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
        found: NDArray[np.int64] = np.maximum(np.minimum(ends, first + total) - np.maximum(starts, first), 0)
        return found

    inside = ranks_within(ends - half, 0)
    return PairsByNode(total, ranks_within(ends, 0) - inside, ranks_within(ends, half) - inside, inside)


def _slowest_pair(job: Job) -> Link:
    """Return the path of the slowest pair of multipair, as a pair's part of it. The time of all pairs ends with this pair.

    An oversubscribed fabric is not counted, as in `_flow`: which pairs share its links is not known.
    """
    found = pairs_by_node(job)
    busiest: dict[int, int] = {}
    links = []
    for node, sharing, inside in zip(job.nodes, np.maximum(found.out, found.into).tolist(), found.inside.tolist(), strict=True):
        if inside:
            links.append(node.pair)
        if sharing > busiest.get(id(node), 0):
            busiest[id(node)] = sharing
            links += [node.egress.divided(sharing, shared_by=sharing, sharing="pairs"), node.pcie]
    return min(links, key=lambda link: link.known)


def _achievable(operation: str, job: Job) -> Ceiling | None:
    """Return the rate with NCCL's constants; None if NCCL has no constant for a known link, or not the operation."""
    if operation == "scan":
        return None
    links = [link for node, _ in job.kinds for link in (node.injection, *((node.egress,) if job.several else ()))]
    if any(link.bytes_per_s is not None and link.nccl_bytes_per_s is None for link in links):
        return None
    as_nccl = job.as_nccl_takes_it()
    found = _ring(as_nccl) if _has_ring(operation, job) else _bound(operation, as_nccl)
    return replace(found, source=f"{_library(job)}'s constants for these links") if found.bytes_per_s else None


def _library(job: Job) -> str:
    """Return the library for the links between the GPUs: RCCL on AMD's."""
    return next((node.injection.library for node, _ in job.kinds if node.injection.library != NCCL), NCCL)


def _ceiling(job: Job, rate: float, links: Sequence[Link], model: str) -> Ceiling:
    if isinf(rate) or not links:
        return replace(no_ceiling("nothing is known of the links"), model=model)
    parts = [link.part for link in links if link.part is not None]
    host = job.host_of(parts)
    named = tuple(part.of(host=host) for part in parts)
    text = LimitedBy(named).render() if len(parts) == len(links) else " and ".join(link.name for link in links)
    return Ceiling(KIND, rate, text, model, links[0].source, limited_by_parts=named)


# A rate compared with its references, as text: "42.0 of 50.0 GB/s: 84 % of the ring reference, 65 % of the hard limit (64.6 GB/s)".

Model = Literal["ring", "bound", "doubtful"]
_NAMES = {"ring": "ring reference", "bound": "hard limit"}


def chosen(measured: float | None, found: CollectiveCeilings) -> tuple[Model, Ceiling | None]:
    """Return the first ceiling of an operation, the ring reference where it has one; "doubtful" for a rate above the hard limit."""
    ring, bound = found.ring, found.bound
    if measured is not None and bound is not None and bound.bytes_per_s is not None and measured > bound.bytes_per_s * TOLERANCE:
        return "doubtful", bound
    return ("ring", ring) if ring is not None and (ring.bytes_per_s is not None or bound is None) else ("bound", bound)


def percents(measured: float | None, found: CollectiveCeilings) -> tuple[float | None, float | None]:
    """Return the percentages of the ring reference and of the hard limit; none for a rate above the hard limit."""
    if chosen(measured, found)[0] == "doubtful":
        return None, None
    return percent_of(measured, found.ring), percent_of(measured, found.bound)


def headline(measured: float | None, found: CollectiveCeilings) -> str:
    """Return one line: the rate, and its percentages of the ring reference and of the hard limit, for any rate."""
    model, ceiling = chosen(measured, found)
    if ceiling is None or ceiling.bytes_per_s is None:
        why = ceiling.limited_by if ceiling else "this operation moves no bytes"
        return f"{format_rate(measured)} GB/s, no ceiling: {why}" if measured is not None else f"no ceiling: {why}"
    if model == "doubtful":
        return (
            f"{format_rate(measured or 0.0)} GB/s is above the hard limit of {format_rate(ceiling.bytes_per_s)} GB/s: model inputs doubtful"
        )
    known = _known(found)
    if measured is None:
        return ", ".join(f"{format_rate(each.bytes_per_s or 0.0)} GB/s {name}" for name, each in known)
    (name, first), *rest = known
    shares = [f"{_percent(measured, first)} of the {name}"]
    shares += [f"{_percent(measured, each)} of the {name} ({format_rate(each.bytes_per_s or 0.0)} GB/s)" for name, each in rest]
    return f"{format_rate(measured)} of {format_rate(first.bytes_per_s or 0.0)} GB/s: {', '.join(shares)}"


def lines(operation: str, measured: float | None, found: CollectiveCeilings, job: Job) -> list[str]:
    """Return the headline, what limits, the rate with the library's constants, published results, and doubts and assumptions."""
    model, _ = chosen(measured, found)
    shown = [headline(measured, found)]
    if model == "doubtful":
        shown.append(f"check first: {doubtful_input(operation, job).render()}")
    shown += [f"{name} limited by {each.limited_by} ({each.source})" for name, each in _known(found) if each.kind != "given"]
    if found.achievable and found.achievable.bytes_per_s:
        shown.append(f"{found.library}'s own constants allow {format_rate(found.achievable.bytes_per_s)} GB/s")
    shown += [f"published: {figure.render()}" for figure in published(operation, job)]
    return [*shown, *(f"assumed: {sentence}" for sentence in assumed(operation, job)), *(f"doubt: {sentence}" for sentence in doubts(job))]


def assumed(operation: str, job: Job) -> list[str]:
    """Return what the reference rates assume, one sentence each."""
    operation, nodes = like(operation), [node for node, _ in job.kinds]
    unknown = job.several and any(node.egress.bytes_per_s is None for node in nodes)
    if job.ceiling_from_user is not None or operation == "barrier" or unknown:
        return []
    found = []
    for node in (node for node in nodes if node.machines > 1):
        clique = f" (clique {node.clique})" if node.clique else ""
        found.append(f"one NVLink domain joins {node.machines} nodes of {node.gpus // node.machines} GPUs{clique}")
    found += _of_fabric(operation, job)
    for kind, links in (("links inside the nodes", [node.injection for node in nodes]), ("PCIe links", [node.pcie for node in nodes])):
        why = next((link.name for link in links if link.bytes_per_s is None), None)
        if job.several and why is not None:
            found.append(f"{kind} that are no slower than the NICs: {why}")
    if operation == "alltoallv" and job.traffic is None:
        found.append("the same number of bytes between all ranks")
    if operation == "multipair":
        found += _of_pairs(job)
    if operation in _BY_RANK and job.traffic is None:
        found.append("a part of the same size for each rank")
    if operation == "scan" and job.several:
        found.append("ranks in blocks, so that the sums enter and leave a node once")
    if operation == "sendrecv" and any(node.neighbours.known < node.injection.known for node in nodes):
        found.append("ranks in the order of the GPUs")
    if operation == "sendrecv" and job.several and job.ring_edges == 1:
        found.append("ranks in blocks, so that one edge of the ring leaves a node (else --ring-edges)")
    return found


def _of_fabric(operation: str, job: Job) -> list[str]:
    """Return what the rates assume of the fabric between the nodes."""
    if not job.several:
        return []
    if job.oversubscription == 1:
        return ["a non-blocking fabric between the nodes (else --oversubscription)"]
    if operation == "multipair":
        return ["pairs that do not share the fabric's links, so that --oversubscription does not lower the rate"]
    if operation == "p2p":
        return []
    return [f"every node gets 1/{job.oversubscription:g} of its rate from the fabric, wherever it is (--oversubscription)"]


def _of_pairs(job: Job) -> list[str]:
    """Return what the rate of several pairs assumes."""
    by_node = pairs_by_node(job)
    found = [f"{plural(by_node.total, 'pair')}: rank i and rank i + {job.ranks // 2:,}" + (", ranks in blocks" if job.several else "")]
    if (by_node.out + by_node.into).max() > max(by_node.out.max(), by_node.into.max()):
        found.append("messages one way (both ways at once, pairs share the NICs of some nodes)")
    return found


def doubts(job: Job) -> list[str]:
    """Return what is unreliable in the readings of the nodes, without duplicates."""
    return list(dict.fromkeys(doubt for node, _ in job.kinds for doubt in node.doubts))


def _known(found: CollectiveCeilings) -> list[tuple[str, Ceiling]]:
    """Return the ceilings that have a rate, with their names, the ring reference first."""
    both = [(_NAMES["ring"], found.ring), (_NAMES["bound"], found.bound)]
    return [("given ceiling" if each.kind == "given" else name, each) for name, each in both if each and each.bytes_per_s]


def _percent(measured: float, ceiling: Ceiling) -> str:
    return format_percent(percent_of(measured, ceiling) or 0.0)


# Uneven operations with known parts: the busiest node's bytes through its NICs, the busiest GPU's bytes through its links.


def uneven(operation: str, job: Job) -> tuple[float, Side | None]:
    """Return the bound of the busbw in bytes per second, and the set that limits it; (infinity, None) without a known link.

    The busbw is (n-1)/n of the size per second. The size of alltoallv is what the busiest rank sends or receives, including its own
    part; of the other operations all parts together. Raises UsageError for traffic that does not fit the operation and the ranks.
    """
    size, crossing = _crossing(operation, job)
    ranks = np.arange(job.ranks)
    single = np.array([crossing(ranks == rank) for rank in ranks])
    node_of = np.repeat(np.arange(len(job.nodes)), [node.gpus for node in job.nodes])
    needs = []
    for index, node in enumerate(job.nodes):
        own = node_of == index
        if job.several:
            needs.append((max(crossing(own)) / job.egress(node).known, Side(node.gpus, job.egress(node).known, (job.egress(node),))))
        needs += _of_gpus(job.of_gpus(node), single[own, 0], single[own, 1])
    time, side = max(needs, key=lambda need: need[0])
    return (float((job.ranks - 1) / job.ranks * size / time), side) if time > 0 else (inf, None)


def _of_gpus(sides: Sequence[Side], sent: np.ndarray, received: np.ndarray) -> list[tuple[float, Side]]:
    """Return (seconds, set) of each GPU of a node, and of all of them together. `sides`: in the order of the ranks."""
    busiest = [(max(one, other) / side.bytes_per_s, side) for side, one, other in zip(sides, sent, received, strict=True)]
    return [*busiest, (max(sent.sum(), received.sum()) / sum(side.all_at_once for side in sides), sides[0])]


def _crossing(operation: str, job: Job) -> tuple[float, Callable[[np.ndarray], tuple[float, float]]]:
    """Return the size in bytes, and a function from a set of ranks (booleans) to the least bytes out of it and into it.

    An all-gather sends each part into a set once; a reduce-scatter sends the sums for the other ranks out of a set once.
    """
    found = np.array(job.traffic, dtype=float)
    rows = job.ranks if operation == "alltoallv" else 1
    if found.shape != (rows, job.ranks) or not np.isfinite(found).all() or (found < 0).any():
        which = "by sending and receiving rank" if rows > 1 else "the part of each rank"
        raise UsageError(f"{operation}'s traffic must be {rows} × {job.ranks} numbers of bytes from 0 on, {which}")
    parts = found[0]
    if operation == "allgatherv":
        return float(parts.sum()), lambda own: (parts[own].sum(), parts[~own].sum())
    if operation == "reducescatterv":
        return float(parts.sum()), lambda own: (parts[~own].sum(), parts[own].sum())
    if operation != "alltoallv":  # all parts pass between the root, which is the first rank, and the others
        found = np.zeros((job.ranks, job.ranks))
        found[0] = parts
    size = max(found.sum(axis=0).max(), found.sum(axis=1).max())
    return float(size), lambda own: (found[own][:, ~own].sum(), found[~own][:, own].sum())
