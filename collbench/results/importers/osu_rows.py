"""The rows of one OSU table: which of its columns is the time, and what else it prints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from collbench.results.importers.figures import number, whole, without_figures
from collbench.results.importers.osu_tables import Table
from collbench.results.importers.rows import Extent, Kind, is_size, is_time, type_name, width_of
from collbench.results.row import Row

_TIMES = ("Avg Latency(us)", "Latency(us)", "Pure Comm.(us)")
_RATES = ("Bandwidth(MB/s)", "MB/s")
_MPI_TYPES = {"MPI_CHAR": "int8", "MPI_INT": "int32", "MPI_FLOAT": "float32"}
_US, _MB = 1e-6, 1e6


@dataclass(frozen=True)
class _Line:
    """One line of figures: of a table, of a kind, at a number in the file."""

    table: Table
    kind: Kind
    number: int


def rows_of(table: Table, extent: Extent) -> tuple[list[Row], str]:
    """(rows in the order of the lines, what a time is)."""
    statistic = _statistic(table)
    kind = _kind(table, extent, statistic)
    make = _by_window if table.windows else _by_column
    return [row for number, words in table.lines for row in make(_Line(table, kind, number), words)], statistic


def _statistic(table: Table) -> str:
    if table.test.like is None:
        return "the tool's own mean over its iterations"
    if table.test.measure == "bandwidth":
        pairs = " of an average pair" if table.said.get("pairs", 1) > 1 else ""
        return f"mean per message{pairs}: the rate over all iterations, turned into a time"
    if table.test.pairs:
        pairs = ", averaged over the pairs" if table.test.pairs == "many" else ""
        return f"mean of half the round trips{pairs}"
    alone = ", of the communication alone" if "Pure Comm.(us)" in table.columns else ""
    return f"mean over the iterations, averaged over the ranks{alone}"


def _kind(table: Table, extent: Extent, statistic: str) -> Kind:
    test, library = table.test, table.library
    dtype = _dtype(table)
    backend = {"MPI": "mpi", "NCCL": "nccl", "RCCL": "nccl"}.get(library, library.lower())
    return Kind(
        test.operation, backend, backend, dtype, extent.ranks, extent.nodes, statistic,
        device=_device(table), redop="sum" if test.reduces else None, root=0 if test.rooted else None, in_place=test.like == "broadcast",
        mode="batched" if test.pairs else "isolated", like=test.like, window=table.said.get("window"),
        also={"traffic": "even"} if test.even else {},
    )  # fmt: skip


def _dtype(table: Table) -> str:
    told = table.said.get("datatype")
    if table.test.like == "barrier":
        return "uint8"  # as of our own rows, though nothing is moved
    if told is None:
        return "float32" if table.test.reduces else "int8"
    return _MPI_TYPES.get(told, type_name(told))


def _device(table: Table) -> str:
    memory = table.memory
    if memory is None or set(table.said.get("memory", ())) == {"HOST"}:
        return "cpu"
    return "rocm" if memory.upper() == "ROCM" else "cuda"


def _size(table: Table, kind: Kind, printed: int) -> tuple[int, int]:
    """(size by our definition, elements per call of each rank)."""
    width = width_of(kind.dtype) or 1
    if table.test.program.endswith("reduce_scatter_block"):
        part = printed // width // kind.ranks  # what does not go into equal parts is not moved
        return part * kind.ranks * width, part
    if table.test.like == "reducescatter":
        return printed, printed // width // kind.ranks
    return printed * (kind.ranks if table.test.parts else 1), printed // width


def _by_window(line: _Line, words: list[str]) -> list[Row]:
    """The rows of one line of -V: its size, then the rate with each window."""
    rows = []
    for window, figure in zip(line.table.columns, words[1:], strict=True):
        row = _row(line, whole(words[0]), figure, {"MB/s": figure})
        rows += [replace(row, window=whole(window))] if row else []
    return rows


def _by_column(line: _Line, words: list[str]) -> list[Row]:
    by_name = dict(zip(line.table.columns, words, strict=True))
    figure = next((by_name[name] for name in (*_TIMES, *_RATES) if name in by_name), None)
    size = whole(by_name["Size"]) if "Size" in by_name else 0
    row = _row(line, size, figure, by_name) if figure else None
    return [row] if row else []


def _row(line: _Line, printed: int | None, figure: str, by_name: dict[str, str]) -> Row | None:
    table, kind = line.table, line.kind
    if printed is None or not (is_size(printed) or (printed == 0 and table.test.measure == "latency")):
        return None
    size, count = _size(table, kind, printed)
    if printed and not is_size(size):
        return without_figures(kind, 0, 0, line.number, "fewer elements than ranks, so nothing is moved; or more than can be")
    time_s = _time(table, size, figure)
    if time_s is None or not is_time(time_s):
        return without_figures(kind, size, count, line.number, f"the output shows {figure[:20]}: no figure to take a time from")
    row = kind.row(size, time_s, count=count, line=line.number, **_checked(by_name))
    mean = time_s if table.test.measure == "latency" and not table.test.pairs else None
    return replace(row, time_rank_mean_s=mean, evidence={**row.evidence, **_beside(by_name)}, **_all_pairs(table, row), **_wrong(by_name))


def _time(table: Table, size: int, figure: str) -> float | None:
    value = number(figure)
    if value is None or table.test.measure == "latency":
        return None if value is None else value * _US
    ways, pairs = 2 if table.test.both_ways else 1, table.said.get("pairs", 1)
    return size * ways * pairs / (value * _MB) if value > 0 else None


def _checked(by_name: dict[str, str]) -> dict[str, Any]:
    verdict = by_name.get("Validation")
    return {"checked": int(verdict in ("Pass", "Fail")), "wrong": {"Pass": 0, "Fail": 1}.get(verdict or "")}


def _wrong(by_name: dict[str, str]) -> dict[str, Any]:
    failed = by_name.get("Validation") == "Fail"
    return {"wrong_detail": "OSU's validation failed; how many elements are wrong is not told"} if failed else {}


def _beside(by_name: dict[str, str]) -> dict[str, Any]:
    """The other columns as they are printed, numbers as numbers."""
    names = [name for name in by_name if name not in ("Size", "Validation", *_TIMES)]
    return {"printed": {name: number(by_name[name]) for name in names}} if names else {}


def _all_pairs(table: Table, row: Row) -> dict[str, Any]:
    """What all pairs moved together, where there are several."""
    pairs = table.said.get("pairs", 1)
    if pairs < 2 or row.busbw_bytes_per_s is None:
        return {}
    total = row.busbw_bytes_per_s * pairs
    groups = {"count": pairs, "ranks": 2, "p50_s": None, "busbw_bytes_per_s": None, "total_busbw_bytes_per_s": total}
    return {"groups": groups}
