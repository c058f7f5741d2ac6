"""One round of all-reduces in disjoint groups of places, all at the same time: of several places each, or of the ranks of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from collbench.backends.backend import Backend, Group, can_do
from collbench.control.world import World
from collbench.errors import CollbenchError
from collbench.measure.one_cell import Ready, Stage, prepare_over, release, verify_cell
from collbench.measure.protocol import Measured, slowest
from collbench.measure.shortly import time_shortly
from collbench.measure.tasks.hunt_asked import Asked
from collbench.measure.tasks.pair_places import PairsRequest
from collbench.measure.tasks.pair_round import Court
from collbench.measure.tasks.turn import placed
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.cell import Cell
from collbench.operations.data import Mismatch
from collbench.operations.dtypes import dtype_named
from collbench.operations.groups import Groups
from collbench.operations.sweep import Sweep
from collbench.results.rounds import HuntRound
from collbench.stats.median import median

_WARMUPS = 2  # the first connects


@dataclass(frozen=True)
class _Reached:
    """What a group reached, bytes per second of bus bandwidth with its interval, and what arrived wrongly."""

    speed: float | None = None
    low: float | None = None
    high: float | None = None
    wrong: int = 0
    detail: str | None = None
    na: str | None = None


def group_cell(asked: PairsRequest, backend: Backend) -> Cell:
    """The all-reduce of groups: of the size of the messages, in numbers as gradients are."""
    sweep = asked.launch.sweep
    assert isinstance(sweep, Sweep)
    (cell,) = replace(sweep, operations=(ALLREDUCE,), sizes=(asked.size_bytes,), dtypes=(dtype_named("float32"),)).cells(
        backend.name, backend.ranks
    )
    return placed(cell, ALLREDUCE, backend)


def no_groups(asked: PairsRequest, backend: Backend, world: World) -> str | None:
    """Why this backend cannot reduce over groups at some rank, the same at all of them, which all call; or None."""
    return world.first(can_do(backend, ALLREDUCE, group_cell(asked, backend)), f"asking {backend.name} whether it reduces over groups")


def play_groups(court: Court, number: int, ask: Asked) -> HuntRound | None:
    """Measures a round on all ranks. Returns it at rank 0, elsewhere None.

    Groups in which only one rank takes part have no figure: nothing would move.
    """
    ranks = [tuple(rank for place in group for rank in court.places.ranks[place]) for group in ask.groups]
    several = tuple(each for each in ranks if len(each) > 1)
    reached, flags = _measured(court, several) if several else ({}, ())
    if court.world.rank:
        return None
    alone = _Reached(na="one rank: nothing to reduce")
    return _round(number, ask, [reached.get(each, alone) for each in ranks], (*court.flags, *flags))


def _measured(court: Court, groups: Groups) -> tuple[dict[tuple[int, ...], _Reached], tuple[str, ...]]:
    """By group what it reached, at rank 0."""
    backend, request = court.stage.backend, court.asked.launch
    cell, members = group_cell(court.asked, backend), court.stage.members
    with court.world.watchdog.phase(f"making groups on {backend.name}"):
        wrong, made = _made(backend, [ranks for ranks in groups if ranks not in members])
    reason = court.world.first(wrong, "making the groups of a round")
    stage: Stage = replace(court.stage, members=members | made)
    ready = reason or prepare_over(ALLREDUCE, cell, groups, stage, court.world)
    if isinstance(ready, str):
        _free(backend, made)
        return dict.fromkeys(groups, _Reached(na=ready)), ()
    budget = request.budget if request.budget.warmup is not None else replace(request.budget, warmup=_WARMUPS)
    measured = time_shortly(ready, court.world, budget)
    mismatches = verify_cell(ready, court.world, request.check) if request.check else []
    release(ready, backend)
    _free(backend, made)
    if measured is None or mismatches is None:
        return {}, ()
    flags = (*measured.flags, *(["python_loop"] if ready.fell_back else []))
    return _reached(ready, measured, mismatches), flags


def _made(backend: Backend, groups: Sequence[tuple[int, ...]]) -> tuple[str | None, dict[tuple[int, ...], Group | None]]:
    """Why the library refuses one first (None: it does not), and this process's part of each group. All ranks call, in one order.

    Each is tried, since the other ranks go on. Of a rank that has died libraries tell in errors of their own; who it was comes out when
    the ranks agree.
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


def _reached(ready: Ready, measured: Measured, mismatches: Sequence[Mismatch]) -> dict[tuple[int, ...], _Reached]:
    """Of each group the median of its slowest rank, sample by sample."""
    group_of = {rank: ranks for ranks in ready.groups for rank in ranks}
    wrong: Counter[tuple[int, ...]] = Counter()
    details: dict[tuple[int, ...], str] = {}
    for mismatch in mismatches:
        wrong[group_of[mismatch.rank]] += mismatch.wrong
        details.setdefault(group_of[mismatch.rank], mismatch.sentence())
    found = {}
    for ranks in ready.groups:
        samples = slowest(measured.samples, list(ranks))
        known, moved = median(samples), ready.cell.size_bytes * ALLREDUCE.bus_factor(len(ranks))
        apart = samples.min() < samples.max()  # equal samples have no interval: the clock's step hides how far apart they are
        ends = (known.ci_low, known.ci_high) if apart else (None, None)
        low, high = (rate(moved, seconds) for seconds in reversed(ends))
        found[ranks] = _Reached(rate(moved, known.value), low, high, wrong[ranks], details.get(ranks))
    return found


def rate(moved: float, seconds: float | None) -> float | None:
    """Bytes per second; None where the time is unknown, or too short to be one."""
    return moved / seconds if seconds else None


def _round(number: int, ask: Asked, reached: Sequence[_Reached], flags: Sequence[str]) -> HuntRound:
    def each(figure: Callable[[_Reached], float | None]) -> tuple[float | None, ...]:
        return tuple(figure(one) for one in reached)

    none = (None,) * len(reached)
    return HuntRound(
        number, ask.kind, ask.stage, ask.why, ask.groups, each(lambda one: one.speed), none, none, each(lambda one: one.low),
        each(lambda one: one.high), tuple(one.wrong for one in reached), tuple(one.na for one in reached), ask.nic,
        tuple(dict.fromkeys(flags)), tuple(one.detail for one in reached),
    )  # fmt: skip
