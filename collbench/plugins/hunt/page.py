"""The section "Hunts": the verdict, each suspect with its evidence, and the rounds as measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from collbench.analysis.concerns import DOUBTFUL, FINDING, WRONG, Concern
from collbench.plugins.hunt.kind import advice_of
from collbench.plugins.hunt.protocol import CONFIRMED, INCONCLUSIVE
from collbench.plugins.hunt.text import describe_hunt, headline, next_steps, sentence, shown_about
from collbench.report.cases import NOTHING
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table, marks_of
from collbench.report.html.drawing import Picture, linear_scale, place_scale
from collbench.results.flags import explain
from collbench.units import format_percent, format_rate, plural

if TYPE_CHECKING:
    from collbench.plugins.hunt.records import HuntAbout, HuntRound, StoredHunt
    from collbench.report.material import Material
    from collbench.results.reader import Run

_MOST_ROUNDS, _MOST_LINES, _MOST_NAMES = 200, 400, 4
_MARKS = {CONFIRMED: "wrong", INCONCLUSIVE: "doubtful"}
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
        suspects = _suspects(shown_about(stored.about))
        if suspects:
            tables.append((f"{name}suspects with their evidence", suspects))
        more = f", the first {_MOST_ROUNDS}" if len(stored.rounds) > _MOST_ROUNDS else ""
        tables.append((f"{name}{plural(len(stored.rounds), 'round')}, as measured{more}", _rounds(stored)))
        charts.append(_places_chart(f"hunt-{number}", name, stored))
    shown = [chart for chart in charts if chart is not None]
    return Section("hunt", "Hunts: slow nodes and links", texts, tables, shown) if hunts else None


def concerns_of(stored: StoredHunt) -> Iterator[Concern]:
    """Yield wrong data, and the suspects that are confirmed or inconclusive."""
    yield from (Concern(WRONG, f"{what} of a hunt") for what in _wrong(stored))
    hunt = shown_about(stored.about)
    for suspect in hunt.verdict.suspects if hunt.verdict else ():
        if suspect.state in _MARKS:
            yield Concern(FINDING if suspect.state == CONFIRMED else DOUBTFUL, sentence(suspect, hunt.places))


def _wrong(stored: StoredHunt) -> list[str]:
    """Return "3 wrong elements in 2 rounds"; [] without any."""
    wrong = [sum(hunt_round.wrong) for hunt_round in stored.rounds if any(hunt_round.wrong)]
    return [f"{plural(sum(wrong), 'wrong element')} in {plural(len(wrong), 'round')}"] if wrong else []


def _texts(run: Run, stored: StoredHunt, summary: bool) -> Iterator[str]:
    """Yield the verdict's notes, what to do, and the meaning of the flags; with `summary` what the first screen has of the first run."""
    hunt, (advice, unread) = shown_about({**stored.about, "rounds": len(stored.rounds)}), advice_of(run.path)
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
    for suspect in hunt.verdict.suspects if hunt.verdict else ():
        first, *others = suspect.evidence or [""]
        lines += [(sentence(suspect, hunt.places), first), *(("", item) for item in others)]
        styles += [_MARKS.get(suspect.state, ""), *("" for _ in others)]
    return Table(("suspect", "evidence"), lines[:_MOST_LINES], marks=marks_of(styles)) if lines else None


def _rounds(stored: StoredHunt) -> Table:
    """Return a line for each round with its slowest group, and the reason for the first one that was not measured."""
    places, lines, styles = stored.about["places"], [], []
    for hunt_round in stored.rounds[:_MOST_ROUNDS]:
        speeds = zip(hunt_round.speed_bytes_per_s, hunt_round.backward_bytes_per_s, hunt_round.groups, strict=True)
        known = [(min(filter(None, (there, back))), group) for there, back, group in speeds if there or back]
        slowest, group = min(known, default=(None, ()))
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
        styles.append("wrong" if any(hunt_round.wrong) else "na" if all(hunt_round.na) else "")
    return Table(_HEAD, lines, frozenset({0, 4}), marks_of(styles))


# The chart of a hunt: the speed of each place.

