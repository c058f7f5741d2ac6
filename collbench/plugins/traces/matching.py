"""Match the operations of different ranks: which calls were the same collective, and which send belongs to which receive.

`match` matches by position only: the n-th collective of a group at one rank is the n-th at the others. `differences` then finds what the
matched calls do not agree about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import compress
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.plugins.traces.model import DTYPES, KIND, KINDS, NONE, REDOPS, UNKNOWN, Part, Trace
from collbench.reason import Fact
from collbench.units import listed

_RECV = KIND["recv"]
_MESSAGES = (KIND["send"], _RECV)


class GroupMatch(msgspec.Struct, frozen=True):
    """The collectives of one process group, in the group's order.

    group     index in `Trace.groups`
    members   positions in `Trace.ranks` of the group's ranks that were read, ascending by rank in the group
    calls     [collectives × members] index of the operation in that rank's table; UNKNOWN where the rank has none
    messages  [m × 4] sends and their receives: position of the sender in `Trace.ranks`, its operation, position of the receiver, its
              operation; the operation is UNKNOWN where that side has none, and the position, too, where that rank was not read
    """

    group: int
    members: tuple[int, ...]
    calls: NDArray[Any]
    messages: NDArray[Any]


def match(trace: Trace) -> tuple[GroupMatch, ...]:
    """Return the matched operations of each process group, by its index in `Trace.groups`.

    Collectives are matched by sequence number where each rank's trace of the group has them, else by order. Messages from one rank to
    another one in a group are matched by order. All members that were read are listed, also those without a call.
    """
    by_group = []  # by rank and group the indices of the operations, ascending
    for rank in trace.ranks:
        order = np.argsort(rank.operations["group"], kind="stable")
        by_group.append(np.split(order, np.searchsorted(rank.operations["group"][order], np.arange(1, len(trace.groups)))))
    return tuple(_match_group(trace, group, [indices[group] for indices in by_group]) for group in range(len(trace.groups)))


def _match_group(trace: Trace, group: int, indices: Sequence[NDArray[Any]]) -> GroupMatch:
    position = {rank.rank: number for number, rank in enumerate(trace.ranks)}
    ranks = trace.groups[group].ranks
    members = tuple(position[rank] for rank in ranks if rank in position)
    if not ranks:
        members = tuple(number for number, index in enumerate(indices) if len(index))
    collectives = []
    sequences = []
    messages = []
    for member in members:
        index = indices[member]
        table = trace.ranks[member].operations[index]
        is_message = np.isin(table["kind"], _MESSAGES)
        collectives.append(index[~is_message])
        sequences.append(table["sequence"][~is_message])
        messages.append(index[is_message])
    is_cut = [Part.BEGINNING in trace.ranks[member].missing for member in members]
    calls = _match_collectives(collectives, sequences, is_cut)
    return GroupMatch(group, members, calls, _match_messages(trace, members, messages, position))


def _match_collectives(collectives: Sequence[NDArray[Any]], sequences: Sequence[NDArray[Any]], is_cut: Sequence[bool]) -> NDArray[Any]:
    """Return the [collectives × members] indices of the operations of the same number. Coalesced operations have the same number.

    is_cut   by member whether its first operations are not in its trace
    """
    counts = [len(indices) for indices in collectives]
    if not sum(counts):
        return np.zeros((0, len(collectives)), np.int64)
    if all((numbers >= 0).all() for numbers in sequences):
        orders = [np.argsort(numbers, kind="stable") for numbers in sequences]
        ordered = [numbers[order] for numbers, order in zip(sequences, orders, strict=True)]
        collectives = [indices[order] for indices, order in zip(collectives, orders, strict=True)]
        occurrences = [_occurrences(numbers) for numbers in ordered]
        _align_ends(ordered, occurrences, is_cut)
        rows = _row_numbers(np.concatenate(ordered), np.concatenate(occurrences))
    else:
        rows = np.concatenate([np.arange(count) for count in counts])
    indices = np.concatenate(collectives)
    calls = np.full((int(rows.max()) + 1, len(collectives)), UNKNOWN, np.int64)
    calls[rows, np.repeat(np.arange(len(collectives)), counts)] = indices
    return calls


def _align_ends(ordered: Sequence[NDArray[Any]], occurrences: Sequence[NDArray[Any]], is_cut: Sequence[bool]) -> None:
    """Count the operations of the first number of a cut trace from their end, since the first of them may have been overwritten."""
    most: dict[int, int] = {}  # operations of a number at a member
    for numbers, nth, without_begin in zip(ordered, occurrences, is_cut, strict=True):
        if not without_begin or not len(numbers) or numbers[0] == numbers[-1]:
            continue
        first = int(numbers[0])
        if first not in most:
            most[first] = max(_count(of_member, first) for of_member in ordered)
        count = _count(numbers, first)
        nth[:count] += most[first] - count


def _count(ascending: NDArray[Any], number: int) -> int:
    return int(np.searchsorted(ascending, number, side="right") - np.searchsorted(ascending, number))


def _occurrences(ascending: NDArray[Any]) -> NDArray[Any]:
    """Return of each number how many equal ones are before it."""
    starts = np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]]) if len(ascending) else np.zeros(0, np.int64)
    return np.arange(len(ascending)) - np.repeat(starts, np.diff(np.r_[starts, len(ascending)]))


def _match_messages(trace: Trace, members: Sequence[int], messages: Sequence[NDArray[Any]], position: dict[int, int]) -> NDArray[Any]:
    """Return the [m × 4] messages, ordered by their sender's operation; receives without a send are last."""
    if not sum(map(len, messages)):
        return np.zeros((0, 4), np.int64)
    place = np.full(trace.world + 1, UNKNOWN, np.int64)  # the last entry is that of an unknown peer
    place[list(position)] = list(position.values())
    sides = []
    for member, index in zip(members, messages, strict=True):
        table = trace.ranks[member].operations[index]
        peers = np.where((table["root"] >= 0) & (table["root"] < trace.world), table["root"], trace.world)
        sides.append(np.stack([np.full(len(index), trace.ranks[member].rank), peers, table["kind"] == _RECV, index], axis=1))
    rank, peer, received, index = np.concatenate(sides).T
    sender = np.where(received, peer, rank)
    receiver = np.where(received, rank, peer)
    order = np.lexsort((index, received, receiver, sender))
    index, received, receiver, sender = (column[order] for column in (index, received, receiver, sender))
    nth = _occurrences(_row_numbers(sender, receiver, received))
    rows = _row_numbers(sender, receiver, nth)
    _, first = np.unique(rows, return_index=True)
    table = np.full((len(first), 4), UNKNOWN, np.int64)
    table[:, 0] = place[sender[first]]
    table[:, 2] = place[receiver[first]]
    table[rows, np.where(received, 3, 1)] = index
    return table[np.lexsort((table[:, 1], table[:, 0], table[:, 1] == UNKNOWN))]


