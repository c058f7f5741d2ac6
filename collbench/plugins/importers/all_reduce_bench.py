"""Read the output of all_reduce_bench.py of "Machine Learning Engineering": a Markdown table, or with --profile_stability each trial.

A rate is the mean over the ranks and trials of size / time, in GB of 10**9 bytes; ranks synchronize before each call. Sizes are truncated
to whole KiB, MiB or GiB, which is exact for the tool's own sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collbench.operations.registry import operations
from collbench.plugins.importers.importer import Arrays, ImportedTable, Importer, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts, LogContext, extent_of, start_facts
from collbench.plugins.importers.notes import MissingItem, lacks
from collbench.plugins.importers.rows import (
    RowKind,
    Samples,
    is_time,
    parse_number,
    printed_rates,
    rank_mismatch,
    rank_range,
    sampled,
    short,
)

_TITLE = re.compile(r"bandwidth of all_reduce over (\d{1,7}) ranks \((\d{1,9}) warmups / (\d{1,9}) trials\)")
_PROFILED = re.compile(r"The ([\d.]{1,20})GiB payload bandwidth of all_reduce")
_OLD = re.compile(r"average bandwidth of all_reduce with a ([\d.]{1,20})GB payload \((\d{1,9}) trials, (\d{1,7}) ranks\)")
_OLD_RATE = re.compile(r"\s*(algbw|busbw): ([\d.]{1,20}) GBps")
_LINE = re.compile(r"^\s*\|\s*(\d{1,6})([KMGT]?i?B)\s*\|\s*([\d.]{1,20})\s*GBps\s*\|\s*([\d.]{1,20})\s*GBps\s*\|")
_TRIAL = re.compile(r"\s*\|\s*([\d.]{1,20})\s*GBps\s*\|\s*([\d.]{1,20})\s*GBps\s*\|\s*$")
_SOFTWARE = re.compile(r"- software: torch=([^,\s]{1,60}), cuda=([^,\s]{1,60}), nccl=\(?([\d., ]{1,30})\)?")
_HARDWARE = re.compile(r"name='([^']{1,80})'")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass
class _BenchOutput:
    """The output of one start. Rates are (busbw, algbw) as printed."""

    number: int
    ranks: int | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    software: tuple[str, str] | None = None
    gpu: str | None = None
    profiled: int | None = None
    lines: list[tuple[int, int, tuple[str, str]]] = field(default_factory=list)
    trials: list[tuple[str, str]] = field(default_factory=list)

    @property
    def rates(self) -> list[tuple[str, str]]:
        return [*(rates for _, _, rates in self.lines), *self.trials]


def _tables(lines: Sequence[str]) -> Iterator[_BenchOutput]:
    table = _BenchOutput(1)
    old: tuple[int, str] | None = None
    for at, line in enumerate(lines, 1):
        if found := _SOFTWARE.search(line):
            if table.rates:
                yield table
                table = _BenchOutput(at)
            table.software = (short(found[1]), ".".join(re.findall(r"\d+", found[3])))
        elif found := _HARDWARE.search(line):
            table.gpu = short(found[1])
        elif found := _OLD.search(line):
            yield table
            table = _BenchOutput(at, int(found[3]), {"iterations": int(found[2])})
            table.profiled = round(float(found[1]) * 1e9) if found[1].count(".") < 2 else None
        elif (found := _OLD_RATE.match(line)) and table.profiled:
            if found[1] == "algbw":
                old = (at, found[2])
            elif old:
                table.lines.append((old[0], table.profiled, (found[2], old[1])))
        elif "bandwidth of all_reduce" in line or line.lstrip().startswith("|"):
            title, size = _TITLE.search(line), _LINE.match(line)
            again = size is not None and any(earlier == _size(size) for _, earlier, _ in table.lines)
            if table.rates and (title or again):
                yield table
                table = _BenchOutput(at)
            _take(table, line, at)
    yield table


def _take(table: _BenchOutput, line: str, at: int) -> None:
    if found := _TITLE.search(line):
        table.number, table.ranks, table.numbers = at, int(found[1]), {"warmup": int(found[2]), "iterations": int(found[3])}
        if profiled := _PROFILED.search(line):
            table.profiled = round(float(profiled[1]) * (1 << 30)) if profiled[1].count(".") < 2 else None
    elif found := _LINE.match(line):
        table.lines.append((at, _size(found), (found[3], found[4])))
    elif (found := _TRIAL.match(line)) and table.profiled:
        table.trials.append((found[1], found[2]))


def _size(found: re.Match[str]) -> int:
    return int(found[1]) * _UNITS.get(found[2], 0)


def _runs(table: _BenchOutput, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    if not table.rates:
        return
    context = contexts.at(table.number)
    factor = rank_range(operations()["allreduce"], printed_rates((algbw, busbw) for busbw, algbw in table.rates))
    proven = table.ranks or (factor.only if factor else None)
    known = context if factor is None or factor.holds(context.processes or 0) else LogContext()
    extent = extent_of(known, user_input, proven, f"the table at line {table.number}")
    fits = factor is None or factor.holds(extent.ranks)
    doubts = [] if fits or factor is None else [rank_mismatch("busbw / algbw", factor, extent.ranks, "allreduce")]
    statistic = "size / mean rate over the trials and ranks"
    kind = RowKind(
        "allreduce", "torch-nccl", "torch", "float32", extent.ranks, extent.nodes, statistic, "cuda", "sum", in_place=True, mode="isolated",
        evidence=table.numbers,
    )  # fmt: skip
    made = [kind.row_if_valid(size, _time(size, algbw), at) for at, size, (_, algbw) in table.lines]
    rows = [row for row in made if row is not None]
    arrays: dict[int, Arrays] = {}
    size = table.profiled or 0
    times = [time_s for _, algbw in table.trials if (time_s := _time(size, algbw)) is not None and is_time(time_s)]
    median = kind.row_if_valid(size, float(np.median(times)) if times else None, table.number)
    if median is not None:
        of_trials = Samples(np.array(times), f"the median over {len(times)} trials of size / mean rate of the ranks")
        median, arrays[len(rows)] = sampled(median, of_trials, kind)
        rows.append(median)
    facts: dict[str, Any] = {**table.numbers, **start_facts(context)}
    if table.gpu:
        facts["gpu"] = table.gpu
    if table.software:
        facts |= {"torch": table.software[0], "library": table.software[1]}
    missing = [] if arrays else lacks(MissingItem.INTERVAL, MissingItem.SAMPLES)
    missing += [] if extent.nodes else lacks(MissingItem.NODES)
    missing += lacks(MissingItem.RANK_DATA, MissingItem.HOSTS, MissingItem.VERIFICATION)
    statistic = rows[0].evidence["statistic"] if rows else statistic
    yield ImportedTable(
        "all_reduce_bench", None, "all_reduce_bench", statistic, rows, (), facts, missing, doubts, extent.contradicted, arrays
    )


def _time(size: int, algbw: str) -> float | None:
    rate = parse_number(algbw)
    return size / rate / 1e9 if rate else None


ALL_REDUCE_BENCH = Importer(
    "all-reduce-bench", "all_reduce_bench.py of ml-engineering", lines_with(_TITLE, _OLD, _LINE, words=["all_reduce", "|"]), _tables, _runs,
    empty="no line with a size and its rates found: the program was stopped before it printed its table",
)  # fmt: skip
