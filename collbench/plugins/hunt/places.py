"""The requests of pairs runs and hunts, and the ranks or nodes that form pairs: which of them, in which rounds, over which interfaces."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.addresses import Family, family_of, is_link_local, is_loopback
from collbench.backends.registry import missing_backend
from collbench.control.members import Member
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.measuring.request import Placement, Request, TaskRequest
from collbench.operations.dtypes import dtype_named
from collbench.operations.groups import Groups, Pair, Schedule, schedule
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.plugins.hunt.protocol import RoundRequest
from collbench.plugins.hunt.records import HuntRound
from collbench.reason import Fact
from collbench.report.dry_run import MEASUREMENTS
from collbench.units import format_duration, plural


class PairsRequest(TaskRequest, frozen=True):
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

    by: str | None = None
    size_bytes: int = 2**20
    latency_size_bytes: int = 8
    concurrent: int | None = None
    one_to_all: int | None = None
    sample: int | None = None
    budget_s: float = 600.0
    tools: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Return the options for run.json: a run is resumed only with the same ones."""
        sweep = self.launch.sweep
        assert isinstance(sweep, Sweep)
        return {
            "--by": self.by, "--size": self.size_bytes, "--latency-size": self.latency_size_bytes, "--concurrent": self.concurrent,
            "--one-to-all": self.one_to_all, "--sample": self.sample, "--budget": self.budget_s, "--tools": list(self.tools),
            "--device": sweep.device, "--window": sweep.window, "--streams": sweep.streams,
        }  # fmt: skip

    @property
    def cases(self) -> Request:
        """Return the request with the sweep of the largest messages, on the first backend that is installed."""
        return self.with_cases("p2p_bandwidth", "uint8")

    def with_cases(self, operation: str, dtype: str) -> Request:
        """Return the request with the sweep of the largest messages of an operation."""
        sweep = self.launch.sweep
        assert isinstance(sweep, Sweep)
        installed = [name for name in self.launch.backends if not missing_backend(name)]
        sweep = replace(sweep, operations=(operations()[operation],), sizes=(self.size_bytes,), dtypes=(dtype_named(dtype),))
        return replace(self.launch, sweep=sweep, backends=tuple(installed[:1]))

    def places(self, placement: Placement) -> tuple[Places, list[list[int]]]:
        """Return (the planned places, the ranks of each host). Raises UsageError for fewer than two places."""
        self.launch.check_installed()
        hosts = range(len(placement.names))
        by_host = [[rank for rank, host in enumerate(placement.host_of) if host == number] for number in hosts]
        return places_of(self, placement.names, by_host), by_host

    def planned(self, placement: Placement, seed: int = 0) -> tuple[Places, Schedule]:
        """Return the places and the schedule of a pairs run. Raises UsageError for options that do not fit the ranks."""
        places, by_host = self.places(placement)
        return places, schedule_of(self, places, by_host, seed)

    def check(self, placement: Placement) -> None:
        """Raise UsageError for options that do not fit the ranks on this host."""
        self.planned(placement)


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


class Places(msgspec.Struct, frozen=True):
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
    def idle(self) -> str | None:
        """The sentence about ranks that take no part; None if all take part."""
        if not self.rests:
            return None
        return f"each node takes part with {plural(self.width, 'rank')}, the most that all have: {plural(self.rests, 'rank')} idle"

    def groups(self, pairs: Sequence[Pair], backward: bool = False) -> Groups:
        """Return the sending pairs of ranks, one pair of places after the other. backward: from the second place to the first."""
        directed = [(b, a) if backward else (a, b) for a, b in pairs]
        return tuple(ranks for sender, receiver in directed for ranks in zip(self.ranks[sender], self.ranks[receiver], strict=True))


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
        partners = "1" if places.n == 2 else f"1 to {places.n - 1}"
        raise UsageError(f"--sample {request.sample} exceeds the partners of each of {places.n} {places.by}s: use {partners}")
    center = request.one_to_all
    if center is not None:
        ranks = sum(map(len, by_host))
        if center >= ranks:
            raise UsageError(f"--one-to-all {center}: not a valid rank of {ranks}: use 0 to {ranks - 1}")
        if places.by == "node":
            center = next(place for place, members in enumerate(by_host) if center in members)
    most = int(request.budget_s / (MEASUREMENTS * request.launch.budget.max_time_s))
    return schedule(places.n, at_once=request.concurrent, center=center, partners=request.sample, most=most, seed=seed)


def sampled(request: PairsRequest, plan: Schedule, visited: int) -> PairsSampled | None:
    """Return how many of the pairs were measured, and why not all of them; None if all were."""
    if visited >= plan.possible:
        return None
    whole = plan.whole_rounds
    needed = whole if request.sample is None else min(request.sample + plan.least - 1, whole)
    sample = PairsSampled(visited, plan.possible, request.budget_s)
    if visited * whole >= needed * plan.possible:
        return replace(sample, sample=request.sample)
    needed_s = plan.whole_rounds * plan.parts * MEASUREMENTS * request.launch.budget.max_time_s
    # work between the rounds used the rest of the time
    return sample if needed_s <= request.budget_s else replace(sample, needed_s=needed_s)


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(seconds)