def _row_numbers(*columns: NDArray[Any]) -> NDArray[Any]:
    """Return by entry the number of its combination of values, in ascending order of the combinations."""
    order = np.lexsort(columns[::-1])
    fresh = np.zeros(len(order), bool)
    for column in columns:
        ordered = column[order]
        fresh[1:] |= ordered[1:] != ordered[:-1]
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(fresh)
    return numbers


def named_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3", or "ranks 0, 1, …" with the first eight."""
    return f"rank{'s' * (len(ranks) != 1)} {listed([str(rank) for rank in ranks], 8)}"


def by_value(values: Sequence[str], ranks: Sequence[int]) -> str:
    """Return each value with its ranks, the rarest value first: "send at rank 3, allreduce at ranks 0, 1"."""
    ranks_of: dict[str, list[int]] = {}
    for value, rank in zip(values, ranks, strict=True):
        ranks_of.setdefault(value, []).append(rank)
    return ", ".join(f"{value} at {named_ranks(of_value)}" for value, of_value in sorted(ranks_of.items(), key=lambda item: len(item[1])))


class DifferingField(StrEnum):
    """What differs between the ranks of a call."""

    MISSING = "missing"
    ORDER = "order"
    OPERATION = "operation"
    SIZE = "size"
    DTYPE = "data type"
    REDOP = "reduction op"
    ROOT = "root"


