"""Read the output of PARAM comms (train/comms/pt/comms.py): the lines COMMS-RES of collectives and of point-to-point.

Each rank's time is its mean over the iterations; p50, p75, p95, Min and Max are over the *ranks*, not over iterations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import ImportDoubt, Missing, MissingItem, NotInOutput, SkippedLines, SkippedReason, lacks
from collbench.plugins.importers.rows import (
    RowKind,
    contradiction,
    is_size,
    is_time,
    parse_number,
    printed_rates,
    rank_mismatch,
    rank_range,
    ranks_and_nodes,
    rate_mismatch,
    short,
    type_name,
    whole,
)
from collbench.results.row import Row

_LINE = re.compile(r"COMMS-RES(-QUANT)?(?:-([a-z0-9_]{1,40})-([a-z0-9]{1,20})(\S{0,80}))?\s+(\d.*)")
# The distance between two words is limited. Otherwise a line that repeats the first one would take quadratic time.
_HELLO = re.compile(r"Hello from Rank (\d{1,7}): .{0,200}?host (\S{1,256}), device: ([^,]{1,40}),.{0,200}?world_size: (\d{1,9})")
_GROUP = re.compile(r"groupSize (\d{1,9})")
_WORLD = re.compile(r"'world_size': (\d{1,9})")
_BACKEND = re.compile(r"backend: (\w{1,20}) nw-stack: .{0,2000}?args\.z: (\d{1,9})")
_RANKS = r"\[((?:\d{1,9}(?:, ?|(?=\])))*)\]"
_PAIRS = re.compile(rf"collective=pt2pt\s.{{0,2000}}?src_ranks={_RANKS}, dst_ranks={_RANKS}")
_COLLECTIVE = re.compile(r"collective=(\w{1,40})")
_OPERATIONS = {
    "all_reduce": "allreduce", "reduce": "reduce", "broadcast": "broadcast", "all_gather": "allgather", "all_gather_base": "allgather",
    "reduce_scatter": "reducescatter", "reduce_scatter_base": "reducescatter", "all_to_all": "alltoall", "all_to_all_single": "alltoall",
    "all_to_allv": "alltoallv", "gather": "gather", "scatter": "scatter",
}  # fmt: skip
_BACKENDS = {"nccl": "torch-nccl", "gloo": "gloo"}
_ACROSS = "over the ranks of each rank's mean over the iterations"
_MOST_PAIRS, _MOST_RANKS = 1 << 16, 1 << 24
_COLUMNS, _PAIR_COLUMNS = (9, 10), (11,)  # size, elements, p50, p75, p95, Min, Max, AlgBW, BusBW; in newer versions also TotalTime


@dataclass
class _Head:
    """The lines before the table. z is the value of --z: 1 waits for each call."""

    backend: str | None = None
    blocking: bool | None = None
    world: int | None = None
    group: int | None = None
    collective: str | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    device: str | None = None
    pairs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 1)])

    def take(self, line: str) -> None:
        if hello := _HELLO.search(line):
            self.hosts[int(hello[1])], self.device, self.world = short(hello[2]), hello[3].partition(":")[0], int(hello[4])
        if found := _GROUP.search(line):
            self.group = int(found[1])
        if found := _WORLD.search(line):
            self.world = int(found[1])
        if found := _BACKEND.search(line):
            self.backend, self.blocking = found[1], found[2] == "1"
        if found := _PAIRS.search(line):
            ends = [[int(word) for word in text.split(",") if word.strip()] for text in found.groups()]
            self.pairs = list(zip(*ends, strict=False))[:_MOST_PAIRS] or self.pairs
        if found := _COLLECTIVE.search(line):
            self.collective = found[1]

    @property
    def ranks(self) -> int | None:
        ranks = self.group or self.world
        return ranks if ranks is None or ranks <= _MOST_RANKS else None


@dataclass
class _Table:
    """The lines of one collective and type: (number of the line, its figures), the output's head, and its lines of quantized collectives.

    collective, dtype   None: not in the lines
    """

    number: int
    head: _Head
    collective: str | None
    dtype: str | None
    lines: list[tuple[int, list[str]]] = field(default_factory=list)
    quantised: int = 0


def knows(lines: Sequence[str]) -> bool:
    """Return whether the lines have a result, or the environment that PARAM prints first."""
    return any("COMMS-RES" in line or "PARAM COMM environment" in line for line in lines)


def _tables(lines: Sequence[str]) -> list[_Table]:
    """Return the tables: one per collective and element type. Raises UsageError if there are lines of quantized collectives only."""
    head, quantised = _Head(), 0
    tables: list[_Table] = []
    for number, line in enumerate(lines, 1):
        found = _LINE.search(line) if "COMMS-RES" in line else None
        if found is None:
            head.take(line)
        elif found[1]:
            quantised += 1
        else:
            collective, dtype, figures = found[2] or head.collective, found[3], found[5].split()
            last = tables[-1] if tables else None
            again = last is not None and any(figures[0] == words[0] for _, words in last.lines)
            if last is None or again or (last.collective, last.dtype) != (collective, dtype):
                last = _Table(number, head, collective, dtype)
                tables.append(last)
            last.lines.append((number, figures))
    if quantised and not tables:
        what = "only lines of quantized collectives: their sizes are not those moved"
        raise UsageError(f"{what}: use the output of a complete run of comms.py")
    for table in tables:
        table.quantised = quantised
    return tables


def _runs(table: _Table, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    """Yield the run of a table; of point-to-point, one for all three patterns."""
    where, head = f"the table at line {table.number}", table.head
    collective, printed_type = table.collective or user_input.operation, table.dtype or user_input.dtype
    if not collective or not printed_type:
        raise UsageError(f"line {table.number}: the collective or the data type is unknown: use --operation NAME and --dtype NAME")
    operation = _OPERATIONS.get(collective, collective)
    names = [head.hosts[rank] for rank in sorted(head.hosts)] if len(head.hosts) == head.world else []
    part = sorted({rank for pair in head.pairs for rank in pair}) if collective == "pt2pt" else range(head.ranks or 0)
    nodes = len({head.hosts[rank] for rank in part}) if part and all(rank in head.hosts for rank in part) else None
    extent = ranks_and_nodes(user_input, len(part) or None, nodes, where)
    backend = head.backend or "nccl"
    device = head.device or ("cuda" if backend == "nccl" else "cpu")
    base: dict[str, Any] = {
        "dtype": type_name(printed_type), "ranks": extent.ranks, "nodes": extent.nodes,
        "backend": _BACKENDS.get(backend, f"torch-{backend}"), "api": "torch", "device": device,
        "mode": "pipelined" if head.blocking is False else "isolated",
    }  # fmt: skip
    contradicted, doubts = extent.contradicted, list[ImportDoubt]()
    if collective == "pt2pt":
        base["also"] = {"group": ",".join(f"{a}-{b}" for a, b in head.pairs[:8])}
        rows = list(_pairs(table, base))
    else:
        contradicted = (*contradicted, *contradiction(where, "operation", user_input.operation, operation))
        rows = list(_collective(table, operation, base))
        doubts = list(_doubts(table, operation, extent.ranks))
    if not rows:
        return
    missing: list[Missing] = [
        *lacks(MissingItem.SAMPLES, MissingItem.INTERVAL, MissingItem.PERCENTILES, MissingItem.RANK_DATA, MissingItem.VERIFICATION)
    ]
    missing += [NotInOutput(MissingItem.DEVICE, assumed="cpu")] if head.device is None and device == "cpu" else []
    missing += lacks(MissingItem.HOSTS) if not names else []
    missing += [SkippedLines(table.quantised, SkippedReason.QUANTIZED)] if table.quantised else []
    yield ImportedTable(
        "param", None, f"comms.py {short(collective)}", f"the median {_ACROSS}", rows, names, {}, missing, doubts, contradicted
    )


def _collective(table: _Table, name: str, base: dict[str, Any]) -> Iterator[Row]:
    operation = operations().get(name)
    kind = RowKind(
        name, statistic=f"the median {_ACROSS}", redop="sum" if operation and operation.reduces else None,
        root=0 if operation and operation.rooted else None, in_place=name in ("allreduce", "reduce", "broadcast"), **base,
    )  # fmt: skip
    for number, figures in table.lines:
        size, time_s = whole(figures[0]), _seconds(figures[2]) if len(figures) in _COLUMNS else None
        if size is None or time_s is None or not (is_size(size) or name == "barrier"):
            continue
        across = {f"rank_{column}_s": _seconds(figures[at]) for column, at in (("min", 5), ("p75", 3), ("p95", 4), ("max", 6))}
        yield kind.row(size, time_s, line=number, count=whole(figures[1]) or 0, evidence={"across_ranks": across})


def _pairs(table: _Table, base: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of the ping-pong (half its time), and of a window of messages in one and both directions (mean rate of the pairs)."""
    latency = RowKind("p2p_latency", statistic=f"half of the median {_ACROSS} of a ping-pong", **base)
    rates = [
        (RowKind("p2p_bandwidth", statistic="size / mean rate of the ranks that communicate", **base), 7, 1),
        (RowKind("p2p_bidirectional", statistic="size / half of the mean rate both ways of the ranks that communicate", **base), 8, 2),
    ]
    for number, figures in table.lines:
        size = whole(figures[0])
        if len(figures) not in _PAIR_COLUMNS or size is None or not is_size(size):
            continue
        both = _seconds(figures[4])
        if both:
            yield latency.row(size, both / 2, line=number)
        for kind, at, ways in rates:
            rate = parse_number(figures[at])
            row = kind.row_if_valid(size, ways * size / rate / 1e9 if rate else None, number)
            if row is not None:
                yield row


def _doubts(table: _Table, name: str, ranks: int) -> Iterator[ImportDoubt]:
    operation = operations().get(name)
    complete = [figures for _, figures in table.lines if len(figures) in _COLUMNS]
    printed = printed_rates((figures[7], figures[8]) for figures in complete)
    found = rank_range(operation, sorted(printed, reverse=True)[:16]) if operation else None
    if found is not None and not found.holds(ranks):
        yield rank_mismatch("BusBW / AlgBW", found, ranks, name)
    best = max(complete, key=lambda figures: parse_number(figures[7]) or 0.0, default=None)
    if best and (mismatch := rate_mismatch(whole(best[0]) or 0, best[7], best[2])):
        yield mismatch


def _seconds(text: str) -> float | None:
    micros = parse_number(text)
    return micros / 1e6 if micros is not None and is_time(micros / 1e6) else None


PARAM = Importer(
    "param", "PARAM comms", knows, _tables, _runs, tagged=True,
    empty="no line COMMS-RES with a time: use the output of a complete run of comms.py",
)  # fmt: skip
