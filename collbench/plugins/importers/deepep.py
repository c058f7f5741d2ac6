"""Read the output of the tests of DeepEP and NIXL-EP: dispatch and combine of expert parallelism, low-latency, tuned and elastic.

Each rank (or the first rank of each node) prints its own lines; a row is the slowest of them. Only the elastic tests print bytes. For the
other tests the size is rate × time, rounded to three digits, so that runs of one configuration have the same size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import floor, log10
from typing import NamedTuple

from collbench.errors import UsageError
from collbench.plugins.importers.importer import ImportedTable, Importer, Reading, UserInput, read_tables
from collbench.plugins.importers.log_context import Contexts, start_facts
from collbench.plugins.importers.notes import Missing, MissingItem, NotInOutput, SkippedLines, SkippedReason, lacks
from collbench.plugins.importers.rows import Quantiles, RowKind, is_size, is_time, ranks_and_nodes
from collbench.results.row import Row

_F = r"(\d{1,9}(?:\.\d{1,9})?)"
_BOTH = re.compile(rf"\[rank (\d{{1,7}})\] Dispatch \+ combine bandwidth: {_F} GB/s, avg_t={_F} us, min_t={_F} us, max_t={_F} us")
_EACH = re.compile(rf"\[rank (\d{{1,7}})\] Dispatch bandwidth: {_F} GB/s, avg_t={_F} us \| Combine bandwidth: {_F} GB/s, avg_t={_F} us")
_BEST = re.compile(r"\[tuning\] Best (dispatch|combine)(?: \((FP8|BF16)\))?: (.{10,300})")
_RATE = re.compile(rf"{_F} GB/s(?: \((RDMA|NVL)(?: \w{{4}})?\))?")
_TIME = re.compile(rf"(?:t: |transmit: |\d \+ ){_F} us|\(NVL\), {_F} us")
_ELASTIC = re.compile(
    rf"[*\-#@+] EP:\s*(\d{{1,7}})/\s*(\d{{1,7}}) \| ([a-z ]{{3,40}}): {_F} GB/s \(SO\), {_F} GB/s \(SU\), {_F} us, (\d{{1,18}}) bytes"
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


@dataclass
class _Group:
    """The lines of one row, and the number of ranks that a line gives."""

    figures: list[_Figure] = field(default_factory=list)
    ranks: int | None = None


@dataclass
class _DeepEpKernel:
    """The rows of one kernel, with the number of their first line."""

    number: int
    groups: dict[_DeepEpKey, _Group] = field(default_factory=dict)


def knows(lines: Sequence[str]) -> bool:
    """Return whether one of these lines has a figure of these tests."""
    return any(_BOTH.search(line) or _EACH.search(line) or _ELASTIC.search(line) or _BEST.search(line) for line in lines if _marked(line))


def read(lines: Sequence[str], user_input: UserInput) -> Reading:
    """Return one run per kernel. Raises UsageError if no line has a rate and a time, or if the number of ranks is unknown."""
    groups: dict[_DeepEpKey, _Group] = {}
    timeless = 0
    for at, line in enumerate(lines, 1):
        if not _marked(line):
            continue
        found = list(_figures(at, line))
        timeless += not found and _BEST.search(line) is not None
        for key, figure, ranks in found:
            group = groups.setdefault(key, _Group())
            group.figures.append(figure)
            group.ranks = ranks or group.ranks
    if not groups:
        why = "the lines have a rate but no time" if timeless else "no line has a rate and a time"
        raise UsageError(f"{why}: use the output of a newer version of the tests")
    contexts = Contexts(lines)
    # What elastic tests print, else the number of the printing ranks if these are 0 to n - 1.
    known = next((group.ranks for group in groups.values() if group.ranks), None)
    seen = {figure.rank for group in groups.values() for figure in group.figures if figure.rank is not None}
    if known is None and user_input.ranks is None and len(seen) > 1 and seen == set(range(len(seen))):
        known = len(seen)
    by_kernel: dict[str, _DeepEpKernel] = {}
    for key, group in groups.items():
        by_kernel.setdefault(key.algorithm, _DeepEpKernel(group.figures[0].line)).groups[key] = group
    return read_tables(
        by_kernel.values(),
        lambda kernel: [_run(kernel, user_input, known, (timeless, start_facts(contexts.at(kernel.number))))],
        empty="no line has a plausible rate and time: use the whole output of the tests",
    )


def _marked(line: str) -> bool:
    return any(mark in line for mark in _MARKS)


def _figures(at: int, line: str) -> Iterator[tuple[_DeepEpKey, _Figure, int | None]]:
    """Yield (key, figure, number of ranks) of each figure in a line, since several ranks may print into one line."""
    for found in _BOTH.finditer(line):
        rate, mean, least, most = (float(text) for text in found.groups()[1:])
        yield (
            _key("ep_dispatch_combine"),
            _Figure(at, int(found[1]), rate * 1e9, mean / 1e6, Quantiles(min=least / 1e6, max=most / 1e6)),
            None,
        )
    for found in _EACH.finditer(line):
        for operation, place in (("ep_dispatch", 2), ("ep_combine", 4)):
            figure = _Figure(at, int(found[1]), float(found[place]) * 1e9, float(found[place + 1]) / 1e6, Quantiles())
            yield _key(operation), figure, None
    for found in _ELASTIC.finditer(line):
        rank, ranks, size = int(found[1]), int(found[2]), int(found[7])
        key = _DeepEpKey(f"ep_{'_'.join(found[3].split())}", "elastic", "uint8", None)
        time_s = float(found[6]) / 1e6
        yield key, _Figure(at, rank, size / time_s if time_s else 0.0, time_s, Quantiles(), size), ranks
    if best := _BEST.search(line):
        time = _TIME.search(best[3])
        for rate, link in _RATE.findall(best[3]) if time else ():
            key = _DeepEpKey(f"ep_{best[1]}", "tuned", _TYPES.get(best[2] or "", "bfloat16"), link.lower() or None)
            if float(rate) > 0 and time:
                yield key, _Figure(at, None, float(rate) * 1e9, float(time[1] or time[2]) / 1e6, Quantiles()), None


def _key(operation: str) -> _DeepEpKey:
    return _DeepEpKey(operation, "low_latency", "uint8", None)


def _run(kernel: _DeepEpKernel, user_input: UserInput, ranks: int | None, about: tuple[int, dict[str, object]]) -> ImportedTable:
    timeless, facts = about
    extent = ranks_and_nodes(user_input, ranks, None, f"the output at line {kernel.number}")
    rows = [row for key, group in kernel.groups.items() if (row := _row(key, group, (extent.ranks, extent.nodes)))]
    algorithm = next(iter(kernel.groups)).algorithm
    unknown = [] if extent.nodes else [MissingItem.NODES]
    missing: list[Missing] = [*lacks(MissingItem.INTERVAL, MissingItem.SAMPLES, MissingItem.HOSTS, MissingItem.VERIFICATION, *unknown)]
    missing += [NotInOutput(MissingItem.SIZE, assumed="rate × time, to three digits")] if algorithm != "elastic" else []
    missing += [SkippedLines(timeless, SkippedReason.NO_TIME)] if timeless else []
    statistic = rows[0].evidence["statistic"] if rows else "none"
    return ImportedTable("deepep", None, algorithm, statistic, rows, (), facts, missing, (), extent.contradicted)


def _row(key: _DeepEpKey, group: _Group, place: tuple[int, int | None]) -> Row | None:
    sound = [each for each in group.figures if is_time(each.time_s) and each.rate > 0]
    if not sound:
        return None
    slowest = max(sound, key=lambda each: each.time_s)
    size = slowest.size or _rounded(slowest.rate * slowest.time_s)
    if not is_size(size):
        return None
    of = f"the slowest of {len(sound)} ranks that print" if len(sound) > 1 else "the rank that prints"
    kind = RowKind(
        key.operation, "deepep", "deepep", key.dtype, *place, f"the mean over the iterations of {of}", "cuda", mode="pipelined",
        like="sendrecv", also={"algorithm": key.algorithm, "traffic": key.link},
    )  # fmt: skip
    row = kind.row(size, slowest.time_s, count=size, line=slowest.line, spread=slowest.spread)
    return row.with_figures(algbw_bytes_per_s=slowest.rate, busbw_bytes_per_s=slowest.rate)  # as printed, since the size is rounded


def _rounded(size: float) -> int:
    digits = floor(log10(size)) if size >= 1 else 0
    unit: int = 10 ** max(digits - _DIGITS + 1, 0)
    return round(size / unit) * unit


DEEPEP = Importer("deepep", "DeepEP and NIXL-EP tests", knows, read)
