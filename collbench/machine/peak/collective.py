"""The ceilings of a collective on a job: the ring reference, the hard limit that no algorithm passes, and what NCCL's constants allow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isinf

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling, given, nothing
from collbench.machine.peak.cut import BUS_FACTOR, Least, Side, least_time
from collbench.machine.peak.job import Job
from collbench.machine.peak.link import NCCL, Link
from collbench.machine.peak.node import Node

KIND = "topology"
_RINGS = ("allreduce", "allgather", "reducescatter", "hypercube", "broadcast", "reduce")
_CUT = (*_RINGS, "alltoall", "gather", "scatter")
# What moves the same bytes over the same links: one-sided messages of a pair; half a size to each of a ring's two neighbours.
_LIKE = {"put": "p2p", "get": "p2p", "accumulate": "p2p", "neighbor-allgather": "sendrecv", "neighbor-alltoall": "sendrecv"}
OPERATIONS = (*_RINGS, "alltoall", "alltoallv", "barrier", "gather", "scatter", "sendrecv", "p2p", *_LIKE)


@dataclass(frozen=True)
class Ceilings:
    """Of the busbw, in bytes per second. None: the operation has none of this kind; a `Ceiling` without a rate says why there is none.

    ring          what a ring on the slowest link reaches
    bound         what no algorithm can pass
    achievable    the ring (else the bound) with the own constants of NCCL, or of RCCL, for the links
    library       the library of `achievable`
    """

    ring: Ceiling | None
    bound: Ceiling | None
    achievable: Ceiling | None
    library: str = NCCL


def ceilings(operation: str, cluster: Job) -> Ceilings:
    """All three for an operation of OPERATIONS. Raises UsageError for another one."""
    if operation not in OPERATIONS:
        raise UsageError(f"no ceiling is known for '{operation}': write one of {', '.join(OPERATIONS)}")
    alone = operation == "neighbor-allgather" and cluster.ranks == 2  # both neighbours are one rank, which needs the same bytes once
    operation = like(operation)
    if cluster.given is not None:
        return Ceilings(given(cluster.given / 1e9), None, None)
    if operation == "barrier":
        return Ceilings(None, None, None)
    why = _why_none(cluster)
    if why:
        return Ceilings(nothing(why) if operation in _RINGS else None, replace(nothing(why), model="bound"), None)
    bound = _bound(operation, cluster)
    if bound.bytes_per_s is None:
        return Ceilings(replace(bound, model="ring") if operation in _RINGS else None, bound, None)
    if alone:
        return Ceilings(None, replace(bound, bytes_per_s=2 * bound.bytes_per_s), None)
    ring = _ring(cluster) if operation in _RINGS else None
    return Ceilings(ring, _no_less(bound, ring), _achievable(operation, cluster), _library(cluster))


def like(operation: str) -> str:
    """The operation whose ceilings are this one's, too; mostly itself."""
    return _LIKE.get(operation, operation)


def doubtful_input(operation: str, cluster: Job) -> str:
    """Which input to look at first when a rate is above the hard limit: what is not counted from hardware comes first."""
    bound = ceilings(operation, cluster).bound
    links = [link for node, _ in cluster.kinds for link in (node.egress, node.injection, node.pcie)]
    limiting = [link for link in links if bound and bound.limited_by.startswith(link.name)]
    if bound and ", fabric " in bound.limited_by:
        return f"a fabric of {cluster.oversubscription:g}:1 is what --oversubscription gave"
    for link in limiting:
        if link.source.startswith("--"):
            return f"{link.name} is what {link.source} gave"
    if operation == "allreduce" and not cluster.several and not any(node.nvls for node, _ in cluster.kinds):
        return "switches that add (NVLink SHARP) are not counted; say --nvls if NCCL uses them"
    if operation == "allreduce" and cluster.several and not cluster.sharp and any(link.name.startswith("NIC") for link in limiting):
        return f"{limiting[0].name} is from {limiting[0].source}, and switches that add are not counted; say --sharp if they are used"
    doubts = [doubt for node, _ in cluster.kinds for doubt in node.doubts]
    return next(iter([*doubts, *(f"{link.name} is from {link.source}" for link in limiting)]), "the number of ranks, or the rate measured")


def _why_none(job: Job) -> str | None:
    if job.ranks < 2:
        return "one rank moves nothing"
    if job.several:
        silent = next((node for node, _ in job.kinds if node.egress.bytes_per_s is None), None)
        return f"the rate between nodes is unknown: {_at(silent.host)}{silent.egress.name}" if silent else None
    node = job.nodes[0]
    return f"{_at(node.host)}{node.injection.name}" if node.injection.bytes_per_s is None else None


def _no_less(bound: Ceiling, ring: Ceiling | None) -> Ceiling:
    """The bound without the rounding that would put it a hair below the ring."""
    if ring and ring.bytes_per_s and bound.bytes_per_s and bound.bytes_per_s < ring.bytes_per_s:
        return replace(bound, bytes_per_s=ring.bytes_per_s)
    return bound


