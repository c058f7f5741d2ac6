"""Measure one round on all ranks: disjoint pairs, groups that reduce, or streams over one interface of every node.

A backend cannot select an interface, but a TCP stream between the addresses of an interface can. The interface counters at both
ends prove the path. If several interfaces are in one network, the kernel may use another one; then the figure is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.backends.backend import Backend, Group, can_do
from collbench.control.world import World
from collbench.errors import CollbenchError, PeerFailed, WaitExpired
from collbench.measuring.monitored import StateProbe
from collbench.measuring.prepared_case import BackendContext, PreparedCase, placed, prepare, release, time_shortly, verify_case
from collbench.measuring.request import Budget
from collbench.measuring.sampling import Measurement, slowest
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BANDWIDTH, P2P_LATENCY
from collbench.operations.case import Case
from collbench.operations.data import Mismatch
from collbench.operations.dtypes import dtype_named
from collbench.operations.groups import Groups, Pair, Round
from collbench.operations.operation import Operation
from collbench.operations.sweep import Sweep
from collbench.plugins.channels.tcp_streams import COUNTED, StreamReport, TcpStream, run_streams
from collbench.plugins.hunt.disturbances import monitor_round
from collbench.plugins.hunt.places import PairsRequest, Places, Rails, RoundOrder, leaders
from collbench.plugins.hunt.records import HuntRound, PairRound
from collbench.reason import Fact
from collbench.stats.median import median

_Interval = tuple[float | None, float | None]
_NOTHING: _Interval = (None, None)
_WARMUPS = (10, 1)  # calls before the first sample, after the trial call: a window of messages also warms up the connection
_GROUP_WARMUPS = 2  # the first one connects
_COUNTED_PART = 0.8  # of a stream's time; the rest is its warm-up


@dataclass(frozen=True)
class RoundMeasurement:
    """One of the three measurements of a round, with its budget. backward: the second place of each pair sends."""

    operation: Operation
    case: Case
    budget: Budget
    backward: bool = False


def ways_of(request: PairsRequest, backend: str) -> tuple[RoundMeasurement, RoundMeasurement, RoundMeasurement]:
    """Return the three measurements on a backend: latency, forward bandwidth and backward bandwidth."""

    def way(operation: Operation, size_bytes: int, warmups: int) -> RoundMeasurement:
        case = _only_case(request, operation, size_bytes, backend, 2).placed(False)
        return RoundMeasurement(operation, case, _warmed(request.launch.budget, warmups))

    latency = way(P2P_LATENCY, request.latency_size_bytes, _WARMUPS[0])
    bandwidth = way(P2P_BANDWIDTH, request.size_bytes, _WARMUPS[1])
    return latency, bandwidth, replace(bandwidth, backward=True)


def group_case(request: PairsRequest, backend: Backend) -> Case:
    """Return the all-reduce case of groups. It has the size of the messages, and a floating-point type as gradients have."""
    case = _only_case(request, ALLREDUCE, request.size_bytes, backend.name, backend.ranks, dtypes=(dtype_named("float32"),))
    return placed(case, ALLREDUCE, backend)


def _only_case(request: PairsRequest, operation: Operation, size_bytes: int, backend: str, n: int, **more: Any) -> Case:
    sweep = request.launch.sweep
    assert isinstance(sweep, Sweep)
    (case,) = replace(sweep, operations=(operation,), sizes=(size_bytes,), **more).cases(backend, n)
    return case


def _warmed(budget: Budget, warmups: int) -> Budget:
    return budget if budget.warmup is not None else replace(budget, warmup=warmups)


def no_groups(request: PairsRequest, backend: Backend, world: World) -> str | None:
    """Return why a rank's backend cannot reduce over groups, the same at all ranks; or None. All ranks must call it."""
    return world.first_error(
        can_do(backend, ALLREDUCE, group_case(request, backend)), f"asking {backend.name} whether it reduces over groups"
    )


