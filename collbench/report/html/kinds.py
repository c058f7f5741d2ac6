"""Hunts and trainings on the page: the picture of the first screen, and the sections with evidence, commands and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from collbench.report import hunt, training
from collbench.report.cases import NOTHING
from collbench.report.frame import Frame, R, printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.drawing import Picture, Scale, Tooltip, linear_scale
from collbench.report.html.material import Material
from collbench.report.stored import recommendation
from collbench.results.rounds import holds_hunt, read_hunt
from collbench.results.steps import StepRow, holds_workload, read_workload
from collbench.units import format_percent, format_rate, plural

if TYPE_CHECKING:
    from collbench.results.reader import Run
    from collbench.results.rounds import HuntRound, StoredHunt

_WIDTH, _HEIGHT, _MOST_LABELS, _MOST_ROUNDS = 940, 270, 16, 200
_PLACES_METHOD = (
    "For each place the median, over the rounds of pairs, of the slower direction with its partners, as a percentage of the median of all "
    "places. A place can look slow because its partner is: the verdict follows from measuring suspects again with healthy partners."
)


def table_of(frame: Frame[R]) -> Table:
    """Return a frame as a table of the page."""
    rows = [[column.text(record) for column in frame.columns] for record in frame.records]
    right = frozenset(place for place, column in enumerate(frame.columns) if column.right)
    return Table(
        [column.title for column in frame.columns],
        rows,
        right,
        {n: mark for n, record in enumerate(frame.records) if (mark := frame.style(record))},
    )


# A hunt: the places with their speeds, the suspects with their evidence, what to do, and the rounds.


def places_chart(material: Material) -> Chart | None:
    """Return the chart of the places of the first hunt; None without one, or without rounds of pairs."""
    run = next((run for run in material.runs if holds_hunt(run)), None)
    stored = read_hunt(run) if run is not None else None
    speeds = _speeds(stored.rounds) if stored is not None else {}
    if stored is None or len(speeds) < 2:
        return None
    names, typical = [printable(name) for name in stored.about["places"]], median(speeds.values())
    states = _states(stored.about.get("verdict") or {})
    order = sorted(speeds)
    picture = Picture(_WIDTH, _HEIGHT)
    step = (_WIDTH - 70) / len(order)
    every = 1 + (len(order) - 1) // _MOST_LABELS
    at = [54 + step * (number + 0.5) for number in range(len(order))]
    ticks = [(at[number], short(names[order[number]], 14)) for number in range(0, len(order), every)]
    percents = [100 * speeds[place] / typical for place in order]
    y = linear_scale(0, 1.05 * max([*percents, 100.0]), _HEIGHT - 46, 30, "% of the median place")
    picture.axes(Scale(54, _WIDTH - 16, 54, _WIDTH - 16, ticks), y)
    picture.line([(54, y.at(100)), (_WIDTH - 16, y.at(100))], "limit dashed")
    tooltips = []
    for place, x, percent in zip(order, at, percents, strict=True):
        state = states.get(place, "")
        picture.marker(x, y.at(percent), 3 if state else 0, {"confirmed": "bad", "inconclusive": "s1 open"}.get(state, "s0"))
        if state == "confirmed":
            picture.text(x, y.at(percent) - 10, short(names[place], 20), "middle", "bad")
        text = f"{names[place]}: {format_rate(speeds[place])} GB/s, {format_percent(percent)} of the median{f'; {state}' if state else ''}"
        tooltips.append(Tooltip(round(x, 1), round(y.at(percent), 1), text))
    rows = [
        [names[place], format_rate(speeds[place]), format_percent(percent), states.get(place, NOTHING)]
        for place, percent in zip(order, percents, strict=True)
    ]
    marks = {number: "wrong" for number, place in enumerate(order) if states.get(place) == "confirmed"}
    table = Table(["place", "GB/s", "of the median", "verdict"], rows, frozenset({1, 2}), marks)
    slow = [names[place] for place in order if states.get(place) == "confirmed"]
    caption = (
        f"{', '.join(slow[:4])}{' and more' if len(slow) > 4 else ''} {'is' if len(slow) == 1 else 'are'} confirmed as slow."
        if slow
        else "No place is confirmed as slow."
    )
    title = "Speed of each place with its partners"
    return Chart("places", title, caption, _PLACES_METHOD, picture.markup(title), table, tooltips, wide=True)


def _speeds(rounds: Sequence[HuntRound]) -> dict[int, float]:
    """Return the median speed of each place over its rounds of pairs, in bytes per second, of the slower direction."""
    found: dict[int, list[float]] = {}
    for one in rounds:
        if one.kind == "pairs":
            for group, there, back in zip(one.groups, one.speed_bytes_per_s, one.backward_bytes_per_s, strict=True):
                if there and back:
                    for place in group:
                        found.setdefault(place, []).append(min(there, back))
    return {place: median(speeds) for place, speeds in found.items()}


def _states(verdict: Mapping[str, Any]) -> dict[int, str]:
    return {each["places"][0]: each["state"] for each in verdict.get("suspects", []) if len(each["places"]) == 1}


def hunt_section(material: Material) -> Section | None:
    """Return the section: suspects with evidence, what to do, and every round; None without a hunt."""
    found = [(run, read_hunt(run)) for run in material.runs if holds_hunt(run)]
    if not found:
        return None
    texts, tables = list[str](), list[tuple[str, Table]]()
    for run, stored in found:
        advice, unread = recommendation(run)
        texts += [printable(text) for text in (*hunt.next_steps(stored.about), *stored.warnings, *unread)]
        tables += [
            *_suspects(stored),
            *([("What to do", Table(["command or check"], [[printable(text)] for text in advice]))] if advice else []),
        ]
        tables.append((f"Rounds ({len(stored.rounds)})", _rounds(stored)))
    return Section("hunt", "Hunt: evidence and commands", texts, tables)


def _suspects(stored: StoredHunt) -> Iterator[tuple[str, Table]]:
    verdict, places = stored.about.get("verdict") or {}, stored.about["places"]
    suspects = verdict.get("suspects", [])
    if suspects:
        rows = [
            [each["state"], printable(hunt.sentence(each, places).partition(": ")[2]), printable("; ".join(each["evidence"]))]
            for each in suspects
        ]
        marks = {number: {"confirmed": "wrong", "inconclusive": "doubtful"}.get(each["state"], "") for number, each in enumerate(suspects)}
        yield "Suspects", Table(["state", "what", "evidence"], rows, marks={number: mark for number, mark in marks.items() if mark})


def _rounds(stored: StoredHunt) -> Table:
    names = [printable(name) for name in stored.about["places"]]
    rows = []
    for one in stored.rounds[:_MOST_ROUNDS]:
        known = [(speed, group) for group, speed in zip(one.groups, one.speed_bytes_per_s, strict=True) if speed]
        slowest = min(known, default=None)
        text = f"{format_rate(slowest[0])} GB/s ({' and '.join(names[place] for place in slowest[1][:2])})" if slowest else NOTHING
        rows.append([str(one.round + 1), printable(one.stage), printable(one.why), plural(len(one.groups), "group"), text])
    return Table(["round", "stage", "purpose", "measured", "slowest"], rows)


# A training: the step on each backend, its parts, and the scaling efficiency.


def training_section(material: Material) -> Section | None:
    """Return the section with the tables of every training; None without one."""
    texts, tables = list[str](), list[tuple[str, Table]]()
    for run in material.runs:
        if holds_workload(run):
            about, rows, warnings = read_workload(run)
            texts += [printable(text) for text in warnings]
            for those in training.trainings(rows):
                head, frames, below = training.parts_of(those, _compute_s(about))
                texts += [f"{printable(text)}" for text in below]
                tables += [(printable(head), table_of(frame)) for frame in frames if frame.records]
    return Section("training", "Training step", texts, tables) if tables else None


def _compute_s(about: Mapping[str, Any]) -> float | None:
    value = about.get("step_time_s")
    return float(value) if isinstance(value, int | float) and value > 0 else None


def training_rows(runs: Sequence[Run]) -> list[StepRow]:
    """Return the rows of all trainings."""
    return [row for run in runs if holds_workload(run) for row in read_workload(run)[1]]
