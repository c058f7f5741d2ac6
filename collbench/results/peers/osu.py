"""Reads what the OSU Micro-Benchmarks print, versions 3 to 7: every collective and point-to-point test, with -f, -z, -c, -V.

What a figure is (source of 7.4, osu_util_mpi.c): of collectives the mean over the ranks of each rank's mean over the iterations, of
non-blocking ones without anything computed meanwhile ("Pure Comm."); of latencies the mean of half the round trips; of rates the
bytes of all messages by the time of all, MB being 10**6 bytes. Percentiles are of the iterations' means over the ranks, which is no
quantile of ours: they stand in the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collbench.results.peers.figures import missing, some, unprefixed
from collbench.results.peers.osu_rows import rows_of
from collbench.results.peers.osu_tables import Table, is_title, tables_in
from collbench.results.peers.peer import Given, PeerRun, Reader
from collbench.results.peers.rows import short


def knows(lines: Sequence[str]) -> bool:
    """Whether one of these lines is the title of an OSU test."""
    return any(is_title(line) for line in unprefixed(lines))


def read(lines: Sequence[str], given: Given) -> list[PeerRun]:
    """One run per table. Raises UsageError where there is none, and where the number of ranks is not told or contradicts what is given."""
    return some([_run(table, given) for table in tables_in(unprefixed(lines)) if table.lines or table.bad], "OSU's tests")


OSU = Reader("osu", knows, read)


def _run(table: Table, given: Given) -> PeerRun:
    rows, statistic = rows_of(table, given)
    return PeerRun(
        "osu", table.version, table.test.program, statistic, rows,
        facts=_facts(table), missing=[*missing(given), *_missing(table)], doubts=_doubts(table),
    )  # fmt: skip


def _facts(table: Table) -> Mapping[str, Any]:
    names = ("datatype", "memory", "window creation", "synchronization")
    return {"interface": table.library, **{name: table.said[name] for name in names if name in table.said}}


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
