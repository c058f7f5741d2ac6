"""Measure one round on all ranks: disjoint pairs, groups that reduce, or streams over one interface of every node.

A backend cannot select an interface, but a TCP stream between the addresses of an interface can. The interface counters at both
ends prove the path. If several interfaces are in one network, the kernel may use another one; then the figure is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.backend import Backend, Group, can_do
from collbench.control.world import World
from collbench.errors import CollbenchError, PeerFailed, WaitExpired
from collbench.measuring.engine import Engine, Measured
from collbench.measuring.monitored import StateProbe
from collbench.measuring.prepared_case import BackendContext, PreparedCase, placed
from collbench.measuring.request import Budget
from collbench.measuring.sampling import Measurement, Stopping, slowest
from collbench.measuring.tasks.cases import CaseWork
from collbench.measuring.verification import DataError
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BANDWIDTH, P2P_LATENCY
from collbench.operations.case import Case
from collbench.operations.dtypes import dtype_named
from collbench.operations.groups import Groups, Round
from collbench.operations.operation import Operation
from collbench.operations.sweep import Sweep
from collbench.plugins.channels.tcp_streams import COUNTED, StreamReport, TcpStream, run_streams
from collbench.plugins.hunt.disturbances import largest, monitor_round
from collbench.plugins.hunt.places import PairsRequest, Places, Rails, leaders
from collbench.plugins.hunt.protocol import NIC, PAIRS, GroupFigure, RoundRequest, hunt_round, result_of_pairs
from collbench.plugins.hunt.records import HuntRound, PairRound
from collbench.reason import Fact
from collbench.stats.median import median

_Interval = tuple[float | None, float | None]
_NOTHING: _Interval = (None, None)
# Calls before the first sample, after the trial call: a window of messages also warms up the connection.
_LATENCY_WARMUPS, _BANDWIDTH_WARMUPS = 10, 1
_GROUP_WARMUPS = 2  # the first one connects
_COUNTED_PART = 0.8  # of a stream's time; the rest is its warm-up


class RoundMeasurement(msgspec.Struct, frozen=True):
    """One of the three measurements of a round, with its budget. backward: the second place of each pair sends."""

    operation: Operation
    case: Case
    budget: Budget
    backward: bool = False


def ways_of(request: PairsRequest, backend: str) -> tuple[RoundMeasurement, RoundMeasurement, RoundMeasurement]:
    """Return the three measurements on a backend: latency, forward bandwidth and backward bandwidth."""
    latency_case = _only_case(request, P2P_LATENCY, request.latency_size_bytes, backend, 2).placed(False)
    bandwidth_case = _only_case(request, P2P_BANDWIDTH, request.size_bytes, backend, 2).placed(False)
    latency = RoundMeasurement(P2P_LATENCY, latency_case, _warmed(request.launch.budget, _LATENCY_WARMUPS))
    bandwidth = RoundMeasurement(P2P_BANDWIDTH, bandwidth_case, _warmed(request.launch.budget, _BANDWIDTH_WARMUPS))
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
    refusal = can_do(backend, ALLREDUCE, group_case(request, backend))
    return world.first_error(refusal, f"asking {backend.name} whether it reduces over groups")


# What all kinds of rounds share: the record of a hunt's round, and the measurement of a case over the groups of a round.


def of_pairs(number: int, request: RoundRequest, played: Sequence[PairRound], size_bytes: int) -> HuntRound:
    """Return the measured rounds as one hunt round. There are several if a rank rejected a measurement."""
    result = result_of_pairs(request.groups, played, size_bytes)
    return hunt_round(number, request, result.figures, result.flags)


def wrong_by(key_of: Mapping[int, Hashable], mismatches: Sequence[DataError]) -> tuple[Counter[Hashable], dict[Hashable, str]]:
    """Return the number of wrong elements and the first description of them, by the pair or group of the rank that received them."""
    wrong: Counter[Hashable] = Counter()
    details: dict[Hashable, str] = {}
    for mismatch in mismatches:
        wrong[key_of[mismatch.rank]] += mismatch.wrong
        details.setdefault(key_of[mismatch.rank], mismatch.sentence())
    return wrong, details


def _median_time(samples: NDArray[np.float64]) -> tuple[float | None, _Interval]:
    """Return the median and its interval. Equal samples have no interval, since the clock's resolution hides their differences."""
    middle = median(samples)
    if middle.value <= 0:
        return None, _NOTHING
    return middle.value, _NOTHING if samples.min() == samples.max() else (middle.ci_low, middle.ci_high)


