"""Read the output of Gloo's own benchmark.

The figures (source of 2025, gloo/benchmark/runner.cc) are quantiles over the iterations of all threads on rank 0, truncated to whole
microseconds unless --nanos was given. Ranks do not synchronize between iterations. Its GB/s are 2**30 bytes of one input by the mean;
they are not used. Until 2021 the head was "Device:", "Algorithm:", "Options:", and the columns had no size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from collbench.plugins.importers.importer import ImportedTable, Importer, TextTable, UserInput
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import ConcurrentThreads, ElementSizeMismatch, ImportDoubt, InputBuffers, MissingItem, lacks
from collbench.plugins.importers.rows import Quantiles, RowKind, is_size, is_time, missing, parse_number, ranks_and_nodes, short, whole
from collbench.results.row import Row

_UNNAMED = "unnamed"
_RESULTS, _ERRORS = "BENCHMARK RESULTS", "VERIFY ERRORS"
_NAME = re.compile(r"^ +([A-Z][A-Z0-9_]{1,63})\s*$")
_HEADING = re.compile(r"^(Device|Devices|Options|Algorithm): *(.*)$")
_OPTION = re.compile(r"\b(\w{1,64})=([^,\s]{0,200})")
_COLUMN = re.compile(
    r"size \(B\)|elements|(?:min|p50|p99|max)L? \([un]s\)|(?:min|p50|p99|max)(?:BW)? \(GB/s\)|bandwidth \(GB/s\)|iterations|samples"
)  # minL and minBW: in the middle of 2017
_MISMATCH = re.compile(r"(?:\S{1,40} vs \S{1,40}\. )?Mismatch at index: \[?[\d, ]{1,40}\]?")
_UNITS = {"us": 1e-6, "ns": 1e-9}
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class _GlooMeaning:
    """A benchmark in collbench's terms.

    like    collbench's operation with the same bus factor, or None
    held    from n ranks to a factor: the size by collbench's definition in units of the printed elements
    width   bytes per element, if sizes are printed with another width
    calls   messages one after the other in an iteration
    """

    operation: str
    like: str | None
    held: Callable[[int], int] = lambda n: 1
    width: int | None = None
    calls: int = 1
    traffic: str | None = None


# gloo/benchmark/main.cc; in the uneven ones rank i sends i parts, and i + n - k parts to rank k.
_MEANINGS = {
    "allgather": _GlooMeaning("allgather", "allgather", lambda n: n),
    "allgather_v": _GlooMeaning("allgatherv", "allgatherv", lambda n: n * (n - 1) // 2, traffic="uneven"),
    "allreduce": _GlooMeaning("allreduce", "allreduce"),
    "allreduce_local": _GlooMeaning("allreduce_local", None),  # within each process
    "alltoall": _GlooMeaning("alltoall", "alltoall", lambda n: n, width=8),
    "alltoall_v": _GlooMeaning("alltoallv", "alltoallv", lambda n: n * n + n * (n - 1) // 2, width=8, traffic="uneven"),
    "barrier": _GlooMeaning("barrier", "barrier", lambda n: 0),
    "broadcast": _GlooMeaning("broadcast", "broadcast"),
    "reduce": _GlooMeaning("reduce", "reduce"),
    "reduce_scatter": _GlooMeaning("reducescatter", "reducescatter"),
    "scatter": _GlooMeaning("scatter", "scatter", lambda n: n),
    "sendrecv_roundtrip": _GlooMeaning("p2p_latency", "p2p_latency", calls=2),
}
_ALGORITHMS = ("allgather", "allreduce", "barrier", "broadcast")


@dataclass
class _GlooTable(TextTable):
    """One benchmark's output."""

    mismatches: list[str] = field(default_factory=list)


def knows(lines: Sequence[str]) -> bool:
    """Return whether these lines have the heading of its results, or their columns."""
    return any(line.strip() == _RESULTS or ("elements" in line and len(_COLUMN.findall(line)) >= 5) for line in lines)


def _tables(lines: Sequence[str]) -> list[_GlooTable]:
    tables: list[_GlooTable] = []
    for at, line in enumerate(lines, start=1):
        name = _NAME.match(line)
        if name and name[1] not in (_RESULTS, _ERRORS) and not (tables and tables[-1].columns and not tables[-1].lines):
            tables.append(_GlooTable(at, name[1].lower()))
            continue
        heading = _HEADING.match(line)
        begins = heading is not None and heading[1].startswith("Device") and bool(not tables or tables[-1].columns)
        if begins or (not tables and _COLUMN.search(line)):
            tables.append(_GlooTable(at, _UNNAMED))
        if not tables:
            continue
        table, columns = tables[-1], _COLUMN.findall(line)
        if len(columns) >= 5:
            table.columns = [title.replace("L (", " (").replace("BW (", " (") for title in columns]
        elif heading:
            title, value = heading[1], heading[2].strip()
            if title == "Algorithm" and table.name == _UNNAMED and value:
                table.name = short(value).lower()
            elif title == "Options":
                table.facts |= dict(_OPTION.findall(value))
            elif value:
                table.facts["device"] = short(value)
        elif mismatch := _MISMATCH.search(line):
            table.mismatches.append(mismatch[0])
        elif table.columns and line.strip()[:1].isdigit():
            table.add(at, line.split())
    return [table for table in tables if table.lines or table.bad]


