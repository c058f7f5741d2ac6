"""The section "Hunts": the verdict, each suspect with its evidence, and the rounds as measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from collbench.analysis.concerns import DOUBTFUL, FINDING, WRONG, Concern
from collbench.analysis.hunt.protocol import CONFIRMED, INCONCLUSIVE
from collbench.report.cases import NOTHING
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.drawing import AxisScale, Picture, Tooltip, linear_scale
from collbench.report.hunt import describe_hunt, headline, next_steps, sentence
from collbench.report.stored import advice_of
from collbench.results.flags import explain
from collbench.units import format_percent, format_rate, plural

if TYPE_CHECKING:
    from collbench.report.material import Material
    from collbench.results.reader import Run
    from collbench.results.rounds import HuntRound, StoredHunt

_MOST_ROUNDS, _MOST_LINES, _MOST_NAMES = 200, 400, 4
_MARKS = {CONFIRMED: "wrong", INCONCLUSIVE: "doubtful"}
_HEAD = ("round", "stage", "purpose", "measured", "slowest GB/s", "of", "not measured")


def section(material: Material) -> Section | None:
    """Return the section, or None if no run is a hunt."""
    if not material.hunts:
        return None
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    charts: list[Chart] = []
    for number, (run, stored) in enumerate(material.hunts):
        name = f"{printable(run.path.resolve().name)}: " if len(material.hunts) > 1 else ""
        texts += [f"{name}{short(text, 600)}" for text in _texts(run, stored, summary=number > 0)]
        if suspects := _suspects(stored.about):
            tables.append((f"{name}suspects with their evidence", suspects))
        more = f", the first {_MOST_ROUNDS}" if len(stored.rounds) > _MOST_ROUNDS else ""
        tables.append((f"{name}{plural(len(stored.rounds), 'round')}, as measured{more}", _rounds(stored)))
        charts += [chart] if (chart := _places_chart(f"hunt-{number}", name, stored)) is not None else []
    return Section("hunt", "Hunts: slow nodes and links", texts, tables, charts)


def concerns_of(stored: StoredHunt) -> Iterator[Concern]:
    """Yield wrong data, and the suspects that are confirmed or inconclusive."""
    if wrong := sum(map(sum, (one.wrong for one in stored.rounds))):
        yield Concern(
            WRONG, f"{plural(wrong, 'wrong element')} in {plural(sum(any(one.wrong) for one in stored.rounds), 'round')} of a hunt"
        )
    for suspect in (stored.about.get("verdict") or {}).get("suspects", ()):
        if suspect["state"] in _MARKS:
            severity = FINDING if suspect["state"] == CONFIRMED else DOUBTFUL
            yield Concern(severity, sentence(suspect, stored.about["places"]))


def _texts(run: Run, stored: StoredHunt, summary: bool) -> Iterator[str]:
    """Yield the verdict's notes, what to do, and the meaning of the flags; with `summary` what the first screen has of the first run."""
    about, (advice, unread) = {**stored.about, "rounds": len(stored.rounds)}, advice_of(run.path)
    verdict = about.get("verdict") or {"notes": []}
    if summary:
        yield describe_hunt(about)
        yield from [headline(verdict)] if about.get("verdict") else []
    if wrong := sum(map(sum, (one.wrong for one in stored.rounds))):
        yield f"wrong data: {plural(wrong, 'element')} in {plural(sum(any(one.wrong) for one in stored.rounds), 'round')}"
    yield from verdict["notes"]
    yield from (*(about.get("crossed") or ()), *next_steps(about), *advice, *unread, *stored.warnings)
    yield from explain({flag for one in stored.rounds for flag in one.flags})


def _suspects(about: Any) -> Table | None:
    """Return a line for each suspect, and one for each further item of its evidence; None without suspects."""
    lines: list[tuple[str, str]] = []
    marks: dict[int, str] = {}
    for suspect in (about.get("verdict") or {}).get("suspects", ()):
        marks |= {len(lines): mark} if (mark := _MARKS.get(suspect["state"])) else {}
        first, *others = suspect["evidence"] or [""]
        lines += [(short(sentence(suspect, about["places"]), 600), short(first, 600)), *(("", short(each, 600)) for each in others)]
    return Table(("suspect", "evidence"), lines[:_MOST_LINES], marks=marks) if lines else None


def _rounds(stored: StoredHunt) -> Table:
    shown = stored.rounds[:_MOST_ROUNDS]
    marks = {number: "wrong" if any(one.wrong) else "na" for number, one in enumerate(shown) if any(one.wrong) or all(one.na)}
    return Table(_HEAD, [_line(one, stored.about["places"]) for one in shown], frozenset({0, 4}), marks)


def _line(one: HuntRound, places: Sequence[str]) -> list[str]:
    """Return a round with its slowest group, and the reason for the first one that was not measured."""
    speeds = zip(one.speed_bytes_per_s, one.backward_bytes_per_s, one.groups, strict=True)
    known = [(min(filter(None, (there, back))), group) for there, back, group in speeds if there or back]
    slowest, group = min(known, default=(None, ()))
    names = ", ".join(places[place] for place in group[:_MOST_NAMES]) + (" …" if len(group) > _MOST_NAMES else "")
    na = [why for why in one.na if why is not None]
    return [
        str(one.round + 1), short(one.stage, 80), short(one.why, 200), f"{len(one.groups)} × {one.kind if one.nic is None else one.nic}",
        format_rate(slowest) if slowest else NOTHING, short(names, 200), short(f"{len(na)}: {na[0]}", 200) if na else "",
    ]  # fmt: skip


# The chart of a hunt: the speed of each place.

_LEAST_WIDTH, _WIDEST, _OF_PLACE, _HEIGHT, _MOST_LABELS = 460, 940, 56, 270, 16  # pixels
_PLACES_METHOD = (
    "For each place the median, over the rounds of pairs, of the slower direction with its partners, as a percentage of the median of all "
    "places. A place can look slow because its partner is: the verdict follows from measuring suspects again with healthy partners."
)


def _places_chart(key: str, run: str, stored: StoredHunt) -> Chart | None:
    """Return the chart; None without rounds of pairs. run: before its title if there are several."""
    if len(speeds := _speeds(stored.rounds)) < 2:
        return None
    names, typical = [printable(name) for name in stored.about["places"]], median(speeds.values())
    states = _states(stored.about.get("verdict") or {})
    order = sorted(speeds)
    width = max(_LEAST_WIDTH, min(_WIDEST, 70 + _OF_PLACE * len(order)))
    picture = Picture(width, _HEIGHT)
    step = (width - 70) / len(order)
    every = 1 + (len(order) - 1) // _MOST_LABELS
    at = [54 + step * (number + 0.5) for number in range(len(order))]
    ticks = [(at[number], short(names[order[number]], 14)) for number in range(0, len(order), every)]
    percents = [100 * speeds[place] / typical for place in order]
    y = linear_scale(0, 1.05 * max([*percents, 100.0]), _HEIGHT - 46, 30, "% of the median place")
    picture.axes(AxisScale(54, width - 16, 54, width - 16, ticks), y)
    picture.line([(54, y.at(100)), (width - 16, y.at(100))], "limit dashed")
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
    title = f"{run}Speed of each place with its partners"
    return Chart(key, title, caption, _PLACES_METHOD, picture.markup(title), table, tooltips, wide=width > 600)


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