# What all kinds of rounds share: the figures of a group, and the measurement of a case over the groups of a round.


@dataclass(frozen=True)
class GroupResult:
    """The figures of one pair or group of a round; see `HuntRound` for the fields."""

    speed: float | None = None
    backward: float | None = None
    latency_s: float | None = None
    low: float | None = None
    high: float | None = None
    wrong: int = 0
    detail: str | None = None
    na: str | None = None
    cpu_wait: float = 0.0
    flipped: bool = False


def hunt_round(number: int, order: RoundOrder, results: Sequence[GroupResult], flags: Iterable[str] = ()) -> HuntRound:
    """Return the round of a hunt with the results of its groups."""

    def each(name: str) -> tuple[Any, ...]:
        return tuple(getattr(one, name) for one in results)

    recorded = order.kind == "pairs"
    return HuntRound(
        number, order.kind, order.stage, order.why, order.groups, each("speed"), each("backward"), each("latency_s"), each("low"),
        each("high"), each("wrong"), each("na"), order.nic, tuple(dict.fromkeys(flags)), each("detail"),
        each("cpu_wait") if recorded else (), each("flipped") if recorded else (),
    )  # fmt: skip


def wrong_by(key_of: Mapping[int, Hashable], mismatches: Sequence[Mismatch]) -> tuple[Counter[Hashable], dict[Hashable, str]]:
    """Return the number of wrong elements and the first description of them, by the pair or group of the rank that received them."""
    wrong: Counter[Hashable] = Counter()
    details: dict[Hashable, str] = {}
    for mismatch in mismatches:
        wrong[key_of[mismatch.rank]] += mismatch.wrong
        details.setdefault(key_of[mismatch.rank], mismatch.sentence())
    return wrong, details


def rate(moved: float, seconds: float | None) -> float | None:
    """Return the bytes per second; None if the time is unknown, or too short to be valid."""
    return moved / seconds if seconds else None


def _figure(samples: NDArray[np.float64]) -> tuple[float | None, _Interval]:
    """Return the median and its interval. Equal samples have no interval, since the clock's resolution hides their differences."""
    known = median(samples)
    if known.value <= 0:
        return None, _NOTHING
    return known.value, _NOTHING if samples.min() == samples.max() else (known.ci_low, known.ci_high)


