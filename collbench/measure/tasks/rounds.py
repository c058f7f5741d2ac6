"""Rounds of pairs and hunts: requests, measurement over backends, interfaces and external tools, and the launches.

A hunt may measure a round over a single interface: a TCP stream between the two hosts of each pair, with the addresses of
that interface. A backend cannot select an interface, but such a stream can. The interface counters at both ends prove
the path. If several interfaces are in one network, the kernel may use another one; then the figure is left out.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from collbench.addresses import Family, family_of, is_link_local, is_loopback, listen_at
from collbench.backends.backend import Backend, Group, can_do
from collbench.control.members import Member
from collbench.control.world import World
from collbench.errors import FAILED, FINE, NEGATIVE, NO_VERDICT, USAGE, CollbenchError, UsageError
from collbench.launch import signals
from collbench.measure import counters, tcp_streams
from collbench.measure.ceilings import Ceilings
from collbench.measure.monitored import StateProbe, monitor_round, state_probe
from collbench.measure.prepared_case import (
    BackendContext,
    MoreWrongData,
    PreparedCase,
    WrongDataFound,
    prepare_over,
    release,
    time_shortly,
    verify_case,
    wrong_data,
)
from collbench.measure.request import Budget, Request
from collbench.measure.resume import placed
from collbench.measure.sampling import Measurement, slowest
from collbench.measure.session import (
    Launch,
    OpenBackend,
    RunContext,
    Work,
    WrongDataStop,
    at_rank_0,
    create_folder,
    first_available,
    members_of,
    ranks_by_host,
    run_with_cleanup,
)
from collbench.measure.tasks.cases import check_memory, notes, stage_of
from collbench.measure.tcp_streams import COUNTED, Reply, attempt, patience
from collbench.measure.wire_tools import FLAGS, LATENCY, ToolPair, ToolRequest, ToolResult, Tools, WireTool, installed_tools, run_tool
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BANDWIDTH, P2P_LATENCY
from collbench.operations.case import Case
from collbench.operations.data import Mismatch
from collbench.operations.dtypes import dtype_named
from collbench.operations.groups import Groups, Pair, Round, Schedule, schedule
from collbench.operations.operation import Operation
from collbench.operations.sweep import Sweep
from collbench.operations.unsupported import CaseFailed
from collbench.reason import Fact, as_json
from collbench.results.folder import HUNT, TOOLS, RunFolder
from collbench.results.rounds import HuntRound, PairRound
from collbench.results.row import Row, Times
from collbench.stats.median import median
from collbench.units import format_duration, listed, plural

# The request of a pairs run, its ranks or nodes, and the number of pairs that the time allows.

MEASUREMENTS = 3  # of each round: the latency, then the bandwidth each way


@dataclass(frozen=True)
class PairsRequest:
    """The request of one pairs run.

    launch       options of the launch; its budget is that of one measurement, of which a round has three
    by           "rank" or "node"; None: by node if there are several
    size_bytes   of the bandwidth messages; latency_size_bytes: of the latency messages
    concurrent   pairs measured at the same time at most; None: all of a round
    one_to_all   the rank (or a rank of the node) to which the pairs are limited; None: all pairs
    sample       partners that each rank or node has at least; None: all
    budget_s     seconds for the whole matrix, without the repeated measurement of suspects
    tools        names of external tools that run between the same pairs; none by default
    """

    launch: Request
    by: str | None = None
    size_bytes: int = 2**20
    latency_size_bytes: int = 8
    concurrent: int | None = None
    one_to_all: int | None = None
    sample: int | None = None
    budget_s: float = 600.0
    tools: tuple[str, ...] = ()


class IdleRanks(Fact, frozen=True):
    """Ranks of a node take no part, because another node has fewer ranks."""

    per_node: int
    idle: int

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"each node takes part with {plural(self.per_node, 'rank')}, the most that all have: {plural(self.idle, 'rank')} idle"


class PairsSampled(Fact, frozen=True):
    """Only some of the pairs are measured, because of --sample or --budget.

    sample    the value of --sample if it is the reason, else None
    needed_s  seconds for all pairs if --budget is the reason; None if other work used up the time
    budget_s  the value of --budget
    """

    pairs: int
    possible: int
    budget_s: float
    sample: int | None = None
    needed_s: float | None = None

    def render(self) -> str:
        """Return the sentence: "8 of 28 pairs are sampled (--sample 2)"."""
        budget = _duration(self.budget_s)
        if self.sample is not None:
            why = f"--sample {self.sample}"
        elif self.needed_s is None:
            why = f"--budget {budget} is used up: increase it to measure more"
        else:
            why = f"all of them may take {_duration(self.needed_s)}, but --budget allows {budget}: increase it to measure more"
        return f"{self.pairs} of {self.possible} pairs are sampled ({why})"


class NoRecommendation(Fact, frozen=True):
    """A hunt found wrong data. Its verdict is therefore not used to drain nodes."""

    def render(self) -> str:
        """Return the sentence that users see."""
        return "no recommendation is written and no node is drained: data was wrong"


class SuspectsAgain(Fact, frozen=True):
    """Suspects of a pairs run are measured again, next to control pairs that are not suspects."""

    def render(self) -> str:
        """Return the sentence that users see."""
        return "suspects are measured again next to control pairs before a node or pair is reported"


class ToolsRun(Fact, frozen=True):
    """External tools run between the same pairs, in both directions. Their results are not used in the verdict.

    tools   name and version of each
    """

    tools: tuple[str, ...]

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"external tools run between the same pairs, in both directions: {listed(self.tools)}"


class ToolsCutShort(Fact, frozen=True):
    """The external tools ran only between some pairs, because --budget was used up."""

    done: int
    pairs: int

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"the external tools ran between {self.done} of {self.pairs} pairs: --budget is used up; increase it for more"


class ToolFailed(Fact, frozen=True):
    """An external tool gave no result between two places."""

    tool: str
    source: str
    target: str
    reason: str

    def render(self) -> str:
        """Return the sentence that users see."""
        return f"{self.tool} from {self.source} to {self.target}: {self.reason}"


@dataclass(frozen=True)
class Places:
    """The ranks or nodes ("places") that form pairs.

    by      "rank" or "node"
    names   "node1", or "rank 3 (node1)"
    hosts   the host of each place
    ranks   the ranks of each place, the same number at each. A pair of places uses all of them at once, each with its counterpart.
    rests   ranks that take no part, since another node has fewer
    """

    by: str
    names: tuple[str, ...]
    hosts: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    rests: int = 0

    @property
    def n(self) -> int:
        """The number of places."""
        return len(self.names)

    @property
    def width(self) -> int:
        """The number of ranks of each place."""
        return len(self.ranks[0])

    @property
    def idle(self) -> IdleRanks | None:
        """The fact about ranks that take no part; None if all take part."""
        return IdleRanks(self.width, self.rests) if self.rests else None

    def groups(self, pairs: Sequence[Pair], backward: bool = False) -> Groups:
        """Return the sending pairs of ranks, one pair of places after the other. backward: from the second place to the first."""
        each = [(b, a) if backward else (a, b) for a, b in pairs]
        return tuple(ranks for a, b in each for ranks in zip(self.ranks[a], self.ranks[b], strict=True))


def places_of(request: PairsRequest, hosts: Sequence[str], by_host: Sequence[Sequence[int]]) -> Places:
    """Return the places of a launch, from its hosts and the ranks on each. Raises UsageError for fewer than two places."""
    if sum(map(len, by_host)) < 2:
        raise UsageError(f"{request.launch.command} needs two ranks, but this launch has one: start more (without a launcher: --ranks 2)")
    by = request.by or ("node" if len(hosts) > 1 else "rank")
    if by == "node" and len(hosts) < 2:
        raise UsageError(f"--by node needs two nodes, but all ranks are on {hosts[0]}: start ranks on more nodes, or use --by rank")
    if by == "node":
        width = min(map(len, by_host))
        rests = sum(len(ranks) - width for ranks in by_host)
        return Places(by, tuple(hosts), tuple(hosts), tuple(tuple(ranks[:width]) for ranks in by_host), rests)
    host_of = sorted((rank, host) for host, ranks in zip(hosts, by_host, strict=True) for rank in ranks)
    names = tuple(f"rank {rank} ({host})" for rank, host in host_of)
    return Places(by, names, tuple(host for _, host in host_of), tuple((rank,) for rank, _ in host_of))


def schedule_of(request: PairsRequest, places: Places, by_host: Sequence[Sequence[int]], seed: int) -> Schedule:
    """Return the schedule of rounds. Raises UsageError for a sample or a rank that does not fit the places."""
    if request.sample is not None and request.sample >= places.n:
        raise UsageError(f"--sample {request.sample} exceeds the partners of each of {places.n} {places.by}s: use {_up_to(places.n - 1)}")
    center = None if request.one_to_all is None else _place_of(request.one_to_all, places, by_host)
    most = int(request.budget_s / (MEASUREMENTS * request.launch.budget.max_time_s))
    return schedule(places.n, at_once=request.concurrent, center=center, partners=request.sample, most=most, seed=seed)


def _place_of(rank: int, places: Places, by_host: Sequence[Sequence[int]]) -> int:
    ranks = sum(map(len, by_host))
    if rank >= ranks:
        raise UsageError(f"--one-to-all {rank}: not a valid rank of {ranks}: use 0 to {ranks - 1}")
    return next(place for place, those in enumerate(by_host) if rank in those) if places.by == "node" else rank


def _up_to(most: int) -> str:
    return "1" if most == 1 else f"1 to {most}"


def sampled(request: PairsRequest, plan: Schedule, visited: int) -> PairsSampled | None:
    """Return how many of the pairs were measured, and why not all of them; None if all were."""
    if visited >= plan.possible:
        return None
    whole = plan.whole_rounds
    needed = whole if request.sample is None else min(request.sample + plan.least - 1, whole)
    found = PairsSampled(visited, plan.possible, request.budget_s)
    if visited * whole >= needed * plan.possible:
        return structs.replace(found, sample=request.sample)
    needed_s = plan.whole_rounds * plan.parts * MEASUREMENTS * request.launch.budget.max_time_s
    # work between the rounds used the rest of the time
    return found if needed_s <= request.budget_s else structs.replace(found, needed_s=needed_s)


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(seconds)


# The requests of a hunt and of one of its rounds.


@dataclass(frozen=True)
class HuntRequest:
    """The request of one hunt.

    pairs    how pairs are measured, between which places, and the time for all rounds (`budget_s`)
    method   "auto", "pairs" or "groups"; rounds: of the sweep at most, None: by the number of places
    growing  whether growing groups are measured; isolate: whether confirmed places are measured alone
    node     the scheduler's name of this rank's node, if known
    """

    pairs: PairsRequest
    method: str = "auto"
    rounds: int | None = None
    growing: bool = True
    isolate: bool = True
    node: str | None = None


@dataclass(frozen=True)
class RoundOrder:
    """The hunt's request of one round; see `results.rounds.HuntRound` for the fields."""

    kind: str
    groups: Groups
    why: str
    stage: str
    nic: str | None = None
    pause_s: float = 0.0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RoundOrder:
        """Return the request from the fields received over the control plane, in which tuples have become lists."""
        groups = tuple(tuple(int(place) for place in group) for group in values["groups"])
        return cls(values["kind"], groups, values["why"], values["stage"], values["nic"], values.get("pause_s", 0.0))


