"""Output of `collbench workload`: a plan of exchanges (`--dry-run`), and measured steps as a table per training or a record per row."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, TextIO, TypeVar

from collbench.analysis.best import Efficiency, Share, efficiency
from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.cases import NOTHING, basis, share, with_basis
from collbench.report.screen import PlainScreen, width_of, wrapped, write_line
from collbench.report.table import Column, Frame, Line, csv_record, csv_text, printable, table_lines, text_columns
from collbench.results.flags import DOUBTFUL, explain, flag_names
from collbench.results.row import Times
from collbench.results.steps import StepRow, part_ends
from collbench.results.store import to_line
from collbench.units import format_bytes, format_rate, format_size, format_time
from collbench.workloads.registry import regimes
from collbench.workloads.step import Exchange, Regime, Shape, Step, bytes_of, moved_bytes

# Texts of planned and measured training steps.

_NUMBER = re.compile(r"\d+")


def headline(regime: str, model: str, parameters: int, words: Sequence[str]) -> str:
    """Return a training in one line: "data-parallel · bert-large, 340,000,000 parameters · float32 · 4 ranks · 2 nodes"."""
    counted = [f"{parameters:,} parameters"] if parameters else []  # unknown if the exchanges could not be derived
    return " · ".join([regime, ", ".join([*filter(None, [model]), *counted]), *words])


def option_words(options: Mapping[str, str]) -> list[str]:
    """Return the options that have a value: "update sharded", "top-k 2"."""
    return [f"{name.replace('_', '-')} {value}" for name, value in options.items() if value]


def counted(count: int, what: str) -> str:
    """Return "1 rank", "2 ranks"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def milliseconds(seconds: float) -> str:
    """Return milliseconds to four significant digits, without exponent: "10934", "97.94", "0.2345"."""
    return format_time(seconds / 1000)


def nameless(what: str) -> str:
    """Return the name without its numbers, which is equal for buckets of one model."""
    return _NUMBER.sub("#", what)


def span(first: str, last: str) -> str:
    """Return "bucket 1–13 of 14" for "bucket 1 of 14" and "bucket 13 of 14"; both names if they differ in more than numbers."""
    if nameless(first) != nameless(last):
        return f"{first} … {last}"
    ends = iter(_NUMBER.findall(last))

    def merged(match: re.Match[str]) -> str:
        end = next(ends)
        return match[0] if end == match[0] else f"{match[0]}–{end}"

    return _NUMBER.sub(merged, first)


# The tables of a training step, case by case: the step on each backend, its parts, and the workers of asynchronous training.

MOST_WORKERS = 16
K = TypeVar("K", Times, Ceiling)


STEP = ("backend", "steps", "step ms", "95 % interval ms", "moves", "busbw GB/s", "wrong", "of expected", "limited by", "flags")
ROUND = tuple(title.replace("step", "round") for title in STEP)  # workers that do not wait have no common step
PARTS = ("backend", "part", "operation", "groups", "size", "times", "each ms", "moves", "busbw GB/s", "of expected", "limited by")
WORKERS = ("backend", "worker", "rounds", "rounds/s", "staleness: median", "95 %", "most")
_RIGHT = {*STEP, *ROUND, *PARTS, *WORKERS} - {"backend", "part", "operation", "groups", "of expected", "limited by", "flags"}
_DROP = {  # columns that a narrow terminal drops, in this order
    STEP: ("moves", "steps", "busbw GB/s", "95 % interval ms", "limited by"),
    ROUND: ("moves", "rounds", "busbw GB/s", "95 % interval ms", "limited by"),
    PARTS: ("limited by", "groups", "operation", "moves", "busbw GB/s", "size", "of expected"),
    WORKERS: ("rounds",),
}


