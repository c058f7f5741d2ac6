"""Read the output of libfabric's fi_pingpong, and of fabtests' ping-pongs and bandwidth tests (source of libfabric 2.x).

usec/xfer is the mean time of one message: half the round trip of a ping-pong. Sizes are in units of 1024, truncated to one decimal.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import RowKind, missing, short, whole
from collbench.plugins.importers.table import MICROSECONDS, Layout, TextColumn, TextTable

_HEADER = re.compile(r"bytes\s+(?:#sent\s+#ack|iters)\s+total\s+time\s+MB/sec\s+usec/xfer\s+Mxfers/sec\s*$")
_LAYOUT = Layout(
    columns=(
        TextColumn("bytes", "size", shown=False),
        TextColumn("usec/xfer", "time", MICROSECONDS, shown=False),
        TextColumn("MB/sec|Mxfers/sec"),
        TextColumn("#ack", "acknowledged", shown=False),
        TextColumn("name|#sent|iters|total|time", "other", shown=False),
    ),
    headings=_HEADER,
    figures=re.compile(r"(?:\S{1,80}\s{1,40})?\d{1,18}(?:\.\d)?[kmgKMG]?(?:\s{1,40}[=\d.]+[kmgKMGs]?){2,7}\s*$"),  # not a command
    inherits=False,
)
_SIZE = re.compile(r"(\d{1,18})(?:\.(\d))?([kmgKMG]?)$")
_PROGRAM = re.compile(r"(?:^|[\s/\"'`=#])(fi_(?!info\b)[a-z0-9_]{3,40})(?=[\s\"'`:,;.)]|$)(.{0,4000})")
_PROVIDER = re.compile(r"(?:^|\s)(?:-p\s{0,4}|FI_PROVIDER=)[\"']?([\w;]{2,40})")
_EXACT_SIZE = re.compile(r"\s-S\s{0,4}(\d{1,18})(?=\s|$)")
_VERIFYING = {True: re.compile(r"\s-c(?=\s|$)"), False: re.compile(r"\s-v(?=\s|$)")}  # by: fi_pingpong itself
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _tables(lines: Sequence[str]) -> list[TextTable]:
    """Return the tables; the last command before a table is in its facts."""
    commands: list[tuple[int, dict[str, str]]] = [(0, {"program": "", "options": "", "provider": "", "size": ""})]
    for number, line in enumerate(lines, 1):
        match = _PROGRAM.search(line) if "fi_" in line else None
        if match is None:
            continue
        program, options = match.groups()
        if program == commands[-1][1]["program"] and " -" not in options:  # only the name of that program
            continue
        provider = _PROVIDER.search(options) or _PROVIDER.search(line)
        size = _EXACT_SIZE.search(options)
        command = {"program": program, "options": options, "provider": "", "size": ""}
        if provider:
            command["provider"] = provider[1]
        if size:
            command["size"] = size[1]
        commands.append((number, command))
    tables = [table for table in _LAYOUT.tables(lines) if table.is_begun]
    for table in tables:
        table.facts = commands[bisect_left(commands, table.number, key=itemgetter(0)) - 1][1]
    return tables


def _runs(table: TextTable, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    program = table.facts["program"]
    provider = short(table.facts["provider"])
    is_pingpong = "#ack" in table.headings
    if is_pingpong or program.endswith("pingpong"):
        operation = "p2p_latency"
    elif program.endswith("_bw"):
        operation = "p2p_bandwidth"
    elif user_input.operation in ("p2p_latency", "p2p_bandwidth"):
        operation = str(user_input.operation)
    else:
        where = f"the table at line {table.number}"
        raise UsageError(f"{where}: the program of fabtests is unknown: use --operation p2p_latency or p2p_bandwidth")
    verified = _VERIFYING[is_pingpong].search(table.facts["options"]) is not None
    half = "half the round trip, the mean over all" if operation == "p2p_latency" else "the mean per message over all"
    kind = RowKind(
        operation, "libfabric", "libfabric", "uint8", 2, user_input.nodes, f"{half} iterations", mode="batched",
        also={"protocol": provider or None}, verified=verified,
    )  # fmt: skip
    rows = []
    for figures in table.figures():
        size = _SIZE.match(figures.words["size"])
        if size is None:
            table.unreadable.append(figures.line)
            continue
        row = kind.row_if_valid(
            _size(size, whole(table.facts["size"])), figures.time_s, figures.line, printed=figures.printed, wrong=0 if verified else None
        )
        if row:
            rows.append(row)
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION)]
    if not verified:
        unknown += lacks(MissingItem.VERIFICATION)
    facts = {"provider": provider} if provider else {}
    name = short(program or ("fi_pingpong" if is_pingpong else "fabtests"))
    yield ImportedTable("libfabric", None, name, kind.statistic, rows, facts=facts, missing=unknown, doubts=table.doubts())


def _size(printed: re.Match[str], exact: int | None) -> int:
    """Return the bytes of a printed size, which is truncated: the exact ones of the command if they are printed so."""
    unit = _UNITS[printed[3].lower()]
    size = int(printed[1]) * unit + int(printed[2] or 0) * unit // 10
    rounding = unit // 10 + 1 if printed[2] or int(printed[1]) < 10 else unit
    return exact if exact is not None and size <= exact < size + rounding else size


FI_PINGPONG = Importer(
    "fi-pingpong",
    "fi_pingpong of libfabric and fabtests",
    lines_with(_HEADER, words=["usec/xfer"]),
    _tables,
    _runs,
    output="fi_pingpong",
    ranks=2,
)
