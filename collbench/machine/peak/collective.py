"""Reference rates of a collective on a job: the expected rate by the library's constants, and the hard limit by the wires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isinf
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.peak.algorithms import (
    ALL_REDUCE,
    Algorithm,
    Throughput,
    check_hypercube,
    hypercube,
    hypercube_bound,
    message,
    nodes_of_ranks,
    pairs_by_node,
    ring,
    slowest_pair,
)
from collbench.machine.peak.ceiling import Ceiling, ceiling_from_rate, no_ceiling
from collbench.machine.peak.limits import GpuLinkLimit, limited_by
from collbench.machine.peak.links import NCCL, Link
from collbench.machine.peak.node import BUS_FACTOR, Job, LeastTime, Node, Side, least_time

if TYPE_CHECKING:
    from collbench.machine.peak.time_model import ExpectedTime

# The ranks of a job on its nodes, and the partitions of ranks from which the rates are computed.


KIND = "topology"
_EVEN = 0.01  # parts that differ by less are equal parts, rounded to elements
_ROUNDING = 1e-9
_SECONDS = attrgetter("seconds_per_byte")  # of a LeastTime
_RINGS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "scan")
MESSAGES = ("p2p", "sendrecv", "neighbors", "multipair")
# Operations that move the same bytes over the same links: one-sided messages of a pair; half a size to each of two ring neighbors.
_LIKE = {"put": "p2p", "get": "p2p", "accumulate": "p2p", "neighbor-allgather": "neighbors", "neighbor-alltoall": "neighbors"}
_LIKE["init"] = "barrier"  # groups are made: no data moves
_LIKE["exscan"] = "scan"  # both need rank 0's data at all other ranks
# Operations with a part of its own size for each rank, and the operation that they are with equal parts.
BY_RANK = {"allgatherv": "allgather", "gatherv": "gather", "scatterv": "scatter", "reducescatterv": "reducescatter"}
_OTHERS = ("hypercube", "alltoall", "alltoallv", "barrier", "gather", "scatter", "sendrecv", "p2p", "multipair")
OPERATIONS = (*_RINGS, *_OTHERS, *BY_RANK, *_LIKE)


class CollectiveCeilings(msgspec.Struct, frozen=True):
    """The reference rates of an operation's busbw, in bytes per second.

    None: the operation has none of this kind. A `Ceiling` without a rate has the reason.

    expected    what a healthy system approaches: the rate of the fastest algorithm (`model`), with `efficiency`, the share of the wires
                that it reaches, by the `constants` of NCCL or RCCL; or the rate that the user gave
    bound       the hard limit of the wires, which no algorithm can exceed
    ring        what a ring reaches, by the same constants; the same as `expected` where a ring is the fastest algorithm
    sizes       the expected time of each size that was requested, by NCCL's constants (time_model.py)
    """

    expected: Ceiling | None
    bound: Ceiling | None
    ring: Ceiling | None = None
    sizes: tuple[ExpectedTime, ...] = ()


def ceilings(operation: str, job: Job) -> CollectiveCeilings:
    """Return the reference rates for an operation of OPERATIONS.

    Raises UsageError for any other operation, and for a hypercube of a number of ranks that is not a power of two.
    """
    if operation not in OPERATIONS:
        raise UsageError(f"no ceiling is known for '{operation}': write one of {', '.join(OPERATIONS)}")
    one_neighbor = operation == "neighbor-allgather" and job.ranks == 2  # both neighbors are the same rank: it needs the bytes once
    operation = like(operation)
    if job.traffic is None:
        operation = BY_RANK.get(operation, operation)
    if job.ceiling_from_user is not None:
        return CollectiveCeilings(ceiling_from_rate(job.ceiling_from_user / 1e9), None)
    if operation == "barrier":
        return CollectiveCeilings(None, None)
    why_unknown = _why_unknown(job)
    if operation == "hypercube" and not why_unknown:
        check_hypercube(job)
    bound = no_ceiling(why_unknown) if why_unknown else _bound(operation, job)
    has_ring = _has_ring(operation, job)
    if bound.bytes_per_s is None:
        bound = replace(bound, model="bound")
        return CollectiveCeilings(replace(bound, model="ring") if has_ring else bound, bound)
    expected = _expected(operation, job)
    if one_neighbor:
        bound = replace(bound, bytes_per_s=2 * (bound.bytes_per_s or 0.0))
        expected = replace(expected, bytes_per_s=2 * (expected.bytes_per_s or 0.0))
    if not has_ring and expected.efficiency is None and expected.bytes_per_s == bound.bytes_per_s:
        return CollectiveCeilings(bound, bound)
    # rounding could put the bound slightly below the expected rate
    bound = replace(bound, bytes_per_s=max(bound.bytes_per_s or 0.0, expected.bytes_per_s or 0.0))
    return CollectiveCeilings(expected, bound, _ring(job) if has_ring else None)


def _has_ring(operation: str, job: Job) -> bool:
    """Return whether a ring is a reference for the operation: not where the parts of the ranks differ by more than rounding."""
    if operation in _RINGS:
        return True
    if BY_RANK.get(operation) not in _RINGS or job.traffic is None:
        return False
    parts = job.traffic[0]
    return max(parts) <= (1 + _EVEN) * min(parts)


def like(operation: str) -> str:
    """Return the operation with the same reference rates; mostly the operation itself."""
    return _LIKE.get(operation, operation)


def _why_unknown(job: Job) -> str | None:
    if job.ranks < 2:
        return "one rank moves nothing"
    for node, _ in job.kinds:
        link = node.egress if job.several else node.injection
        if link.bytes_per_s is None:
            host = f"{node.host}: " if node.host else ""
            return f"the rate between nodes is unknown: {host}{link.name}" if job.several else f"{host}{link.name}"
    return None


def _expected(operation: str, job: Job) -> Ceiling:
    """Return what the fastest algorithm of NCCL or RCCL reaches by the constants of the library.

    For a job of another library, whose links have no constants, it is what a ring reaches on the wires.
    """
    reached = job.as_nccl_takes_it()
    if operation == "allreduce":
        throughputs = {name: algorithm(reached, True) for name, algorithm in ALL_REDUCE.items()}
        usable = [(name, throughput) for name, throughput in throughputs.items() if throughput]
        name, fastest = max(usable, key=lambda pair: pair[1].bytes_per_s)
        return _reached(job, name, fastest, ALL_REDUCE[name](job, False))
    if _has_ring(operation, job):
        return _ring(job)
    if operation == "hypercube":
        return _reached(job, "direct", hypercube(reached, True), hypercube(job, False))
    if operation in MESSAGES:
        link, count = _messages(operation, job, as_expected=True)
        wires, _ = _messages(operation, job, as_expected=False)
        rate = link.rate * count
        rate_of_wires = rate * wires.rate / link.rate if link.part == wires.part else rate
        return _reached(job, "direct", Throughput(rate, (link,)), Throughput(rate_of_wires, (link,)))
    ceiling = replace(_bound(operation, reached), model="direct")
    return _with_efficiency(job, ceiling, _bound(operation, job).bytes_per_s or inf)


def _ring(job: Job) -> Ceiling:
    return _reached(job, "ring", ring(job.as_nccl_takes_it(), True), ring(job, False))


def _reached(job: Job, algorithm: Algorithm, reached: Throughput, wires: Throughput | None) -> Ceiling:
    """Return the rate of an algorithm as the expected one; wires: the same without the library's constants."""
    ceiling = _ceiling(job, reached.bytes_per_s, reached.links, algorithm)
    return ceiling if wires is None or ceiling.bytes_per_s is None else _with_efficiency(job, ceiling, wires.bytes_per_s)


