"""How each number on the page was made, in a line each: of those numbers that occur on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from collbench.report.html.chart import Table
from collbench.report.html.material import Material
from collbench.results.row import Row

_TIME = (
    "the median over iterations of the slowest rank's time per message, in µs; the ranks meet before each sample (mode isolated), or calls "
    "follow each other (batched, pipelined, graph)"
)
_LAUNCHES = "the median of the launches' medians"
_INTERVAL = "covers the median with 95 %, from order statistics, widened for autocorrelation; it speaks for one launch"
_OVER_LAUNCHES = "covers the median over launches with 95 %; the launch is the unit of evidence"
_DOUBTED = ". “?” before it: a flag says why it is not to be taken at its word"
_ALGBW = "message size / time; GB/s is 1e9 bytes per second, one direction, and sizes are powers of 1024"
_BUSBW = (
    "algbw × the bus factor of the operation (2(n−1)/n for all-reduce, (n−1)/n for all-gather, reduce-scatter, all-to-all, gather and "
    "scatter, 1 for broadcast, reduce and point-to-point), so that it compares with a link"
)
_CEILING = (
    "busbw / the ceiling: between hosts and GPUs what a ring on the slowest link reaches, from probed rates; inside a host a copy or "
    "stream measured by all ranks before the first cell; or the figure given. The second percentage is of the hard limit, which no "
    "algorithm can exceed. None where no rate is known, or a flag takes it away"
)
_WRONG = "elements that differ from what had to arrive, counted after the timed iterations; “–”: not checked"
_CANARY = "the time that a cache line takes between two ranks, before and after each cell: it tells whether the machine's state changed"
_IMPORTED = (
    "that tool's own statistic, which Provenance names; bandwidths follow from it by the definitions below, and neither samples nor an "
    "interval within a launch stand behind it"
)
_PAIRS = (
    "latency and bandwidth of each direction of every pair, disjoint pairs at the same time, every message verified; who seemed slow was "
    "measured again, alone, before it was named"
)


def made_table(material: Material) -> Table:
    """What is shown, and how it was made."""
    return Table(("number", "how it was made"), list(_lines(material)))


def _lines(material: Material) -> Iterator[tuple[str, str]]:
    rows = [row for table in material.tables for row in table.rows]
    yield from _times(rows)
    if any(row.busbw_bytes_per_s is not None for row in rows):
        yield from (("algbw", _ALGBW), ("busbw", _BUSBW))
    if any(row.ceiling is not None for row in rows):
        yield "of ceiling", _CEILING
    if any(row.wrong is not None for row in rows):
        yield "wrong", _WRONG
    if any(value is not None for row in rows for value in row.canary_s.values()):
        yield "canary", _CANARY
    if material.pairs:
        yield "pairs", _PAIRS


def _times(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    measured = [row for row in rows if "imported" not in row.flags]
    launches = {row.launches > 1 for row in rows if row.time_s is not None and row.time_s.ci_low is not None}
    if measured:
        yield "time", _TIME
    if any(row.launches > 1 for row in rows):
        yield "time of several launches", _LAUNCHES
    if len(measured) < len(rows):
        yield "time of what is imported", _IMPORTED
    if False in launches:
        yield "95 % interval", _INTERVAL + _DOUBTED
    if True in launches:
        yield "95 % interval over launches", _OVER_LAUNCHES + _DOUBTED
