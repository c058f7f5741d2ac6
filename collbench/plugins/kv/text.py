"""Output of `collbench kv`: a table of the transfers with the costs per transfer and per block, or a record per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from collbench.plugins.kv.records import CostsInconclusive, KvRow, TransferCosts, costs_of, is_known
from collbench.report.cases import NOTHING, rate
from collbench.report.frame import Column, Frame, Line, csv_of, printable, table_lines, without_empty
from collbench.report.screen import check_format, print_lines, width_of, wrapped
from collbench.results.estimate import Estimate
from collbench.results.flags import explain, flag_names
from collbench.results.store import to_line
from collbench.units import format_percent, format_rate, format_size, format_time, plural

FORMATS = ("table", "csv", "json")
_SKEW = "skew_limited"


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None else format_time(seconds)


def _percent(value: float | None) -> str:
    return NOTHING if value is None else format_percent(value)


def _interval(row: KvRow) -> str:
    low, high = row.time_s.low, row.time_s.high
    return NOTHING if low is None or high is None else f"{format_time(low)}–{format_time(high)}"


_COLUMNS: tuple[Column[KvRow], ...] = (
    Column("", "method", lambda row: row.method),
    Column("", "blocks", lambda row: f"{row.blocks:,}", right=True),
    Column("", "block", lambda row: format_size(row.block_bytes), right=True),
    Column("", "time µs", lambda row: _time(row.time_s.value), right=True),
    Column("", "95 % CI µs", _interval, right=True, drop=4),
    Column("", "GB/s", lambda row: rate(row.bytes_per_s), right=True),
    Column("", "of link", lambda row: _percent(row.percent), right=True, drop=1),
    Column("", "µs per block", lambda row: _time(row.s_per_block), right=True),
    Column("", "copies µs", lambda row: _time(row.copy_s), right=True, drop=3),
    Column("", "of first token", lambda row: _percent(row.first_token_percent), right=True, drop=2),
    Column("", "wrong", lambda row: NOTHING if row.wrong is None else str(row.wrong), right=True),
    Column("", "flags", lambda row: ", ".join(flag_names(row.flags)) or NOTHING, wrap=True),
)


def style(row: KvRow) -> str:
    """Return the style of the row's line."""
    return "wrong" if row.wrong else "na" if row.na else ""


def sorted_rows(rows: Sequence[KvRow]) -> list[KvRow]:
    """Return the rows by size and number of blocks, the fastest method first."""
    return sorted(rows, key=lambda row: (row.block_bytes, row.blocks, row.na is not None, row.time_s.value or 0.0, row.method))


def frame_of(rows: Sequence[KvRow]) -> Frame[KvRow]:
    """Return the table of the rows; columns that are empty in all rows are left out."""
    rows = sorted_rows(rows)
    columns = without_empty(_COLUMNS, rows)
    return Frame(columns, rows, style=style, instead=lambda row: f"n/a ({row.na})" if row.na else None, names_hidden=True)


def title(rows: Sequence[KvRow]) -> str:
    """Return the headline: "kv prefill-decode · 1 rank sends, 1 receives · llama-3.1-8b · 512 tokens · bf16 · layer-first"."""
    first = rows[0]
    parts = [f"kv {first.pattern}", f"{plural(first.sources, 'rank')} to {first.targets}", plural(first.nodes, "node")]
    if first.model:
        parts += [first.model, plural(first.tokens, "token"), f"blocks of {first.block_tokens}", first.cache_dtype, first.layout]
    return " · ".join(parts)


def blocks_text(row: KvRow) -> str:
    """Return the size of a block: "32 KiB"."""
    return format_size(row.block_bytes)


def _cost(cost: Estimate, noun: str) -> str:
    if not is_known(cost) or cost.value is None or cost.low is None or cost.high is None:
        return f"per {noun} inconclusive"
    return f"{format_time(cost.value)} µs per {noun} ({format_time(cost.low)}–{format_time(cost.high)})"


