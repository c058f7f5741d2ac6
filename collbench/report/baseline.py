"""Output of `collbench baseline show` and `diff`, `collbench history`, and `collbench gate --self-test`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from math import exp, isfinite, log
from pathlib import Path
from shlex import quote

from collbench.analysis.outcome import MARGIN, Outcome, count_outcomes
from collbench.errors import UsageError
from collbench.gating.allocation import COLUMNS, Allocation
from collbench.gating.baseline import Baseline, scheme_of, times_of
from collbench.gating.diff import BaselineDiff, Shift
from collbench.gating.history import CASE, GROUP, WHOLE, CaseHistory, History, LevelChange
from collbench.gating.paired import PAIRS
from collbench.gating.reasons import rendered
from collbench.gating.rule import ENOUGH, FEWEST, BaselineLimits, learn
from collbench.gating.self_test import LAUNCHES, NoiseRecord, SelfTestLine, TrialSetting
from collbench.gating.state import filter_baseline
from collbench.report.cases import NOTHING, figure_text
from collbench.report.frame import GAP, Column, Frame, Line, TextLayout, printable, table_lines
from collbench.report.outcome_text import count_text, format_margin
from collbench.report.screen import wrapped
from collbench.results.row import UNDER_LOAD, CaseKey
from collbench.results.store import plain
from collbench.units import first_of, format_percent, format_size, plural

FORMATS = ("table", "json")
_FIRST = ("operation", "size_bytes", "backend")
_MOST_HOSTS = 4
_MOST_SLOWDOWN = 10  # the allocations of the baseline differ so much that a larger factor means nothing


def baseline_lines(baseline: Baseline, format: str, width: int | None = None) -> Iterator[Line]:
    """Yield the baseline in `format`, one of FORMATS, with the smallest detectable slowdown of each case; JSON has one object per case."""
    cases = baseline.cases
    learned, left_out = filter_baseline(baseline)
    limits = learn(times_of(learned.allocations, cases), scheme_of(cases))
    if format == "json":
        yield from _json(cases, limits)
        return
    names, visible = _names(cases), limits.visible()
    held: list[Column[Allocation]] = [
        Column("", "", lambda each: f"  {each.name}"),
        Column("", "", lambda each: each.began_utc[:16], drop=2),
        Column("", "", lambda each: f"{plural(len(each.cases), 'case')}, {plural(each.launches, 'launch')}", drop=1),
        Column("", "", hosts_of, wrap=True),
    ]
    columns: list[Column[int]] = [
        Column("", "case", lambda number: names[number], cut=True),
        Column("", "allocations", lambda number: str(int(limits.allocations[number])), right=True, drop=2),
        Column("", "time µs", lambda number: _typical(cases[number], float(limits.centre[number])), right=True, drop=1),
        Column("", "smallest slowdown visible", lambda number: _visible(float(visible[number])), right=True),
    ]
    title = f"{baseline.path}: {plural(len(baseline.allocations), 'allocation')}, {plural(len(cases), 'case')}"
    foot = [*rendered(left_out), *_sentences(baseline.path, len(learned.allocations), limits)]
    yield from table_lines(Frame(held, baseline.allocations, title=title, foot=foot), width)
    yield Line("")
    yield from table_lines(Frame(columns, range(len(cases)), names_hidden=True), width)


def after_adding(path: Path, held: int) -> str:
    """Return how many allocations the baseline has, and the next command."""
    there, folder = f"{path} has {plural(held, 'allocation')}", quote(str(path))
    if held < FEWEST:
        return f"{there}; a verdict needs {FEWEST}, better {ENOUGH}: collbench baseline add {folder} RUN…"
    few = f" (better {ENOUGH})" if held < ENOUGH else ""
    return f"{there}{few}; detectable slowdowns: collbench baseline show {folder}"


def _what(case: CaseKey | None) -> str:
    return "factor" if case is not None and case.mode == UNDER_LOAD else "time"


def _key(case: CaseKey | None) -> str:
    """Return the key of the values in JSON: those of groups are factors, too."""
    return "time_s" if case is not None and case.mode != UNDER_LOAD else "factor"


def _typical(case: CaseKey, centre: float) -> str:
    return figure_text(case, exp(centre)) if isfinite(centre) else NOTHING


def _visible(factor: float) -> str:
    if not isfinite(factor):
        return NOTHING
    return _percent(factor - 1) if factor < _MOST_SLOWDOWN else f"more than {_MOST_SLOWDOWN}×"


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
    known = [(group, exp(limit) - 1) for group, limit in zip(limits.scheme.groups, limits.groups, strict=True) if isfinite(limit)]
    if allocations >= FEWEST:
        yield from (f"{group}: the median over its cases shows {_percent(share)}" for group, share in known)
        yield from [f"all cases: their median shows {_percent(exp(limits.whole) - 1)}"] if isfinite(limits.whole) else []


def _percent(share: float) -> str:
    return format_percent(100 * share) if share < 9 else f"{share + 1:.0f} times"


def _names(cases: Sequence[CaseKey]) -> list[str]:
    """Return the name of each case: operation, size, backend, and all else that differs between the cases."""
    differing = [place for place, name in enumerate(COLUMNS) if name not in _FIRST and len({case[place] for case in cases}) > 1]
    shown = [*(COLUMNS.index(name) for name in _FIRST), *differing]
    return [" ".join(_word(COLUMNS[place], case[place]) for place in shown) for case in cases]


def _word(name: str, value: object) -> str:
    if name == "size_bytes":
        return format_size(value) if isinstance(value, int) and value else NOTHING
    if name == "in_place":
        return "in place" if value else "out of place"
    return str(value) if name in _FIRST else f"{name} {NOTHING if value is None else value}"


def _json(cases: Sequence[CaseKey], limits: BaselineLimits) -> Iterator[Line]:
    visible = limits.visible()
    for number, case in enumerate(cases):
        centre, factor = float(limits.centre[number]), float(visible[number])
        figures = {
            "allocations": int(limits.allocations[number]),
            _key(case): exp(centre) if isfinite(centre) else None,
            "visible_slowdown": factor - 1 if isfinite(factor) else None,
        }
        yield Line(json.dumps({**case.named(), **figures}))


# `collbench history`: a line for each group and each case with its course, then its steps, and other changes at the same time.
#
# A course has a character for each allocation: bars on a terminal, else digits from 0 (the fastest of the line) to 9.

BARS, FIGURES = "▁▂▃▄▅▆▇█", "0123456789"
_UNKNOWN = {BARS: "·", FIGURES: "."}
MOST_ALLOCATIONS, _MOST_CASES, _MOST_NAMED = 60, 60, 3
_LEAST_COURSE = 12  # allocations
_TWO_SIDED = 1.96  # standard errors to either side: 95 %


def chosen(history: History, pattern: str) -> list[CaseHistory]:
    """Return the cases with names that match the pattern (`*` is anything), and their groups. Raises UsageError if none matches."""
    cases = [each for each in history.of_kind(CASE) if fnmatchcase(each.about.name, pattern)]
    if not cases:
        names = ", ".join(each.about.name for each in history.of_kind(CASE)[:_MOST_NAMED])
        raise UsageError(f"--only '{pattern}' matches no case: names are such as {names}; * matches anything")
    groups = {each.about.group for each in cases}
    whole = history.of_kind(WHOLE) if len(cases) == len(history.of_kind(CASE)) else []
    return [*whole, *(each for each in history.of_kind(GROUP) if each.about.group in groups), *cases]


def letters_for(encoding: str | None, painted: bool) -> str:
    """Return BARS for a stream that has colors and can encode them, else FIGURES."""
    try:
        BARS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return FIGURES
    return BARS if painted else FIGURES


def history_lines(history: History, format: str, pattern: str = "*", letters: str = FIGURES, width: int | None = None) -> Iterator[Line]:
    """Yield the history in `format`, one of FORMATS; `letters` for courses: BARS or FIGURES. Raises UsageError as `chosen` does."""
    shown = chosen(history, pattern)
    yield from _json_history(history, shown) if format == "json" else _table_history(history, shown, letters, width)


def _table_history(history: History, shown: Sequence[CaseHistory], letters: str, width: int | None) -> Iterator[Line]:
    repeated = [each for each in shown if len(each.known) > 1]  # a single allocation shows no course
    cases, others = (by_step([each for each in repeated if (each.about.kind == CASE) == is_case]) for is_case in (True, False))
    listed, allocations = [*others, *cases[:_MOST_CASES]], len(history.allocations)
    columns: list[Column[CaseHistory]] = [
        Column("", "", lambda each: each.about.name, cut=True),
        Column("", "allocations", lambda each: f"{len(each.known)} of {allocations}", right=True, drop=2),
        Column("", "time µs", _last_time, right=True, drop=1),
        Column("", "trend", lambda each: NOTHING if each.trend is None else f"× {each.trend:.3f}", right=True),
    ]
    others_width = TextLayout(Frame(columns, listed), None if width is None else width - _LEAST_COURSE - len(GAP)).line_width + len(GAP)
    most = MOST_ALLOCATIONS if width is None else min(MOST_ALLOCATIONS, max(_LEAST_COURSE, width - others_width))
    frame = Frame([*columns, Column("", "course", lambda each: course(each, letters, most))], listed)
    layout = TextLayout(frame, width)
    head = [Line(f"{history.of}: {title(history)}", "head"), *(Line(note, "doubtful") for note in history.notes)]
    last = f" (the last {most})" if allocations > most else ""
    scale = f"{letters[0]}: fastest, {letters[-1]}: slowest of the line, the middle: no relevant difference"
    course_of = f"course: one sign per allocation{last}; {scale}; {_UNKNOWN[letters]}: not measured"
    head.append(Line(f"{course_of}. trend: the last level over the first", "foot"))
    alone = sum(each.about.kind == CASE for each in shown) - len(cases)
    if not repeated:
        del head[-1]
    if alone:
        what = f"not shown, since measured in one allocation only: {plural(alone, 'case')} (--format json has them)"
        head.append(Line(what, "foot"))
    yield from wrapped([Line(printable(line.text), line.style) for line in head], width)
    if repeated:
        yield Line(layout.heading(), "head")
    for each in listed:
        yield from (Line(line.text, "doubtful" if each.steps else "") for line in layout.lines(each))
        yield from wrapped([Line(printable(f"    {sentence}")) for sentence in sentences(history, each)], width)
    if len(cases) > _MOST_CASES:
        more = f"and {len(cases) - _MOST_CASES} more cases: ask for some with --only PATTERN, or for all with --format json"
        yield from wrapped([Line(more, "foot")], width)


def _last_time(series: CaseHistory) -> str:
    case = series.about.case
    return figure_text(case, exp(series.levels[-1].value)) if case is not None and series.levels else NOTHING


def title(history: History) -> str:
    """Return "20 allocations from 2026-11-01 to 2026-11-20, 336 cases; changes: 1 group, 12 cases"."""
    stepped = [each for each in history.series if each.steps]
    whole, groups, cases = (sum(each.about.kind == kind for each in stepped) for kind in (WHOLE, GROUP, CASE))
    changed = ["all cases together"] * whole + [plural(number, name) for number, name in ((groups, "group"), (cases, "case")) if number]
    return f"{extent(history)}; changed: {', '.join(changed) or 'nothing'}"


def extent(history: History) -> str:
    """Return "20 allocations from 2026-11-01 to 2026-11-20, 336 cases"."""
    began = [day(each.began_utc) for each in history.allocations]
    return f"{plural(len(began), 'allocation')} from {began[0]} to {began[-1]}, {plural(len(history.of_kind(CASE)), 'case')}"


def by_step(series: Sequence[CaseHistory]) -> list[CaseHistory]:
    """Return all cases together first, then the series with the largest step; series without one keep their order."""
    return sorted(series, key=lambda each: (each.about.kind != WHOLE, -each.largest))


def sentences(history: History, series: CaseHistory) -> Iterator[str]:
    """Yield a sentence for each step, and one for the allocations in which it was not measured."""
    yield from (describe_step(history, step) for step in series.steps)
    if history.missing(series):
        yield history.missing(series)


def describe_step(history: History, step: LevelChange) -> str:
    """Return "slower × 1.050 (1.046 to 1.054; limit × 1.020) since night-11, 2026-11-11; with it: software mpi: 4.3 → 5.0"."""
    low, high = interval(step)
    limit = exp(step.limit if step.change > 0 else -step.limit)
    since = history.allocations[step.at]
    way = "slower" if step.change > 0 else "faster"
    numbers = f"{way} × {exp(step.change):.3f} ({low:.3f} to {high:.3f}; limit × {limit:.3f})"
    return f"{numbers} since {since.name}, {day(since.began_utc)}; with it: {with_it(history, step)}"


def interval(step: LevelChange) -> tuple[float, float]:
    """Return the step's 95 % interval as factors; slightly too far from 1, since the position of the largest change was chosen."""
    return exp(step.change - _TWO_SIDED * step.error), exp(step.change + _TWO_SIDED * step.error)


