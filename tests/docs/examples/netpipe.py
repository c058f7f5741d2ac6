"""Read the output of NetPIPE 3.7 (NPtcp): a ping-pong of two processes, a line for each size, with half of the round trip."""

from __future__ import annotations

import re
from collections.abc import Sequence

from collbench.results.importers.importer import ImportedTable, Importer, Reading, UserInput, without_prefixes
from collbench.results.importers.notes import MissingItem, lacks
from collbench.results.importers.rows import RowKind, is_size, is_time, missing, nonempty, parse_number

# `without_prefixes` takes the number of a line ("  0:") for a tag of srun -l.
_LINE = re.compile(r"\s*(?:\d{1,6}:)?\s*(\d{1,18}) bytes\s+\d{1,18} times -->\s+[\d.]{1,18} Mbps in\s+([\d.]{1,18}) usec\s*$")


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines has a size and its time."""
    return any(_LINE.match(line) for line in without_prefixes(lines))


def read(lines: Sequence[str], user_input: UserInput) -> Reading:
    """Return one run. Raises UsageError if no line has a result."""
    statistic = "half of the round trip, the best of its trials"
    kind = RowKind("p2p_latency", "socket", "NetPIPE", "uint8", 2, user_input.nodes, statistic, mode="batched")
    found = [(at, *match.groups()) for at, line in enumerate(without_prefixes(lines), 1) if (match := _LINE.match(line))]
    rows = [
        kind.row(int(size), micros / 1e6, count=int(size), line=at)
        for at, size, text in found
        if (micros := parse_number(text)) is not None and is_time(micros / 1e6) and is_size(int(size))
    ]
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION, MissingItem.VERIFICATION)]
    return nonempty(Reading([ImportedTable("netpipe", None, "NPtcp", statistic, rows, missing=unknown)]), "NetPIPE")


NETPIPE = Importer("netpipe", "NetPIPE (NPtcp)", knows, read)
