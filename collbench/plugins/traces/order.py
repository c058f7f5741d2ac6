"""The calls of a trace, and an order of them that agrees with the order of every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.plugins.traces.matching import GroupMatch
from collbench.plugins.traces.model import KIND, KINDS, UNKNOWN, Part, Trace


class Windows(msgspec.Struct, frozen=True):
    """By rank read its operations of the step, low ≤ index < high; span_ns: begin and end of the step, for computing before and after."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    span_ns: tuple[tuple[int, int] | None, ...] = ()
    step_time_s: float | None = None


def begin_times(operations: NDArray[Any]) -> NDArray[np.int64]:
    """Return when each operation began in ns: its start, or where that is unknown the program's call; UNKNOWN without both."""
    return np.where(operations["start"] >= 0, operations["start"], operations["created"])


def end_times(operations: NDArray[Any]) -> NDArray[np.int64]:
    """Return when each operation ended in ns, from its duration where only that is known; UNKNOWN without it."""
    begins = begin_times(operations)
    is_derived = (operations["end"] < 0) & (operations["duration"] >= 0) & (begins >= 0)
    return np.where(is_derived, begins + operations["duration"], operations["end"])


class Call(msgspec.Struct, frozen=True):
    """A collective or message: the ranks of the job by rank in the group, and (position in `Trace.ranks`, operation) of those read."""

    kind: str
    ranks: tuple[int, ...]
    at: tuple[tuple[int, int], ...]
    group: int