def cost_text(costs: TransferCosts) -> str:
    """Return the sentence of a method's costs: "mpi-type: 12.1 µs per transfer (10.9–13.3) + 0.21 µs per block (…) + bytes at 5.2 GB/s"."""
    if not any(map(is_known, (costs.transfer_s, costs.block_s, costs.byte_s))):
        return f"{costs.method}: the costs per transfer, per block and per byte are inconclusive"
    value = costs.byte_s.value
    moved = f"bytes at {format_rate(1 / value)} GB/s" if is_known(costs.byte_s) and value else "rate of the bytes inconclusive"
    return f"{costs.method}: {_cost(costs.transfer_s, 'transfer')} + {_cost(costs.block_s, 'block')} + {moved}"


def _remarks(rows: Sequence[KvRow]) -> Iterator[str]:
    for row in rows:
        if row.wrong:
            yield f"{row.method}: {row.wrong_detail or 'wrong data'}"
    yield from (f"limiting link: {row.limited_by}" for row in rows if row.limited_by)
    if any(row.na is None and row.nodes == 1 for row in rows):
        yield "all ranks are on one host: memory limits the transfers, and no share of a link is shown"
    costs = costs_of(rows)
    yield from (cost_text(each) for each in costs if isinstance(each, TransferCosts))
    for why in dict.fromkeys(each.why for each in costs if isinstance(each, CostsInconclusive)):
        methods = [each.method for each in costs if isinstance(each, CostsInconclusive) and each.why == why]
        yield CostsInconclusive(", ".join(methods), why).render()
    yield from explain(flag for row in rows for flag in row.flags if flag != _SKEW)
    if any(_SKEW in row.flags for row in rows):
        yield "start skew: start skew exceeds 10 % of the time: the time may be overestimated by that much; use more or larger blocks"


def remarks(rows: Sequence[KvRow]) -> list[str]:
    """Return the sentences below the table: wrong data, the limiting link, the costs, and the flags' meanings."""
    return list(dict.fromkeys(_remarks(rows)))


def lines(rows: Sequence[KvRow], width: int | None = None) -> Iterator[Line]:
    """Yield the headline, the table and the sentences below it."""
    if not rows:
        return
    yield Line(printable(title(rows)), "head")
    yield from table_lines(frame_of(rows), width)
    yield from (Line(printable(text), "foot") for text in remarks(rows))


def kv_values(row: KvRow) -> dict[str, Any]:
    """Return the row without nested records, by field of CSV."""
    names = ("method", "backend", "pattern", "layout", "model", "tokens", "block_tokens", "cache_dtype", "sources", "targets", "nodes",
             "blocks", "block_bytes", "busiest", "size_bytes", "na", "n")  # fmt: skip
    return {name: getattr(row, name) for name in names} | {
        "time_s": row.time_s.value, "time_low_s": row.time_s.low, "time_high_s": row.time_s.high, "bytes_per_s": row.bytes_per_s,
        "s_per_block": row.s_per_block, "expected_s": row.expected_s, "percent_of_link": row.percent, "limited_by": row.limited_by or None,
        "copy_s": row.copy_s, "first_token_percent": row.first_token_percent, "start_skew_s": row.start_skew_s,
        "checked": row.checked, "wrong": row.wrong, "wrong_detail": row.wrong_detail, "flags": " ".join(flag_names(row.flags)),
    }  # fmt: skip


def write_kv(rows: Sequence[KvRow], format: str, out: TextIO, *, color: bool, run: str = "", headed: bool = False) -> None:
    """Print rows: as a table, csv or json (a record per row). run, headed: see `training.write_steps`. Raises UsageError."""
    check_format(format, FORMATS, " for kv")
    if format == "csv":
        found = list(csv_of([{"run": run, **kv_values(row)} for row in sorted_rows(rows)], headed))
    elif format == "json":
        found = [Line(to_line(row.as_json())) for row in sorted_rows(rows)]
    else:
        width = width_of(out)
        found = list(wrapped(lines(rows, width), width))
    print_lines(found, out, color)