def _with_efficiency(job: Job, ceiling: Ceiling, rate_of_wires: float) -> Ceiling:
    share = (ceiling.bytes_per_s or 0.0) / rate_of_wires
    if not 0 < share < 1 - _ROUNDING:
        return ceiling
    library = next((node.injection.library for node, _ in job.kinds if node.injection.library != NCCL), NCCL)
    return replace(ceiling, efficiency=share, constants=f"{library}'s constants")


def _messages(operation: str, job: Job, as_expected: bool) -> tuple[Link, int]:
    """Return the path of a message of an operation of MESSAGES, and how many messages at once its busbw counts."""
    if operation == "multipair":
        return slowest_pair(job, as_expected), pairs_by_node(job).total
    return message(operation, job, as_expected), 1


def _bound(operation: str, job: Job) -> Ceiling:
    if operation in MESSAGES:
        link, count = _messages(operation, job, as_expected=False)
        if link.bytes_per_s is None:
            return replace(no_ceiling(link.name), model="bound")
        return _ceiling(job, link.rate * count, (link,), "bound")
    if operation in ("alltoallv", *BY_RANK) and job.traffic is not None:
        rate, side = uneven(operation, job)
        if side is None:
            return replace(no_ceiling("no byte crosses a link of known rate"), model="bound")
        return _ceiling(job, rate, side.links, "bound")
    switches_reduce = job.sharp or any(node.reduces for node, _ in job.kinds)
    times = [_of_singles(operation, job)]
    for partition, between_nodes in job.partitions:
        times.append(least_time(operation, partition, job.sharp if between_nodes else switches_reduce))
    longest = max(times, key=_SECONDS)
    rate = BUS_FACTOR[operation](job.ranks) / longest.seconds_per_byte if longest.seconds_per_byte else inf
    links: Sequence[Link] = longest.side.links if longest.side else ()
    if operation == "hypercube":
        rate, links = min(Throughput(rate, links), hypercube_bound(job), key=lambda throughput: throughput.bytes_per_s)
    return _ceiling(job, rate, links, "bound")


