"""Read the output of the OSU Micro-Benchmarks, versions 3 to 7: every collective and point-to-point test, with -f, -z, -c, -V.

The figures (source of 7.4, osu_util_mpi.c):
- collectives: the mean over the ranks of each rank's mean over the iterations; non-blocking ones without computation ("Pure Comm.");
- latencies: the mean of half the round trips;
- rates: the bytes of all messages by the time of all, in MB of 10**6 bytes.
Percentiles are of the iterations' means over the ranks. That is not a quantile as in collbench's rows, so they are in the evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from collbench.plugins.importers.importer import ImportedTable, Importer, TextTable, UserInput
from collbench.plugins.importers.log_context import Contexts, extent_of, start_facts, with_hosts
from collbench.plugins.importers.notes import ImportDoubt, MissingItem, MixedMemory, NotInOutput
from collbench.plugins.importers.rows import (
    MPI_COLLECTIVES,
    NO_FIGURES,
    JobExtent,
    Meaning,
    RowKind,
    groups_of_pairs,
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

# The tests of the OSU Micro-Benchmarks by the title in their output, with their meaning in collbench's terms (source of 7.4).
#
# Sizes: allreduce, reduce, broadcast and both reduce-scatters print the whole buffer of a rank. All others print one rank's part;
# collbench's size has one part per rank.

Measure = Literal["latency", "bandwidth"]


@dataclass(frozen=True)
class Test(Meaning):
    """One of OSU's programs, "osu_allreduce", whether its figure is a time or a rate, and its call form as in `Row.call`."""

    program: str = ""
    measure: Measure = "latency"
    call: Literal["nonblocking", "persistent"] | None = None


_COLLECTIVES = {
    name.replace("bcast", "broadcast"): Test(**vars(meaning), program=f"osu_{name}") for name, meaning in MPI_COLLECTIVES.items()
}
_PAIRS = {
    "latency": Test("p2p_latency", "p2p_latency", pairs="one", program="osu_latency"),
    "multi-threaded latency": Test("p2p_latency_threads", "p2p_latency", pairs="one", program="osu_latency_mt"),
    "multi-process latency": Test("p2p_latency_processes", "p2p_latency", pairs="one", program="osu_latency_mp"),
    "multi latency": Test("p2p_latency", "p2p_latency", pairs="many", program="osu_multi_lat"),
    "bandwidth": Test("p2p_bandwidth", "p2p_bandwidth", pairs="one", program="osu_bw", measure="bandwidth"),
    "bi-directional bandwidth": Test(
        "p2p_bidirectional", "p2p_bidirectional", pairs="one", ways=2, program="osu_bibw", measure="bandwidth"
    ),
    "multiple bandwidth / message rate": Test(
        "multipair_bandwidth", "multipair_bandwidth", pairs="many", program="osu_mbw_mr", measure="bandwidth"
    ),
}
_PERSISTENT = re.compile(r"\s+persistent\b")
_LONGEST = 48


def test_of(title: str, neighbours: bool = False) -> Test:
    """Return the test that prints "OSU MPI <title> Test"; an unknown title becomes an operation of its own, without a bus bandwidth.

    neighbors: the output describes a graph of ranks; the title of one such test does not mention neighbors.
    """
    words = " ".join(title.lower().split())
    plain = _PERSISTENT.sub("", words)
    name = plain.removeprefix("non-blocking ").removeprefix("neighborhood ").removesuffix(" latency").removesuffix(" personalized exchange")
    test = _PAIRS.get(plain) or _COLLECTIVES.get(name.replace("-", ""))
    if test is None:
        operation = re.sub(r"[^a-z0-9]+", "_", words).strip("_")[:_LONGEST] or "unnamed"
        rate = "bandwidth" in words
        ways = 2 if rate and words.startswith("bi") else 1
        measure: Measure = "bandwidth" if rate else "latency"
        return Test(operation, None, pairs="one", ways=ways, program=f"osu {operation}", measure=measure)
    if plain not in _PAIRS and (neighbours or "neighborhood " in plain):
        # the output does not list the neighbors, so the moved bytes are unknown
        program = f"osu_neighbor_{test.program.removeprefix('osu_')}"
        test = replace(test, program=program, operation=f"neighbor_{test.operation}", like=None, parts=False, even=False)
    # The call form is a part of the program's name; it moves the same bytes.
    if plain != words:
        return replace(test, program=f"{test.program}_persistent", call="persistent")
    if plain.startswith("non-blocking "):
        return replace(test, program=f"osu_i{test.program.removeprefix('osu_')}", call="nonblocking")
    return test


