"""The autopsy of a job that hangs or has ended: which rank did not arrive at which collective, which one called something else.

The input are the traces of all ranks (`traces.reading.read_traces`), written at the same time, such as dumps of PyTorch's Flight Recorder.

A rank waits for another one if it has called an operation of their group that the other one has not called, and that has not completed.
The cause is a rank that others wait for, and that waits for none itself: it explains also what happens in other groups. Ranks that wait
for one another in a circle called their groups in different orders. A rank without a dump is named only if nothing else explains
the waiting, and if it is the only one.

With Gloo, a dump does not contain whether an operation failed or completed (`retired`). A rank that has not called an operation which is
retired at others is therefore one that did not arrive; with NCCL such a dump is older than the others, and is not judged.

Where the ranks of a call disagree, most of them are right. Without a majority, the earlier steps decide: after the same calls as now,
what did all ranks call then? Otherwise no rank is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.errors import FINE, NEGATIVE, NO_VERDICT
from collbench.reason import Fact
from collbench.traces.matching import DifferingField, GroupMatch, TraceDifference, differences, match
from collbench.traces.model import DTYPES, KIND, KINDS, NONE, STATE, UNKNOWN, Part, Trace
from collbench.units import listed, plural

_MOST_NAMED = 8
_COMPLETED, _RETIRED = STATE["completed"], STATE["retired"]
_DEFAULT_GROUP = ("default_pg", "default")


class AutopsyCause(StrEnum):
    """Why a job hangs or fails, as far as the traces show it."""

    NOT_ARRIVED = "did not arrive"
    NO_DUMP = "no dump"
    SKIPPED = "skipped a call"
    ADDITIONAL = "additional call"
    AHEAD = "skipped a call or reordered calls"
    ORDER = "different order"
    OPERATION = "different operation"
    SIZE = "different size"
    DTYPE = "different data type"
    REDOP = "different reduction op"
    ROOT = "different root"
    CIRCLE = "wait for one another"
    NOTHING_MOVES = "no rank is behind"
    OLDER_DUMP = "older dump"
    SLOW = "slow"


_OF_FIELD = {
    DifferingField.ORDER: AutopsyCause.ORDER, DifferingField.OPERATION: AutopsyCause.OPERATION, DifferingField.SIZE: AutopsyCause.SIZE,
    DifferingField.DTYPE: AutopsyCause.DTYPE, DifferingField.REDOP: AutopsyCause.REDOP, DifferingField.ROOT: AutopsyCause.ROOT,
}  # fmt: skip
_PROPERTY = {
    AutopsyCause.SIZE: "size", AutopsyCause.DTYPE: "data type", AutopsyCause.REDOP: "reduction op", AutopsyCause.ROOT: "root",
    AutopsyCause.ORDER: "order",
}  # fmt: skip
_WAITING = frozenset({AutopsyCause.NOT_ARRIVED, AutopsyCause.NO_DUMP, AutopsyCause.CIRCLE})
_OPEN = frozenset({AutopsyCause.NOTHING_MOVES, AutopsyCause.OLDER_DUMP})


class AutopsyFinding(Fact, frozen=True):
    """A cause of a hang or of wrong data that the traces of a job show, with its evidence.

    ranks      those that are the cause; () if the traces do not show which
    group      the name of the process group; what: the program's description of it, or ""
    operation  the call that the others wait in, or about which the ranks disagree; sequence: its number in the group
    waiting    the ranks that have called it and wait; members: how many ranks the group has
    values     by each of `compared` what it called: "allreduce of 340 float32"
    compared   the ranks of `values`
    last       the last call of the first of `ranks` in this group: "allgather #4", or ""
    place      where in the program the first of `ranks` made its last call in any group: "train.py:41 (step)", or ""
    waits_at   where in the program the first of `waiting` called the operation, or ""
    by_history whether the earlier calls of all ranks show which rank is the cause, not the majority
    late       calls at which the rank arrived last, of `of_calls`; lost_s: the seconds that the others waited for it, of `span_s`
    """

    cause: AutopsyCause
    ranks: tuple[int, ...] = ()
    group: str = ""
    what: str = ""
    operation: str = ""
    sequence: int = UNKNOWN
    waiting: tuple[int, ...] = ()
    members: int = 0
    values: tuple[str, ...] = ()
    compared: tuple[int, ...] = ()
    last: str = ""
    place: str = ""
    waits_at: str = ""
    by_history: bool = False
    late: int = 0
    of_calls: int = 0
    lost_s: float = 0.0
    span_s: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the finding names no cause."""
        return self.cause in _OPEN or (self.cause is AutopsyCause.NO_DUMP and len(self.ranks) > 1)

    def render(self) -> str:
        """Return one sentence: the ranks, the call, the evidence."""
        at = f"{self.operation}{f' #{self.sequence}' if self.sequence != UNKNOWN else ''} of group {self._group}"
        who = _ranks(self.ranks)
        if self.cause in _WAITING:
            return f"hang: {self._hang(who, at)}{self._places}"
        if self.cause is AutopsyCause.NOTHING_MOVES:
            return (
                f"{at}: all {self.members} ranks have arrived, and no rank is behind: the path between them carries nothing, "
                f"or the dumps were written during the operation{self._places}"
            )
        if self.cause is AutopsyCause.OLDER_DUMP:
            return f"the dump of {who} is older than the others: it does not have {at}, which completed at {_ranks(self.waiting)}"
        if self.cause is AutopsyCause.SLOW:
            return (
                f"{who} arrived last at {self.late} of {self.of_calls} calls of group {self._group}: the other ranks waited for it "
                f"{self.lost_s:.3g} of {self.span_s:.3g} s, if the clocks of the hosts agree"
            )
        return f"mismatch: {self._mismatch(who)}: {self._values}{self._evidence}{self._places}"

    def _hang(self, who: str, at: str) -> str:
        many = len(self.ranks) > 1
        if self.cause is AutopsyCause.NO_DUMP:
            if many:
                return f"{at}: {self._waiting}; {who} wrote no dump, and at least one of them did not arrive"
            return f"{who} wrote no dump: its process is stopped or has ended; {at}: {self._waiting} for it"
        if self.cause is AutopsyCause.CIRCLE:
            return f"{who} wait for one another in different groups: the order of their calls differs; {at}: {self._waiting}"
        whose = f"the last call of rank {self.ranks[0]}" if many else "its last call"
        last = f"{whose} there is {self.last}" if self.last else f"{'they have' if many else 'it has'} no call there"
        return f"{who} did not arrive at {at}: {self._waiting}; {last}"

    def _mismatch(self, who: str) -> str:
        number = f"#{self.sequence} of group {self._group}"
        at = f"{self.operation} {number}"
        if not self.ranks:
            return f"the ranks disagree about the {_PROPERTY.get(self.cause, 'operation')} at call {number}"
        return {
            AutopsyCause.SKIPPED: f"{who} skipped {at}",
            AutopsyCause.ADDITIONAL: f"{who} made an additional call at {number}",
            AutopsyCause.AHEAD: f"{who} skipped {at} or reordered calls: it called what follows in the earlier steps",
            AutopsyCause.ORDER: f"{who} called in a different order from {number}",
            AutopsyCause.OPERATION: f"{who} called a different operation at {number}",
        }.get(self.cause, f"{who} called {at} with a different {_PROPERTY.get(self.cause, '')}")

    @property
    def _group(self) -> str:
        return f"{self.group[:60]} ({self.what[:60]})" if self.what and self.what != "undefined" else self.group[:60]

    @property
    def _waiting(self) -> str:
        return f"{len(self.waiting)} of {plural(self.members, 'rank')} {'wait' if len(self.waiting) != 1 else 'waits'}"

    @property
    def _values(self) -> str:
        by_value: dict[str, list[int]] = {}
        for rank, value in zip(self.compared, self.values, strict=True):
            by_value.setdefault(value, []).append(rank)
        return ", ".join(f"{value} at {_ranks(ranks)}" for value, ranks in sorted(by_value.items(), key=lambda each: len(each[1])))

    @property
    def _evidence(self) -> str:
        if self.by_history:
            return "; the others called what all ranks called in the earlier steps"
        return "" if self.ranks else "; neither a majority nor earlier steps show which is right"

    @property
    def _places(self) -> str:
        known = [
            f"{_ranks(ranks[:1])} called last at {place}"
            for ranks, place in ((self.ranks, self.place), (self.waiting, self.waits_at))
            if place
        ]
        return f"; {', '.join(known)}" if known else ""


