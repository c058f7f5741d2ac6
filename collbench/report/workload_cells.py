"""The tables of a training step, cell by cell: the step on each backend, its parts, and the workers of asynchronous training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from collbench.machine.peak.ceiling import Ceiling
from collbench.report.columns import NOTHING, basis, share
from collbench.report.flags import DOUBTFUL, printable
from collbench.report.table import Line
from collbench.report.workload_words import aligned, counted, milliseconds, span
from collbench.results.row import Times
from collbench.results.steps import StepRow
from collbench.units import format_bytes, format_rate

MOST_WORKERS = 16
K = TypeVar("K", Times, Ceiling)


@dataclass(frozen=True)
class Columns:
    """titles; right: those whose cells stand at their right edge; spare: those that a narrow terminal goes without, the first one first."""

    titles: tuple[str, ...]
    right: frozenset[str]
    spare: tuple[str, ...]


def _round(title: str) -> str:
    return title.replace("step", "round")


_FIGURES = frozenset({"steps", "step ms", "95 % interval ms", "moves", "busbw GB/s", "wrong", "size", "times", "each ms"})
STEP = Columns(
    ("backend", "steps", "step ms", "95 % interval ms", "moves", "busbw GB/s", "wrong", "of ceiling", "limited by", "flags"),
    _FIGURES, ("moves", "steps", "busbw GB/s", "95 % interval ms", "limited by"),
)  # fmt: skip
# A worker that waits for nobody has no step in common with others.
ROUND = Columns(
    tuple(_round(title) for title in STEP.titles), frozenset(map(_round, STEP.right)), tuple(_round(title) for title in STEP.spare)
)
PARTS = Columns(
    ("backend", "part", "operation", "groups", "size", "times", "each ms", "moves", "busbw GB/s", "of ceiling", "limited by"),
    _FIGURES, ("limited by", "groups", "operation", "moves", "busbw GB/s", "size", "of ceiling"),
)  # fmt: skip
_OF_WORKERS = ("worker", "rounds", "rounds/s", "staleness: median", "95 %", "most")
WORKERS = Columns(("backend", *_OF_WORKERS), frozenset(_OF_WORKERS), ("rounds",))


def table(columns: Columns, rows: Sequence[tuple[Sequence[str], str]], width: int | None) -> Iterator[Line]:
    """Titles and rows of (cells, style); nothing where there is no row. Columns in which no row has anything are left out.

    On a terminal of `width` so are some of the others, and the last line says which.
    """
    if not rows:
        return
    cells = [columns.titles, *([printable(cell) for cell in cells] for cells, _ in rows)]
    kept = [at for at in range(len(columns.titles)) if any(row[at] not in ("", NOTHING) for row in cells[1:])]
    dropped = _dropped(columns, [[row[at] for at in kept] for row in cells], width)
    kept = [at for at in kept if columns.titles[at] not in dropped]
    titles = [columns.titles[at] for at in kept]
    texts = aligned([[row[at] for at in kept] for row in cells], [at for at, title in enumerate(titles) if title in columns.right])
    yield Line(texts[0], "head")
    yield from (Line(text, style) for text, (_, style) in zip(texts[1:], rows, strict=True))
    yield from [Line(f"not shown on a terminal this narrow: {', '.join(dropped)}", "foot")] if dropped else []


def _dropped(columns: Columns, cells: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The titles of the columns that a terminal has no room for."""
    wide = {column[0]: max(map(len, column)) + 2 for column in zip(*cells, strict=True)}
    dropped: list[str] = []
    for title in columns.spare:
        if width is None or sum(wide.values()) - 2 <= width:
            break
        if wide.pop(title, 0):
            dropped.append(title)
    return dropped


def style(row: StepRow) -> str:
    """How its line looks."""
    return "wrong" if row.wrong else "na" if row.na else "doubtful" if DOUBTFUL & set(row.flags) else ""


def step_cells(row: StepRow) -> list[str]:
    """Below the titles of STEP; of what could not be measured the reason stands last."""
    if row.na is not None:
        return [row.backend, *[NOTHING] * (len(STEP.titles) - 2), f"n/a ({row.na})"]
    moves, wrong = format_bytes(row.moved_bytes), NOTHING if row.wrong is None else str(row.wrong)
    ceiling = _ceiling_cells(row.busbw_bytes_per_s, row.ceiling, row.percent_of_ceiling)
    rate = NOTHING if row.busbw_bytes_per_s is None else format_rate(row.busbw_bytes_per_s)
    return [row.backend, str(row.n), *_times(row.time_s, row.flags), moves, rate, wrong, *ceiling, ", ".join(row.flags)]


def _times(times: Times | None, flags: Sequence[str]) -> tuple[str, str]:
    """The median and its interval in ms; "?" before one that a flag doubts."""
    if times is None:
        return NOTHING, NOTHING
    if times.ci_low is None or times.ci_high is None:
        return milliseconds(times.p50), NOTHING
    doubt = "? " if DOUBTFUL & set(flags) else ""
    return milliseconds(times.p50), f"{doubt}{milliseconds(times.ci_low)}–{milliseconds(times.ci_high)}"


def _ceiling_cells(busbw: float | None, ceiling: Ceiling | None, percent: float | None) -> tuple[str, str]:
    """ "0.112 of 0.118 GB/s (95 %)" and what limits; without a percentage the reason why there is none."""
    if ceiling is None:
        return NOTHING, NOTHING
    if ceiling.bytes_per_s is None or percent is None or busbw is None:
        return NOTHING, ceiling.limited_by
    kind = basis(ceiling)
    words = ceiling.limited_by if kind in ceiling.limited_by.split() else f"{ceiling.limited_by} ({kind})"
    return f"{format_rate(busbw)} of {format_rate(ceiling.bytes_per_s)} GB/s ({share(percent, ceiling)})", words


def part_cells(row: StepRow) -> Iterator[list[str]]:
    """Below the titles of PARTS, a line per part; the backend's name stands beside its first one."""
    for turn, part in enumerate(row.parts):
        times, ceiling = _known(Times, part["time_s"]), _known(Ceiling, part["ceiling"])
        busbw = part["busbw_bytes_per_s"]
        yield [
            row.backend if turn == 0 else "", _name(part["what"]), part["operation"],
            f"{part['groups']} of {counted(part['group_ranks'], 'rank')}", format_bytes(part["size_bytes"]), str(part["times"]),
            _times(times, ())[0], NOTHING if part["moved_bytes"] is None else format_bytes(part["moved_bytes"]),
            NOTHING if busbw is None else format_rate(busbw), *_ceiling_cells(busbw, ceiling, part["percent_of_ceiling"]),
        ]  # fmt: skip


def _known(kind: type[K], values: Mapping[str, Any] | None) -> K | None:
    """The record; keys that only a newer collbench knows are left out."""
    return kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values}) if values else None


def _name(what: str) -> str:
    first, _, last = what.partition(" … ")
    return span(first, last) if last else first


def worker_cells(row: StepRow) -> Iterator[list[str]]:
    """Below the titles of WORKERS; of many the first."""
    workers = row.staleness.get("workers", [])[:MOST_WORKERS]
    for turn, worker in enumerate(workers):
        told = [number(worker.get(name)) for name in ("rank", "steps", "steps_per_s", "p50", "p95", "max")]
        yield [row.backend if turn == 0 else "", f"rank {told[0]}", *told[1:]]


def number(value: Any) -> str:
    """A count or a rate to four digits, a dash where it is not known."""
    return NOTHING if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
