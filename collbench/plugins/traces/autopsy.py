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

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from math import comb
from typing import Any, NamedTuple

import numpy as np

from collbench.errors import FINE, NEGATIVE, NO_VERDICT
from collbench.operations.dtypes import dtype_named
from collbench.plugins.traces.matching import DifferingField, GroupMatch, TraceDifference, by_value, differences, match, named_ranks
from collbench.plugins.traces.model import DTYPES, KINDS, NONE, UNKNOWN, DamagedFile, Part, Trace
from collbench.plugins.traces.wait_graph import GroupCalls, PendingOperation, has_unknown_message, wait_graph
from collbench.reason import Fact
from collbench.units import plural


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
    NOT_ARRIVED_OR_ADDITIONAL = "did not arrive, or additional call"
    NOT_STARTED = "called, not started"
    NOTHING_MOVES = "no rank is behind"
    PARTLY = "completed at some ranks"
    NO_MEMBERS = "members not recorded"
    NOT_SHOWN = "not recorded"
    OLDER_DUMP = "older dump"
    SLOW = "slow"


_OPEN = frozenset(
    {AutopsyCause.NOTHING_MOVES, AutopsyCause.OLDER_DUMP, AutopsyCause.PARTLY, AutopsyCause.NO_MEMBERS, AutopsyCause.NOT_SHOWN}
)
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_NO_MATCH = "hang: {ranks} did not call the matching {other}: rank {first} waits in {at}; {last}"
_NO_DUMPS = "hang: {at}: {waiting}; no dump of {ranks}, and at least one of them did not arrive"
_TEXTS = {
    AutopsyCause.NOT_ARRIVED: "hang: {ranks} did not arrive at {at}: {waiting}; {last}{gpu}",
    AutopsyCause.NOT_ARRIVED_OR_ADDITIONAL: (
        "hang: {ranks} did not arrive at {at}, or {waiters} made an additional call: {waiting}; {last}{gpu}"
    ),
    AutopsyCause.NO_DUMP: "hang: no dump of {ranks}: its process is stopped or has ended, or its dump is lost; {at}: {waiting} for it",
    AutopsyCause.CIRCLE: "hang: {ranks} {circle}: {values}",
    AutopsyCause.NOT_STARTED: "hang: {ranks} {have} called {at}, and the GPU has not started it: {waiting} for it{gpu}",
    AutopsyCause.OLDER_DUMP: "the dump of {ranks} is older than the others: it does not have {at}, which completed at {waiters}",
    AutopsyCause.NOT_SHOWN: "{at}: {waiters} {wait}, and the dumps do not show for which rank{unknown}",
    AutopsyCause.NO_MEMBERS: "{at}: {waiters} {wait}; the dumps do not have all ranks of the group, and one may not have called it",
    AutopsyCause.PARTLY: (
        "{at}: completed at {done} and pending at {waiters}, which have called it: {stuck}, or the path between them carries nothing"
    ),
    AutopsyCause.NOTHING_MOVES: (
        "{at}: all {members} ranks have arrived, and no rank is behind: the path between them carries nothing, "
        "or the dumps were written during the operation"
    ),
    AutopsyCause.SKIPPED: "mismatch: {ranks} skipped {operation} {number}",
    AutopsyCause.ADDITIONAL: "mismatch: {ranks} made an additional call at {number}",
    AutopsyCause.AHEAD: ("mismatch: {ranks} skipped {operation} {number} or reordered calls: it called what follows in the earlier steps"),
    AutopsyCause.ORDER: "mismatch: {ranks} called in a different order from {number}",
    AutopsyCause.OPERATION: "mismatch: {ranks} called a different operation at {number}",
    AutopsyCause.SLOW: (
        "{ranks} arrived last at {late} of {of_calls} calls of group {group}: the other ranks waited for it "
        "{lost:.3g} of {span:.3g} s, if the clocks of the hosts agree"
    ),
}
_DIFFERENT = "mismatch: {ranks} called {operation} {number} with a different {what}"
_NOT_CALLED = frozenset({AutopsyCause.NOT_ARRIVED, AutopsyCause.NOT_ARRIVED_OR_ADDITIONAL})
_MISMATCHES = frozenset(AutopsyCause) - _OPEN - _NOT_CALLED - {
    AutopsyCause.NO_DUMP, AutopsyCause.CIRCLE, AutopsyCause.NOT_STARTED, AutopsyCause.SLOW,
}  # fmt: skip
_DIFFERS_IN = {
    AutopsyCause.ORDER: "order", AutopsyCause.SIZE: "size", AutopsyCause.DTYPE: "data type", AutopsyCause.REDOP: "reduction op",
    AutopsyCause.ROOT: "root",
}  # fmt: skip
_DISAGREE = "mismatch: the ranks disagree about the {what} at call {number}"
_DIFFERENT_ENDS = "mismatch: {at} has a different {what} at its sender and its receiver"