class PairTimes(msgspec.Struct, frozen=True):
    """One measurement of all pairs, at rank 0: seconds per message with their intervals, wrong elements, samples, flags."""

    seconds: tuple[float | None, ...]
    intervals: tuple[_Interval, ...]
    wrong: tuple[int, ...]
    n: int
    flags: tuple[str, ...]
    wrong_detail: tuple[str | None, ...]


def pair_times(width: int, ready: PreparedCase, measured: Measurement, mismatches: Sequence[DataError]) -> PairTimes:
    """Return the times of each pair of places of `width` ranks: its slowest pair of ranks, measured at the pairs' first ranks."""
    initiators = [group[0] for group in ready.groups]
    messages = ready.operation.moves(ready.case) * (width if ready.operation is P2P_BANDWIDTH else 1)
    turns = range(len(initiators) // width)
    times = [_median_time(slowest(measured.samples, initiators[turn * width : (turn + 1) * width]) / messages) for turn in turns]
    wrong, details = wrong_by({rank: number // width for number, group in enumerate(ready.groups) for rank in group}, mismatches)
    return PairTimes(
        seconds=tuple(seconds for seconds, _ in times),
        intervals=tuple(interval for _, interval in times),
        wrong=tuple(wrong[turn] for turn in turns),
        n=measured.samples.shape[1],
        flags=(*measured.flags, "python_loop") if ready.fell_back else tuple(measured.flags),
        wrong_detail=tuple(details.get(turn) for turn in turns),
    )


@dataclass
class RoundWork(CaseWork):
    """A case over the groups of a round: one of many short measurements. `monitor_round` observes it."""

    monitored = False

    def rule(self, ready: PreparedCase, budget: Budget) -> Stopping:
        """Return few batches."""
        return Stopping.short_measurement(budget, ready.case.size_bytes, ready.timed, ready.case.mode)


class RoundRunner(msgspec.Struct, frozen=True):
    """A runner of rounds on all ranks: the open backend, the places and the three measurements of pairs.

    flags      quality flags of every round
    probe      the state probe of all ranks; None: not available
    rails      the interfaces that streams can use
    no_groups  why groups cannot be measured; None: they can
    """

    request: PairsRequest
    engine: Engine
    context: BackendContext
    places: Places
    ways: tuple[RoundMeasurement, RoundMeasurement, RoundMeasurement]
    flags: tuple[str, ...] = ()
    probe: StateProbe | None = None
    rails: Rails | None = None
    no_groups: str | None = None

    @property
    def world(self) -> World:
        """The ranks."""
        return self.engine.world

    def play(self, number: int, request: RoundRequest) -> HuntRound | None:
        """Return a hunt's round at rank 0, None elsewhere. All ranks call with the same request."""
        if request.kind == PAIRS:
            played = list(self.play_pairs(number, tuple((group[0], group[1]) for group in request.groups)))
            return of_pairs(number, request, played, self.request.size_bytes) if self.world.rank == 0 else None
        why_not = self.no_groups
        if request.kind == NIC:
            why_not = None if request.nic in (self.rails or {}) else f"some nodes do not have the interface {request.nic}"
        flags: Sequence[str] = ()
        if why_not:
            figures = [GroupFigure(None, na=why_not)] * len(request.groups)
        elif request.kind == NIC:
            figures, flags = self._streamed(request)
        else:
            figures, flags = self._reduced(request)
        return hunt_round(number, request, figures, flags) if self.world.rank == 0 else None

    # Disjoint pairs: latency, then the bandwidth in each direction, for all pairs at once and in step on all ranks.

    def play_pairs(self, number: int, pairs: Round, again: bool = False) -> Iterator[PairRound]:
        """Measure a round of pairs on all ranks; yield its results at rank 0, nothing elsewhere.

        If a rank rejects a measurement, the halves of the round are measured separately, and so on. At the end only the pairs
        that cannot run are n/a.
        """
        times: list[PairTimes] = []
        reason = None
        with monitor_round(self.world, self.probe) as disturbances:
            for way in self.ways:
                way_times = self._pair_times(way, pairs)
                if isinstance(way_times, str):
                    reason = way_times
                    break
                if way_times:
                    times.append(way_times)
        half = len(pairs) // 2
        if reason is not None and half:
            yield from self.play_pairs(number, pairs[:half], again)
            yield from self.play_pairs(number, pairs[half:], again)
        elif reason is not None and self.world.rank == 0:
            missing = ((None,), (_NOTHING,))  # a time and its interval
            yield PairRound(number, pairs, *missing, *missing, *missing, (None,), (reason,), again=again, flags=self.flags)
        elif len(times) == len(self.ways):
            latency, forward, backward = times
            by_pair = [largest(disturbances, [*self.places.ranks[a], *self.places.ranks[b]]) for a, b in pairs]
            wrong: list[int | None] = [None] * len(pairs)
            if self.request.launch.check:
                wrong = [sum(counts) for counts in zip(*(way_times.wrong for way_times in times), strict=True)]
            flags = [*self.flags, *(flag for way_times in times for flag in way_times.flags)]
            if len(pairs) > 1:
                flags.insert(len(self.flags), "pairs_at_once")
            yield PairRound(
                round=number,
                pairs=tuple(pairs),
                latency_s=latency.seconds,
                latency_ci_s=latency.intervals,
                forward_s=forward.seconds,
                forward_ci_s=forward.intervals,
                backward_s=backward.seconds,
                backward_ci_s=backward.intervals,
                wrong=tuple(wrong),
                na=(None,) * len(pairs),
                n=(latency.n, forward.n, backward.n),
                again=again,
                flags=tuple(dict.fromkeys(flags)),
                wrong_detail=tuple(
                    next(filter(None, details), None) for details in zip(*(way_times.wrong_detail for way_times in times), strict=True)
                ),
                cpu_wait=tuple(round(disturbance.cpu_wait, 4) for disturbance in by_pair),
                flipped=tuple(disturbance.flipped for disturbance in by_pair),
            )

    def _pair_times(self, way: RoundMeasurement, pairs: Round) -> PairTimes | str | None:
        """Return one measurement, with figures at rank 0, or why a rank rejects it, the same at all ranks.

        If pairs share a host's NIC, all ranks synchronize before each sample, so that the pairs share it in every sample.
        Otherwise they synchronize only before a batch: pairs need not wait for one another, and the start skew would be part of
        a ping-pong's time.
        """
        shared = self.places.by == "rank" or self.places.width > 1
        context = replace(self.context, each_time=shared and way.operation is P2P_BANDWIDTH)
        work = RoundWork(context, way.operation, way.case, self.places.groups(pairs, way.backward))
        result = self.engine.measure(work, way.budget)
        if isinstance(result, Fact):
            return result.render()
        if result.measured is None or result.wrong is None:
            return None
        return pair_times(self.places.width, result.ready, result.measured, result.wrong)

    # All-reduces in disjoint groups, all at the same time. A group is several places, or the ranks of one place.

    def _reduced(self, request: RoundRequest) -> tuple[list[GroupFigure], Sequence[str]]:
        """Return the figures of each group, at rank 0. A group with only one rank has none, since it moves no data."""
        ranks = [tuple(rank for place in group for rank in self.places.ranks[place]) for group in request.groups]
        groups = tuple(members for members in ranks if len(members) > 1)
        figures: dict[tuple[int, ...], GroupFigure] = {}
        flags: Sequence[str] = ()
        if groups:
            figures, flags = self._reduced_over(groups)
        alone = GroupFigure(None, na="one rank: nothing to reduce")
        return [figures.get(members, alone) for members in ranks], (*self.flags, *flags)

    def _reduced_over(self, groups: Groups) -> tuple[dict[tuple[int, ...], GroupFigure], Sequence[str]]:
        backend = self.context.backend
        with self.world.watchdog.phase(f"making groups on {backend.name}"):
            refusal, made = _made(backend, [ranks for ranks in groups if ranks not in self.context.members])
        reason = self.world.first_error(refusal, "making the groups of a round")
        result: Measured | Fact | None = None
        if not reason:
            context = replace(self.context, members=self.context.members | made)
            work = RoundWork(context, ALLREDUCE, group_case(self.request, backend), groups)
            result = self.engine.measure(work, _warmed(self.request.launch.budget, _GROUP_WARMUPS))
        for group in made.values():
            if group is not None:
                backend.release(group)
        if not isinstance(result, Measured):
            return dict.fromkeys(groups, GroupFigure(None, na=str(reason or result))), ()
        ready = result.ready
        measured = result.measured
        if measured is None or result.wrong is None:
            return {}, ()
        wrong, details = wrong_by({rank: ranks for ranks in groups for rank in ranks}, result.wrong)
        figures = {}
        for ranks in groups:  # the median over the samples of the group's slowest rank
            moved = ready.case.size_bytes * ALLREDUCE.bus_factor(len(ranks))
            seconds, interval = _median_time(slowest(measured.samples, list(ranks)))
            speed, high, low = (moved / time_s if time_s else None for time_s in (seconds, *interval))
            figures[ranks] = GroupFigure(speed, low=low, high=high, wrong=wrong[ranks], detail=details.get(ranks))
        return figures, (*measured.flags, "python_loop") if ready.fell_back else measured.flags

    # Streams between the first processes of two nodes, one direction after the other.

    def _streamed(self, request: RoundRequest) -> tuple[list[GroupFigure], Sequence[str]]:
        """Return the figures of each pair: the interval of its slower direction, and no speed if one direction has none."""
        seconds = self.request.launch.budget.max_time_s
        nic = request.nic or ""
        firsts = leaders(self.world, self.places)
        addresses = (self.rails or {})[nic]
        streams = [TcpStream(firsts[a], firsts[b], addresses[b], addresses[a], nic, port=request.port) for a, b in request.groups]
        both_ways = []
        for directed in (streams, [stream.reversed for stream in streams]):
            reports = run_streams(self.world, directed, seconds)
            both_ways.append([_stream_figure(stream, report, seconds) for stream, report in zip(directed, reports, strict=True)])
        figures = []
        for (forward, _), (backward, _) in zip(*both_ways, strict=True):
            slower = min((forward, backward), key=lambda figure: figure.speed or 0.0)
            detail = forward.detail or backward.detail
            wrong = int(detail is not None)
            na = forward.na or backward.na
            figures.append(GroupFigure(forward.speed, backward.speed, None, slower.low, slower.high, wrong, na, detail=detail))
        proven = all(is_counted for results in both_ways for _, is_counted in results)
        return figures, () if proven else ("path_unproven",)


def _made(backend: Backend, groups: Sequence[tuple[int, ...]]) -> tuple[str | None, dict[tuple[int, ...], Group | None]]:
    """Create this process's groups. Return (why the library rejects one, or None; this process's handle of each group).

    All ranks must call it with the same order. It continues after an error, since the other ranks continue. A library
    reports a dead rank as some error; the next exchange between the ranks identifies that rank.
    """
    made: dict[tuple[int, ...], Group | None] = {}
    refusal = None
    for ranks in groups:
        try:
            made[ranks] = backend.group(ranks)
        except (PeerFailed, WaitExpired):  # of an exchange: the launch ends
            raise
        except (CollbenchError, RuntimeError) as error:
            refusal = refusal or str(error) or type(error).__name__
    return refusal, made


def _stream_figure(stream: TcpStream, report: StreamReport, seconds: float) -> tuple[GroupFigure, bool]:
    """Return (the rate of a stream with its interval, or why it is unknown; whether both interfaces counted it)."""
    if report.why:
        return GroupFigure(None, na=report.why), True
    if not report.rates.size or report.rates.max() <= 0:
        return GroupFigure(None, na=f"{stream.nic} of {stream.source.host}: the stream stalled", detail=report.wrong), True
    least = COUNTED * float(np.mean(report.rates)) * seconds * _COUNTED_PART
    elsewhere = f"over another interface than {stream.nic}, although it has the address of {stream.nic}"
    if report.left is not None and report.left < least:
        return GroupFigure(None, na=f"the stream left {stream.source.host} {elsewhere}", detail=report.wrong), True
    if report.came is not None and report.came < least:
        return GroupFigure(None, na=f"the stream reached {stream.target.host} {elsewhere}", detail=report.wrong), True
    rate = median(report.rates)
    proven = report.left is not None and report.came is not None
    return GroupFigure(rate.value or None, low=rate.ci_low, high=rate.ci_high, detail=report.wrong), proven
