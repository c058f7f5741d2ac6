"""Output of `collbench workload`: a plan of exchanges (`--dry-run`), and measured steps as a table per training or a record per row."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TextIO, TypeVar

import msgspec
from msgspec.structs import replace

from collbench.machine.peak.ceiling import ABOVE_LIMIT, is_above_limit
from collbench.operations.unsupported import decode_reason
from collbench.plugins.overlap.records import Overlap, OverlapEstimate
from collbench.plugins.overlap.text import MOVES, format_outcome, format_overlap, format_slowdown
from collbench.plugins.training.records import (
    Efficiency,
    PartRow,
    RoutedStep,
    RoutingResult,
    Share,
    Staleness,
    StepRow,
    WorkerPace,
)
from collbench.plugins.training.workloads.registry import every_regime
from collbench.plugins.training.workloads.step import Exchange, Regime, Shape, Step, bytes_of, moved_bytes
from collbench.records import RecordKind
from collbench.report.cases import NOTHING, basis, rate, share, with_basis
from collbench.report.dry_run import PlannedWork
from collbench.report.frame import Column, Display, Frame, Line, R, csv_of, printable, table_lines, without_empty
from collbench.report.kinds import DeclaredKind, StoredRecords
from collbench.report.screen import print_lines, width_of, wrapped, write_line
from collbench.results.estimate import Estimate
from collbench.results.flags import DOUBTFUL, explain, flag_names
from collbench.results.row import Times
from collbench.units import format_bytes, format_percent, format_rate, format_size, format_time, plural
from collbench.untrusted import dict_of

if TYPE_CHECKING:
    from collbench.plugins.training.records import StepRow
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material
    from collbench.results.reader import Run


_NUMBER = re.compile(r"\d+")


def headline(regime: str, model: str, parameters: int, words: Sequence[str]) -> str:
    """Return a training in one line: "data-parallel · bert-large, 340,000,000 parameters · float32 · 4 ranks · 2 nodes"."""
    counted = f"{parameters:,} parameters" if parameters else ""  # unknown if the exchanges could not be derived
    return " · ".join([regime, ", ".join(filter(None, [model, counted])), *words])


def option_words(options: Mapping[str, str]) -> list[str]:
    """Return the options that have a value: "update sharded", "top-k 2"."""
    return [f"{name.replace('_', '-')} {value}" for name, value in options.items() if value]


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


MOST_WORKERS = 16
P = TypeVar("P", PartRow, WorkerPace, RoutedStep)


class Shown(NamedTuple, Generic[P]):
    """A record in a table, with the name of its backend in the first line of a backend, else ""."""

    backend: str
    record: P


def step_columns(step: str) -> tuple[Column[StepRow], ...]:
    """Return the columns of a table of steps; `step` is "step", or "round" for workers that do not wait and have no common step."""
    return (
        Column("", "backend", lambda row: row.backend),
        _measured(f"{step}s", lambda row: str(row.n), drop=4),
        _measured(f"{step} ms", lambda row: _times(row.time_s, row.flags)[0]),
        _measured("95 % interval ms", lambda row: _times(row.time_s, row.flags)[1], drop=2),
        _measured("moves", lambda row: format_bytes(row.moved_bytes), drop=5),
        _measured("busbw GB/s", lambda row: rate(row.busbw_bytes_per_s), drop=3),
        _measured("wrong", lambda row: NOTHING if row.wrong is None else str(row.wrong)),
        _measured("of expected", of_expected, right=False),
        _measured("limited by", limiting, False, drop=1),
        Column("", "flags", lambda row: ", ".join(flag_names(row.flags)) if row.na is None else f"n/a ({row.na})", wrap=True),
    )


def _measured(title: str, text: Callable[[StepRow], str], right: bool = True, drop: int = 0) -> Column[StepRow]:
    return Column("", title, lambda row: NOTHING if row.na is not None else text(row), right=right, drop=drop)


def _without_empty(columns: Sequence[Column[R]], records: Sequence[R], style: Callable[[R], str] = lambda record: "") -> Frame[R]:
    return Frame(without_empty(columns, records), records, style=style, names_hidden=True)


def style(row: StepRow) -> str:
    """Return the style of the row's line."""
    if row.wrong:
        return "wrong"
    if row.na:
        return "na"
    return "doubtful" if DOUBTFUL & set(row.flags) else ""


