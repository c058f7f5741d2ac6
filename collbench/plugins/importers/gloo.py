"""Read the output of Gloo's own benchmark.

The figures (source of 2025, gloo/benchmark/runner.cc) are quantiles over the iterations of all threads on rank 0, truncated to whole
microseconds unless --nanos was given. Ranks do not synchronize between iterations. Its GB/s are 2**30 bytes of one input by the mean;
they are not used. Until 2021 the head was "Device:", "Algorithm:", "Options:", and the columns had no size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import ConcurrentThreads, ElementSizeMismatch, InputBuffers, MissingItem, lacks
from collbench.plugins.importers.rows import Quantiles, RowKind, is_size, is_time, missing, ranks_and_nodes, short, whole
from collbench.plugins.importers.table import MICROSECONDS, NANOSECONDS, Figures, Layout, TextColumn, TextTable
from collbench.results.row import Row

_RESULTS = re.compile(r"^\s{0,400}BENCHMARK RESULTS\s*$|\belements\b.{0,200}\bp50L? \([un]s\)")
_OPTION = re.compile(r"\b(\w{1,64})=([^,\s]{0,200})")
_QUANTILES = {"p50": "time", "min": "min", "p99": "p99", "max": "max"}
_LAYOUT = Layout(
    columns=(
        TextColumn(r"size \(B\)", "size", shown=False),
        TextColumn("elements", "count", shown=False),
        # minL and minBW: in the middle of 2017
        *(TextColumn(rf"{name}L? \(us\)", field, MICROSECONDS, shown=False) for name, field in _QUANTILES.items()),
        *(TextColumn(rf"{name}L? \(ns\)", field, NANOSECONDS, shown=False) for name, field in _QUANTILES.items()),
        TextColumn(r"(?:min|p50|p99|max)(?:BW)? \(GB/s\)", "rate", shown=False),
        TextColumn(r"bandwidth \(GB/s\)", "mean_rate"),
        TextColumn("iterations|samples"),
    ),
    headings=re.compile(r"\belements\b.{0,200}\bp50L? \([un]s\)"),
    begins=re.compile(r"^ +(?P<benchmark>[A-Z][A-Z0-9_]{1,63})\s*$"),
    renews=re.compile(r"Devices?: *(?P<device>.*)"),
    inherits=False,
    facts=(re.compile(r"^Options: *(?P<options>.*)"), re.compile(r"^Algorithm: *(?P<algorithm>.*)")),
    remarks=re.compile(r"(?:\S{1,40} vs \S{1,40}\. )?Mismatch at index: \[?[\d, ]{1,40}\]?"),
)
_FLOAT_BYTES = 4


class _GlooMeaning(msgspec.Struct, frozen=True):
    """A benchmark in collbench's terms.

    like    collbench's operation with the same bus factor, or None
    factor  from n ranks to a factor: the size by collbench's definition in units of the printed elements
    width   bytes per element, if sizes are printed with another width
    calls   messages one after the other in an iteration
    """

    operation: str
    like: str | None
    factor: Callable[[int], int] = lambda n: 1
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


def _runs(table: TextTable, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    facts = {"device": short(table.facts["device"])} if table.facts.get("device") else {}
    facts |= {name: short(value) for name, value in _OPTION.findall(table.facts.get("options", ""))}
    program = short(table.facts.get("benchmark") or table.facts.get("algorithm") or "unnamed").lower()
    plain = program.removeprefix("new_").removeprefix("cuda_")
    base = plain
    if plain not in _MEANINGS:
        base = next((name for name in _ALGORITHMS if plain.startswith(f"{name}_")), plain)
    algorithm = plain.removeprefix(f"{base}_") if base != plain else None
    meaning = _MEANINGS.get(base) or _GlooMeaning(plain, None)
    extent = ranks_and_nodes(user_input, whole(facts.get("processes", "")), None, f"{program} (line {table.number})")
    inputs, threads = (whole(facts.get(name, "1")) or 1 for name in ("inputs", "threads"))
    kind = RowKind(
        meaning.operation, "gloo", "gloo", _dtype(table, meaning), extent.ranks, extent.nodes,
        f"median over the iterations on rank 0{', half the round trip' if meaning.calls > 1 else ''}",
        device="cuda" if program.startswith("cuda_") else "cpu",
        redop="sum" if meaning.like in ("allreduce", "reduce", "reducescatter") else None,
        root=0 if meaning.like in ("broadcast", "reduce", "scatter") else None, mode="pipelined", like=meaning.like,
        also={
            "algorithm": algorithm, "streams": None if threads == 1 else threads,
            "traffic": meaning.traffic or (f"{inputs} inputs" if inputs > 1 else None),
        },
    )  # fmt: skip
    wrong = 0 if facts.get("verify") == "true" else None
    rows_or_none = [_row(table, meaning, kind, figures, wrong) for figures in table.figures()]
    rows = [row for row in rows_or_none if row is not None]
    if rows and table.remarks:
        detail = f"at least this many (only the first are listed): {table.remarks[0]}"
        rows[-1] = rows[-1].with_figures(checked=1, wrong=len(table.remarks), wrong_detail=detail)
    doubts = table.doubts()
    if meaning.width:
        doubts.append(ElementSizeMismatch(program, meaning.width))
    if threads > 1:
        doubts.append(ConcurrentThreads(threads))
    if inputs > 1:
        doubts.append(InputBuffers(inputs))
    unknown = [*missing(extent.nodes), *lacks(MissingItem.VERSION, MissingItem.OTHER_RANKS)]
    yield ImportedTable("gloo-benchmark", None, program, kind.statistic, rows, (), facts, unknown, doubts, extent.contradicted)


def _dtype(table: TextTable, meaning: _GlooMeaning) -> str:
    """Return the type by the bytes per element: it has char, 16-bit and 32-bit floats, and moves 64-bit numbers in its all-to-all."""
    if meaning.width:
        return "uint64"
    for figures in table.figures():
        if figures.size and figures.values.get("count"):
            return {1: "int8", 2: "float16"}.get(int(figures.size // figures.values["count"]), "float32")
    return "float32"


def _row(table: TextTable, meaning: _GlooMeaning, kind: RowKind, figures: Figures, wrong: int | None) -> Row | None:
    elements = whole(figures.words.get("count", ""))
    printed_size = figures.size if "size" in figures.words else (elements or 0) * _FLOAT_BYTES
    size = None
    if elements is not None and printed_size is not None:
        size = (elements * meaning.width if meaning.width else printed_size) * meaning.factor(kind.ranks)
    if elements is None or size is None or (size and not is_size(size)):
        table.unreadable.append(figures.line)
        return None
    times = {name: figures.values[name] / meaning.calls for name in _QUANTILES.values() if name in figures.values}
    p50 = times.pop("time", 0.0)
    if not any("GB/s" in heading for heading in table.headings):  # versions before July 2017 printed p90 as p99, and p99 as max
        times.pop("p99", None)
        if "max" in times:
            times["p99"] = times.pop("max")
    if not is_time(p50):
        return kind.without_figures(size, elements, figures.line, "the median is 0 (cut to whole microseconds): use --nanos")
    return kind.row(size, p50, line=figures.line, count=elements, spread=Quantiles(**times), wrong=wrong, printed=figures.printed)


GLOO = Importer(
    "gloo", "gloo's benchmark", lines_with(_RESULTS, words=["BENCHMARK RESULTS", "elements"]), _LAYOUT.tables, _runs,
    output="Gloo's benchmark",
)  # fmt: skip
