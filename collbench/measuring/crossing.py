"""The minimum of bytes that must cross between places (hosts, or single ranks): a limit for every algorithm and library.

It follows from the data that an operation must deliver. A part that ranks of a place need, and that no rank there can
compute from local data, must enter at least once. Data that other places need must leave at least once, summed if it is
reduced. This also applies with switches that copy or add. If nothing adds on the way, all places together need more:
sums from a places for b places take a + b - 2 moves (one more if none of the a is among the b), and the all-reduce of m
hosts takes 2(m-1). The sums of a scan overlap: each different sum of other places' ranks must enter a place once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from collbench.measuring import counters
from collbench.measuring.counters import Grown
from collbench.operations.case import Case
from collbench.operations.operation import Block, Operation, Place
from collbench.operations.traffic import Traffic, is_rough
from collbench.reason import Fact
from collbench.results.row import EvidencePart
from collbench.units import format_bytes, plural

Groups = tuple[tuple[int, ...], ...]
_REFERENCE = 1 << 30  # elements per part for which the bytes are computed; other sizes are proportional


class LeastBytes(msgspec.Struct, frozen=True):
    """Bytes that must cross in one iteration at least: out of and into each place, and of all places together in one direction.

    `total` assumes that nothing copies or adds on the way.
    """

    out: Mapping[str, float]
    into: Mapping[str, float]
    total: float


@dataclass(frozen=True)
class _Question:
    """The inputs of the computation, as a cache key.

    At 1,024 ranks the computation takes seconds, and its result is the same for all sizes.

    count   elements per part: those of the case if its uneven parts are so small that rounding matters, else _REFERENCE
    """

    name: str
    count: int
    root: int | None
    seed: int
    groups: Groups
    places: tuple[tuple[int, str], ...]
    traffic: Traffic | None
    operation: Operation = field(compare=False)
    case: Case = field(compare=False)


def least(operation: Operation, case: Case, groups: Groups, place_of: Mapping[int, str]) -> LeastBytes:
    """Return the minimum of bytes of a case with ranks (of `groups`) at these places.

    Blocks of different ranks must be equal or disjoint, or sums of which each contains the one before.
    """
    n = len(groups[0]) if groups else 0
    count = operation.count(case, n) if n else 0
    rounding_matters = count and operation.uneven and is_rough(case.traffic, n, count, operation.by_rank)
    places = tuple(sorted(place_of.items()))
    question = _Question(
        operation.name, count if rounding_matters else _REFERENCE, case.root, case.seed, groups, places, case.traffic, operation, case
    )
    moves = _per_element(question)
    size = count * case.dtype.size * ((case.window or 1) if operation.windowed else 1)
    out = {place: share * size for place, share in moves.out.items()}
    into = {place: share * size for place, share in moves.into.items()}
    return LeastBytes(out, into, moves.total * size)


@lru_cache(maxsize=64)
def _per_element(question: _Question) -> LeastBytes:
    """Return the minimum of moves in elements, for each element of a part."""
    out: dict[str, float] = defaultdict(float)
    into: dict[str, float] = defaultdict(float)
    total = 0.0
    places = dict(question.places)
    for group in question.groups:
        place_of = [places[rank] for rank in group]
        if _overlaps(question, place_of):
            entering, leaving = _sums_between(question, place_of)
            for place, count in entering.items():
                into[place] += count / question.count
            for place, count in leaving.items():
                out[place] += count / question.count
            total += max(sum(entering.values()), sum(leaving.values())) / question.count
            continue
        for count, sources, needing in _parts(question, place_of):
            share = count / question.count
            for place in needing:
                into[place] += share if sources - {place} else 0.0
            for place in sources:
                out[place] += share if needing - {place} else 0.0
            total += share * (len(sources) + len(needing) - 2 + (not sources & needing))
    return LeastBytes(dict(out), dict(into), total)


def _overlaps(question: _Question, place_of: Sequence[str]) -> bool:
    """Return whether ranks get sums of different sets of ranks, as in a scan."""
    if not question.operation.reduces:
        return False
    return len({_hashable(block.sources) for _, block in _blocks(question, place_of)}) > 1


def _hashable(ranks: Sequence[int]) -> range | tuple[int, ...]:
    return ranks if isinstance(ranks, range) else tuple(ranks)


def _sums_between(question: _Question, place_of: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """Return the elements that must enter and leave each place: one of each different sum of other places' ranks, or for them."""
    entering: Counter[str] = Counter()
    leaving: Counter[str] = Counter()
    seen: set[tuple[bool, str, int, frozenset[int]]] = set()
    for needing, block in _blocks(question, place_of):
        sources: dict[str, list[int]] = defaultdict(list)  # at other places
        for rank in block.sources:
            if place_of[rank] != needing:
                sources[place_of[rank]].append(rank)
        sums = [(leaving, place, ranks) for place, ranks in sources.items()]
        if sources:
            sums.append((entering, needing, [rank for ranks in sources.values() for rank in ranks]))
        for counter, place, ranks in sums:
            key = (counter is entering, place, block.at, frozenset(ranks))
            if key not in seen:
                seen.add(key)
                counter[place] += block.count
    return entering, leaving


