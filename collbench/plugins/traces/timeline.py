"""What each rank of a recorded step does and when: it starts exchanges, computes, and waits, by its own recorded times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.plugins.traces.model import UNKNOWN, RankTrace, Trace, union
from collbench.plugins.traces.order import Call, Windows, begin_times, end_times
from collbench.plugins.traces.recording import RankTimeline, RecordedExchange
from collbench.plugins.training.workloads.step import Action, Compute, Exchange, Start, Wait

_LEAST_S = 1e-6  # shorter computing is added to the next one
# Of the recorded timelines, for a drawing of some hundred pixels.
_MOST_RANKS, _MOST_EXCHANGES, _FINEST = 8, 200, 500


def timeline_of(
    trace: Trace, windows: Windows, nodes_of: Sequence[Sequence[Call]], scale: float | None
) -> tuple[tuple[tuple[Action, ...], ...], int]:
    """Return (by rank of the job what it does, the number of ranks read without times). Without overlap and computing: ()."""
    made = _made(trace, nodes_of)
    one_by_one = [tuple(action for number, _ in made[rank] for action in (Start(number), Wait(number))) for rank in range(trace.world)]
    timelines: list[tuple[Action, ...]] = list(one_by_one)
    without = 0
    for position, rank_trace in enumerate(trace.ranks):
        rank = rank_trace.rank
        recorded = _recorded(rank_trace, windows.span_ns[position], made[rank], scale)
        without += recorded is None and bool(made[rank])
        timelines[rank] = recorded or one_by_one[rank]
    return () if timelines == one_by_one else tuple(timelines), without


def _made(trace: Trace, nodes_of: Sequence[Sequence[Call]]) -> dict[int, list[tuple[int, int]]]:
    """Return by rank of the job its (exchange, operation), UNKNOWN for an operation without a trace."""
    made: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(trace.world)}
    for number, nodes in enumerate(nodes_of):
        for call in nodes:
            operations = {trace.ranks[position].rank: operation for position, operation in call.at}
            for rank in call.ranks:
                made[rank].append((number, operations.get(rank, UNKNOWN)))
    return made


def _recorded(
    rank: RankTrace, span: tuple[int, int] | None, made: Sequence[tuple[int, int]], scale: float | None
) -> tuple[Action, ...] | None:
    """Return what a rank did; None without its times.

    An exchange is started when it was recorded to begin. It is waited for where it was recorded to end; if the rank computed then, when
    that computing ended, because the rank was not waiting before.
    """
    if span is None or any(operation == UNKNOWN for _, operation in made):
        return None
    operations = rank.operations[[operation for _, operation in made]]
    starts = np.maximum.accumulate(begin_times(operations))  # in the order of the step
    ends = np.maximum(end_times(operations), starts)
    computing = _computing(rank, span, starts, ends)
    waits = ends.copy()
    if len(computing):
        before_end = np.searchsorted(computing[:, 0], ends, side="left") - 1
        inside = (before_end >= 0) & (ends < computing[np.maximum(before_end, 0), 1])
        waits[inside] = computing[before_end[inside], 1]
    events: list[tuple[int, int, int, Action]] = []
    for place, ((number, _), start, wait) in enumerate(zip(made, starts.tolist(), waits.tolist(), strict=True)):
        events.append((start, 1, place, Start(number)))
        events.append((wait, 0 if wait > start else 2, place, Wait(number)))
    events.sort(key=lambda event: event[:3])
    actions: list[Action] = []
    before = span[0]
    kept = 0.0
    for time, _, _, action in [*events, (span[1], 3, 0, None)]:
        kept += 0.0 if scale is None else scale * _within(computing, before, time) / 1e9
        before = max(before, time)
        if kept >= _LEAST_S or (action is None and kept > 0):
            actions.append(Compute(kept))
            kept = 0.0
        if action is not None:
            actions.append(action)
    return tuple(actions)


def _computing(rank: RankTrace, span: tuple[int, int], starts: NDArray[Any], ends: NDArray[Any]) -> NDArray[np.int64]:
    """Return [m × 2] the rank's computing in ns: as recorded, else the gaps in which no operation ran."""
    if len(rank.compute):
        return rank.compute
    gaps = []
    reached = span[0]
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if start > reached:
            gaps.append((reached, start))
        reached = max(reached, end)
    if span[1] > reached:
        gaps.append((reached, span[1]))
    return np.array(gaps, np.int64).reshape(-1, 2)


def _within(intervals: NDArray[np.int64], begin: int, end: int) -> int:
    """Return the ns of ascending, disjoint intervals between two times."""
    if end <= begin or not len(intervals):
        return 0
    low = np.searchsorted(intervals[:, 1], begin, side="right")
    high = np.searchsorted(intervals[:, 0], end, side="left")
    part = np.clip(intervals[low:high], begin, end)
    return int((part[:, 1] - part[:, 0]).sum())


def recorded_timelines(
    trace: Trace, windows: Windows, exchanges: Sequence[Exchange], nodes_of: Sequence[Sequence[Call]]
) -> tuple[RankTimeline, ...]:
    """Return what the first ranks with times did in the step, ascending."""
    made = _made(trace, nodes_of)
    timelines = (_drawn(rank, windows.span_ns[position], exchanges, made[rank.rank]) for position, rank in enumerate(trace.ranks))
    return tuple(timeline for timeline in timelines if timeline is not None)[:_MOST_RANKS]


def _drawn(
    rank: RankTrace, span: tuple[int, int] | None, exchanges: Sequence[Exchange], made: Sequence[tuple[int, int]]
) -> RankTimeline | None:
    """Return the recorded timeline of a rank; None without its times."""
    if span is None or not made or span[1] <= span[0]:
        return None
    begin, end = span
    operations = rank.operations[[operation for _, operation in made]]
    times = np.stack([np.clip(begin_times(operations), begin, end), np.clip(end_times(operations), begin, end)], axis=1)
    busy = union(times)
    computing = union(np.clip(rank.compute, begin, end)) if len(rank.compute) else None
    hidden = sum(_within(computing, *interval) for interval in busy.tolist()) if computing is not None else 0
    order = np.argsort(times[:, 0], kind="stable").tolist()
    drawn = []
    for place in order[:_MOST_EXCHANGES]:
        exchange = exchanges[made[place][0]]
        start, stop = ((times[place] - begin) / 1e9).tolist()
        drawn.append(RecordedExchange(exchange.operation, exchange.what, exchange.size_bytes, start, stop))
    shown = union(computing, (end - begin) // _FINEST) if computing is not None else np.zeros((0, 2), np.int64)
    seconds = int((busy[:, 1] - busy[:, 0]).sum()) / 1e9
    return RankTimeline(
        rank.rank, (end - begin) / 1e9, seconds,
        None if computing is None else int((computing[:, 1] - computing[:, 0]).sum()) / 1e9,
        None if computing is None else seconds - hidden / 1e9,
        tuple(drawn), len(order) - len(drawn), tuple((low, high) for low, high in ((shown - begin) / 1e9).tolist()),
    )  # fmt: skip
