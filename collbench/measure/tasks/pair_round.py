"""One round of disjoint pairs: latency, then the bandwidth each way, all pairs of the round at once, in step on all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collbench.control.world import World
from collbench.measure.budget import Budget
from collbench.measure.canary import Canary
from collbench.measure.disturbance import watched
from collbench.measure.one_cell import Ready, Stage, prepare_over, release, verify_cell
from collbench.measure.protocol import Measured, slowest
from collbench.measure.shortly import time_shortly
from collbench.measure.tasks.pair_places import PairsRequest, Places
from collbench.operations.builtin.p2p import P2P_BANDWIDTH, P2P_LATENCY
from collbench.operations.cell import Cell
from collbench.operations.data import Mismatch
from collbench.operations.groups import Pair, Round
from collbench.operations.operation import Operation
from collbench.operations.sweep import Sweep
from collbench.results.rounds import PairRound
from collbench.stats.median import median

OPERATIONS = (P2P_LATENCY, P2P_BANDWIDTH)
_Interval = tuple[float | None, float | None]
_NOTHING: _Interval = (None, None)
_WARMUPS = (10, 1)  # calls before the first sample, besides the one that is tried: a window warms its connection up before it ends


@dataclass(frozen=True)
class Way:
    """One of the three measurements of a round, with the time it may take; `backward`: the second place of each pair sends."""

    operation: Operation
    cell: Cell
    budget: Budget
    backward: bool = False


def ways_of(asked: PairsRequest, backend: str) -> tuple[Way, Way, Way]:
    """Latency, forward and backward bandwidth on a backend."""
    budget = asked.launch.budget
    latency, bandwidth = (
        Way(operation, _cell(asked, operation, size, backend), budget if budget.warmup is not None else replace(budget, warmup=warmups))
        for operation, size, warmups in zip(OPERATIONS, (asked.latency_size_bytes, asked.size_bytes), _WARMUPS, strict=True)
    )
    return latency, bandwidth, replace(bandwidth, backward=True)


def _cell(asked: PairsRequest, operation: Operation, size_bytes: int, backend: str) -> Cell:
    sweep = asked.launch.sweep
    assert isinstance(sweep, Sweep)
    (cell,) = replace(sweep, operations=(operation,), sizes=(size_bytes,)).cells(backend, 2)
    return cell.placed(False)


@dataclass(frozen=True)
class Court:
    """Where rounds are played: the open backend, the places and the three measurements.

    flags   words that hold for every round
    probe   the state probe of all ranks; None: not available
    """

    asked: PairsRequest
    world: World
    stage: Stage
    places: Places
    ways: tuple[Way, Way, Way]
    flags: tuple[str, ...] = ()
    probe: Canary | None = None

    def stage_for(self, way: Way) -> Stage:
        """All ranks meet before each sample where pairs share a host's NIC: they are to share it in every sample.

        Elsewhere before a look only: what ranks leave a synchronisation apart by would be in a ping-pong's time, and pairs that share
        nothing need not wait for one another.
        """
        shared = self.places.by == "rank" or self.places.width > 1
        return replace(self.stage, each_time=shared and way.operation is P2P_BANDWIDTH)


@dataclass(frozen=True)
class _Times:
    """One measurement of all pairs, at rank 0: seconds per message with their intervals, wrong elements, samples, what is to be known."""

    seconds: tuple[float | None, ...]
    intervals: tuple[_Interval, ...]
    wrong: tuple[int, ...]
    n: int
    flags: tuple[str, ...]
    wrong_detail: tuple[str | None, ...]


def play(court: Court, number: int, pairs: Round, again: bool = False) -> Iterator[PairRound]:
    """Measures a round on all ranks; its figures are at rank 0, elsewhere nothing is yielded.

    Where a rank refuses a measurement, halves of the round are measured, and so on: in the end only the pairs that cannot are n/a.
    """
    times: list[_Times | None] = []
    with watched(court.world, court.probe) as watch:
        reason = _measure_all(court, pairs, times)
    if reason is not None:
        yield from _without(court, number, pairs, again, reason)
        return
    known = [each for each in times if each]
    if len(known) == len(times):
        disturbed = [watch.of([*court.places.ranks[a], *court.places.ranks[b]]) for a, b in pairs]
        yield replace(
            _round(court, number, pairs, again, known),
            cpu_wait=tuple(round(each.cpu_wait, 4) for each in disturbed),
            flipped=tuple(each.flipped for each in disturbed),
        )


def _measure_all(court: Court, pairs: Round, times: list[_Times | None]) -> str | None:
    """Add the three measurements of a round to `times`; or return why some rank refuses one, at all ranks."""
    for way in court.ways:
        found = _measure(court, way, pairs)
        if isinstance(found, str):
            return found
        times.append(found)
    return None


def _without(court: Court, number: int, pairs: Round, again: bool, reason: str) -> Iterator[PairRound]:
    half = len(pairs) // 2
    if half:
        yield from play(court, number, pairs[:half], again)
        yield from play(court, number, pairs[half:], again)
    elif court.world.rank == 0:
        gap, nothing = (None,), (_NOTHING,)
        yield PairRound(number, pairs, gap, nothing, gap, nothing, gap, nothing, gap, (reason,), again=again, flags=court.flags)


def _measure(court: Court, way: Way, pairs: Round) -> _Times | str | None:
    """One measurement; its figures at rank 0, or why some rank refuses it, at all ranks."""
    groups = court.places.groups(pairs, way.backward)
    ready = prepare_over(way.operation, way.cell, groups, court.stage_for(way), court.world)
    if isinstance(ready, str):
        return ready
    check = court.asked.launch.check
    measured = time_shortly(ready, court.world, way.budget)
    mismatches = verify_cell(ready, court.world, check) if check else []
    release(ready, court.stage.backend)
    if measured is None or mismatches is None:
        return None
    return _times(court, ready, measured, mismatches)


def _times(court: Court, ready: Ready, measured: Measured, mismatches: Sequence[Mismatch]) -> _Times:
    """Of each pair of places the slowest of its pairs of ranks, as their initiators see it."""
    width = court.places.width
    initiators = [group[0] for group in ready.groups]
    each = [initiators[at : at + width] for at in range(0, len(initiators), width)]
    messages = ready.operation.moves(ready.cell) * (width if ready.operation is P2P_BANDWIDTH else 1)
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
    """The median and its interval; equal samples have none: the clock's step hides how far apart they are."""
    known = median(samples)
    if known.value <= 0:
        return None, _NOTHING
    return known.value, _NOTHING if samples.min() == samples.max() else (known.ci_low, known.ci_high)


def _round(court: Court, number: int, pairs: Sequence[Pair], again: bool, times: Sequence[_Times]) -> PairRound:
    latency, forward, backward = times
    wrong = [sum(each) for each in zip(*(one.wrong for one in times), strict=True)]
    flags = dict.fromkeys((*court.flags, *(["pairs_at_once"] if len(pairs) > 1 else []), *(flag for one in times for flag in one.flags)))
    return PairRound(
        number, tuple(pairs), latency.seconds, latency.intervals, forward.seconds, forward.intervals, backward.seconds, backward.intervals,
        tuple(wrong if court.asked.launch.check else [None] * len(pairs)), (None,) * len(pairs), (latency.n, forward.n, backward.n), again,
        tuple(flags), tuple(next(filter(None, details), None) for details in zip(*(one.wrong_detail for one in times), strict=True)),
    )  # fmt: skip