def _times(times: Times | None, flags: Sequence[str]) -> tuple[str, str]:
    """Return the median and its interval in ms; "?" before an interval that a flag makes doubtful."""
    if times is None:
        return NOTHING, NOTHING
    if times.ci_low is None or times.ci_high is None:
        return milliseconds(times.p50), NOTHING
    doubt = "? " if DOUBTFUL & set(flags) else ""
    return milliseconds(times.p50), f"{doubt}{milliseconds(times.ci_low)}–{milliseconds(times.ci_high)}"


def of_expected(record: StepRow | PartRow) -> str:
    """Return the bus bandwidth of the expected one, "0.112 of 0.118 GB/s (95 %)"; a dash where none is expected."""
    compared = record.comparison
    if compared is None or record.ceiling is None:
        return NOTHING
    rates = f"{format_rate(compared.busbw_bytes_per_s)} of {format_rate(compared.expected_bytes_per_s)} GB/s"
    return f"{rates} ({share(compared.percent, compared.ceiling)})"


def limiting(record: StepRow | PartRow) -> str:
    """Return what limits the rate; where none is expected, the reason why."""
    if record.ceiling is None:
        return NOTHING
    return with_basis(record.ceiling, basis(record.ceiling)) if record.comparison else record.ceiling.limited_by


def _known(value: float | None, text: Callable[[float], str]) -> str:
    return NOTHING if value is None else text(value)


def _number(value: float | None) -> str:
    return _known(value, lambda value: f"{value:.4g}" if isinstance(value, float) else str(value))


def _below(rows: Sequence[StepRow], parts: Callable[[StepRow], Sequence[P]]) -> list[Shown[P]]:
    return [Shown("" if number else row.backend, record) for row in rows for number, record in enumerate(parts(row))]


PARTS: tuple[Column[Shown[PartRow]], ...] = (
    Column("", "backend", lambda shown: shown.backend),
    Column("", "part", lambda shown: span(*shown.record.names), cut=True),
    Column("", "operation", lambda shown: shown.record.operation, drop=5),
    Column("", "groups", lambda shown: f"{shown.record.groups} of {plural(shown.record.group_ranks, 'rank')}", drop=6),
    Column("", "size", lambda shown: format_bytes(shown.record.size_bytes), right=True, drop=2),
    Column("", "times", lambda shown: str(shown.record.times), right=True),
    Column("", "each ms", lambda shown: _times(shown.record.time_s, ())[0], right=True),
    Column("", "moves", lambda shown: _known(shown.record.moved_bytes, format_bytes), right=True, drop=4),
    Column("", "busbw GB/s", lambda shown: rate(shown.record.busbw_bytes_per_s), right=True, drop=3),
    Column("", "of expected", lambda shown: of_expected(shown.record), drop=1),
    Column("", "limited by", lambda shown: limiting(shown.record), drop=7),
)
WORKERS: tuple[Column[Shown[WorkerPace]], ...] = (
    Column("", "backend", lambda shown: shown.backend),
    Column("", "worker", lambda shown: f"rank {shown.record.rank}", right=True),
    Column("", "rounds", lambda shown: _number(shown.record.steps), right=True, drop=1),
    Column("", "rounds/s", lambda shown: _number(shown.record.steps_per_s), right=True),
    Column("", "staleness: median", lambda shown: _number(shown.record.p50), right=True),
    Column("", "95 %", lambda shown: _number(shown.record.p95), right=True),
    Column("", "most", lambda shown: _number(shown.record.max), right=True),
)


# `collbench workload --dry-run`: the exchanges of a step and the bytes that they move.

_PLAN: tuple[Column[Exchange], ...] = (
    Column("", "part", lambda exchange: exchange.what, cut=True),
    Column("", "operation", lambda exchange: exchange.operation, drop=1),
    Column("", "groups", lambda exchange: f"{len(exchange.groups)} of {plural(_ranks(exchange), 'rank')}", drop=2),
    Column("", "size", lambda exchange: format_bytes(exchange.size_bytes), right=True),
    Column("", "times", lambda exchange: str(exchange.times), right=True),
    Column("", "moves", lambda exchange: format_bytes(_moves(exchange)), right=True),
)
_MOVES = "moves: what the busiest rank has to send or receive, as busbw counts it; an algorithm may move more"