class AutopsyResult(StrEnum):
    """The result of an autopsy."""

    NOTHING_FOUND = "nothing found"
    FOUND = "cause found"
    INCONCLUSIVE = "inconclusive"


class AutopsyVerdict(Fact, frozen=True):
    """What the traces of a job show: the findings, the cause first, and which ranks have no trace.

    world     the number of ranks of the job; known_world: whether the traces contain it, or it is the least that they allow
    read      how many ranks have a trace; absent: the ranks of the job without one
    groups, calls   how many process groups and matched calls were compared
    """

    result: AutopsyResult
    findings: tuple[AutopsyFinding, ...]
    world: int
    known_world: bool
    read: int
    absent: tuple[int, ...]
    groups: int
    calls: int

    @property
    def exit_code(self) -> int:
        """Return 0 for nothing found, 1 for a cause, 3 for inconclusive."""
        return {AutopsyResult.NOTHING_FOUND: FINE, AutopsyResult.FOUND: NEGATIVE}.get(self.result, NO_VERDICT)

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks that the first finding names as the cause; () if none does."""
        first = next((each for each in self.findings if not each.is_open), None)
        return first.ranks if first else ()

    def render(self) -> str:
        """Return the verdict in one sentence."""
        compared = f"{plural(self.calls, 'call')} in {plural(self.groups, 'group')}"
        dumps = (
            f"{self.read} of {plural(self.world, 'rank')}" if self.known_world else f"{plural(self.read, 'rank')} (the job may have more)"
        )
        without = f"; no dump of {_ranks(self.absent)}" if self.absent else ""
        if self.result is AutopsyResult.FOUND:
            return self.findings[0].render()
        if self.result is AutopsyResult.NOTHING_FOUND:
            return f"no hang or mismatch found: {compared}, dumps of {dumps}"
        reason = self.findings[0].render() if self.findings else f"no hang or mismatch in the dumps of {dumps}, {compared}"
        return f"inconclusive: {reason}{without}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {listed([str(rank) for rank in ranks], _MOST_NAMED)}"


def autopsy(trace: Trace, ranks: int | None = None) -> AutopsyVerdict:
    """Return the verdict on a job.

    trace  of all ranks, written at the same time
    ranks  the number of ranks of the job, where the trace does not contain it
    """
    world = max(trace.world, ranks or 0)
    tables = [_GroupCalls(trace, found, world) for found in match(trace)]
    mismatch = min(_mismatches(trace, tables), key=lambda each: each.time, default=None)
    found = list(_Waits(trace, world, tables).findings(mismatch is not None and mismatch.ends_job))
    if mismatch is not None:
        found = [(time, each) for time, each in found if each.is_open or not mismatch.ends_job or time < mismatch.time]
        found.append((mismatch.time, mismatch.finding))
    found.sort(key=lambda pair: pair[0])
    findings = [finding for _, finding in found]
    findings += [slow for table in tables if (slow := _slow(trace, table))]
    findings.sort(key=lambda each: each.is_open)
    known = ranks is not None or any(rank.world != UNKNOWN for rank in trace.ranks)
    absent = tuple(sorted(set(range(world)) - {rank.rank for rank in trace.ranks}))
    calls = sum(len(table.calls) for table in tables)
    if findings and not findings[0].is_open:
        result = AutopsyResult.FOUND
    else:
        result = AutopsyResult.INCONCLUSIVE if findings or absent or not calls else AutopsyResult.NOTHING_FOUND
    return AutopsyVerdict(result, tuple(findings), world, known, len(trace.ranks), absent, len(trace.groups), calls)


class _GroupCalls:
    """The matched collectives of a process group.

    ranks   of the job, of those of its members that were read, by column; absent: members without a trace
    calls   [calls × ranks] as in GroupMatch; state [calls × ranks] index in STATES, NONE where unknown or not called
    last    [ranks] the last row that each rank called, -1 for none
    """

    def __init__(self, trace: Trace, found: GroupMatch, world: int) -> None:
        self.found, self.group = found, trace.groups[found.group]
        columns, calls = list(found.members), found.calls
        members: Sequence[int] = self.group.ranks
        if not members and (self.group.what in _DEFAULT_GROUP or (self.group.name == "0" and not self.group.what)):
            members = range(world)
            for column in sorted(set(range(len(trace.ranks))) - set(columns)):  # ranks that have not called anything in it yet
                columns.append(column)
                calls = np.c_[calls, np.full(len(calls), UNKNOWN, np.int64)]
        self.columns, self.calls = columns, calls
        self.ranks = [trace.ranks[column].rank for column in columns]
        self.members = len(members) or len(columns)
        possible = members or range(world)  # with Gloo, a dump does not contain the members of a group
        self.absent = [rank for rank in possible if rank not in {each.rank for each in trace.ranks}]
        self.sequence = self._values(trace, "sequence", UNKNOWN).max(axis=1, initial=UNKNOWN)
        self.sequence = np.where(self.sequence == UNKNOWN, np.arange(len(calls)), self.sequence)
        self.state = self._values(trace, "state", NONE)
        self.created = np.maximum(self._values(trace, "created", UNKNOWN), UNKNOWN)
        has = calls != UNKNOWN
        self.last = (
            np.where(has.any(axis=0), len(calls) - 1 - np.argmax(has[::-1], axis=0), -1) if len(calls) else np.full(len(columns), -1)
        )
        lost = [bool({Part.OPERATIONS, Part.BEGINNING} & trace.ranks[column].missing) for column in columns]
        self.unknown = np.array([lost[n] and self.last[n] < 0 for n in range(len(columns))], bool)  # its calls may be overwritten

    def _values(self, trace: Trace, name: str, default: int) -> NDArray[Any]:
        values = np.full(self.calls.shape, default, np.int64)
        for number, column in enumerate(self.columns):
            index = self.calls[:, number]
            values[index != UNKNOWN, number] = trace.ranks[column].operations[name][index[index != UNKNOWN]]
        return values

    def operation(self, trace: Trace, row: int, number: int) -> Any:
        """Return the operation of a row at the rank of a column."""
        return trace.ranks[self.columns[number]].operations[self.calls[row, number]]

    def time(self, row: int) -> int:
        """Return when the first rank called the row, in ns; 0 where unknown."""
        known = self.created[row][self.created[row] > 0]
        return int(known.min()) if len(known) else 0


# Ranks that wait for others.


@dataclass(frozen=True)
class _Wait:
    """A rank of the job that has called a row of a table and waits for another one, which has not."""

    rank: int
    blocker: int
    table: int
    row: int


class _Waits:
    def __init__(self, trace: Trace, world: int, tables: Sequence[_GroupCalls]) -> None:
        self.trace, self.tables = trace, tables
        self.waits: list[_Wait] = []
        self.older: dict[int, _Wait] = {}
        self.held: dict[int, tuple[int, int]] = {}  # rank: table and row of an operation that all have called and none has completed
        self.read = {rank.rank for rank in trace.ranks}
        self.messages = dict(reversed([pair for table in tables for pair in _waiting_messages(trace, table.found)]))
        for number, table in enumerate(tables):
            if len(table.calls):
                self._add(number, table)

    def _add(self, number: int, table: _GroupCalls) -> None:
        has = table.calls != UNKNOWN
        completed, retired = table.state == _COMPLETED, table.state == _RETIRED
        for column, rank in enumerate(table.ranks):
            if table.unknown[column]:
                continue
            first = int(table.last[column]) + 1
            if first >= len(table.calls):
                continue
            if completed[first:].any():
                row = first + int(np.argmax(completed[first:].any(axis=1)))
                waiting = int(np.argmax(completed[row]))
                self.older[rank] = _Wait(table.ranks[waiting], rank, number, row)
                continue
            for other, waiting_rank in enumerate(table.ranks):
                rows = np.flatnonzero(has[first:, other])
                if len(rows):
                    self.waits.append(_Wait(waiting_rank, rank, number, first + int(rows[0])))
        pending = has & ~completed & ~retired & (table.state != NONE)
        for absent in table.absent:
            for other, rank in enumerate(table.ranks):
                rows = np.flatnonzero(pending[:, other])
                if len(rows):
                    self.waits.append(_Wait(rank, absent, number, int(rows[0])))
        for row in np.flatnonzero(pending.all(axis=1)).tolist() if not table.absent else ():
            for rank in table.ranks:
                self.held.setdefault(rank, (number, row))

    def findings(self, explained: bool) -> Iterator[tuple[int, AutopsyFinding]]:
        """Yield (time in ns, finding); `explained`: a mismatch was found, so that operations which all have called are explained."""
        for rank, wait in self.older.items():
            table = self.tables[wait.table]
            waiting = tuple(r for r, state in zip(table.ranks, table.state[wait.row], strict=True) if state == _COMPLETED)
            yield self._finding(AutopsyCause.OLDER_DUMP, (rank,), wait.table, wait.row, waiting)
        waits = [wait for wait in self.waits if wait.blocker not in self.older]
        blocked, blockers = {wait.rank for wait in waits} | set(self.messages), {wait.blocker for wait in waits}
        roots = {rank for rank in blockers - blocked if rank in self.read}
        free = roots - set(self.held)
        if free or (roots and not explained):
            yield from self._by_row(AutopsyCause.NOT_ARRIVED, waits, free or roots)
        elif explained:
            return
        elif absent := blockers - self.read:
            yield from self._by_row(AutopsyCause.NO_DUMP, waits, absent)
        elif circle := _circle(waits):
            first = min((wait for wait in waits if wait.rank in circle), key=self._time)
            yield self._finding(AutopsyCause.CIRCLE, tuple(sorted(circle)), first.table, first.row, self._waiting(first))
        elif self.messages:
            yield from self._of_messages(blocked)
        elif self.held:
            number, row = min(self.held.values(), key=lambda at: self.tables[at[0]].time(at[1]))
            yield self._finding(AutopsyCause.NOTHING_MOVES, (), number, row, tuple(self.tables[number].ranks))

    def _of_messages(self, blocked: set[int]) -> Iterator[tuple[int, AutopsyFinding]]:
        """Yield a finding for each peer of a waiting message that waits for none itself."""
        position = {rank.rank: rank for rank in self.trace.ranks}
        for rank, (peer, index) in self.messages.items():
            if peer not in blocked:
                operation = position[rank].operations[index]
                group = self.trace.groups[operation["group"]]
                yield int(operation["created"]), AutopsyFinding(
                    AutopsyCause.NOT_ARRIVED, (peer,), group.name, group.what, KINDS[operation["kind"]], int(operation["sequence"]),
                    (rank,), 2, place=_place(self.trace, peer), waits_at=_place(self.trace, rank, index),
                )  # fmt: skip

    def _time(self, wait: _Wait) -> int:
        return self.tables[wait.table].time(wait.row)

    def _waiting(self, wait: _Wait) -> tuple[int, ...]:
        table = self.tables[wait.table]
        return tuple(sorted(rank for rank, index in zip(table.ranks, table.calls[wait.row], strict=True) if index != UNKNOWN))

    def _by_row(self, cause: AutopsyCause, waits: Sequence[_Wait], roots: set[int]) -> Iterator[tuple[int, AutopsyFinding]]:
        """Yield a finding for each call that these ranks are missing at: of each rank the first one."""
        first: dict[int, _Wait] = {}
        for wait in sorted(waits, key=lambda each: (self._time(each), each.row)):
            if wait.blocker in roots:
                first.setdefault(wait.blocker, wait)
        together: dict[tuple[int, int], list[int]] = {}
        for rank, wait in first.items():
            key = (0, 0) if cause is AutopsyCause.NO_DUMP else (wait.table, wait.row)
            together.setdefault(key, []).append(rank)
        for ranks in together.values():
            wait = first[ranks[0]]
            yield self._finding(cause, tuple(sorted(ranks)), wait.table, wait.row, self._waiting(wait))

    def _finding(
        self, cause: AutopsyCause, ranks: tuple[int, ...], number: int, row: int, waiting: tuple[int, ...]
    ) -> tuple[int, AutopsyFinding]:
        table = self.tables[number]
        last = ""
        if ranks and ranks[0] in table.ranks:
            column = table.ranks.index(ranks[0])
            if (at := int(table.last[column])) >= 0:
                last = f"{KINDS[table.operation(self.trace, at, column)['kind']]} #{table.sequence[at]}"
        column = int(np.argmax(table.calls[row] != UNKNOWN))
        operation = KINDS[table.operation(self.trace, row, column)["kind"]]
        waits_at = _place(self.trace, waiting[0], int(table.calls[row, table.ranks.index(waiting[0])])) if waiting else ""
        finding = AutopsyFinding(
            cause, ranks, table.group.name, table.group.what, operation, int(table.sequence[row]), waiting, table.members, last=last,
            place=_place(self.trace, ranks[0]) if ranks else "", waits_at=waits_at,
        )  # fmt: skip
        return table.time(row), finding


def _waiting_messages(trace: Trace, found: GroupMatch) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield (rank, (peer, operation)) for each message of which only one side was called, and has not ended."""
    for sender, send, receiver, receive in found.messages.tolist():
        if UNKNOWN in (sender, receiver) or (send == UNKNOWN) == (receive == UNKNOWN):
            continue
        (own, index), other = ((sender, send), receiver) if receive == UNKNOWN else ((receiver, receive), sender)
        overwritten = {Part.OPERATIONS, Part.BEGINNING} & trace.ranks[other].missing
        if trace.ranks[own].operations["state"][index] in (STATE["scheduled"], STATE["started"]) and not overwritten:
            yield trace.ranks[own].rank, (trace.ranks[other].rank, index)


