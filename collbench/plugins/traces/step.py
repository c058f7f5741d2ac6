"""The step that a replay runs, made from a trace: its exchanges in an order that all ranks can follow, and what each rank does when.

An exchange has the groups that call the same collective at the same place. Each rank starts its exchanges in the order of the step, so
that ranks cannot block one another. Times are used within a rank only, because the clocks of hosts differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.operations.dtypes import dtype_named
from collbench.operations.traffic import Traffic
from collbench.plugins.traces.matching import GroupMatch
from collbench.plugins.traces.model import DTYPES, NONE, REDOPS, UNKNOWN, Trace, union
from collbench.plugins.traces.order import Call, Calls, StepsDisagree, Windows, begin_times, describe, end_times, levels_of
from collbench.plugins.traces.recording import (
    ComputeFromGaps,
    DefaultUsed,
    FilesIgnored,
    GroupsUnknown,
    OperationsLeftOut,
    OverlapNotRecorded,
    RanksAbsent,
    Recording,
    StepChosen,
    TraceFact,
)
from collbench.plugins.traces.timeline import recorded_timelines, timeline_of
from collbench.plugins.training.workloads.step import Exchange, Step
from collbench.units import plural

MESSAGE = "p2p_message"  # from the first to the second rank of a pair
MOST_OPERATIONS = 1_000_000  # of a step, by all ranks
_MOST_NAMED = 3
_INEXACT_NS = 2_000  # of a begin or an end; formats round them to µs
_REDUCING = frozenset({"allreduce", "reduce", "reducescatter"})
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_PART = {"allgather": "sent", "gather": "sent", "reducescatter": "received", "scatter": "received"}  # a rank's part of the buffer
_WHOLE = {"allgather": "received", "reducescatter": "sent", "alltoall": "sent", "alltoallv": "sent"}


class ReplayOptions(msgspec.Struct, frozen=True):
    """What to replay of a trace.

    step      its number from 0, "first", "median" (by recorded time), or "all": the whole trace. "": "median" where the trace has
              boundaries or repeats exactly, else "all"
    compute   factor of the recorded computing; None: no computing
    """

    step: str = ""
    compute: float | None = None


def step_of(trace: Trace, matches: Sequence[GroupMatch], options: ReplayOptions | None = None) -> Recording:
    """Return one step of a trace, for the ranks of the job.

    Raises UsageError if the trace has no such step or nothing to replay, if sizes or groups are unknown, or if the orders of ranks
    contradict each other.
    """
    options = options or ReplayOptions()
    calls = Calls.of(trace, matches)
    windows, chosen = _windows(trace, calls, options)
    notes: list[TraceFact] = [chosen]
    builder = _Builder(trace, calls, windows)
    exchanges, nodes_of = builder.exchanges()
    if not exchanges:
        raise UsageError("the trace has no operation that can be replayed: record a step in which ranks communicate")
    timeline, without = timeline_of(trace, windows, nodes_of, options.compute)
    notes += builder.notes()
    if without:
        notes.append(OverlapNotRecorded(without))
    if options.compute is not None and without < len(trace.ranks) and not any(len(rank.compute) for rank in trace.ranks):
        notes.append(ComputeFromGaps())
    if trace.absent:
        notes.append(RanksAbsent(trace.absent))
    if trace.ignored:
        files = tuple(map(str, trace.ignored[:_MOST_NAMED]))
        notes.append(FilesIgnored(files, len(trace.ignored) - len(files)))
    payload = sum(exchange.size_bytes for exchange in exchanges)
    return Recording(
        Step(tuple(exchanges), payload, timeline=timeline), trace.world, trace.world, trace.form, tuple(sorted(map(str, trace.missing))),
        trace.absent, options.compute, windows.step_time_s, _recorded_s(trace, exchanges, nodes_of), tuple(notes),
        recorded_timelines(trace, windows, exchanges, nodes_of),
    )  # fmt: skip


def _windows(trace: Trace, calls: Calls, options: ReplayOptions) -> tuple[Windows, StepChosen]:
    """Return the operations of each rank between two boundaries, and how this step was chosen."""
    whole = [np.array([0, len(rank.operations)]) for rank in trace.ranks]
    if options.step == "all":
        return _window(trace, whole, 0), StepChosen("all", 0, 1)
    counts = {len(rank.steps) for rank in trace.ranks}
    if len(counts) > 1:
        few, many = (next(rank for rank in trace.ranks if len(rank.steps) == number) for number in (min(counts), max(counts)))
        raise UsageError(
            f"rank {many.rank} has {plural(len(many.steps), 'step')} and rank {few.rank} has {len(few.steps)}: "
            "record the same steps on all ranks, or use --step all"
        )
    if counts != {0}:
        bounds = [np.append(rank.steps, len(rank.operations)) for rank in trace.ranks]
        how = "recorded"
    else:
        repeated = _repetitions(trace, calls)
        if repeated is None and options.step:
            raise UsageError(
                f"--step {options.step}: the trace has no step boundaries, and its operations do not repeat exactly: use --step all"
            )
        if repeated is None:
            return _window(trace, whole, 0), StepChosen("whole", 0, 1)
        bounds = repeated
        how = "repeated"
    steps = len(bounds[0]) - 1
    number = _number(trace, bounds, options.step)
    windows = _window(trace, bounds, number)
    if how == "repeated" and not options.step:
        try:
            for _ in calls.within(windows):
                pass
        except StepsDisagree:  # the ranks' traces end at different places
            return _window(trace, whole, 0), StepChosen("whole", 0, 1)
    return windows, StepChosen(how, number, steps)


def _number(trace: Trace, bounds: Sequence[NDArray[Any]], step: str) -> int:
    """Return the number of the chosen step. Raises UsageError for a number that the trace does not have."""
    steps = len(bounds[0]) - 1
    if step in ("", "median"):
        complete = range(steps - 1 if steps > 2 else steps)  # the last one may have been cut
        times = [_window(trace, bounds, number).step_time_s for number in complete]
        by_time = sorted((time, number) for number, time in enumerate(times) if time is not None)
        return by_time[(len(by_time) - 1) // 2][1] if by_time else (steps - 1) // 2
    number = 0 if step == "first" else int(step)
    if number >= steps:
        raise UsageError(f"--step {number}: the trace has {plural(steps, 'step')}: use 0 to {steps - 1}, first, median or all")
    return number


def _window(trace: Trace, bounds: Sequence[NDArray[Any]], number: int) -> Windows:
    """Return one step, with the time from its first operation to that of the next step (of the last one: since the previous one's end)."""
    low = [int(boundaries[number]) for boundaries in bounds]
    high = [int(boundaries[number + 1]) for boundaries in bounds]
    spans: list[tuple[int, int] | None] = []
    for rank, first, end in zip(trace.ranks, low, high, strict=True):
        begins = begin_times(rank.operations)
        ends = end_times(rank.operations)
        if end <= first or (begins[first:end] < 0).any() or (ends[first:end] < 0).any():
            spans.append(None)
            continue
        begin = int(begins[first:end].min())
        last = int(ends[first:end].max())
        earlier = ends[:first]
        if end < len(begins) and begins[end] >= 0:
            spans.append((begin, max(last, int(begins[end]))))
        elif len(earlier) and (earlier >= 0).all():
            spans.append((min(begin, int(earlier.max())), last))
        else:
            spans.append((begin, last))
    times = [(span[1] - span[0]) / 1e9 for span in spans if span]
    return Windows(tuple(low), tuple(high), tuple(spans), max(times) if times and len(times) == len(spans) else None)


_SAME = ("kind", "dtype", "redop", "group", "sent", "received", "root")
_LONGEST = 50_000  # operations of a rank in which a repetition is searched


def _repetitions(trace: Trace, calls: Calls) -> list[NDArray[Any]] | None:
    """Return by rank the boundaries of the repetitions with which its trace ends, the same number at all ranks; None without any.

    The repetitions of a rank are equal in every field, at least three, or two that are the whole trace, and cover at least half of it.
    """
    repetitions = []
    for rank, valid in zip(trace.ranks, calls.valid, strict=True):
        places = np.flatnonzero(valid)[-_LONGEST:]
        fields = np.stack([rank.operations[name][places].astype(np.int64) for name in _SAME], axis=1)
        keys = np.unique(fields, axis=0, return_inverse=True)[1].reshape(-1) if len(places) else np.zeros(0, int)
        period = _period(keys[::-1].tolist())
        if period is None:
            return None
        repetitions.append((places, *period))
    repeats = min((number for _, _, number in repetitions), default=0)
    if repeats < 2:
        return None
    bounds = []
    for places, length, _ in repetitions:
        starts = places[len(places) - repeats * length :: length]
        bounds.append(np.append(starts, places[-1] + 1))
    return bounds


def _period(keys: Sequence[int]) -> tuple[int, int] | None:
    """Return (length, number) of the repetitions with which a sequence begins; None without any. The shortest length."""
    n = len(keys)
    same = [0] * n  # how far the sequence from here equals its beginning (the Z function)
    begin = end = 0  # of the equal part that reaches farthest
    for place in range(1, n):
        length = min(end - place, same[place - begin]) if place < end else 0
        while place + length < n and keys[length] == keys[place + length]:
            length += 1
        same[place] = length
        if place + length > end:
            begin = place
            end = place + length
    for length in range(1, n // 2 + 1):
        number = same[length] // length + 1
        if (number >= 3 and 2 * number * length >= n) or number * length == n:
            return length, number
    return None


# The exchanges: calls in an order that agrees with that of every rank; equal calls of disjoint groups at the same place are one exchange.


class _Builder(msgspec.Struct):
    """Makes the exchanges of a step, and counts what is assumed."""

    trace: Trace
    calls: Calls
    windows: Windows
    left_out: dict[str, int] = msgspec.field(default_factory=dict)
    defaults: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)

    def exchanges(self) -> tuple[list[Exchange], list[list[Call]]]:
        """Return the exchanges in order, and the calls of each."""
        number = sum(high - low for low, high in zip(self.windows.low, self.windows.high, strict=True))
        if number > MOST_OPERATIONS:
            raise UsageError(
                f"the step has {number:,} operations, but at most {MOST_OPERATIONS:,} can be replayed: choose one step with --step N, "
                "or record fewer steps"
            )
        candidates = [(call, self._exchange(call)) for call in self.calls.within(self.windows)]
        kept = [(call, exchange) for call, exchange in candidates if exchange is not None]
        levels = levels_of(self.trace, [call for call, _ in kept])
        first = [min(call.at) for call, _ in kept]
        exchanges: list[Exchange] = []
        calls_of: list[list[Call]] = []
        alike: dict[tuple[int, Exchange], list[int]] = {}  # by level and kind of exchange, the places of those
        for number in sorted(range(len(kept)), key=lambda number: (levels[number], first[number][1], first[number][0])):
            call, exchange = kept[number]
            places = alike.setdefault((levels[number], replace(exchange, groups=(), what="")), [])
            for place in places:
                groups = exchanges[place].groups
                if len(groups[0]) == len(call.ranks) and set(call.ranks).isdisjoint(chain(*groups)):
                    exchanges[place] = replace(exchanges[place], groups=(*groups, call.ranks))
                    calls_of[place].append(call)
                    break
            else:
                places.append(len(exchanges))
                exchanges.append(exchange)
                calls_of.append([call])
        return [replace(exchange, groups=tuple(sorted(exchange.groups))) for exchange in exchanges], calls_of

    def _leave_out(self, reason: str, call: Call) -> Exchange | None:
        self.left_out[reason] = self.left_out.get(reason, 0) + len(call.at)
        return None

    def _exchange(self, call: Call) -> Exchange | None:
        """Return the exchange of a call; None for one that is left out. Raises UsageError for an unknown size."""
        if call.kind == "other":
            return self._leave_out("unsupported", call)
        if len(call.ranks) < 2:
            return self._leave_out("alone", call)
        position, operation = call.at[0]
        row = self.trace.ranks[position].operations[operation]
        kind = call.kind
        traffic = None
        if kind == "alltoall" and any(splits != UNKNOWN for splits in self._column(call, "splits")):
            kind = "alltoallv"
        if kind == "barrier":
            count = len(call.ranks)
        elif kind == "alltoallv":
            traffic = self._traffic(call)
            count = 0 if traffic is None else traffic.own_bytes() or 0
        else:
            count = self._count_of(call)
        if not count:
            return self._leave_out("empty", call)
        dtype = DTYPES[row["dtype"]] if row["dtype"] != NONE else "float32"
        if row["dtype"] == NONE and kind != "barrier":
            self._default("data type", dtype)
        size = count * dtype_named(dtype).size
        redop = None
        if kind in _REDUCING:
            redop = REDOPS[row["redop"]] if row["redop"] != NONE else self._default("reduction op", "sum")
        root = self._root(call) if kind in _ROOTED else None
        # the program's name of the operation, or that of the group
        group = self.trace.groups[call.group]
        name = (self.trace.ranks[position].notes.get(operation) or group.what or f"group {group.name}")[:80]
        if kind in ("send", "recv"):
            return Exchange(MESSAGE, (call.ranks,), size, name, dtype=dtype)
        return Exchange(kind, (call.ranks,), size, name, dtype=dtype, redop=redop, root=root, traffic=traffic)

    def _column(self, call: Call, name: str) -> list[int]:
        return [int(self.trace.ranks[position].operations[name][operation]) for position, operation in call.at]

    def _count_of(self, call: Call) -> int:
        """Return the elements of an even operation by nccl-tests' convention: of the whole buffer."""
        sizes = {name: max(self._column(call, name)) for name in ("sent", "received")}
        whole = UNKNOWN
        if call.kind in _WHOLE:
            whole = sizes[_WHOLE[call.kind]]
        elif call.kind not in _PART:
            whole = max(sizes.values())
        if whole == UNKNOWN and call.kind in _PART and sizes[_PART[call.kind]] != UNKNOWN:
            whole = sizes[_PART[call.kind]] * len(call.ranks)
        if whole == UNKNOWN:
            raise UsageError(
                f"the size of the {describe(self.trace, *call.at[0])} is not recorded: a replay needs the sizes of all operations"
            )
        return whole

    def _traffic(self, call: Call) -> Traffic | None:
        """Return the elements from each rank to each rank; None without any. Raises UsageError if they are unknown or contradict."""
        n = len(call.ranks)
        matrix = np.full((n, n), UNKNOWN, np.int64)
        for (position, operation), splits in zip(call.at, self._column(call, "splits"), strict=True):
            rank = self.trace.ranks[position]
            me = call.ranks.index(rank.rank)
            if splits == UNKNOWN:
                row = rank.operations[operation]
                to, by = ((int(row[name]) // n,) * n if row[name] >= 0 else () for name in ("sent", "received"))
            else:
                to, by = rank.splits[splits]
            self._enter(call, matrix[me], to)
            self._enter(call, matrix[:, me], by)
        if (matrix == UNKNOWN).any():
            raise UsageError(
                f"the sizes of the {describe(self.trace, *call.at[0])} are not recorded for all ranks: give the traces of all ranks"
            )
        if not matrix.any():
            return None
        values = tuple(tuple(map(float, row)) for row in matrix.tolist())
        return Traffic(f"trace:{hashlib.sha256(matrix.tobytes()).hexdigest()[:8]}", matrix=values)

    def _enter(self, call: Call, into: NDArray[np.int64], parts: Sequence[int]) -> None:
        if not len(parts):
            return
        values = np.array(parts, np.int64)
        if len(values) != len(into) or ((into != UNKNOWN) & (into != values)).any():
            raise UsageError(
                f"the ranks' sizes of the {describe(self.trace, *call.at[0])} contradict each other: record all ranks in the same run"
            )
        into[:] = values

    def _root(self, call: Call) -> int:
        root = next((root for root in self._column(call, "root") if root != UNKNOWN), None)
        if root is None:
            self._default("root", "the first rank of the group")
            return 0
        if root not in call.ranks:
            raise UsageError(f"root {root} of the {describe(self.trace, *call.at[0])} is not a rank of its group: the trace is damaged")
        return call.ranks.index(root)

    def _default(self, name: str, used: str) -> str:
        self.defaults[name, used] = self.defaults.get((name, used), 0) + 1
        return used

    def notes(self) -> list[TraceFact]:
        notes: list[TraceFact] = []
        if self.calls.incomplete:
            notes.append(OperationsLeftOut("incomplete", self.calls.incomplete))
        notes += [OperationsLeftOut(reason, number) for reason, number in sorted(self.left_out.items())]
        notes += [DefaultUsed(name, used, number) for (name, used), number in sorted(self.defaults.items())]
        if self.calls.guessed:
            notes.append(GroupsUnknown(self.calls.guessed))
        return notes


def _recorded_s(trace: Trace, exchanges: Sequence[Exchange], nodes_of: Sequence[Sequence[Call]]) -> tuple[float | None, ...]:
    """Return the recorded seconds of each exchange. Equal exchanges that overlap share the time of their union."""
    times = [_alone_s(trace, nodes) for nodes in nodes_of]
    alike: dict[Exchange, list[int]] = {}
    for number, (exchange, seconds) in enumerate(zip(exchanges, times, strict=True)):
        if seconds is not None:
            alike.setdefault(replace(exchange, what=""), []).append(number)
    for numbers in alike.values():
        whole = sum(times[number] or 0.0 for number in numbers)
        together = _union_s(trace, [call for number in numbers for call in nodes_of[number]])
        if together is None or together >= whole:
            continue
        for number in numbers:
            times[number] = (times[number] or 0.0) * together / whole
    return tuple(times)


def _union_s(trace: Trace, calls: Sequence[Call]) -> float | None:
    """Return the seconds in which a group was in any of its calls: of the slowest group, and there of the rank that had the shortest.

    None if the begin or the end of a call is not known, or if both are less exact than its duration.
    """
    places: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for call in calls:
        operations_of = places.setdefault(call.ranks, {})
        for position, operation in call.at:
            operations_of.setdefault(position, []).append(operation)
    longest = 0.0
    for operations_of in places.values():
        seconds = []
        for position, operations in operations_of.items():
            rows = trace.ranks[position].operations[operations]
            begins = begin_times(rows)
            ends = end_times(rows)
            durations = np.where(rows["duration"] >= 0, rows["duration"], ends - begins)
            if (begins < 0).any() or (ends < begins).any() or (np.abs(ends - begins - durations) > _INEXACT_NS).any():
                return None
            busy = union(np.stack([begins, ends], axis=1))
            seconds.append(int((busy[:, 1] - busy[:, 0]).sum()) / 1e9)
        longest = max(longest, min(seconds))
    return longest


def _alone_s(trace: Trace, nodes: Sequence[Call]) -> float | None:
    """Return the recorded seconds of an exchange: of its slowest group, and there of the rank that had the shortest."""
    longest = 0.0
    for call in nodes:
        seconds = []
        for position, operation in call.at:
            row = trace.ranks[position].operations[operation : operation + 1]
            duration = int(row["duration"][0])
            begin = int(begin_times(row)[0])
            end = int(end_times(row)[0])
            if duration < 0 and (begin < 0 or end < begin):
                return None
            seconds.append((duration if duration >= 0 else end - begin) / 1e9)
        longest = max(longest, min(seconds))
    return longest