@dataclass(frozen=True)
class RoundRunner:
    """A runner of rounds on all ranks: the open backend, the places and the three measurements of pairs.

    flags      quality flags of every round
    probe      the state probe of all ranks; None: not available
    rails      the interfaces that streams can use
    no_groups  why groups cannot be measured; None: they can
    """

    request: PairsRequest
    world: World
    context: BackendContext
    places: Places
    ways: tuple[RoundMeasurement, RoundMeasurement, RoundMeasurement]
    flags: tuple[str, ...] = ()
    probe: StateProbe | None = None
    rails: Rails | None = None
    no_groups: str | None = None

    def play(self, number: int, order: RoundOrder) -> HuntRound | None:
        """Return a hunt's round at rank 0, None elsewhere. All ranks call with the same request."""
        if order.kind == "pairs":
            played = list(self.play_pairs(number, tuple((group[0], group[1]) for group in order.groups)))
            return of_pairs(number, order, played, self.request.size_bytes) if self.world.rank == 0 else None
        if order.kind == "nic" and order.nic not in (self.rails or {}):
            results, flags = self._without(order, f"some nodes do not have the interface {order.nic}")
        elif order.kind == "nic":
            results, flags = self._streamed(order)
        elif self.no_groups:
            results, flags = self._without(order, self.no_groups)
        else:
            results, flags = self._reduced(order)
        return hunt_round(number, order, results, flags) if self.world.rank == 0 else None

    @staticmethod
    def _without(order: RoundOrder, why: str) -> tuple[list[GroupResult], Sequence[str]]:
        return [GroupResult(na=why)] * len(order.groups), ()

    def _timed(
        self, operation: Operation, case: Case, groups: Groups, context: BackendContext, budget: Budget
    ) -> tuple[PreparedCase, Measurement | None, Sequence[Mismatch] | None] | Fact:
        """Measure and verify a case over the groups of a round. Results are at rank 0; a rejection is the same at all ranks."""
        ready = prepare(operation, case, context, self.world, groups)
        if isinstance(ready, Fact):
            return ready
        check = self.request.launch.check
        measured = time_shortly(ready, self.world, budget)
        mismatches = verify_case(ready, self.world, check) if check else []
        release(ready, context.backend)
        return ready, measured, mismatches

    # Disjoint pairs: latency, then the bandwidth in each direction, for all pairs at once and in step on all ranks.

    def play_pairs(self, number: int, pairs: Round, again: bool = False) -> Iterator[PairRound]:
        """Measure a round of pairs on all ranks; yield its results at rank 0, nothing elsewhere.

        If a rank rejects a measurement, the halves of the round are measured separately, and so on. At the end only the pairs
        that cannot run are n/a.
        """
        times: list[PairTimes] = []
        reason = None
        with monitor_round(self.world, self.probe) as watch:
            for way in self.ways:
                found = self._pair_times(way, pairs)
                if isinstance(found, str):
                    reason = found
                    break
                times += [found] if found else []
        half = len(pairs) // 2
        if reason is not None and half:
            yield from self.play_pairs(number, pairs[:half], again)
            yield from self.play_pairs(number, pairs[half:], again)
        elif reason is not None and self.world.rank == 0:
            gap, nothing = (None,), (_NOTHING,)
            yield PairRound(number, pairs, gap, nothing, gap, nothing, gap, nothing, gap, (reason,), again=again, flags=self.flags)
        elif len(times) == len(self.ways):
            disturbed = [watch.of([*self.places.ranks[a], *self.places.ranks[b]]) for a, b in pairs]
            yield replace(
                self._pair_round(number, pairs, again, times),
                cpu_wait=tuple(round(each.cpu_wait, 4) for each in disturbed),
                flipped=tuple(each.flipped for each in disturbed),
            )

    def _pair_times(self, way: RoundMeasurement, pairs: Round) -> PairTimes | str | None:
        """Return one measurement, with figures at rank 0, or why a rank rejects it, the same at all ranks.

        If pairs share a host's NIC, all ranks synchronize before each sample, so that the pairs share it in every sample.
        Otherwise they synchronize only before a batch: pairs need not wait for one another, and the start skew would be part of
        a ping-pong's time.
        """
        shared = self.places.by == "rank" or self.places.width > 1
        context = replace(self.context, each_time=shared and way.operation is P2P_BANDWIDTH)
        timed = self._timed(way.operation, way.case, self.places.groups(pairs, way.backward), context, way.budget)
        if isinstance(timed, Fact):
            return timed.render()
        ready, measured, mismatches = timed
        return None if measured is None or mismatches is None else pair_times(self.places.width, ready, measured, mismatches)

    def _pair_round(self, number: int, pairs: Sequence[Pair], again: bool, times: Sequence[PairTimes]) -> PairRound:
        latency, forward, backward = times
        wrong = [sum(each) for each in zip(*(one.wrong for one in times), strict=True)]
        flags = dict.fromkeys((*self.flags, *(["pairs_at_once"] if len(pairs) > 1 else []), *(flag for one in times for flag in one.flags)))
        return PairRound(
            number, tuple(pairs), latency.seconds, latency.intervals, forward.seconds, forward.intervals, backward.seconds,
            backward.intervals, tuple(wrong if self.request.launch.check else [None] * len(pairs)), (None,) * len(pairs),
            (latency.n, forward.n, backward.n), again,
            tuple(flags), tuple(next(filter(None, details), None) for details in zip(*(one.wrong_detail for one in times), strict=True)),
        )  # fmt: skip

    # All-reduces in disjoint groups, all at the same time. A group is several places, or the ranks of one place.

    def _reduced(self, order: RoundOrder) -> tuple[list[GroupResult], Sequence[str]]:
        """Return the result of each group, at rank 0. A group with only one rank has no figure, since it moves no data."""
        ranks = [tuple(rank for place in group for rank in self.places.ranks[place]) for group in order.groups]
        groups = tuple(each for each in ranks if len(each) > 1)
        found, flags = self._reduced_over(groups) if groups else ({}, ())
        alone = GroupResult(na="one rank: nothing to reduce")
        return [found.get(each, alone) for each in ranks], (*self.flags, *flags)

    def _reduced_over(self, groups: Groups) -> tuple[dict[tuple[int, ...], GroupResult], Sequence[str]]:
        backend = self.context.backend
        with self.world.watchdog.phase(f"making groups on {backend.name}"):
            wrong, made = _made(backend, [ranks for ranks in groups if ranks not in self.context.members])
        if reason := self.world.first_error(wrong, "making the groups of a round"):
            timed: Any = reason
        else:
            context = replace(self.context, members=self.context.members | made)
            budget = _warmed(self.request.launch.budget, _GROUP_WARMUPS)
            timed = self._timed(ALLREDUCE, group_case(self.request, backend), groups, context, budget)
        for group in made.values():
            if group is not None:
                backend.release(group)
        if not isinstance(timed, tuple):
            return dict.fromkeys(groups, GroupResult(na=str(timed))), ()
        ready, measured, mismatches = timed
        if measured is None or mismatches is None:
            return {}, ()
        return _reached(ready, measured, mismatches), (*measured.flags, *(["python_loop"] if ready.fell_back else []))

    # Streams between the first processes of two nodes, one direction after the other.

    def _streamed(self, order: RoundOrder) -> tuple[list[GroupResult], Sequence[str]]:
        """Return the result of each pair: it has the interval of its slower direction, and no figure if one direction has none."""
        seconds, nic = self.request.launch.budget.max_time_s, order.nic or ""
        firsts, addresses = leaders(self.world, self.places), (self.rails or {})[nic]
        ways = [TcpStream(firsts[a], firsts[b], addresses[b], addresses[a], nic) for a, b in order.groups]
        each_way = [ways, [way.reversed for way in ways]]
        found = [zip(those, run_streams(self.world, those, seconds), strict=True) for those in each_way]
        both = list(zip(*([_stream_result(way, report, seconds) for way, report in one] for one in found), strict=True))
        results = []
        for (there, _), (back, _) in both:
            slower = min((there, back), key=lambda one: one.speed or 0.0)
            detail = there.detail or back.detail
            na = there.na or back.na
            results.append(GroupResult(there.speed, back.speed, None, slower.low, slower.high, int(detail is not None), detail, na))
        proven = all(seen for pair in both for _, seen in pair)
        return results, () if proven else ("path_unproven",)


