"""Read the output of NetPIPE 3.7 (NPtcp): a ping-pong of two processes, a line for each size, with half of the round trip."""

from __future__ import annotations

import re
from collections.abc import Sequence

from collbench.plugins.importers.importer import ImportedTable, Importer, Reading, TextTable, UserInput, read_tables, without_prefixes
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import RowKind, is_size, is_time, missing, parse_number

# `without_prefixes` takes the number of a line ("  0:") for a tag of srun -l.
_LINE = re.compile(r"\s*(?:\d{1,6}:)?\s*(\d{1,18}) bytes\s+\d{1,18} times -->\s+[\d.]{1,18} Mbps in\s+([\d.]{1,18}) usec\s*$")


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines has a size and its time."""
    return any(_LINE.match(line) for line in without_prefixes(lines))


def read(lines: Sequence[str], user_input: UserInput) -> Reading:
    """Return one run. Raises UsageError if no line has a result."""
    table = TextTable(1, "NPtcp", columns=["bytes", "usec"])
    for at, line in enumerate(without_prefixes(lines), 1):
        if match := _LINE.match(line):
            table.add(at, match.groups())
    return read_tables([table], lambda each: [_run(each, user_input)], "NetPIPE")


def _run(table: TextTable, user_input: UserInput) -> ImportedTable:
    statistic = "half of the round trip, the best of its trials"
    kind = RowKind("p2p_latency", "socket", "NetPIPE", "uint8", 2, user_input.nodes, statistic, mode="batched")
    rows = [
        kind.row(size, micros / 1e6, count=size, line=at)
        for at, figures in table.lines
        if (micros := parse_number(figures["usec"])) is not None and is_time(micros / 1e6) and is_size(size := int(figures["bytes"]))
    ]
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION, MissingItem.VERIFICATION)]
    return ImportedTable("netpipe", None, table.name, statistic, rows, missing=unknown)


NETPIPE = Importer("netpipe", "NetPIPE (NPtcp)", knows, read)
