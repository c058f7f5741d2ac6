"""Read the output of mpiGraph: two matrices of MB/s (2**20 bytes), of sending and of receiving, for each pair of ranks (source of 1.5).

In step d each rank sends to the rank d places after it and receives from the rank d places before it. All do so at the same time. So a
step is a send-receive with a shift of d. Its row has the time of its slowest rank, the longer one of sending and receiving.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import RowKind, is_size, parse_number, ranks_and_nodes, short
from collbench.results.row import Row

_START = re.compile(r"START mpiGraph(?: v(\S{1,20}))?\s*$")
_FACT = re.compile(r"(MsgSize|Times|Window|Procs)\s+(\d{1,15})\s*$")
_ENDS = re.compile(r"(.{1,256}?):(\d{1,7}) (to|from)\s")
_MIB = 1 << 20
_MOST_RANKS = 4096


@dataclass
class _Run:
    """One start: the values of its head, the hosts, and by direction ("to", "from") each rank's rates in MiB/s."""

    number: int
    version: str | None
    facts: dict[str, int] = field(default_factory=dict)
    rates: dict[str, dict[int, list[float | None]]] = field(default_factory=lambda: {"to": {}, "from": {}})
    hosts: dict[int, str] = field(default_factory=dict)


def _starts(lines: Sequence[str]) -> list[_Run]:
    runs: list[_Run] = []
    for at, line in enumerate(lines, 1):
        if found := _START.search(line):
            runs.append(_Run(at, found[1] and short(found[1])))
        elif not runs:
            continue
        elif fact := _FACT.match(line):
            runs[-1].facts[fact[1]] = int(fact[2])
        elif len(line) < 16 * _MOST_RANKS and (ends := _ENDS.match(line)):
            rank = int(ends[2])
            runs[-1].hosts[rank] = short(ends[1])
            runs[-1].rates[ends[3]][rank] = [parse_number(word) for word in line[ends.end() :].split()]
    return runs


def _tables(run: _Run, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    ranks, size = len(run.hosts), run.facts.get("MsgSize", 0)
    whole = list(range(ranks))
    tables = {
        way: table for way, table in run.rates.items() if sorted(table) == whole and all(len(rates) == ranks for rates in table.values())
    }
    if not 2 <= ranks <= _MOST_RANKS or not tables:
        raise UsageError(f"line {run.number}: no matrix of mpiGraph is complete: the program was stopped, or the output was cut")
    if not is_size(size):
        raise UsageError(f"line {run.number}: mpiGraph's message size (MsgSize) is missing: use the output from its first line on")
    hosts = [run.hosts[rank] for rank in range(ranks)]
    extent = ranks_and_nodes(user_input, ranks, len(set(hosts)), f"line {run.number}")
    iterations = run.facts.get("Times")
    statistic = f"the mean over {iterations or 'the'} iterations of the slowest rank, sending or receiving, per message"
    kind = RowKind(
        "sendrecv", "mpi", "mpi", "uint8", ranks, extent.nodes, statistic, mode="isolated", window=run.facts.get("Window"),
        evidence={"iterations": iterations} if iterations else {},
    )  # fmt: skip
    rows: list[Row] = []
    for shift in range(1, ranks):
        pairs = [(rank, (rank + shift) % ranks) for rank in range(ranks)]
        rates = [(tables["to"][a][b], a, b) for a, b in pairs if "to" in tables]
        rates += [(tables["from"][b][a], a, b) for a, b in pairs if "from" in tables]
        known = [(rate, a, b) for rate, a, b in rates if rate]
        if len(known) < len(rates) or not known:
            continue
        least, a, b = min(known)
        evidence = {
            "slowest_pair": {"from": a, "to": b, "hosts": [hosts[a], hosts[b]]},
            "mean_bytes_per_s": sum(rate for rate, _, _ in known) / len(known) * _MIB,
        }
        row = replace(kind, also={"group": f"shift {shift}"}).row_if_valid(size, size / (least * _MIB), run.number, evidence=evidence)
        rows += [row] if row else []
    missing = lacks(MissingItem.INTERVAL, MissingItem.SAMPLES, MissingItem.RANK_DATA, MissingItem.VERIFICATION)
    missing += [] if len(tables) == 2 else lacks(MissingItem.MATRIX)
    yield ImportedTable("mpigraph", run.version, "mpiGraph", statistic, rows, hosts, dict(run.facts), missing, (), extent.contradicted)


MPIGRAPH = Importer(
    "mpigraph", "mpiGraph", lines_with(_START), _starts, _tables, empty="no line 'START mpiGraph' found: use the whole output"
)