def _blocks(question: _Question, place_of: Sequence[str]) -> Iterator[tuple[str, Block]]:
    """Yield (place of a rank, a block that it must receive) of one group."""
    n = len(place_of)
    operation = question.operation
    case = replace(question.case, size_bytes=question.count * question.case.dtype.size * operation.parts(n))
    for rank in range(n):
        for block in operation.expected_blocks(Place(rank, n, operation.count(case, n), case)):
            yield place_of[rank], block


def _parts(question: _Question, place_of: Sequence[str]) -> Iterator[tuple[int, frozenset[str], frozenset[str]]]:
    """Yield (elements, places that hold the sources, places that need the result) for the parts of one group."""
    needing: dict[tuple[range | tuple[int, ...], int, int], set[str]] = defaultdict(set)
    for place, block in _blocks(question, place_of):
        needing[_hashable(block.sources), block.at, block.count].add(place)
    holding: dict[Sequence[int], frozenset[str]] = {}
    for (sources, _, count), places in needing.items():
        if sources not in holding:
            holding[sources] = frozenset(place_of[rank] for rank in sources)
        yield count, holding[sources], frozenset(places)


# The hosts' counters for one case: bytes of interfaces, ports and GPUs, compared with the minimum that had to move.
#
# The bytes that the ranks of a case send out of a host have a minimum that applies to every algorithm. If a host's interfaces and ports
# counted far less, the bytes took another path: shared memory between two host names of one machine, or NVLink. Such a row does not
# describe the network, so it gets no percentage of the expected bandwidth.

_FAR_LESS = 0.5  # of the minimum; estimates of headers are wrong by at most a few percent
# bytes that the kernel copied, as a part of the minimum
_MOST_BY_OTHERS = 0.1  # at most: other processes' only
_ALL = 0.9  # at least: all of a case
_WITH_DETOURS = 2.2  # at most: with all steps of a tree or halving
_MOST_HOSTS = 16
_SENT = ("tx_packets", "tx_pkts", "sent_pkts")


class CaseActivity(msgspec.Struct, frozen=True):
    """The work that ran between two readings of the counters.

    iterations   of the operation, including warm-ups and those without samples
    host_of      the host of each rank that takes part
    must         bytes that must leave and reach each host in an iteration; None: derived from operation, case and groups
    """

    operation: Operation
    case: Case
    groups: Groups
    host_of: Mapping[int, str]
    iterations: int
    must: LeastBytes | None = None


