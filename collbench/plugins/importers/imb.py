"""Read the output of the Intel MPI Benchmarks: IMB-MPI1 and IMB-NBC completely, of the others the times.

The figures (source of 2021.11): each rank's mean over the repetitions; t_min and t_max are those of the fastest and the slowest rank, and
t_avg their mean. The row's time is t_max, from which IMB computes its Mbytes/sec (10**6 bytes since version 2019; not used here).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts, start_facts, with_hosts
from collbench.plugins.importers.notes import MissingItem, NotInOutput, SkippedLines, SkippedReason
from collbench.plugins.importers.rows import (
    MOST_RANKS,
    MPI_COLLECTIVES,
    NO_FIGURES,
    Meaning,
    RowKind,
    is_size,
    is_time,
    messages_per_s,
    missing,
    of_all_pairs,
    short,
    type_name,
    whole,
    width_of,
)
from collbench.plugins.importers.table import MICROSECONDS, NO_TIME, Figures, Layout, TextColumn, TextTable
from collbench.results.row import Row
from collbench.units import plural

_LISTED = 1024
_TURNED_ROUND = 2017  # the version that changed both defaults
_REDUCE_SCATTER_BY_PARTS = (2019, 1)  # before, MPI_Reduce_scatter divided the printed size among the ranks
_VERSION = re.compile(
    r"^#\s{1,40}Intel ?\(R\) MPI Benchmark(?:s| Suite)? {1,4}(?:V(?:ersion)? ?)?(?P<version>[\w.]{1,20}(?: Update \d{1,3})?)"
    r"(?:.{0,200}?\b(?P<part>MPI-1|NBC|RMA|EXT|MPI-2|IO|MPI-4|MT|P2P) part)?",
    re.IGNORECASE,
)
_BENCHMARK = re.compile(r"^# Benchmarking (?:Multi-)?(?P<benchmark>\S{1,64})")
_LAYOUT = Layout(
    columns=(
        TextColumn("#bytes", "size", shown=False),
        TextColumn(r"t_pure\[usec\]", "time", MICROSECONDS),
        TextColumn(r"t_max\[usec\]", "time", MICROSECONDS),
        TextColumn(r"\bt\[usec\]", "time", MICROSECONDS),
        TextColumn(r"t_avg\[usec\]", "rank_mean", MICROSECONDS),
        TextColumn("Mbytes/sec", "megabytes"),
        TextColumn("Msg/sec", "messages"),
        TextColumn("defects", "wrong", shown=False),
        TextColumn("Group", "group", shown=False),
        TextColumn(r"#repetitions|t_\w+\[usec\]|overlap\[%\]"),
    ),
    headings=re.compile(r"^\s*(?:#bytes|#repetitions|Group)\s"),  # behind a launcher's tag the titles may lack their blank
    figures=re.compile(r"\s*\d+\s"),  # not "15: Error Reduce_scatter,size = 4,sample #0"
    failure=re.compile(r"\b(?:time-out|int-overflow|out-of-mem)\b.*"),
    begins=_BENCHMARK,
    facts=(
        re.compile(r"^# #processes = (?P<ranks>\d{1,9})"),
        re.compile(r"^# \( ?(?P<groups>\d{1,9}) groups of (?P<ranks>\d{1,9}) processes each"),
        re.compile(r"^#\s{1,40}MODE: (?P<mode>(?:NON-)?AGGREGATE)\b"),  # of one-sided benchmarks
    ),
    shared=(
        _VERSION,
        re.compile(
            r"^# (?P<name>Machine|System|Release|MPI Version|MPI_Datatype(?: for reductions)?|MPI_Op|Minimum message length in bytes)"
            r"\s*:\s*(?P<value>.*)$"
        ),
        re.compile(r"^# (?P<command>\S*IMB-\w+.*)$"),
    ),
    remarks=re.compile(r"^#(?: Group +\d+:)?(?: +\d{1,9})+\s*$"),
)


class ImbBlock(msgspec.Struct, frozen=True, dict=True):
    """One benchmark's part of the output."""

    table: TextTable

    @property
    def number(self) -> int:
        """Return the number of the first line."""
        return self.table.number

    @property
    def group_size(self) -> int:
        """The ranks of each group."""
        return int(self.table.facts.get("ranks") or 0)

    @property
    def concurrent(self) -> int:
        """The number of groups that ran at the same time."""
        return int(self.table.facts.get("groups") or 1)

    @property
    def ranks(self) -> int:
        """The ranks that took part, in all groups together."""
        return self.group_size * self.concurrent

    @cached_property
    def groups(self) -> list[list[int]]:
        """The ranks of each group, if several ran at the same time."""
        groups: list[list[int]] = []
        for line in self.table.remarks:
            ranks = [int(rank) for rank in line.rpartition(":")[2].lstrip("#").split()]
            if ":" in line:
                groups.append(ranks)
            elif groups:
                groups[-1] += ranks
        return groups