def table(titles: tuple[str, ...], rows: Sequence[tuple[Sequence[str], str]], width: int | None) -> Iterator[Line]:
    """Return the lines of (texts, style) below `titles`, or nothing without rows. Empty columns are omitted.

    A terminal of `width` may drop other columns, too; the last line lists them.
    """
    if not rows:
        return
    columns = text_columns(titles, _RIGHT, _DROP[titles], cut=("part",), wrap="flags")
    kept = [column for column in columns if any(column.text(texts) not in ("", NOTHING) for texts, _ in rows)]
    styles = {id(texts): style for texts, style in rows}
    frame = Frame(kept, [texts for texts, _ in rows], style=lambda texts: styles[id(texts)], names_hidden=True)
    yield from table_lines(frame, width)


def style(row: StepRow) -> str:
    """Return the style of the row's line."""
    return "wrong" if row.wrong else "na" if row.na else "doubtful" if DOUBTFUL & set(row.flags) else ""


def step_cases(row: StepRow) -> list[str]:
    """Return the cases below the titles of STEP; without a measurement the last one is the reason."""
    if row.na is not None:
        return [row.backend, *[NOTHING] * (len(STEP) - 2), f"n/a ({row.na})"]
    moves, wrong = format_bytes(row.moved_bytes), NOTHING if row.wrong is None else str(row.wrong)
    ceiling = _ceiling_cases(row.busbw_bytes_per_s, row.ceiling, row.percent_of_ceiling)
    rate = NOTHING if row.busbw_bytes_per_s is None else format_rate(row.busbw_bytes_per_s)
    return [row.backend, str(row.n), *_times(row.time_s, row.flags), moves, rate, wrong, *ceiling, ", ".join(flag_names(row.flags))]


def _times(times: Times | None, flags: Sequence[str]) -> tuple[str, str]:
    """Return the median and its interval in ms; "?" before an interval that a flag makes doubtful."""
    if times is None:
        return NOTHING, NOTHING
    if times.ci_low is None or times.ci_high is None:
        return milliseconds(times.p50), NOTHING
    doubt = "? " if DOUBTFUL & set(flags) else ""
    return milliseconds(times.p50), f"{doubt}{milliseconds(times.ci_low)}–{milliseconds(times.ci_high)}"


def _ceiling_cases(busbw: float | None, ceiling: Ceiling | None, percent: float | None) -> tuple[str, str]:
    """Return "0.112 of 0.118 GB/s (95 %)" and what limits; without a percentage the reason why there is none."""
    if ceiling is None:
        return NOTHING, NOTHING
    if ceiling.bytes_per_s is None or percent is None or busbw is None:
        return NOTHING, ceiling.limited_by
    limit = with_basis(ceiling, basis(ceiling))
    return f"{format_rate(busbw)} of {format_rate(ceiling.bytes_per_s)} GB/s ({share(percent, ceiling)})", limit


def part_cases(row: StepRow) -> Iterator[list[str]]:
    """Return the cases below the titles of PARTS, a line per part; the first line has the backend's name."""
    for turn, part in enumerate(row.parts):
        times, ceiling = _known(Times, part["time_s"]), _known(Ceiling, part["ceiling"])
        busbw = part["busbw_bytes_per_s"]
        yield [
            row.backend if turn == 0 else "", _name(part), part["operation"],
            f"{part['groups']} of {counted(part['group_ranks'], 'rank')}", format_bytes(part["size_bytes"]), str(part["times"]),
            _times(times, ())[0], NOTHING if part["moved_bytes"] is None else format_bytes(part["moved_bytes"]),
            NOTHING if busbw is None else format_rate(busbw), *_ceiling_cases(busbw, ceiling, part["percent_of_ceiling"]),
        ]  # fmt: skip


def _known(kind: type[K], values: Mapping[str, Any] | None) -> K | None:
    """Return the record; keys of a newer collbench are left out."""
    return kind(**{each.name: values[each.name] for each in fields(kind) if each.name in values}) if values else None


def _name(part: Mapping[str, Any]) -> str:
    first, last = part_ends(part)
    return first if first == last else span(first, last)