class OtherPath(Fact, frozen=True):
    """Bytes that had to cross between hosts are not in the counters of any NIC: they took another path.

    direction     "out" of the host or "in"
    moved_bytes, least_bytes   what the counters show, and what had to cross; packets, iterations: where packets show it
    others        how many more hosts show it
    nvlink        whether NVLink carried the bytes
    """

    backend: str
    host: str
    direction: Literal["out", "in"]
    moved_bytes: int | None = None
    least_bytes: int | None = None
    packets: int | None = None
    iterations: int = 0
    others: int = 0
    nvlink: bool = False

    def render(self) -> str:
        """Return the sentence that users see."""
        moved = f"{self.packets} packets in {self.iterations} iterations"
        if self.moved_bytes is not None and self.least_bytes is not None:
            moved = f"{format_bytes(self.moved_bytes)} of at least {format_bytes(self.least_bytes)}"
        more = f" and {plural(self.others, 'more host')}" if self.others else ""
        path = "NVLink" if self.nvlink else "such as shared memory"
        preposition = "out of" if self.direction == "out" else "into"
        return f"{self.backend} moved {moved} {preposition} {self.host}{more}: the bytes took another path, {path}"


class BytesOneWay(msgspec.Struct, frozen=True):
    """Bytes that left or reached a host: those that its counters show (None if not known), those that must cross, and their ratio."""

    bytes: int | None
    at_least_bytes: int
    ratio: float | None


class BytesInside(msgspec.Struct, frozen=True):
    """Bytes over the loopback of the only host (None if not known), those that must pass between its ranks, and their ratio."""

    loopback_bytes: int | None
    at_least_bytes: int
    ratio: float | None


class MovedByHost(msgspec.Struct, frozen=True, omit_defaults=True, rename={"into": "in"}):
    """What moved on a host.

    interfaces, ports, gpus   by place the counters that grew
    out, into     None if nothing must cross
    packets_out   that left the host; None if they are not known, or if nothing must leave
    idle_ports    sent nothing; gpu_states: by GPU the states at both ends
    unknown       why the bytes are not known; "" if they are
    """

    interfaces: Grown = msgspec.field(default_factory=dict)
    ports: Grown = msgspec.field(default_factory=dict)
    gpus: Grown = msgspec.field(default_factory=dict)
    out: BytesOneWay | None = None
    into: BytesOneWay | None = None
    packets_out: int | None = None
    idle_ports: list[str] = msgspec.field(default_factory=list)
    gpu_states: dict[str, Any] = msgspec.field(default_factory=dict)
    unknown: str = ""

    @property
    def ratio(self) -> float:
        """Return the smallest ratio of the directions; infinity without one, so that the host sorts last."""
        return min((one_way.ratio for one_way in (self.out, self.into) if one_way and one_way.ratio is not None), default=inf)

    @property
    def by_nvlink(self) -> bool:
        """Return whether NVLink carried as many bytes as had to cross."""
        least_bytes = max((one_way.at_least_bytes for one_way in (self.out, self.into) if one_way), default=1)
        return sum(counts.get("nvlink_tx_bytes") or 0 for counts in self.gpus.values()) >= least_bytes


class MovedBytes(EvidencePart, frozen=True, omit_defaults=True):
    """The hosts' counters for one case.

    iterations   in all, warm-ups included
    at_least_bytes   what all hosts together must send where no switch copies or adds
    hosts        of many the 16 with the smallest ratio, and hosts_left_out
    path         what carried the bytes: "network", "loopback", "shared memory", "NVLink"; None if counters do not show it
    inside       of a job on one host; None if it has several
    other_path   the sentence of `other_path_fact`
    copied_directly   whether the kernel copied the bytes from process to process; None: it does not count that
    other_path_fact   where bytes that must have crossed between hosts did not show; such a row has no percentage
    """

    KEY = "moved"
    iterations: int
    at_least_bytes: int
    hosts: dict[str, MovedByHost]
    hosts_left_out: int
    path: str | None
    inside: BytesInside | None
    other_path: str | None
    copied_directly: bool | None
    other_path_fact: OtherPath | None = None


