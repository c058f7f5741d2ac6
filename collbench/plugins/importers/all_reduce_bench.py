"""Read the output of all_reduce_bench.py of "Machine Learning Engineering": a Markdown table, or with --profile_stability each trial.

A rate is the mean over the ranks and trials of size / time, in GB of 10**9 bytes; ranks synchronize before each call. Sizes are truncated
to whole KiB, MiB or GiB, which is exact for the tool's own sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from collbench.operations.registry import operations
from collbench.plugins.importers.importer import Arrays, ImportedTable, Importer, UserInput, lines_with
from collbench.plugins.importers.log_context import Contexts, LogContext, extent_of, start_facts
from collbench.plugins.importers.notes import ImportDoubt, MissingItem, lacks
from collbench.plugins.importers.rows import (
    RowKind,
    Samples,
    parse_number,
    printed_rates,
    rank_mismatch,
    rank_range,
    sampled,
    short,
    whole,
)
from collbench.plugins.importers.table import Layout, TextColumn, TextTable, cells
from collbench.results.row import Row

_TITLE = re.compile(
    r"^(?:.{0,200}(?<![\d.])(?P<payload>\d[\d.]{0,20}GiB) payload bandwidth|.{0,200}\bbandwidth) of all_reduce"
    r" over (?P<ranks>\d{1,7}) ranks \((?P<warmup>\d{1,9}) warmups / (?P<iterations>\d{1,9}) trials\)"
    r"|^.{0,200}\baverage bandwidth of all_reduce with a (?P<old_payload>\d[\d.]{0,20}GB) payload"
    r" \((?P<old_iterations>\d{1,9}) trials, (?P<old_ranks>\d{1,7}) ranks\)"
)
_LAYOUT = Layout(
    columns=(TextColumn("payload", "payload"), TextColumn("busbw", "busbw"), TextColumn("algbw", "algbw")),
    headings=re.compile(r"\|\s*(?:busbw|algbw)\s*\|"),
    figures=re.compile(r"\s*\|\s*\d"),
    words=cells,
    begins=_TITLE,
    before=(
        re.compile(r"- software: torch=(?P<torch>[^,\s]{1,60}), cuda=[^,\s]{1,60}, nccl=\(?(?P<nccl>[\d., ]{1,30})\)?"),
        re.compile(r"name='(?P<gpu>[^']{1,80})'"),
    ),
    remarks=re.compile(r"^\s*(?:algbw|busbw): [\d.]{1,20} GBps"),  # of old versions
)
_LINE = re.compile(r"^\s*\|\s*\d{1,6}[KMGT]?i?B\s*\|\s*[\d.]{1,20}\s*GBps\s*\|")
_SIZE = re.compile(r"(\d[\d.]{0,20})([KMGT]?i?B)")
_RATE = re.compile(r"([\d.]{1,20})\s*GBps")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "GB": 10**9}


def _runs(table: TextTable, user_input: UserInput, contexts: Contexts) -> Iterator[ImportedTable]:
    facts = {name.removeprefix("old_"): text for name, text in table.facts.items() if text}
    is_profile = "payload" not in table.headings and not table.remarks  # each line is a trial
    cases = [(figures.line, {"payload": facts.get("payload", ""), **figures.words}) for figures in table.figures()]
    if table.remarks:
        printed = dict(remark.strip().split(": ") for remark in table.remarks)
        cases = [(table.number + 1, {"payload": facts.get("payload", ""), **printed})]
    context = contexts.at(table.number)
    factor = rank_range(
        operations()["allreduce"], printed_rates((_rate(words.get("algbw", "")), _rate(words.get("busbw", ""))) for _, words in cases)
    )
    proven = whole(facts.get("ranks", "")) or (factor.only if factor else None)
    fitting = context if factor is None or factor.holds(context.processes or 0) else LogContext()
    extent = extent_of(fitting, user_input, proven, f"the table at line {table.number}")
    doubts: list[ImportDoubt] = []
    if factor is not None and not factor.holds(extent.ranks):
        doubts.append(rank_mismatch("busbw / algbw", factor, extent.ranks, "allreduce"))
    numbers: dict[str, Any] = {name: int(facts[name]) for name in ("warmup", "iterations") if name in facts}
    statistic = "size / mean rate over the trials and ranks"
    kind = RowKind(
        "allreduce", "torch-nccl", "torch", "float32", extent.ranks, extent.nodes, statistic, "cuda", "sum", in_place=True, mode="isolated",
        evidence=numbers,
    )  # fmt: skip
    rows: list[Row] = []
    arrays: dict[int, Arrays] = {}
    for line, words in cases:
        size = _size(words["payload"])
        rate = parse_number(_rate(words.get("algbw", "")))
        row = kind.row_if_valid(size, size / rate / 1e9 if rate else None, line)
        if row is None:
            table.unreadable.append(line)
        else:
            rows.append(row)
    if rows and is_profile:
        times = np.array([row.time_s.p50 for row in rows if row.time_s])
        median = kind.row(rows[0].size_bytes, float(np.median(times)), line=table.number)
        statistic = f"the median over {len(times)} trials of size / mean rate of the ranks"
        median, arrays[0] = sampled(median, Samples(times, statistic), kind)
        rows = [median]
    stored: dict[str, Any] = {**numbers, **start_facts(context)}
    if "gpu" in facts:
        stored["gpu"] = short(facts["gpu"])
    if "torch" in facts:
        stored |= {"torch": short(facts["torch"]), "library": ".".join(re.findall(r"\d+", facts["nccl"]))}
    missing = [] if arrays else lacks(MissingItem.INTERVAL, MissingItem.SAMPLES)
    if not extent.nodes:
        missing += lacks(MissingItem.NODES)
    missing += lacks(MissingItem.RANK_DATA, MissingItem.HOSTS, MissingItem.VERIFICATION)
    name = "all_reduce_bench"
    doubts += table.doubts()
    yield ImportedTable(name, None, name, statistic, rows, (), stored, missing, doubts, extent.contradicted, arrays)


def _size(text: str) -> int:
    """Return the bytes of "32KiB"; 0 for other text."""
    match = _SIZE.fullmatch(text)
    number = parse_number(match[1]) if match else None
    if match is None or number is None:
        return 0
    return round(number * _UNITS.get(match[2], 0))


def _rate(text: str) -> str:
    """Return the number of "17.50GBps"; "" for another unit."""
    match = _RATE.fullmatch(text)
    return match[1] if match else ""


ALL_REDUCE_BENCH = Importer(
    "all-reduce-bench", "all_reduce_bench.py of ml-engineering", lines_with(_TITLE, _LINE, words=["all_reduce", "|"]), _LAYOUT.tables,
    _runs, empty="no line with a size and its rates found: the program was stopped before it printed its table",
)  # fmt: skip
