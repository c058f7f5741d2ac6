"""Read the output of the tests of DeepEP and NIXL-EP: dispatch and combine of expert parallelism, low-latency, tuned and elastic.

Each rank (or the first rank of each node) prints its own lines; a row is the slowest of them. Only the elastic tests print bytes. For the
other tests the size is rate × time, rounded to three digits, so that runs of one configuration have the same size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import floor, log10
from typing import NamedTuple

import msgspec

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts, start_facts
from collbench.plugins.importers.notes import Missing, MissingItem, NotInOutput, SkippedLines, SkippedReason, lacks
from collbench.plugins.importers.rows import Quantiles, RowKind, is_time, ranks_and_nodes
from collbench.results.row import Row

_F = r"\d{1,9}(?:\.\d{1,9})?"
_AVERAGE = rf"(?P<rate>{_F}) GB/s, avg_t=(?P<time>{_F}) us"
_LOW_LATENCY = {
    "ep_dispatch_combine": rf"Dispatch \+ combine bandwidth: {_AVERAGE}, min_t=(?P<min>{_F}) us, max_t=(?P<max>{_F}) us",
    "ep_dispatch": rf"Dispatch bandwidth: {_AVERAGE}(?= \| Combine)",
    "ep_combine": rf"Dispatch bandwidth: {_F} GB/s, avg_t={_F} us \| Combine bandwidth: {_AVERAGE}",
}
_FORMS = {operation: re.compile(rf"\[rank (?P<rank>\d{{1,7}})\] {form}") for operation, form in _LOW_LATENCY.items()}
_BEST = re.compile(r"\[tuning\] Best (dispatch|combine)(?: \((FP8|BF16)\))?: (.{10,300})")
_RATE = re.compile(rf"({_F}) GB/s(?: \((RDMA|NVL)(?: \w{{4}})?\))?")
_TIME = re.compile(rf"(?:t: |transmit: |\d \+ )({_F}) us|\(NVL\), ({_F}) us")
_ELASTIC = re.compile(
    rf"[*\-#@+] EP:\s*(\d{{1,7}})/\s*(\d{{1,7}}) \| ([a-z ]{{3,40}}): {_F} GB/s \(SO\), {_F} GB/s \(SU\), ({_F}) us, (\d{{1,18}}) bytes"
)
_TYPES = {"FP8": "float8_e4m3", "BF16": "bfloat16"}
_DIGITS = 3
_MARKS = ("Dispatch + combine bandwidth:", "Dispatch bandwidth:", "[tuning] Best ", " EP:")


class _DeepEpKey(NamedTuple):
    """The values that all lines of one row share; algorithm: "low_latency", "tuned", "elastic"."""

    operation: str
    algorithm: str
    dtype: str
    link: str | None


class _Figure(NamedTuple):
    """One rank's line: its rate in bytes per second, its time, the bytes if they are printed."""

    line: int
    rank: int | None
    rate: float
    time_s: float
    spread: Quantiles
    size: int | None = None


class _DeepEpKernel(msgspec.Struct):
    """The lines of one kernel by row, with the number of the first one.

    ranks     that a line gives; printing: the number of those that print, if these are 0 to n - 1
    timeless  how many lines of the output have no time
    """

    number: int
    ranks: int | None
    printing: int | None
    timeless: int
    groups: dict[_DeepEpKey, list[_Figure]] = msgspec.field(default_factory=dict)


def _kernels(lines: Sequence[str]) -> Iterable[_DeepEpKernel]:
    """Return the kernels. Raises UsageError if no line has a rate and a time."""
    groups: dict[_DeepEpKey, list[_Figure]] = {}
    printed_ranks: dict[_DeepEpKey, int] = {}
    timeless = 0
    for number, line in enumerate(lines, 1):
        if not any(mark in line for mark in _MARKS):
            continue
        figures_of_line = list(_figures(number, line))
        timeless += not figures_of_line and _BEST.search(line) is not None
        for key, figure, ranks in figures_of_line:
            groups.setdefault(key, []).append(figure)
            if ranks:
                printed_ranks[key] = ranks
    if not groups:
        problem = "the lines have a rate but no time" if timeless else "no line has a rate and a time"
        raise UsageError(f"{problem}: use the output of a newer version of the tests")
    by_kernel: dict[str, _DeepEpKernel] = {}
    ranks_of_job = next((printed_ranks[key] for key in groups if key in printed_ranks), None)
    printing_ranks = {figure.rank for figures in groups.values() for figure in figures if figure.rank is not None}
    n = len(printing_ranks)
    printing = n if n > 1 and printing_ranks == set(range(n)) else None
    for key, figures in groups.items():
        by_kernel.setdefault(key.algorithm, _DeepEpKernel(figures[0].line, ranks_of_job, printing, timeless)).groups[key] = figures
    return by_kernel.values()