# Pairs: from samples to times, and from times to the round of a hunt.


@dataclass(frozen=True)
class PairTimes:
    """One measurement of all pairs, at rank 0: seconds per message with their intervals, wrong elements, samples, flags."""

    seconds: tuple[float | None, ...]
    intervals: tuple[_Interval, ...]
    wrong: tuple[int, ...]
    n: int
    flags: tuple[str, ...]
    wrong_detail: tuple[str | None, ...]


def pair_times(width: int, ready: PreparedCase, measured: Measurement, mismatches: Sequence[Mismatch]) -> PairTimes:
    """Return the times of each pair of places: those of its slowest pair of ranks, measured at the pairs' first ranks.

    width: the number of ranks of a place.
    """
    initiators = [group[0] for group in ready.groups]
    each = [initiators[at : at + width] for at in range(0, len(initiators), width)]
    messages = ready.operation.moves(ready.case) * (width if ready.operation is P2P_BANDWIDTH else 1)
    found = [_figure(slowest(measured.samples, ranks) / messages) for ranks in each]
    turn_of = {rank: turn // width for turn, group in enumerate(ready.groups) for rank in group}
    wrong, details = wrong_by(turn_of, mismatches)
    flags = [*measured.flags, *(["python_loop"] if ready.fell_back else [])]
    return PairTimes(
        tuple(seconds for seconds, _ in found), tuple(interval for _, interval in found), tuple(wrong[turn] for turn in range(len(each))),
        measured.samples.shape[1], tuple(flags), tuple(details.get(turn) for turn in range(len(each))),
    )  # fmt: skip


def of_pairs(number: int, order: RoundOrder, played: Sequence[PairRound], size: int) -> HuntRound:
    """Return the measured rounds as one hunt round. There are several if a rank rejected a measurement."""
    met: dict[tuple[int, ...], GroupResult] = {}
    for one in played:
        details = one.wrong_detail or (None,) * len(one.pairs)
        for turn, pair in enumerate(one.pairs):
            times = [(one.forward_s[turn], one.forward_ci_s[turn]), (one.backward_s[turn], one.backward_ci_s[turn])]
            _, (first, last) = max(times, key=lambda way: way[0] or 0.0)  # of the slower direction
            there, back = (rate(size, seconds) for seconds, _ in times)
            low, high = rate(size, last), rate(size, first)
            met[pair] = GroupResult(
                there, back, one.latency_s[turn], low, high, one.wrong[turn] or 0, details[turn], one.na[turn],
                one.cpu_wait[turn] if one.cpu_wait else 0.0, bool(one.flipped and one.flipped[turn]),
            )  # fmt: skip
    return hunt_round(number, order, [met[group[0], group[1]] for group in order.groups], (flag for one in played for flag in one.flags))


# Groups: their creation, and their bus bandwidth.


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
        except (PeerFailed, WaitExpired):  # of an exchange: the launch ends
            raise
        except (CollbenchError, RuntimeError) as error:
            why.append(str(error) or type(error).__name__)
    return next(iter(why), None), made


def _reached(ready: PreparedCase, measured: Measurement, mismatches: Sequence[Mismatch]) -> dict[tuple[int, ...], GroupResult]:
    """Return the result of each group: the median over samples of its slowest rank."""
    wrong, details = wrong_by({rank: ranks for ranks in ready.groups for rank in ranks}, mismatches)
    found = {}
    for ranks in ready.groups:
        seconds, ends = _figure(slowest(measured.samples, list(ranks)))
        moved = ready.case.size_bytes * ALLREDUCE.bus_factor(len(ranks))
        low, high = (rate(moved, end) for end in reversed(ends))
        found[ranks] = GroupResult(rate(moved, seconds), low=low, high=high, wrong=wrong[ranks], detail=details.get(ranks))
    return found


# Streams: whether the bytes took the interface.


def _stream_result(way: TcpStream, report: StreamReport, seconds: float) -> tuple[GroupResult, bool]:
    """Return (the rate of a stream with its interval, or why it is unknown; whether both interfaces counted it)."""
    if report.why:
        return GroupResult(na=report.why), True
    rates, left, came = report.rates, report.left, report.came
    if not rates.size or rates.max() <= 0:
        return GroupResult(na=f"{way.nic} of {way.source.host}: the stream stalled", detail=report.wrong), True
    least = COUNTED * float(np.mean(rates)) * seconds * _COUNTED_PART
    elsewhere = f"over another interface than {way.nic}, although it has the address of {way.nic}"
    if left is not None and left < least:
        return GroupResult(na=f"the stream left {way.source.host} {elsewhere}", detail=report.wrong), True
    if came is not None and came < least:
        return GroupResult(na=f"the stream reached {way.target.host} {elsewhere}", detail=report.wrong), True
    known = median(rates)
    proven = left is not None and came is not None
    return GroupResult(known.value or None, low=known.ci_low, high=known.ci_high, detail=report.wrong), proven