def with_it(history: History, step: LevelChange) -> str:
    """Return what else changed with a step: "software mpi: 4.3 → 5.0"."""
    state = history.state(step)
    found = [*([state] if state else []), *(each.sentence() for each in history.between(step.before, step.at))]
    more = [f"and {len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
    return "; ".join([*found[:_MOST_NAMED], *more]) or "no recorded change"


def day(began_utc: str) -> str:
    """Return the day of a moment in ISO 8601."""
    return began_utc[:10]


def course(series: CaseHistory, letters: str, most: int = MOST_ALLOCATIONS) -> str:
    """Return a letter for each of the last allocations, the first letter for the fastest; at least two floors high, so noise stays flat."""
    values = [float(each) for each in series.values[-most:]]
    there = [each for each in values if isfinite(each)]
    low, high = min(there, default=0.0), max(there, default=0.0)
    span, middle = max(high - low, 2 * series.floor), (low + high) / 2
    steps = len(letters) - 1
    return "".join(letters[round(steps * ((each - middle) / span + 0.5))] if isfinite(each) else _UNKNOWN[letters] for each in values)


def _json_history(history: History, shown: Sequence[CaseHistory]) -> Iterator[Line]:
    """Yield an object for each series: its subject, values by allocation, and steps."""
    names = [each.name for each in history.allocations]
    for each in shown:
        columns = each.about.case.named() if each.about.case else {}
        found = {
            "kind": each.about.kind, "name": each.about.name, "cell": columns, "allocations": names,
            _key(each.about.case): [exp(value) if isfinite(value) else None for value in map(float, each.values)],
            "trend": each.trend, "steps": [_step_json(history, step) for step in each.steps], "missing": history.missing(each),
        }  # fmt: skip
        yield Line(json.dumps(plain(found), allow_nan=False))


def _step_json(history: History, step: LevelChange) -> dict[str, object]:
    low, high = interval(step)
    since = history.allocations[step.at]
    return {
        "since": since.name, "began_utc": since.began_utc, "last_before": history.allocations[step.before].name,
        "factor": exp(step.change), "low": low, "high": high, "limit": exp(step.limit),
        "state": history.state(step), "changes": [each.sentence() for each in history.between(step.before, step.at)],
    }  # fmt: skip


# `collbench baseline diff`: changes of software and machines, and cases that moved more than chance explains.

_MOST, _DIFF_MOST_NAMED = 60, 8
_BY_CHANCE = "a comparison, not a gate: about one in 500 unchanged cases is beyond its limit by chance"


def diff_lines(moves: BaselineDiff, format: str, width: int | None = None) -> Iterator[Line]:
    """Yield the differences of two sides in `format`, one of FORMATS; JSON has one object."""
    yield from _json_diff(moves) if format == "json" else wrapped(_table_diff(moves), width)


def _table_diff(moves: BaselineDiff) -> Iterator[Line]:
    beyond = worst_first([each for each in moves.moved if each.beyond])
    cases = [each for each in moves.moved if each.about.kind == CASE]
    for name, side in zip((moves.old, moves.new), moves.sides, strict=True):
        last = side[-1]
        many = f"{plural(len(side), 'allocation')}, the last one {last.name} of " if len(side) > 1 else ""
        yield Line(printable(f"{name}: {many}{day(last.began_utc) or 'an unknown day'} on {hosts_of(last)}"), "head")
    notes = {Outcome.NO_CHANGE: f" (limit inside {format_margin(MARGIN)})"}
    yield Line(f"{plural(len(cases), 'case')}: {count_text(count_outcomes(each.outcome for each in cases), notes)}", "head")
    yield from (Line(printable(_describe_shift(each)), "doubtful") for each in beyond[:_MOST])
    if len(beyond) > _MOST:
        yield Line(f"and {len(beyond) - _MOST} more: see --format json", "foot")
    yield from (Line(printable(each), "foot") for each in _feet(moves, cases))
    yield Line("what changed besides:" if moves.changes else "no other recorded change", "head")
    yield from (Line(printable(f"  {each.sentence()}")) for each in moves.changes)


def worst_first(moved: Sequence[Shift]) -> list[Shift]:
    """Return the largest changes first, slower or faster."""
    return sorted(moved, key=lambda each: -abs(log(each.factor)))


def _describe_shift(each: Shift) -> str:
    limit = NOTHING if each.limit is None else f"{100 * ((each.limit if each.factor > 1 else 1 / each.limit) - 1):+.1f} %"
    return f"  {each.outcome}: {each.about.name}: {100 * (each.factor - 1):+.1f} % {_what(each.about.case)}; noise limit {limit}"


def _feet(moves: BaselineDiff, cases: Sequence[Shift]) -> Iterator[str]:
    unknown = sum(each.limit is None for each in cases)
    if unknown:
        yield f"of {plural(unknown, 'case')} the noise is unknown: too few allocations measured them"
    if len(cases) > unknown:
        yield _BY_CHANCE
    for name, only in ((moves.old, moves.only_old), (moves.new, moves.only_new)):
        if only:
            yield f"only in {name}: {first_of((each.name for each in only), _DIFF_MOST_NAMED)}"


def _json_diff(moves: BaselineDiff) -> Iterator[Line]:
    counts = count_outcomes(each.outcome for each in moves.moved if each.about.kind == CASE)
    found = {
        "old": moves.old, "new": moves.new, "allocations": [[each.name for each in side] for side in moves.sides],
        "changes": [{"kind": each.kind, "what": each.what, "a": each.a, "b": each.b} for each in moves.changes],
        "margin": MARGIN, "summary": {each.value.replace(" ", "_"): number for each, number in counts.items()},
        "moved": [
            {"kind": each.about.kind, "name": each.about.name, "cell": each.about.case.named() if each.about.case else {},
             "factor": each.factor, "limit": each.limit, "beyond": each.beyond, "outcome": each.outcome.value}
            for each in moves.moved
        ],
        "only_old": [each.name for each in moves.only_old], "only_new": [each.name for each in moves.only_new],
    }  # fmt: skip
    yield Line(json.dumps(plain(found), allow_nan=False))


# `collbench gate --self-test`: a line, or a JSON object, for each kind of slowdown of a simulated cluster.

_EXPECTED = {True: "found", False: "false alarms"}


def head(setting: TrialSetting, width: int | None = None) -> Iterator[Line]:
    """Yield the setting of the trials, and the titles."""
    cases = len(setting.scheme.of)
    if setting.paired:
        text = (
            f"{cases} cases; an old and a new stack interleaved, {PAIRS} pairs of launches in each of two allocations; only what exceeds "
            f"its limit in both counts"
        )
    else:
        text = (
            f"{cases} cases; baseline: {setting.allocations} allocations of {setting.launches} launches; candidate: three allocations of "
            f"{LAUNCHES} launches, and only what exceeds its limit in all three counts"
        )
    yield from wrapped([Line(text)], width)
    yield Line(_self_test(width).heading(), "head")


def line(outcome: SelfTestLine, format: str, width: int | None = None) -> Line:
    """Return one line of the self-test in `format`, one of FORMATS."""
    if format == "json":
        low, high = (100 * end for end in outcome.interval)
        fields = {"done": outcome.done, "wanted": outcome.expected, "found": outcome.found, "trials": outcome.trials}
        return Line(json.dumps({**fields, "percent": 100 * outcome.share, "percent_low": low, "percent_high": high}))
    return _self_test(width).line(outcome)


def _self_test(width: int | None) -> TextLayout[SelfTestLine]:
    """Return the layout of the lines. Each is printed as soon as its trials are done, so their widths are fixed."""
    columns: list[Column[SelfTestLine]] = [
        Column("", "change of the candidate", lambda each: each.done, cut=True, least=45),
        Column("", "", lambda each: _EXPECTED[each.expected], least=12),
        Column("", "%", lambda each: f"{100 * each.share:.2f}", right=True, least=6),
        Column("", "95 % interval", lambda each: "–".join(f"{100 * end:.2f}" for end in each.interval), least=13),
        Column("", "trials", lambda each: f"{each.found} of {each.trials}", drop=1, least=10),
    ]
    return TextLayout(Frame(columns, ()), width)


def limits_of(recorded: NoiseRecord) -> Iterator[Line]:
    """Yield the limitations of a table drawn from recorded allocations."""
    allocations, launches = len(recorded.allocation), len(recorded.launch)
    yield Line(
        f"drawn from {launches} launches of {allocations} recorded allocations: what is rarer than one of {launches} launches is not in "
        f"it, nor whether the cluster drifts; few allocations overstate false alarms"
    )
    if recorded.left_out:
        cases, them = ("1 case", "it") if recorded.left_out == 1 else (f"{recorded.left_out} cases", "them")
        yield Line(f"{cases} left out: fewer than four allocations have {them}")