class TraceDifference(Fact, frozen=True):
    """The traces of two or more ranks disagree about one call of a process group, or about a message.

    group      the name of the process group; sequence: the number of the call in it, by the library or, without numbers, by order
    field      what differs
    ranks      the ranks of the call that were read, ascending; of a message: its sender, then its receiver
    values     by rank its value: the name of an operation, a data type or a reduction op, elements, or a root; for `missing` and `order`
               the name of the operation, or None where the rank has none; for another field None where it is not known
    operation  what most ranks call
    call       the row in `GroupMatch.calls`, or in `GroupMatch.messages`
    group_index   the index in `Trace.groups`
    """

    group: str
    sequence: int
    field: DifferingField
    ranks: tuple[int, ...]
    values: tuple[int | str | None, ...]
    operation: str
    call: int
    group_index: int

    @property
    def is_message(self) -> bool:
        """Whether a message differs from its receive, not a collective."""
        return self.operation in ("send", "recv")

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks that differ from most ranks; () if no value is that of most ranks."""
        is_missing = self.field is DifferingField.MISSING
        values = [value for value in self.values if value is not None or is_missing]
        (usual, count), *_ = Counter(values).most_common(1)
        if 2 * count <= len(values):
            return ()
        return tuple(
            rank for rank, value in zip(self.ranks, self.values, strict=True) if value != usual and (value is not None or is_missing)
        )

    def render(self) -> str:
        """Return one sentence with each value and its ranks."""
        where = f"{self.operation} {self.sequence}"
        if self.is_message:
            where = f"message {self.sequence} from rank {self.ranks[0]} to rank {self.ranks[1]}"
        elif self.field in (DifferingField.OPERATION, DifferingField.ORDER):
            where = f"collective {self.sequence}"
        values = by_value([self._text(value) for value in self.values], self.ranks)
        difference = "not every rank has it" if self.field is DifferingField.MISSING else f"the {self.field} differs"
        return f"process group '{self.group}', {where}: {difference}: {values}"

    def _text(self, value: int | str | None) -> str:
        if value is None:
            return "nothing" if self.field is DifferingField.MISSING else "unknown"
        if self.field is DifferingField.ORDER:
            return f"the operation of collective {value}"
        return f"{value:,} elements" if self.field is DifferingField.SIZE and isinstance(value, int) else str(value)


def check_agreement(trace: Trace, matches: Sequence[GroupMatch]) -> None:
    """Raise UsageError with the first difference between the ranks' traces, if there is one. Ranks that were not read are none."""
    first = next(differences(trace, matches), None)
    if first is not None:
        sources = dict.fromkeys(str(rank.source) for rank in trace.ranks if rank.rank in (first.minority or first.ranks))
        raise UsageError(
            f"{listed(list(sources), 3)}: the traces disagree: {first.render()}: give traces of one run that end at the same operation"
        )


def differences(trace: Trace, matches: Sequence[GroupMatch]) -> Iterator[TraceDifference]:
    """Yield what the ranks disagree about, in the order of the program.

    What a trace does not contain is not a difference: unknown values, ranks that were not read, and calls with numbers before the
    first one that a rank has, since recorders overwrite their oldest calls.
    """
    places = []
    for number, matched in enumerate(matches):
        for is_message, (rows, numbers) in ((0, _suspect_calls(trace, matched)), (1, _suspect_messages(trace, matched))):
            if len(rows):
                indices = (matched.messages[:, 1::2] if is_message else matched.calls).max(axis=1)  # the largest is of a complete table
                first = (indices if is_message else np.maximum.accumulate(indices))[rows]
                places.append(np.stack([first, np.full(len(rows), number), np.full(len(rows), is_message), rows, numbers], axis=1))
    if not places:
        return
    table = np.concatenate(places)
    for _, number, is_message, row, sequence in table[np.lexsort(table.T[3::-1])].tolist():
        matched = matches[number]
        difference = _of_message(trace, matched, row, sequence) if is_message else _of_call(trace, matched, row, sequence)
        if difference is not None:
            yield difference


def _column(trace: Trace, matched: GroupMatch, name: str, unknown: int) -> NDArray[Any]:
    """Return a column of the operations as [calls × members] of int64, UNKNOWN where it is unknown or the rank has no such call."""
    values = np.full(matched.calls.shape, UNKNOWN, np.int64)
    for number, member in enumerate(matched.members):
        index = matched.calls[:, number]
        is_known = index != UNKNOWN
        values[is_known, number] = trace.ranks[member].operations[name][index[is_known]]
    values[values == unknown] = UNKNOWN
    return values