_LEAST_WIDTH, _WIDEST, _OF_PLACE, _HEIGHT, _MOST_LABELS = 460, 940, 56, 270, 16  # pixels
_PLACES_METHOD = (
    "For each place the median rate with its partners, in both directions, over the rounds of pairs, as a percentage of the median of all "
    "pairs. A place can look slow because its partner is. So suspects were measured again with healthy partners: a confirmed or "
    "inconclusive place has the percentage of the verdict, with its interval, which compares with these partners."
)


def _places_chart(key: str, run: str, stored: StoredHunt) -> Chart | None:
    """Return the chart; None without rounds of pairs. run: before its title if there are several."""
    if len(speeds := _speeds(stored.rounds)) < 2:
        return None
    hunt = shown_about(stored.about)
    suspects = hunt.verdict.suspects if hunt.verdict else []
    of_places = {suspect.places[0]: suspect for suspect in suspects if len(suspect.places) == 1}
    typical = (hunt.verdict.middle if hunt.verdict else None) or median(speeds.values())
    order = sorted(speeds)
    names = [printable(hunt.places[place]) for place in order]
    width = max(_LEAST_WIDTH, min(_WIDEST, 70 + _OF_PLACE * len(order)))
    picture = Picture(width, _HEIGHT)
    percents = [100 * speeds[place] / typical for place in order]
    for number, place in enumerate(order):
        suspect = of_places.get(place)
        if suspect is not None and suspect.state in _MARKS and suspect.ratio is not None and suspect.kind != "latency":
            percents[number] = 100 * suspect.ratio
    x = place_scale([short(name, 14) for name in names], 54, width - 16, _MOST_LABELS)
    y = linear_scale(0, 1.05 * max([*percents, 100.0]), _HEIGHT - 46, 30, "% of the median of all pairs")
    picture.axes(x, y)
    picture.line([(x.start, y.at(100)), (x.end, y.at(100))], "limit dashed")
    rows, slow = [], []
    for number, (place, name, percent) in enumerate(zip(order, names, percents, strict=True)):
        state = of_places[place].state if place in of_places else ""
        rate = format_rate(speeds[place])
        share = format_percent(percent)
        at = (x.at(number), y.at(percent))
        style = {CONFIRMED: "bad", INCONCLUSIVE: "s1 open"}.get(state, "s0")
        suspect = of_places.get(place)
        if suspect is not None and state in _MARKS and suspect.low is not None and suspect.high is not None:
            share = f"{share} ({format_percent(100 * suspect.low)} to {format_percent(100 * suspect.high)})"
        picture.point(*at, 3 if state else 0, style, f"{name}: {rate} GB/s, {share} of the others{f'; {state}' if state else ''}")
        rows.append([name, rate, share, state or NOTHING])
        if state == CONFIRMED:
            slow.append(name)
            picture.text(at[0], at[1] - 10, short(name, 20), "middle", "bad")
    table = Table(
        ["place", "GB/s", "of the others", "verdict"], rows, frozenset({1, 2}), marks_of("wrong" * (row[-1] == CONFIRMED) for row in rows)
    )
    named = f"{', '.join(slow[:4])}{' and more' if len(slow) > 4 else ''} {'is' if len(slow) == 1 else 'are'}"
    caption = f"{named if slow else 'No place is'} confirmed as slow."
    title = f"{run}Speed of each place with its partners"
    return Chart(key, title, caption, _PLACES_METHOD, picture.markup(title), table, picture.tooltips, wide=width > 600)


def _speeds(rounds: Sequence[HuntRound]) -> dict[int, float]:
    """Return the median speed of each place over its rounds of pairs, in bytes per second, of both directions."""
    by_place: dict[int, list[float]] = {}
    for hunt_round in rounds:
        if hunt_round.kind == "pairs":
            for group, there, back in zip(hunt_round.groups, hunt_round.speed_bytes_per_s, hunt_round.backward_bytes_per_s, strict=True):
                for place in group if there and back else ():
                    by_place.setdefault(place, []).extend(filter(None, (there, back)))
    return {place: median(speeds) for place, speeds in by_place.items()}