def moved_bytes(ran: CaseActivity, by_host: Mapping[str, dict[str, Any]]) -> MovedBytes:
    """Return what the hosts' counters (of `instruments.moved`) show about a case."""
    bound = ran.must or least(ran.operation, ran.case, ran.groups, ran.host_of)
    hosts = {host: _of_host(host, moved, bound, ran) for host, moved in by_host.items()}
    listed = sorted(hosts, key=lambda host: hosts[host].ratio)[:_MOST_HOSTS]
    other_path = _other_path(ran, hosts)
    return MovedBytes(
        iterations=ran.iterations,
        at_least_bytes=round(bound.total * ran.iterations),
        hosts={host: moved for host, moved in hosts.items() if host in listed},
        hosts_left_out=len(hosts) - len(listed),
        path=_path(ran, by_host, hosts),
        inside=_inside(ran, by_host),
        other_path=other_path.render() if other_path else None,
        copied_directly=_copied_directly(ran, by_host),
        other_path_fact=other_path,
    )


def _of_host(host: str, moved: dict[str, Any], bound: LeastBytes, ran: CaseActivity) -> MovedByHost:
    must_leave = bound.out.get(host, 0.0) * ran.iterations
    must_enter = bound.into.get(host, 0.0) * ran.iterations
    crosses = bool(must_leave or must_enter)
    # ranks that wait for ranks of other hosts must receive at least one packet
    hosts_of_groups = [{ran.host_of[rank] for rank in ranks} for ranks in ran.groups]
    sends = crosses or (ran.operation.is_barrier and any(len(hosts) > 1 and host in hosts for hosts in hosts_of_groups))
    why = _why_unknown(moved) if sends else ""
    interfaces = [moved["interfaces"].get(name, {}).get("tx_packets", 0) for name in moved["leaving"]]
    ports = [next((counts[name] for name in _SENT if name in counts), None) for counts in moved["ports"].values()]
    packets = None if None in (*interfaces, *ports) else sum((*interfaces, *ports))  # None: a port does not count them
    return MovedByHost(
        interfaces=moved["interfaces"],
        ports=moved["ports"],
        gpus=moved["gpus"],
        out=_one_way(moved, "tx", must_leave, is_known=not why) if crosses else None,
        into=_one_way(moved, "rx", must_enter, is_known=not why) if crosses else None,
        packets_out=packets if sends else None,
        idle_ports=moved["idle"],
        gpu_states=moved["states"],
        unknown=why,
    )


def _one_way(moved: dict[str, Any], direction: str, must: float, *, is_known: bool) -> BytesOneWay:
    """Return the bytes of a direction ("tx" or "rx") over a host's interfaces, without TCP headers, and its RDMA ports."""
    total = None
    if is_known:
        parts = [counters.payload(moved["interfaces"].get(name, {}), direction) for name in moved["leaving"]]
        parts += [counters.moved(counts, direction) for counts in moved["ports"].values()]
        total = None if None in parts else sum(part for part in parts if part)
    return BytesOneWay(total, round(must), total / must if total is not None and must else None)


def _why_unknown(moved: dict[str, Any]) -> str:
    """Return why the bytes that left a host are unknown; "" if they are known.

    Ranks of several hosts exchange messages over TCP; some drivers count once a second.
    """
    if moved["came_or_went"]:
        return f"{', '.join(moved['came_or_went'])} appeared or disappeared meanwhile"
    if moved["silent"]:
        return f"{', '.join(moved['silent'])} has no byte counter"
    counted = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
    lost = [
        name for kind in ("interfaces", "ports") for name, counts in moved[kind].items()
        if any(counts.get(counter, 0) is None for counter in counted)
    ]  # fmt: skip
    if lost:
        return f"the counters of {', '.join(lost)} decreased: they wrapped or were reset"
    if not any(moved["interfaces"].get(name, {}).get("tx_packets", 0) for name in moved["leaving"]):
        return "no interface counted the packets that the ranks exchanged meanwhile: its counters are not updated, or not visible here"
    return ""


