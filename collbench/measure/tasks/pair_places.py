"""What is asked of a pairs run, which places are paired, and how many pairs the time allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.measure.request import Request
from collbench.operations.groups import Groups, Pair, Schedule, schedule
from collbench.units import format_duration

MEASUREMENTS = 3  # of each round: the latency, then the bandwidth each way


@dataclass(frozen=True)
class PairsRequest:
    """One pairs run.

    launch       what concerns the launch; its budget is that of one measurement, of which a round has three
    by           "rank" or "node"; None: nodes where there are several
    size_bytes   of the messages whose bandwidth is measured; latency_size_bytes: of those whose latency is
    concurrent   pairs of places that are measured at the same time, at most; None: all of a round
    one_to_all   the rank (or a rank of the node) whose pairs alone are measured; None: all pairs
    sample       partners that each place has at least; None: all
    budget_s     seconds for the whole matrix, the suspects that are measured again apart
    tools        names of wire tools that run between the same pairs; none by default
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


@dataclass(frozen=True)
class Places:
    """What is paired.

    by      "rank" or "node"
    names   "node1", or "rank 3 (node1)"
    ranks   those of each place, equally many: two places meet with all of theirs at once, each with its counterpart
    rests   ranks that take no part, since another node has fewer
    """

    by: str
    names: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    rests: int = 0

    @property
    def n(self) -> int:
        """How many."""
        return len(self.names)

    @property
    def width(self) -> int:
        """Ranks of each place."""
        return len(self.ranks[0])

    @property
    def resting(self) -> str | None:
        """A sentence where ranks take no part; None: all do."""
        if not self.rests:
            return None
        return f"each node takes part with as many ranks as the smallest has, {self.width}: of all nodes' ranks {self.rests} rest"

    def groups(self, pairs: Sequence[Pair], backward: bool = False) -> Groups:
        """The pairs of ranks that send, pair by pair of places; `backward`: from the second place to the first."""
        each = [(b, a) if backward else (a, b) for a, b in pairs]
        return tuple(ranks for a, b in each for ranks in zip(self.ranks[a], self.ranks[b], strict=True))


def places_of(asked: PairsRequest, hosts: Sequence[str], by_host: Sequence[Sequence[int]]) -> Places:
    """The places of a launch, from its hosts and the ranks on each. Raises UsageError where there are no two of them."""
    if sum(map(len, by_host)) < 2:
        raise UsageError(f"{asked.launch.command} needs two ranks, and this launch has one: start more, without a launcher by --ranks 2")
    by = asked.by or ("node" if len(hosts) > 1 else "rank")
    if by == "node" and len(hosts) < 2:
        raise UsageError(f"--by node needs two nodes, and all ranks are on {hosts[0]}: start ranks on others, too, or choose --by rank")
    if by == "node":
        width = min(map(len, by_host))
        return Places(by, tuple(hosts), tuple(tuple(ranks[:width]) for ranks in by_host), sum(len(ranks) - width for ranks in by_host))
    host_of = {rank: host for host, ranks in zip(hosts, by_host, strict=True) for rank in ranks}
    return Places(by, tuple(f"rank {rank} ({host_of[rank]})" for rank in sorted(host_of)), tuple((rank,) for rank in sorted(host_of)))


def schedule_of(asked: PairsRequest, places: Places, by_host: Sequence[Sequence[int]], seed: int) -> Schedule:
    """What is measured. Raises UsageError for a sample or a rank that the places do not have."""
    if asked.sample is not None and asked.sample >= places.n:
        raise UsageError(
            f"--sample {asked.sample} asks for more partners than each of {places.n} {places.by}s has: choose {_up_to(places.n - 1)}"
        )
    center = None if asked.one_to_all is None else _place_of(asked.one_to_all, places, by_host)
    most = int(asked.budget_s / (MEASUREMENTS * asked.launch.budget.max_time_s))
    return schedule(places.n, at_once=asked.concurrent, center=center, partners=asked.sample, most=most, seed=seed)


def _place_of(rank: int, places: Places, by_host: Sequence[Sequence[int]]) -> int:
    ranks = sum(map(len, by_host))
    if rank >= ranks:
        raise UsageError(f"--one-to-all {rank}: there is no rank {rank} among {ranks}: choose one from 0 to {ranks - 1}")
    return next(place for place, those in enumerate(by_host) if rank in those) if places.by == "node" else rank


def _up_to(most: int) -> str:
    return "1" if most == 1 else f"1 to {most}"


def sampled(asked: PairsRequest, plan: Schedule, visited: int) -> str | None:
    """A sentence where only some of the pairs were measured: how many of how many, and why; else None."""
    if visited >= plan.possible:
        return None
    whole = plan.whole_rounds
    wanted = whole if asked.sample is None else min(asked.sample + plan.least - 1, whole)
    why = f"--sample {asked.sample}" if visited * whole >= wanted * plan.possible else _too_long(asked, plan)
    return f"{visited} of {plan.possible} pairs are sampled ({why})"


def _too_long(asked: PairsRequest, plan: Schedule) -> str:
    longest_s, budget = plan.whole_rounds * plan.parts * MEASUREMENTS * asked.launch.budget.max_time_s, _duration(asked.budget_s)
    if longest_s <= asked.budget_s:  # what lies between the measurements took the rest
        return f"--budget {budget} is used up: raise it to measure more"
    return f"all of them may take {_duration(longest_s)}, and --budget allows {budget}: raise it to measure more"


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(seconds)
