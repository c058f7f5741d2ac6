"""The state of the machine on the time axis of the cells: canary, stolen time, lost cores, telemetry of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING

from collbench.report.columns import NOTHING
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.draw import BAD, PAPER, log_axis, series_color, spots, svg_of
from collbench.report.html.gpus import gpu_chart
from collbench.report.html.moments import FLAGS, Moment, grouped, moments
from collbench.report.html.names import cut
from collbench.report.html.time_axis import TimeAxis, stacked
from collbench.units import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collbench.report.html.material import Material
    from collbench.results.reader import Run

_MOST_RUNS = 6
_MOST_DRAWN = 120
_MOST_LISTED = 100
_FAR = 6.0  # times the usual value: beyond, a linear axis would show nothing else
_HEAD = ("cell", "canary before ns", "after ns", "stolen", "lost cores", "flags")
_MADE = (
    "The canary is a short measurement of the machine itself: two cores pass a cache line back and forth (where a rank has no partner: a "
    "fixed piece of work), before and after each cell; shown is the slowest rank's. Every small latency moves with it. Further apart "
    "than 1.25 times within a cell, the machine changed its state, and the cell is measured again. Stolen is the share of the CPUs' time "
    "that a hypervisor gave to others while the cell was measured, at the rank that fared worst; lost cores is how often a rank lost "
    "its core to somebody else meanwhile."
)


@dataclass(frozen=True)
class _Panel:
    """One of the drawings: its values at a cell's begin and end, NaN where they are not known."""

    title: str
    values: Callable[[Moment], tuple[float, float]]


def _constant(value: float | None, factor: float = 1.0) -> tuple[float, float]:
    return (nan, nan) if value is None else (factor * value, factor * value)


_PANELS = (
    _Panel("canary in ns, before and after", lambda each: (1e9 * (each.before or nan), 1e9 * (each.after or nan))),
    _Panel("CPU time stolen in %", lambda each: _constant(each.stolen, 100)),
    _Panel("cores lost, times", lambda each: _constant(each.lost)),
)


def section(material: Material) -> Section | None:
    """The section, or None where no run says anything of the machine's state."""
    named = [run for run in material.runs if run.rows]
    shown = sorted(named, key=_flagged, reverse=True)[:_MOST_RUNS]
    charts: list[Chart] = []
    for place, run in enumerate(named):
        if run in shown:
            where = f" ({cut(run.path.resolve().name)})" if len(named) > 1 else ""
            charts += _charts(place, where, run)
    less = f"Shown are {len(shown)} of {len(named)} runs, those with the most cells that the machine's state disturbed."
    return Section("timeline", "The machine's state meanwhile", [less] if len(shown) < len(named) else [], (), charts) if charts else None


def _flagged(run: Run) -> int:
    return sum(bool(each.flags) for each in moments(run)[0])


def _charts(place: int, where: str, run: Run) -> list[Chart]:
    found, axis = moments(run)
    made = [gpu_chart(f"timeline-{place}-gpus", f"GPUs over time{where}", run, axis)]
    if any(each.before or each.after or each.stolen for each in found):
        made.insert(0, _chart(f"timeline-{place}", f"state of the machine around each cell{where}", found, axis))
    return [chart for chart in made if chart is not None]


def _chart(key: str, title: str, found: Sequence[Moment], axis: TimeAxis) -> Chart:
    drawn = grouped(found, _MOST_DRAWN)
    panels = [panel for panel in _PANELS if any(max(panel.values(each)) > 0 for each in drawn)]
    figure, every = stacked(len(panels), axis)
    for panel, axes in zip(panels, every, strict=True):
        _draw(axes, panel, drawn, axis)
    _mark(every[0], drawn, axis)
    tops = [top if isfinite(top := max(panels[0].values(each))) else every[0].get_ylim()[0] for each in drawn]
    points = spots(every[0], [_middle(each, axis) for each in drawn], tops, [_spot(each, axis) for each in drawn])
    return Chart(key, title, _says(found), _MADE, svg_of(figure, key, title), _table(found, axis), points, wide=True)


