"""Read the output of NetPIPE 3.7 (NPtcp): a ping-pong of two processes, a line for each size, with half of the round trip."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from collbench.plugins.importers.importer import ImportedTable, Importer, TextTable, UserInput, without_prefixes
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import RowKind, missing, parse_number

# `without_prefixes` takes the number of a line ("  0:") for a tag of srun -l.
_LINE = re.compile(r"\s*(?:\d{1,6}:)?\s*(\d{1,18}) bytes\s+\d{1,18} times -->\s+[\d.]{1,18} Mbps in\s+([\d.]{1,18}) usec\s*$")


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines has a size and its time."""
    return any(_LINE.match(line) for line in without_prefixes(lines))


def _tables(lines: Sequence[str]) -> list[TextTable]:
    table = TextTable(1, "NPtcp", columns=["bytes", "usec"])
    for at, line in enumerate(lines, 1):
        if match := _LINE.match(line):
            table.add(at, match.groups())
    return [table]


def _runs(table: TextTable, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    statistic = "half of the round trip, the best of its trials"
    kind = RowKind("p2p_latency", "socket", "NetPIPE", "uint8", 2, user_input.nodes, statistic, mode="batched")
    rows = []
    for at, figures in table.lines:
        micros = parse_number(figures["usec"])
        row = kind.row_if_valid(int(figures["bytes"]), None if micros is None else micros / 1e6, at)
        rows += [row] if row else []
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION, MissingItem.VERIFICATION)]
    yield ImportedTable("netpipe", None, table.name, statistic, rows, missing=unknown)


NETPIPE = Importer("netpipe", "NetPIPE (NPtcp)", knows, _tables, _runs, output="NetPIPE")
