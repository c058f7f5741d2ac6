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
    return any('"coll_perf"' in line or '"p2p_perf"' in line for line in lines) and any(
        '"coll_msg_size_bytes"' in line or '"p2p_msg_size_bytes"' in line for line in lines
    )


def _communicators(lines: Sequence[str]) -> Iterable[_Communicator]:
    calls: dict[_Key, _Calls] = {}
    bad = 0
    for number, text in objects_in(lines):
        try:
            bad += not _take(calls, number, parse_object(text.encode()))
        except ValueError:
            bad += 1
    communicators: dict[str, _Communicator] = {}
    for key, of_key in calls.items():
        communicators.setdefault(key.communicator, _Communicator(of_key.line, bad)).calls.append((key, of_key))
    return communicators.values()


def objects_in(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) of each object, on one line or on several."""
    parts, depth, begun = list[str](), 0, 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not parts and not text.startswith("{"):
            continue
        begun = begun if parts else number
        parts.append(text)
        depth += text.count("{") - text.count("}")
        if depth <= 0 or len(parts) > _LONGEST_OBJECT:
            yield begun, "".join(parts)
            parts, depth = [], 0


def _take(calls: dict[_Key, _Calls], number: int, document: Mapping[str, Any]) -> bool:
    """Add a call. Return False if the object is not one."""
    header, metadata = dict_of(document.get("header")), dict_of(document.get("metadata"))
    kind = "coll" if "coll_perf" in document else "p2p"
    call = dict_of(document.get(f"{kind}_perf"))
    ranks, rank, size = as_count(header.get("n_ranks")), as_count(header.get("rank")), as_count(call.get(f"{kind}_msg_size_bytes"))
    micros, name, sequence = call.get(f"{kind}_exec_time_us"), str(call.get(kind)), as_count(call.get(f"{kind}_sn"))
    if ranks is None or rank is None or size is None or sequence is None or not isinstance(micros, int | float):
        return False
    operation = short(name).lower()
    held = size * (ranks if operation in _PARTS else 1)
    time_s = micros / 1e6
    if not (is_size(held) and is_time(time_s) and 1 <= ranks <= MOST_RANKS and rank < ranks):
        return False
    nodes = as_count(header.get("nnodes"))
    named = " ".join(short(str(header[name])) for name in ("id", "comm_name") if header.get(name) and header[name] != "unknown")
    known = nodes if nodes and nodes <= ranks else None
    key = _Key(named, operation, held, ranks, known, kind == "p2p", short(str(call.get(f"{kind}_timing_source") or "")))
    each = calls.setdefault(key, _Calls(number))
    each.times.setdefault(sequence, {})[rank] = time_s
    each.hosts[rank] = short(str(metadata.get("hostname") or ""))
    rate = call.get(f"{kind}_algobw_gbs")
    each.unlike += isinstance(rate, int | float) and rate > 0 and abs(held / time_s / 1e9 / rate - 1) > _AGREES
    return True


def _runs(communicator: _Communicator, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    calls, bad = communicator.calls, communicator.bad
    rows, arrays = list[Row](), dict[int, Arrays]()
    for key, each in calls:
        row, found = _row(key, each, user_input)
        if found:
            arrays[len(rows)] = found
        rows.append(row)
    first, seen = calls[0][0], {rank: host for _, each in calls for rank, host in each.hosts.items()}
    hosts = [seen[rank] for rank in sorted(seen)] if sorted(seen) == list(range(first.ranks)) and all(seen.values()) else []
    unlike = sum(each.unlike for _, each in calls)
    doubts: list[ImportDoubt] = [SkippedLines(bad, SkippedReason.UNREADABLE, unit="object")] if bad else []
    doubts += [CallRateMismatch(unlike)] if unlike else []
    missing = [NotInOutput(MissingItem.DTYPE, assumed=user_input.dtype or "uint8"), *lacks(MissingItem.VERIFICATION, MissingItem.SLOW_RANK)]
    if not hosts and len(seen) < first.ranks:
        missing.append(NotInOutput(MissingItem.OTHER_RANKS, source=f"the files have {len(seen)} of {first.ranks} ranks"))
    program = f"communicator {first.communicator}"
    statistic = rows[0].evidence["statistic"]
    yield ImportedTable("nccl-inspector", None, program, statistic, rows, hosts, {}, missing, doubts, arrays=arrays)


def _row(key: _Key, calls: _Calls, user_input: UserInput) -> tuple[Row, Arrays]:
    seen = sorted({rank for ranks in calls.times.values() for rank in ranks})
    whole = len(seen) == key.ranks
    # With the files of all ranks, calls that are missing for some ranks (a full ring buffer) do not count.
    times = [ranks for _, ranks in sorted(calls.times.items()) if not whole or len(ranks) == key.ranks] or list(calls.times.values())
    of = "the slowest rank" if whole else f"rank {seen[0]}" if len(seen) == 1 else f"the slowest of {len(seen)} ranks"
    statistic = f"the {'median over ' if len(times) > 1 else 'time of '}{len(times)} call{'s' if len(times) > 1 else ''} of {of}" + (
        f", timed by {key.source}" if key.source else ""
    )
    kind = RowKind(
        key.operation, "nccl", "nccl", user_input.dtype or "uint8", 2 if key.pair else key.ranks,
        key.nodes or user_input.nodes, statistic, "cuda",
        root=0 if key.operation in _ROOTED else None, mode="pipelined", like="p2p_bandwidth" if key.pair else None,
    )  # fmt: skip
    series = np.array([max(ranks.values()) for ranks in times])
    row = kind.row(key.size, float(np.median(series)), line=calls.line, count=key.size)
    return sampled(row, Samples(series, statistic), kind) if len(series) > 1 else (row, {})


NCCL_INSPECTOR = Importer(
    "nccl-inspector", "NCCL Inspector, JSON lines", knows, _communicators, _runs,
    empty="no object with an operation, a size and a time found: the program ended before the Inspector wrote them",
)  # fmt: skip
