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
from typing import Any, Literal

from msgspec.structs import asdict, replace

from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts, extent_of, start_facts, with_hosts
from collbench.plugins.importers.notes import MissingItem, MixedMemory, NotInOutput
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
    short,
    type_name,
    whole,
    width_of,
)
from collbench.plugins.importers.table import MICROSECONDS, NO_TIME, Figures, Layout, TextColumn, TextTable
from collbench.results.row import Row
from collbench.units import plural

# The tests by the title in their output, with their meaning in collbench's terms (source of 7.4).
#
# Sizes: allreduce, reduce, broadcast and both reduce-scatters print the whole buffer of a rank. All others print one rank's part;
# collbench's size has one part per rank.

Measure = Literal["latency", "bandwidth"]


class Test(Meaning, frozen=True):
    """One of OSU's programs, "osu_allreduce", whether its figure is a time or a rate, and its call form as in `Row.call`."""

    program: str = ""
    measure: Measure = "latency"
    call: Literal["nonblocking", "persistent"] | None = None


_COLLECTIVES = {
    name.replace("bcast", "broadcast"): Test(**asdict(meaning), program=f"osu_{name}") for name, meaning in MPI_COLLECTIVES.items()
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


_TITLE = re.compile(
    r"^#?\s{0,40}OSU (?:One Sided )?(?P<library>[A-Za-z_+]{1,24})(?:-(?P<memory>CUDA MANAGED|CUDA|ROCM|OPENACC|MANAGED|CXL))?"
    r"\s{0,40}(?P<title>[^\n]{0,100}?)\s{0,40}Test(?: v(?P<version>[\w.]{1,16}))?\s*$",
    re.IGNORECASE,
)
_LAYOUT = Layout(
    columns=(
        TextColumn("Transmit Size|Size|^#(?=[ \\d]+$)", "size", shown=False),
        TextColumn(r"Avg Latency ?\(us\)", "time", MICROSECONDS, shown=False),
        TextColumn(r"(?<!Min )(?<!Max )Latency ?\(us\)", "time", MICROSECONDS, shown=False),
        TextColumn(r"Pure Comm\. ?\(us\)", "time", MICROSECONDS, shown=False),
        TextColumn(r"Bandwidth ?\(MB/s\)", "megabytes"),
        TextColumn(r"MB/s(?!e)", "megabytes"),
        TextColumn("Messages/s", "messages"),
        TextColumn("Validation", "validation", shown=False),
        TextColumn(r"P\d{1,2} Tail (?:BW ?\(MB/s\)|Lat ?\(us\))|(?:Min|Max) Latency ?\(us\)|Overall ?\(us\)|Compute ?\(us\)|Iterations"),
        TextColumn(r"Coll\. Init ?\(us\)|MPI_Test ?\(us\)|MPI_Wait ?\(us\)|(?:Min|Max) Comm\. ?\(us\)|Overlap ?\(%\)"),
        TextColumn(r"(?<=[# ])\d{1,9}(?= |$)", "window"),
    ),
    headings=re.compile(r"\((?:us|MB/s|%)\)|MB/s|^#(?: +\d{1,9})+ *$"),
    begins=_TITLE,
    before=(re.compile("(?P<graph>Dimensions size|Time took to create topology graph)"),),
    renews=re.compile(r"# (?:Datatype: (?P<datatype>\w{1,40})|(?P<rates>Message Rate Profile))"),
    facts=(
        re.compile(r"#\s*\[ pairs: (?P<pairs>\d{1,9}) \]\s*\[ window size: (?P<window>\w{1,9}) \]"),
        re.compile(r"# (?:Send Buffer|Rank 0 Memory) on (?P<sender>\w{1,40}).{0,200}? on (?P<receiver>\w{1,40})"),
        re.compile(r"# (?P<name>Window creation|Synchronization): (?P<value>.{1,60})"),
    ),
)

_MPI_TYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float32"}


def _tables(lines: Sequence[str]) -> list[TextTable]:
    """Return the tables without those of message rates, which repeat the rates."""
    tables = [table for table in _LAYOUT.tables(lines) if not table.facts.get("rates")]
    return tables if any(table.is_begun for table in tables) else []


def _statistic(table: TextTable, test: Test, pairs: int) -> str:
    if test.like is None:
        return "the tool's own mean over its iterations"
    if test.measure == "bandwidth":
        return f"mean per message{' of an average pair' if pairs > 1 else ''}: the rate over all iterations, turned into a time"
    if test.pairs:
        return f"mean of half the round trips{', averaged over the pairs' if test.pairs == 'many' else ''}"
    alone = any(heading.startswith("Pure Comm.") for heading in table.headings)
    return f"mean over the iterations, averaged over the ranks{', of the communication alone' if alone else ''}"


def _kind(table: TextTable, test: Test, library: str, extent: JobExtent) -> RowKind:
    facts = table.facts
    pairs = whole(facts.get("pairs", "")) or 1
    memory = facts["memory"].upper()
    datatype = facts.get("datatype")
    if test.like == "barrier":
        dtype = "uint8"  # as in collbench's own rows, though nothing is moved
    elif not datatype:
        dtype = "float32" if test.reduces else "int8"
    else:
        dtype = _MPI_TYPES.get(datatype, type_name(datatype))
    device = "rocm" if memory == "ROCM" else "cuda"
    if not memory or {facts.get("sender"), facts.get("receiver")} == {"HOST"}:
        device = "cpu"
    backend = {"RCCL": "nccl"}.get(library, library.lower())
    also: dict[str, Any] = {"call": test.call}
    if test.even:
        also["traffic"] = "even"
    if test.aggregate:
        also["group"] = plural(pairs, "pair")
    return RowKind(
        test.operation, backend, backend, dtype, extent.ranks, extent.nodes, _statistic(table, test, pairs), device,
        redop="sum" if test.reduces else None, root=0 if test.rooted else None, in_place=test.like == "broadcast",
        mode="batched" if test.pairs else "isolated", like=test.like, window=whole(facts.get("window", "")), also=also,
    )  # fmt: skip


def _rows(table: TextTable, kind: RowKind, test: Test, windows: Sequence[str], pairs: int) -> Iterator[Row]:
    for (_, texts), figures in zip(table.lines, table.figures(), strict=True):
        size = figures.size if "size" in figures.words else 0
        if size is None or not (is_size(size) or (size == 0 and test.measure == "latency")):
            table.unreadable.append(figures.line)
        elif windows:
            for window in windows:
                rate = figures._replace(words={"megabytes": texts[window]}, printed={"MB/s": texts[window]})
                yield _row(kind, test, rate, size, pairs).with_figures(window=whole(window))
        else:
            yield _row(kind, test, figures, size, pairs)
    if not table.is_begun:
        yield kind.without_figures(0, 0, table.number, NO_FIGURES)


def _row(kind: RowKind, test: Test, figures: Figures, printed_size: int, pairs: int) -> Row:
    width = width_of(kind.dtype) or 1
    size = printed_size * (kind.ranks if test.parts else 1)
    count = printed_size // width
    if test.like == "reducescatter":
        count //= kind.ranks
    if test.program.removesuffix("_persistent").endswith("reduce_scatter_block"):
        size = count * kind.ranks * width  # the remainder after equal parts is not moved
    if printed_size and not is_size(size):
        return kind.without_figures(0, 0, figures.line, "no bytes are moved (fewer elements than ranks), or the size is not valid")
    time_s = figures.time_s
    printed_time = figures.words.get("megabytes" if test.measure == "bandwidth" else "time", "no column")
    if test.measure == "bandwidth":
        messages = messages_per_s(size, printed_time, figures.words.get("messages", ""))
        time_s = test.ways * pairs / messages if messages else None
    if time_s is None or not is_time(time_s):
        return kind.without_figures(size, count, figures.line, f"{NO_TIME}: {printed_time[:20]}")
    wrong = {"Pass": 0, "Fail": 1}.get(figures.words.get("validation", ""))
    printed = {heading.replace(" (", "("): text for heading, text in figures.printed.items()}
    row = kind.row(size, time_s, line=figures.line, count=count, wrong=wrong, printed=printed or None)
    row = of_all_pairs(row, pairs, test.ways) if test.aggregate else row.with_figures(groups=groups_of_pairs(pairs, row))
    return row.with_figures(
        time_rank_mean_s=time_s if test.measure == "latency" and not test.pairs else None,
        wrong_detail="OSU's validation failed; the number of wrong elements is unknown" if wrong else None,
    )


def _runs(table: TextTable, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    context = contexts.at(table.number)
    facts = table.facts
    title = table.titled("title")
    library = facts["library"].upper()
    if library.startswith("MPI_"):  # one-sided: "OSU MPI_Put Latency Test"
        title = f"{library[4:]} {title}"
        library = "MPI"
    test = test_of(title, neighbours="graph" in facts)
    pairs = whole(facts.get("pairs", ""))
    printed_ranks = None if pairs is None else 2 * pairs
    if test.pairs == "one":
        printed_ranks = 2
    extent = extent_of(context, user_input, printed_ranks, f"{test.program} (line {table.number})")
    kind = _kind(table, test, library, extent)
    windows = [heading for heading, column in table.columns if column.field == "window"]  # -V: the rate with each window
    rows = list(_rows(table, kind, test, windows, pairs or 1))
    hosts = with_hosts(context, extent.ranks)
    unknown = [*missing(extent.nodes, hosts), NotInOutput(MissingItem.OPTIONS, assumed="root 0, out of place")]
    if test.measure == "bandwidth" and not windows and kind.window is None:
        unknown.append(NotInOutput(MissingItem.WINDOW))
    if "Iterations" not in table.headings:
        unknown.append(NotInOutput(MissingItem.ITERATIONS))
    if "datatype" not in facts and test.like != "barrier":  # before version 7.1
        unknown.append(NotInOutput(MissingItem.DTYPE, assumed="MPI_FLOAT" if test.reduces else "MPI_CHAR"))
    memory = (facts["sender"], facts["receiver"]) if "sender" in facts else ()
    doubts = table.doubts()
    if len(set(memory)) > 1:
        doubts.append(MixedMemory(memory))
    stored: dict[str, Any] = {"interface": library, **start_facts(context)}
    if facts.get("datatype"):
        stored["datatype"] = facts["datatype"]
    if memory:
        stored["memory"] = list(memory)
    stored |= {name.lower(): short(facts[name]) for name in ("Window creation", "Synchronization") if name in facts}
    contradicted = extent.contradicted if test.pairs != "one" else ()
    yield ImportedTable("osu", facts["version"] or None, test.program, kind.statistic, rows, hosts, stored, unknown, doubts, contradicted)


OSU = Importer("osu", "OSU Micro-Benchmarks", lines_with(_TITLE, words=["OSU"]), _tables, _runs, output="OSU's tests")
