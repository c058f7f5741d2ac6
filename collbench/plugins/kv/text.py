"""What tables of block transfers say besides their columns: the headline, the order of rows, the costs per transfer and per block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from collbench.plugins.kv.records import CostsInconclusive, KvRow, TransferCosts, costs_of, is_known
from collbench.records import RecordKind
from collbench.report.kinds import DeclaredKind
from collbench.results.estimate import Estimate
from collbench.results.flags import explain
from collbench.units import format_percent, format_rate, format_size, format_time, plural

if TYPE_CHECKING:
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material


_SKEW = "skew_limited"


def style(row: KvRow) -> str:
    """Return the style of the row's line."""
    if row.wrong:
        return "wrong"
    return "na" if row.na else ""


def sorted_rows(rows: Sequence[KvRow]) -> list[KvRow]:
    """Return the rows by size and number of blocks, the fastest method first."""
    return sorted(rows, key=lambda row: (row.block_bytes, row.blocks, row.na is not None, row.time_s.value or 0.0, row.method))


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
    yield from (cost_text(cost) for cost in costs if isinstance(cost, TransferCosts))
    inconclusive = [cost for cost in costs if isinstance(cost, CostsInconclusive)]
    for why in dict.fromkeys(cost.why for cost in inconclusive):
        yield CostsInconclusive(", ".join(cost.method for cost in inconclusive if cost.why == why), why).render()
    yield from explain(flag for row in rows for flag in row.flags if flag != _SKEW)
    if any(_SKEW in row.flags for row in rows):
        yield "start skew: start skew exceeds 10 % of the time: the time may be overestimated by that much; use more or larger blocks"


def remarks(rows: Sequence[KvRow]) -> list[str]:
    """Return the sentences below the table: wrong data, the limiting link, the costs, and the flags' meanings."""
    return list(dict.fromkeys(_remarks(rows)))


def _kept(rows: Sequence[KvRow]) -> dict[str, str]:
    costs = {cost_text(cost): "" for cost in costs_of(rows) if isinstance(cost, TransferCosts)}
    return costs | {f"{row.method}: {row.wrong_detail or 'wrong data'}": "wrong" for row in rows if row.wrong}


BLOCK_TRANSFERS = RecordKind(
    "kv", KvRow, title, lambda rows: remarks(sorted_rows(rows)), sorted_rows, style, records=sorted_rows, kept=_kept
)


# The kind of run.


class KvKind(DeclaredKind):
    """Block transfers."""

    what = "block transfers"
    declared = BLOCK_TRANSFERS

    def place_of(self, row: KvRow) -> str:
        """Return the method."""
        return f"kv by {row.method}"

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the fastest method for the most bytes."""
        from collbench.plugins.kv.page import fastest_text, most_bytes, result
        from collbench.report.html.first_screen import BAD, DOUBT, PLAIN, FirstScreen, LargeFigure, line_of

        runs = material.of_kind(self.name)
        rows = [row for _, run_rows in runs for row in run_rows]
        if not rows:
            return None
        line = line_of(runs[0][0])
        best = most_bytes(rows)
        if not best:
            return FirstScreen(f"{title(rows)}: not measured ({rows[0].na})", (DOUBT, "NOT MEASURED"), (), line, (), "kv")
        first, *slower = best
        figures = [
            LargeFigure(f"{format_rate(first.bytes_per_s or 0.0)} GB/s", f"{first.method}: all blocks, until the last target has them")
        ]
        if first.percent_of_link is not None:
            figures.append(LargeFigure(format_percent(first.percent_of_link), f"of the rate of {first.limited_by}"))
        if first.first_token_percent is not None:
            figures.append(LargeFigure(format_percent(first.first_token_percent), "of the time to first token"))
        badge = (BAD, "WRONG DATA") if any(row.wrong for row in rows) else (PLAIN, "MEASURED")
        answer = f"{fastest_text(best)} for {plural(first.blocks, 'block')} of {blocks_text(first)}, {result(first)}"
        notes = [f"{row.method}: {result(row)}" for row in slower]
        return FirstScreen(f"{title(rows)}: {answer}", badge, figures, line, notes, "kv")


KV = KvKind()