def _at(host: str | None) -> str:
    return f"{host}: " if host else ""


def _ring(job: Job) -> Ceiling:
    """The slowest link that a ring has to cross."""
    sides = [Side(1, node.injection.known, node.injection.name) for node, _ in job.kinds]
    sides += [side for partition, _ in job.partitions for side in partition]
    slowest = min(sides, key=lambda side: side.bytes_per_s)
    return _ceiling(job, slowest.bytes_per_s, slowest.name, "ring")


def _bound(operation: str, job: Job) -> Ceiling:
    if operation in ("sendrecv", "p2p"):
        link = _flow(operation, job)
        if link.bytes_per_s is None:
            return replace(nothing(link.name), model="bound")
        return _ceiling(job, link.known, link.name, "bound")
    if operation == "alltoallv" and job.traffic is not None:
        from collbench.machine.peak.traffic import uneven

        rate, side = uneven(job)
        return (
            _ceiling(job, rate, side.name, "bound")
            if side
            else replace(nothing("no byte crosses a link whose rate is known"), model="bound")
        )
    adds = job.sharp or any(node.nvls for node, _ in job.kinds)
    least = _of_singles(operation, job)
    for partition, between_nodes in job.partitions:
        one = least_time(operation, partition, job.sharp if between_nodes else adds)
        least = max(least, one, key=lambda found: found.seconds_per_byte)
    rate = BUS_FACTOR[operation](job.ranks) / least.seconds_per_byte if least.seconds_per_byte else inf
    return _ceiling(job, rate, least.side.name if least.side else "", "bound")


def _of_singles(operation: str, job: Job) -> Least:
    """Every GPU for itself: over its links to the node's others, and over the NICs where these have a way of their own."""
    plain = least_time(operation, job.singles)
    if operation != "allreduce" or not any(node.nvls for node, _ in job.kinds):
        return plain
    each = [_with_nvls(job, node, side) for node, _ in job.kinds for side in node.singles]
    return min(plain, max(each, key=lambda least: least.seconds_per_byte), key=lambda least: least.seconds_per_byte)


def _with_nvls(job: Job, node: Node, side: Side) -> Least:
    """A GPU whose switch adds sends S, and the sum of its part for the multicast: S(1 + 1/g); one without sends S. NICs carry theirs."""
    nics = job.egress(node).known / node.gpus if job.several and node.apart else 0.0
    inside = side.bytes_per_s * node.gpus / (node.gpus + 1) if node.nvls else side.bytes_per_s
    return Least(1 / (inside + nics), replace(side, name=f"{side.name} with NVLink SHARP") if node.nvls else side)


def _flow(operation: str, job: Job) -> Link:
    """Messages between ranks, sent directly: inside a node the pair's way; between nodes the NICs, shared, and the GPU's own PCIe link.

    Pairs alone leave a fabric idle enough to carry them at the NICs' rate, however thin it is for all nodes at once.
    """
    if not job.several:
        return job.nodes[0].pair if operation == "p2p" else job.nodes[0].neighbours
    pairs = operation == "p2p"
    sharing = job.pairs if pairs else job.ring_edges
    words = f" shared by {sharing} {'pairs' if pairs else 'edges of the ring'}" if sharing > 1 else ""
    leaving = [node.egress if pairs else job.egress(node) for node, _ in job.kinds]
    links = [link.shared(sharing, f"{link.name}{words}") for link in leaving]
    links += [node.pcie for node, _ in job.kinds]
    if not pairs:
        links += [node.neighbours for node, _ in job.kinds if node.gpus > 1]
    return min(links, key=lambda link: link.known)


def _achievable(operation: str, job: Job) -> Ceiling | None:
    """With NCCL's constants, where it has one for every link that is known."""
    links = [link for node, _ in job.kinds for link in (node.injection, *((node.egress,) if job.several else ()))]
    if any(link.bytes_per_s is not None and link.nccl_bytes_per_s is None for link in links):
        return None
    theirs = job.as_nccl_takes_it()
    found = _ring(theirs) if operation in _RINGS else _bound(operation, theirs)
    return replace(found, source=f"{_library(job)}'s constants for these links") if found.bytes_per_s else None


def _library(job: Job) -> str:
    """Return the library that the links between GPUs are for: RCCL on AMD's."""
    return next((node.injection.library for node, _ in job.kinds if node.injection.library != NCCL), NCCL)


def _ceiling(job: Job, rate: float, name: str, model: str) -> Ceiling:
    if isinf(rate) or not name:
        return replace(nothing("nothing is known of the links"), model=model)
    return Ceiling(KIND, rate, f"{name}{job.host_of(name)}", model, _source(job, name))


def _source(job: Job, name: str) -> str:
    links = (link for node, _ in job.kinds for link in (node.injection, node.egress, node.pcie, node.pair))
    return next((link.source for link in links if name.startswith(link.name)), job.nodes[0].injection.source)
