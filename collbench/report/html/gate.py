"""The gate's section of the page: result, likely cause, groups and suspects with their limits, changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from collbench.gate.verdict import ACCEPTED, CLEARED, CONFIRMED, PASSED, FloorState, GroupState, Suspicion, Verdict
from collbench.report.cases import NOTHING
from collbench.report.headlines import short
from collbench.report.html.chart import (
    BAD,
    GRID,
    INK,
    LIMIT,
    PAPER,
    SOFT,
    Chart,
    Section,
    Table,
    Tooltip,
    fixed_ticks,
    panel,
    spots,
    svg_of,
    ticks_within,
)
from collbench.report.html.material import Material
from collbench.report.verdict import (
    announced,
    cleared,
    describe_outcomes,
    fallen,
    headline,
    judged,
    name_of,
    of,
    of_floor,
    of_group,
    open_ones,
    sentences,
    slower,
    slower_in_each,
    worst_groups,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# The chart: a line for each group or case, its time in every allocation of the candidate, and its limit.

MOST_LINES = 60
_WIDTH, _LINE, _MARGINS = 900, 19, (330, 150, 14, 44)  # pixels
_LONGEST_NAME = 52
_FURTHEST = 2.0  # larger factors are drawn at the edge
_LEAST = 1.03  # so that equal values look equal
_TICKS = (1, 1.5, 0.75, 1.2, 0.85, 1.1, 0.92, 2, 0.5, 1.05, 0.96, 1.02, 0.98, 1.01, 0.99)


@dataclass(frozen=True)
class JudgedLine:
    """A line: its factors by allocation, their limit (None: not judged), its state, and the text of its tooltip."""

    name: str
    factors: Sequence[float | None]
    limit: float | None
    state: str
    tooltip: str

    @property
    def first(self) -> float | None:
        """In the first allocation, where it is known and there is something to judge it by."""
        return self.factors[0] if self.factors and self.limit is not None else None

    @property
    def over(self) -> bool:
        """Whether it exceeds its limit there."""
        return self.first is not None and self.limit is not None and self.first > self.limit

    @property
    def always_over(self) -> bool:
        """Whether it exceeds its limit in every allocation that measured it."""
        return self.over and all(factor > self.limit for factor in self.factors if factor is not None and self.limit is not None)


def drawn(lines: Sequence[JudgedLine], key: str, title: str) -> tuple[str, list[Tooltip]]:
    """Return the drawing of one line or more, each with a first factor, and its spots."""
    figure, axes = panel(_WIDTH, sum(_MARGINS[2:]) + _LINE * len(lines), _MARGINS)
    _axis(axes, lines)
    for place, each in enumerate(lines):
        _draw(axes, place, each)
    levels = [_level(each.first) for each in lines if each.first is not None]
    return svg_of(figure, key, title), spots(
        axes, levels, [float(place) for place in range(len(lines))], [_tooltip(each) for each in lines]
    )


def _level(factor: float) -> float:
    return max(-log(_FURTHEST), min(log(_FURTHEST), log(factor)))


def _tooltip(each: JudgedLine) -> str:
    return f"{each.name}\n{each.tooltip}"


def _axis(axes: Axes, lines: Sequence[JudgedLine]) -> None:
    levels = [_level(value) for each in lines for value in (*each.factors, each.limit) if value is not None]
    low, high = min(-log(_LEAST), *levels), max(log(_LEAST), *levels)
    spare = 0.06 * (high - low)
    axes.set_xlim(low - spare, high + spare)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    ticks = ticks_within(_TICKS, low - spare, high + spare, (high - low + 2 * spare) / 8, log)
    fixed_ticks(axes.xaxis, [log(tick) for tick in ticks], [slower(tick) if tick != 1 else "as before" for tick in ticks])
    axes.set_yticks([])
    axes.set_xlabel("← faster · time relative to the baseline · slower →")
    axes.axvline(0, color=INK, linewidth=1)


def _draw(axes: Axes, place: int, each: JudgedLine) -> None:
    """Draw the limit as a tick, the first allocation as a large marker, later ones as small ones, and the name at the left."""
    axes.axhline(place, color=GRID, linewidth=0.7)
    color = BAD if each.state == CONFIRMED else INK if each.over else SOFT
    if each.limit is not None:
        axes.plot([_level(each.limit)], [place], marker="|", markersize=13, color=LIMIT, markeredgewidth=2)
    for number, factor in enumerate(each.factors):
        if factor is not None:
            marker = ">" if each.limit is not None and factor > each.limit else "o"
            face = color if number == 0 else PAPER
            axes.plot([_level(factor)], [place], marker=marker, markersize=6.5 if number == 0 else 4.5, color=color, markerfacecolor=face)
    limit = f"{slower(each.first)}, limit {slower(each.limit)}"
    for text, at, align in ((_cut(each.name), -8, "right"), (limit, 8, "left")):
        axes.annotate(
            text, (0 if at < 0 else 1, place), xycoords=axes.get_yaxis_transform(), xytext=(at, 0), textcoords="offset pixels", ha=align,
            va="center", fontsize=10.5, color=INK, annotation_clip=False, parse_math=False,
        )  # fmt: skip


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


_MOST_ROWS, _MOST_FOLDED, _MOST_SENTENCES = 20, 200, 20  # rows of open tables, and of those folded below a chart
_METHOD = (
    "The time of an allocation is the median over its launches' medians, divided by the median over the baseline's allocations. "
    "The limit is what chance explains: three standard deviations between the baseline's allocations, pooled over cases of one kind, and "
    "at least a fixed minimum. Each point is an allocation of the candidate; the first one is the largest. What exceeds its limit in the "
    "first one is a suspect; what exceeds it in all three is confirmed."
)


def section(material: Material) -> Section | None:
    """Return the section; None without a verdict."""
    verdict = material.verdict
    if verdict is None:
        return None
    cause = [f"Likely cause: {short(verdict.cause.render())}."] if verdict.cause is not None else []
    outcomes = [f"{text}." for text in [describe_outcomes(verdict)] if text]
    texts = [
        f"{headline(verdict)}.",
        *outcomes,
        *(f"{text}." for text in fallen(verdict)[:_MOST_SENTENCES]),
        *cause,
        *(f"{text}." for text in sentences(verdict.reasons, _MOST_SENTENCES)),
        f"{judged(verdict)}.",
    ]
    notes = [f"Note: {text}." for text in sentences(verdict.notes, _MOST_SENTENCES)]
    slower, again = [each for each in open_ones(verdict) if isinstance(each, Suspicion)], cleared(verdict)
    floors = sorted(verdict.floors, key=lambda each: (each.state == CLEARED, each.state != CONFIRMED))
    tables = [(_title("Slower, confirmed and worst first", slower), _figures(slower)),
              (_title("Changes, the most plausible cause first", verdict.changes), _changes(verdict)),
              (_title("Cleared: not slower again", again), _figures(again)),
              (_title("Required shares of the expected bandwidth (--min-percent)", floors), _figures(floors))]  # fmt: skip
    return Section("gate", "Gate", [*texts, *notes], [each for each in tables if each[1].rows], _charts(verdict))


def _title(what: str, found: Sequence[object]) -> str:
    return f"{what} ({_MOST_ROWS} of {len(found)}; verdict.json has all)" if len(found) > _MOST_ROWS else what


def _figures(found: Sequence[Suspicion | FloorState], most: int = _MOST_ROWS) -> Table:
    shown = found[:most]
    rows = [[each.state, name_of(each), of(each) if isinstance(each, Suspicion) else of_floor(each)] for each in shown]
    return Table(["state", "what", "by allocation"], rows, marks=_marks([each.state for each in shown]))


def _changes(verdict: Verdict) -> Table:
    shown = verdict.changes[:_MOST_ROWS]
    rows = [
        [
            short(each.kind, 40),
            *(short(text) for text in (each.what, each.before, each.after, str(each.plausible or ""))),
            announced(each.announced),
        ]
        for each in shown
    ]
    marks = {place: "doubtful" for place, each in enumerate(shown) if each.announced is None}
    return Table(["kind", "what", "before", "now", "as a cause", "announced"], rows, marks=marks)


def _charts(verdict: Verdict) -> list[Chart]:
    """Return the charts of groups and of slower cases; none where nothing has both a time and a limit."""
    groups = [_of_group(each) for each in worst_groups(verdict.groups)]
    cases = [_of_case(each) for each in (*open_ones(verdict), *cleared(verdict)) if isinstance(each, Suspicion) and each.kind == "cell"]
    of_cases = _figures([each for each in verdict.suspicions if each.kind == "cell"], _MOST_FOLDED)
    charts = [("gate-groups", "Every group against its limit", groups, _group_table(verdict.groups)),
              ("gate-cells", "Cases that exceeded their limit", cases, of_cases)]  # fmt: skip
    return [chart for key, title, lines, table in charts if (chart := _chart(key, title, lines, table)) is not None]


def _chart(key: str, title: str, lines: Sequence[JudgedLine], table: Table) -> Chart | None:
    shown = sorted((each for each in lines if each.first is not None), key=lambda each: each.state != CONFIRMED)[:MOST_LINES]
    if not shown:
        return None
    drawing, spots = drawn(shown, key, title)
    always, first = sum(each.always_over for each in shown), sum(each.over for each in shown)
    cut = f" {len(shown)} of {len(lines)} are drawn." if len(shown) < len(lines) else ""
    again = f"; {first - always} only in the first one (largest point)" if first > always else ""
    caption = f"{always} of {len(shown)} exceed their limit (vertical mark) in every allocation{again}.{cut}"
    return Chart(key, title, caption, _METHOD, drawing, table, spots, wide=True)


def _of_group(each: GroupState) -> JudgedLine:
    """Return its line: its own median where it is judged as one, else its worst case."""
    if each.limit is not None:
        return JudgedLine(name_of(each), each.factors, each.limit, each.state, f"{each.state}: {of_group(each)}")
    return JudgedLine(name_of(each), (each.worst_factor,), each.worst_limit, each.state, f"{each.state}: {of_group(each)}")


def _of_case(each: Suspicion) -> JudgedLine:
    return JudgedLine(name_of(each), each.factors, each.limit, each.state, f"{each.state}: {slower_in_each(each.factors)}")


def _group_table(groups: Sequence[GroupState]) -> Table:
    shown = worst_groups(groups)[:_MOST_FOLDED]
    rows = [[short(each.state, 20), each.outcome or NOTHING, name_of(each), str(each.cases), of_group(each)] for each in shown]
    return Table(["state", "outcome", "group", "cases", "by allocation"], rows, frozenset({3}), _marks([each.state for each in shown]))


def _marks(states: Sequence[str]) -> dict[int, str]:
    marks = {CONFIRMED: "wrong", PASSED: "", ACCEPTED: "", CLEARED: ""}
    return {place: mark for place, state in enumerate(states) if (mark := marks.get(state, "doubtful"))}