class Calls(msgspec.Struct):
    """All complete calls, as [calls × ranks read] operation indices; UNKNOWN where a rank takes no part."""

    trace: Trace
    of_group: list[tuple[GroupMatch, tuple[int, ...]]]
    incomplete: int = 0
    guessed: int = 0
    valid: list[NDArray[np.bool_]] = msgspec.field(default_factory=list)  # by rank read: operations that belong to a complete call

    @classmethod
    def of(cls, trace: Trace, matches: Sequence[GroupMatch]) -> Calls:
        """Return the calls. Raises UsageError for a group with unknown ranks, if ranks have no trace."""
        calls = cls(trace, [], valid=[np.zeros(len(rank.operations), bool) for rank in trace.ranks])
        for match in matches:
            complete = (match.calls != UNKNOWN).all(axis=1) if len(match.calls) else np.zeros(0, bool)
            met = _both_known(trace, match)
            calls.incomplete += int((match.calls[~complete] != UNKNOWN).sum()) + int((match.messages[~met][:, [1, 3]] != UNKNOWN).sum())
            whole = replace(match, calls=match.calls[complete], messages=match.messages[met])
            calls.of_group.append((whole, calls._ranks_of(whole)))
            for column, position in enumerate(whole.members):
                calls.valid[position][whole.calls[:, column]] = True
            for side in (0, 2):
                for position in range(len(trace.ranks)):
                    rows = whole.messages[whole.messages[:, side] == position, side + 1]
                    calls.valid[position][rows[rows != UNKNOWN]] = True
        return calls

    def _ranks_of(self, match: GroupMatch) -> tuple[int, ...]:
        group = self.trace.groups[match.group]
        if group.ranks:
            return group.ranks
        if self.trace.absent:
            raise UsageError(
                f"the ranks of process group '{group.name}' are not recorded, and ranks have no trace: give the traces of all ranks"
            )
        self.guessed += 1
        return tuple(self.trace.ranks[position].rank for position in match.members)

    def within(self, windows: Windows) -> Iterator[Call]:
        """Yield the calls of the step. Raises UsageError for a call that is in the step of some ranks only."""
        low = np.array(windows.low)
        high = np.array(windows.high)
        for match, ranks in self.of_group:
            members = np.array(match.members, int)
            if len(match.calls):
                inside = (match.calls >= low[members]) & (match.calls < high[members])
                split = np.flatnonzero(inside.any(axis=1) & ~inside.all(axis=1))
                if len(split):
                    places = list(zip(match.members, match.calls[split[0]].tolist(), strict=True))
                    self._refuse_boundary(match.group, places, inside[split[0]].tolist())
                for row in match.calls[inside.all(axis=1)].tolist():
                    kind = KINDS[self.trace.ranks[match.members[0]].operations["kind"][row[0]]]
                    yield Call(kind, ranks, tuple(zip(match.members, row, strict=True)), match.group)
            for sender, sent, receiver, received in match.messages.tolist():
                ends = [(position, operation) for position, operation in ((sender, sent), (receiver, received)) if operation != UNKNOWN]
                there = [low[position] <= operation < high[position] for position, operation in ends]
                if any(there) and not all(there):
                    self._refuse_boundary(match.group, ends, there)
                if all(there):
                    yield Call("send", self._pair(ends), tuple(ends), match.group)

    def _pair(self, ends: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the sending and the receiving rank of a message."""
        if len(ends) == 2:
            return self.trace.ranks[ends[0][0]].rank, self.trace.ranks[ends[1][0]].rank
        position, operation = ends[0]
        rank = self.trace.ranks[position]
        peer = int(rank.operations["root"][operation])
        return (rank.rank, peer) if rank.operations["kind"][operation] == KIND["send"] else (peer, rank.rank)

    def _refuse_boundary(self, group: int, ends: Sequence[tuple[int, int]], there: Sequence[bool]) -> None:
        inner = next(end for end, within in zip(ends, there, strict=True) if within)
        outer = next(end for end, within in zip(ends, there, strict=True) if not within)
        raise StepsDisagree(
            f"ranks {self.trace.ranks[inner[0]].rank} and {self.trace.ranks[outer[0]].rank} have the {describe(self.trace, *inner)} in "
            "different steps: the recorded step boundaries do not belong together; use --step all"
        )


class StepsDisagree(UsageError):
    """A call is in different steps of its ranks."""


def _both_known(trace: Trace, match: GroupMatch) -> NDArray[np.bool_]:
    """Return which messages can be replayed: both sides are recorded, or the other side's rank has no trace."""
    is_recorded = match.messages[:, [1, 3]] != UNKNOWN
    both: NDArray[np.bool_] = is_recorded.all(axis=1)
    absent = set(trace.absent)
    for row in np.flatnonzero(is_recorded.any(axis=1) & ~both).tolist():
        side = 0 if is_recorded[row, 0] else 2
        peer = trace.ranks[match.messages[row, side]].operations["root"][match.messages[row, side + 1]]
        both[row] = int(peer) in absent
    return both


def describe(trace: Trace, position: int, operation: int) -> str:
    """Return the text of an operation for errors: "allreduce number 3 of process group 'dp'"."""
    rank = trace.ranks[position]
    row = rank.operations[operation]
    number = int(row["sequence"])
    name = trace.groups[row["group"]].name if 0 <= row["group"] < len(trace.groups) else "?"
    return f"{KINDS[row['kind']]} {f'number {number}' if number != UNKNOWN else f'at place {operation}'} of process group '{name[:60]}'"


# The order of calls. Each rank's calls are a chain; calls of one batch, and if needed those that ran at the same time, have no order.


_NEVER = 1 << 63  # ns


class _Order:
    """A graph of calls, and of joins between those of a rank that follow one another. after: by node the nodes that come later."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.after: list[list[int]] = [[] for _ in range(calls)]

    def join(self) -> int:
        self.after.append([])
        return len(self.after) - 1

    def levels(self) -> tuple[list[int], list[int]]:
        """Return (the level of each node, the nodes of cycles and behind them)."""
        missing = [0] * len(self.after)
        for later in self.after:
            for then in later:
                missing[then] += 1
        levels = [0] * len(self.after)
        ready = [node for node, number in enumerate(missing) if not number]
        for node in ready:  # grows
            for then in self.after[node]:
                levels[then] = max(levels[then], levels[node] + (node < self.calls))
                missing[then] -= 1
                if not missing[then]:
                    ready.append(then)
        return levels, [node for node, number in enumerate(missing) if number]


def levels_of(trace: Trace, calls: Sequence[Call]) -> list[int]:
    """Return the place of each call: a call is later than those before it at any of its ranks. Raises UsageError for a contradiction."""
    strict = _order(trace, calls, overlap=False)
    levels, in_cycles = strict.levels()
    if in_cycles:
        levels, in_cycles = _order(trace, calls, overlap=True).levels()
    if in_cycles:
        raise UsageError(_contradiction(trace, calls))
    return levels[: len(calls)]


def _of_ranks(trace: Trace, calls: Sequence[Call]) -> list[list[tuple[int, int]]]:
    """Return by rank read its (operation, call), in the order of the program."""
    of_ranks: list[list[tuple[int, int]]] = [[] for _ in trace.ranks]
    for number, call in enumerate(calls):
        for position, operation in call.at:
            of_ranks[position].append((operation, number))
    return [sorted(of_rank) for of_rank in of_ranks]


def _order(trace: Trace, calls: Sequence[Call], overlap: bool) -> _Order:
    """Return the graph. overlap: a call comes after those that had ended when it began, else after all earlier ones of its rank."""
    order = _Order(len(calls))
    for position, of_rank in enumerate(_of_ranks(trace, calls)):
        chains: dict[int, list[tuple[int, int]]] = {}
        by_group = Part.ORDER in trace.ranks[position].missing
        for operation, number in of_rank:
            chains.setdefault(calls[number].group if by_group else 0, []).append((operation, number))
        for chain in chains.values():
            _add_chain(order, trace.ranks[position].operations, chain, calls, overlap)
    return order


def _add_chain(order: _Order, operations: NDArray[Any], chain: Sequence[tuple[int, int]], calls: Sequence[Call], overlap: bool) -> None:
    """Add the (operation, call) of a rank that follow one another."""
    rows = operations[[operation for operation, _ in chain]]
    times = zip(chain, begin_times(rows).tolist(), end_times(rows).tolist(), rows["batch"].tolist(), strict=True)
    join = order.join()
    active: list[tuple[int, int]] = []  # calls that may run, and when they end
    batch_before = UNKNOWN
    for (_, number), begin, end, batch in times:
        if batch == UNKNOWN or batch != batch_before:
            over = begin if begin >= 0 else _NEVER - 1
            done = [node for node, before in active if not overlap or before <= over]
            if done:
                later = order.join()
                for node in (join, *done):
                    order.after[node].append(later)
                join = later
                active = [(node, before) for node, before in active if overlap and before > over]
        batch_before = batch
        order.after[join].append(number)
        without_times = _NEVER if calls[number].kind == "send" else 0  # only messages are taken to overlap
        active.append((number, end if end >= 0 else without_times))


def _contradiction(trace: Trace, calls: Sequence[Call]) -> str:
    """Return the error for orders that contradict: the first two calls that two ranks have in different orders, else where they begin."""
    _, nodes = _order(trace, calls, overlap=True).levels()
    cyclic = sorted(node for node in nodes if node < len(calls))
    inside = set(cyclic)
    of_ranks = [[number for _, number in of_rank if number in inside] for of_rank in _of_ranks(trace, calls)]
    for call in map(calls.__getitem__, cyclic):
        positions = [position for position, _ in call.at]
        for position, second in combinations(positions, 2):
            common = set(of_ranks[position]) & set(of_ranks[second])
            mine, theirs = ([number for number in of_ranks[rank] if number in common] for rank in (position, second))
            pair = next(((a, b) for a, b in zip(mine, theirs, strict=True) if a != b), None)
            if pair is not None:
                texts = [describe(trace, *next(end for end in calls[number].at if end[0] == position)) for number in pair]
                return (
                    f"ranks call operations in different orders: rank {trace.ranks[position].rank} calls {texts[0]} before {texts[1]}, "
                    f"rank {trace.ranks[second].rank} after it: a replay would hang; record all ranks in the same run"
                )
    return (
        f"the orders of several ranks contradict each other from the {describe(trace, *calls[cyclic[0]].at[0])} on: a replay would hang; "
        "record all ranks in the same run"
    )
