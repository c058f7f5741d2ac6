"""Read the output of libfabric's fi_pingpong, and of fabtests' ping-pongs and bandwidth tests (source of libfabric 2.x).

usec/xfer is the mean time of one message: half the round trip of a ping-pong. Sizes are in units of 1024, truncated to one decimal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, Reading, TextTable, UserInput, read_tables, without_prefixes
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import RowKind, is_size, is_time, missing, parse_number, short
from collbench.results.row import Row

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

    @property
    def verified(self) -> bool:
        """Whether the command compares received with sent data."""
        return _VERIFYING[self.pingpong].search(self.command.options) is not None


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines is the header."""
    return any(_HEADER.search(line) for line in lines if "usec/xfer" in line)


def read(lines: Sequence[str], user_input: UserInput) -> Reading:
    """Return one run per table; both ends may print one. Raises UsageError if there is none, or if the kind of test is unclear."""
    if user_input.ranks not in (None, 2):
        raise UsageError(f"--ranks {user_input.ranks} is not valid for fi_pingpong, which has 2 ranks: omit --ranks")
    tables = [table for table in _tables(without_prefixes(lines)) if table.lines]
    return read_tables(tables, lambda table: [_run(table, user_input)], tool="fi_pingpong")


def _tables(lines: Sequence[str]) -> list[_PingpongTable]:
    tables: list[_PingpongTable] = []
    command = _FabtestsCommand()
    for at, text in enumerate(lines, 1):
        if "usec/xfer" in text and (found := _HEADER.search(text)):
            columns = text[found.start() :].split()
            tables.append(_PingpongTable(at, command.program, columns=columns, pingpong=found[2].startswith("#sent"), command=command))
        elif "fi_" in text and (named := _PROGRAM.search(text)):
            command = _command(text, named, command)
        elif tables and _is_row(words := text.split(), tables[-1].columns):
            tables[-1].add(at, words)
    return tables


def _command(text: str, named: re.Match[str], before: _FabtestsCommand) -> _FabtestsCommand:
    """Return what this line shows: a command, or only the name of a program. A name that was known does not replace its command."""
    program, options = named[1], named[2]
    if program == before.program and " -" not in options:
        return before
    provider = _PROVIDER.search(options) or _PROVIDER.search(text)
    size = _EXACT_SIZE.search(options)
    return _FabtestsCommand(program, provider[1] if provider else None, int(size[1]) if size else None, options)


def _is_row(words: Sequence[str], columns: Sequence[str]) -> bool:
    """Return whether the words are a line of the table; a command may have as many words."""
    if len(words) != len(columns):
        return False
    cells = dict(zip(columns, words, strict=True))
    return _SIZE.match(cells["bytes"]) is not None and parse_number(cells["usec/xfer"]) is not None


def _run(table: _PingpongTable, user_input: UserInput) -> ImportedTable:
    operation = _operation(table, user_input)
    provider = table.command.provider
    half = "half the round trip, the mean over all" if operation == "p2p_latency" else "the mean per message over all"
    kind = RowKind(
        operation, "libfabric", "libfabric", "uint8", 2, user_input.nodes, f"{half} iterations", mode="batched",
        also={"protocol": provider and short(provider)}, verified=table.verified,
    )  # fmt: skip
    rows = [row for at, words in table.lines if (row := _row(kind, at, words, table.command.size))]
    facts = {"provider": short(provider)} if provider else {}
    program = table.name or ("fi_pingpong" if table.pingpong else "fabtests")
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION)]
    unknown += [] if table.verified else lacks(MissingItem.VERIFICATION)
    return ImportedTable("libfabric", None, short(program), kind.statistic, rows, facts=facts, missing=unknown)


def _operation(table: _PingpongTable, user_input: UserInput) -> str:
    if table.pingpong or table.name.endswith("pingpong"):
        return "p2p_latency"
    if table.name.endswith("_bw"):
        return "p2p_bandwidth"
    if user_input.operation in ("p2p_latency", "p2p_bandwidth"):
        return str(user_input.operation)
    raise UsageError(f"the table at line {table.number}: the program of fabtests is unknown: use --operation p2p_latency or p2p_bandwidth")


def _row(kind: RowKind, at: int, words: dict[str, str], exact: int | None) -> Row | None:
    found, micros = _SIZE.match(words["bytes"]), parse_number(words["usec/xfer"])
    size = _size(found, exact) if found else 0
    if not is_size(size) or micros is None or not is_time(micros / 1e6):
        return None
    printed = {name: parse_number(words[name]) for name in ("MB/sec", "Mxfers/sec")}
    checked = int(kind.verified)
    return kind.row(size, micros / 1e6, count=size, line=at, checked=checked, wrong=0 if checked else None, evidence={"printed": printed})


def _size(printed: re.Match[str], exact: int | None) -> int:
    """Return the bytes of a printed size, which is truncated: the exact ones of the command if they are printed so."""
    unit = _UNITS[printed[3].lower()]
    size = int(printed[1]) * unit + int(printed[2] or 0) * unit // 10
    tenth = unit // 10 + 1 if printed[2] or int(printed[1]) < 10 else unit
    return exact if exact is not None and size <= exact < size + tenth else size


FI_PINGPONG = Importer("fi-pingpong", "fi_pingpong of libfabric and fabtests", knows, read)
