"""Read the output of mpiGraph: two matrices of MB/s (2**20 bytes), of sending and of receiving, for each pair of ranks (source of 1.5).

In step d each rank sends to the rank d places after it and receives from the rank d places before it. All do so at the same time. So a
step is a send-receive with a shift of d. Its row has the time of its slowest rank, the longer one of sending and receiving.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import RowKind, is_size, parse_number, ranks_and_nodes, short
from collbench.plugins.importers.table import MEBIBYTES, Layout, TextTable
from collbench.results.row import Row

_START = re.compile(r"^.{0,200}?START mpiGraph(?: v(?P<version>\S{1,20}))?\s*$")
_LAYOUT = Layout(
    columns=(),
    headings=re.compile(r"(?!)"),  # a line of a matrix names both of its ranks
    begins=_START,
    facts=(re.compile(r"^(?P<name>MsgSize|Times|Window|Procs)\s+(?P<value>\d{1,15})\s*$"),),
    remarks=re.compile(r"^.{1,256}?:\d{1,7} (?:to|from)\s.*"),
)
_ENDS = re.compile(r"(.{1,256}?):(\d{1,7}) (to|from)\s")
_MOST_RANKS = 4096


def _runs(run: TextTable, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    facts = {name: int(value) for name, value in run.facts.items() if name != "version"}
    names: dict[int, str] = {}
    rates: dict[str, dict[int, list[float | None]]] = {"to": {}, "from": {}}  # of each rank, in MiB/s
    for line in run.remarks:
        ends = _ENDS.match(line)
        if ends:
            rank = int(ends[2])
            names[rank] = short(ends[1])
            rates[ends[3]][rank] = [parse_number(word) for word in line[ends.end() :].split()]
    ranks = len(names)
    size = facts.get("MsgSize", 0)
    tables = {
        way: table
        for way, table in rates.items()
        if sorted(table) == list(range(ranks)) and all(len(rates_of_rank) == ranks for rates_of_rank in table.values())
    }
    if not 2 <= ranks <= _MOST_RANKS or not tables:
        raise UsageError(f"line {run.number}: no matrix of mpiGraph is complete: the program was stopped, or the output was cut")
    if not is_size(size):
        raise UsageError(f"line {run.number}: mpiGraph's message size (MsgSize) is missing: use the output from its first line on")
    hosts = [names[rank] for rank in range(ranks)]
    extent = ranks_and_nodes(user_input, ranks, len(set(hosts)), f"line {run.number}")
    iterations = facts.get("Times")
    statistic = f"the mean over {iterations or 'the'} iterations of the slowest rank, sending or receiving, per message"
    kind = RowKind(
        "sendrecv", "mpi", "mpi", "uint8", ranks, extent.nodes, statistic, mode="isolated", window=facts.get("Window"),
        evidence={"iterations": iterations} if iterations else {},
    )  # fmt: skip
    rows: list[Row] = []
    for shift in range(1, ranks):
        pairs = [(rank, (rank + shift) % ranks) for rank in range(ranks)]
        printed = [(tables["to"][sender][receiver], sender, receiver) for sender, receiver in pairs if "to" in tables]
        printed += [(tables["from"][receiver][sender], sender, receiver) for sender, receiver in pairs if "from" in tables]
        measured = [(rate, sender, receiver) for rate, sender, receiver in printed if rate]
        if len(measured) < len(printed) or not measured:
            continue
        least, sender, receiver = min(measured)
        evidence = {
            "slowest_pair": {"from": sender, "to": receiver, "hosts": [hosts[sender], hosts[receiver]]},
            "mean_bytes_per_s": sum(rate for rate, _, _ in measured) / len(measured) * MEBIBYTES,
        }
        row = replace(kind, also={"group": f"shift {shift}"}).row_if_valid(size, size / (least * MEBIBYTES), run.number, evidence=evidence)
        if row:
            rows.append(row)
    missing = lacks(MissingItem.INTERVAL, MissingItem.SAMPLES, MissingItem.RANK_DATA, MissingItem.VERIFICATION)
    if len(tables) < 2:
        missing += lacks(MissingItem.MATRIX)
    yield ImportedTable(
        "mpigraph", short(run.facts["version"]) or None, "mpiGraph", statistic, rows, hosts, facts, missing, (), extent.contradicted
    )


MPIGRAPH = Importer(
    "mpigraph",
    "mpiGraph",
    lines_with(_START, words=["START mpiGraph"]),
    _LAYOUT.tables,
    _runs,
    empty="no matrix below a line 'START mpiGraph' found: use the whole output",
)