def worker_cases(row: StepRow) -> Iterator[list[str]]:
    """Yield the cases below the titles of WORKERS; only the first of many workers."""
    workers = row.staleness.get("workers", [])[:MOST_WORKERS]
    for turn, worker in enumerate(workers):
        figures = [number(worker.get(name)) for name in ("rank", "steps", "steps_per_s", "p50", "p95", "max")]
        yield [row.backend if turn == 0 else "", f"rank {figures[0]}", *figures[1:]]


def number(value: Any) -> str:
    """Return a count or a rate to four digits, a dash if it is unknown."""
    return NOTHING if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


# `collbench workload --dry-run`: the exchanges of a step and the bytes that they move.

_PLAN: tuple[Column[Exchange], ...] = (
    Column("", "part", lambda exchange: exchange.what, cut=True),
    Column("", "operation", lambda exchange: exchange.operation, drop=1),
    Column("", "groups", lambda exchange: f"{len(exchange.groups)} of {counted(_ranks(exchange), 'rank')}", drop=2),
    Column("", "size", lambda exchange: format_bytes(exchange.size_bytes), right=True),
    Column("", "times", lambda exchange: str(exchange.times), right=True),
    Column("", "moves", lambda exchange: format_bytes(_moves(exchange)), right=True),
)
_MOVES = "moves: what the busiest rank has to send or receive, as busbw counts it; an algorithm may move more"


@dataclass(frozen=True)
class PlannedStep:
    """A training step planned for the ranks of a launch; model: the user's name for it."""

    regime: Regime
    shape: Shape
    step: Step
    model: str


def write_plan(planned: Sequence[PlannedStep], format: str, out: TextIO) -> None:
    """Print the plan: table, csv (a record per exchange) or json (an object per exchange)."""
    if format == "table":
        width = width_of(out)
        for number, each in enumerate(planned):
            for line in [*([Line("")] if number else []), *table_lines(_plan_frame(each), width)]:
                write_line(out, line.text)
        for line in wrapped([Line(_MOVES)], width) if planned else ():
            write_line(out, line.text)
        return
    facts = [fact for each in planned for fact in exchange_facts(each)]
    if format == "json":
        for fact in facts:
            write_line(out, json.dumps(fact))
        return
    for values in ([*facts[0]], *(fact.values() for fact in facts)) if facts else ():
        write_line(out, csv_record(map(csv_text, values)).text)


def exchange_facts(planned: PlannedStep) -> Iterator[dict[str, Any]]:
    """Yield each exchange of the step as a flat object; moves_bytes: of the rank that moves most, see `workloads.moved`."""
    for exchange in planned.step.exchanges:
        yield {
            "regime": planned.regime.name, "model": planned.model, "what": exchange.what, "operation": exchange.operation,
            "groups": len(exchange.groups), "group_ranks": _ranks(exchange), "size_bytes": exchange.size_bytes, "times": exchange.times,
            "dtype": exchange.dtype, "redop": exchange.redop, "root": exchange.root, "moves_bytes": _moves(exchange),
        }  # fmt: skip