def _figures(number: int, line: str) -> Iterator[tuple[_DeepEpKey, _Figure, int | None]]:
    """Yield (key, figure, number of ranks) of each figure in a line, since several ranks may print into one line."""
    for operation, form in _FORMS.items():
        for match in form.finditer(line):
            values = {name: float(text) for name, text in match.groupdict().items() if name != "rank"}
            spread = Quantiles(**{name: values[name] / 1e6 for name in ("min", "max") if name in values})
            key = _DeepEpKey(operation, "low_latency", "uint8", None)
            yield key, _Figure(number, int(match["rank"]), values["rate"] * 1e9, values["time"] / 1e6, spread), None
    for match in _ELASTIC.finditer(line):
        rank, ranks, operation, micros, bytes_printed = match.groups()
        size = int(bytes_printed)
        key = _DeepEpKey(f"ep_{'_'.join(operation.split())}", "elastic", "uint8", None)
        time_s = float(micros) / 1e6
        yield key, _Figure(number, int(rank), size / time_s if time_s else 0.0, time_s, Quantiles(), size), int(ranks)
    best = _BEST.search(line)
    time = _TIME.search(best[3]) if best else None
    if best and time:
        for rate, link in _RATE.findall(best[3]):
            key = _DeepEpKey(f"ep_{best[1]}", "tuned", _TYPES.get(best[2] or "", "bfloat16"), link.lower() or None)
            if float(rate) > 0:
                yield key, _Figure(number, None, float(rate) * 1e9, float(time[1] or time[2]) / 1e6, Quantiles()), None


def _runs(kernel: _DeepEpKernel, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    ranks = kernel.ranks
    if ranks is None and user_input.ranks is None:
        ranks = kernel.printing
    extent = ranks_and_nodes(user_input, ranks, None, f"the output at line {kernel.number}")
    rows_or_none = (_row(key, figures, extent.ranks, extent.nodes) for key, figures in kernel.groups.items())
    rows = [row for row in rows_or_none if row is not None]
    algorithm = next(iter(kernel.groups)).algorithm
    missing: list[Missing] = [*lacks(MissingItem.INTERVAL, MissingItem.SAMPLES, MissingItem.HOSTS, MissingItem.VERIFICATION)]
    if not extent.nodes:
        missing += lacks(MissingItem.NODES)
    if algorithm != "elastic":
        missing.append(NotInOutput(MissingItem.SIZE, assumed="rate × time, to three digits"))
    if kernel.timeless:
        missing.append(SkippedLines(kernel.timeless, SkippedReason.NO_TIME))
    statistic = rows[0].evidence["statistic"] if rows else "none"
    facts = start_facts(contexts.at(kernel.number))
    yield ImportedTable("deepep", None, algorithm, statistic, rows, (), facts, missing, (), extent.contradicted)


def _row(key: _DeepEpKey, figures: Sequence[_Figure], ranks: int, nodes: int | None) -> Row | None:
    sound = [figure for figure in figures if is_time(figure.time_s) and figure.rate > 0]
    if not sound:
        return None
    slowest = max(sound, key=lambda figure: figure.time_s)
    size = slowest.size
    if not size:  # rate × time, rounded
        product = slowest.rate * slowest.time_s
        digits = floor(log10(product)) + 1 if product >= 1 else 1
        unit: int = 10 ** max(digits - _DIGITS, 0)
        size = round(product / unit) * unit
    source = f"the slowest of {len(sound)} ranks that print" if len(sound) > 1 else "the rank that prints"
    kind = RowKind(
        key.operation, "deepep", "deepep", key.dtype, ranks, nodes, f"the mean over the iterations of {source}", "cuda", mode="pipelined",
        like="sendrecv", also={"algorithm": key.algorithm, "traffic": key.link},
    )  # fmt: skip
    row = kind.row_if_valid(size, slowest.time_s, slowest.line, count=size, spread=slowest.spread)
    # as printed, since the size is rounded
    return row.with_figures(algbw_bytes_per_s=slowest.rate, busbw_bytes_per_s=slowest.rate) if row else None


DEEPEP = Importer(
    "deepep", "DeepEP and NIXL-EP tests", lines_with(*_FORMS.values(), _ELASTIC, _BEST, words=_MARKS), _kernels, _runs, tagged=True,
    empty="no line has a plausible rate and time: use the whole output of the tests",
)  # fmt: skip