def _differ(values: NDArray[Any]) -> NDArray[Any]:
    """Return by row whether two of its known values differ."""
    high = values.max(axis=1, initial=UNKNOWN)
    low = np.where(values != UNKNOWN, values, high[:, None]).min(axis=1, initial=np.iinfo(np.int64).max)
    differ: NDArray[Any] = (high != UNKNOWN) & (low != high)
    return differ


# What must be the same at all ranks: (property, columns of which the larger one counts, kinds). Of an operation with a root only some
# ranks have both buffers, and non-roots of a broadcast may have no input.
_COMPARED = tuple(
    (field, columns.split(), [KIND[kind] for kind in kinds.split()])
    for field, columns, kinds in (
        (DifferingField.SIZE, "sent", "allreduce allgather reducescatter alltoall reduce gather"),
        (DifferingField.SIZE, "received", "allreduce allgather reducescatter alltoall scatter"),
        (DifferingField.SIZE, "sent received", "broadcast"),
        (DifferingField.DTYPE, "dtype", " ".join(kind for kind in KINDS if kind not in ("barrier", "other"))),
        (DifferingField.REDOP, "redop", "allreduce reducescatter reduce"),
        (DifferingField.ROOT, "root", "broadcast reduce gather scatter"),
    )
)
_EVEN, _UNEVEN = KIND["alltoall"], KIND["alltoallv"]


def _compared(trace: Trace, matched: GroupMatch, kind: NDArray[Any]) -> Iterator[tuple[DifferingField, NDArray[Any]]]:
    """Yield (property, its values as [calls × members]) of what calls of these kinds must agree about; UNKNOWN where they need not."""
    even = (_column(trace, matched, "splits", UNKNOWN) == UNKNOWN).all(axis=1)
    columns: dict[str, NDArray[Any]] = {}
    for field, names, kinds in _COMPARED:
        applies = np.isin(kind, kinds) & (even | (field is not DifferingField.SIZE))
        if not applies.any():
            continue
        for name in names:
            if name not in columns:
                columns[name] = _column(trace, matched, name, NONE if name in ("dtype", "redop") else UNKNOWN)
        values = columns[names[0]] if len(names) == 1 else np.maximum(*(columns[name] for name in names))
        yield field, values if applies.all() else np.where(applies[:, None], values, UNKNOWN)


def _suspect_calls(trace: Trace, matched: GroupMatch) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows of `calls` about which the ranks may disagree, ascending, and their sequence numbers."""
    if not matched.calls.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    kinds = _column(trace, matched, "kind", NONE)
    kinds = np.where(kinds == _UNEVEN, _EVEN, kinds)
    suspect = _missing(trace, matched).any(axis=1) | _differ(kinds)
    for _, values in _compared(trace, matched, kinds.max(axis=1)):
        suspect |= _differ(values)
    uneven = np.flatnonzero((_column(trace, matched, "splits", UNKNOWN) != UNKNOWN).any(axis=1))
    for _, _, sent, received in _parts(trace, matched, uneven):
        suspect[uneven] |= (sent != received) & (sent != UNKNOWN) & (received != UNKNOWN)
    rows = np.flatnonzero(suspect)
    sequences = _column(trace, matched, "sequence", UNKNOWN).max(axis=1)
    return rows, np.where(sequences == UNKNOWN, np.arange(len(sequences)), sequences)[rows]


def _missing(trace: Trace, matched: GroupMatch) -> NDArray[Any]:
    """Return [calls × members]: whether a rank that was read has no such call, except before its first one and in a trace with gaps."""
    is_recorded = matched.calls != UNKNOWN
    recorded = np.maximum.accumulate(is_recorded, axis=0) | ~is_recorded.any(axis=0)
    missing: NDArray[Any] = ~is_recorded & recorded & ~np.isin(matched.members, _lossy(trace))
    return missing


def _lossy(trace: Trace) -> list[int]:
    return [number for number, rank in enumerate(trace.ranks) if Part.OPERATIONS in rank.missing]


def _parts(trace: Trace, matched: GroupMatch, rows: NDArray[Any]) -> Iterator[tuple[int, int, NDArray[Any], NDArray[Any]]]:
    """Yield by two members the elements that the first one sends to the second one, and that this one expects, by row; else UNKNOWN."""
    if not len(rows):
        return
    ranks = trace.groups[matched.group].ranks or tuple(trace.ranks[member].rank for member in matched.members)
    place = [ranks.index(trace.ranks[member].rank) for member in matched.members]
    splits = [_splits(trace, matched, number, rows, len(ranks)) for number in range(len(matched.members))]
    for sender, (to, _) in enumerate(splits):
        for receiver, (_, by) in enumerate(splits):
            yield sender, receiver, to[:, place[receiver]], by[:, place[sender]]


def _splits(trace: Trace, matched: GroupMatch, number: int, rows: NDArray[Any], n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the elements that a member sends to each rank of the group, and receives from each, as [rows × n]; else UNKNOWN."""
    rank = trace.ranks[matched.members[number]]
    sides = np.full((len(rows), 2, n), UNKNOWN, np.int64)
    for row, index in enumerate(matched.calls[rows, number].tolist()):
        if index == UNKNOWN:
            continue
        operation = rank.operations[index]
        if operation["splits"] != UNKNOWN:
            for side, part in enumerate(rank.splits[operation["splits"]]):
                if len(part) == n:
                    sides[row, side] = part
        elif operation["kind"] == _EVEN:
            for side, name in enumerate(("sent", "received")):
                if operation[name] != UNKNOWN:
                    sides[row, side] = operation[name] // n
    return sides[:, 0], sides[:, 1]


