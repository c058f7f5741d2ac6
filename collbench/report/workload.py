"""Training steps as measured: for people a table per training (how long, how fast, what limits, which exchange costs what), for programs
a record per training and backend."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from collbench.analysis.best import Efficiency, Share, efficiency
from collbench.errors import UsageError
from collbench.report.flags import defused, explain, printable
from collbench.report.probe_wrap import width_of, wrapped
from collbench.report.screen import PlainScreen, write_line
from collbench.report.table import Line
from collbench.report.workload_cells import (
    MOST_WORKERS,
    PARTS,
    ROUND,
    STEP,
    WORKERS,
    number,
    part_cells,
    step_cells,
    style,
    table,
    worker_cells,
)
from collbench.report.workload_words import aligned, counted, headline, milliseconds, told
from collbench.results.steps import StepRow
from collbench.results.store import to_line
from collbench.units import format_size
from collbench.workloads.registry import regimes

FORMATS = ("table", "csv", "json")
_TIMES = ("p50", "ci_low", "ci_high", "min", "p95", "p99", "max")
_CEILING = ("kind", "bytes_per_s", "limited_by", "model", "source")
_SHARES = ("value", "low", "high")


def check_format(format: str) -> None:
    """Raises UsageError for a format that a step does not have."""
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown for workload: choose from {', '.join(FORMATS)}")


def write_steps(
    rows: Sequence[StepRow], format: str, out: TextIO, *, color: bool, step_time_s: float | None = None, run: str = "", first: bool = True
) -> None:
    """Prints steps: as a table (the rows of one training on several backends belong together), csv or json (a record per row).

    step_time_s  the time of computing, with which the scaling efficiency is shown
    run          the name of their folder, in a CSV's first column
    first        whether nothing was printed before: a CSV begins with its header
    Raises UsageError for another format.
    """
    check_format(format)
    if format == "table":
        screen, width = PlainScreen(out, out, color), width_of(out)
        for number, those in enumerate(trainings(rows)):
            for line in [*([Line("")] if number or not first else []), *wrapped(lines(those, step_time_s, width), width)]:
                screen.data(line)
        return
    texts = csv_lines(rows, step_time_s, run, first) if format == "csv" else (to_line(step_json(row, step_time_s)) for row in rows)
    for text in texts:
        write_line(out, text)


def trainings(rows: Iterable[StepRow]) -> list[list[StepRow]]:
    """Rows of the same training together, in the order of the first of each."""
    found: dict[tuple[Any, ...], list[StepRow]] = {}
    for row in rows:
        key = (row.regime, row.model, row.parameters, row.dtype, row.bucket_bytes, tuple(row.options.items()), row.ranks, row.nodes)
        found.setdefault(key, []).append(row)
    return list(found.values())


def lines(rows: Sequence[StepRow], step_time_s: float | None = None, width: int | None = None) -> Iterator[Line]:
    """One training on some backends: what it is, the step, its parts, staleness, scaling efficiency, and what flags mean."""
    first = rows[0]
    words = [
        *filter(None, [first.dtype]),
        *told(first.options),
        *_bucket(first),
        counted(first.ranks, "rank"),
        counted(first.nodes, "node"),
    ]
    yield Line(printable(headline(first.regime, first.model, first.parameters, words)), "head")
    yield from table(ROUND if any(row.staleness for row in rows) else STEP, [(step_cells(row), style(row)) for row in rows], width)
    yield from table(PARTS, [(cells, "") for row in rows for cells in part_cells(row)], width)
    yield from table(WORKERS, [(cells, "") for row in rows for cells in worker_cells(row)], width)
    for row in rows:
        yield from (Line(printable(sentence), "wrong" if row.wrong else "foot") for sentence in _sentences(row, several=len(rows) > 1))
    yield from (Line(sentence) for sentence in _scaling(rows, step_time_s))
    notes = [row.note for row in rows if row.note]
    yield from (Line(printable(text), "foot") for text in dict.fromkeys([*notes, *explain(flag for row in rows for flag in row.flags)]))


def _bucket(row: StepRow) -> list[str]:
    """What training without buckets has no word of."""
    regime = regimes().get(row.regime)
    known = regime is None or "bucket" in {**regime.takes, **regime.options}
    return [f"buckets of {format_size(row.bucket_bytes)}"] if known and row.bucket_bytes else []


def scaling_of(row: StepRow, step_time_s: float | None) -> Efficiency | None:
    """The efficiency with this time of computing; None where one of the two times is unknown."""
    if step_time_s is None or row.time_s is None:
        return None
    return efficiency(step_time_s, row.time_s.p50, row.time_s.ci_low, row.time_s.ci_high)


def step_json(row: StepRow, step_time_s: float | None = None) -> dict[str, Any]:
    """The row as in workload.jsonl; with a time of computing its "scaling" too."""
    found = scaling_of(row, step_time_s)
    scaling = {"compute_s": found.compute_s, "apart": vars(found.apart), "overlap": vars(found.overlap)} if found else None
    return row.as_json() | ({"scaling": scaling} if step_time_s is not None else {})


def csv_lines(rows: Iterable[StepRow], step_time_s: float | None = None, run: str = "", head: bool = True) -> Iterator[str]:
    """A record per row; lists and objects are JSON; the carriage return stays: RFC 4180 ends records so."""
    for row in rows:
        flat = {"run": run, **dict(_flat(row, scaling_of(row, step_time_s), step_time_s))}
        if head:
            yield _record(flat)
            head = False
        yield _record(map(_cell, flat.values()))


def _flat(row: StepRow, scaling: Efficiency | None, step_time_s: float | None) -> Iterator[tuple[str, Any]]:
    for name, value in vars(row).items():
        if name == "time_s":
            yield from ((f"time_{part}_s", getattr(value, part, None)) for part in _TIMES)
        elif name == "ceiling":
            yield from ((f"ceiling_{part}", getattr(value, part, None)) for part in _CEILING)
        else:
            yield name, value
    yield "step_time_s", step_time_s
    for name in ("apart", "overlap"):
        found: Share | None = getattr(scaling, name, None)
        yield from ((f"scaling_{name}{'' if part == 'value' else f'_{part}'}", getattr(found, part, None)) for part in _SHARES)


def _cell(value: Any) -> str:
    if value is None or value in ({}, [], ()):
        return ""
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict | list):
        return defused(to_line({"": value}).removeprefix('{"":').removesuffix("}"))
    return defused(" ".join(value) if isinstance(value, tuple) else str(value))


def _record(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().removesuffix("\n")


def _sentences(row: StepRow, several: bool) -> Iterator[str]:
    """Wrong data, what the parts come to together, what the ceiling allows, staleness."""
    who = f"{row.backend}: " if several else ""
    if row.wrong:
        yield f"{who}wrong data: {counted(row.wrong, 'element')} {'is' if row.wrong == 1 else 'are'} not what had to arrive" + (
            f" ({row.wrong_detail})" if row.wrong_detail else ""
        )
    if row.time_s is not None and row.parts_time_s:
        alone, whole = milliseconds(row.parts_time_s), milliseconds(row.time_s.p50)
        yield f"{who}the parts, each alone, take {alone} ms one after the other, the step {whole} ms"
    if row.ceiling_time_s and row.percent_of_ceiling is not None:
        yield f"{who}at the ceiling a step takes {milliseconds(row.ceiling_time_s)} ms"
    if row.staleness:
        yield f"{who}{_stale(row.staleness)}"


def _stale(staleness: Mapping[str, Any]) -> str:
    told = {name: number(staleness.get(name)) for name in ("p50", "p95", "max", "steps_per_s", "duration_s")}
    workers = staleness.get("workers", [])
    more = f" (the first {MOST_WORKERS} are shown)" if len(workers) > MOST_WORKERS else ""
    return (
        f"no worker waits for another: {counted(len(workers), 'worker')}{more}, {told['steps_per_s']} rounds per second together, for "
        f"{told['duration_s']} s; staleness, updates of others between a worker's pull and its next push: median {told['p50']}, 95 % up to "
        f"{told['p95']}, at most {told['max']}"
    )


def _scaling(rows: Sequence[StepRow], step_time_s: float | None) -> Iterator[str]:
    """A sentence per backend, and what the two figures are."""
    found = [(row.backend, scaling) for row in rows if (scaling := scaling_of(row, step_time_s))]
    if not found:
        return
    compute = milliseconds(found[0][1].compute_s)
    yield f"scaling efficiency that the network allows, where a step computes for t = {compute} ms and exchanges for c, the time above:"
    shown = [("backend", "no overlap, t/(t+c)", "perfect overlap, t/max(t,c)")]
    yield from aligned([*shown, *((backend, _share(each.apart), _share(each.overlap)) for backend, each in found)])
    brackets = "in brackets what the interval of c gives; " if any(each.apart.low is not None for _, each in found) else ""
    yield f"{brackets}real training lies between the two, as far as its framework overlaps"


def _share(found: Share) -> str:
    interval = "" if found.low is None or found.high is None else f" ({100 * found.low:.1f}–{100 * found.high:.1f} %)"
    return f"{100 * found.value:.1f} %{interval}"