# The printed tables of the OSU Micro-Benchmarks: the lines of figures, their column titles, and the heads.

_TITLE = re.compile(
    r"^#?\s*OSU (?:One Sided )?(?P<library>[A-Za-z_+]{1,24})(?:-(?P<memory>CUDA MANAGED|CUDA|ROCM|OPENACC|MANAGED|CXL))?"
    r"\s*(?P<title>[^\n]{0,100}?)\s*Test(?: v(?P<version>[\w.]{1,16}))?\s*$",
    re.IGNORECASE,
)
_COLUMN = re.compile(
    r"P\d{1,2} Tail (?:BW ?\(MB/s\)|Lat ?\(us\))|(?:Avg |Min |Max )?Latency ?\(us\)|Bandwidth ?\(MB/s\)|Overall ?\(us\)|Compute ?\(us\)"
    r"|Coll\. Init ?\(us\)|MPI_Test ?\(us\)|MPI_Wait ?\(us\)|(?:Pure|Min|Max) Comm\. ?\(us\)|Overlap ?\(%\)|MB/s|Messages/s|Iterations"
    r"|Validation|Transmit Size|Size"
)
_WINDOWS = re.compile(r"^#(?:\s+\d{1,9})+\s*$")
_TABLES_PAIRS = re.compile(r"^#\s*\[ pairs: (\d{1,9}) \]\s*\[ window size: (\w{1,9}) \]")
_DATATYPE = re.compile(r"^#\s*Datatype: (\w{1,40})")
_MEMORY = re.compile(r"^# (?:Send Buffer|Rank 0 Memory) on (\w{1,40}).{0,200}? on (\w{1,40})")
_FACTS = re.compile(r"^# (Window creation|Synchronization): (.{1,60})")
_LONGEST_TITLE = 200  # on longer lines, which no benchmark prints, the expression would be slow
_GRAPH = ("Dimensions size", "Time took to create topology graph")  # lines before the title
_MESSAGE_RATES = "# Message Rate Profile"


@dataclass(kw_only=True)
class OsuTable(TextTable):
    """Lines of figures under one line of column titles, and the lines before it.

    columns   titles, each without the blank before its unit; of -V the size and the windows, as numbers
    """

    test: Test
    library: str
    memory: str | None
    version: str | None


def tables_in(lines: Sequence[str]) -> list[OsuTable]:
    """Return all tables of the output, without those of message rates, which repeat the rates; none without a line of figures."""
    tables: list[OsuTable] = []
    graph = False  # whether the next test is one of neighbors
    for number, line in enumerate(lines, start=1):
        table = tables[-1] if tables else None
        if title := _title(line):
            library, words_of_title = title["library"], title["title"]
            if library.upper().startswith("MPI_"):  # one-sided: "OSU MPI_Put Latency Test"
                library, words_of_title = "MPI", f"{library[4:]} {words_of_title}"
            test = test_of(words_of_title, graph)
            tables.append(OsuTable(number, test=test, library=library.upper(), memory=title["memory"], version=title["version"]))
            graph = False
        elif any(text in line for text in _GRAPH):
            graph = True
        elif table is None:
            continue
        elif line[:1] == "#" or "OSU" in line:
            if table.lines or table.bad:
                if not (_DATATYPE.match(line) or _columns_in(line) or line.startswith(_MESSAGE_RATES)):
                    continue
                table = replace(table, number=number, facts=dict(table.facts), columns=[], lines=[], bad=[])
                tables.append(table)
                graph = False
            _learn(table, line)
        elif table.columns:
            words = line.split()
            if words and words[0].replace(".", "", 1).isdigit():
                table.add(number, words)
        elif _columns_in(line):  # osu_ibarrier with overlap prints titles without #
            _learn(table, line)
    tables = [table for table in tables if table.lines or table.bad or not table.facts.get("skip")]
    return tables if any(table.lines or table.bad for table in tables) else []


