"""Read the file that rccl-tests writes with -x FILE -Z json|csv: one record per size and placement (Reporter in src/common.cu).

Times are means over the iterations, averaged over the ranks. Older builds write one JSON object per line, and a CSV header without the
column "nodes".
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from collbench.errors import UsageError
from collbench.operations.operation import Operation
from collbench.operations.registry import operations
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.nccl_inspector import objects_in
from collbench.plugins.importers.nccl_tests import PROGRAMS
from collbench.plugins.importers.notes import ImportDoubt, MissingItem, NotInOutput, SkippedLines, SkippedReason, lacks
from collbench.plugins.importers.rows import (
    RowKind,
    contradiction,
    is_size,
    is_time,
    missing,
    printed_rates,
    rank_mismatch,
    rank_range,
    ranks_and_nodes,
    short,
    type_name,
    whole,
    width_of,
)
from collbench.results.row import Row
from collbench.results.store import parse_object

_HEADER = ("size", "type", "redop", "inplace", "time", "algbw", "busbw")  # in each form, in any case of letters
_STATISTIC = "the mean over the iterations, averaged over the ranks"
_MOST_WRONG = 2**62


@dataclass
class _RcclTable:
    """The records of one cycle (-N), collective and number of ranks. doubts: about the records that cannot be read."""

    number: int
    doubts: list[ImportDoubt]
    name: str
    ranks: int | None
    nodes: int | None
    records: list[tuple[int, Mapping[str, str]]] = field(default_factory=list)


def knows(lines: Sequence[str]) -> bool:
    """Return whether these lines have the CSV header, or the keys of a JSON record."""
    if any(_is_header(line) for line in lines):
        return True
    return all(any(f'"{key}"' in line for line in lines) for key in ("busBw", "inPlace", "redop"))


def _is_header(line: str) -> bool:
    words = line.strip().lower().split(",")
    return len(words) < 40 and set(_HEADER) <= set(words) and "#wrong" in words


def _tables(lines: Sequence[str]) -> Iterable[_RcclTable]:
    tables: dict[tuple[str, ...], _RcclTable] = {}
    doubts: list[ImportDoubt] = []
    bad: list[int] = []
    for number, record in _records(lines):
        name = record.get("name", record.get("collective", ""))
        ranks = whole(record.get("ranks", record.get("gpus", "")))
        if not name:
            bad.append(number)
            continue
        key = (record.get("numcycle", ""), name, str(ranks))
        nodes = 1 if "gpus" in record else whole(record.get("nodes", ""))  # without MPI there is one process
        tables.setdefault(key, _RcclTable(number, doubts, name, ranks, nodes)).records.append((number, record))
    doubts += [SkippedLines(len(bad), SkippedReason.UNREADABLE, bad[0])] if bad else []
    return tables.values()


def _records(lines: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (number of the line, values by their names in lower case); no values for a record that cannot be read."""
    header: list[str] = []
    for number, line in enumerate(lines, 1):
        if _is_header(line):
            header = line.strip().lower().split(",")
        elif header and line.strip():
            values = next(csv.reader([line.strip()]), [])
            names = header
            if len(values) == len(header) + 1 and "nodes" not in header:
                names = [*header[:2], "nodes", *header[2:]]
            yield number, dict(zip(names, values, strict=True)) if len(values) == len(names) else {}
    if not header:
        for number, text in objects_in([line.strip().removeprefix("[") for line in lines]):
            try:
                document = parse_object(text.rstrip(",] ").encode())
            except ValueError:
                document = {}
            yield number, {name.lower(): str(value) for name, value in document.items()}


def _runs(table: _RcclTable, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    where = f"the records from line {table.number} on"
    plain = table.name.lower().replace("_", "").replace(" ", "")
    name = "allreduce" if plain == "allreducewithbias" else plain
    if name not in PROGRAMS.values():
        raise UsageError(f"{where}: unknown collective '{short(table.name)}' of rccl-tests")
    operation = operations()[name]
    extent = ranks_and_nodes(user_input, table.ranks, table.nodes, where)
    rows = [row for at, record in table.records if (row := _row(operation, extent.ranks, extent.nodes, at, record)) is not None]
    rates = printed_rates((record.get("algbw", ""), record.get("busbw", "")) for _, record in table.records)
    fitting = rank_range(operation, sorted(rates, reverse=True)[:16])
    doubts = list(table.doubts)
    if fitting is not None and not fitting.holds(extent.ranks):
        doubts.append(rank_mismatch("busBw / algBw", fitting, extent.ranks, name))
    unknown = [*missing(extent.nodes), NotInOutput(MissingItem.PROGRAM, source=f"the collective is {short(table.name)}")]
    unknown += lacks(MissingItem.VERSION, MissingItem.ITERATIONS, MissingItem.LIBRARIES)
    unknown += [] if any(row.checked for row in rows) else lacks(MissingItem.VERIFICATION)
    contradicted = (*extent.contradicted, *contradiction(where, "operation", user_input.operation, name))
    yield ImportedTable("rccl-tests", None, short(table.name), _STATISTIC, rows, missing=unknown, doubts=doubts, contradicted=contradicted)


def _row(operation: Operation, ranks: int, nodes: int | None, at: int, record: Mapping[str, str]) -> Row | None:
    size = whole(record.get("size", ""))
    try:
        time_s = float(record.get("time", "")) / 1e6
    except ValueError:
        return None
    if size is None or not is_size(size) or not is_time(time_s):
        return None
    dtype = type_name(record.get("type", ""))
    redop = record.get("redop", "")
    wrong = whole(record.get("wrong", record.get("#wrong", "")))
    kind = RowKind(
        operation.name, "rccl", "nccl", dtype, ranks, nodes, _STATISTIC, "rocm",
        short(redop) if operation.reduces and redop not in ("", "none") else None, 0 if operation.rooted else None,
        in_place=record.get("inplace") == "1", buffers="rotating",
    )  # fmt: skip
    count = size // (width_of(dtype) or 1) // operation.parts(ranks)
    return kind.row(size, time_s, line=at, count=count, wrong=None if wrong is None else min(wrong, _MOST_WRONG))


RCCL_TESTS_FILE = Importer(
    "rccl-tests-file", "rccl-tests, JSON and CSV (-x FILE -Z FORMAT)", knows, _tables, _runs, output="rccl-tests (-x FILE)", tagged=True
)
