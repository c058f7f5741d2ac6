"""Reads what the OSU Micro-Benchmarks print, versions 3 to 7: every collective and point-to-point test, with -f, -z, -c, -V.

What a figure is (source of 7.4, osu_util_mpi.c): of collectives the mean over the ranks of each rank's mean over the iterations, of
non-blocking ones without anything computed meanwhile ("Pure Comm."); of latencies the mean of half the round trips; of rates the
bytes of all messages by the time of all, MB being 10**6 bytes. Percentiles are of the iterations' means over the ranks, which is no
quantile of ours: they stand in the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collbench.results.importers.figures import missing, some
from collbench.results.importers.log_context import Contexts, LogContext, place_of, start_facts, with_hosts
from collbench.results.importers.osu_rows import rows_of
from collbench.results.importers.osu_tables import Table, is_title, tables_in
from collbench.results.importers.peer import Given, PeerRun, Reader, Reading, read_tables
from collbench.results.importers.prefixes import without_prefixes
from collbench.results.importers.rows import short


def knows(lines: Sequence[str]) -> bool:
    """Whether one of these lines is the title of an OSU test."""
    return any(is_title(line) for line in without_prefixes(lines))


def read(lines: Sequence[str], given: Given) -> Reading:
    """One run per table. Raises UsageError where there is none, and where the number of ranks is unknown."""
    contexts = Contexts(lines)
    tables = [table for table in tables_in(without_prefixes(lines)) if table.lines or table.bad]
    reading = read_tables(tables, lambda table: [_run(table, given, contexts.at(table.number))], lambda table: table.number)
    return some(reading, "OSU's tests")


OSU = Reader("osu", "OSU Micro-Benchmarks", knows, read)


def _run(table: Table, given: Given, context: LogContext) -> PeerRun:
    pairs = table.said.get("pairs")
    told = 2 if table.test.pairs == "one" else None if pairs is None else 2 * pairs
    extent = place_of(context, given, told, f"{table.test.program} (line {table.number})")
    rows, statistic = rows_of(table, extent)
    hosts = with_hosts(context, extent.ranks)
    return PeerRun(
        "osu", table.version, table.test.program, statistic, rows,
        hosts=hosts, facts=_facts(table, context), missing=[*missing(extent.nodes, hosts), *_missing(table)], doubts=_doubts(table),
        contradicted=extent.contradicted if table.test.pairs != "one" else (),
    )  # fmt: skip


def _facts(table: Table, context: LogContext) -> Mapping[str, Any]:
    names = ("datatype", "memory", "window creation", "synchronization")
    return {"interface": table.library, **start_facts(context), **{name: table.said[name] for name in names if name in table.said}}


def _missing(table: Table) -> list[str]:
    untold = ["options (root, in place: taken as rank 0 and out of place)"]
    if table.test.measure == "bandwidth" and not table.windows and not table.said.get("window"):
        untold.append("the window")
    if not any(column == "Iterations" for column in table.columns):
        untold.append("the number of iterations")
    if "datatype" not in table.said and table.test.like != "barrier":
        untold.append("the element type: MPI_FLOAT where it reduces, else MPI_CHAR, as versions before 7.1 had it")
    return untold


def _doubts(table: Table) -> list[str]:
    doubts = [table.said["failed"]] if "failed" in table.said else []
    if table.bad:
        doubts.append(f"{len(table.bad)} lines of figures are incomplete and were left out, the first is line {table.bad[0]}")
    if table.said.get("memory") and len(set(table.said["memory"])) > 1:
        doubts.append(f"the two ranks' buffers are in different memory: {' and '.join(map(short, table.said['memory']))}")
    return doubts