class AutopsyFinding(Fact, frozen=True):
    """A cause of a hang or of wrong data that the traces of a job show, with its evidence.

    ranks      those that are the cause; () if the traces do not show which
    group      the name of the process group; what: the program's description of it, or ""
    operation  the call that the others wait in, or about which the ranks disagree; sequence: its number in the group
    waiting    the ranks that have called it and wait; members: how many ranks the group has
    values     by each of `compared` what it called: "allreduce of 340 float32"
    compared   the ranks of `values`
    last       the last call of the first of `ranks` in this group: "allgather #4", "#4" if its dump does not have it, or ""
    called     the number of the last collective of the group that the first of `ranks` has called; completed: that of the last one that it
               has completed; UNKNOWN: not recorded
    peer       of a message: the other rank of the first of `waiting`; UNKNOWN: not recorded
    without_messages  whether the traces do not contain messages, so that a rank may wait in one
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
    called: int = UNKNOWN
    completed: int = UNKNOWN
    peer: int = UNKNOWN
    without_messages: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the finding names no cause."""
        return self.cause in _OPEN or (self.cause is AutopsyCause.NO_DUMP and len(self.ranks) > 1)

    @property
    def is_message(self) -> bool:
        """Whether the operation is a send or a receive."""
        return self.operation in ("send", "recv")

    def render(self) -> str:
        """Return one sentence: the ranks, the call, the evidence."""
        many = len(self.ranks) > 1
        group = f"{self.group[:60]} ({self.what[:60]})" if self.what and self.what != "undefined" else self.group[:60]
        call = self.operation if self.sequence == UNKNOWN else f"{self.operation} #{self.sequence}"
        if self.is_message:
            call += f" {_peer(self.operation, self.peer)}"
        unknown = f"; the dump of {named_ranks(self.ranks)} does not show whether it was called there" if self.ranks else ""
        gpu = f"the GPU of rank {self.ranks[0]}" if many else "its GPU"
        is_behind = self.completed != UNKNOWN and self.completed < self.called
        wait = "wait" if len(self.waiting) != 1 else "waits"
        shown = self._template.format(
            ranks=named_ranks(self.ranks), have="have" if many else "has", waiters=named_ranks(self.waiting), wait=wait, group=group,
            waiting=f"{len(self.waiting)} of {plural(self.members, 'rank')} {wait}", first=self.waiting[0] if self.waiting else "",
            at=f"{call} of group {group}", number=f"#{self.sequence} of group {group}", operation=self.operation,
            other="recv" if self.operation == "send" else "send", circle="wait for one another" if many else "waits for itself",
            values=by_value(self.values, self.compared) if self.values else "", done=named_ranks(self.compared), unknown=unknown,
            stuck="a rank has passed another root" if self.operation in _ROOTED else "a GPU is stuck", members=self.members,
            last=self._last, gpu=f"; {gpu} has completed only #{self.completed}" if is_behind else "",
            what=_DIFFERS_IN.get(self.cause, "operation"), late=self.late, of_calls=self.of_calls, lost=self.lost_s, span=self.span_s,
        )  # fmt: skip
        if self.cause is AutopsyCause.SLOW:
            return shown
        callers = ((self.ranks, self.place), (self.waiting, self.waits_at))
        places = [f"{named_ranks(ranks[:1])} called last at {place}" for ranks, place in callers if place]
        return f"{shown}; {', '.join(places)}" if places else shown

    @property
    def _template(self) -> str:
        if self.cause is AutopsyCause.NO_DUMP and len(self.ranks) > 1:
            return _NO_DUMPS
        if self.is_message and self.cause in _NOT_CALLED:
            return _NO_MATCH
        text = _TEXTS.get(self.cause, _DIFFERENT)
        if self.cause not in _MISMATCHES:
            return text
        if self.is_message:
            return f"{_DIFFERENT_ENDS}: {{values}}"
        evidence = "" if self.ranks else "; neither a majority nor earlier steps show which is right"
        if self.by_history:
            evidence = "; the others called what all ranks called in the earlier steps"
        return f"{text if self.ranks else _DISAGREE}: {{values}}{evidence}"

    @property
    def _last(self) -> str:
        many = len(self.ranks) > 1
        if self.last:
            call = f"the last call of rank {self.ranks[0]}" if many else "its last call"
            return f"{call} there is {self.last}"
        if self.sequence <= 1 and not self.is_message:
            return f"{'they have' if many else 'it has'} no call there"
        return f"the dump of rank {self.ranks[0]} has no call there" if many else "its dump has no call there"


