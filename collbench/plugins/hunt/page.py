"""The section "Hunts": the verdict, each suspect with its evidence, and the rounds as measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from collbench.analysis.concerns import DOUBTFUL, FINDING, WRONG, Concern
from collbench.plugins.hunt.kind import advice_of
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED
from collbench.plugins.hunt.text import STYLES, describe_hunt, headline, interval, next_steps, sentence
from collbench.report.cases import NOTHING
from collbench.report.charts import FigureMark, Value
from collbench.report.figures import draw_marks, set_names
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table, marks_of
from collbench.report.html.picture import PAGE, Picture, drawn
from collbench.results.flags import explain
from collbench.units import format_percent, format_rate, plural

if TYPE_CHECKING:
    from collbench.plugins.hunt.records import HuntAbout, HuntRound, StoredHunt
    from collbench.report.material import Material
    from collbench.results.reader import Run

_MOST_ROUNDS, _MOST_LINES, _MOST_NAMES = 200, 400, 4
_HEAD = ("round", "stage", "purpose", "measured", "slowest GB/s", "of", "not measured")


def section(material: Material) -> Section | None:
    """Return the section, or None if no run is a hunt."""
    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    charts: list[Chart | None] = []
    hunts = material.of_kind("hunt")
    for number, (run, stored) in enumerate(hunts):
        name = f"{printable(run.path.resolve().name)}: " if len(hunts) > 1 else ""
        texts += [f"{name}{text}" for text in _texts(run, stored, summary=number > 0)]
        suspects = _suspects(stored.shown)
        if suspects:
            tables.append((f"{name}suspects with their evidence", suspects))
        cut = f", the first {_MOST_ROUNDS}" if len(stored.rounds) > _MOST_ROUNDS else ""
        tables.append((f"{name}{plural(len(stored.rounds), 'round')}, as measured{cut}", _rounds(stored)))
        charts.append(_places_chart(f"hunt-{number}", name, stored))
    shown = [chart for chart in charts if chart is not None]
    return Section("hunt", "Hunts: slow nodes and links", texts, tables, shown) if hunts else None


def concerns_of(stored: StoredHunt) -> Iterator[Concern]:
    """Yield wrong data, and the suspects that are confirmed or inconclusive."""
    yield from (Concern(WRONG, f"{count} of a hunt") for count in _wrong(stored))
    hunt = stored.shown
    for suspect in hunt.suspects:
        if suspect.state != CLEARED:
            yield Concern(FINDING if suspect.state == CONFIRMED else DOUBTFUL, sentence(suspect, hunt.places))


def _wrong(stored: StoredHunt) -> list[str]:
    """Return "3 wrong elements in 2 rounds"; [] without any."""
    wrong = [sum(hunt_round.wrong) for hunt_round in stored.rounds if any(hunt_round.wrong)]
    return [f"{plural(sum(wrong), 'wrong element')} in {plural(len(wrong), 'round')}"] if wrong else []


def _texts(run: Run, stored: StoredHunt, summary: bool) -> Iterator[str]:
    """Yield the verdict's notes, what to do, and the meaning of the flags; with `summary` what the first screen has of the first run."""
    hunt = stored.shown
    advice, unread = advice_of(run.path)
    if summary:
        yield describe_hunt(hunt)
        if hunt.verdict:
            yield headline(hunt.verdict)
    yield from (*_wrong(stored), *(hunt.verdict.notes if hunt.verdict else ()), *(hunt.crossed or ()), *next_steps(hunt))
    yield from (*advice, *unread, *stored.warnings)
    yield from explain({flag for hunt_round in stored.rounds for flag in hunt_round.flags})


def _suspects(hunt: HuntAbout) -> Table | None:
    """Return a line for each suspect, and one for each further item of its evidence; None without suspects."""
    lines: list[tuple[str, str]] = []
    styles: list[str] = []
    for suspect in hunt.suspects:
        first, *further = suspect.evidence or [""]
        lines += [(sentence(suspect, hunt.places), first), *(("", item) for item in further)]
        styles += [STYLES[suspect.state], *("" for _ in further)]
    return Table(("suspect", "evidence"), lines[:_MOST_LINES], marks=marks_of(styles)) if lines else None


