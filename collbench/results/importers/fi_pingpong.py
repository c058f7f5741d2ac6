"""Read the output of libfabric's fi_pingpong, and of fabtests' ping-pongs and bandwidth tests (source of libfabric 2.x).

usec/xfer is the mean time of one message: half the round trip of a ping-pong. Sizes are in units of 1024, truncated to one decimal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.results.importers.importer import ImportedTable, Importer, Reading, TextTable, UserInput, read_tables, without_prefixes
from collbench.results.importers.notes import MissingItem, lacks
from collbench.results.importers.rows import RowKind, is_size, is_time, missing, parse_number, short
from collbench.results.row import Row

_HEADER = re.compile(r"(name\s+)?bytes\s+(#sent\s+#ack|iters)\s+total\s+time\s+MB/sec\s+usec/xfer\s+Mxfers/sec\s*$")
_RANK = re.compile(r"\s*\[rank \d{1,7}\] ?")
_SIZE = re.compile(r"(\d{1,18})(?:\.(\d))?([kmgKMG]?)$")
_PROGRAM = re.compile(r"\b(fi_\w{3,40})\b")
_PROVIDER = re.compile(r"\bfi_\w{3,40}\s.{0,200}?-p\s+[\"']?([\w;]{2,40})")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass
class _PingpongTable(TextTable):
    """The lines below one header. pingpong: the columns are those of fi_pingpong itself."""

    pingpong: bool = False
    provider: str | None = None


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
    program: str = ""
    provider: str | None = None
    for at, line in enumerate(lines, 1):
        text = _RANK.sub("", line, count=1)
        if "usec/xfer" in text and (found := _HEADER.search(text)):
            columns = text[found.start() :].split()
            tables.append(_PingpongTable(at, program, columns=columns, pingpong=found[2].startswith("#sent"), provider=provider))
        elif tables and len(words := text.split()) == len(tables[-1].columns):
            tables[-1].add(at, words)
        elif "fi_" in text and (named := _PROGRAM.search(text)):
            known = _PROVIDER.search(text)
            program, provider = named[1], known[1] if known else provider
    return tables


def _run(table: _PingpongTable, user_input: UserInput) -> ImportedTable:
    operation = _operation(table, user_input)
    half = "half the round trip, the mean over all" if operation == "p2p_latency" else "the mean per message over all"
    kind = RowKind(
        operation, "libfabric", "libfabric", "uint8", 2, user_input.nodes, f"{half} iterations", mode="batched",
        also={"protocol": table.provider and short(table.provider)}, verified=False,
    )  # fmt: skip
    rows = [row for at, words in table.lines if (row := _row(kind, at, words))]
    facts = {"provider": short(table.provider)} if table.provider else {}
    program = table.name or ("fi_pingpong" if table.pingpong else "fabtests")
    unknown = [*missing(user_input.nodes), *lacks(MissingItem.VERSION, MissingItem.VERIFICATION)]
    return ImportedTable("libfabric", None, short(program), kind.statistic, rows, facts=facts, missing=unknown)


def _operation(table: _PingpongTable, user_input: UserInput) -> str:
    if table.pingpong or table.name.endswith("pingpong"):
        return "p2p_latency"
    if table.name.endswith("_bw"):
        return "p2p_bandwidth"
    if user_input.operation in ("p2p_latency", "p2p_bandwidth"):
        return str(user_input.operation)
    raise UsageError(f"the table at line {table.number}: the program of fabtests is unknown: use --operation p2p_latency or p2p_bandwidth")


def _row(kind: RowKind, at: int, words: dict[str, str]) -> Row | None:
    found, micros = _SIZE.match(words["bytes"]), parse_number(words["usec/xfer"])
    unit = _UNITS[found[3].lower()] if found else 0
    size = int(found[1]) * unit + int(found[2] or 0) * unit // 10 if found else 0
    if not is_size(size) or micros is None or not is_time(micros / 1e6):
        return None
    printed = {name: parse_number(words[name]) for name in ("MB/sec", "Mxfers/sec")}
    return kind.row(size, micros / 1e6, count=size, line=at, evidence={"printed": printed})


FI_PINGPONG = Importer("fi-pingpong", "fi_pingpong of libfabric and fabtests", knows, read)
