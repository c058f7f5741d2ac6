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
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from collbench.measuring import counters
from collbench.operations.case import Case
from collbench.operations.operation import Block, Operation, Place
from collbench.operations.traffic import Traffic, is_rough
from collbench.reason import Fact, as_json, decode
from collbench.units import format_bytes, plural

Groups = tuple[tuple[int, ...], ...]
_REFERENCE = 1 << 30  # elements per part for which the bytes are computed; other sizes are proportional


@dataclass(frozen=True)
class LeastBytes:
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
    reckoned = count if count and operation.uneven and is_rough(case.traffic, n, count, operation.by_rank) else _REFERENCE
    places = tuple(sorted(place_of.items()))
    part = _per_element(_Question(operation.name, reckoned, case.root, case.seed, groups, places, case.traffic, operation, case))
    size = count * case.dtype.size * ((case.window or 1) if operation.windowed else 1)
    out, into = ({place: share * size for place, share in shares.items()} for shares in (part.out, part.into))
    return LeastBytes(out, into, part.total * size)


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
            for found, moved in ((into, entering), (out, leaving)):
                for place, count in moved.items():
                    found[place] += count / question.count
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
    sources = (block.sources for _, block in _blocks(question, place_of))
    return len({each if isinstance(each, range) else tuple(each) for each in sources}) > 1


