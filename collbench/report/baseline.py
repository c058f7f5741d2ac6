"""Output of `collbench baseline show` and `diff`, and `collbench history`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from math import exp, isfinite, log
from pathlib import Path
from shlex import quote
from typing import Annotated, TypeVar

import msgspec

from collbench.analysis.outcome import MARGIN, Outcome
from collbench.columns import NUMBER, column
from collbench.errors import UsageError
from collbench.gating.allocation import COLUMNS, Allocation
from collbench.gating.baseline import Baseline
from collbench.gating.history import CASE, GROUP, WHOLE, BaselineDiff, CaseHistory, History, LevelChange, SeriesSubject
from collbench.gating.reasons import rendered
from collbench.gating.rule import ENOUGH, FEWEST, BaselineLimits, learned_limits
from collbench.report.cases import NOTHING, figure_text
from collbench.report.forms import json_line, table_columns
from collbench.report.frame import GAP, Column, Frame, Line, TextLayout, printable, table_lines
from collbench.report.outcome_text import count_text, format_margin
from collbench.report.screen import wrapped
from collbench.results.row import UNDER_LOAD, CaseKey
from collbench.units import first_of, format_percent, format_size, plural

V = TypeVar("V")
FORMATS = ("table", "json")
_FIRST = ("operation", "size_bytes", "backend")
_MOST_HOSTS = 4
_MOST_SLOWDOWN = 10  # the allocations of the baseline differ so much that a larger factor means nothing


def _typical(limits: CaseLimits) -> str:
    figure = limits.factor if limits.time_s is None else limits.time_s
    return NOTHING if figure is None else _time(limits.case, figure)


def _visible(case: CaseLimits) -> str:
    slowdown = case.visible_slowdown
    if not isfinite(slowdown):
        return NOTHING
    return _percent(slowdown) if slowdown < _MOST_SLOWDOWN - 1 else f"more than {_MOST_SLOWDOWN}×"


class CaseLimits(msgspec.Struct, frozen=True):
    """A case of a baseline: how often it was measured, and what the gate sees of it. name: what distinguishes it."""

    case: Annotated[
        CaseKey, column("", key="", value=lambda limits: limits.case.named(), title="case", text=lambda limits: limits.name, cut=True)
    ]
    name: str
    allocations: Annotated[int, column("The allocations that measured it.", unit=NUMBER, title="allocations", drop=2)]
    time_s: Annotated[float | None, column("The typical median.", optional=True, title="time µs", text=_typical, drop=1)]
    factor: Annotated[float | None, column("Of a case under load, its typical factor.", optional=True)]
    visible_slowdown: Annotated[
        float,
        column("The smallest slowdown that the gate detects: 0.05 is 5 %.", unit=NUMBER, title="smallest slowdown visible", text=_visible),
    ]


def baseline_lines(baseline: Baseline, format: str, width: int | None = None) -> Iterator[Line]:
    """Yield the baseline in `format`, one of FORMATS, with the smallest detectable slowdown of each case; JSON has one object per case."""
    learned, left_out, limits = learned_limits(baseline)
    figures = zip(limits.allocations.tolist(), limits.centre, limits.visible().tolist(), strict=True)
    cases = [
        CaseLimits(case, name, allocations, *_time_or_factor(case, exp(centre)), visible - 1)
        for case, name, (allocations, centre, visible) in zip(baseline.cases, _names(baseline.cases), figures, strict=True)
    ]
    if format == "json":
        yield from map(json_line, cases)
        return
    columns: list[Column[Allocation]] = [
        Column("", "", lambda allocation: f"  {allocation.name}"),
        Column("", "", lambda allocation: allocation.began_utc[:16], drop=2),
        Column("", "", lambda allocation: f"{plural(len(allocation.cases), 'case')}, {plural(allocation.launches, 'launch')}", drop=1),
        Column("", "", hosts_of, wrap=True),
    ]
    title = f"{baseline.path}: {plural(len(baseline.allocations), 'allocation')}, {plural(len(cases), 'case')}"
    foot = [*rendered(left_out), *_sentences(baseline.path, len(learned.allocations), limits)]
    yield from table_lines(Frame(columns, baseline.allocations, title=title, foot=foot), width)
    yield Line("")
    yield from table_lines(Frame(table_columns(CaseLimits), cases, names_hidden=True), width)


def after_adding(path: Path, allocations: int) -> str:
    """Return how many allocations the baseline has, and the next command."""
    contents = f"{path} has {plural(allocations, 'allocation')}"
    folder = quote(str(path))
    if allocations < FEWEST:
        return f"{contents}; a verdict needs {FEWEST}, better {ENOUGH}: collbench baseline add {folder} RUN…"
    few = f" (better {ENOUGH})" if allocations < ENOUGH else ""
    return f"{contents}{few}; detectable slowdowns: collbench baseline show {folder}"


def _time_or_factor(case: CaseKey | None, figure: V) -> tuple[V | None, V | None]:
    """Return (time in seconds, factor), of which one is a figure and one None: those of groups and of rows under load are factors."""
    return (figure, None) if case is not None and case.mode != UNDER_LOAD else (None, figure)


def _time(case: CaseKey | None, time: float) -> str:
    return figure_text(case, time) if case is not None and isfinite(time) else NOTHING


def hosts_of(allocation: Allocation) -> str:
    """Return "node1, node2"; for many hosts "512 hosts, node001 to node512", in the order of their names."""
    names = allocation.hosts
    if not names:
        return "hosts unknown"
    return ", ".join(names) if len(names) <= _MOST_HOSTS else f"{len(names)} hosts, {names[0]} to {names[-1]}"


def _sentences(path: Path, allocations: int, limits: BaselineLimits) -> Iterator[str]:
    if allocations < FEWEST:
        more = f"add {FEWEST - allocations} more: collbench baseline add {quote(str(path))} RUN…"
        yield f"the gate needs {FEWEST} allocations for a verdict; {more}"
    elif allocations < ENOUGH:
        yield f"thin baseline: use {ENOUGH} allocations or more for reliable limits"
    if allocations >= FEWEST:
        for group, limit in zip(limits.scheme.groups, limits.groups, strict=True):
            if isfinite(limit):
                yield f"{group}: the median over its cases shows {_percent(exp(limit) - 1)}"
        if isfinite(limits.whole):
            yield f"all cases: their median shows {_percent(exp(limits.whole) - 1)}"


def _percent(share: float) -> str:
    return format_percent(100 * share) if share < 9 else f"{share + 1:.0f} times"


def _names(cases: Sequence[CaseKey]) -> list[str]:
    """Return the name of each case: operation, size, backend, and all else that differs between the cases."""
    differing = [name for name in COLUMNS if name not in _FIRST and len({getattr(case, name) for case in cases}) > 1]
    return [" ".join(_word(name, getattr(case, name)) for name in (*_FIRST, *differing)) for case in cases]


def _word(name: str, value: object) -> str:
    if name == "size_bytes":
        return format_size(value) if isinstance(value, int) and value else NOTHING
    if name == "in_place":
        return "in place" if value else "out of place"
    if name in _FIRST:
        return str(value)
    return f"{name} {NOTHING if value is None else value}"


# `collbench history`: a line for each group and each case with its course, then its steps, and other changes at the same time.
#
# A course has a character for each allocation: bars on a terminal, else digits from 0 (the fastest of the line) to 9.

BARS = "▁▂▃▄▅▆▇█"
FIGURES = "0123456789"
_UNKNOWN = {BARS: "·", FIGURES: "."}
MOST_ALLOCATIONS = 60
_MOST_CASES = 60
_MOST_NAMED = 3
_LEAST_COURSE = 12  # allocations


def chosen(history: History, pattern: str) -> list[CaseHistory]:
    """Return the cases with names that match the pattern (`*` is anything), and their groups. Raises UsageError if none matches."""
    cases = history.of_kind(CASE)
    matching = [case for case in cases if fnmatchcase(case.about.name, pattern)]
    if not matching:
        names = ", ".join(case.about.name for case in cases[:_MOST_NAMED])
        raise UsageError(f"--only '{pattern}' matches no case: names are such as {names}; * matches anything")
    group_names = {case.about.group for case in matching}
    groups = [group for group in history.of_kind(GROUP) if group.about.group in group_names]
    whole = history.of_kind(WHOLE) if len(matching) == len(cases) else []
    return [*whole, *groups, *matching]


def letters_for(encoding: str | None, painted: bool) -> str:
    """Return BARS for a stream that has colors and can encode them, else FIGURES."""
    try:
        BARS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return FIGURES
    return BARS if painted else FIGURES


def history_lines(history: History, format: str, pattern: str = "*", letters: str = FIGURES, width: int | None = None) -> Iterator[Line]:
    """Yield the history in `format`, one of FORMATS; `letters` for courses: BARS or FIGURES. Raises UsageError as `chosen` does.

    JSON has an object for each series: its subject, values by allocation, and steps.
    """
    shown = chosen(history, pattern)
    if format != "json":
        yield from _table_history(history, shown, letters, width)
        return
    names = [allocation.name for allocation in history.allocations]
    for series in shown:
        steps = []
        for step in series.steps:
            last_before = history.allocations[step.before]
            since = history.allocations[step.at]
            changes = [change.sentence() for change in history.between(step.before, step.at)]
            steps.append(StepRecord(since.name, since.began_utc, last_before.name, step, history.state(step), changes))
        time_s, factor = _time_or_factor(series.about.case, list(map(exp, series.values.tolist())))
        yield json_line(SeriesRecord(series.about, names, time_s, factor, series.trend, steps, history.missing(series)))


class StepRecord(msgspec.Struct, frozen=True):
    """A step of a series in JSON."""

    since: Annotated[str, column("The first allocation on the new level.")]
    began_utc: Annotated[str, column("When that began.")]
    last_before: Annotated[str, column("The last allocation on the old level.")]
    change: Annotated[LevelChange, column("", key="")]
    state: Annotated[str, column("How the state probe changed, too; empty if it did not, or is unknown.")]
    changes: Annotated[list[str], column("What else changed between the two allocations, a sentence each.")]


class SeriesRecord(msgspec.Struct, frozen=True):
    """A series in JSON."""

    about: Annotated[SeriesSubject, column("", key="")]
    allocations: Annotated[list[str], column("The names of the allocations, in the order in which they began.")]
    time_s: Annotated[list[float] | None, column("Of a case the median by allocation; null: not measured.", optional=True)]
    factor: Annotated[list[float] | None, column("Of all other series, by how much it is slower than usual.", optional=True)]
    trend: Annotated[float | None, column("The last level over the first; null if it was never measured.")]
    steps: Annotated[list[StepRecord], column("Changes from one level to another, in time order.")]
    missing: Annotated[str, column("Where it lacks values, in words; empty if nowhere.")]


def _table_history(history: History, shown: Sequence[CaseHistory], letters: str, width: int | None) -> Iterator[Line]:
    groups, cases = by_step([series for series in shown if len(series.known) > 1])  # a single allocation shows no course
    listed = [*groups, *cases[:_MOST_CASES]]
    allocations = len(history.allocations)
    columns: list[Column[CaseHistory]] = [
        Column("", "", lambda series: series.about.name, cut=True),
        Column("", "allocations", lambda series: f"{len(series.known)} of {allocations}", right=True, drop=2),
        Column("", "time µs", lambda series: _time(series.about.case, exp(series.levels[-1].value)), right=True, drop=1),
        Column("", "trend", lambda series: NOTHING if series.trend is None else f"× {series.trend:.3f}", right=True),
    ]
    most = MOST_ALLOCATIONS
    if width is not None:
        names_width = TextLayout(Frame(columns, listed), width - _LEAST_COURSE - len(GAP)).line_width
        most = min(most, max(_LEAST_COURSE, width - names_width - len(GAP)))
    frame = Frame([*columns, Column("", "course", lambda series: course(series, letters, most))], listed)
    layout = TextLayout(frame, width)
    head = [Line(f"{history.of}: {title(history)}", "head"), *(Line(note, "doubtful") for note in history.notes)]
    if listed:
        last = f" (the last {most})" if allocations > most else ""
        scale = f"{letters[0]}: fastest, {letters[-1]}: slowest of the line, the middle: no relevant difference"
        course_of = f"course: one sign per allocation{last}; {scale}; {_UNKNOWN[letters]}: not measured"
        head.append(Line(f"{course_of}. trend: the last level over the first", "foot"))
    omitted = sum(series.about.kind == CASE for series in shown) - len(cases)
    if omitted:
        note = f"not shown, since measured in one allocation only: {plural(omitted, 'case')} (--format json has them)"
        head.append(Line(note, "foot"))
    yield from wrapped([Line(printable(line.text), line.style) for line in head], width)
    if listed:
        yield Line(layout.heading(), "head")
    for series in listed:
        yield from (Line(line.text, "doubtful" if series.steps else "") for line in layout.lines(series))
        yield from wrapped([Line(printable(f"    {sentence}")) for sentence in sentences(history, series)], width)
    if len(cases) > _MOST_CASES:
        more = f"and {len(cases) - _MOST_CASES} more cases: ask for some with --only PATTERN, or for all with --format json"
        yield from wrapped([Line(more, "foot")], width)


def title(history: History) -> str:
    """Return "20 allocations from 2026-11-01 to 2026-11-20, 336 cases; changes: 1 group, 12 cases"."""
    kinds = Counter(series.about.kind for series in history.series if series.steps)
    changed = ["all cases together"] * kinds[WHOLE]
    changed += [plural(kinds[kind], noun) for kind, noun in ((GROUP, "group"), (CASE, "case")) if kinds[kind]]
    return f"{extent(history)}; changed: {', '.join(changed) or 'nothing'}"


def extent(history: History) -> str:
    """Return "20 allocations from 2026-11-01 to 2026-11-20, 336 cases", or "6 allocations on 2026-11-01, 336 cases"."""
    days = [day(allocation.began_utc) for allocation in history.allocations]
    span = f"on {days[0]}" if days[0] == days[-1] else f"from {days[0]} to {days[-1]}"
    return f"{plural(len(days), 'allocation')} {span}, {plural(len(history.of_kind(CASE)), 'case')}"


def by_step(series: Sequence[CaseHistory]) -> tuple[list[CaseHistory], list[CaseHistory]]:
    """Return (all cases together and groups, cases), those with the largest step first; series without one keep their order."""
    ordered = sorted(series, key=lambda member: (member.about.kind != WHOLE, -member.largest))
    return [member for member in ordered if member.about.kind != CASE], [member for member in ordered if member.about.kind == CASE]


def sentences(history: History, series: CaseHistory) -> Iterator[str]:
    """Yield a sentence for each step, and one for the allocations in which it was not measured.

    A step: "slower × 1.050 (1.046 to 1.054; limit × 1.020) since night-11, 2026-11-11; with it: software mpi: 4.3 → 5.0".
    """
    for step in series.steps:
        limit = exp(step.limit if step.change > 0 else -step.limit)
        since = history.allocations[step.at]
        direction = "slower" if step.change > 0 else "faster"
        numbers = f"{direction} × {exp(step.change):.3f} ({step.low:.3f} to {step.high:.3f}; limit × {limit:.3f})"
        yield f"{numbers} since {since.name}, {day(since.began_utc)}; with it: {with_it(history, step)}"
    if history.missing(series):
        yield history.missing(series)


def with_it(history: History, step: LevelChange) -> str:
    """Return what else changed with a step: "software mpi: 4.3 → 5.0"."""
    changes = [history.state(step), *(change.sentence() for change in history.between(step.before, step.at))]
    texts = [text for text in changes if text]
    if len(texts) > _MOST_NAMED:
        texts[_MOST_NAMED:] = [f"and {len(texts) - _MOST_NAMED} more"]
    return "; ".join(texts) or "no recorded change"


def day(began_utc: str) -> str:
    """Return the day of a moment in ISO 8601."""
    return began_utc[:10]


def course(series: CaseHistory, letters: str, most: int = MOST_ALLOCATIONS) -> str:
    """Return a letter for each of the last allocations, the first letter for the fastest; at least two floors high, so noise stays flat."""
    values = [float(value) for value in series.values[-most:]]
    measured = [value for value in values if isfinite(value)]
    low = min(measured, default=0.0)
    high = max(measured, default=0.0)
    middle = (low + high) / 2
    span = max(high - low, 2 * series.floor)
    steps = len(letters) - 1
    return "".join(letters[round(steps * ((value - middle) / span + 0.5))] if isfinite(value) else _UNKNOWN[letters] for value in values)


# `collbench baseline diff`: changes of software and machines, and cases that moved more than chance explains.

_MOST = 60
_DIFF_MOST_NAMED = 8
_BY_CHANCE = "a comparison, not a gate: about one in 500 unchanged cases is beyond its limit by chance"


def diff_lines(moves: BaselineDiff, format: str, width: int | None = None) -> Iterator[Line]:
    """Yield the differences of two sides in `format`, one of FORMATS; JSON has one object."""
    yield from [json_line(moves)] if format == "json" else wrapped(_table_diff(moves), width)


def _table_diff(moves: BaselineDiff) -> Iterator[Line]:
    cases = [shift for shift in moves.moved if shift.about.kind == CASE]
    beyond = sorted((shift for shift in moves.moved if shift.beyond), key=lambda shift: -abs(log(shift.factor)))
    for name, side in zip((moves.old, moves.new), moves.sides, strict=True):
        last = side[-1]
        several = f"{plural(len(side), 'allocation')}, the last one {last.name} of " if len(side) > 1 else ""
        yield Line(printable(f"{name}: {several}{day(last.began_utc) or 'an unknown day'} on {hosts_of(last)}"), "head")
    notes = {Outcome.NO_CHANGE: f" (limit inside {format_margin(MARGIN)})"}
    yield Line(f"{plural(len(cases), 'case')}: {count_text(moves.summary, notes)}", "head")
    for shift in beyond[:_MOST]:
        limit = NOTHING
        if shift.limit is not None:
            limit = f"{100 * ((shift.limit if shift.factor > 1 else 1 / shift.limit) - 1):+.1f} %"
        quantity = "factor" if shift.about.case is not None and shift.about.case.mode == UNDER_LOAD else "time"
        change = f"{shift.about.name}: {100 * (shift.factor - 1):+.1f} % {quantity}"
        yield Line(printable(f"  {shift.outcome}: {change}; noise limit {limit}"), "doubtful")
    if len(beyond) > _MOST:
        yield Line(f"and {len(beyond) - _MOST} more: see --format json", "foot")
    unknown = sum(shift.limit is None for shift in cases)
    if unknown:
        yield Line(f"of {plural(unknown, 'case')} the noise is unknown: too few allocations measured them", "foot")
    if len(cases) > unknown:
        yield Line(_BY_CHANCE, "foot")
    for name, only in ((moves.old, moves.only_old), (moves.new, moves.only_new)):
        if only:
            yield Line(printable(f"only in {name}: {first_of((subject.name for subject in only), _DIFF_MOST_NAMED)}"), "foot")
    yield Line("what changed besides:" if moves.changes else "no other recorded change", "head")
    yield from (Line(printable(f"  {change.sentence()}")) for change in moves.changes)