def _circle(waits: Sequence[_Wait]) -> set[int]:
    """Return the ranks of a circle of waiting; empty without one."""
    after = {wait.rank: wait.blocker for wait in waits}
    for first in after:
        seen: dict[int, int] = {}
        rank = first
        while rank in after and rank not in seen:
            seen[rank] = len(seen)
            rank = after[rank]
        if rank in seen:
            return {each for each, at in seen.items() if at >= seen[rank]}
    return set()


def _place(trace: Trace, rank: int, index: int = UNKNOWN) -> str:
    """Return where in the program a rank called an operation, by default the last one; "" where it is not recorded."""
    found = next((each for each in trace.ranks if each.rank == rank), None)
    if found is None or not len(found.operations):
        return ""
    return found.notes.get(len(found.operations) - 1 if index == UNKNOWN else index, "")


# Calls about which the ranks disagree.

_CONTEXT, _LEAST_CONTEXT = 12, 2  # calls before the one in question, which must be equal in an earlier step


_GOES_ON = 32  # calls after which a mismatch is not what ended the job


class _Mismatch(NamedTuple):
    """The first mismatch of a group; ends_job: whether a rank called little after it, so that what is missing then follows from it."""

    time: int
    finding: AutopsyFinding
    ends_job: bool


def _mismatches(trace: Trace, tables: Sequence[_GroupCalls]) -> Iterator[_Mismatch]:
    """Yield the first mismatch of each group."""
    for table in tables:
        has = table.calls != UNKNOWN
        first: tuple[int, TraceDifference] | None = None
        for mask in np.unique(has, axis=0) if len(table.calls) else ():
            rows, columns = np.flatnonzero((has == mask).all(axis=1)), np.flatnonzero(mask)
            if len(columns) < 2:
                continue
            part = GroupMatch(
                table.found.group, tuple(table.columns[c] for c in columns), table.calls[np.ix_(rows, columns)], table.found.messages[:0]
            )
            for found in differences(trace, [part]):
                if found.field in _OF_FIELD and not _may_differ(trace, found):
                    row = int(rows[found.call])
                    first = min(first, (row, found), key=lambda pair: pair[0]) if first else (row, found)
                    break
        if first is not None:
            yield _Mismatch(table.time(first[0]), _mismatch(trace, table, *first), int(table.last.min()) - first[0] < _GOES_ON)


