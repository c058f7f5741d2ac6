"""Bytes that an exchange sends out of and into each rank or host, to compare with counters.

The bytes are exact if the library's algorithm is known, or if messages go directly from source to target. For a broadcast
or a reduction they are the minimum of any algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.operations.dtypes import dtype_named
from collbench.operations.traffic import elements
from collbench.plugins.training.workloads.step import Exchange

RING, DIRECT, WHOLE = "ring", "direct", "allreduce"
# Algorithms of libraries that differ from the default, as measured in tests/launchers/test_bytes_across_hosts.py; for `moved_in_step`.
GLOO = {"reducescatter": WHOLE}
_Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class CrossingBytes:
    """Payload bytes by place (a rank, or a host's number). exact: no algorithm for the operation could move more or fewer."""

    sent: dict[int, float]
    received: dict[int, float]
    exact: bool

    def __add__(self, other: CrossingBytes) -> CrossingBytes:
        """Return the sum of two exchanges that run one after the other."""
        return CrossingBytes(_sum(self.sent, other.sent), _sum(self.received, other.received), self.exact and other.exact)


def moved(exchange: Exchange, places: Sequence[int] | None = None, algorithm: str | None = None) -> CrossingBytes:
    """Return the bytes that an exchange moves between places, all its `times` together.

    places     by rank the number of its host; None: every rank is its own place
    algorithm  None: the first one that the operation has, the ring if possible
               "ring": each rank sends to the next one of the group, the last one to the first
               "direct": each part goes directly to its target
               "allreduce": a reduce-scatter run as an all-reduce, of which each rank keeps its part

    Raises UsageError for an operation or an algorithm with an unknown number of bytes.
    """
    at = {rank: rank if places is None else places[rank] for group in exchange.groups for rank in group}
    everywhere = sorted(set(at.values()) if places is None else set(places))
    matrices = [_between(exchange, len(group), algorithm) for group in exchange.groups]
    sent, received = dict.fromkeys(everywhere, 0.0), dict.fromkeys(everywhere, 0.0)
    exact = exchange.operation not in _LEAST
    for group, matrix in zip(exchange.groups, matrices, strict=True):
        _count([at[rank] for rank in group], matrix if exact else _copied_once(group, at, exchange), sent, received)
    return CrossingBytes(_times(sent, exchange.times), _times(received, exchange.times), exact)


def moved_in_step(
    exchanges: Sequence[Exchange], places: Sequence[int] | None = None, algorithms: Mapping[str, str] | None = None
) -> CrossingBytes:
    """Return the bytes of all exchanges together. algorithms: by operation; default as in `moved`."""
    return reduce(
        CrossingBytes.__add__, (moved(one, places, (algorithms or {}).get(one.operation)) for one in exchanges), CrossingBytes({}, {}, True)
    )


def _times(one: Mapping[int, float], times: int) -> dict[int, float]:
    return {place: size * times for place, size in one.items()}


def _sum(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    return {place: one.get(place, 0.0) + other.get(place, 0.0) for place in sorted({*one, *other})}


def _count(at: Sequence[int], matrix: _Matrix, sent: dict[int, float], received: dict[int, float]) -> None:
    place = np.array(at)
    crossing = np.where(place[:, None] != place[None, :], matrix, 0.0)
    for way, of_rank in ((sent, crossing.sum(axis=1).tolist()), (received, crossing.sum(axis=0).tolist())):
        for where, size in zip(at, of_rank, strict=True):
            way[where] += size


def _ring(share: Callable[[int], float]) -> Callable[[Exchange, int], _Matrix]:
    """Return a function for the bytes by sending and receiving rank: every rank sends `share(n)` of the size to the next rank."""
    return lambda exchange, n: np.roll(np.eye(n), 1, axis=1) * (share(n) * exchange.size_bytes)


def _straight(exchange: Exchange, n: int) -> _Matrix:
    """Return the bytes by sending and receiving rank: every rank sends one of n parts to every other rank."""
    return (np.ones((n, n)) - np.eye(n)) * (exchange.size_bytes / n)


def _from_root(exchange: Exchange, n: int) -> _Matrix:
    return _rooted(n, exchange.root or 0) * (exchange.size_bytes / n)


def _to_root(exchange: Exchange, n: int) -> _Matrix:
    return _from_root(exchange, n).T


def _rooted(n: int, root: int) -> _Matrix:
    found = np.zeros((n, n))
    found[root] = 1
    found[root, root] = 0
    return found


def _uneven(exchange: Exchange, n: int) -> _Matrix:
    width = dtype_named(exchange.dtype).size
    found = elements(exchange.traffic, n, exchange.size_bytes // width).astype(np.float64) * width
    np.fill_diagonal(found, 0)
    return found


def _one_way(exchange: Exchange, n: int) -> _Matrix:
    return np.array([[0.0, 1.0], [0.0, 0.0]]) * exchange.size_bytes


def _both_ways(exchange: Exchange, n: int) -> _Matrix:
    return np.array([[0.0, 1.0], [1.0, 0.0]]) * exchange.size_bytes


def _nothing(exchange: Exchange, n: int) -> _Matrix:
    return np.zeros((n, n))


# By operation and algorithm, [n × n] bytes by sending and receiving rank of a group; the first algorithm is what None means.
_BETWEEN: Mapping[str, Mapping[str, Callable[[Exchange, int], _Matrix]]] = {
    "allreduce": {RING: _ring(lambda n: 2 * (n - 1) / n)},
    "reducescatter": {RING: _ring(lambda n: (n - 1) / n), DIRECT: _straight, WHOLE: _ring(lambda n: 2 * (n - 1) / n)},
    "allgather": {RING: _ring(lambda n: (n - 1) / n), DIRECT: _straight},
    "alltoall": {DIRECT: _straight},
    "alltoallv": {DIRECT: _uneven},
    "gather": {DIRECT: _to_root},
    "scatter": {DIRECT: _from_root},
    "sendrecv": {DIRECT: _ring(lambda n: 1.0)},
    "p2p_bandwidth": {DIRECT: _one_way},
    "p2p_bidirectional": {DIRECT: _both_ways},
    "p2p_latency": {DIRECT: _both_ways},
    "broadcast": {DIRECT: _nothing},
    "reduce": {DIRECT: _nothing},
}
_LEAST = frozenset({"broadcast", "reduce"})


def _between(exchange: Exchange, n: int, algorithm: str | None) -> _Matrix:
    known = _BETWEEN.get(exchange.operation)
    if known is None:
        raise UsageError(f"what {exchange.operation} moves is not known beforehand: choose from {', '.join(_BETWEEN)}")
    chosen = algorithm or next(iter(known))
    if chosen not in known:
        raise UsageError(f"what {exchange.operation} moves by '{chosen[:40]}' is not known: choose {' or '.join(known)}")
    return known[chosen](exchange, n)


def _copied_once(group: Sequence[int], at: Mapping[int, int], exchange: Exchange) -> _Matrix:
    """Return the whole size once between the root's place and each other place, from or to one rank there."""
    found, n, root = np.zeros((len(group), len(group))), len(group), exchange.root or 0
    for place in {at[rank] for rank in group} - {at[group[root]]}:
        one = next(index for index in range(n) if at[group[index]] == place)
        found[(root, one) if exchange.operation == "broadcast" else (one, root)] = exchange.size_bytes
    return found