class HuntRequest(PairsRequest, frozen=True):
    """The request of one hunt: how pairs are measured, between which places, and the time for all rounds (`budget_s`).

    method   "auto", "pairs" or "groups"; rounds: of the sweep at most, None: by the number of places
    growing  whether growing groups are measured; isolate: whether confirmed places are measured alone
    node     the scheduler's name of this rank's node, if known
    cover_links  the file with the links that pairs must cross, or None; groups: where the groups of hosts come from, or None
    apply    whether confirmed nodes are drained; max_drain: the most of them, "2" or "2%"
    """

    method: str = "auto"
    rounds: int | None = None
    growing: bool = True
    isolate: bool = True
    node: str | None = None
    cover_links: Path | None = None
    groups: str | None = None
    apply: bool = False
    max_drain: str = "2%"

    @property
    def options(self) -> dict[str, Any]:
        """Return the options for run.json: a run is resumed only with the same ones."""
        options = super().options
        options |= {"--method": self.method, "--rounds": self.rounds}
        options |= {"--no-growing": not self.growing, "--no-isolation": not self.isolate}
        if self.groups:
            options["--groups"] = self.groups
        return options

    @property
    def cases(self) -> Request:
        """Return the request with the sweep of the largest messages."""
        return self.with_cases("allreduce", "float32") if self.method == "groups" else super().cases

    def check(self, placement: Placement) -> None:
        """Raise UsageError for options that do not fit the ranks on this host, or if its nodes cannot be drained."""
        from collbench.plugins.hunt.drain import check_apply
        from collbench.plugins.hunt.progress import planned_stages

        planned_stages(self, placement)
        if self.apply:
            check_apply(os.environ)


class Rounds:
    """The rounds that a strategy requests, at rank 0. Those that are stored answer it without a measurement.

    strategy  yields each round, and receives its records
    stored    the records of a run to resume; folder: of that run
    """

    def __init__(self, strategy: Generator[RoundRequest, list[Any], None], stored: Iterable[Any] = (), folder: Path = Path()) -> None:
        self._strategy = strategy
        self._folder = folder
        self._records: dict[int, list[Any]] = {}
        self.add(stored)
        self._number: int | None = None  # of the round that the strategy waits for; None: it was not asked yet
        self._order: RoundRequest | None = None  # what is left of that round

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the rounds that have records, in measured order."""
        return list(self._records)

    def add(self, records: Iterable[Any]) -> None:
        """Add the records of a round that was measured."""
        self._order = None
        for record in records:
            self._records.setdefault(record.round, []).append(record)

    def next(self) -> RoundRequest | None:
        """Return what is left to measure of the next round; None: the strategy has ended.

        Raises UsageError if the stored records are of another round than the strategy requests.
        """
        while self._order is None:
            try:
                order = next(self._strategy) if self._number is None else self._strategy.send(self._records.get(self._number, []))
            except StopIteration:
                return None
            self._number = order.number
            met: list[tuple[int, ...]] = []
            for record in self._records.get(order.number, ()):
                met += record.groups if isinstance(record, HuntRound) else record.pairs
            if not set(met) <= set(order.groups):
                why = f"round {order.number + 1} does not follow from those before it"
                raise UsageError(f"{self._folder} cannot be resumed: {why}; start a new run, without --resume")
            unmeasured = tuple(group for group in order.groups if group not in met)
            self._order = replace(order, groups=unmeasured) if unmeasured else None
        return self._order


# The interfaces that all nodes have.

Rails = Mapping[str, Sequence[str]]  # by interface the address of each place on it


def rails_of(world: World, places: Places) -> Rails:
    """Return by interface name the addresses of all nodes on it, if they differ and have one family; empty if ranks form the pairs.

    IPv4 is preferred if all nodes have it on that interface. All ranks must call it.
    """
    if places.by != "node":
        return {}
    firsts = leaders(world, places)
    replies = world.allgather(_addresses() if world.me in firsts else {}, "reading the interfaces' addresses")
    by_place = [replies[first.rank] for first in firsts]
    rails: dict[str, tuple[str, ...]] = {}
    for name in sorted(by_place[0]):
        for family in Family:
            addresses = tuple(interfaces.get(name, {}).get(family.value, "") for interfaces in by_place)
            if all(addresses) and len(set(addresses)) == len(addresses):
                rails.setdefault(name, addresses)
    return rails


def leaders(world: World, places: Places) -> list[Member]:
    """Return for each place the first rank of its host."""
    return [world.on_host(name)[0] for name in places.names]


def _addresses() -> dict[str, dict[str, str]]:
    """Return the first address of each family, by active interface of this host. Loopback and link-local addresses are excluded."""
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    by_interface: dict[str, dict[str, str]] = {}
    for name, interface_addresses in psutil.net_if_addrs().items():
        for family, address, *_ in interface_addresses:
            usable = family in (socket.AF_INET, socket.AF_INET6) and not is_loopback(address) and not is_link_local(address)
            if name in up and usable:
                by_interface.setdefault(name, {}).setdefault(family_of(address).value, address)
    return by_interface
