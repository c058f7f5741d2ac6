"""The output format of nccl-tests: its columns, its comments, its rules for figures (2.19, src/util.cu).

Differences, all in comments or as N/A: the time is the median over iterations of the slowest rank (of the slowest of several groups).
The four columns of a placing that was not measured are N/A; so is the busbw of one rank, and the algbw of a barrier, which nccl-tests
does not have. sendrecv of nccl-tests prints a redop that it does not use. Its hypercube prints an empty one, which would shift the
columns of parsers; here it is "none".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from collbench import __version__
from collbench.analysis.launches import forced
from collbench.errors import UsageError
from collbench.operations.case import parse_split
from collbench.report.cases import ONE_RANK, format_groups, name_of, times, two_modes
from collbench.report.frame import Line, printable
from collbench.report.plan import PlanSummary, is_several
from collbench.report.writers import RowWriter, stopped_by
from collbench.results.flags import explain
from collbench.results.row import SERIES, Row
from collbench.units import format_size

_TYPES = {"float64": "double", "float32": "float", "float16": "half"}
_REDOPS = {"sendrecv": "sum"}  # src/sendrecv.cu iterates over the redops, and sum is the default
_MISSING = "  {:>7}  {:>6}  {:>6}  {:>6}".format(*["N/A"] * 4)
_HEADER = [
    "#",
    "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}           out-of-place                       in-place          ".format(*[""] * 5),
    "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6} ".format(
        "size", "count", "type", "redop", "root", *["time", "algbw", "busbw", "#wrong"] * 2
    ),
    "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6} ".format(
        "(B)", "(elements)", "", "", "", *["(us)", "(GB/s)", "(GB/s)", ""] * 2
    ),
]


class NcclTestsWriter(RowWriter):
    """One block, with its own head and foot, per series of rows that one nccl-tests program measures.

    Rows that differ in the placing only are one line: the first is held until the second is there.
    """

    absent = "# "

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._block: list[Row] = []
        self._waiting: Row | None = None

    def start(self, plan: PlanSummary) -> list[Line]:
        """Return nothing: each block has its own head."""
        self._plan = plan
        self._pairs = plan.varies("in_place")
        return []

    def row(self, row: Row) -> list[Line]:
        """Return the line of the row; where a block begins, also the foot of the last one and the new head."""
        lines: list[str] = []
        if self._block and _series(row) != _series(self._block[-1]):
            lines += self._close()
        if not self._block:
            lines += self._head(row)
        self._block.append(row)
        return [Line(text, "wrong" if row.wrong else "") for text in [*lines, *self._paired(row)]]

    def end(self) -> list[Line]:
        """Return the foot of the last block."""
        return [Line(text) for text in self._close()]

    def _paired(self, row: Row) -> Iterator[str]:
        before = self._waiting
        self._waiting = None
        if before is not None and before.size_bytes == row.size_bytes and before.in_place != row.in_place:
            yield from _line(before, row)
            return
        yield from _line(before)
        if self._pairs:
            self._waiting = row
        else:
            yield from _line(row)

    def _head(self, row: Row) -> list[str]:
        smallest, largest, warmup, iterations = self._requested(row)
        processes = Counter((str(place.get("host")), str(place.get("pid"))) for place in self._plan.rank_map)
        gpus = max(processes.values(), default=1)
        return [
            f"# collbench version {__version__}, format of nccl-tests 2.19; time is the median over iterations of the slowest rank",
            f"# Collective test starting: {_program(row)}",
            f"# nThread 1 nGpus {gpus} minBytes {smallest} maxBytes {largest} warmup iters: {warmup} iters: {iterations} "
            f"agg iters: 1 validation: {row.checked} graph: {int(row.mode == 'graph')}",
            "#",
            "# Using devices",
            *(_device(place, row) for place in self._plan.rank_map),
            *_HEADER,
        ]

    def _requested(self, row: Row) -> list[Any]:
        """Return the smallest and largest size, and the numbers of warm-ups and iterations, as requested; run.json may be damaged."""
        sizes = self._plan.sizes or {row.size_bytes}
        options = self._plan.requested.get("options")
        span = self._plan.requested.get("span")
        counts = [options.get(name) for name in ("--warmup", "--iterations")] if isinstance(options, dict) else [None, None]
        ends = span if isinstance(span, list) and len(span) == 2 else [None, None]
        defaults = (min(sizes), max(sizes), "adaptive", "adaptive")
        return [value if isinstance(value, int) else default for value, default in zip([*ends, *counts], defaults, strict=True)]

    def _close(self) -> list[str]:
        rows = self._block
        waiting = self._waiting
        self._block = []
        self._waiting = None
        if not rows:
            return []
        bad = sum(1 for row in rows if row.wrong)
        rates = [row.busbw_bytes_per_s / 1e9 for row in rows if row.busbw_bytes_per_s is not None and row.ranks > 1 and row.na is None]
        average = f"{sum(rates) / len(rates):g}" if rates else "N/A"
        return [
            *_line(waiting),
            f"# {'Out of bounds values':<20} : {bad} {'FAILED' if bad else 'OK'}",
            f"# {'Avg bus bandwidth':<20} : {average} ",
            *_remarks(rows),
            "#",
            f"# Collective test concluded: {_program(rows[0])}",
            "#",
            "",
        ]


def figure(value: float, width: int) -> str:
    """Return a figure by the rule of nccl-tests: two decimals if they fit `width`, else one, none, or an exponent."""
    for form in (f"{width}.2f", f"{width}.1f", f"{width}.0f"):
        text = format(value, form)
        if len(text) <= width:
            return text
    return format(value, f"{width}.{1 if width >= 7 else 0}e")


def _series(row: Row) -> list[Any]:
    return [getattr(row, name) for name in SERIES if name != "in_place"]


def _line(*placings: Row | None) -> Iterator[str]:
    """Yield the line of a row, or of two that differ in the placing only; before it a comment for each n/a row."""
    rows = [row for row in placings if row is not None]
    measured = {row.in_place: row for row in rows if row.na is None}
    for row in rows:
        if row.na is not None:
            parts = [name_of(row), row.backend, row.dtype, row.redop, "in place" if row.in_place else "", *_extras(row)]
            yield printable(f"# n/a: {' '.join(part for part in parts if part)}: {row.na}")
    if measured:
        first = next(iter(measured.values()))
        dtype = printable(_TYPES.get(first.dtype, first.dtype))
        redop = printable(first.redop or _REDOPS.get(first.operation, "none"))
        root = -1 if first.root is None else first.root
        head = f"{first.size_bytes:>12}  {first.count:>12}  {dtype:>8}  {redop:>6}  {root:>6}"
        yield head + "".join(_body(measured.get(in_place)) for in_place in (False, True))


def _body(row: Row | None) -> str:
    if row is None:
        return _MISSING
    time = row.time_s.p50 if row.time_s else None
    busbw = row.busbw_bytes_per_s if row.ranks > 1 else None
    wrong = "N/A" if row.wrong is None else f"{row.wrong:g}"
    return f"  {_figure(time, 1e6, 7)}  {_figure(row.algbw_bytes_per_s, 1e-9, 6)}  {_figure(busbw, 1e-9, 6)}  {wrong:>6}"


def _figure(value: float | None, scale: float, width: int) -> str:
    return "N/A".rjust(width) if value is None else figure(value * scale, width)


def _program(row: Row) -> str:
    return printable(", ".join([f"{row.operation} on {row.backend}", row.mode, f"{row.buffers} buffers", *_extras(row)]))


def _extras(row: Row) -> list[str]:
    """Return what the line has no column for: registration of buffers, algorithm and protocol, groups, traffic, streams and calls."""
    registration = f"registration {row.registration}" if row.registration not in (None, "none") else ""
    groups = f"groups {row.group}" if is_several(row.group) else ""
    traffic = f"traffic {row.traffic}" if row.traffic else ""
    streams = f"{row.streams} streams" if row.streams else ""
    calls = f"{row.call} calls" if row.call else ""
    return [text for text in (registration, forced(row), groups, traffic, streams, calls) if text]


def _device(place: Mapping[str, Any], row: Row) -> str:
    numbers = (place.get(name) for name in ("rank", "pid", "local_rank"))
    rank, pid, local = (number if isinstance(number, int) else 0 for number in numbers)
    host = place.get("host") or "?"
    gpu = str(place.get("gpu") or row.device).removesuffix(".0")
    try:
        group = parse_split(row.group).colour(rank)  # as nccl-tests numbers groups
    except UsageError:
        group = 0
    return printable(f"#  Rank {rank:2d} Group {group:2d} Pid {pid:6d} on {host!s:>10} device {local:2d} [{gpu}] {row.device}")


def _remarks(rows: list[Row]) -> Iterator[str]:
    if rows[0].ranks == 1:
        yield f"# {ONE_RANK}"
    for flag in sorted({flag for row in rows for flag in row.flags}):
        sizes = ", ".join(format_size(row.size_bytes) for row in rows if flag in row.flags)
        meaning = "".join(explain([flag])) or printable(flag)
        yield printable(f"# flag at {sizes}: {meaning}")
    for row in rows:
        if two_modes(row):
            yield printable(f"# bimodal at {format_size(row.size_bytes)}: {times(row, ' us')}")
        if row.groups:
            yield printable(f"# groups at {format_size(row.size_bytes)}: {format_groups(row)}")
    yield from (f"# {line}" for line in stopped_by(rows))