class PlannedStep(msgspec.Struct, frozen=True):
    """A training step planned for the ranks of a launch; model: the user's name for it."""

    regime: Regime
    shape: Shape
    step: Step
    model: str


@dataclass(frozen=True)
class PlannedSteps(PlannedWork):
    """The steps that would be measured; remarks: sentences about them."""

    steps: Sequence[PlannedStep]
    remarks: Iterable[str] = ()

    def write(self, format: str, out: TextIO, talk: TextIO | None) -> None:
        """Print a table for each step, or each exchange; the remarks always on `talk`."""
        facts = [fact for step in self.steps for fact in exchange_facts(step)]
        lines: Iterable[Line] = (Line(json.dumps(fact)) for fact in facts)
        if format == "table":
            width = width_of(out)
            shown: list[Line] = []
            for number, step in enumerate(self.steps):
                if number:
                    shown.append(Line(""))
                shown += [Line(line.text) for line in table_lines(_plan_frame(step), width)]
            if self.steps:
                shown += wrapped([Line(_MOVES)], width)
            lines = shown
        print_lines(csv_of(facts) if format == "csv" else lines, out)
        if talk:
            for sentence in self.remarks:
                write_line(talk, sentence)


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
    lines = []
    for _, neighbors in groupby(exchanges, lambda exchange: replace(exchange, what=nameless(exchange.what))):
        equal = list(neighbors)
        lines.append(replace(equal[0], what=span(equal[0].what, equal[-1].what), times=sum(exchange.times for exchange in equal)))
    return lines


def _plan_frame(planned: PlannedStep) -> Frame[Exchange]:
    shape = planned.shape
    words = [plural(shape.ranks, "rank"), plural(len(set(shape.hosts)), "node")]
    title = headline(planned.regime.name, planned.model, shape.parameters, [shape.dtype, *option_words(shape.options), *words])
    moved = moved_bytes(planned.step, shape.ranks)
    whole = f"the busiest rank moves {format_bytes(max(moved, default=0.0))}, all ranks {format_bytes(sum(moved))}"
    foot = [f"a step: {format_bytes(planned.step.payload_bytes)} of a rank's own data; {whole}"]
    if planned.step.note:
        foot.append(planned.step.note)
    return Frame(_PLAN, folded(planned.step.exchanges), title=title, foot=foot)


def _moves(exchange: Exchange) -> float:
    return max(bytes_of(exchange, _ranks(exchange)), default=0.0)


def _ranks(exchange: Exchange) -> int:
    return len(exchange.groups[0]) if exchange.groups else 0


def trainings(rows: Iterable[StepRow]) -> list[list[StepRow]]:
    """Return the rows by training, in the order of the first row of each."""
    by_training: dict[tuple[Any, ...], list[StepRow]] = {}
    for row in rows:
        key = (row.regime, row.model, row.parameters, row.dtype, row.bucket_bytes, tuple(row.options.items()), row.ranks, row.nodes)
        by_training.setdefault(key, []).append(row)
    return list(by_training.values())


def lines(rows: Sequence[StepRow], display: Display) -> Iterator[Line]:
    """Yield the tables of the trainings, with an empty line between two."""
    for number, training in enumerate(trainings(rows)):
        if number:
            yield Line("")
        yield from _training_lines(training, display.width)


def _training_lines(rows: Sequence[StepRow], width: int | None) -> Iterator[Line]:
    """Yield one training on some backends: its headline, the step, its parts, staleness, scaling efficiency, and the flags' meanings."""
    yield Line(printable(title(rows)), "head")
    for frame in frames(rows):
        yield from table_lines(frame, width)
    for row in rows:
        yield from (Line(printable(sentence), "wrong" if row.wrong else "foot") for sentence in _sentences(row, several=len(rows) > 1))
    scaling = scaling_frame(rows)
    if scaling is not None:
        yield from table_lines(scaling, width)
    yield from (Line(printable(text), "foot") for text in _notes(rows))