Rails = Mapping[str, Sequence[str]]  # by interface the address of each place on it
_COUNTED_PART = 0.8  # of the time; the rest is the stream's warm-up


def rails_of(world: World, places: Places) -> Rails:
    """Return by interface name the addresses of all nodes on it, if they differ and have one family; empty if ranks form the pairs.

    IPv4 is preferred if all nodes have it on that interface. All ranks must call it.
    """
    if places.by != "node":
        return {}
    leaders = _leaders(world, places)
    replies = world.allgather(_addresses() if world.me in leaders else {}, "reading the interfaces' addresses")
    each = [replies[leader.rank] for leader in leaders]
    return {name: known for name in sorted(each[0]) if (known := _common([one.get(name, {}) for one in each]))}


def _common(each: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the addresses of the first family that every node has, if they all differ; else ()."""
    for family in Family:
        known = tuple(one.get(family.value, "") for one in each)
        if all(known) and len(set(known)) == len(known):
            return known
    return ()


def _leaders(world: World, places: Places) -> list[Member]:
    """Return for each place the first rank of its host."""
    return [world.on_host(name)[0] for name in places.names]


def _addresses() -> dict[str, dict[str, str]]:
    """Return the first address of each family, by active interface of this host. Loopback and link-local addresses are excluded."""
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found: dict[str, dict[str, str]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            usable = each.family in (socket.AF_INET, socket.AF_INET6) and not is_loopback(each.address) and not is_link_local(each.address)
            if name in up and usable:
                found.setdefault(name, {}).setdefault(family_of(each.address).value, each.address)
    return found


@dataclass(frozen=True)
class _Way:
    """One stream over an interface: its source and target, and both addresses."""

    nic: str
    source: Member
    target: Member
    source_address: str
    target_address: str

    @property
    def reversed(self) -> _Way:
        """The stream in the other direction."""
        return _Way(self.nic, self.target, self.source, self.target_address, self.source_address)

    def sent(self, port: int, key: bytes, seconds: float, waits: float) -> int | None:
        """Send. Return the bytes that the interface counted during that; None without a counter."""
        before = _counted(self.nic, "tx_bytes")
        tcp_streams.send((self.target_address, port), key, 1, (seconds, waits), source=self.source_address)
        return _since(before, _counted(self.nic, "tx_bytes"))

    def taken(self, listener: socket.socket, key: bytes, seconds: float, waits: float) -> list[Any]:
        """Receive. Return [the rates, wrong data, the bytes that the interface counted during that]."""
        before = _counted(self.nic, "rx_bytes")
        arrived = tcp_streams.receive(listener, key, 1, seconds, waits)
        return [arrived.rates.tolist(), arrived.wrong, _since(before, _counted(self.nic, "rx_bytes"))]


def _counted(nic: str, what: str) -> int | None:
    return counters.read()[0].get(nic, {}).get(what)


def _since(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


@dataclass(frozen=True)
class _StreamResult:
    """The rate of a stream in bytes per second with its interval, or why it is unknown. proven: whether both interfaces counted it."""

    speed: float | None = None
    low: float | None = None
    high: float | None = None
    wrong: str | None = None
    na: str | None = None
    proven: bool = True


@dataclass(frozen=True)
class Streaming:
    """A runner of rounds over interfaces that all nodes have; each stream runs for a fixed time."""

    world: World
    places: Places
    rails: Rails
    seconds: float

    def play(self, number: int, order: RoundOrder) -> HuntRound | None:
        """Measure a round on all ranks, one direction after the other. Return it at rank 0, None elsewhere."""
        nic = order.nic or ""
        leaders, addresses = _leaders(self.world, self.places), self.rails[nic]
        ways = [_Way(nic, leaders[a], leaders[b], addresses[a], addresses[b]) for a, b in order.groups]
        there, back = self._carried(ways), self._carried([way.reversed for way in ways])
        return _round(number, order, list(zip(there, back, strict=True))) if self.world.rank == 0 else None

    def _carried(self, ways: Sequence[_Way]) -> list[_StreamResult]:
        """Run all streams at once and return the result of each, at all ranks."""
        world = self.world
        own = next((way for way in ways if world.me in (way.source, way.target)), None)
        listener: list[socket.socket] = []
        key = secrets.token_bytes(tcp_streams.KEY_BYTES)

        def listen(address: str) -> list[Any]:
            listener.append(listen_at(address))
            return [listener[0].getsockname()[1], key.hex()]

        awaited = own and own.target == world.me
        offers = world.allgather(attempt(partial(listen, own.target_address)) if own and awaited else {}, "listening for TCP streams")
        try:
            with world.extend_timeout(self.seconds + 2 * patience(world)), world.watchdog.phase("measuring TCP"):
                replies = world.allgather(self._done(own, offers[own.target.rank], listener) if own else {}, "measuring TCP")
        finally:
            for each in listener:
                each.close()
        return [_carried(way, offers[way.target.rank], (replies[way.source.rank], replies[way.target.rank]), self.seconds) for way in ways]

    def _done(self, way: _Way, offer: Reply, listener: Sequence[socket.socket]) -> Reply:
        """Run this rank's end of a stream: send or receive."""
        if "value" not in offer:
            return {}
        port, key = offer["value"][0], bytes.fromhex(offer["value"][1])
        waits = patience(self.world)
        if way.target == self.world.me:
            return attempt(lambda: way.taken(listener[0], key, self.seconds, waits))
        return attempt(lambda: way.sent(port, key, self.seconds, waits))


def _carried(way: _Way, offer: Reply, ends_of_pair: tuple[Reply, Reply], seconds: float) -> _StreamResult:
    source, target = ends_of_pair
    ends = ((offer, f"{way.target.host} cannot listen at {way.target_address}"),
            (source, f"{way.source.host} does not reach {way.target.host} at {way.target_address}"),
            (target, f"nothing arrived at {way.target.host} ({way.target_address})"))  # fmt: skip
    for reply, what in ends:
        if "value" not in reply:
            return _StreamResult(na=f"{what}: {reply.get('why', 'no reason was reported')}")
    (rates, wrong, came), left = target["value"], source["value"]
    if not rates or max(rates) <= 0:
        return _StreamResult(na=f"{way.nic} of {way.source.host}: the stream stalled", wrong=wrong)
    least = COUNTED * float(np.mean(rates)) * seconds * _COUNTED_PART
    if left is not None and left < least:
        return _StreamResult(
            na=f"the stream left {way.source.host} over another interface than {way.nic}, although it has the address of {way.nic}",
            wrong=wrong,
        )
    if came is not None and came < least:
        return _StreamResult(
            na=f"the stream reached {way.target.host} over another interface than {way.nic}, although it has the address of {way.nic}",
            wrong=wrong,
        )
    known = median(np.array(rates))
    return _StreamResult(known.value or None, known.ci_low, known.ci_high, wrong, proven=left is not None and came is not None)


def _round(number: int, order: RoundOrder, both: Sequence[tuple[_StreamResult, _StreamResult]]) -> HuntRound:
    """Return the round. A pair has the interval of its slower direction, and no figure if one direction has none."""
    slower = [min(pair, key=lambda one: one.speed or 0.0) for pair in both]
    none = (None,) * len(both)
    wrong = [next(filter(None, (one.wrong for one in pair)), None) for pair in both]
    unproven = any(not one.proven for pair in both for one in pair)
    return HuntRound(
        number, order.kind, order.stage, order.why, order.groups,
        tuple(there.speed for there, _ in both), tuple(back.speed for _, back in both),
        none, tuple(one.low for one in slower), tuple(one.high for one in slower), tuple(int(detail is not None) for detail in wrong),
        tuple(there.na or back.na for there, back in both), order.nic, ("path_unproven",) if unproven else (), tuple(wrong),
    )  # fmt: skip


# One round of disjoint pairs: latency, then the bandwidth in each direction, for all pairs at once and in step on all ranks.

OPERATIONS = (P2P_LATENCY, P2P_BANDWIDTH)
_Interval = tuple[float | None, float | None]
_NOTHING: _Interval = (None, None)
_WARMUPS = (10, 1)  # calls before the first sample, after the trial call: a window of messages also warms up the connection


@dataclass(frozen=True)
class RoundMeasurement:
    """One of the three measurements of a round, with its budget. backward: the second place of each pair sends."""

    operation: Operation
    case: Case
    budget: Budget
    backward: bool = False


def ways_of(request: PairsRequest, backend: str) -> tuple[RoundMeasurement, RoundMeasurement, RoundMeasurement]:
    """Return the three measurements on a backend: latency, forward bandwidth and backward bandwidth."""
    budget = request.launch.budget
    latency, bandwidth = (
        RoundMeasurement(
            operation, _case(request, operation, size, backend), budget if budget.warmup is not None else replace(budget, warmup=warmups)
        )
        for operation, size, warmups in zip(OPERATIONS, (request.latency_size_bytes, request.size_bytes), _WARMUPS, strict=True)
    )
    return latency, bandwidth, replace(bandwidth, backward=True)


def _case(request: PairsRequest, operation: Operation, size_bytes: int, backend: str) -> Case:
    sweep = request.launch.sweep
    assert isinstance(sweep, Sweep)
    (case,) = replace(sweep, operations=(operation,), sizes=(size_bytes,)).cases(backend, 2)
    return case.placed(False)


@dataclass(frozen=True)
class PairContext:
    """The context of measured rounds: the open backend, the places and the three measurements.

    flags   quality flags of every round
    probe   the state probe of all ranks; None: not available
    """

    request: PairsRequest
    world: World
    stage: BackendContext
    places: Places
    ways: tuple[RoundMeasurement, RoundMeasurement, RoundMeasurement]
    flags: tuple[str, ...] = ()
    probe: StateProbe | None = None

    def stage_for(self, way: RoundMeasurement) -> BackendContext:
        """Return the backend's context for a measurement, with its synchronization.

        If pairs share a host's NIC, all ranks synchronize before each sample, so that the pairs share it in every sample.
        Otherwise they synchronize only before a batch: pairs need not wait for one another, and the start skew would be part of
        a ping-pong's time.
        """
        shared = self.places.by == "rank" or self.places.width > 1
        return replace(self.stage, each_time=shared and way.operation is P2P_BANDWIDTH)


@dataclass(frozen=True)
class _Times:
    """One measurement of all pairs, at rank 0: seconds per message with their intervals, wrong elements, samples, flags."""

    seconds: tuple[float | None, ...]
    intervals: tuple[_Interval, ...]
    wrong: tuple[int, ...]
    n: int
    flags: tuple[str, ...]
    wrong_detail: tuple[str | None, ...]


def play(context: PairContext, number: int, pairs: Round, again: bool = False) -> Iterator[PairRound]:
    """Measure a round on all ranks; yield its results at rank 0, nothing elsewhere.

    If a rank rejects a measurement, the halves of the round are measured separately, and so on. At the end only the pairs
    that cannot run are n/a.
    """
    times: list[_Times | None] = []
    with monitor_round(context.world, context.probe) as watch:
        reason = _measure_all(context, pairs, times)
    if reason is not None:
        yield from _without(context, number, pairs, again, reason)
        return
    known = [each for each in times if each]
    if len(known) == len(times):
        disturbed = [watch.of([*context.places.ranks[a], *context.places.ranks[b]]) for a, b in pairs]
        yield replace(
            _round_pair_round(context, number, pairs, again, known),
            cpu_wait=tuple(round(each.cpu_wait, 4) for each in disturbed),
            flipped=tuple(each.flipped for each in disturbed),
        )


def _measure_all(context: PairContext, pairs: Round, times: list[_Times | None]) -> str | None:
    """Add the three measurements of a round to `times`, or return why a rank rejects one, the same at all ranks."""
    for way in context.ways:
        found = _measure(context, way, pairs)
        if isinstance(found, str):
            return found
        times.append(found)
    return None


def _without(context: PairContext, number: int, pairs: Round, again: bool, reason: str) -> Iterator[PairRound]:
    half = len(pairs) // 2
    if half:
        yield from play(context, number, pairs[:half], again)
        yield from play(context, number, pairs[half:], again)
    elif context.world.rank == 0:
        gap, nothing = (None,), (_NOTHING,)
        yield PairRound(number, pairs, gap, nothing, gap, nothing, gap, nothing, gap, (reason,), again=again, flags=context.flags)


def _measure(context: PairContext, way: RoundMeasurement, pairs: Round) -> _Times | str | None:
    """Return one measurement, with figures at rank 0, or why a rank rejects it, the same at all ranks."""
    groups = context.places.groups(pairs, way.backward)
    ready = prepare_over(way.operation, way.case, groups, context.stage_for(way), context.world)
    if isinstance(ready, CaseFailed):
        return ready.reason
    check = context.request.launch.check
    measured = time_shortly(ready, context.world, way.budget)
    mismatches = verify_case(ready, context.world, check) if check else []
    release(ready, context.stage.backend)
    if measured is None or mismatches is None:
        return None
    return _times(context, ready, measured, mismatches)


def _times(context: PairContext, ready: PreparedCase, measured: Measurement, mismatches: Sequence[Mismatch]) -> _Times:
    """Return the times of each pair of places: those of its slowest pair of ranks, measured at the pairs' first ranks."""
    width = context.places.width
    initiators = [group[0] for group in ready.groups]
    each = [initiators[at : at + width] for at in range(0, len(initiators), width)]
    messages = ready.operation.moves(ready.case) * (width if ready.operation is P2P_BANDWIDTH else 1)
    found = [_figure(slowest(measured.samples, ranks) / messages) for ranks in each]
    turn_of = {rank: turn // width for turn, group in enumerate(ready.groups) for rank in group}
    wrong: Counter[int] = Counter()
    details: dict[int, str] = {}
    for mismatch in mismatches:
        wrong[turn_of[mismatch.rank]] += mismatch.wrong
        details.setdefault(turn_of[mismatch.rank], mismatch.sentence())
    flags = [*measured.flags, *(["python_loop"] if ready.fell_back else [])]
    return _Times(
        tuple(seconds for seconds, _ in found), tuple(interval for _, interval in found), tuple(wrong[turn] for turn in range(len(each))),
        measured.samples.shape[1], tuple(flags), tuple(details.get(turn) for turn in range(len(each))),
    )  # fmt: skip


def _figure(samples: NDArray[np.float64]) -> tuple[float | None, _Interval]:
    """Return the median and its interval. Equal samples have no interval, since the clock's resolution hides their differences."""
    known = median(samples)
    if known.value <= 0:
        return None, _NOTHING
    return known.value, _NOTHING if samples.min() == samples.max() else (known.ci_low, known.ci_high)


def _round_pair_round(context: PairContext, number: int, pairs: Sequence[Pair], again: bool, times: Sequence[_Times]) -> PairRound:
    latency, forward, backward = times
    wrong = [sum(each) for each in zip(*(one.wrong for one in times), strict=True)]
    flags = dict.fromkeys((*context.flags, *(["pairs_at_once"] if len(pairs) > 1 else []), *(flag for one in times for flag in one.flags)))
    return PairRound(
        number, tuple(pairs), latency.seconds, latency.intervals, forward.seconds, forward.intervals, backward.seconds, backward.intervals,
        tuple(wrong if context.request.launch.check else [None] * len(pairs)), (None,) * len(pairs),
        (latency.n, forward.n, backward.n), again,
        tuple(flags), tuple(next(filter(None, details), None) for details in zip(*(one.wrong_detail for one in times), strict=True)),
    )  # fmt: skip


# One round of all-reduces in disjoint groups, all at the same time. A group is several places, or the ranks of one place.

_HUNT_GROUPS_WARMUPS = 2  # the first one connects


@dataclass(frozen=True)
class GroupResult:
    """The bus bandwidth of a group in bytes per second with its interval, and its wrong data."""

    speed: float | None = None
    low: float | None = None
    high: float | None = None
    wrong: int = 0
    detail: str | None = None
    na: str | None = None


def group_case(request: PairsRequest, backend: Backend) -> Case:
    """Return the all-reduce case of groups. It has the size of the messages, and a floating-point type as gradients have."""
    sweep = request.launch.sweep
    assert isinstance(sweep, Sweep)
    (case,) = replace(sweep, operations=(ALLREDUCE,), sizes=(request.size_bytes,), dtypes=(dtype_named("float32"),)).cases(
        backend.name, backend.ranks
    )
    return placed(case, ALLREDUCE, backend)


def no_groups(request: PairsRequest, backend: Backend, world: World) -> str | None:
    """Return why a rank's backend cannot reduce over groups, the same at all ranks; or None. All ranks must call it."""
    return world.first_error(
        can_do(backend, ALLREDUCE, group_case(request, backend)), f"asking {backend.name} whether it reduces over groups"
    )


def play_groups(context: PairContext, number: int, order: RoundOrder) -> HuntRound | None:
    """Measure a round on all ranks. Return it at rank 0, None elsewhere.

    A group with only one rank has no figure, since it moves no data.
    """
    ranks = [tuple(rank for place in group for rank in context.places.ranks[place]) for group in order.groups]
    several = tuple(each for each in ranks if len(each) > 1)
    reached, flags = _measured(context, several) if several else ({}, ())
    if context.world.rank:
        return None
    alone = GroupResult(na="one rank: nothing to reduce")
    return _group_round(number, order, [reached.get(each, alone) for each in ranks], (*context.flags, *flags))


def _measured(context: PairContext, groups: Groups) -> tuple[dict[tuple[int, ...], GroupResult], tuple[str, ...]]:
    """Return the result of each group, at rank 0."""
    backend, request = context.stage.backend, context.request.launch
    case, members = group_case(context.request, backend), context.stage.members
    with context.world.watchdog.phase(f"making groups on {backend.name}"):
        wrong, made = _made(backend, [ranks for ranks in groups if ranks not in members])
    reason = context.world.first_error(wrong, "making the groups of a round")
    stage: BackendContext = replace(context.stage, members=members | made)
    ready = None if reason else prepare_over(ALLREDUCE, case, groups, stage, context.world)
    if ready is None or isinstance(ready, CaseFailed):
        _free(backend, made)
        return dict.fromkeys(groups, GroupResult(na=reason or str(ready))), ()
    budget = request.budget if request.budget.warmup is not None else replace(request.budget, warmup=_HUNT_GROUPS_WARMUPS)
    measured = time_shortly(ready, context.world, budget)
    mismatches = verify_case(ready, context.world, request.check) if request.check else []
    release(ready, backend)
    _free(backend, made)
    if measured is None or mismatches is None:
        return {}, ()
    flags = (*measured.flags, *(["python_loop"] if ready.fell_back else []))
    return _reached(ready, measured, mismatches), flags


def _made(backend: Backend, groups: Sequence[tuple[int, ...]]) -> tuple[str | None, dict[tuple[int, ...], Group | None]]:
    """Create this process's groups. Return (why the library rejects one, or None; this process's handle of each group).

    All ranks must call it with the same order. It continues after an error, since the other ranks continue. A library
    reports a dead rank as some error; the next exchange between the ranks identifies that rank.
    """
    made: dict[tuple[int, ...], Group | None] = {}
    why: list[str] = []
    for ranks in groups:
        try:
            made[ranks] = backend.group(ranks)
        except (CollbenchError, RuntimeError) as error:
            why.append(str(error) or type(error).__name__)
    return next(iter(why), None), made


def _free(backend: Backend, made: dict[tuple[int, ...], Group | None]) -> None:
    for group in made.values():
        if group is not None:
            backend.release(group)


def _reached(ready: PreparedCase, measured: Measurement, mismatches: Sequence[Mismatch]) -> dict[tuple[int, ...], GroupResult]:
    """Return the result of each group: the median over samples of its slowest rank."""
    group_of = {rank: ranks for ranks in ready.groups for rank in ranks}
    wrong: Counter[tuple[int, ...]] = Counter()
    details: dict[tuple[int, ...], str] = {}
    for mismatch in mismatches:
        wrong[group_of[mismatch.rank]] += mismatch.wrong
        details.setdefault(group_of[mismatch.rank], mismatch.sentence())
    found = {}
    for ranks in ready.groups:
        samples = slowest(measured.samples, list(ranks))
        known, moved = median(samples), ready.case.size_bytes * ALLREDUCE.bus_factor(len(ranks))
        apart = samples.min() < samples.max()  # equal samples have no interval: the clock's resolution hides their differences
        ends = (known.ci_low, known.ci_high) if apart else (None, None)
        low, high = (rate(moved, seconds) for seconds in reversed(ends))
        found[ranks] = GroupResult(rate(moved, known.value), low, high, wrong[ranks], details.get(ranks))
    return found


def rate(moved: float, seconds: float | None) -> float | None:
    """Return the bytes per second; None if the time is unknown, or too short to be valid."""
    return moved / seconds if seconds else None


def _group_round(number: int, order: RoundOrder, reached: Sequence[GroupResult], flags: Sequence[str]) -> HuntRound:
    def each(figure: Callable[[GroupResult], float | None]) -> tuple[float | None, ...]:
        return tuple(figure(one) for one in reached)

    none = (None,) * len(reached)
    return HuntRound(
        number, order.kind, order.stage, order.why, order.groups, each(lambda one: one.speed), none, none, each(lambda one: one.low),
        each(lambda one: one.high), tuple(one.wrong for one in reached), tuple(one.na for one in reached), order.nic,
        tuple(dict.fromkeys(flags)), tuple(one.detail for one in reached),
    )  # fmt: skip


# The rounds of a hunt, of every kind, measured in step on all ranks.

_Ends = tuple[float | None, float | None]


@dataclass(frozen=True)
class RoundRunner:
    """A runner of a hunt's rounds: the context of pairs, the interfaces, and why groups cannot be measured (None: they can)."""

    context: PairContext
    streaming: Streaming
    no_groups: str | None = None

    def play(self, number: int, order: RoundOrder) -> HuntRound | None:
        """Return the round at rank 0, None elsewhere. All ranks call with the same request."""
        if order.kind == "pairs":
            pairs = tuple((group[0], group[1]) for group in order.groups)
            played = list(play(self.context, number, pairs))
            return _of_pairs(number, order, played, self.context.request.size_bytes) if self.context.world.rank == 0 else None
        if order.kind == "nic":
            return self._over_nic(number, order)
        return self._in_groups(number, order)

    def _over_nic(self, number: int, order: RoundOrder) -> HuntRound | None:
        if order.nic not in self.streaming.rails:
            return _nothing(number, order, f"some nodes do not have the interface {order.nic}") if self.context.world.rank == 0 else None
        return self.streaming.play(number, order)

    def _in_groups(self, number: int, order: RoundOrder) -> HuntRound | None:
        if self.no_groups:
            return _nothing(number, order, self.no_groups) if self.context.world.rank == 0 else None
        return play_groups(self.context, number, order)


def _nothing(number: int, order: RoundOrder, why: str) -> HuntRound:
    """Return a round in which no group was measured, with the reason."""
    none, n = (None,) * len(order.groups), len(order.groups)
    return HuntRound(
        number, order.kind, order.stage, order.why, order.groups, none, none, none, none, none, (0,) * n, (why,) * n, order.nic
    )


@dataclass(frozen=True)
class _PairResult:
    """The figures of one pair, in both directions."""

    there: float | None
    back: float | None
    latency_s: float | None
    ends: _Ends
    wrong: int
    detail: str | None
    na: str | None
    cpu_wait: float
    flipped: bool


def _of_pairs(number: int, order: RoundOrder, played: Sequence[PairRound], size: int) -> HuntRound:
    """Return the measured rounds as one hunt round. There are several if a rank rejected a measurement."""
    met = dict(_met(played, size))
    each = [met[group[0], group[1]] for group in order.groups]
    flags = dict.fromkeys(flag for one in played for flag in one.flags)
    return HuntRound(
        number, order.kind, order.stage, order.why, order.groups, tuple(one.there for one in each), tuple(one.back for one in each),
        tuple(one.latency_s for one in each), tuple(one.ends[0] for one in each), tuple(one.ends[1] for one in each),
        tuple(one.wrong for one in each), tuple(one.na for one in each), order.nic, tuple(flags), tuple(one.detail for one in each),
        tuple(one.cpu_wait for one in each), tuple(one.flipped for one in each),
    )  # fmt: skip


def _met(played: Iterable[PairRound], size: int) -> Iterable[tuple[Pair, _PairResult]]:
    for one in played:
        details = one.wrong_detail or (None,) * len(one.pairs)
        for turn, pair in enumerate(one.pairs):
            times = [(one.forward_s[turn], one.forward_ci_s[turn]), (one.backward_s[turn], one.backward_ci_s[turn])]
            _, (first, last) = max(times, key=lambda way: way[0] or 0.0)  # of the slower direction
            there, back = (rate(size, seconds) for seconds, _ in times)
            ends = (rate(size, last), rate(size, first))
            cpu_wait, flipped = (one.cpu_wait[turn] if one.cpu_wait else 0.0), bool(one.flipped and one.flipped[turn])
            yield (
                pair,
                _PairResult(there, back, one.latency_s[turn], ends, one.wrong[turn] or 0, details[turn], one.na[turn], cpu_wait, flipped),
            )


# A hunt: the strategy at rank 0 requests rounds, and all ranks measure them, until there is a verdict.

_CODES = {"confirmed": NEGATIVE, "nobody": FINE, "no verdict": NO_VERDICT}


class HuntListener(Protocol):
    """The strategy of a hunt, which also shows its progress, at rank 0."""

    def note(self, sentence: str) -> None:
        """Show a note once."""
        ...

    def plan(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return more entries for run.json's "hunt", such as the largest number of rounds (`promised`).

        It is called before the first measurement. Raises UsageError.
        """
        ...

    def begin_hunt(self, about: Mapping[str, Any], folder: str) -> None:
        """Receive the facts that are known before the first round, and the run's folder."""
        ...

    def next(self, last: HuntRound | None) -> Mapping[str, Any] | None:
        """Return the next round to measure, as the fields of `RoundOrder`, given the last result; None if there is a verdict."""
        ...

    def verdict(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the verdict, JSON-ready. Its "result" is `confirmed`, `nobody` or `no verdict`; `about` has the ceiling."""
        ...

    def act(self, folder: Path, event: Callable[..., None]) -> None:
        """Act on a verdict. It is called only if all ranks are still running and no data was wrong.

        event(kind, **facts) stores an action.
        """
        ...

    def end(self) -> None:
        """Finish, at the end of the launch."""
        ...


@dataclass
class HuntRun:
    """The state of one hunt. Only rank 0 has rounds, folder and listener. about: run.json's "hunt"."""

    request: HuntRequest
    launch: Launch
    listener: HuntListener | None
    about: dict[str, Any]
    rounds: list[HuntRound] = field(default_factory=list)
    stopped: bool = False

    def note(self, fact: Fact) -> None:
        """Show a fact, and store it in events.jsonl."""
        if self.listener:
            self.listener.note(fact.render())
        self.launch.note(fact)


def play_all(hunting: HuntRun, field: RoundRunner) -> None:
    """Measure the rounds that the listener requests, until it ends the hunt or wrong data does (--stop-on-wrong)."""
    world, last = hunting.launch.world, None
    for number in count():
        proposed = dict(hunting.listener.next(last) or {}) if hunting.listener else {}
        time.sleep(proposed.get("pause_s", 0.0))
        agreed = world.broadcast(proposed, "choosing the next round")
        if not agreed:
            return
        last = field.play(number, RoundOrder.from_json(agreed))
        if last:
            _take(hunting, last)
        if hunting.request.pairs.launch.stop_on_wrong and world.broadcast(bool(last and any(last.wrong)), "deciding whether to go on"):
            hunting.note(WrongDataStop(f"round {number + 1}"))
            hunting.stopped = True
            return


def _take(hunting: HuntRun, one: HuntRound) -> None:
    hunting.rounds.append(one)
    if hunting.launch.folder:
        with signals.deferred():
            hunting.launch.folder.append_round(one.as_json(), HUNT)


def conclude(hunting: HuntRun, ceiling: Mapping[str, Any] | None) -> int:
    """Store the verdict and run.json, and return the exit code. Raises CollbenchError if a rank has ended."""
    launch, world = hunting.launch, hunting.launch.world
    hunting.about |= {"rounds": len(hunting.rounds), "ceiling": ceiling}
    for fact in (*_wrong(hunting), *world.remarks()):
        hunting.note(fact)
    verdict = dict(hunting.listener.verdict(hunting.about)) if hunting.listener and not hunting.stopped else None
    code = world.broadcast(_code(hunting, verdict), "ending")
    world.allgather(None, "ending")  # all ranks still run, so no node is drained because another one has failed
    if launch.folder:
        hunting.about["verdict"] = verdict
        launch.folder.update(hunt=hunting.about)
        if verdict:
            _follow(hunting, launch.folder, code)
        launch.folder.finish(exit_code=code, hunt=hunting.about)
    return code


def _follow(hunting: HuntRun, folder: RunFolder, code: int) -> None:
    """Act on the verdict, unless data was wrong or nothing was measured."""
    if code == FAILED:
        hunting.note(NoRecommendation())
    elif code != USAGE and hunting.listener:
        with hunting.launch.world.watchdog.phase("acting on the verdict"):
            hunting.listener.act(folder.path, folder.event)


def _code(hunting: HuntRun, verdict: Mapping[str, Any] | None) -> int:
    """Return the exit code: 4 if data was wrong, 2 if nothing was measured, else the verdict's."""
    if any(any(one.wrong) for one in hunting.rounds):
        return FAILED
    if hunting.rounds and all(reason for one in hunting.rounds for reason in one.na):
        return USAGE
    return _CODES[verdict["result"]] if verdict else FAILED


def _wrong(hunting: HuntRun) -> list[WrongDataFound | MoreWrongData]:
    met = (
        each for one in hunting.rounds for each in zip(one.groups, one.wrong, one.wrong_detail or (None,) * len(one.groups), strict=True)
    )
    return wrong_data(hunting.about["places"], met, "group")


# The context of a launch that measures rounds of pairs on one backend, and the checks of its options.


def check_pairs(request: PairsRequest, launch: Launch, opened: OpenBackend, others: Sequence[Work] = ()) -> None:
    """Raise UsageError on all ranks if the backend or the memory cannot handle the messages, or if --slowed has no effect.

    others: cases that are measured in addition to the messages.
    """
    backend, world = opened.backend, launch.world
    assert backend is not None
    ways = ways_of(request, backend.name)
    refusals = [can_do(backend, way.operation, way.case) for way in ways]
    reason = world.first_error(next(filter(None, refusals), None), f"asking {backend.name} what it can do")
    if reason:
        world.refuse(f"no pair can be measured on {backend.name}: {reason}")
    request.launch.slowed.check([*(way.case for way in ways), *(case for _, case, _ in others)], backend.ranks)
    largest = max(ways, key=lambda way: way.case.size_bytes)
    check_memory([(largest.operation, largest.case, opened), *others], world)


def pair_context(request: PairsRequest, launch: Launch, opened: OpenBackend, places: Places) -> PairContext:
    """Return the context of pairs. All ranks must call it."""
    backend, world = opened.backend, launch.world
    assert backend is not None
    ways = ways_of(request, backend.name)
    stage = stage_of(launch, [(way.operation, way.case, opened) for way in ways], backend)
    crowded = bool(world.oversubscribed) and not backend.virtual and ways[0].case.device == "cpu"
    flags = {"slowed": any(request.launch.slowed.of(way.case) for way in ways), "oversubscribed": crowded}
    on = (*backend.flags, *(flag for flag, true in flags.items() if true))
    return PairContext(request, world, stage, places, ways, on, None if backend.virtual else state_probe(world))


# The launch of a hunt: open a backend, measure the requested rounds on all ranks together, and end with the verdict.


def run_hunt(pairs_request: HuntRequest, world: World, listener: HuntListener | None, ended: Callable[[int], None]) -> int:
    """Hunt on all ranks of `world`. Return the exit code, the same on all ranks: 1 if a place is confirmed. Raises CollbenchError.

    `ended` receives the exit code before the libraries are closed, as in `cases.run`.
    """
    request, waiting = pairs_request.pairs.launch, list[Fact]()
    launch = Launch.begun(request, world)
    opened = first_available(request, world, waiting.append)
    assert opened.backend is not None
    places = places_of(pairs_request.pairs, world.hosts, ranks_by_host(opened.backend, world))
    lacking = no_groups(pairs_request.pairs, opened.backend, world)
    others = [] if lacking else [(ALLREDUCE, group_case(pairs_request.pairs, opened.backend), opened)]
    check_pairs(pairs_request.pairs, launch, opened, others)
    rails = {} if opened.backend.virtual else rails_of(world, places)
    about = _about(pairs_request, opened, places, rails, lacking) | {"nodes": _nodes(pairs_request, world)}
    about |= _planned(about, world, listener)
    hunting = HuntRun(pairs_request, launch, listener, about)
    launch.folder = create_folder(launch, [opened], {"hunt": about}, about["promised"])
    return run_with_cleanup(
        RunContext(launch, [opened], listener, ended), lambda: _hunt(hunting, opened, places, (rails, lacking), waiting)
    )


def _about(request: HuntRequest, opened: OpenBackend, places: Places, rails: Rails, lacking: str | None) -> dict[str, Any]:
    """Return run.json's "hunt" as known before the first measurement."""
    backend, pairs = opened.backend, request.pairs
    assert backend is not None
    case = ways_of(pairs, backend.name)[1].case
    return {
        "places": list(places.names), "hosts": list(places.hosts), "by": places.by, "backend": backend.name,
        "virtual": backend.virtual, "size_bytes": pairs.size_bytes, "latency_size_bytes": pairs.latency_size_bytes,
        "window": case.window, "ranks_per_place": places.width, "method": request.method,
        "most_rounds": request.rounds, "growing": request.growing, "isolate": request.isolate, "no_groups": lacking, "nics": list(rails),
        "max_time_s": pairs.launch.budget.max_time_s, "budget_s": pairs.budget_s, "rounds": None, "ceiling": None, "verdict": None,
    }  # fmt: skip


def _planned(about: Mapping[str, Any], world: World, listener: HuntListener | None) -> dict[str, Any]:
    """Return the listener's plan, at all ranks. Raises UsageError on all ranks if the listener rejects the hunt."""
    own = at_rank_0(world, lambda: dict(listener.plan(about)) if listener else None, "planning the hunt")
    agreed: dict[str, Any] = world.broadcast(own or {}, "planning the hunt")
    return agreed


def _nodes(request: HuntRequest, world: World) -> list[tuple[str, str]]:
    """Return the distinct (host, the scheduler's name of the node) of all ranks that know it; at rank 0."""
    replies = world.gather((world.me.host, request.node or ""), "asking for the nodes' names") or []
    return sorted({(host, node) for host, node in replies if node})


def _hunt(hunting: HuntRun, opened: OpenBackend, places: Places, known: tuple[Rails, str | None], waiting: Sequence[Fact]) -> int:
    launch, (rails, lacking) = hunting.launch, known
    ceilings = Ceilings(launch.request, launch.world)
    ceilings.prepare([], [])  # reads the machines for their links, without the memory's rate, which far exceeds that of messages
    if launch.folder:
        launch.folder.write_topology(ceilings.topology())
    if hunting.listener:
        hunting.listener.begin_hunt(hunting.about, str(launch.folder.path) if launch.folder else "")
    for fact in filter(None, (*waiting, *notes(launch, [opened]), places.idle)):
        hunting.note(fact)
    context = pair_context(hunting.request.pairs, launch, opened, places)
    streaming = Streaming(launch.world, places, rails, launch.request.budget.max_time_s)
    play_all(hunting, RoundRunner(context, streaming, lacking))
    return conclude(hunting, _ceiling(hunting, ceilings, context))


def _ceiling(hunting: HuntRun, ceilings: Ceilings, context: PairContext) -> dict[str, Any] | None:
    """Return the highest possible rate of a group of the first round, at rank 0; None if it is unknown.

    For pairs it is the rate of one pair of ranks times the ranks of a place, since their messages share the limit.
    """
    first = next(iter(hunting.rounds), None)
    if first is None or "oversubscribed" in context.flags:  # times that include waits for a core show nothing about a link
        return None
    backend, places = context.stage.backend, context.places
    if first.kind == "pairs":
        way, groups = context.ways[1], places.groups([(group[0], group[1]) for group in first.groups])
        ceiling, _ = ceilings.of(way.operation, way.case, backend, groups)
        many = places.width
    else:
        ranks = tuple(tuple(rank for place in group for rank in places.ranks[place]) for group in first.groups)
        ceiling, _ = ceilings.of(ALLREDUCE, group_case(context.request, backend), backend, ranks)
        many = 1
    if ceiling.bytes_per_s is None:
        return None
    return {"bytes_per_s": ceiling.bytes_per_s * many, "limited_by": ceiling.limited_by, "source": ceiling.source, "kind": ceiling.kind}


# The rounds of a pairs launch: those of the matrix, then those that measure the suspects again.


class PairsListener(Protocol):
    """The progress listener of a pairs run at rank 0."""

    def note(self, sentence: str) -> None:
        """Show a note once."""
        ...

    def begin_pairs(self, about: Mapping[str, Any], folder: str) -> None:
        """Receive run.json's "pairs" and the run's folder, before the first round."""
        ...

    def round(self, done: int, total: int | None, pairs: int, eta_s: float | None) -> None:
        """Receive the end of a round: the completed rounds, their total, and the pairs in it.

        total is None while suspects are measured again.
        """
        ...

    def next_remeasurement(self, last: list[PairRound]) -> Mapping[str, Any] | None:
        """Return the next round that measures suspects again; None if there is none.

        It has disjoint "pairs", and the seconds to wait before it ("pause_s"). last: the rounds of the matrix, then those of the
        previous such round.
        """
        ...

    def matrix(self, rounds: list[PairRound], about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Receive all rounds. Return the verdict to store, JSON-ready.

        It has "result", as of a hunt; "findings", each with its fields and "sentence"; "judged", the suspects that were measured again.
        """
        ...

    def external(self, rows: list[Row]) -> None:
        """Receive the rows of the requested external tools; called before `matrix`."""
        ...

    def end(self) -> None:
        """Finish, at the end of the launch."""
        ...


@dataclass
class PairRun:
    """The state of one pairs launch. Only rank 0 has rounds, folder and listener.

    theirs: the rows of external tools, at all ranks.
    """

    request: PairsRequest
    launch: Launch
    listener: PairsListener | None
    opened: OpenBackend
    places: Places
    plan: Schedule
    began: float = field(default_factory=time.monotonic)
    rounds: list[PairRound] = field(default_factory=list)
    external: list[Row] = field(default_factory=list)
    visited: int = 0

    def note(self, fact: Fact) -> None:
        """Show a fact, and store it in events.jsonl."""
        if self.listener:
            self.listener.note(fact.render())
        self.launch.note(fact)

    def stops(self) -> bool:
        """Return whether wrong data has ended the launch, the same at all ranks. All ranks must call it."""
        if not self.request.launch.stop_on_wrong:
            return False
        wrong: bool = self.launch.world.broadcast(any(map(any, (one.wrong for one in self.rounds))), "deciding whether to go on")
        return wrong

    @property
    def backend(self) -> Backend:
        """The open backend that carries the messages."""
        assert self.opened.backend is not None
        return self.opened.backend

    def about(self, measured: int | None) -> dict[str, Any]:
        """Return run.json's "pairs". measured: number of pairs, None while the run continues."""
        request, case = self.request, ways_of(self.request, self.backend.name)[1].case
        sample = sampled(request, self.plan, self.plan.pairs if measured is None else self.visited)
        return {
            "places": list(self.places.names), "hosts": list(self.places.hosts), "by": self.places.by,
            "backend": self.backend.name, "size_bytes": request.size_bytes,
            "latency_size_bytes": request.latency_size_bytes, "window": case.window, "streams": case.streams,
            "ranks_per_place": self.places.width, "rounds": self.plan.number if measured is None else self._rounds(),
            "possible": self.plan.possible, "measured": measured, "sampled": sample.render() if sample else None,
            **({"sampled_fact": as_json(sample)} if sample else {}),
            **({"tools": list(request.tools)} if request.tools else {}),
            "concurrent": request.concurrent, "max_time_s": request.launch.budget.max_time_s, "budget_s": request.budget_s,
        }  # fmt: skip

    def _rounds(self) -> int:
        return len({one.round for one in self.rounds if not one.again})


def limits(run: PairRun) -> Iterator[Fact]:
    """Yield the facts about pairs and ranks that this matrix excludes."""
    yield from filter(None, [run.places.idle, sampled(run.request, run.plan, run.plan.pairs)])


def measure_rounds(run: PairRun, context: PairContext) -> bool:
    """Measure one round after the other until all are done or the time is used up. Every place gets at least one pair.

    Returns False if wrong data ended it (--stop-on-wrong).
    """
    world, total, least = run.launch.world, run.plan.number, run.plan.least * run.plan.parts
    for number, pairs in enumerate(run.plan.rounds()):
        spent_s = world.broadcast(time.monotonic() - run.began, "playing the next round")
        whole = number % run.plan.parts == 0
        if spent_s > run.request.budget_s and number >= least and whole:
            break
        _store_pair_rounds(run, play(context, number, pairs))
        run.visited += len(pairs)
        if run.listener:
            spent_s = time.monotonic() - run.began
            run.listener.round(number + 1, total, len(pairs), spent_s / (number + 1) * (total - number - 1))
        if run.stops():
            run.note(WrongDataStop(f"round {number + 1} of {total}"))
            return False
    return True


def _store_pair_rounds(run: PairRun, played: Iterator[PairRound]) -> None:
    for one in played:
        run.rounds.append(one)
        if run.launch.folder:
            with signals.deferred():
                run.launch.folder.append_round(one.as_json())


def measure_again(run: PairRun, context: PairContext) -> None:
    """Measure suspects again next to control pairs, in the rounds that the listener requests. All ranks must call it."""
    world, last = run.launch.world, run.rounds
    for number in count(run.plan.number):
        proposed = dict(run.listener.next_remeasurement(last) or {}) if run.listener else {}
        time.sleep(proposed.get("pause_s", 0.0))
        agreed = world.broadcast(proposed, "choosing the pairs to measure again")
        if not agreed:
            return
        if number == run.plan.number:
            run.note(SuspectsAgain())
        begun, pairs = len(run.rounds), [(int(a), int(b)) for a, b in agreed["pairs"]]
        for at in range(0, len(pairs), most := run.request.concurrent or len(pairs)):
            _store_pair_rounds(run, play(context, number, tuple(pairs[at : at + most]), again=True))
        last = run.rounds[begun:]
        if run.listener:
            run.listener.round(number + 1 - run.plan.number, None, len(pairs), None)
        if run.stops():
            return


def conclude_pairs(run: PairRun) -> int:
    """Store the findings and run.json, and return the exit code."""
    launch = run.launch
    first = [one for one in run.rounds if not one.again]
    measured = sum(reason is None for one in first for reason in one.na)
    about = run.about(measured)
    wrong, sample = _wrong_pair_data(run), sampled(run.request, run.plan, run.visited)
    if sample and run.visited < run.plan.pairs and not (wrong and run.request.launch.stop_on_wrong):
        run.note(sample)
    for fact in (*wrong, *launch.world.remarks()):
        run.note(fact)
    if run.listener and run.external:
        run.listener.external(run.external)
    found = dict(run.listener.matrix(run.rounds, about)) if run.listener else {}
    code = launch.world.broadcast(_pairs_exit_code(run.rounds, measured, found.get("result", "nobody")), "ending")
    if launch.folder:
        for each in found.pop("findings", ()):
            launch.folder.event("finding", text=each["sentence"], finding=each)
        launch.folder.finish(exit_code=code, pairs={**about, **found})
    return code


def _wrong_pair_data(run: PairRun) -> list[WrongDataFound | MoreWrongData]:
    met = (each for one in run.rounds for each in zip(one.pairs, one.wrong, one.wrong_detail or (None,) * len(one.pairs), strict=True))
    return wrong_data(run.places.names, met, "pair")


def _pairs_exit_code(rounds: Sequence[PairRound], measured: int, result: str) -> int:
    """Return the exit code: 4 wrong data, 2 no pair measured, 1 a node or pair is slow, 3 inconclusive, else 0."""
    if any(wrong for one in rounds for wrong in one.wrong):
        return FAILED
    return _CODES[result] if measured else USAGE


# External tools between the pairs: they run after the matrix, in its rounds, in both directions.
#
# Their rows are in tools.jsonl, separate from collbench's own; no verdict uses them.

_INSIDE: tuple[dict[str, str], dict[str, str]] = ({}, {"path": "loopback: both are on one host"})
_AT_ONCE: tuple[tuple[str, ...], tuple[str, ...]] = ((), ("pairs_at_once",))
_STRAYED: tuple[tuple[str, ...], tuple[str, ...]] = ((), ("other_path",))


def tools_of(run: PairRun) -> Tools:
    """Return the requested tools. All ranks must call it. Raises UsageError if one is missing, or if the places are simulated."""
    request = run.request.tools
    if request and run.backend.virtual:
        raise UsageError(f"--tools {','.join(request)} needs real hosts, but backend {run.backend.name} has none: use another --backend")
    return installed_tools(run.launch.world, request)


def run_tools(match: PairRun, tools: Tools) -> None:
    """Run the tools in rounds, at all ranks, until all measured pairs are done or the time of --budget is used up again."""
    if not tools.tools:
        return
    world, began = match.launch.world, time.monotonic()
    match.note(ToolsRun(tuple(_named(tools, tool) for tool in tools.tools)))
    done, rounds = 0, list(match.plan.rounds())[: world.broadcast(_rounds(match), "choosing the tools' rounds")]
    for number, pairs in enumerate(rounds):
        spent_s = world.broadcast(time.monotonic() - began, "running the next tools")
        if number and spent_s > match.request.budget_s:
            break
        for row in _of_round(match, tools, pairs):
            _keep(match, row)
        done += len(pairs)
        if match.listener:
            each_s = (time.monotonic() - began) / (number + 1)
            match.listener.round(number + 1, len(rounds), len(pairs), each_s * (len(rounds) - number - 1))
    left = sum(map(len, rounds)) - done
    if left:
        match.note(ToolsCutShort(done, done + left))


def _named(tools: Tools, tool: WireTool) -> str:
    versions = " and ".join(dict.fromkeys(each for each in tools.versions[tool.name] if each))
    return f"{tool.name} {versions}".strip()


def _rounds(run: PairRun) -> int:
    """Return how many rounds of the plan rank 0 has measured, at all ranks."""
    return len({one.round for one in run.rounds if not one.again})


def _of_round(run: PairRun, tools: Tools, pairs: Sequence[Pair]) -> Iterator[Row]:
    members = members_of(run.backend, run.launch.world)
    firsts = [ranks[0] for ranks in run.places.ranks]
    for tool in tools.tools:
        for request in _tool_requests(run, tool):
            for ways in (pairs, [(b, a) for a, b in pairs]):
                courses = [ToolPair(members[firsts[a]], members[firsts[b]]) for a, b in ways]
                found = run_tool(run.launch.world, tool, request, courses, tools.versions[tool.name])
                for (a, b), course, ran in zip(ways, courses, found, strict=True):
                    row = _row(tool, request, course, ran)
                    around = {"from": run.places.names[a], "to": run.places.names[b], **_INSIDE[course.inside]}
                    yield replace(row, group=f"{firsts[a]}-{firsts[b]}", flags=(*row.flags, *_AT_ONCE[len(pairs) > 1]),
                                  evidence={**row.evidence, **around})  # fmt: skip


def _tool_requests(match: PairRun, tool: WireTool) -> list[ToolRequest]:
    request, budget = match.request, match.request.launch.budget
    seconds = min(budget.max_time_s, match.launch.world.timeout_s / 2)  # a running tool shows no progress
    sizes = {operation: request.latency_size_bytes if operation == LATENCY else request.size_bytes for operation in tool.operations}
    return [ToolRequest(operation, size, seconds) for operation, size in sizes.items()]


def _row(tool: WireTool, request: ToolRequest, course: ToolPair, ran: ToolResult) -> Row:
    """Return the row of one run of a tool, without the places."""
    time_s = ran.figure.time_s if ran.figure else None
    rate = request.size_bytes / time_s if time_s else None
    return Row(
        request.operation, tool.name, tool.api, "cpu", "uint8", None, None, "batched", False, "fixed", "all", None,
        request.size_bytes, request.size_bytes, 2, 1 if course.inside else 2, na=ran.why, n=ran.figure.n if ran.figure else 0,
        time_s=Times(time_s, None, None, None, None, None, None) if time_s else None,
        algbw_bytes_per_s=rate, busbw_bytes_per_s=rate, flags=(*FLAGS, *_STRAYED[ran.other_path]),
        evidence=ran.evidence(tool),
    )  # fmt: skip


def _keep(run: PairRun, row: Row) -> None:
    if row.na and all(row.na != other.na for other in run.external):
        run.note(ToolFailed(row.backend, row.evidence["from"], row.evidence["to"], row.na))
    if run.launch.folder:
        run.launch.folder.append_round(row.as_json(), TOOLS)
    run.external.append(row)


# The launch of a pairs run: open a backend, measure all rounds on all ranks together, and measure suspects again.


def run_pairs(pairs_request: PairsRequest, world: World, listener: PairsListener | None, ended: Callable[[int], None]) -> int:
    """Measure all pairs on all ranks of `world`. Return the exit code, the same on all ranks. Raises CollbenchError.

    `ended` receives the exit code before the libraries are closed, as in `cases.run`.
    """
    request, waiting = pairs_request.launch, list[Fact]()
    launch = Launch.begun(request, world)
    opened = first_available(request, world, waiting.append)
    run = _pair_run(pairs_request, launch, listener, opened)
    tools = tools_of(run)
    launch.folder = create_folder(launch, [opened], {"pairs": run.about(measured=None)}, run.plan.number)
    return run_with_cleanup(RunContext(launch, [opened], listener, ended), lambda: _play_all(run, tools, waiting))


def _pair_run(request: PairsRequest, launch: Launch, listener: PairsListener | None, opened: OpenBackend) -> PairRun:
    """Return the run with its places and schedule. Raises UsageError for options that do not fit the launch or its memory."""
    world, backend = launch.world, opened.backend
    assert backend is not None
    by_host = ranks_by_host(backend, world)
    places = places_of(request, world.hosts, by_host)
    run = PairRun(request, launch, listener, opened, places, schedule_of(request, places, by_host, launch.order_seed))
    check_pairs(request, launch, opened)
    return run


def _play_all(run: PairRun, tools: Tools, waiting: Sequence[Fact]) -> int:
    launch, world = run.launch, run.launch.world
    ceilings = Ceilings(launch.request, world)
    ceilings.prepare([], [])  # reads the machines for topology.json
    if launch.folder:
        launch.folder.write_topology(ceilings.topology())
    if run.listener:
        run.listener.begin_pairs(run.about(measured=None), str(launch.folder.path) if launch.folder else "")
    for fact in (*waiting, *notes(launch, [run.opened]), *limits(run)):
        run.note(fact)
    context = pair_context(run.request, launch, run.opened, run.places)
    run.began = time.monotonic()
    if measure_rounds(run, context):
        measure_again(run, context)
        run_tools(run, tools)
    return conclude_pairs(run)