def _sums_between(question: _Question, place_of: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """Return the elements that must enter and leave each place: one of each different sum of other places' ranks, or for them."""
    entering: Counter[str] = Counter()
    leaving: Counter[str] = Counter()
    seen: set[tuple[bool, str, int, frozenset[int]]] = set()
    for at, wanted in _blocks(question, place_of):
        inside: dict[str, list[int]] = defaultdict(list)
        for source in wanted.sources:
            inside[place_of[source]].append(source)
        others = [rank for place, ranks in inside.items() if place != at for rank in ranks]
        sums = [(entering, at, others), *((leaving, place, ranks) for place, ranks in inside.items() if place != at)]
        for counter, place, ranks in sums:
            key = (counter is entering, place, wanted.at, frozenset(ranks))
            if ranks and key not in seen:
                seen.add(key)
                counter[place] += wanted.count
    return entering, leaving


def _blocks(question: _Question, place_of: Sequence[str]) -> Iterator[tuple[str, Block]]:
    """Yield (place of a rank, a block that it must receive) of one group."""
    n, operation = len(place_of), question.operation
    case = replace(question.case, size_bytes=question.count * question.case.dtype.size * operation.parts(n))
    for rank in range(n):
        for block in operation.expected_blocks(Place(rank, n, operation.count(case, n), case)):
            yield place_of[rank], block


def _parts(question: _Question, place_of: Sequence[str]) -> Iterator[tuple[int, frozenset[str], frozenset[str]]]:
    """Yield (elements, places that hold the sources, places that need the result) for the parts of one group."""
    needing: dict[tuple[range | tuple[int, ...], int, int], set[str]] = defaultdict(set)
    for place, block in _blocks(question, place_of):
        sources = block.sources if isinstance(block.sources, range) else tuple(block.sources)
        needing[sources, block.at, block.count].add(place)
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
# Bytes that the kernel copied, as a part of the minimum: other processes' only; all of a case; with all steps of a tree or halving.
_OF_OTHERS, _ALL, _WITH_DETOURS = 0.1, 0.9, 2.2
_MOST_HOSTS = 16
_WAYS = (("out", "tx"), ("in", "rx"))
_SENT = ("tx_packets", "tx_pkts", "sent_pkts")


@dataclass(frozen=True)
class CaseActivity:
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


def evidence(ran: CaseActivity, by_host: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return for the row the hosts' counters (of `counters.moved`), JSON-ready.

    iterations   in all, warm-ups included
    hosts        by host what moved, and per direction {"bytes", "at_least_bytes", "ratio"}; bytes None if they are not known,
                 with the reason in "unknown"; "idle_ports" sent nothing. Of many the 16 with the smallest ratio, and hosts_left_out
    at_least_bytes   what all hosts together must send where no switch copies or adds
    path         what carried the bytes: "network", "loopback", "shared memory", "NVLink"; None if counters do not show it
    copied_directly   whether the kernel copied the bytes from process to process; None: it does not count that
    other_path   a sentence, where bytes that must have crossed between hosts did not show; else None. other_path_fact: its fields
    """
    bound = ran.must or least(ran.operation, ran.case, ran.groups, ran.host_of)
    hosts = {host: _of_host(host, moved, bound, ran) for host, moved in by_host.items()}
    first = sorted(hosts, key=lambda host: _ratio(hosts[host]))[:_MOST_HOSTS]
    other = _other_path(ran, hosts)
    return {
        "iterations": ran.iterations, "at_least_bytes": round(bound.total * ran.iterations),
        "hosts": {host: known for host, known in hosts.items() if host in first}, "hosts_left_out": len(hosts) - len(first),
        "path": _path(ran, by_host, hosts), "inside": _inside(ran, by_host), "other_path": other.render() if other else None,
        "copied_directly": _copied_directly(ran, by_host),
        **({"other_path_fact": as_json(other)} if other else {}),
    }  # fmt: skip


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
        bytes_known = self.moved_bytes is not None and self.least_bytes is not None
        of_bytes = f"{format_bytes(self.moved_bytes or 0)} of at least {format_bytes(self.least_bytes or 0)}"
        what = of_bytes if bytes_known else f"{self.packets} packets in {self.iterations} iterations"
        more = f" and {plural(self.others, 'more host')}" if self.others else ""
        path = "NVLink" if self.nvlink else "such as shared memory"
        way = "out of" if self.direction == "out" else "into"
        return f"{self.backend} moved {what} {way} {self.host}{more}: the bytes took another path, {path}"


def bypassed(evidence: Mapping[str, Any]) -> OtherPath | None:
    """Return the path that a row's bytes took instead of the network, from the row's evidence; None if they took the network."""
    fact = (evidence.get("moved") or {}).get("other_path_fact")
    return decode(fact, OtherPath) if fact else None


def _of_host(host: str, moved: dict[str, Any], bound: LeastBytes, ran: CaseActivity) -> dict[str, Any]:
    must = {"out": bound.out.get(host, 0.0) * ran.iterations, "in": bound.into.get(host, 0.0) * ran.iterations}
    # ranks that wait for ranks of other hosts must receive at least one packet
    places = [{ran.host_of[rank] for rank in ranks} for ranks in ran.groups]
    sends = any(must.values()) or (ran.operation.is_barrier and any(len(those) > 1 and host in those for those in places))
    why = _unknown(moved) if sends else None
    known: dict[str, Any] = {name: moved[name] for name in ("interfaces", "ports", "gpus") if moved[name]}
    for way, direction in _WAYS if any(must.values()) else ():
        found = None
        if not why:  # over its interfaces, without TCP headers, and its RDMA ports
            parts = [counters.payload(moved["interfaces"].get(name, {}), direction) for name in moved["leaving"]]
            parts += [counters.moved(counts, direction) for counts in moved["ports"].values()]
            found = None if None in parts else sum(part for part in parts if part)
        ratio = found / must[way] if found is not None and must[way] else None
        known[way] = {"bytes": found, "at_least_bytes": round(must[way]), "ratio": ratio}
    interfaces = [moved["interfaces"].get(name, {}).get("tx_packets", 0) for name in moved["leaving"]]
    ports = [next((counts[name] for name in _SENT if name in counts), None) for counts in moved["ports"].values()]
    packets = None if None in (*interfaces, *ports) else sum((*interfaces, *ports))  # None: a port does not count them
    known |= {"packets_out": packets} if sends and packets is not None else {}
    known |= {"idle_ports": moved["idle"]} if moved["idle"] else {}
    known |= {"gpu_states": moved["states"]} if moved["states"] else {}
    return known | ({"unknown": why} if why else {})


def _unknown(moved: dict[str, Any]) -> str | None:
    """Return why the bytes that left a host are unknown, or None.

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
    return None


def _inside(ran: CaseActivity, by_host: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Return for a job on one host the loopback bytes, against those that must pass between its ranks. None for several hosts."""
    if len(set(ran.host_of.values())) != 1 or len(by_host) != 1:
        return None
    (moved,) = by_host.values()
    must = _between_ranks(ran)
    if not must:
        return None
    found = counters.payload(moved["interfaces"].get(counters.LOOPBACK, {}), "tx")
    return {"loopback_bytes": found, "at_least_bytes": round(must), "ratio": found / must if found is not None else None}


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
    count, must = sum(bytes_ for bytes_ in pinned if bytes_), _between_ranks(ran)
    if not must:
        return None
    if count <= _OF_OTHERS * must:
        return False
    return True if _ALL <= count / must <= _WITH_DETOURS else None


def _path(ran: CaseActivity, by_host: Mapping[str, dict[str, Any]], hosts: Mapping[str, dict[str, Any]]) -> str | None:
    """Return the path in one word. Unknown for GPUs of one host: bytes may go over PCIe, NVLink or memory."""
    inside = _inside(ran, by_host)
    if inside and inside["ratio"] is not None and ran.case.device == "cpu":
        (moved,) = by_host.values()
        packets = moved["interfaces"].get(counters.LOOPBACK, {}).get("tx_packets") or 0
        silent = ran.case.mode == "isolated" and packets < _FAR_LESS * ran.iterations
        return "shared memory" if silent or inside["ratio"] < _FAR_LESS else "loopback"
    must = [known for known in hosts.values() if "out" in known]
    if not must or any("unknown" in known for known in must):
        return None
    if _other_path(ran, hosts) is None:
        return "network"
    return "NVLink" if any(map(_by_nvlink, must)) else "shared memory"


def _other_path(ran: CaseActivity, hosts: Mapping[str, dict[str, Any]]) -> OtherPath | None:
    """Return the other path at the host that shows it most clearly; None if no host shows one."""
    shown = [host for host, known in hosts.items() if _ratio(known) < _FAR_LESS or _too_few_packets(known, ran)]
    if not shown:
        return None
    host = min(shown, key=lambda name: _ratio(hosts[name]))
    known, others = hosts[host], len(shown) - 1
    nvlink = _by_nvlink(known)
    if _ratio(known) >= _FAR_LESS:
        packets, iterations = known["packets_out"], ran.iterations
        return OtherPath(ran.case.backend, host, "out", packets=packets, iterations=iterations, others=others, nvlink=nvlink)
    way: Literal["out", "in"] = "out" if _ratio(known, ["out"]) < _FAR_LESS else "in"
    return OtherPath(ran.case.backend, host, way, known[way]["bytes"], known[way]["at_least_bytes"], others=others, nvlink=nvlink)


def _by_nvlink(evidence: Mapping[str, Any]) -> bool:
    least_bytes = max((evidence[way]["at_least_bytes"] for way, _ in _WAYS if way in evidence), default=1)
    return sum(counts.get("nvlink_tx_bytes") or 0 for counts in evidence.get("gpus", {}).values()) >= least_bytes


def _too_few_packets(evidence: Mapping[str, Any], ran: CaseActivity) -> bool:
    """Return whether far fewer packets left a host than iterations ran.

    This covers messages too small to see in the bytes, and barriers, which send nothing else. In a synchronized mode
    each iteration that sends needs at least one packet.
    """
    sends = ran.operation.is_barrier or evidence.get("out", {}).get("at_least_bytes")
    packets = evidence.get("packets_out")
    if not sends or packets is None or "unknown" in evidence or ran.case.mode != "isolated":
        return False
    return bool(packets < _FAR_LESS * ran.iterations)


def _ratio(evidence: Mapping[str, Any], ways: Sequence[str] = ("out", "in")) -> float:
    """Return the smallest ratio of a host's directions; infinity without one, so that the host sorts last."""
    return min((evidence[way]["ratio"] for way in ways if way in evidence and evidence[way]["ratio"] is not None), default=float("inf"))