def title(rows: Sequence[StepRow]) -> str:
    """Return the headline of one training: "data-parallel · bert-large, … · 4 ranks · 1 node"."""
    first = rows[0]
    words = [first.dtype] if first.dtype else []
    words += option_words(first.options)
    regime = every_regime().get(first.regime)
    if first.bucket_bytes and (regime is None or "bucket" in {**regime.takes, **regime.options}):  # else it has no buckets
        words.append(f"buckets of {format_size(first.bucket_bytes)}")
    words += [plural(first.ranks, "rank"), plural(first.nodes, "node")]
    return headline(first.regime, first.model, first.parameters, words)


def frames(rows: Sequence[StepRow]) -> tuple[Frame[Any], ...]:
    """Return the tables of one training on some backends: the step, its parts, the workers of asynchronous training, of a replay its
    costliest operations instead of all parts, routings, and the step with computing.
    """
    from collbench.plugins.traces.replay_text import costliest_frame

    step = "round" if any(row.staleness for row in rows) else "step"
    workers = _below(rows, lambda row: row.staleness.workers[:MOST_WORKERS] if row.staleness else ())
    parts = _below([row for row in rows if row.replay is None], lambda row: row.parts)
    routings = _below(rows, lambda row: shown_steps(row.routing) if row.routing else ())
    computing = [row for row in rows if row.computing and row.computing.overlap]
    return (
        _without_empty(step_columns(step), rows, style), _without_empty(PARTS, parts), _without_empty(WORKERS, workers),
        costliest_frame(rows), Frame(_DISTRIBUTION, [row for row in rows if row.routing], names_hidden=True),
        _without_empty(_ROUTINGS, routings), Frame(_STEPS, computing, names_hidden=True),
    )  # fmt: skip


def remarks(rows: Sequence[StepRow]) -> list[str]:
    """Return the sentences below the tables of one training: of its rows, and the flags' meanings."""
    return [*(sentence for row in rows for sentence in _sentences(row, several=len(rows) > 1)), *_notes(rows)]


def _notes(rows: Sequence[StepRow]) -> list[str]:
    from collbench.plugins.traces.replay_text import trace_sentences

    notes = [row.note for row in rows if row.note]
    notes += [sentence for row in rows if row.replay for sentence in trace_sentences(row.replay)]
    notes += explain(flag for row in rows for flag in row.flags)
    return list(dict.fromkeys(notes))


def _sentences(row: StepRow, several: bool) -> Iterator[str]:
    """Yield sentences on wrong data, the sum of the parts, the expected time and staleness."""
    prefix = f"{row.backend}: " if several else ""
    if row.wrong:
        detail = f" ({row.wrong_detail})" if row.wrong_detail else ""
        yield f"{prefix}wrong data: {plural(row.wrong, 'element')} {'is' if row.wrong == 1 else 'are'} not what had to arrive{detail}"
    if row.time_s is not None and row.parts_time_s:
        alone = milliseconds(row.parts_time_s)
        whole = milliseconds(row.time_s.p50)
        if row.replay and row.replay.compute is not None:
            yield f"{prefix}with the parts' times alone, and the trace's computing and overlap: {alone} ms, the step {whole} ms"
        else:
            yield f"{prefix}the parts, each alone, take {alone} ms one after the other, the step {whole} ms"
    if row.ceiling_time_s and row.comparison:
        yield f"{prefix}expected step time: {milliseconds(row.ceiling_time_s)} ms"
    from collbench.plugins.traces.replay_text import replay_sentences

    yield from (f"{prefix}{sentence}" for sentence in replay_sentences(row))
    if row.staleness:
        yield f"{prefix}{_stale(row.staleness)}"
    yield from (f"{prefix}{sentence}" for sentence in (*routing_sentences(row), *computing_sentences(row)))