def _of_singles(operation: str, job: Job) -> LeastTime:
    """Return the least time with each GPU as its own set: its links within the node, and the NICs where they have a separate path."""
    if operation != "allreduce":
        return least_time(operation, job.singles)
    plain = _with_sharp(job) if job.sharp and job.several else least_time(operation, job.singles)
    if not any(node.reduces for node, _ in job.kinds):
        return plain
    with_nvls = [_with_nvls(job, node, side) for node, _ in job.kinds for side in node.singles]
    return min(plain, max(with_nvls, key=_SECONDS), key=_SECONDS)


def _with_sharp(job: Job) -> LeastTime:
    """Return the least time of the GPUs of the busiest node if only the switches between the nodes reduce data (InfiniBand SHARP).

    Of each element a node sends p partial sums into the fabric, and q of its GPUs receive the sum from there. Inside, g-p values are added
    to others, and g-q GPUs get the sum from others: 2g-p-q moves over the GPUs' links. The NICs carry p out and q in, so that a move over a
    NIC replaces one move of each kind: the NICs count twice.
    """
    if not all(node.apart for node, _ in job.kinds):
        return least_time("allreduce", job.singles, sums_in_the_network=True)
    times = []
    for node, _ in job.kinds:
        inside = sum(side.times * side.bytes_per_s for side in node.singles)
        nics = job.egress(node)
        side = node.singles[0]
        times.append(LeastTime(2 * node.gpus / (inside + 2 * nics.rate), replace(side, links=(*side.links, nics))))
    return max(times, key=_SECONDS)


