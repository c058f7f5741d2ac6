"""Read the output of the Intel MPI Benchmarks: IMB-MPI1 and IMB-NBC completely, of the others the times.

The figures (source of 2021.11): each rank's mean over the repetitions; t_min and t_max are those of the fastest and the slowest rank, and
t_avg their mean. The row's time is t_max, from which IMB computes its Mbytes/sec (10**6 bytes since version 2019; not used here).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collbench.errors import UsageError
from collbench.operations.registry import operations
from collbench.plugins.importers.importer import ImportedTable, Importer, TextTable, UserInput, lines_with
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
    parse_number,
    short,
    type_name,
    whole,
    width_of,
)
from collbench.results.row import Row
from collbench.units import plural

# The rows of one block of an IMB output: the operation of its benchmark, and the column with the time.

_US = 1e-6
_LISTED = 1024
_TURNED_ROUND = 2017  # the version that changed both defaults
_REDUCE_SCATTER_BY_PARTS = (2019, 1)  # before, MPI_Reduce_scatter divided the printed size among the ranks


@dataclass
class ImbBlock(TextTable):
    """One benchmark's part of the output. A failed case has its reason in the column "failed".

    ranks       that took part, in all groups together; group_size: in each group
    groups      the ranks of each group, if several ran at the same time
    version     of IMB; part: the one of its programs
    """

    ranks: int = 0
    group_size: int = 0
    groups: list[list[int]] = field(default_factory=list)
    version: str | None = None
    part: str | None = None

    def add(self, number: int, words: Sequence[str]) -> None:
        """Add a line of figures, or one of a failed case, which has only its first columns and the reason."""
        leading = [title for title in self.columns if title in ("Group", "#bytes")]
        rest = words[len(leading) :]
        if len(words) != len(self.columns) and rest and rest[0].rstrip(".;") in ("time-out", "int-overflow", "out-of-mem"):
            self.lines.append((number, {**dict(zip(leading, words, strict=False)), "failed": " ".join(rest)}))
        else:
            super().add(number, words)

    @property
    def concurrent(self) -> int:
        """The number of groups that ran at the same time."""
        return max(self.ranks // self.group_size, 1) if self.group_size else 1


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
    kinds = ("specificsource", "anysource")
    base = next((plain.removesuffix(kind) for kind in kinds if plain.endswith(kind)), plain)
    if base in _BENCHMARKS:
        found = _BENCHMARKS[base]
        return found if base == plain else replace(found, operation=f"{found.operation}_{plain.removeprefix(base)}")
    started = base.removesuffix("_pure").removeprefix("i")
    if base.startswith("i") and started in _BENCHMARKS:
        found = _BENCHMARKS[started]
        return replace(found, operation=f"i{found.operation}{'_pure' if base.endswith('_pure') else ''}")
    return Meaning("".join(letter if letter.isalnum() else "_" for letter in base) or "unnamed", None)


def _number_of(version: str | None) -> tuple[int, int] | None:
    """Return (2019, 1) for "2019 Update 1" and (2021, 11) for "2021.11", None if the version is not known."""
    numbers = [int(number) for number in re.findall(r"\d{1,9}", version or "")]
    return (numbers[0], numbers[1] if numbers[1:] else 0) if numbers else None


def _kind(block: ImbBlock, meaning: Meaning, nodes: int | None, facts: Mapping[str, Any]) -> RowKind:
    if not 1 <= block.ranks <= MOST_RANKS:
        raise UsageError(f"line {block.number}: the number of processes of {block.name} is missing: use the whole output of IMB")
    statistic = "mean per message: the rate over all repetitions, turned into a time"
    if "t_pure[usec]" in block.columns:
        statistic = "mean over the repetitions, of the communication alone, on the slowest rank"
    elif "t[usec]" in block.columns or "t_max[usec]" in block.columns:
        half = "half the round trips, mean" if block.name.lower().startswith("pingpong") else "mean"
        statistic = f"{half} over the repetitions on the slowest rank"
    reducing = meaning.reduces
    name = facts.get("MPI_Datatype for reductions" if reducing else "MPI_Datatype")
    dtype = {"MPI_BYTE": "uint8", "MPI_CHAR": "int8", "MPI_FLOAT": "float32", "MPI_DOUBLE": "float64", "MPI_INT": "int32"}.get(name or "")
    redop = short(str(facts.get("MPI_Op", "MPI_SUM"))).removeprefix("MPI_").lower()
    command = str(facts.get("command", "")).split()
    window = None  # the default is not printed, and differs between versions
    if meaning.aggregate and "-window_size" in command[:-1]:
        window = whole(command[command.index("-window_size") + 1])
    return RowKind(
        meaning.operation, "mpi", "mpi", dtype or (type_name(name) if name else ("float32" if reducing else "uint8")),
        2 if meaning.pairs and block.group_size == 2 and block.concurrent == 1 else block.ranks,
        nodes, statistic, redop=redop if reducing else None,
        root=0 if meaning.rooted and not _switched("root_shift", facts) else None, in_place=meaning.like == "broadcast",
        mode="batched" if meaning.pairs or meaning.like in ("sendrecv", None) or not _switched("sync", facts) else "isolated",
        buffers="rotating" if "-off_cache" in facts.get("command", "") else "fixed", like=meaning.like, also=_also(block, meaning),
        window=window,
    )  # fmt: skip


def _switched(option: str, facts: Mapping[str, Any]) -> bool:
    """Return whether ranks synchronize after each iteration ("sync"), or the root rotates ("root_shift"); 2017 inverted both defaults."""
    words = str(facts.get("command", "")).split()
    name = words[words.index(f"-{option}") + 1 :][:1] if f"-{option}" in words else []
    if name:
        return name[0].lower() in ("1", "on", "yes", "true", "enable")
    number = _number_of(facts.get("version"))
    return (option == "root_shift") == (number is not None and number[0] < _TURNED_ROUND)


def _also(block: ImbBlock, meaning: Meaning) -> dict[str, Any]:
    """Return the groups that ran at the same time, as the value of --split where one fits."""
    traffic = {"traffic": "even"} if meaning.even else {}
    if meaning.aggregate:
        return {"group": plural(max(block.ranks // 2, 1), "pair")}
    if block.concurrent < 2:
        return traffic
    size, count = block.group_size, block.concurrent
    listed = not meaning.pairs and len(block.groups) == count and all(len(group) == size for group in block.groups)
    if listed and block.groups == [list(range(i * size, (i + 1) * size)) for i in range(count)]:
        return {**traffic, "group": f"DIV {size}"}
    if listed and block.groups == [list(range(i, block.ranks, count)) for i in range(count)]:
        return {**traffic, "group": f"MOD {count}"}
    names = ["-".join(map(str, group[:4])) for group in block.groups[:8]]
    return {**traffic, "group": ",".join(names) or f"{count} groups of {size}"}


def _row(block: ImbBlock, meaning: Meaning, kind: RowKind, printed: int, lines: Sequence[tuple[int, dict[str, str]]]) -> Row:
    """Return the row of one size; of several groups it is that of the slowest one."""
    size = printed * (block.group_size if meaning.parts else 1)
    width, split = width_of(kind.dtype) or 1, meaning.like == "reducescatter" and not meaning.parts
    count = printed // width // (max(block.group_size, 1) if split else 1)
    failed = next((f"IMB: {short(found['failed'].split(';')[0])}" for _, found in lines if "failed" in found), None)
    times = [_time(block, meaning, size, found) for _, found in lines]
    known = [time_s for time_s in times if time_s is not None and is_time(time_s)]
    if failed or len(known) < len(times) or (size and not is_size(size)):
        return kind.without_figures(size if is_size(size) else 0, count, lines[0][0], failed or "the output has no valid time")
    line, found = lines[known.index(max(known))]
    defects = [parse_number(named["defects"]) for _, named in lines if "defects" in named]
    others = {title: word for title, word in found.items() if title not in ("#bytes", "Group", "defects")}
    wrong = int(any(value != 0 for value in defects)) if defects else None
    row = kind.row(size, max(known), line=line, count=count, wrong=wrong, printed=others)
    concurrent = block.concurrent
    if concurrent > 1 and not meaning.pairs and row.algbw_bytes_per_s is not None and meaning.like is not None:
        within_group = operations()[meaning.like].bus_factor(block.group_size)
        row = row.with_figures(busbw_bytes_per_s=row.algbw_bytes_per_s * within_group if within_group else None)
    if meaning.aggregate:
        return of_all_pairs(row, max(block.ranks // 2, 1), meaning.ways)
    groups: dict[str, Any] = {}
    if concurrent > 1:
        factor = row.busbw_bytes_per_s / row.algbw_bytes_per_s if row.busbw_bytes_per_s and row.algbw_bytes_per_s else None
        listed = len(known) == concurrent and len(known) <= _LISTED
        rates = [row.size_bytes * factor / time_s for time_s in known] if listed and factor else None
        groups = {
            "count": concurrent, "ranks": block.group_size, "p50_s": list(known) if listed else None,
            "busbw_bytes_per_s": rates, "total_busbw_bytes_per_s": None,
        }  # fmt: skip
    average = parse_number(found.get("t_avg[usec]", ""))
    return row.with_figures(time_rank_mean_s=None if average is None else average * _US, groups=groups)


def _time(block: ImbBlock, meaning: Meaning, size: int, found: Mapping[str, str]) -> float | None:
    for title in ("t_pure[usec]", "t_max[usec]", "t[usec]"):
        if title in found:
            value = parse_number(found[title])
            return None if value is None else value * _US
    messages = messages_per_s(size, found.get("Mbytes/sec", ""), found.get("Msg/sec", ""))  # of all pairs, both ways
    return meaning.ways * (block.ranks // 2) / messages if messages else None


_VERSION = re.compile(
    r"^#\s{1,40}Intel ?\(R\) MPI Benchmark(?:s| Suite)? {1,4}(?:V(?:ersion)? ?)?([\w.]{1,20}(?: Update \d{1,3})?)", re.IGNORECASE
)
_BENCHMARK = re.compile(r"^# Benchmarking (Multi-)?(\S{1,64})")
_PROCESSES = re.compile(r"^# (?:#processes = (\d{1,9})|\( ?(\d{1,9}) groups of (\d{1,9}) processes each)")
_GROUP = re.compile(r"^# Group +\d+:((?: +\d{1,9})+)")
_CONTINUED = re.compile(r"^#((?: +\d{1,9})+)\s*$")
_FACT = re.compile(
    r"^# (Machine|System|Release|MPI Version|MPI_Datatype(?: for reductions)?|MPI_Op|Minimum message length in bytes)\s*:\s*(.*)$"
)
_PART = re.compile(r"\b(MPI-1|NBC|RMA|EXT|MPI-2|IO|MPI-4|MT|P2P) part", re.IGNORECASE)
_SEQUENCE = re.compile(r"^# (\S*IMB-\w+.*)$")
_TITLES = re.compile(r"#bytes|#repetitions|Group|(?:t|t_\w+)\[usec\]|Mbytes/sec|Msg/sec|overlap\[%\]|defects")


def _blocks(lines: Sequence[str]) -> list[ImbBlock]:
    """Return the blocks with columns; none if none of them has a line of figures. All have the values of the file's head."""
    blocks: list[ImbBlock] = []
    version: str | None = None
    part: str | None = None
    facts: dict[str, Any] = {}
    for number, line in enumerate(lines, start=1):
        block = blocks[-1] if blocks else None
        if line[:1] != "#" or line.startswith(("#bytes", "#repetitions")):  # behind a launcher's tag the titles may lack their blank
            words = line.split()
            if block and words and not block.columns and words[0] in ("#bytes", "#repetitions", "Group"):
                block.columns = _TITLES.findall(line)
            elif block and words and block.columns and words[0].isdigit():  # not "15: Error Reduce_scatter,size = 4,sample #0"
                block.add(number, words)
        elif begun := _BENCHMARK.match(line):
            blocks.append(ImbBlock(number, short(begun[2])))
        elif block and (found := _PROCESSES.match(line)):
            block.group_size = int(found[1] or found[3])
            block.ranks = block.group_size * int(found[2] or 1)
        elif block and (found := _GROUP.match(line)):
            block.groups.append([int(rank) for rank in found[1].split()])
        elif block and block.groups and not block.columns and (found := _CONTINUED.match(line)):
            block.groups[-1] += [int(rank) for rank in found[1].split()]
        elif found := _VERSION.match(line):
            named = _PART.search(line)
            version, part = found[1], named[1] if named else None
        elif found := _FACT.match(line):
            facts[found[1]] = short(found[2].strip())
        elif found := _SEQUENCE.match(line):
            facts["command"] = " ".join(short(word) for word in found[1].split()[:32])
    blocks = [block for block in blocks if block.columns]
    for block in blocks:
        block.version, block.part, block.facts = version, part, facts
    return blocks if any(block.lines or block.bad for block in blocks) else []