def _rounds(stored: StoredHunt) -> Table:
    """Return a line for each round with its slowest group, and the reason for the first one that was not measured."""
    places = stored.about["places"]
    lines: list[list[str]] = []
    styles: list[str] = []
    for hunt_round in stored.rounds[:_MOST_ROUNDS]:
        speeds = zip(hunt_round.speed_bytes_per_s, hunt_round.backward_bytes_per_s, hunt_round.groups, strict=True)
        measured = [(min(filter(None, (forward, backward))), group) for forward, backward, group in speeds if forward or backward]
        slowest, group = min(measured, default=(None, ()))
        names = ", ".join(places[place] for place in group[:_MOST_NAMES]) + (" …" if len(group) > _MOST_NAMES else "")
        reasons = [why for why in hunt_round.na if why is not None]
        lines.append([
            str(hunt_round.round + 1),
            hunt_round.stage,
            hunt_round.why,
            f"{len(hunt_round.groups)} × {hunt_round.nic or hunt_round.kind}",
            format_rate(slowest) if slowest else NOTHING,
            names,
            f"{len(reasons)}: {reasons[0]}" if reasons else "",
        ])  # fmt: skip
        style = "na" if all(hunt_round.na) else ""
        styles.append("wrong" if any(hunt_round.wrong) else style)
    return Table(_HEAD, lines, frozenset({0, 4}), marks_of(styles))


_MOST_LABELS = 16
_PLACES_METHOD = (
    "For each place the median rate with its partners, in both directions, over the rounds of pairs, as a percentage of the median of all "
    "pairs. A place can look slow because its partner is. So suspects were measured again with healthy partners: a confirmed or "
    "inconclusive place has the percentage of the verdict, with its interval, which compares with these partners."
)


def _places_chart(key: str, run: str, stored: StoredHunt) -> Chart | None:
    """Return the chart of the speed of each place; None without rounds of pairs. run: before its title if there are several."""
    speeds = _speeds(stored.rounds)
    if len(speeds) < 2:
        return None
    hunt = stored.shown
    suspect_of = {suspect.places[0]: suspect for suspect in hunt.suspects if len(suspect.places) == 1}
    typical = (hunt.verdict.middle if hunt.verdict else None) or median(speeds.values())
    rows: list[list[str]] = []
    marked: list[FigureMark] = []
    for number, place in enumerate(sorted(speeds)):
        percent = 100 * speeds[place] / typical
        share = format_percent(percent)
        suspect = suspect_of.get(place)
        state = "" if suspect is None else suspect.state
        if suspect is not None and STYLES.get(state) and suspect.ratio is not None and suspect.kind != "latency":
            percent = 100 * suspect.ratio
            share = f"{format_percent(percent)}{interval(suspect)}"
        rows.append([printable(hunt.places[place]), format_rate(speeds[place]), share, state or NOTHING])
        marked.append(FigureMark(number, Value(percent), STYLES.get(state, "")))
    slow = [row[0] for row in rows if row[-1] == CONFIRMED]
    table = Table(
        ["place", "GB/s", "of the others", "verdict"], rows, frozenset({1, 2}), marks_of("wrong" * (row[-1] == CONFIRMED) for row in rows)
    )
    caption = "No place is confirmed as slow."
    if slow:
        more = " and more" if len(slow) > 4 else ""
        caption = f"{', '.join(slow[:4])}{more} {'is' if len(slow) == 1 else 'are'} confirmed as slow."
    title = f"{run}Speed of each place with its partners"
    chart = Chart(key, title, caption, _PLACES_METHOD, table)
    return drawn(chart, lambda picture: _draw_places(picture, rows, marked))


def _draw_places(picture: Picture, rows: Sequence[Sequence[str]], marks: Sequence[FigureMark]) -> None:
    """Draw the speed of each place; a cross with a name is a confirmed one, an open mark an inconclusive one."""
    axes = picture.axes()
    axes.axhline(100, color=PAGE.expected, linestyle=(0, (7, 3)), linewidth=1.4, gid="median")
    draw_marks(axes, marks, PAGE.series[0], PAGE, "places")
    for (name, rate, share, verdict), mark in zip(rows, marks, strict=True):
        judged = f"; {verdict}" if verdict != NOTHING else ""
        picture.tip(axes, mark.at, mark.value.value, f"{name}: {rate} GB/s, {share} of the others{judged}")
        if mark.state == "wrong":
            point = (mark.at, mark.value.value)
            axes.annotate(short(name, 20), point, (0, 8), textcoords="offset points", ha="center", color=PAGE.wrong)
    axes.set_ylim(0, 1.1 * max([100.0, *(mark.value.value for mark in marks)]))
    set_names(axes, [short(row[0], 14) for row in rows], _MOST_LABELS)
    axes.set_ylabel("% of the median of all pairs")


def _speeds(rounds: Sequence[HuntRound]) -> dict[int, float]:
    """Return the median speed of each place over its rounds of pairs, in bytes per second, of both directions."""
    by_place: dict[int, list[float]] = {}
    for hunt_round in rounds:
        if hunt_round.kind == "pairs":
            speeds = zip(hunt_round.groups, hunt_round.speed_bytes_per_s, hunt_round.backward_bytes_per_s, strict=True)
            for group, forward, backward in speeds:
                if forward and backward:
                    for place in group:
                        by_place.setdefault(place, []).extend((forward, backward))
    return {place: median(speeds) for place, speeds in by_place.items()}