def _draw(axes: Axes, panel: _Panel, drawn: Sequence[Moment], axis: TimeAxis) -> None:
    """All cells as one line with gaps; a cell of no length is a dot."""
    xs = [x for each in drawn for x in (axis.at(each.begin), axis.at(each.end), nan)]
    ys = [y for each in drawn for y in (*panel.values(each), nan)]
    axes.plot(xs, ys, color=series_color(0), linewidth=2.4, solid_capstyle="round")
    there = sorted(y for y in ys if isfinite(y))
    usual = there[len(there) // 2]
    if there[0] > 0 and there[-1] > _FAR * usual:
        log_axis(axes, 0.8 * there[0], 1.6 * there[-1])
    else:
        axes.set_ylim(0, 1.25 * there[-1])
    axes.set_ylabel(panel.title)


def _mark(axes: Axes, drawn: Sequence[Moment], axis: TimeAxis) -> None:
    """The cells that the machine's state disturbed, at the top: a canary that was not heard has no value."""
    marked = [each for each in drawn if each.flags]
    if marked:
        xs, top = [_middle(each, axis) for each in marked], axes.get_xaxis_transform()
        axes.plot(xs, [0.95] * len(xs), linestyle="none", marker="v", markersize=7, color=BAD, markeredgecolor=PAPER, transform=top)
        words = " or ".join(flag for flag in FLAGS if any(flag in each.flags for each in marked))
        axes.annotate(f"▼ {words}", (1, 1), xycoords="axes fraction", xytext=(0, 8), textcoords="offset pixels", ha="right", color=BAD)


def _middle(each: Moment, axis: TimeAxis) -> float:
    return axis.at((each.begin + each.end) / 2)


def _spot(each: Moment, axis: TimeAxis) -> str:
    stolen = f", stolen {format_percent(100 * each.stolen)}" if each.stolen else ""
    lost = f", lost cores {each.lost:.0f}" if each.lost else ""
    flags = "".join(f", {flag}" for flag in each.flags)
    return f"{axis.text(each.begin)}, {each.name}: canary {_ns(each.before)} → {_ns(each.after)} ns{stolen}{lost}{flags}"


def _says(found: Sequence[Moment]) -> str:
    """How far the canary moved, how much was stolen, and how many cells that hit."""
    canaries = [value for each in found for value in (each.before, each.after) if value]
    canary = f"The canary lay between {_ns(min(canaries))} and {_ns(max(canaries))} ns" if canaries else "The canary was not measured"
    stolen = max((each.stolen or 0.0 for each in found), default=0.0)
    taken = f"at most {format_percent(100 * stolen)} of the CPUs' time was stolen" if stolen else "no time was stolen"
    hit = sum(bool(each.flags) for each in found)
    return f"{canary}; {taken}. {f'{hit} of {len(found)} cells carry a flag for it.' if hit else 'No cell carries a flag for it.'}"


def _table(found: Sequence[Moment], axis: TimeAxis) -> Table:
    """The cells by time; of many those in which the machine was most unlike itself."""
    worst = sorted(range(len(found)), key=lambda place: found[place].weight, reverse=True)[:_MOST_LISTED]
    listed = [found[place] for place in sorted(worst)]
    head = (f"when ({len(listed)} of {len(found)} cells, those it changed most in)" if len(listed) < len(found) else "when", *_HEAD)
    rows = [
        [axis.text(each.begin), each.name, _ns(each.before), _ns(each.after),
         NOTHING if each.stolen is None else format_percent(100 * each.stolen),
         NOTHING if each.lost is None else f"{each.lost:.0f}", ", ".join(each.flags)]
        for each in listed
    ]  # fmt: skip
    return Table(head, rows, frozenset({2, 3, 4, 5}), {place: "doubtful" for place, each in enumerate(listed) if each.flags})


def _ns(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e9:.4g}"