def folded(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Return the exchanges; neighbors that differ only in a number of their names are one: "gradients, bucket 1–13 of 14", 13 times."""
    found = []
    for _, those in groupby(exchanges, lambda exchange: replace(exchange, what=nameless(exchange.what))):
        same = list(those)
        found.append(replace(same[0], what=span(same[0].what, same[-1].what), times=sum(exchange.times for exchange in same)))
    return found


def _plan_frame(planned: PlannedStep) -> Frame[Exchange]:
    shape, step = planned.shape, planned.step
    words = [counted(shape.ranks, "rank"), counted(len(set(shape.hosts)), "node")]
    title = headline(planned.regime.name, planned.model, shape.parameters, [shape.dtype, *option_words(shape.options), *words])
    most, of_all = max(moved := moved_bytes(step, shape.ranks), default=0.0), sum(moved)
    whole = f"the busiest rank moves {format_bytes(most)}, all ranks {format_bytes(of_all)}"
    foot = [f"a step: {format_bytes(step.payload_bytes)} of a rank's own data; {whole}", *([step.note] if step.note else [])]
    return Frame(_PLAN, folded(step.exchanges), title=title, foot=foot)


def _moves(exchange: Exchange) -> float:
    return max(bytes_of(exchange, _ranks(exchange)), default=0.0)


def _ranks(exchange: Exchange) -> int:
    return len(exchange.groups[0]) if exchange.groups else 0


FORMATS = ("table", "csv", "json")
_TIMES = ("p50", "ci_low", "ci_high", "min", "p95", "p99", "max")
_CEILING = ("kind", "bytes_per_s", "limited_by", "model", "source")
_SHARES = ("value", "low", "high")


def check_format(format: str) -> None:
    """Raise UsageError for a format that a step does not have."""
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown for workload: choose from {', '.join(FORMATS)}")


def write_steps(
    rows: Sequence[StepRow], format: str, out: TextIO, *, color: bool, step_time_s: float | None = None, run: str = "", first: bool = True
) -> None:
    """Print steps: as a table (the rows of one training on several backends belong together), csv or json (a record per row).

    step_time_s  the computing time, for the scaling efficiency
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
    """Return the rows by training, in the order of the first row of each."""
    found: dict[tuple[Any, ...], list[StepRow]] = {}
    for row in rows:
        key = (row.regime, row.model, row.parameters, row.dtype, row.bucket_bytes, tuple(row.options.items()), row.ranks, row.nodes)
        found.setdefault(key, []).append(row)
    return list(found.values())


def lines(rows: Sequence[StepRow], step_time_s: float | None = None, width: int | None = None) -> Iterator[Line]:
    """Yield one training on some backends: its headline, the step, its parts, staleness, scaling efficiency, and the flags' meanings."""
    first = rows[0]
    words = [
        *filter(None, [first.dtype]),
        *option_words(first.options),
        *_bucket(first),
        counted(first.ranks, "rank"),
        counted(first.nodes, "node"),
    ]
    yield Line(printable(headline(first.regime, first.model, first.parameters, words)), "head")
    yield from table(ROUND if any(row.staleness for row in rows) else STEP, [(step_cases(row), style(row)) for row in rows], width)
    yield from table(PARTS, [(cases, "") for row in rows for cases in part_cases(row)], width)
    yield from table(WORKERS, [(cases, "") for row in rows for cases in worker_cases(row)], width)
    for row in rows:
        yield from (Line(printable(sentence), "wrong" if row.wrong else "foot") for sentence in _sentences(row, several=len(rows) > 1))
    yield from _scaling(rows, step_time_s, width)
    notes = [row.note for row in rows if row.note]
    yield from (Line(printable(text), "foot") for text in dict.fromkeys([*notes, *explain(flag for row in rows for flag in row.flags)]))


def _bucket(row: StepRow) -> list[str]:
    """Return the text about buckets; empty for training without buckets."""
    regime = regimes().get(row.regime)
    known = regime is None or "bucket" in {**regime.takes, **regime.options}
    return [f"buckets of {format_size(row.bucket_bytes)}"] if known and row.bucket_bytes else []


def scaling_of(row: StepRow, step_time_s: float | None) -> Efficiency | None:
    """Return the efficiency with this computing time; None if one of the two times is unknown."""
    if step_time_s is None or row.time_s is None:
        return None
    return efficiency(step_time_s, row.time_s.p50, row.time_s.ci_low, row.time_s.ci_high)


def step_json(row: StepRow, step_time_s: float | None = None) -> dict[str, Any]:
    """Return the row as in workload.jsonl; with a computing time also its "scaling"."""
    found = scaling_of(row, step_time_s)
    scaling = {"compute_s": found.compute_s, "apart": vars(found.apart), "overlap": vars(found.overlap)} if found else None
    return row.as_json() | ({"scaling": scaling} if step_time_s is not None else {})


def csv_lines(rows: Iterable[StepRow], step_time_s: float | None = None, run: str = "", head: bool = True) -> Iterator[str]:
    """Yield a record per row; lists and objects are JSON; RFC 4180 ends records with a carriage return."""
    for row in rows:
        flat = {"run": run, **dict(_flat(row, scaling_of(row, step_time_s), step_time_s))}
        if head:
            yield csv_record(flat).text
            head = False
        yield csv_record(map(csv_text, flat.values())).text


def _flat(row: StepRow, scaling: Efficiency | None, step_time_s: float | None) -> Iterator[tuple[str, Any]]:
    for name, value in vars(row).items():
        if name == "na_fact":
            continue  # `na` has its text
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


def _sentences(row: StepRow, several: bool) -> Iterator[str]:
    """Yield sentences on wrong data, the sum of the parts, the ceiling and staleness."""
    prefix = f"{row.backend}: " if several else ""
    if row.wrong:
        yield f"{prefix}wrong data: {counted(row.wrong, 'element')} {'is' if row.wrong == 1 else 'are'} not what had to arrive" + (
            f" ({row.wrong_detail})" if row.wrong_detail else ""
        )
    if row.time_s is not None and row.parts_time_s:
        alone, whole = milliseconds(row.parts_time_s), milliseconds(row.time_s.p50)
        yield f"{prefix}the parts, each alone, take {alone} ms one after the other, the step {whole} ms"
    if row.ceiling_time_s and row.percent_of_ceiling is not None:
        yield f"{prefix}at the ceiling a step takes {milliseconds(row.ceiling_time_s)} ms"
    if row.staleness:
        yield f"{prefix}{_stale(row.staleness)}"


def _stale(staleness: Mapping[str, Any]) -> str:
    figures = {name: number(staleness.get(name)) for name in ("p50", "p95", "max", "steps_per_s", "duration_s")}
    workers = staleness.get("workers", [])
    more = f" (the first {MOST_WORKERS} are shown)" if len(workers) > MOST_WORKERS else ""
    return (
        f"no worker waits for another: {counted(len(workers), 'worker')}{more}, {figures['steps_per_s']} rounds per second together, for "
        f"{figures['duration_s']} s; staleness, updates of others between a worker's pull and its next push: median {figures['p50']}, "
        "95 % up to "
        f"{figures['p95']}, at most {figures['max']}"
    )


def _scaling(rows: Sequence[StepRow], step_time_s: float | None, width: int | None) -> Iterator[Line]:
    """Yield a line per backend, and an explanation of the two figures."""
    found = [(row.backend, scaling) for row in rows if (scaling := scaling_of(row, step_time_s))]
    if not found:
        return
    compute = milliseconds(found[0][1].compute_s)
    columns: list[Column[tuple[str, Efficiency]]] = [
        Column("", "backend", lambda each: each[0]),
        Column("", "no overlap, t/(t+c)", lambda each: _share(each[1].apart)),
        Column("", "perfect overlap, t/max(t,c)", lambda each: _share(each[1].overlap)),
    ]
    head = [f"scaling efficiency that the network allows, where a step computes for t = {compute} ms and exchanges for c, the time above:"]
    brackets = "in brackets what the interval of c gives; " if any(each.apart.low is not None for _, each in found) else ""
    foot = [f"{brackets}real training lies between the two, as far as its framework overlaps"]
    yield from table_lines(Frame(columns, found, head=head, foot=foot), width)


def _share(found: Share) -> str:
    interval = "" if found.low is None or found.high is None else f" ({100 * found.low:.1f}–{100 * found.high:.1f} %)"
    return f"{100 * found.value:.1f} %{interval}"