def _runs(table: _GlooTable, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    plain = table.name.removeprefix("new_").removeprefix("cuda_")
    base = next((base for base in _ALGORITHMS if plain.startswith(f"{base}_") and plain not in _MEANINGS), plain)
    algorithm = plain.removeprefix(f"{base}_") if base != plain else None
    meaning = _MEANINGS.get(base) or _GlooMeaning(plain, None)
    extent = ranks_and_nodes(user_input, whole(table.facts.get("processes", "")), None, f"{table.name} (line {table.number})")
    inputs, threads = (whole(table.facts.get(name, "1")) or 1 for name in ("inputs", "threads"))
    kind = RowKind(
        meaning.operation, "gloo", "gloo", _dtype(table, meaning), extent.ranks, extent.nodes,
        f"median over the iterations on rank 0{', half the round trip' if meaning.calls > 1 else ''}",
        device="cuda" if table.name.startswith("cuda_") else "cpu",
        redop="sum" if meaning.like in ("allreduce", "reduce", "reducescatter") else None,
        root=0 if meaning.like in ("broadcast", "reduce", "scatter") else None, mode="pipelined", like=meaning.like,
        also={
            "algorithm": algorithm, "streams": None if threads == 1 else threads,
            "traffic": meaning.traffic or (f"{inputs} inputs" if inputs > 1 else None),
        },
    )  # fmt: skip
    made = [_row(table, meaning, kind, line, figures) for line, figures in table.lines]
    rows = [row for row in made if row is not None]
    if rows and table.mismatches:
        detail = f"at least this many (only the first are listed): {table.mismatches[0]}"
        rows[-1] = rows[-1].with_figures(checked=1, wrong=len(table.mismatches), wrong_detail=detail)
    doubts: list[ImportDoubt] = table.doubts()
    doubts += [ElementSizeMismatch(table.name, meaning.width)] if meaning.width else []
    doubts += [ConcurrentThreads(threads)] if threads > 1 else []
    doubts += [InputBuffers(inputs)] if inputs > 1 else []
    yield ImportedTable(
        "gloo-benchmark", None, table.name, kind.statistic, rows, facts=table.facts,
        missing=[*missing(extent.nodes), *lacks(MissingItem.VERSION, MissingItem.OTHER_RANKS)], doubts=doubts,
        contradicted=extent.contradicted,
    )  # fmt: skip


def _dtype(table: _GlooTable, meaning: _GlooMeaning) -> str:
    """Return the type by the bytes per element: it has char, 16-bit and 32-bit floats, and moves 64-bit numbers in its all-to-all."""
    if meaning.width:
        return "uint64"
    for _, figures in table.lines:
        size, elements = whole(figures.get("size (B)", "")), whole(figures.get("elements", ""))
        if size and elements:
            return {1: "int8", 2: "float16"}.get(size // elements, "float32")
    return "float32"


def _row(table: _GlooTable, meaning: _GlooMeaning, kind: RowKind, line: int, figures: dict[str, str]) -> Row | None:
    elements = whole(figures.get("elements", ""))
    printed = whole(figures.get("size (B)", "")) if "size (B)" in figures else (elements or 0) * _FLOAT_BYTES
    if elements is None or printed is None:
        return None
    size = (elements * meaning.width if meaning.width else printed) * meaning.held(kind.ranks)
    if size and not is_size(size):
        return None
    times = {
        name: value * seconds / meaning.calls
        for unit, seconds in _UNITS.items()
        for name in ("p50", "min", "p99", "max")
        if (value := parse_number(figures.get(f"{name} ({unit})", ""))) is not None
    }
    p50 = times.pop("p50", 0.0)
    if not any("GB/s" in title for title in table.columns):  # versions before July 2017 printed p90 as p99, and p99 as max
        times.pop("p99", None)
        times |= {"p99": times.pop("max")} if "max" in times else {}
    if not is_time(p50):
        return kind.without_figures(size, elements, line, "the median is 0 (cut to whole microseconds): use --nanos")
    extra = {name: word for name, word in figures.items() if name in ("bandwidth (GB/s)", "iterations", "samples")}
    wrong = 0 if table.facts.get("verify") == "true" else None
    return kind.row(size, p50, line=line, count=elements, spread=Quantiles(**times), wrong=wrong, printed=extra)


GLOO = Importer("gloo", "gloo's benchmark", knows, _tables, _runs, output="Gloo's benchmark")
