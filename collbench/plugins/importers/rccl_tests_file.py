"""Read the file that rccl-tests writes with -x FILE -Z json|csv: one record per size and placement (Reporter in src/common.cu).

Times are means over the iterations, averaged over the ranks. Older builds write one JSON object per line, and a CSV header without the
column "nodes".
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence

from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.nccl_inspector import objects_in
from collbench.plugins.importers.nccl_tests import PROGRAMS
from collbench.plugins.importers.notes import MissingItem, NotInOutput, lacks
from collbench.plugins.importers.rows import (
    RowKind,
    contradiction,
    is_size,
    missing,
    rank_doubts,
    ranks_and_nodes,
    short,
    type_name,
    whole,
    width_of,
)
from collbench.plugins.importers.table import MICROSECONDS, Layout, TextColumn, TextTable
from collbench.results.row import Row
from collbench.results.store import parse_object

_HEADER = ("size", "type", "redop", "inplace", "time", "algbw", "busbw")  # in each form, in any case of letters
_STATISTIC = "the mean over the iterations, averaged over the ranks"
_MOST_WRONG = 2**62
_LAYOUT = Layout(
    columns=(
        TextColumn("size", "size"),
        TextColumn("time", "time", MICROSECONDS),
        TextColumn("wrong", "wrong"),
        TextColumn("#wrong", "wrong"),
        *(TextColumn(name, name) for name in ("type", "redop", "inplace", "algbw", "busbw")),
    )
)


def knows(lines: Sequence[str]) -> bool:
    """Return whether these lines have the CSV header, or the keys of a JSON record."""
    if any(_is_header(line) for line in lines):
        return True
    return all(any(f'"{key}"' in line for line in lines) for key in ("busBw", "inPlace", "redop"))


def _is_header(line: str) -> bool:
    words = line.strip().lower().split(",")
    return len(words) < 40 and set(_HEADER) <= set(words) and "#wrong" in words


def _tables(lines: Sequence[str]) -> Iterable[TextTable]:
    """Return the records of each cycle (-N), collective and number of ranks."""
    tables: dict[tuple[str, ...], TextTable] = {}
    bad: list[int] = []
    for number, record in _records(lines):
        name = record.get("name", record.get("collective", ""))
        ranks = record.get("ranks", record.get("gpus", ""))
        if not name:
            bad.append(number)
            continue
        nodes = "1" if "gpus" in record else record.get("nodes", "")  # without MPI there is one process
        columns = [(heading, column) for heading, column in _LAYOUT.named_columns if heading in record]
        table = TextTable(number, _LAYOUT, {"name": name, "ranks": ranks, "nodes": nodes}, columns)
        tables.setdefault((record.get("numcycle", ""), name, ranks), table).lines.append((number, record))
    for table in tables.values():
        table.unreadable += bad
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


def _runs(table: TextTable, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    where = f"the records from line {table.number} on"
    collective = short(table.facts["name"])
    plain = table.facts["name"].lower().replace("_", "").replace(" ", "")
    name = "allreduce" if plain == "allreducewithbias" else plain
    if name not in PROGRAMS.values():
        raise UsageError(f"{where}: unknown collective '{collective}' of rccl-tests")
    operation = operations()[name]
    extent = ranks_and_nodes(user_input, whole(table.facts["ranks"]), whole(table.facts["nodes"]), where)
    rows: list[Row] = []
    for figures in table.figures():
        if figures.size is None or not is_size(figures.size) or figures.time_s is None:
            table.unreadable.append(figures.line)
            continue
        dtype = type_name(figures.words.get("type", ""))
        redop = figures.words.get("redop", "none")
        wrong = whole(figures.words.get("wrong", ""))
        kind = RowKind(
            name, "rccl", "nccl", dtype, extent.ranks, extent.nodes, _STATISTIC, "rocm",
            short(redop) if operation.reduces and redop not in ("", "none") else None, 0 if operation.rooted else None,
            in_place=figures.words.get("inplace") == "1", buffers="rotating",
        )  # fmt: skip
        count = figures.size // (width_of(dtype) or 1) // operation.parts(extent.ranks)
        wrong = None if wrong is None else min(wrong, _MOST_WRONG)
        rows.append(kind.row(figures.size, figures.time_s, line=figures.line, count=count, wrong=wrong))
    rates = ((record.get("algbw", ""), record.get("busbw", "")) for _, record in table.lines)
    doubts = [*table.doubts(), *rank_doubts("busBw / algBw", operation, rates, extent.ranks)]
    unknown = [*missing(extent.nodes), NotInOutput(MissingItem.PROGRAM, source=f"the collective is {collective}")]
    unknown += lacks(MissingItem.VERSION, MissingItem.ITERATIONS, MissingItem.LIBRARIES)
    if not any(row.checked for row in rows):
        unknown += lacks(MissingItem.VERIFICATION)
    contradicted = (*extent.contradicted, *contradiction(where, "operation", user_input.operation, name))
    yield ImportedTable("rccl-tests", None, collective, _STATISTIC, rows, missing=unknown, doubts=doubts, contradicted=contradicted)


RCCL_TESTS_FILE = Importer(
    "rccl-tests-file", "rccl-tests, JSON and CSV (-x FILE -Z FORMAT)", knows, _tables, _runs, output="rccl-tests (-x FILE)", tagged=True
)