_BENCHMARKS = {
    **MPI_COLLECTIVES,
    "pingpong": Meaning("p2p_latency", "p2p_latency", pairs="many"),
    "pingping": Meaning("pingping", "p2p_latency", pairs="many"),
    "sendrecv": Meaning("sendrecv", "sendrecv"),
    "exchange": Meaning("exchange", None),
    "uniband": Meaning("multipair_bandwidth", "multipair_bandwidth", pairs="many"),
    "biband": Meaning("multipair_bidirectional", "multipair_bidirectional", pairs="many", ways=2),
}


def _meaning(name: str) -> Meaning:
    plain = name.lower()
    suffix = next((suffix for suffix in ("specificsource", "anysource") if plain.endswith(suffix)), "")
    base = plain.removesuffix(suffix)
    if base in _BENCHMARKS:
        meaning = _BENCHMARKS[base]
        return meaning if base == plain else replace(meaning, operation=f"{meaning.operation}_{suffix}")
    blocking = base.removesuffix("_pure").removeprefix("i")
    if base.startswith("i") and blocking in _BENCHMARKS:
        meaning = _BENCHMARKS[blocking]
        return replace(meaning, operation=f"i{meaning.operation}{'_pure' if base.endswith('_pure') else ''}")
    return Meaning("".join(letter if letter.isalnum() else "_" for letter in base) or "unnamed", None)


def _number_of(version: str | None) -> tuple[int, int] | None:
    """Return (2019, 1) for "2019 Update 1" and (2021, 11) for "2021.11", None if the version is not known."""
    numbers = [int(number) for number in re.findall(r"\d{1,9}", version or "")]
    return (numbers[0], numbers[1] if numbers[1:] else 0) if numbers else None


def _kind(block: ImbBlock, name: str, meaning: Meaning, nodes: int | None) -> RowKind:
    facts = block.table.facts
    headings = block.table.headings
    if not 1 <= block.ranks <= MOST_RANKS:
        raise UsageError(f"line {block.number}: the number of processes of {name} is missing: use the whole output of IMB")
    statistic = "mean per message: the rate over all repetitions, turned into a time"
    if "t_pure[usec]" in headings:
        statistic = "mean over the repetitions, of the communication alone, on the slowest rank"
    elif "t[usec]" in headings or "t_max[usec]" in headings:
        half = "half the round trips, mean" if name.lower().startswith("pingpong") else "mean"
        statistic = f"{half} over the repetitions on the slowest rank"
    reducing = meaning.reduces
    printed_type = short(facts.get("MPI_Datatype for reductions" if reducing else "MPI_Datatype", ""))
    dtype = {"MPI_BYTE": "uint8", "MPI_CHAR": "int8", "MPI_FLOAT": "float32", "MPI_DOUBLE": "float64", "MPI_INT": "int32"}.get(printed_type)
    redop = short(facts.get("MPI_Op", "MPI_SUM")).removeprefix("MPI_").lower()
    command = facts.get("command", "").split()
    window = None  # the default is not printed, and differs between versions
    if meaning.aggregate and "-window_size" in command[:-1]:
        window = whole(command[command.index("-window_size") + 1])
    if not dtype and printed_type:
        dtype = type_name(printed_type)
    return RowKind(
        meaning.operation, "mpi", "mpi", dtype or ("float32" if reducing else "uint8"),
        2 if meaning.pairs and block.group_size == 2 and block.concurrent == 1 else block.ranks,
        nodes, statistic, redop=redop if reducing else None,
        root=0 if meaning.rooted and not _switched("root_shift", facts) else None, in_place=meaning.like == "broadcast",
        mode="batched" if meaning.pairs or meaning.like in ("sendrecv", None) or not _switched("sync", facts) else "isolated",
        buffers="rotating" if "-off_cache" in facts.get("command", "") else "fixed", like=meaning.like, also=_group_fields(block, meaning),
        window=window,
    )  # fmt: skip