def _stale(staleness: Staleness) -> str:
    more = f" (the first {MOST_WORKERS} are shown)" if len(staleness.workers) > MOST_WORKERS else ""
    return (
        f"no worker waits for another: {plural(len(staleness.workers), 'worker')}{more}, {_number(staleness.steps_per_s)} rounds per "
        f"second together, for {_number(staleness.duration_s)} s; staleness, updates of others between a worker's pull and its next push: "
        f"median {_number(staleness.p50)}, 95 % up to {_number(staleness.p95)}, at most {_number(staleness.max)}"
    )


def scaling_frame(rows: Sequence[StepRow]) -> Frame[tuple[str, Efficiency]] | None:
    """Return the table of the scaling efficiency as a range, a line per backend, with what the two figures are.

    None without a computing time, and if the efficiency was measured on all backends (`--compute real`).
    """
    shown = [(row.backend, row.scaling) for row in rows if row.scaling and not (row.computing and row.computing.conclusive)]
    if not shown:
        return None
    compute = milliseconds(shown[0][1].compute_s)
    columns: list[Column[tuple[str, Efficiency]]] = [
        Column("", "backend", itemgetter(0)),
        Column("", "no overlap, t/(t+c)", lambda line: _share(line[1].apart)),
        Column("", "perfect overlap, t/max(t,c)", lambda line: _share(line[1].overlap)),
    ]
    head = [f"scaling efficiency that the network allows, where a step computes for t = {compute} ms and exchanges for c, the time above:"]
    brackets = "in brackets what the interval of c gives; " if any(scaling.apart.low is not None for _, scaling in shown) else ""
    foot = [f"{brackets}real training lies between the two, as far as its framework overlaps"]
    return Frame(columns, shown, head=head, foot=foot)


def _share(share: Share | OverlapEstimate) -> str:
    """Return "81.2 % (79.9–82.6 %)"."""
    interval = "" if share.low is None or share.high is None else f" ({100 * share.low:.1f}–{100 * share.high:.1f} %)"
    return f"{100 * share.value:.1f} %{interval}"


def _of_step(title: str, text: Callable[[Overlap], str], drop: int = 0, right: bool = True) -> Column[StepRow]:
    return Column("", title, lambda row: text(row.computing.overlap) if row.computing and row.computing.overlap else NOTHING,
                  right=right, drop=drop)  # fmt: skip


def _measured_efficiency(row: StepRow) -> str:
    """Return "81.2 % (79.9–82.6 %)", after "? " if the row is doubtful; or "inconclusive"."""
    efficiency = row.computing.efficiency if row.computing and row.computing.conclusive else None
    return f"{'? ' if DOUBTFUL & set(row.flags) else ''}{_share(efficiency) if efficiency else 'inconclusive'}"


_STEPS: tuple[Column[StepRow], ...] = (
    Column("", "backend", lambda row: row.backend),
    _of_step("compute ms", lambda overlap: format_time(overlap.computation_s / 1000)),
    _of_step("exchanges ms", lambda overlap: format_time(overlap.communication_s / 1000)),
    _of_step("both ms", lambda overlap: format_time(overlap.both_s / 1000)),
    _of_step("exposed ms", lambda overlap: _exposed_ms(overlap.exposed_s), drop=1),
    _of_step("overlap", lambda overlap: format_overlap(overlap.percent)),
    _of_step("compute slower", lambda overlap: format_slowdown(overlap.slowdown), drop=3),
    _of_step("outcome", format_outcome, drop=2, right=False),
    Column("", "scaling efficiency", _measured_efficiency, right=False),
)


def computing_sentences(row: StepRow) -> Iterator[str]:
    """Yield how the computation of a row was chosen, how data moves meanwhile, and why it is inconclusive."""
    computing = row.computing
    if computing is None:
        return
    if computing.overlap is None:
        reason = decode_reason(computing.refusal)
        yield f"not measured with computing: {reason.render() if reason else 'unknown reason'}"
        return
    chosen = "as stated by --step-time" if computing.stated else "as long as the exchanges; state it by --step-time"
    how = MOVES[computing.overlap.progress]
    yield f"with computing of {format_time(computing.goal_s / 1000)} ms, {chosen}: efficiency = compute / both; data moves {how}"
    if computing.overlap.doubt:
        what = "overlap" if computing.conclusive else "overlap and scaling efficiency"
        yield f"{what} inconclusive: {computing.overlap.doubt.render()}"


