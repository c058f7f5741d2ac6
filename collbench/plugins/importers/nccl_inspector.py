"""Read the output of NCCL's Inspector plug-in: one object per collective and rank, as JSON lines (format v4 of NCCL 2.28 and later).

A time is that of one rank's kernels within an application, from its own start. A rank that arrives first waits, so the rank with the
longest time need not be slow. All calls of one communicator, operation and size make one row, from the slowest rank of each call in the
files, or from the only rank with a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from collbench.plugins.importers.importer import Arrays, ImportedTable, Importer, UserInput
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import CallRateMismatch, ImportDoubt, MissingItem, NotInOutput, SkippedLines, SkippedReason, lacks
from collbench.plugins.importers.rows import MOST_RANKS, RowKind, Samples, as_count, is_size, is_time, sampled, short
from collbench.results.row import Row
from collbench.results.store import parse_object
from collbench.untrusted import dict_of

_PARTS = ("allgather", "reducescatter", "alltoall", "gather", "scatter")  # operations with one rank's part as the printed size
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_LONGEST_OBJECT = 20_000  # lines
_AGREES = 0.01


class _Key(NamedTuple):
    """The values that all calls of one row share."""

    communicator: str
    operation: str
    size: int
    ranks: int
    nodes: int | None
    pair: bool
    source: str


class _Calls(msgspec.Struct):
    """Times in seconds by number of the call and rank; the first line; calls with a bandwidth that does not fit size and time."""

    line: int
    times: dict[int, dict[int, float]] = msgspec.field(default_factory=dict)
    hosts: dict[int, str] = msgspec.field(default_factory=dict)
    unlike: int = 0


class _Communicator(msgspec.Struct):
    """The calls of one communicator, with the number of their first line. bad: objects of the output that cannot be read."""

    number: int
    bad: int
    calls: list[tuple[_Key, _Calls]] = msgspec.field(default_factory=list)


def knows(lines: Sequence[str]) -> bool:
    """Return whether the lines have keys that only the Inspector writes."""
    has_call = any('"coll_perf"' in line or '"p2p_perf"' in line for line in lines)
    return has_call and any('"coll_msg_size_bytes"' in line or '"p2p_msg_size_bytes"' in line for line in lines)


def _communicators(lines: Sequence[str]) -> Iterable[_Communicator]:
    calls: dict[_Key, _Calls] = {}
    bad = 0
    for number, text in objects_in(lines):
        try:
            bad += not _take(calls, number, parse_object(text.encode()))
        except ValueError:
            bad += 1
    communicators: dict[str, _Communicator] = {}
    for key, calls_of_key in calls.items():
        communicators.setdefault(key.communicator, _Communicator(calls_of_key.line, bad)).calls.append((key, calls_of_key))
    return communicators.values()


def objects_in(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) of each object, on one line or on several."""
    parts: list[str] = []
    depth = 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not parts and not text.startswith("{"):
            continue
        parts.append(text)
        depth += text.count("{") - text.count("}")
        if depth <= 0 or len(parts) > _LONGEST_OBJECT:
            yield number - len(parts) + 1, "".join(parts)
            parts = []
            depth = 0


def _take(calls: dict[_Key, _Calls], number: int, document: Mapping[str, Any]) -> bool:
    """Add a call. Return False if the object is not one."""
    header = dict_of(document.get("header"))
    kind = "coll" if "coll_perf" in document else "p2p"
    call = dict_of(document.get(f"{kind}_perf"))
    ranks, rank = (as_count(header.get(name)) for name in ("n_ranks", "rank"))
    printed_size, sequence = (as_count(call.get(name)) for name in (f"{kind}_msg_size_bytes", f"{kind}_sn"))
    micros = call.get(f"{kind}_exec_time_us")
    if ranks is None or rank is None or printed_size is None or sequence is None or not isinstance(micros, int | float):
        return False
    operation = short(str(call.get(kind))).lower()
    size = printed_size * (ranks if operation in _PARTS else 1)
    time_s = micros / 1e6
    if not (is_size(size) and is_time(time_s) and 1 <= ranks <= MOST_RANKS and rank < ranks):
        return False
    nodes = as_count(header.get("nnodes")) or None
    if nodes and nodes > ranks:
        nodes = None
    communicator = " ".join(short(str(header[name])) for name in ("id", "comm_name") if header.get(name) and header[name] != "unknown")
    source = short(str(call.get(f"{kind}_timing_source") or ""))
    calls_of_key = calls.setdefault(_Key(communicator, operation, size, ranks, nodes, kind == "p2p", source), _Calls(number))
    calls_of_key.times.setdefault(sequence, {})[rank] = time_s
    calls_of_key.hosts[rank] = short(str(dict_of(document.get("metadata")).get("hostname") or ""))
    rate = call.get(f"{kind}_algobw_gbs")
    calls_of_key.unlike += isinstance(rate, int | float) and rate > 0 and abs(size / time_s / 1e9 / rate - 1) > _AGREES
    return True


