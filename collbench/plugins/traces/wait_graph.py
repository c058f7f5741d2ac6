"""The pending operations of a job, and which ranks each of them waits for.

An operation is pending at a rank that has called it and at which it has not completed. The graph has ranks and operations as nodes:
a rank waits in its first pending operation, or in those that its GPU has started; an operation waits for the ranks that have not called it,
and for those that are still in an earlier one. Collectives, messages and the parts of a batch are alike. What hangs a job follows from it:
a rank that others wait for and that waits for none, ranks that wait for one another, or an operation that all have reached.

All members take part in an all-reduce and the like before it completes at one of them. A dump that has no entry of it therefore proves
nothing else: it has only active entries, or is older. The operations before the first recorded one have completed, since those of
a communicator complete in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.plugins.traces.matching import GroupMatch
from collbench.plugins.traces.model import KIND, NONE, STATE, UNKNOWN, Part, RankTrace, Trace

_DEFAULT_GROUP = ("default_pg", "default")
_SCHEDULED, _STARTED, _COMPLETED, _RETIRED = (STATE[name] for name in ("scheduled", "started", "completed", "retired"))
_PENDING = (_SCHEDULED, _STARTED)
# Completes at no rank before all ranks have called it. A root may end early.
_SYNCHRONIZES = [KIND[name] for name in ("allreduce", "allgather", "reducescatter", "alltoall", "alltoallv", "barrier")]


class GroupCalls:
    """The matched collectives of a process group.

    ranks    of the job, of those of its members that were read, by column; absent: members without a trace
    is_whole whether the traces show all members
    calls    [calls × ranks] as in GroupMatch; state [calls × ranks] index in STATES, NONE where unknown or not called
    synchronizes [calls] whether it completes at no rank before all ranks have called it
    done     [calls × ranks] whether it has completed; proven [calls]: whether all members have taken part, since it has completed at one
    last     [ranks] the last row that the trace of each rank has, -1 for none
    reached  [ranks] the last row that each rank has called, -1 for none
    older    [ranks] the first row that has completed at others and that this rank's trace should have and has not, -1 for none
    unknown  [ranks] whether the trace does not show which rows the rank has called
    """

    def __init__(self, trace: Trace, match: GroupMatch, world: int) -> None:
        self.match = match
        self.group = trace.groups[match.group]
        columns = list(match.members)
        calls = match.calls
        members: Sequence[int] = self.group.ranks
        if not members and (self.group.what in _DEFAULT_GROUP or (self.group.name == "0" and not self.group.what)):
            members = range(world)
            for column in sorted(set(range(len(trace.ranks))) - set(columns)):  # ranks that have not called anything in it yet
                columns.append(column)
                calls = np.c_[calls, np.full(len(calls), UNKNOWN, np.int64)]
        self.columns = columns
        self.calls = calls
        self.traces = [trace.ranks[column] for column in columns]
        self.ranks = [rank.rank for rank in self.traces]
        self.members = len(members) or len(columns)
        possible = members or range(world)  # with Gloo, a dump does not contain the members of a group
        self.absent = [rank for rank in possible if rank not in {traced.rank for traced in trace.ranks}]
        self.sequence = self._values("sequence", UNKNOWN).max(axis=1, initial=UNKNOWN)
        self.sequence = np.where(self.sequence == UNKNOWN, np.arange(len(calls)), self.sequence)
        self.state = self._values("state", NONE)
        self.created = np.maximum(self._values("created", UNKNOWN), UNKNOWN)
        self.has = calls != UNKNOWN
        self.last = np.where(self.has.any(axis=0), len(calls) - 1 - np.argmax(self.has[::-1], axis=0), -1) if len(calls) else self._none()
        self.synchronizes = np.asarray(np.isin(self._values("kind", NONE), [*_SYNCHRONIZES, NONE]).all(axis=1))
        ended_before = self.synchronizes[:-1] & np.isin(self.state[:-1], (_COMPLETED, _RETIRED)).any(axis=1)
        self.is_whole = bool(members) or bool(ended_before.any())
        self._find_progress()

    def _none(self) -> NDArray[np.int64]:
        return np.full(len(self.columns), -1, np.int64)

    def _find_progress(self) -> None:
        rows = np.arange(len(self.calls))[:, None]
        numbered = [Part.SEQUENCES not in rank.missing for rank in self.traces]
        begins = np.where(self.has.any(axis=0) & numbered, np.argmax(self.has, axis=0), 0) if len(rows) else self._none()
        self.done = (self.state == _COMPLETED) | (rows < begins)
        self.reached = self.last.copy()
        # The last collective that a rank has called and the last one completed, by the library's own count; None if unknown. The library
        # counts messages there, too: it is used in groups without messages, and if the recorded calls agree.
        self.progress: list[tuple[int, int] | None] = []
        for column, (rank, last) in enumerate(zip(self.traces, self.last.tolist(), strict=True)):
            progress = None if len(self.match.messages) else rank.progress.get(self.match.group)
            if progress is not None and last >= 0 and self.sequence[last] != progress[0]:
                progress = None
            self.progress.append(progress)
            if progress is not None:
                called, completed = progress
                # Gloo counts an operation that failed as completed, too; its entries are then retired, which shows neither
                self.done[:, column] |= (self.sequence <= completed) & (self.state[:, column] != _RETIRED)
                self.reached[column] = max(self.reached[column], int(np.searchsorted(self.sequence, called, side="right")) - 1)
        self.proven: NDArray[Any] = self.synchronizes & self.done.any(axis=1)
        last_proven = int(np.flatnonzero(self.proven).max(initial=-1))
        self.older = self._none()
        self.unknown = np.zeros(len(self.columns), bool)
        for column in np.flatnonzero(self.reached < last_proven).tolist():
            if self.last[column] < 0 and is_partial(self.traces[column]):
                self.reached[column] = last_proven
            else:
                following = np.flatnonzero(self.proven[self.reached[column] + 1 :])
                self.older[column] = self.reached[column] + 1 + int(following[0])
        for column in np.flatnonzero(self.reached < 0).tolist():
            rank = self.traces[column]
            self.unknown[column] = bool({Part.OPERATIONS, Part.BEGINNING} & rank.missing) and not rank.only_pending

    def recorded(self, column: int) -> tuple[int, int]:
        """Return the numbers of the last collective that a rank has called, and of the last one that it has completed, or UNKNOWN."""
        row = int(self.reached[column])
        done = np.flatnonzero(self.done[: row + 1, column])
        return int(self.sequence[row]) if row >= 0 else UNKNOWN, int(self.sequence[done[-1]]) if len(done) else UNKNOWN

    def _values(self, name: str, default: int) -> NDArray[Any]:
        values = np.full(self.calls.shape, default, np.int64)
        for number, rank in enumerate(self.traces):
            index = self.calls[:, number]
            values[index != UNKNOWN, number] = rank.operations[name][index[index != UNKNOWN]]
        return values

    def operation(self, row: int, number: int) -> Any:
        """Return the operation of a row at the rank of a column."""
        return self.traces[number].operations[self.calls[row, number]]

    def time(self, row: int) -> int:
        """Return when the first rank called the row, in ns; 0 where unknown."""
        times = self.created[row][self.created[row] > 0]
        return int(times.min()) if len(times) else 0


def has_unknown_message(trace: Trace) -> bool:
    """Return whether a trace has a message of which it does not contain whether it is pending, though it has states."""
    for rank in trace.ranks:
        message = np.isin(rank.operations["kind"], (KIND["send"], KIND["recv"]))
        state = rank.operations["state"]
        if (message & (state == NONE)).any() and (state != NONE).any():
            return True
    return False


def is_partial(rank: RankTrace) -> bool:
    """Return whether a trace lacks operations that have completed: overwritten ones, or all in a dump of only active ones."""
    return Part.BEGINNING in rank.missing or rank.only_pending


class PendingOperation(msgspec.Struct, frozen=True, eq=False):
    """An operation in which at least one rank waits: a collective, or a message with its send and its receive.

    table    its group; row: of a collective, its row there, UNKNOWN for a message
    index    by rank that has called it the index in that rank's operations
    waiting  ranks that wait in it; stalled: those whose GPU has not completed it, although it waits for no rank
    missing  ranks that have not called it
    behind   ranks that have called it, and are still in an earlier operation, or whose GPU has not started it while others have
    absent   ranks without a trace that may not have called it; unknown: ranks whose traces do not show whether they have
    done     ranks at which it has completed, or with Gloo has completed or failed
    is_whole whether the traces show all its ranks
    pair     of a message: sender and receiver, UNKNOWN where not recorded; () for a collective
    time     when it was called first, in ns; 0 where unknown
    """

    table: GroupCalls
    row: int
    index: dict[int, int]
    waiting: tuple[int, ...] = ()
    stalled: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    is_whole: bool = True
    pair: tuple[int, ...] = ()
    time: int = 0

    @property
    def blockers(self) -> tuple[int, ...]:
        """The ranks that were read and that it waits for."""
        return (*self.missing, *self.behind)


class WaitGraph(msgspec.Struct):
    """The pending operations of a job.

    operations  with ranks that wait, by time
    waits       by rank the operations that it waits in
    """

    trace: Trace
    operations: list[PendingOperation] = msgspec.field(default_factory=list)
    waits: dict[int, list[PendingOperation]] = msgspec.field(default_factory=dict)

    @property
    def roots(self) -> set[int]:
        """The ranks that others wait for, and that wait for none."""
        return {rank for operation in self.operations if operation.waiting for rank in operation.blockers} - set(self.waits)

    def circles(self, *, behind: bool) -> list[set[int]]:
        """Return the sets of ranks that wait for one another. behind: not only for those that have not called an operation."""

        def blockers(operation: PendingOperation) -> Iterable[int]:
            return operation.blockers if behind else operation.missing

        blocked: dict[int, list[PendingOperation]] = {}
        for operation in self.operations:
            for rank in blockers(operation):
                blocked.setdefault(rank, []).append(operation)
        circles: list[set[int]] = []
        following: dict[tuple[int, ...], set[int]] = {}
        for rank, waits in self.waits.items():
            if any(rank in circle for circle in circles):
                continue
            key = tuple(map(id, waits))
            if key not in following:
                following[key] = _reached(rank, self.waits, blockers)
            if rank in following[key]:
                circles.append(following[key] & _reached(rank, blocked, lambda operation: operation.waiting))
        return circles


def _reached(first: int, edges: dict[int, list[PendingOperation]], ranks: Callable[[PendingOperation], Iterable[int]]) -> set[int]:
    """Return the ranks that a path from `first` reaches; `first` only if it is in a circle."""
    reached: set[int] = set()
    seen: set[int] = set()
    open_ranks = [first]
    while open_ranks:
        for operation in edges.get(open_ranks.pop(), ()):
            if id(operation) not in seen:
                seen.add(id(operation))
                fresh = set(ranks(operation)) - reached
                reached |= fresh
                open_ranks += fresh
    return reached


def wait_graph(trace: Trace, tables: Sequence[GroupCalls]) -> WaitGraph:
    """Return the pending operations of a job, from the calls of all its groups."""
    graph = WaitGraph(trace)
    fronts = {rank.rank: _front(rank, _failed(position, tables)) for position, rank in enumerate(trace.ranks)}
    for table in tables:
        graph.operations += _pending_collectives(table, fronts)
        graph.operations += _pending_messages(trace, table, fronts)
    graph.operations.sort(key=lambda operation: (operation.time, operation.row))
    for operation in graph.operations:
        for rank in operation.waiting:
            graph.waits.setdefault(rank, []).append(operation)
    return graph


def _failed(position: int, tables: Sequence[GroupCalls]) -> list[int]:
    """Return the operations of a rank that have no state, or ended with an unknown one, and that another rank has not called."""
    failed: list[int] = []
    for table in tables:
        is_known = ~table.unknown & (table.older < 0)
        if position not in table.columns or not is_known.any():
            continue
        column = table.columns.index(position)
        rows = np.arange(int(table.reached[is_known].min()) + 1, len(table.calls))
        rows = rows[table.has[rows, column] & np.isin(table.state[rows, column], (_RETIRED, NONE))]
        failed += table.calls[rows, column].tolist()
    return failed


def _front(rank: RankTrace, failed: list[int]) -> NDArray[Any]:
    """Return the operations in which a rank waits: those that its GPU has started, else the first pending one with its batch."""
    state = rank.operations["state"]
    pending = np.flatnonzero(np.isin(state, _PENDING))
    if not len(pending):
        pending = np.array(sorted(failed), np.int64)
    started: NDArray[Any] = pending[state[pending] == _STARTED]
    if len(started) or not len(pending):
        return started
    first = pending[0]
    batch = rank.operations["batch"]
    with_it: NDArray[Any] = pending[(pending == first) | ((batch[pending] == batch[first]) & (batch[first] != UNKNOWN))]
    return with_it


def _pending_collectives(table: GroupCalls, fronts: dict[int, NDArray[Any]]) -> Iterator[PendingOperation]:
    if not len(table.calls):
        return
    in_front = np.column_stack([np.isin(table.calls[:, column], fronts[rank]) for column, rank in enumerate(table.ranks)]) & table.has
    ranks = np.array(table.ranks)

    def named(mask: NDArray[Any]) -> tuple[int, ...]:
        return tuple(sorted(ranks[mask].tolist()))

    only_pending = np.array([rank.only_pending for rank in table.traces], bool)
    for row in np.flatnonzero(in_front.any(axis=1)).tolist():
        front = in_front[row]
        state = table.state[row]
        scheduled = state == _SCHEDULED
        pending = np.isin(state, _PENDING)
        stalled = front & scheduled & table.proven[row]
        unstarted = front & scheduled & ~stalled & (front & (state == _STARTED)).any()
        waiting = front & ~stalled & ~unstarted
        unknown = table.unknown | (table.older >= 0)
        if not table.synchronizes[row]:
            unknown |= only_pending  # it may have completed there: a root, or a rank next to it, ends early
        unknown &= table.reached < row
        missing = (table.reached < row) & ~unknown
        yield PendingOperation(
            table, row, {rank: int(index) for rank, index in zip(table.ranks, table.calls[row], strict=True) if index != UNKNOWN},
            waiting=named(waiting), stalled=named(stalled), missing=named(missing), behind=named((pending & ~front) | unstarted),
            absent=() if table.proven[row] or not pending.any() else tuple(table.absent),
            unknown=named(unknown), done=named((table.done[row] | (state == _RETIRED)) & ~front),
            is_whole=table.is_whole or bool(table.proven[row]), time=table.time(row),
        )  # fmt: skip


def _pending_messages(trace: Trace, table: GroupCalls, fronts: dict[int, NDArray[Any]]) -> Iterator[PendingOperation]:
    by_rank = {rank.rank: rank for rank in trace.ranks}
    for sender, send, receiver, receive, is_certain in _pairs(trace, table.match):
        sides = ((sender, send), (receiver, receive))
        index = {rank: operation for rank, operation in sides if operation != UNKNOWN}
        states = {rank: int(by_rank[rank].operations["state"][operation]) for rank, operation in index.items()}
        front = {rank for rank, operation in index.items() if operation in fronts[rank] and states[rank] in _PENDING}
        if not front:
            continue
        done = tuple(rank for rank in index if states[rank] not in _PENDING)
        stalled = {rank for rank in front if done and states[rank] == _SCHEDULED}
        is_started = any(states[rank] == _STARTED for rank in front)
        unstarted = {rank for rank in front - stalled if is_started and states[rank] == _SCHEDULED}
        behind = unstarted | {rank for rank in index if rank not in front and states[rank] in _PENDING}
        peers = {rank for rank, operation in sides if operation == UNKNOWN and rank != UNKNOWN}
        traced = tuple(sorted(peers & set(by_rank)))
        times = [int(by_rank[rank].operations["created"][operation]) for rank, operation in index.items()]
        yield PendingOperation(
            table, UNKNOWN, index, waiting=tuple(sorted(front - stalled - unstarted)), stalled=tuple(sorted(stalled)),
            missing=traced if is_certain else (), unknown=() if is_certain else traced, behind=tuple(sorted(behind)),
            absent=tuple(sorted(peers - set(by_rank))), done=done, is_whole=UNKNOWN not in (sender, receiver), pair=(sender, receiver),
            time=max(0, min(times)),
        )  # fmt: skip


def _pairs(trace: Trace, match: GroupMatch) -> Iterator[tuple[int, int, int, int, bool]]:
    """Yield (sender, send, receiver, receive, is certain) for each message that is pending at a side: ranks of the job, and indices.

    Messages between two ranks are paired in their order. Where a trace lacks completed operations, the pending ones are paired: messages
    complete in order, at both sides. Those of a batch are pending until all have completed: without a counterpart they are not certain.
    """
    partial = [is_partial(rank) for rank in trace.ranks]
    position = {rank.rank: number for number, rank in enumerate(trace.ranks)}
    pending = [np.isin(rank.operations["state"], _PENDING) for rank in trace.ranks]
    incomplete: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for sender, send, receiver, receive in match.messages.tolist():
        sends = send != UNKNOWN and pending[sender][send]
        receives = receive != UNKNOWN and pending[receiver][receive]
        if not (sends or receives):
            continue
        caller, index = (sender, send) if send != UNKNOWN else (receiver, receive)
        peer = int(trace.ranks[caller].operations["root"][index])
        source = trace.ranks[sender].rank if sender != UNKNOWN else peer
        target = trace.ranks[receiver].rank if receiver != UNKNOWN else peer
        if not any(partial[side] for side in (sender, receiver) if side != UNKNOWN):
            yield source, send, target, receive, True
            continue
        pair = incomplete.setdefault((source, target), ([], []))
        if sends:
            pair[0].append(send)
        if receives:
            pair[1].append(receive)
    for (source, target), sides in incomplete.items():
        for send, receive in zip_longest(sorted(sides[0]), sorted(sides[1]), fillvalue=UNKNOWN):
            rank, index = (source, send) if send != UNKNOWN else (target, receive)
            is_alone = trace.ranks[position[rank]].operations["batch"][index] == UNKNOWN
            yield source, send, target, receive, is_alone or UNKNOWN not in (send, receive)