def _inside(ran: CaseActivity, by_host: Mapping[str, dict[str, Any]]) -> BytesInside | None:
    """Return for a job on one host the loopback bytes, against those that must pass between its ranks. None for several hosts."""
    if len(set(ran.host_of.values())) != 1 or len(by_host) != 1:
        return None
    (moved,) = by_host.values()
    must = _between_ranks(ran)
    if not must:
        return None
    count = counters.payload(moved["interfaces"].get(counters.LOOPBACK, {}), "tx")
    return BytesInside(count, round(must), count / must if count is not None else None)


def _between_ranks(ran: CaseActivity) -> float:
    """Return the bytes that must pass between the ranks, whichever host they are on."""
    return least(ran.operation, ran.case, ran.groups, {rank: f"rank {rank}" for rank in ran.host_of}).total * ran.iterations


def _copied_directly(ran: CaseActivity, by_host: Mapping[str, dict[str, Any]]) -> bool | None:
    """Return whether the kernel copied the bytes; None if it does not count that, or if its count fits neither answer.

    It counts for the whole host: other jobs add to it.
    """
    pinned = [moved.get("pinned_bytes") for moved in by_host.values()]
    if None in pinned:
        return None
    count = sum(bytes_ for bytes_ in pinned if bytes_)
    must = _between_ranks(ran)
    if not must:
        return None
    if count <= _MOST_BY_OTHERS * must:
        return False
    return True if _ALL <= count / must <= _WITH_DETOURS else None


def _path(ran: CaseActivity, by_host: Mapping[str, dict[str, Any]], hosts: Mapping[str, MovedByHost]) -> str | None:
    """Return the path in one word. Unknown for GPUs of one host: bytes may go over PCIe, NVLink or memory."""
    inside = _inside(ran, by_host)
    if inside and inside.ratio is not None and ran.case.device == "cpu":
        (moved,) = by_host.values()
        packets = moved["interfaces"].get(counters.LOOPBACK, {}).get("tx_packets") or 0
        silent = ran.case.mode == "isolated" and packets < _FAR_LESS * ran.iterations
        return "shared memory" if silent or inside.ratio < _FAR_LESS else "loopback"
    sending = [host for host in hosts.values() if host.out]
    if not sending or any(host.unknown for host in sending):
        return None
    if _other_path(ran, hosts) is None:
        return "network"
    return "NVLink" if any(host.by_nvlink for host in sending) else "shared memory"


def _other_path(ran: CaseActivity, hosts: Mapping[str, MovedByHost]) -> OtherPath | None:
    """Return the other path at the host that shows it most clearly; None if no host shows one."""
    shown = [host for host, moved in hosts.items() if moved.ratio < _FAR_LESS or _too_few_packets(moved, ran)]
    if not shown:
        return None
    host = min(shown, key=lambda name: hosts[name].ratio)
    moved = hosts[host]
    other_path = OtherPath(ran.case.backend, host, "out", others=len(shown) - 1, nvlink=moved.by_nvlink)
    for direction, one_way in (("out", moved.out), ("in", moved.into)):
        if one_way and one_way.ratio is not None and one_way.ratio < _FAR_LESS:
            return replace(other_path, direction=direction, moved_bytes=one_way.bytes, least_bytes=one_way.at_least_bytes)
    return replace(other_path, packets=moved.packets_out, iterations=ran.iterations)


def _too_few_packets(moved: MovedByHost, ran: CaseActivity) -> bool:
    """Return whether far fewer packets left a host than iterations ran.

    This covers messages too small to see in the bytes, and barriers, which send nothing else. In a synchronized mode
    each iteration that sends needs at least one packet.
    """
    sends = ran.operation.is_barrier or (moved.out and moved.out.at_least_bytes)
    if not sends or moved.packets_out is None or moved.unknown or ran.case.mode != "isolated":
        return False
    return moved.packets_out < _FAR_LESS * ran.iterations