def _may_differ(trace: Trace, found: TraceDifference) -> bool:
    """Return whether a program without a fault may have this difference: the parts of an uneven all-to-all are not recorded."""
    return found.field is DifferingField.SIZE and found.operation in ("alltoall", "alltoallv") and Part.SPLITS in trace.missing


def _mismatch(trace: Trace, table: _GroupCalls, row: int, found: TraceDifference) -> AutopsyFinding:
    called = np.flatnonzero(table.calls[row] != UNKNOWN).tolist()
    lists = {column: _signatures(trace, table, column) for column in called}
    ranks, by_history = found.minority, False
    right = next((column for column in called if table.ranks[column] not in ranks), called[0])
    if not ranks:
        expected = _expected(lists[called[0]], row)
        fitting = [column for column in called if lists[column].get(row) == expected]
        if expected is not None and fitting and len(fitting) < len(called):
            ranks = tuple(sorted(table.ranks[column] for column in called if column not in fitting))
            right, by_history = fitting[0], True
    cause = _OF_FIELD[found.field]
    if ranks and cause is not AutopsyCause.ORDER:
        wrong = lists[table.ranks.index(ranks[0])]
        following = _expected({**lists[right], row + 1: ()}, row + 1)
        ahead = AutopsyCause.AHEAD if following is not None and wrong[row] == following else cause
        cause = _shift(wrong, lists[right], row) or ahead
    operation = KINDS[table.operation(trace, row, right)["kind"]]
    compared = sorted(called, key=lambda column: table.ranks[column])
    waits_at = _place(trace, table.ranks[right], int(table.calls[row, right]))
    place = _place(trace, ranks[0], int(table.calls[row, table.ranks.index(ranks[0])])) if ranks else ""
    return AutopsyFinding(
        cause, ranks, table.group.name, table.group.what, operation, int(table.sequence[row]),
        tuple(table.ranks[column] for column in compared if table.ranks[column] not in ranks) if ranks else (), table.members,
        tuple(_describe(table.operation(trace, row, column)) for column in compared), tuple(table.ranks[column] for column in compared),
        place=place, waits_at=waits_at, by_history=by_history,
    )  # fmt: skip


