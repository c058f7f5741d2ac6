"""Read the output of libfabric's fi_pingpong, and of fabtests' ping-pongs and bandwidth tests (source of libfabric 2.x).

usec/xfer is the mean time of one message: half the round trip of a ping-pong. Sizes are in units of 1024, truncated to one decimal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, TextTable, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import RowKind, missing, parse_number, short

_HEADER = re.compile(r"(name\s+)?bytes\s+(#sent\s+#ack|iters)\s+total\s+time\s+MB/sec\s+usec/xfer\s+Mxfers/sec\s*$")
_SIZE = re.compile(r"(\d{1,18})(?:\.(\d))?([kmgKMG]?)$")
_PROGRAM = re.compile(r"(?:^|[\s/\"'`=#])(fi_(?!info\b)[a-z0-9_]{3,40})(?=[\s\"'`:,;.)]|$)(.{0,4000})")
_PROVIDER = re.compile(r"(?:^|\s)(?:-p\s{0,4}|FI_PROVIDER=)[\"']?([\w;]{2,40})")
_EXACT_SIZE = re.compile(r"\s-S\s{0,4}(\d{1,18})(?=\s|$)")
_VERIFYING = {True: re.compile(r"\s-c(?=\s|$)"), False: re.compile(r"\s-v(?=\s|$)")}  # by: fi_pingpong itself
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class _FabtestsCommand:
    """What the last named program and its options show. size: -S, which the table truncates."""

    program: str = ""
    provider: str | None = None
    size: int | None = None
    options: str = ""


@dataclass
class _PingpongTable(TextTable):
    """The lines below one header. pingpong: the columns are those of fi_pingpong itself."""

    pingpong: bool = False
    command: _FabtestsCommand = _FabtestsCommand()


def _tables(lines: Sequence[str]) -> list[_PingpongTable]:
    tables: list[_PingpongTable] = []
    command = _FabtestsCommand()
    for at, text in enumerate(lines, 1):
        if "usec/xfer" in text and (found := _HEADER.search(text)):
            columns = text[found.start() :].split()
            tables.append(_PingpongTable(at, command.program, columns=columns, pingpong=found[2].startswith("#sent"), command=command))
        elif "fi_" in text and (named := _PROGRAM.search(text)):
            command = _command(text, named, command)
        elif tables and len(words := text.split()) == len(tables[-1].columns):
            tables[-1].add(at, words)
            cells = tables[-1].lines[-1][1]
            if not _SIZE.match(cells["bytes"]) or parse_number(cells["usec/xfer"]) is None:  # a command with as many words
                tables[-1].lines.pop()
    return [table for table in tables if table.lines]


def _command(text: str, named: re.Match[str], before: _FabtestsCommand) -> _FabtestsCommand:
    """Return what this line shows: a command, or only the name of a program. A name that was known does not replace its command."""
    program, options = named[1], named[2]
    if program == before.program and " -" not in options:
        return before
    provider = _PROVIDER.search(options) or _PROVIDER.search(text)
    size = _EXACT_SIZE.search(options)
    return _FabtestsCommand(program, provider[1] if provider else None, int(size[1]) if size else None, options)


def _runs(table: _PingpongTable, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    if table.pingpong or table.name.endswith("pingpong"):
        operation = "p2p_latency"
    elif table.name.endswith("_bw"):
        operation = "p2p_bandwidth"
    elif user_input.operation in ("p2p_latency", "p2p_bandwidth"):
        operation = str(user_input.operation)
    else:
        remedy = "use --operation p2p_latency or p2p_bandwidth"
        raise UsageError(f"the table at line {table.number}: the program of fabtests is unknown: {remedy}")
    provider = table.command.provider
    verified = _VERIFYING[table.pingpong].search(table.command.options) is not None
    half = "half the round trip, the mean over all" if operation == "p2p_latency" else "the mean per message over all"
    kind = RowKind(
        operation, "libfabric", "libfabric", "uint8", 2, user_input.nodes, f"{half} iterations", mode="batched",
        also={"protocol": provider and short(provider)}, verified=verified,
    )  # fmt: skip
    rows = []
    for at, words in table.lines:
        size, micros = _SIZE.match(words["bytes"]), parse_number(words["usec/xfer"])
        printed = {name: words[name] for name in ("MB/sec", "Mxfers/sec")}
        if size is not None and micros is not None:
            row = kind.row_if_valid(_size(size, table.command.size), micros / 1e6, at, printed=printed, wrong=0 if verified else None)
            rows += [row] if row else []
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION)]
    unknown += [] if verified else lacks(MissingItem.VERIFICATION)
    program = table.name or ("fi_pingpong" if table.pingpong else "fabtests")
    facts = {"provider": short(provider)} if provider else {}
    yield ImportedTable("libfabric", None, short(program), kind.statistic, rows, facts=facts, missing=unknown)


def _size(printed: re.Match[str], exact: int | None) -> int:
    """Return the bytes of a printed size, which is truncated: the exact ones of the command if they are printed so."""
    unit = _UNITS[printed[3].lower()]
    size = int(printed[1]) * unit + int(printed[2] or 0) * unit // 10
    tenth = unit // 10 + 1 if printed[2] or int(printed[1]) < 10 else unit
    return exact if exact is not None and size <= exact < size + tenth else size


FI_PINGPONG = Importer(
    "fi-pingpong",
    "fi_pingpong of libfabric and fabtests",
    lines_with(_HEADER, words=["usec/xfer"]),
    _tables,
    _runs,
    output="fi_pingpong",
    ranks=2,
)
