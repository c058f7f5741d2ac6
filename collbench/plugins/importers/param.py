"""Read the output of PARAM comms (train/comms/pt/comms.py): the lines COMMS-RES of collectives and of point-to-point.

Each rank's time is its mean over the iterations; p50, p75, p95, Min and Max are over the *ranks*, not over iterations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import ImportDoubt, Missing, MissingItem, NotInOutput, SkippedLines, SkippedReason, lacks
from collbench.plugins.importers.rows import (
    RowKind,
    contradiction,
    is_size,
    parse_number,
    rank_doubts,
    ranks_and_nodes,
    rate_mismatch,
    short,
    type_name,
    whole,
)
from collbench.plugins.importers.table import GIGABYTES, MICROSECONDS, Layout, TextColumn, TextTable
from collbench.results.row import Row

_NUMBER = r"\d{1,18}(?:\.\d{0,18})?"
_COLLECTIVE = "".join(rf"\s+(?P<{name}>{_NUMBER})" for name in ("count", "p50", "p75", "p95", "min", "max", "algbw", "busbw"))
_PAIR = rf"(?:\s+{_NUMBER}){{3}}\s+(?P<pingpong>{_NUMBER})(?:\s+{_NUMBER}){{2}}\s+(?P<one_way>{_NUMBER})\s+(?P<both_ways>{_NUMBER})"
_RANKS = r"\[((?:\d{1,9}(?:, ?|(?=\])))*)\]"
# The distance between two words is limited. Otherwise a line that repeats the first one would take quadratic time.
_LAYOUT = Layout(
    columns=(
        TextColumn("size", "size"),
        TextColumn("count", "count"),
        TextColumn("p50", "time", MICROSECONDS),
        *(TextColumn(name, f"rank_{name}_s", MICROSECONDS) for name in ("min", "p75", "p95", "max")),
        TextColumn("algbw", "algbw"),
        TextColumn("busbw", "busbw"),
        TextColumn("pingpong", "pingpong", MICROSECONDS),
        TextColumn("one_way", "one_way", GIGABYTES),
        TextColumn("both_ways", "both_ways", GIGABYTES),
    ),
    figures=re.compile(
        r".{0,300}?COMMS-RES(?:-(?P<collective>[a-z0-9_]{1,40})-(?P<dtype>[a-z0-9]{1,20})\S{0,80})?\s+(?P<size>\d{1,18})"
        rf"(?:{_COLLECTIVE}(?:\s+{_NUMBER})?|{_PAIR}(?:\s+{_NUMBER}){{2}})\s*$"
    ),
    broken=re.compile(r"COMMS-RES(?!-QUANT)\S{0,160}\s+\d"),
    shared=(
        re.compile(r"'world_size': (?P<world>\d{1,9})"),
        re.compile(r"Hello from Rank \d{1,7}: .{0,400}?world_size: (?P<world>\d{1,9})"),
        re.compile(r"groupSize (?P<group>\d{1,9})"),
        re.compile(r"backend: (?P<backend>\w{1,20}) nw-stack: .{0,2000}?args\.z: (?P<waits>\d{1,9})"),  # 1 waits for each call
        re.compile(rf"collective=pt2pt\s.{{0,2000}}?src_ranks=(?P<senders>{_RANKS}), dst_ranks=(?P<receivers>{_RANKS})"),
        re.compile(r"collective=(?P<named>\w{1,40})"),
    ),
)
_HELLO = re.compile(r"Hello from Rank (\d{1,7}): .{0,200}?host (\S{1,256}), device: ([^,:]{1,40})[^,]{0,40},")
_QUANTIZED = re.compile(r"COMMS-RES-QUANT(?:-\S{0,160})?\s+\d")
_OPERATIONS = {
    "all_reduce": "allreduce", "reduce": "reduce", "broadcast": "broadcast", "all_gather": "allgather", "all_gather_base": "allgather",
    "reduce_scatter": "reducescatter", "reduce_scatter_base": "reducescatter", "all_to_all": "alltoall", "all_to_all_single": "alltoall",
    "all_to_allv": "alltoallv", "gather": "gather", "scatter": "scatter",
}  # fmt: skip
_BACKENDS = {"nccl": "torch-nccl", "gloo": "gloo"}
_ACROSS = "over the ranks of each rank's mean over the iterations"
_MOST_PAIRS = 1 << 16
_MOST_RANKS = 1 << 24


class _Table(msgspec.Struct, frozen=True):
    """A table of one collective and type; the hosts by rank, the device, and the number of lines of quantized collectives in the output."""

    figures: TextTable
    hosts: dict[int, str]
    device: str | None
    quantized: int

    @property
    def number(self) -> int:
        return self.figures.number

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of ranks of a point-to-point test."""
        facts = self.figures.facts
        ends = [[int(rank) for rank in re.findall(r"\d+", facts.get(name, ""))] for name in ("senders", "receivers")]
        return list(zip(*ends, strict=False))[:_MOST_PAIRS] or [(0, 1)]


def knows(lines: Sequence[str]) -> bool:
    """Return whether the lines have a result, or the environment that PARAM prints first."""
    return any("COMMS-RES" in line or "PARAM COMM environment" in line for line in lines)


def _tables(lines: Sequence[str]) -> list[_Table]:
    """Return the tables: one per collective and element type. Raises UsageError if there are lines of quantized collectives only."""
    tables = _LAYOUT.tables(lines)
    quantized = sum(_QUANTIZED.search(line) is not None for line in lines if "COMMS-RES-QUANT" in line)
    if quantized and not tables:
        reason = "only lines of quantized collectives: their sizes are not those moved"
        raise UsageError(f"{reason}: use the output of a complete run of comms.py")
    greetings = [greeting for greeting in map(_HELLO.search, lines) if greeting]
    hosts = {int(greeting[1]): short(greeting[2]) for greeting in greetings}
    return [_Table(table, hosts, greetings[-1][3] if greetings else None, quantized) for table in tables]


