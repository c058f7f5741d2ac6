"""The page of a history: every change, a chart for each group and for each case that changed, and the allocations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import copysign, exp, isfinite, nan
from pathlib import Path

from collbench.gating.history import KINDS, CaseHistory, History
from collbench.report.baseline import by_step, chosen, day, hosts_of, sentences, title, with_it
from collbench.report.cases import NOTHING, figure_text
from collbench.report.figures import set_names
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table, marks_of
from collbench.report.html.first_screen import of_history
from collbench.report.html.page import write_page
from collbench.report.html.picture import NARROW, PAGE, WIDE, Picture, drawn
from collbench.results.row import UNDER_LOAD
from collbench.units import plural

_MOST_GROUPS = 48
_MOST_CASES = 24
_MOST_LISTED = 300
_MOST_NAMED = 5
_MOST_TICKS = 6
_FEW = 20  # allocations that a phone shows side by side
_HEAD = ("what", "since", "day", "time ×", "95 %", "limit ×", "with it")
_MADE = (
    "Each point is an allocation, relative to the first level: for a case the median of its launches' medians, for a group the median "
    "slowdown of its cases. Levels (horizontal lines) have three allocations or more. Neighbouring levels differ by more than five "
    "standard errors of their medians, and by more than a fixed minimum. The interval of a change is slightly too far from 1, since the "
    "allocation with the largest change was chosen. The last two allocations cannot form a level: use the gate for them."
)


def write_history(history: History, pattern: str, where: Path) -> None:
    """Write the page in one step. Raises UsageError if that fails, and if no case fits the pattern."""
    shown = chosen(history, pattern)
    write_page(where, of_history(history, shown), lambda: list(_sections(history, shown)))


def _sections(history: History, shown: Sequence[CaseHistory]) -> Iterator[Section]:
    notes = [f"{text}." for text in (title(history), *history.notes)]
    width = WIDE if len(history.allocations) > _FEW else NARROW
    # the chart of the series that the first screen is about: the one with the largest slowdown, else improvement
    largest = sorted(shown, key=_largest_change, reverse=True)[:1]
    main = [_chart(history, series, "history-main", width) for series in largest]
    yield Section("changes", "Changes", notes, _changes(history, shown), main)
    groups, cases = by_step(shown)
    parts = (("group", "Groups", groups, _MOST_GROUPS, "groups"),
             ("cell", "Cases that changed", [case for case in cases if case.steps], _MOST_CASES, "cases that changed"))  # fmt: skip
    for key, section_title, members, most, noun in parts:
        less = [f"Drawn are {most} of {len(members)} {noun}, those that changed most."] if len(members) > most else []
        charts = [_chart(history, series, f"{key}-{number}") for number, series in enumerate(members[:most])]
        if charts:
            yield Section(f"{key}s", section_title, less, (), charts)
    changes = [[], *(history.between(*pair) for pair in pairwise(range(len(history.allocations))))]  # since the previous allocation
    rows = []
    for allocation, changed in zip(history.allocations, changes, strict=True):
        more = f"; and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        texts = "; ".join(change.sentence() for change in changed[:_MOST_NAMED]) + more
        counts = [str(len(allocation.cases)), str(allocation.launches)]
        rows.append([allocation.name, allocation.began_utc[:16], *counts, hosts_of(allocation), texts or NOTHING])
    head = ("allocation", "began", "cells", "launches", "hosts", "changed since the one before")
    caption = f"{plural(len(rows), 'allocation')} in the order in which they began"
    table = Table(head, rows, frozenset({2, 3}), marks_of("doubtful" if changed else "" for changed in changes))
    yield Section("allocations", "Allocations", (), [(caption, table)])


def _largest_change(series: CaseHistory) -> tuple[bool, float]:
    return max(((step.change > 0, abs(step.change)) for step in series.steps), default=(False, 0.0))


def _changes(history: History, shown: Sequence[CaseHistory]) -> list[tuple[str, Table]]:
    """Return every step of the whole, of groups and of cases; the largest first within each."""
    steps = [(series, step) for series in shown for step in series.steps]
    steps.sort(key=lambda pair: (KINDS.index(pair[0].about.kind), -abs(pair[1].change)))
    listed = steps[:_MOST_LISTED]
    marks = marks_of("wrong" if step.change > 0 else "" for _, step in listed)
    more = f" ({_MOST_LISTED} of {len(steps)})" if len(steps) > _MOST_LISTED else ""
    rows = []
    for series, step in listed:
        since = history.allocations[step.at]
        figures = [f"{exp(step.change):.3f}", f"{step.low:.3f} to {step.high:.3f}", f"{exp(copysign(step.limit, step.change)):.3f}"]
        rows.append([series.about.name, since.name, day(since.began_utc), *figures, with_it(history, step)])
    table = Table(_HEAD, rows, frozenset({3, 4, 5}), marks)
    return [(f"What changed, when, and what else changed then{more}", table)] if steps else []


def _chart(history: History, series: CaseHistory, key: str, width: int = NARROW) -> Chart:
    """Return the chart: days along x; along y at least two floors, so that noise does not look like a change."""
    first_level = series.levels[0].value if series.levels else 0.0
    ys = [exp(value - first_level) if isfinite(value) else nan for value in map(float, series.values)]

    def draw_levels(picture: Picture) -> None:
        axes = picture.axes()
        for level in series.levels:
            height = exp(level.value - first_level)
            axes.plot([level.first, level.last], [height, height], color=PAGE.expected, linewidth=2.0, gid="level")
        for step in series.steps:
            axes.axvline((step.before + step.at) / 2, color=PAGE.wrong, linestyle=(0, (7, 3)), linewidth=1.4, gid="step")
        axes.plot(range(len(ys)), ys, color=PAGE.series[0], marker="o", gid="line 0")
        measured = [height for height in ys if isfinite(height)]
        axes.set_ylim(0.98 * min([*measured, exp(-series.floor)]), 1.02 * max([*measured, exp(series.floor)]))
        set_names(axes, _moments(history), _MOST_TICKS * width // NARROW)
        axes.set_ylabel("time / first level")
        for place, height in enumerate(ys):
            if isfinite(height):
                picture.tip(axes, place, height, _tooltip(history, series, place, height))

    caption = " ".join(f"{text[:1].upper()}{text[1:]}." for text in sentences(history, series)) or "It did not change."
    chart = Chart(key, short(series.about.name, 80), caption, _MADE, _table(history, series, ys))
    return drawn(chart, draw_levels, width, 250)


def _tooltip(history: History, series: CaseHistory, place: int, height: float) -> str:
    """Return "n1, 2026-11-21: × 1.021, 41.3 µs" of an allocation."""
    case = series.about.case
    began = history.allocations[place]
    time = ""
    if case is not None:
        time = f", {figure_text(case, exp(float(series.values[place])))}{'' if case.mode == UNDER_LOAD else ' µs'}"
    return f"{short(began.name)}, {day(began.began_utc)}: × {height:.3f}{time}"


def _moments(history: History) -> list[str]:
    """Return when each allocation began: the day, or the time of the day where one day has several."""
    began = [allocation.began_utc for allocation in history.allocations]
    days = set(map(day, began))
    if len(days) == len(began):
        return list(map(day, began))
    return [f"{day(moment)[5:]} {moment[11:16]}" if len(days) > 1 else moment[11:16] for moment in began]


def _table(history: History, series: CaseHistory, ys: Sequence[float]) -> Table:
    case = series.about.case
    head = ["allocation", "began", "time / first level"]
    if case is not None:
        head[2:] = ["factor / first level", "factor"] if case.mode == UNDER_LOAD else ["time / first level", "time µs"]
    rows = []
    for allocation, y, value in zip(history.allocations, ys, series.values, strict=True):
        figures = [f"{y:.4f}"] if isfinite(y) else [NOTHING]
        if case is not None:
            figures.append(figure_text(case, exp(float(value))) if isfinite(y) else NOTHING)
        rows.append([allocation.name, allocation.began_utc[:16], *figures])
    return Table(head, rows, frozenset(range(2, len(head))), dict.fromkeys((step.at for step in series.steps), "doubtful"))