def _title(line: str) -> re.Match[str] | None:
    return _TITLE.match(line) if "OSU" in line and len(line) <= _LONGEST_TITLE else None


def _learn(table: OsuTable, line: str) -> None:
    if line.startswith(_MESSAGE_RATES):
        table.facts["skip"] = True
    elif found := _TABLES_PAIRS.match(line):
        table.facts |= {"pairs": int(found[1]), "window": int(found[2]) if found[2].isdecimal() else None}
    elif found := _DATATYPE.match(line):
        table.facts["datatype"], table.facts["skip"] = found[1], False
    elif found := _MEMORY.match(line):
        table.facts["memory"] = [found[1], found[2]]
    elif found := _FACTS.match(line):
        table.facts[found[1].lower()] = short(found[2].strip())
    elif columns := _columns_in(line):
        table.columns = [] if table.facts.get("skip") else columns


def _columns_in(line: str) -> list[str]:
    if _WINDOWS.match(line):
        return ["Size", *line[1:].split()]
    found = [title.replace(" (", "(") for title in _COLUMN.findall(line)]
    return found if any("(" in title or title == "MB/s" for title in found) else []


# The rows of one OSU table: the column with the time, and the other columns.

_TIMES = ("Avg Latency(us)", "Latency(us)", "Pure Comm.(us)")
_RATES = ("Bandwidth(MB/s)", "MB/s")
_MPI_TYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float32"}
_US = 1e-6


def _statistic(table: OsuTable) -> str:
    if table.test.like is None:
        return "the tool's own mean over its iterations"
    if table.test.measure == "bandwidth":
        pairs = " of an average pair" if table.facts.get("pairs", 1) > 1 else ""
        return f"mean per message{pairs}: the rate over all iterations, turned into a time"
    if table.test.pairs:
        pairs = ", averaged over the pairs" if table.test.pairs == "many" else ""
        return f"mean of half the round trips{pairs}"
    alone = ", of the communication alone" if "Pure Comm.(us)" in table.columns else ""
    return f"mean over the iterations, averaged over the ranks{alone}"


def _kind(table: OsuTable, extent: JobExtent, statistic: str) -> RowKind:
    test, datatype, memory = table.test, table.facts.get("datatype"), (table.memory or "").upper()
    if test.like == "barrier":
        dtype = "uint8"  # as in collbench's own rows, though nothing is moved
    elif datatype is None:
        dtype = "float32" if test.reduces else "int8"
    else:
        dtype = _MPI_TYPES.get(datatype, type_name(datatype))
    on_cpu = not memory or set(table.facts.get("memory", ())) == {"HOST"}
    backend = {"MPI": "mpi", "NCCL": "nccl", "RCCL": "nccl"}.get(table.library, table.library.lower())
    group = {"group": plural(table.facts.get("pairs", 1), "pair")} if test.aggregate else {}
    return RowKind(
        test.operation, backend, backend, dtype, extent.ranks, extent.nodes, statistic,
        device="cpu" if on_cpu else "rocm" if memory == "ROCM" else "cuda", redop="sum" if test.reduces else None,
        root=0 if test.rooted else None, in_place=test.like == "broadcast", mode="batched" if test.pairs else "isolated", like=test.like,
        window=table.facts.get("window"), also={"call": test.call} | ({"traffic": "even"} if test.even else {}) | group,
    )  # fmt: skip