def _exposed_ms(exposed: OverlapEstimate) -> str:
    value, low, high = (None if time_s is None else f"{1e3 * time_s:.4g}" for time_s in (exposed.value, exposed.low, exposed.high))
    return f"{value}" if low is None else f"{value} ({low}–{high})"


MOST_SHOWN = 24  # routings in the table; JSON has all


def shown_steps(result: RoutingResult) -> list[RoutedStep]:
    """Return the routings of the table, by number: all, or the slowest."""
    slowest = sorted(result.steps, key=lambda step: step.time_s.value or 0.0, reverse=True)[:MOST_SHOWN]
    return sorted(slowest, key=lambda step: step.step)


def routing_sentences(row: StepRow) -> Iterator[str]:
    """Yield the sentences below the tables of one row: the tax, and the bytes of dispatch and combine."""
    result = row.routing
    if result is None:
        return
    tax = format_tax(result.tax)
    routings = plural(len(result.steps), "routing")
    if result.tax.value is not None:
        yield (
            f"imbalance tax: {tax} of the time of a step with as many tokens that are routed evenly; {routings}, "
            f"measured in turn with even ones, {plural(result.rounds, 'round')}"
        )
    ways = (("dispatch", result.dispatch), ("combine", result.combine))
    moved = [f"{name} {format_bytes(way.bytes)} ({way.dtype})" for name, way in ways if way.bytes is not None]
    if moved:
        yield f"all tokens of a step: {', '.join(moved)}"
    if len(result.steps) > MOST_SHOWN:
        yield f"the slowest {MOST_SHOWN} of {routings} are shown; JSON has all"


def format_tax(tax: Estimate) -> str:
    """Return "+71.0 % (70.6 to 71.8 %)", with as many digits as the interval supports; a dash if it is unknown."""
    if tax.value is None:
        return NOTHING
    if tax.low is None or tax.high is None:
        return f"{100 * (tax.value - 1):+.0f} %"
    digits = 0 if tax.high - tax.low >= 0.02 else 1
    low, high = (100 * (end - 1) for end in (tax.low, tax.high))
    return f"{100 * (tax.value - 1):+.{digits}f} % ({low:.{digits}f} to {high:.{digits}f} %)"


def _milliseconds(time_s: Estimate) -> str:
    """Return "966.1 (962.0–970.5)"; without the interval where it is unknown."""
    if time_s.value is None:
        return NOTHING
    if time_s.low is None or time_s.high is None:
        return format_time(time_s.value / 1000)
    low, high = (format_time(end / 1000) for end in (time_s.low, time_s.high))
    return f"{format_time(time_s.value / 1000)} ({low}–{high})"


def _of_expected(step: RoutedStep) -> str:
    if step.busbw_bytes_per_s is None or step.expected_bytes_per_s is None or step.percent_of_expected is None:
        return NOTHING
    rates = f"{format_rate(step.busbw_bytes_per_s)} of {format_rate(step.expected_bytes_per_s)} GB/s"
    return f"{rates} ({step.percent_of_expected:.0f} %)"


def _of_routings(title: str, text: Callable[[RoutingResult], str], drop: int = 0) -> Column[StepRow]:
    return Column("", title, lambda row: text(row.routing) if row.routing else NOTHING, right=True, drop=drop)