def _check_ranks(blocks: Sequence[ImbBlock], user_input: UserInput) -> None:
    known = sorted({block.ranks for block in blocks})
    if user_input.ranks is not None and blocks and user_input.ranks not in known:
        found = ", ".join(map(str, known))
        raise UsageError(f"--ranks {user_input.ranks} does not fit the output of IMB, which has {found} ranks: omit --ranks")


def _runs(block: ImbBlock, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    context = contexts.at(block.number)
    hosts = with_hosts(context, block.ranks)
    nodes = user_input.nodes or len(set(hosts)) or None
    meaning = _meaning(block.name)
    depends_on_version = meaning.like == "reducescatter" and not meaning.parts
    if depends_on_version:  # the size of Reduce_scatter became that of one part; without a version, it is taken for a new one
        number = _number_of(block.version)
        meaning = replace(meaning, parts=number is None or number >= _REDUCE_SCATTER_BY_PARTS)
    kind = _kind(block, meaning, nodes, {**block.facts, "version": block.version})
    by_case: dict[int, list[tuple[int, dict[str, str]]]] = {}
    bad = list(block.bad)
    for line, found in block.lines:
        size = whole(found.get("#bytes", "0"))
        if size is None or not (size == 0 or is_size(size)):
            bad.append(line)
        else:
            by_case.setdefault(size, []).append((line, found))
    rows = [_row(block, meaning, kind, size, cases) for size, cases in by_case.items()]
    if not rows and not bad:
        rows.append(kind.without_figures(0, 0, block.number, NO_FIGURES))
    unknown = missing(nodes, hosts)
    if any(row.message_rate is not None and row.window is None for row in rows):
        unknown.append(NotInOutput(MissingItem.WINDOW))
    if block.version is None and depends_on_version:
        unknown.append(NotInOutput(MissingItem.VERSION, assumed="2019 Update 1 or later"))
    doubts = [SkippedLines(len(bad), SkippedReason.UNREADABLE, min(bad))] if bad else []
    program = f"IMB-{(block.part or 'MPI1').replace('-1', '1')} {block.name}"
    facts = {**block.facts, **start_facts(context)}
    yield ImportedTable("imb", block.version, program, kind.statistic, rows, hosts, facts, unknown, doubts)


IMB = Importer(
    "imb", "Intel MPI Benchmarks", lines_with(_BENCHMARK, _VERSION, words=["#"]), _blocks, _runs, output="IMB", check=_check_ranks
)