def _signatures(trace: Trace, table: _GroupCalls, column: int) -> dict[int, tuple[int, ...]]:
    """Return by row what a rank called: kind, type, elements."""
    rows = np.flatnonzero(table.calls[:, column] != UNKNOWN)
    operations = trace.ranks[table.columns[column]].operations[table.calls[rows, column]]
    names = ["kind", "dtype", "sent", "received"]
    return dict(zip(rows.tolist(), (tuple(each) for each in operations[names].tolist()), strict=True))


def _expected(calls: dict[int, tuple[int, ...]], row: int) -> tuple[int, ...] | None:
    """Return what followed in an earlier step on the calls before `row`, with the most equal calls before it; None if nothing does."""
    best, expected = _LEAST_CONTEXT - 1, None
    for earlier in range(row - 1, 0, -1):
        equal = 0
        while equal < _CONTEXT and calls.get(earlier - 1 - equal, 0) == calls.get(row - 1 - equal, 1):
            equal += 1
        if equal > best and earlier in calls:
            best, expected = equal, calls[earlier]
    return expected


def _shift(wrong: dict[int, tuple[int, ...]], right: dict[int, tuple[int, ...]], row: int) -> AutopsyCause | None:
    """Return whether a rank skipped a call or made an additional one: from `row` on, its calls are those of the others, one later or
    earlier. One equal call is not enough: it may be in a different order.
    """
    for cause, ahead, behind in ((AutopsyCause.SKIPPED, wrong, right), (AutopsyCause.ADDITIONAL, right, wrong)):
        pairs = [(ahead[at], behind[at + 1]) for at in range(row, row + _CONTEXT) if at in ahead and at + 1 in behind]
        if len(pairs) > 1 and all(a == b for a, b in pairs) and ahead.get(row + 1) != behind.get(row):
            return cause
    return None