def _row(table: OsuTable, kind: RowKind, line: int, printed: int | None, by_name: dict[str, str]) -> Row | None:
    """Return the row of a time or a rate; printed: the size."""
    test = table.test
    title = next((name for name in (*_TIMES, *_RATES) if name in by_name), None)
    if title is None or printed is None or not (is_size(printed) or (printed == 0 and test.measure == "latency")):
        return None
    width = width_of(kind.dtype) or 1
    size, count = printed * (kind.ranks if test.parts else 1), printed // width
    if test.like == "reducescatter":
        count //= kind.ranks
    if test.program.endswith("reduce_scatter_block"):
        size = count * kind.ranks * width  # the remainder after equal parts is not moved
    if printed and not is_size(size):
        return kind.without_figures(0, 0, line, "no bytes are moved (fewer elements than ranks), or the size is not valid")
    value, pairs = parse_number(by_name[title]), table.facts.get("pairs", 1)
    time_s = None if value is None else value * _US
    if test.measure == "bandwidth":
        messages = messages_per_s(size, by_name[title], by_name.get("Messages/s", ""))
        time_s = test.ways * pairs / messages if messages else None
    if time_s is None or not is_time(time_s):
        return kind.without_figures(size, count, line, f"the output has no valid time: {by_name[title][:20]}")
    wrong = {"Pass": 0, "Fail": 1}.get(by_name.get("Validation", ""))
    others = {name: text for name, text in by_name.items() if name not in ("Size", "Validation", *_TIMES)}
    row = kind.row(size, time_s, line=line, count=count, wrong=wrong, printed=others or None)
    row = of_all_pairs(row, pairs, test.ways) if test.aggregate else row.with_figures(groups=groups_of_pairs(pairs, row))
    return row.with_figures(
        time_rank_mean_s=time_s if test.measure == "latency" and not test.pairs else None,
        wrong_detail="OSU's validation failed; the number of wrong elements is unknown" if wrong else None,
    )


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines is the title of an OSU test."""
    return any(_title(line) for line in lines)


def _runs(table: OsuTable, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    context, test = contexts.at(table.number), table.test
    pairs = table.facts.get("pairs")
    known = 2 if test.pairs == "one" else None if pairs is None else 2 * pairs
    extent = extent_of(context, user_input, known, f"{test.program} (line {table.number})")
    kind = _kind(table, extent, _statistic(table))
    rows: list[Row] = []
    windows = table.columns[1:] if len(table.columns) > 1 and table.columns[1].isdigit() else ()  # -V: the rate with each window
    for line, figures in table.lines:
        size = whole(figures.get("Size", "0"))
        made = [_row(table, kind, line, size, {"MB/s": figures[window]}) for window in windows]
        rows += [row.with_figures(window=whole(window)) for row, window in zip(made, windows, strict=True) if row is not None]
        row = None if windows else _row(table, kind, line, size, figures)
        rows += [row] if row is not None else []
    if not table.lines and not table.bad:
        rows.append(kind.without_figures(0, 0, table.number, NO_FIGURES))
    hosts = with_hosts(context, extent.ranks)
    unknown = [*missing(extent.nodes, hosts), NotInOutput(MissingItem.OPTIONS, assumed="root 0, out of place")]
    if test.measure == "bandwidth" and not windows and not table.facts.get("window"):
        unknown.append(NotInOutput(MissingItem.WINDOW))
    if "Iterations" not in table.columns:
        unknown.append(NotInOutput(MissingItem.ITERATIONS))
    if "datatype" not in table.facts and test.like != "barrier":  # before version 7.1
        unknown.append(NotInOutput(MissingItem.DTYPE, assumed="MPI_FLOAT" if test.reduces else "MPI_CHAR"))
    doubts: list[ImportDoubt] = table.doubts()
    memory = table.facts.get("memory", ())
    if len(set(memory)) > 1:
        doubts.append(MixedMemory(tuple(map(short, memory))))
    names = ("datatype", "memory", "window creation", "synchronization")
    facts = {"interface": table.library, **start_facts(context), **{name: table.facts[name] for name in names if name in table.facts}}
    contradicted = extent.contradicted if test.pairs != "one" else ()
    yield ImportedTable("osu", table.version, test.program, kind.statistic, rows, hosts, facts, unknown, doubts, contradicted)


OSU = Importer("osu", "OSU Micro-Benchmarks", knows, tables_in, _runs, output="OSU's tests")