def _runs(table: _Table, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    """Yield the run of a table; of point-to-point, one for all three patterns."""
    where = f"the table at line {table.number}"
    facts = table.figures.facts
    hosts = table.hosts
    collective = facts.get("collective") or facts.get("named") or user_input.operation
    printed_type = facts.get("dtype") or user_input.dtype
    if not collective or not printed_type:
        raise UsageError(f"line {table.number}: the collective or the data type is unknown: use --operation NAME and --dtype NAME")
    operation = _OPERATIONS.get(collective, collective)
    world = whole(facts.get("world", ""))
    names = [hosts[rank] for rank in sorted(hosts)] if len(hosts) == world else []
    ranks = whole(facts.get("group", "")) or world or 0
    group: Sequence[int] = range(ranks if ranks <= _MOST_RANKS else 0)
    if collective == "pt2pt":
        group = sorted({rank for pair in table.pairs for rank in pair})
    nodes = len({hosts[rank] for rank in group}) if group and all(rank in hosts for rank in group) else None
    extent = ranks_and_nodes(user_input, len(group) or None, nodes, where)
    backend = facts.get("backend", "nccl")
    device = table.device or ("cuda" if backend == "nccl" else "cpu")
    base: dict[str, Any] = {
        "dtype": type_name(printed_type), "ranks": extent.ranks, "nodes": extent.nodes,
        "backend": _BACKENDS.get(backend, f"torch-{backend}"), "api": "torch", "device": device,
        "mode": "pipelined" if facts.get("waits", "1") != "1" else "isolated",
    }  # fmt: skip
    contradicted = extent.contradicted
    doubts: list[ImportDoubt] = []
    if collective == "pt2pt":
        base["also"] = {"group": ",".join(f"{a}-{b}" for a, b in table.pairs[:8])}
        rows = list(_pairs(table.figures, base))
    else:
        contradicted = (*contradicted, *contradiction(where, "operation", user_input.operation, operation))
        rows = list(_collective(table.figures, operation, base))
        doubts = list(_doubts(table.figures, operation, extent.ranks))
    missing: list[Missing] = [
        *lacks(MissingItem.SAMPLES, MissingItem.INTERVAL, MissingItem.PERCENTILES, MissingItem.RANK_DATA, MissingItem.VERIFICATION)
    ]
    if table.device is None and device == "cpu":
        missing.append(NotInOutput(MissingItem.DEVICE, assumed="cpu"))
    if not names:
        missing += lacks(MissingItem.HOSTS)
    if table.quantized:
        missing.append(SkippedLines(table.quantized, SkippedReason.QUANTIZED))
    doubts += table.figures.doubts()
    yield ImportedTable(
        "param", None, f"comms.py {short(collective)}", f"the median {_ACROSS}", rows, names, {}, missing, doubts, contradicted
    )


def _collective(table: TextTable, name: str, base: dict[str, Any]) -> Iterator[Row]:
    operation = operations().get(name)
    kind = RowKind(
        name, statistic=f"the median {_ACROSS}", redop="sum" if operation and operation.reduces else None,
        root=0 if operation and operation.rooted else None, in_place=name in ("allreduce", "reduce", "broadcast"), **base,
    )  # fmt: skip
    for figures in table.figures():
        if figures.size is None or figures.time_s is None or not (is_size(figures.size) or name == "barrier"):
            table.unreadable.append(figures.line)
            continue
        quantiles = {name: figures.values.get(name) or None for name in ("rank_min_s", "rank_p75_s", "rank_p95_s", "rank_max_s")}
        count = int(figures.values.get("count", 0))
        yield kind.row(figures.size, figures.time_s, line=figures.line, count=count, evidence={"across_ranks": quantiles})


def _pairs(table: TextTable, base: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of the ping-pong (half its time), and of a window of messages in one and both directions (mean rate of the pairs)."""
    latency = RowKind("p2p_latency", statistic=f"half of the median {_ACROSS} of a ping-pong", **base)
    one_way = RowKind("p2p_bandwidth", statistic="size / mean rate of the ranks that communicate", **base)
    both_ways = RowKind("p2p_bidirectional", statistic="size / half of the mean rate both ways of the ranks that communicate", **base)
    for figures in table.figures():
        size = figures.size or 0
        values = figures.values
        times: list[tuple[RowKind, float]] = []
        if values.get("pingpong"):
            times.append((latency, values["pingpong"] / 2))
        if values.get("one_way"):
            times.append((one_way, size / values["one_way"]))
        if values.get("both_ways"):
            times.append((both_ways, 2 * size / values["both_ways"]))
        rows = [kind.row_if_valid(size, time_s, figures.line) for kind, time_s in times]
        if not any(rows):
            table.unreadable.append(figures.line)
        yield from filter(None, rows)


def _doubts(table: TextTable, name: str, ranks: int) -> Iterator[ImportDoubt]:
    operation = operations().get(name)
    lines = [words for _, words in table.lines if "algbw" in words]
    if operation:
        yield from rank_doubts("BusBW / AlgBW", operation, ((words["algbw"], words["busbw"]) for words in lines), ranks)
    fastest = max(lines, key=lambda words: parse_number(words["algbw"]) or 0.0, default=None)
    mismatch = rate_mismatch(whole(fastest["size"]) or 0, fastest["algbw"], fastest["p50"]) if fastest else None
    if mismatch:
        yield mismatch


PARAM = Importer(
    "param", "PARAM comms", knows, _tables, _runs, tagged=True,
    empty="no line COMMS-RES with a time: use the output of a complete run of comms.py",
)  # fmt: skip