def _runs(communicator: _Communicator, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    rows: list[Row] = []
    arrays: dict[int, Arrays] = {}
    host_of: dict[int, str] = {}
    unlike = 0
    for key, calls in communicator.calls:
        row, arrays_of_row = _row(key, calls, user_input)
        if arrays_of_row:
            arrays[len(rows)] = arrays_of_row
        rows.append(row)
        host_of |= calls.hosts
        unlike += calls.unlike
    first, _ = communicator.calls[0]
    is_complete = sorted(host_of) == list(range(first.ranks)) and all(host_of.values())
    hosts = [host_of[rank] for rank in sorted(host_of)] if is_complete else []
    doubts: list[ImportDoubt] = []
    if communicator.bad:
        doubts.append(SkippedLines(communicator.bad, SkippedReason.UNREADABLE, unit="object"))
    if unlike:
        doubts.append(CallRateMismatch(unlike))
    missing = [NotInOutput(MissingItem.DTYPE, assumed=user_input.dtype or "uint8"), *lacks(MissingItem.VERIFICATION, MissingItem.SLOW_RANK)]
    if not hosts and len(host_of) < first.ranks:
        missing.append(NotInOutput(MissingItem.OTHER_RANKS, source=f"the files have {len(host_of)} of {first.ranks} ranks"))
    program = f"communicator {first.communicator}"
    statistic = rows[0].evidence["statistic"]
    yield ImportedTable("nccl-inspector", None, program, statistic, rows, hosts, {}, missing, doubts, arrays=arrays)


def _row(key: _Key, calls: _Calls, user_input: UserInput) -> tuple[Row, Arrays]:
    ranks = sorted({rank for times in calls.times.values() for rank in times})
    is_complete = len(ranks) == key.ranks
    # With the files of all ranks, calls that are missing for some ranks (a full ring buffer) do not count.
    times_by_call = [times for _, times in sorted(calls.times.items()) if not is_complete or len(times) == key.ranks]
    times_by_call = times_by_call or list(calls.times.values())
    count = len(times_by_call)
    source = f"rank {ranks[0]}" if len(ranks) == 1 else f"the slowest of {len(ranks)} ranks"
    if is_complete:
        source = "the slowest rank"
    if key.source:
        source += f", timed by {key.source}"
    statistic = f"the median over {count} calls of {source}" if count > 1 else f"the time of 1 call of {source}"
    kind = RowKind(
        key.operation, "nccl", "nccl", user_input.dtype or "uint8", 2 if key.pair else key.ranks,
        key.nodes or user_input.nodes, statistic, "cuda",
        root=0 if key.operation in _ROOTED else None, mode="pipelined", like="p2p_bandwidth" if key.pair else None,
    )  # fmt: skip
    series = np.array([max(times.values()) for times in times_by_call])
    row = kind.row(key.size, float(np.median(series)), line=calls.line, count=key.size)
    return sampled(row, Samples(series, statistic), kind) if len(series) > 1 else (row, {})


NCCL_INSPECTOR = Importer(
    "nccl-inspector", "NCCL Inspector, JSON lines", knows, _communicators, _runs,
    empty="no object with an operation, a size and a time found: the program ended before the Inspector wrote them",
)  # fmt: skip