def _with_nvls(job: Job, node: Node, side: Side) -> LeastTime:
    """Return the least time of a GPU with NVLink SHARP, which sends S(1 + 1/g): S, and its part of the sum for the multicast."""
    nics = job.egress(node).rate / node.gpus if job.several and node.apart else 0.0
    inside = side.bytes_per_s * node.gpus / (node.gpus + 1) if node.reduces else side.bytes_per_s
    links = tuple(link.under(nvls=node.reduces) if isinstance(link.part, GpuLinkLimit) else link for link in side.links)
    return LeastTime(1 / (inside + nics), replace(side, links=links))


def _ceiling(job: Job, rate: float, links: Sequence[Link], model: str) -> Ceiling:
    if isinf(rate) or not links:
        return replace(no_ceiling("nothing is known of the links"), model=model)
    parts = [link.part for link in links if link.part is not None]
    host = job.host_of(parts)
    parts_of_host = tuple(part.of(host=host) for part in parts)
    text = limited_by(parts_of_host) if len(parts) == len(links) else " and ".join(link.name for link in links)
    return Ceiling(KIND, rate, text, model, links[0].source, limited_by_parts=parts_of_host)


# Uneven operations with known parts: the busiest node's bytes through its NICs, the busiest GPU's bytes through its links.


def uneven(operation: str, job: Job) -> tuple[float, Side | None]:
    """Return the bound of the busbw in bytes per second, and the set that limits it; (infinity, None) without a known link.

    The busbw is (n-1)/n of the size per second. The size of alltoallv is what the busiest rank sends or receives, including its own
    part; of the other operations all parts together. Raises UsageError for traffic that does not fit the operation and the ranks.
    """
    size, crossing = _crossing(operation, job)
    ranks = np.arange(job.ranks)
    of_single_ranks = np.array([crossing(ranks == rank) for rank in ranks])
    node_of = nodes_of_ranks(job)
    needs = []
    for index, node in enumerate(job.nodes):
        on_node = node_of == index
        if job.several:
            nics = job.egress(node)
            needs.append((max(crossing(on_node)) / nics.rate, Side(node.gpus, nics.rate, (nics,))))
        sides = job.of_gpus(node)
        sent, received = of_single_ranks[on_node].T
        needs += [(max(out, into) / side.bytes_per_s, side) for side, out, into in zip(sides, sent, received, strict=True)]
        needs.append((max(sent.sum(), received.sum()) / sum(side.all_at_once for side in sides), sides[0]))
    time, side = max(needs, key=lambda need: need[0])
    return (float((job.ranks - 1) / job.ranks * size / time), side) if time > 0 else (inf, None)


def _crossing(operation: str, job: Job) -> tuple[float, Callable[[np.ndarray], tuple[float, float]]]:
    """Return the size in bytes, and a function from a set of ranks (booleans) to the least bytes out of it and into it.

    An all-gather sends each part into a set once; a reduce-scatter sends the sums for the other ranks out of a set once.
    """
    traffic = np.array(job.traffic, dtype=float)
    rows = job.ranks if operation == "alltoallv" else 1
    if traffic.shape != (rows, job.ranks) or not np.isfinite(traffic).all() or (traffic < 0).any():
        meaning = "by sending and receiving rank" if rows > 1 else "the part of each rank"
        raise UsageError(f"{operation}'s traffic must be {rows} × {job.ranks} numbers of bytes from 0 on, {meaning}")
    parts = traffic[0]
    if operation == "allgatherv":
        return float(parts.sum()), lambda chosen: (parts[chosen].sum(), parts[~chosen].sum())
    if operation == "reducescatterv":
        return float(parts.sum()), lambda chosen: (parts[~chosen].sum(), parts[chosen].sum())
    if operation != "alltoallv":  # all parts pass between the root, which is the first rank, and the others
        traffic = np.zeros((job.ranks, job.ranks))
        traffic[0] = parts
    size = max(traffic.sum(axis=0).max(), traffic.sum(axis=1).max())
    return float(size), lambda chosen: (traffic[chosen][:, ~chosen].sum(), traffic[~chosen][:, chosen].sum())