def _switched(option: str, facts: Mapping[str, str]) -> bool:
    """Return whether ranks synchronize after each iteration ("sync"), or the root rotates ("root_shift"); 2017 inverted both defaults."""
    words = facts.get("command", "").split()
    value = words[words.index(f"-{option}") + 1 :][:1] if f"-{option}" in words else []
    if value:
        return value[0].lower() in ("1", "on", "yes", "true", "enable")
    number = _number_of(facts.get("version"))
    return (option == "root_shift") == (number is not None and number[0] < _TURNED_ROUND)


def _group_fields(block: ImbBlock, meaning: Meaning) -> dict[str, Any]:
    """Return the groups that ran at the same time, as the value of --split where one fits."""
    traffic = {"traffic": "even"} if meaning.even else {}
    if meaning.aggregate:
        return {"group": plural(max(block.ranks // 2, 1), "pair")}
    if block.concurrent < 2:
        return traffic
    size = block.group_size
    count = block.concurrent
    listed = not meaning.pairs and len(block.groups) == count and all(len(group) == size for group in block.groups)
    if listed and block.groups == [list(range(i * size, (i + 1) * size)) for i in range(count)]:
        return {**traffic, "group": f"DIV {size}"}
    if listed and block.groups == [list(range(i, block.ranks, count)) for i in range(count)]:
        return {**traffic, "group": f"MOD {count}"}
    names = ["-".join(map(str, group[:4])) for group in block.groups[:8]]
    return {**traffic, "group": ",".join(names) or f"{count} groups of {size}"}


def _row(block: ImbBlock, meaning: Meaning, kind: RowKind, printed: int, cases: Sequence[Figures]) -> Row:
    """Return the row of one size; of several groups it is that of the slowest one."""
    size = printed * (block.group_size if meaning.parts else 1)
    count = printed // (width_of(kind.dtype) or 1)
    if meaning.like == "reducescatter" and not meaning.parts:
        count //= max(block.group_size, 1)
    failed = next((f"IMB: {short(figures.words['failed'].split(';')[0])}" for figures in cases if "failed" in figures.words), None)
    times = [_time(block, meaning, size, figures) for figures in cases]
    valid = [time_s for time_s in times if time_s is not None and is_time(time_s)]
    if failed or len(valid) < len(times) or (size and not is_size(size)):
        return kind.without_figures(size if is_size(size) else 0, count, cases[0].line, failed or NO_TIME)
    slowest = cases[valid.index(max(valid))]
    checked = [figures for figures in cases if "wrong" in figures.words]
    wrong = int(any(figures.values.get("wrong") != 0 for figures in checked)) if checked else None
    row = kind.row(size, max(valid), line=slowest.line, count=count, wrong=wrong, printed=slowest.printed)
    concurrent = block.concurrent
    if concurrent > 1 and not meaning.pairs and row.algbw_bytes_per_s is not None and meaning.like is not None:
        within_group = operations()[meaning.like].bus_factor(block.group_size)
        row = row.with_figures(busbw_bytes_per_s=row.algbw_bytes_per_s * within_group if within_group else None)
    if meaning.aggregate:
        return of_all_pairs(row, max(block.ranks // 2, 1), meaning.ways)
    groups: dict[str, Any] = {}
    if concurrent > 1:
        factor = row.busbw_bytes_per_s / row.algbw_bytes_per_s if row.busbw_bytes_per_s and row.algbw_bytes_per_s else None
        listed = len(valid) == concurrent and len(valid) <= _LISTED
        rates = [row.size_bytes * factor / time_s for time_s in valid] if listed and factor else None
        groups = {
            "count": concurrent, "ranks": block.group_size, "p50_s": valid if listed else None,
            "busbw_bytes_per_s": rates, "total_busbw_bytes_per_s": None,
        }  # fmt: skip
    return row.with_figures(time_rank_mean_s=slowest.values.get("rank_mean"), groups=groups)


def _time(block: ImbBlock, meaning: Meaning, size: int, figures: Figures) -> float | None:
    if "time" in figures.words:
        return figures.time_s
    messages = messages_per_s(size, figures.words.get("megabytes", ""), figures.words.get("messages", ""))  # of all pairs, both ways
    return meaning.ways * (block.ranks // 2) / messages if messages else None


def _blocks(lines: Sequence[str]) -> list[ImbBlock]:
    return [ImbBlock(table) for table in _LAYOUT.tables(lines) if table.columns]


def _check_ranks(blocks: Sequence[ImbBlock], user_input: UserInput) -> None:
    printed_ranks = sorted({block.ranks for block in blocks if block.ranks})
    if user_input.ranks is not None and printed_ranks and user_input.ranks not in printed_ranks:
        numbers = ", ".join(map(str, printed_ranks))
        raise UsageError(f"--ranks {user_input.ranks} does not fit the output of IMB, which has {numbers} ranks: omit --ranks")


def _runs(block: ImbBlock, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    table = block.table
    context = contexts.at(block.number)
    hosts = with_hosts(context, block.ranks)
    nodes = user_input.nodes or len(set(hosts)) or None
    name = short(table.titled("benchmark"))
    version = table.facts.get("version") or None
    meaning = _meaning(name)
    depends_on_version = meaning.like == "reducescatter" and not meaning.parts
    if depends_on_version:  # the size of Reduce_scatter became that of one part; without a version, it is taken for a new one
        number = _number_of(version)
        meaning = replace(meaning, parts=number is None or number >= _REDUCE_SCATTER_BY_PARTS)
    if table.facts.get("mode") == "AGGREGATE":  # many transfers between two synchronizations, not one
        meaning = replace(meaning, operation=f"{meaning.operation}_aggregate")
    kind = _kind(block, name, meaning, nodes)
    by_case: dict[int, list[Figures]] = {}
    for figures in table.figures():
        size = figures.size if "size" in figures.words else 0
        if size is None or not (size == 0 or is_size(size)):
            table.bad.append(figures.line)
        else:
            by_case.setdefault(size, []).append(figures)
    rows = [_row(block, meaning, kind, size, cases) for size, cases in by_case.items()]
    if not rows and not table.bad:
        rows.append(kind.without_figures(0, 0, block.number, NO_FIGURES))
    unknown = missing(nodes, hosts)
    if any(row.message_rate is not None and row.window is None for row in rows):
        unknown.append(NotInOutput(MissingItem.WINDOW))
    if version is None and depends_on_version:
        unknown.append(NotInOutput(MissingItem.VERSION, assumed="2019 Update 1 or later"))
    doubts = [SkippedLines(len(table.bad), SkippedReason.UNREADABLE, min(table.bad))] if table.bad else []
    program = f"IMB-{(table.facts.get('part') or 'MPI1').replace('-1', '1')} {name}"
    facts: dict[str, Any] = {}
    for title, value in table.facts.items():
        if title == "command":
            facts[title] = " ".join(short(word) for word in value.split()[:32])
        elif title not in ("benchmark", "version", "part", "ranks", "groups"):
            facts[title] = short(value)
    facts |= start_facts(context)
    yield ImportedTable("imb", version, program, kind.statistic, rows, hosts, facts, unknown, doubts)


IMB = Importer(
    "imb", "Intel MPI Benchmarks", lines_with(_BENCHMARK, _VERSION, words=["#"]), _blocks, _runs, output="IMB", check=_check_ranks
)