class AutopsyResult(StrEnum):
    """The result of an autopsy."""

    NOTHING_FOUND = "nothing found"
    FOUND = "cause found"
    INCONCLUSIVE = "inconclusive"


class AutopsyVerdict(Fact, frozen=True):
    """What the traces of a job show: the findings, the cause first, and which ranks have no trace.

    world     the number of ranks of the job; known_world: whether the traces contain it, or it is the least that they allow
    read      how many ranks have a trace; absent: the ranks of the job without one; damaged: files that could not be read
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
    damaged: tuple[DamagedFile, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return 0 for nothing found, 1 for a cause, 3 for inconclusive."""
        return {AutopsyResult.NOTHING_FOUND: FINE, AutopsyResult.FOUND: NEGATIVE}.get(self.result, NO_VERDICT)

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks that the first finding names as the cause; () if none does, or if others may be."""
        first = next((finding for finding in self.findings if not finding.is_open), None)
        return first.ranks if first and first.cause is not AutopsyCause.NOT_ARRIVED_OR_ADDITIONAL else ()

    def render(self) -> str:
        """Return the verdict in one sentence."""
        compared = f"{plural(self.calls, 'call')} in {plural(self.groups, 'group')}"
        dumps = f"{plural(self.read, 'rank')} (the job may have more)"
        if self.known_world:
            dumps = f"{self.read} of {plural(self.world, 'rank')}"
        without = f"; no dump of {named_ranks(self.absent)}" if self.absent else ""
        if self.result is AutopsyResult.FOUND:
            return self.findings[0].render()
        if self.result is AutopsyResult.NOTHING_FOUND:
            return f"no hang or mismatch found: {compared}, dumps of {dumps}"
        reason = self.findings[0].render() if self.findings else f"no hang or mismatch in the dumps of {dumps}, {compared}"
        return f"inconclusive: {reason}{without}"


def autopsy(trace: Trace, ranks: int | None = None) -> AutopsyVerdict:
    """Return the verdict on a job.

    trace  of all ranks, written at the same time
    ranks  the number of ranks of the job, where the trace does not contain it
    """
    world = max(trace.world, ranks or 0, *(file.rank + 1 for file in trace.damaged))
    tables = [GroupCalls(trace, matched, world) for matched in match(trace)]
    mismatch = min(_mismatches(trace, tables), key=lambda mismatch: mismatch.time, default=None)
    by_time = list(_Waits(trace, tables).findings(mismatch is not None and mismatch.ends_job))
    if mismatch is not None:
        by_time = [(time, finding) for time, finding in by_time if finding.is_open or not mismatch.ends_job or time < mismatch.time]
        by_time.append((mismatch.time, mismatch.finding))
    by_time.sort(key=lambda pair: pair[0])
    findings = [finding for _, finding in by_time]
    findings += filter(None, map(_slow, tables))
    findings.sort(key=lambda finding: finding.is_open)
    known_world = ranks is not None or any(rank.world != UNKNOWN for rank in trace.ranks)
    absent = tuple(sorted(set(range(world)) - {rank.rank for rank in trace.ranks}))
    calls = sum(len(table.calls) for table in tables)
    if findings and not findings[0].is_open:
        result = AutopsyResult.FOUND
    else:
        is_open = bool(findings) or bool(absent) or not calls or has_unknown_message(trace)
        result = AutopsyResult.INCONCLUSIVE if is_open else AutopsyResult.NOTHING_FOUND
    return AutopsyVerdict(result, tuple(findings), world, known_world, len(trace.ranks), absent, len(trace.groups), calls, trace.damaged)


class _Waits:
    def __init__(self, trace: Trace, tables: Sequence[GroupCalls]) -> None:
        self.trace = trace
        self.tables = tables
        self.by_rank = {rank.rank: rank for rank in trace.ranks}
        self.graph = wait_graph(trace, tables)

    def findings(self, explained: bool) -> Iterator[tuple[int, AutopsyFinding]]:
        """Yield (time in ns, finding); at least one if an operation is pending, unless a mismatch explains it.

        explained: a mismatch was found, so that operations which all have called are explained
        """
        for table in self.tables:
            for rank, row in zip(table.ranks, table.older.tolist(), strict=True):
                if row >= 0:
                    completed = np.flatnonzero(table.done[row] & table.has[row])
                    index = {table.ranks[column]: int(table.calls[row, column]) for column in np.flatnonzero(table.has[row])}
                    older = PendingOperation(table, row, index, time=table.time(row))
                    waiting = tuple(sorted(table.ranks[column] for column in completed))
                    yield older.time, self._finding(AutopsyCause.OLDER_DUMP, (rank,), older, waiting=waiting)
        unequal = list(self._unequal())
        yield from unequal
        roots = self.graph.roots
        missing = {rank for operation in self.graph.operations if operation.waiting for rank in operation.missing} & roots
        causes = [
            *self._by_operation(AutopsyCause.NOT_ARRIVED, missing, lambda operation: operation.missing),
            *self._by_operation(AutopsyCause.NOT_STARTED, roots - missing, lambda operation: operation.behind),
        ]
        yield from causes
        if not (causes or explained or unequal):
            yield from self._without_root()

    def _without_root(self) -> Iterator[tuple[int, AutopsyFinding]]:
        """Yield what the graph shows if each rank that others wait for waits itself."""
        absent = {rank for operation in self.graph.operations for rank in operation.absent}
        circles = self.graph.circles(behind=False) or ([] if absent else self.graph.circles(behind=True))
        if circles:
            for circle in circles:
                waits = {rank: self.graph.waits[rank][0] for rank in sorted(circle)}
                first = min(waits.values(), key=lambda operation: operation.time)
                values = tuple(self._called(operation, rank) for rank, operation in waits.items())
                yield first.time, self._finding(AutopsyCause.CIRCLE, tuple(waits), first, values=values, compared=tuple(waits))
        elif absent:
            yield from self._by_operation(AutopsyCause.NO_DUMP, absent, lambda operation: operation.absent)
        elif self.graph.operations:
            yield self._held()

    def _by_operation(
        self, cause: AutopsyCause, ranks: set[int], blockers: Callable[[PendingOperation], Sequence[int]]
    ) -> Iterator[tuple[int, AutopsyFinding]]:
        """Yield a finding for each operation that these ranks hold up: of each rank the first one."""
        first: dict[int, PendingOperation] = {}
        for operation in self.graph.operations:
            if operation.waiting:
                first.update(dict.fromkeys(ranks.intersection(blockers(operation)) - first.keys(), operation))
        together: dict[int, list[int]] = {}
        for rank, operation in sorted(first.items()):
            together.setdefault(0 if cause is AutopsyCause.NO_DUMP else id(operation), []).append(rank)
        for held_by in together.values():
            operation = first[held_by[0]]
            more = len(operation.missing) > len(operation.waiting) and not operation.pair and operation.is_whole
            is_additional = more and cause is AutopsyCause.NOT_ARRIVED
            shown = AutopsyCause.NOT_ARRIVED_OR_ADDITIONAL if is_additional else cause
            yield operation.time, self._finding(shown, tuple(held_by), operation)

    def _held(self) -> tuple[int, AutopsyFinding]:
        """Return a finding for the first operation that is pending without a rank that it waits for."""
        free = [operation for operation in self.graph.operations if not operation.blockers]
        shown = [operation for operation in free if not operation.unknown]
        operation = (shown or free or self.graph.operations)[0]
        if operation.blockers or operation.unknown:
            return operation.time, self._finding(AutopsyCause.NOT_SHOWN, operation.unknown, operation)
        if operation.done:
            return operation.time, self._finding(AutopsyCause.PARTLY, (), operation, compared=operation.done)
        return operation.time, self._finding(AutopsyCause.NOTHING_MOVES if operation.is_whole else AutopsyCause.NO_MEMBERS, (), operation)

    def _unequal(self) -> Iterator[tuple[int, AutopsyFinding]]:
        """Yield a finding for each send that has another number of bytes than its receive."""
        for operation in self.graph.operations:
            if not operation.pair or len(operation.index) < 2:
                continue
            sender, receiver = (self._operation(operation, rank) for rank in operation.pair)
            sent = int(sender["sent"])
            received = int(receiver["received"])
            if min(sent, received) < 0 or NONE in (sender["dtype"], receiver["dtype"]):
                continue
            width, other_width = (dtype_named(DTYPES[side["dtype"]]).size for side in (sender, receiver))
            if sent * width != received * other_width:
                cause = AutopsyCause.SIZE if sent != received else AutopsyCause.DTYPE
                values = _describe(sender), _describe(receiver)
                yield operation.time, self._finding(cause, (), operation, values=values, compared=operation.pair)

    def _operation(self, operation: PendingOperation, rank: int) -> Any:
        return self.by_rank[rank].operations[operation.index[rank]]

    def _called(self, operation: PendingOperation, rank: int) -> str:
        """Return what a rank called: "send to rank 1", "allreduce #7 of group 0"."""
        called = self._operation(operation, rank)
        if operation.pair:
            kind = KINDS[called["kind"]]
            return f"{kind} {_peer(kind, int(called['root']))}"
        return f"{KINDS[called['kind']]} #{operation.table.sequence[operation.row]} of group {operation.table.group.name[:60]}"

    def _finding(
        self, cause: AutopsyCause, ranks: tuple[int, ...], operation: PendingOperation, *, waiting: tuple[int, ...] = (),
        values: tuple[str, ...] = (), compared: tuple[int, ...] = (),
    ) -> AutopsyFinding:  # fmt: skip
        table = operation.table
        waiting = waiting or operation.waiting or operation.stalled
        if cause is AutopsyCause.CIRCLE:
            waiting = tuple(rank for rank in waiting if rank in ranks) or waiting
        caller = waiting[0] if waiting else next(iter(operation.index))
        called = self._operation(operation, caller)
        last, reached, completed = self._last(table, ranks[0], operation) if ranks else ("", UNKNOWN, UNKNOWN)
        return AutopsyFinding(
            cause, ranks, table.group.name, table.group.what, KINDS[called["kind"]],
            int(called["sequence"] if operation.pair else table.sequence[operation.row]), waiting,
            len(operation.pair) or table.members, values, compared, last=last, place=_place(self.trace, ranks[0]) if ranks else "",
            waits_at=_place(self.trace, caller, operation.index[caller]), peer=int(called["root"]) if operation.pair else UNKNOWN,
            called=reached, completed=completed, without_messages=Part.MESSAGES in self.trace.missing,
        )  # fmt: skip

    def _last(self, table: GroupCalls, rank: int, operation: PendingOperation) -> tuple[str, int, int]:
        """Return the last call of a rank in a group, "" if it is not known; and the numbers of the last one called and completed."""
        if rank not in table.ranks:
            return "", UNKNOWN, UNKNOWN
        if operation.pair:
            operations = self.by_rank[rank].operations
            in_group = operations[operations["group"] == table.match.group]
            if not len(in_group):
                return "", UNKNOWN, UNKNOWN
            last = in_group[-1]
            return f"{KINDS[last['kind']]} #{last['sequence']}", UNKNOWN, UNKNOWN
        column = table.ranks.index(rank)
        row = int(table.reached[column])
        called, completed = table.progress[column] or table.recorded(column)
        if row == table.last[column] >= 0:
            return f"{KINDS[table.operation(row, column)['kind']]} #{table.sequence[row]}", called, completed
        return f"#{called}" if called > 0 else "", called, completed


def _peer(kind: str, peer: int) -> str:
    return f"{'to' if kind == 'send' else 'from'} {f'rank {peer}' if peer != UNKNOWN else 'any rank'}"


def _place(trace: Trace, rank: int, index: int = UNKNOWN) -> str:
    """Return where in the program a rank called an operation, by default the last one; "" where it is not recorded."""
    traced = next((traced for traced in trace.ranks if traced.rank == rank), None)
    if traced is None or not len(traced.operations):
        return ""
    return traced.notes.get(len(traced.operations) - 1 if index == UNKNOWN else index, "")


_CONTEXT, _LEAST_CONTEXT = 12, 2  # calls before the one in question, which must be equal in an earlier step
_GOES_ON = 32  # calls after which a mismatch is not what ended the job


class _Mismatch(NamedTuple):
    """The first mismatch of a group; ends_job: whether a rank called little after it, so that what is missing then follows from it."""

    time: int
    finding: AutopsyFinding
    ends_job: bool


def _mismatches(trace: Trace, tables: Sequence[GroupCalls]) -> Iterator[_Mismatch]:
    for table in tables:
        first: tuple[int, TraceDifference] | None = None
        for mask in np.unique(table.has, axis=0) if len(table.calls) else ():
            rows = np.flatnonzero((table.has == mask).all(axis=1))
            columns = np.flatnonzero(mask)
            if len(columns) < 2:
                continue
            members = tuple(table.columns[column] for column in columns)
            part = GroupMatch(table.match.group, members, table.calls[np.ix_(rows, columns)], table.match.messages[:0])
            for difference in differences(trace, [part]):
                # the parts of an uneven all-to-all are not recorded: a program without a fault may have this difference
                uneven = difference.field is DifferingField.SIZE and difference.operation in ("alltoall", "alltoallv")
                if difference.field is not DifferingField.MISSING and not (uneven and Part.SPLITS in trace.missing):
                    row = int(rows[difference.call])
                    if first is None or row < first[0]:
                        first = row, difference
                    break
        if first is not None:
            row, difference = first
            yield _Mismatch(table.time(row), _mismatch(trace, table, row, difference), int(table.last.min()) - row < _GOES_ON)


def _mismatch(trace: Trace, table: GroupCalls, row: int, difference: TraceDifference) -> AutopsyFinding:
    called = np.flatnonzero(table.has[row]).tolist()
    lists: dict[int, dict[int, tuple[int, ...]]] = {}  # by column and row what a rank called: kind, type, elements
    for column in called:
        rows = np.flatnonzero(table.has[:, column])
        operations = table.traces[column].operations[["kind", "dtype", "sent", "received"]][table.calls[rows, column]]
        lists[column] = dict(zip(rows.tolist(), operations.tolist(), strict=True))
    ranks = difference.minority
    by_history = False
    right = next((column for column in called if table.ranks[column] not in ranks), called[0])
    if not ranks:
        expected = _expected(lists[called[0]], row)
        fitting = [column for column in called if lists[column].get(row) == expected]
        if expected is not None and fitting and len(fitting) < len(called):
            ranks = tuple(sorted(table.ranks[column] for column in called if column not in fitting))
            right = fitting[0]
            by_history = True
    cause = AutopsyCause(f"different {difference.field}")
    if ranks and cause is not AutopsyCause.ORDER:
        wrong = lists[table.ranks.index(ranks[0])]
        following = _expected({**lists[right], row + 1: ()}, row + 1)
        ahead = AutopsyCause.AHEAD if following is not None and wrong[row] == following else cause
        cause = _shift(wrong, lists[right], row) or ahead
    operation = KINDS[table.operation(row, right)["kind"]]
    compared = sorted(called, key=lambda column: table.ranks[column])
    waits_at = _place(trace, table.ranks[right], int(table.calls[row, right]))
    place = _place(trace, ranks[0], int(table.calls[row, table.ranks.index(ranks[0])])) if ranks else ""
    compared_ranks = tuple(table.ranks[column] for column in compared)
    return AutopsyFinding(
        cause, ranks, table.group.name, table.group.what, operation, int(table.sequence[row]),
        tuple(rank for rank in compared_ranks if rank not in ranks) if ranks else (), table.members,
        tuple(_describe(table.operation(row, column)) for column in compared), compared_ranks,
        place=place, waits_at=waits_at, by_history=by_history,
    )  # fmt: skip


def _expected(calls: dict[int, tuple[int, ...]], row: int) -> tuple[int, ...] | None:
    """Return what followed in an earlier step on the calls before `row`, with the most equal calls before it; None if nothing does."""
    best = _LEAST_CONTEXT - 1
    expected = None
    for earlier in range(row - 1, 0, -1):
        equal = 0
        while equal < _CONTEXT and calls.get(earlier - 1 - equal, 0) == calls.get(row - 1 - equal, 1):
            equal += 1
        if equal > best and earlier in calls:
            best = equal
            expected = calls[earlier]
    return expected


def _shift(wrong: dict[int, tuple[int, ...]], right: dict[int, tuple[int, ...]], row: int) -> AutopsyCause | None:
    """Return whether a rank skipped a call or made an additional one: from `row` on, its calls are those of the others, one later or
    earlier. One equal call is not enough: it may be in a different order.
    """
    for cause, ahead, behind in ((AutopsyCause.SKIPPED, wrong, right), (AutopsyCause.ADDITIONAL, right, wrong)):
        calls = [(ahead[n], behind[n + 1]) for n in range(row, row + _CONTEXT) if n in ahead and n + 1 in behind]
        if len(calls) > 1 and all(early == late for early, late in calls) and ahead.get(row + 1) != behind.get(row):
            return cause
    return None


def _describe(operation: Any) -> str:
    """Return "allreduce of 340 float32"."""
    kind = KINDS[operation["kind"]]
    sent = int(operation["sent"])
    largest = max(sent, int(operation["received"]))
    if kind in ("barrier", "other") or largest < 0:
        return kind
    dtype = "elements" if operation["dtype"] == NONE else DTYPES[operation["dtype"]]
    return f"{kind} of {sent if kind == 'allgather' else largest:,} {dtype}"


_FEWEST_CALLS, _LATE_NS, _LEAST_SHARE, _CHANCE = 20, 10_000_000, 0.1, 0.001


def _slow(table: GroupCalls) -> AutopsyFinding | None:
    """Return the rank that the others of a group wait for: by 10 ms or more, 10 % of the time, and more often than chance explains.

    10 ms: clocks of hosts that NTP synchronizes differ by less. Half of the calls count, since a step has several calls in a row.
    """
    rows = (table.created > 0).all(axis=1)
    times = table.created[rows]
    if len(times) < _FEWEST_CALLS or len(table.ranks) < 2:
        return None
    ordered = np.sort(times, axis=1)
    lag = ordered[:, -1] - ordered[:, -2]
    last = np.argmax(times, axis=1)
    late = lag >= _LATE_NS
    span = int(times.max() - times.min())
    counts = np.bincount(last[late], minlength=len(table.ranks))
    column = int(np.argmax(counts))
    lost = int(lag[late & (last == column)].sum())
    trials = int(late.sum()) // 2
    n = len(table.ranks)
    ways = sum(comb(trials, k) * (n - 1) ** (trials - k) for k in range(int(counts[column]) // 2, trials + 1))
    chance = ways / n**trials if trials else 1.0
    if lost < _LEAST_SHARE * span or chance > _CHANCE / n:
        return None
    return AutopsyFinding(
        AutopsyCause.SLOW, (table.ranks[column],), table.group.name, table.group.what, members=table.members, late=int(counts[column]),
        of_calls=len(times), lost_s=lost / 1e9, span_s=span / 1e9,
    )  # fmt: skip