_DISTRIBUTION: tuple[Column[StepRow], ...] = (
    Column("", "backend", lambda row: row.backend),
    _of_routings("routings", lambda result: str(len(result.steps)), drop=3),
    _of_routings("even ms", lambda result: _milliseconds(result.even_time_s), drop=2),
    _of_routings("p5 ms", lambda result: _milliseconds(result.time_s.p5), drop=4),
    _of_routings("p50 ms", lambda result: _milliseconds(result.time_s.p50)),
    _of_routings("p95 ms", lambda result: _milliseconds(result.time_s.p95), drop=1),
    _of_routings("slowest ms", lambda result: _milliseconds(result.time_s.max)),
    _of_routings("imbalance tax", lambda result: format_tax(result.tax)),
)
_ROUTINGS: tuple[Column[Shown[RoutedStep]], ...] = (
    Column("", "backend", lambda shown: shown.backend),
    Column("", "routing", lambda shown: str(shown.record.step), right=True),
    Column("", "step ms", lambda shown: _milliseconds(shown.record.time_s), right=True),
    Column("", "imbalance tax", lambda shown: format_tax(shown.record.tax), right=True),
    Column("", "busiest rank", lambda shown: str(shown.record.busiest_rank), right=True),
    Column("", "its share", lambda shown: _known(shown.record.busiest_share, lambda share: f"{100 * share:.1f} %"), right=True),
    Column("", "imbalance", lambda shown: _known(shown.record.imbalance, lambda times: f"{times:.2f}×"), right=True, drop=1),
    Column("", "moves", lambda shown: _known(shown.record.moved_bytes, format_bytes), right=True, drop=3),
    Column("", "of expected", lambda shown: _of_expected(shown.record), drop=2),
)


STEPS = RecordKind("workload", StepRow, title, remarks, style=style, lines=lines)


def step_time_of(about: Mapping[str, Any]) -> float | None:
    """Return the time of computing from run.json's "workload", in seconds; None if it is missing or not valid."""
    value = about.get("step_time_s")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf") else None


class TrainingKind(DeclaredKind):
    """The exchanges of training steps."""

    what = "training traffic"
    declared = STEPS

    def read(self, run: Run) -> StoredRecords:
        """Return the rows, with the user's computing time of a step."""
        rows, warnings = super().read(run)
        step_time_s = step_time_of(dict_of(run.info.get(self.name)))
        return StoredRecords([row.replace(step_time_s=step_time_s) for row in rows], warnings)

    def place_of(self, row: StepRow) -> str:
        """Return the kind of training and the backend."""
        return f"{row.regime} on {row.backend}"

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the time of the step of the fastest backend, and its share of the expected rate."""
        from collbench.report.html.first_screen import BAD, DOUBT, PLAIN, FirstScreen, LargeFigure, line_of

        runs = material.of_kind(self.name)
        rows = [row for _, rows_of_run in runs for row in rows_of_run]
        if not rows:
            return None
        line = line_of(runs[0][0])
        timed = [(row, row.time_s.p50) for row in rows if row.time_s is not None]
        first = min(timed, key=itemgetter(1))[0] if timed else rows[0]
        model = f" of {first.model}" if first.model else ""
        kind = f"{first.regime} training" if first.regime in every_regime() else first.regime  # a replay has any content
        what = f"{kind}{model} on {plural(first.nodes, 'node')}, {plural(first.ranks, 'rank')}"
        if first.time_s is None:
            return FirstScreen(f"{what}: not measured ({first.na})", (DOUBT, "NOT MEASURED"), (), line, (), "training")
        compared = first.comparison
        time = f"{milliseconds(first.time_s.p50)} ms"
        figures = [LargeFigure(time, f"exchange of a step over {first.backend}")]
        title = f"{what}: a step's exchange takes {time} over {first.backend}"
        if compared and first.ceiling:
            percent, expected = format_percent(compared.percent), format_rate(compared.expected_bytes_per_s)
            if is_above_limit(compared.percent):
                percent = f"{percent}, {ABOVE_LIMIT}"
            figures.append(LargeFigure(format_percent(compared.percent), f"of {expected} GB/s expected"))
            title += f", {format_rate(compared.busbw_bytes_per_s)} of {expected} GB/s ({percent}), limited by {first.ceiling.limited_by}"
        else:
            title += "; the expected bandwidth is unknown"
        if first.routing is not None:
            figures.insert(0, LargeFigure(format_tax(first.routing.tax), "imbalance tax: time beyond that of evenly routed steps"))
            title = f"{what}: imbalance tax {format_tax(first.routing.tax)}; a step's exchange takes {time} over {first.backend}"
        badge = (BAD, "WRONG DATA") if any(row.wrong for row in rows) else (PLAIN, "MEASURED")
        others = [f"{row.backend}: {milliseconds(time_s)} ms" for row, time_s in timed if row is not first]
        return FirstScreen(title, badge, figures, line, others, "training")


TRAINING = TrainingKind()