def _describe(operation: Any) -> str:
    """Return "allreduce of 340 float32"."""
    kind, sent, received = KINDS[operation["kind"]], int(operation["sent"]), int(operation["received"])
    if operation["kind"] in (KIND["barrier"], KIND["other"]) or max(sent, received) < 0:
        return kind
    dtype = "" if operation["dtype"] == NONE else f" {DTYPES[operation['dtype']]}"
    return f"{kind} of {max(sent, received) if operation['kind'] != KIND['allgather'] else sent:,}{dtype or ' elements'}"


# Ranks that arrive late.

_FEWEST_CALLS, _LATE_NS, _LEAST_SHARE, _CHANCE = 20, 10_000_000, 0.1, 0.001


def _slow(trace: Trace, table: _GroupCalls) -> AutopsyFinding | None:
    """Return the rank that the others of a group wait for: by 10 ms or more, 10 % of the time, and more often than chance explains.

    10 ms: clocks of hosts that NTP synchronizes differ by less. Half of the calls count, since a step has several calls in a row.
    """
    rows = (table.created > 0).all(axis=1)
    times = table.created[rows]
    if len(times) < _FEWEST_CALLS or len(table.ranks) < 2:
        return None
    ordered = np.sort(times, axis=1)
    lag, last = ordered[:, -1] - ordered[:, -2], np.argmax(times, axis=1)
    late = lag >= _LATE_NS
    span = int(times.max() - times.min())
    counts = np.bincount(last[late], minlength=len(table.ranks))
    column = int(np.argmax(counts))
    lost = int(lag[late & (last == column)].sum())
    tried, often = int(late.sum()) // 2, int(counts[column]) // 2
    n = len(table.ranks)
    chance = sum(comb(tried, k) * (n - 1) ** (tried - k) for k in range(often, tried + 1)) / n**tried if tried else 1.0
    if lost < _LEAST_SHARE * span or chance > _CHANCE / n:
        return None
    return AutopsyFinding(
        AutopsyCause.SLOW, (table.ranks[column],), table.group.name, table.group.what, members=table.members, late=int(counts[column]),
        of_calls=len(times), lost_s=lost / 1e9, span_s=span / 1e9,
    )  # fmt: skip