def _suspect_messages(trace: Trace, matched: GroupMatch) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows of `messages` that may differ from their receive, ascending, and the number of each between its two ranks."""
    if not len(matched.messages):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    sender, send, receiver, receive = matched.messages.T
    read = (sender != UNKNOWN) & (receiver != UNKNOWN)
    read &= ~np.isin(sender, _lossy(trace)) & ~np.isin(receiver, _lossy(trace))  # a gap shifts all later messages
    suspect = read & ((send == UNKNOWN) | (receive == UNKNOWN))
    for _, sent, received in _message_sides(trace, matched.messages):
        suspect |= read & (sent != received) & (sent != UNKNOWN) & (received != UNKNOWN)
    pairs = _row_numbers(sender, receiver)
    order = np.argsort(pairs, kind="stable")
    nth = np.empty(len(pairs), np.int64)
    nth[order] = _occurrences(pairs[order])
    rows = np.flatnonzero(suspect)
    return rows, nth[rows]


def _message_sides(trace: Trace, messages: NDArray[Any]) -> Iterator[tuple[DifferingField, NDArray[Any], NDArray[Any]]]:
    """Yield (property, its values at the senders, and at the receivers) of messages, as int64; UNKNOWN where they are unknown."""
    for field, names, unknown in ((DifferingField.SIZE, ("sent", "received"), UNKNOWN), (DifferingField.DTYPE, ("dtype", "dtype"), NONE)):
        sides = np.full((2, len(messages)), UNKNOWN, np.int64)
        for side, name, position, index in zip(sides, names, messages.T[::2], messages.T[1::2], strict=True):
            for member in np.unique(position[position != UNKNOWN]).tolist():
                is_known = (position == member) & (index != UNKNOWN)
                side[is_known] = trace.ranks[member].operations[name][index[is_known]]
        sides[sides == unknown] = UNKNOWN
        yield field, sides[0], sides[1]


_WINDOW = 16  # calls in which an exchanged order is searched


def _of_call(trace: Trace, matched: GroupMatch, row: int, sequence: int) -> TraceDifference | None:
    """Return the first of the properties of a collective about which the ranks disagree."""
    call = replace(matched, calls=matched.calls[row : row + 1])
    kinds = _column(trace, call, "kind", NONE)
    names = [None if kind == UNKNOWN else KINDS[kind] for kind in kinds[0].tolist()]
    kind = Counter(name for name in names if name is not None).most_common(1)[0][0]
    called = [name is not None for name in names]
    field = DifferingField.OPERATION
    values: list[int | str | None] = [*names]
    is_party = called
    missing = _missing(trace, matched)[row]
    if missing.any():
        field = DifferingField.MISSING
        is_party = (missing | called).tolist()
    elif not _differ(np.where(kinds == _UNEVEN, _EVEN, kinds)).any():
        disagreement = _disagreement(trace, call, KIND[kind])
        if disagreement is None:
            return None
        field, values, parties = disagreement
        is_party = parties or called
    # parts of an uneven all-to-all that are not recorded: what one rank sends may be what another one receives, in any order
    has_unknown_parts = field is DifferingField.SIZE and kind in ("alltoall", "alltoallv") and Part.SPLITS in trace.missing
    if not has_unknown_parts and field not in (DifferingField.MISSING, DifferingField.REDOP, DifferingField.ROOT):
        exchanged = _exchanged(trace, matched, row, sequence)
        if exchanged:
            field = DifferingField.ORDER
            values = exchanged
            is_party = called
    members = [trace.ranks[member].rank for member in matched.members]
    ranks, party_values = zip(*sorted(compress(zip(members, values, strict=True), is_party)), strict=True)
    return TraceDifference(trace.groups[matched.group].name, sequence, field, ranks, party_values, kind, row, matched.group)


def _disagreement(trace: Trace, call: GroupMatch, kind: int) -> tuple[DifferingField, list[int | str | None], list[bool] | None] | None:
    """Return the first property about which the ranks of one collective disagree, its values by member, and between which (None: all)."""
    if (_column(trace, call, "splits", UNKNOWN) != UNKNOWN).any():
        for sender, receiver, (sent,), (received,) in _parts(trace, call, np.zeros(1, np.int64)):
            if UNKNOWN not in (sent, received) and sent != received:
                parts: list[int | str | None] = [None] * len(call.members)
                parts[receiver] = int(received)
                parts[sender] = int(sent)
                return DifferingField.SIZE, parts, [number in (sender, receiver) for number in range(len(parts))]
    for field, (row,) in _compared(trace, call, np.array([kind])):
        values = [None if value == UNKNOWN else value for value in row.tolist()]
        if len({*values} - {None}) > 1:
            names: Sequence[str] = {DifferingField.DTYPE: DTYPES, DifferingField.REDOP: REDOPS}.get(field, ())
            return field, [names[value] if names and value is not None else value for value in values], None
    return None


def _exchanged(trace: Trace, matched: GroupMatch, row: int, sequence: int) -> list[int | str | None] | None:
    """Return by member which of most ranks' calls it makes here, as a sequence number; None if the difference is not one of order."""
    calls = matched.calls[row : row + _WINDOW]

    def signatures(number: int) -> list[tuple[int, ...] | None]:
        table = trace.ranks[matched.members[number]].operations[["kind", "dtype", "sent", "received", "redop"]]
        return [None if index == UNKNOWN else table[index].item() for index in calls[:, number].tolist()]

    by_member = [signatures(number) for number in range(len(matched.members))]
    usual = Counter(made[0] for made in by_member if made[0] is not None).most_common(1)[0][0]
    reference = next(made for made in by_member if made[0] == usual)
    values: list[int | str | None] = []
    for made in by_member:
        if made[0] is None or made[0] == usual:
            values.append(None if made[0] is None else sequence)
            continue
        same = any(None not in made[:n] and Counter(made[:n]) == Counter(reference[:n]) for n in range(2, len(made) + 1))
        if not same:
            return None
        values.append(sequence + reference.index(made[0]))
    return values


def _of_message(trace: Trace, matched: GroupMatch, row: int, sequence: int) -> TraceDifference | None:
    """Return in what a send and its receive differ."""
    sender, send, receiver, receive = matched.messages[row].tolist()
    ranks = (trace.ranks[sender].rank, trace.ranks[receiver].rank)

    def difference(field: DifferingField, *values: int | str | None) -> TraceDifference:
        return TraceDifference(trace.groups[matched.group].name, sequence, field, ranks, values, "send", row, matched.group)

    if UNKNOWN in (send, receive):
        return difference(DifferingField.MISSING, None if send == UNKNOWN else "send", None if receive == UNKNOWN else "recv")
    for field, (sent,), (received,) in _message_sides(trace, matched.messages[row : row + 1]):
        if UNKNOWN not in (sent, received) and sent != received:
            values = (int(sent), int(received)) if field is DifferingField.SIZE else (DTYPES[sent], DTYPES[received])
            return difference(field, *values)
    return None
