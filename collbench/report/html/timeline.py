"""The state of the machine on the time axis of the cells: canary, stolen time, lost cores, telemetry of GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, log, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from collbench.report.cells import NOTHING, name_of, printable
from collbench.report.html.chart import (
    BAD,
    PAPER,
    Chart,
    Section,
    Spot,
    Table,
    TimeAxis,
    cut,
    line,
    log_axis,
    number,
    numbers,
    seconds_between,
    series_color,
    spots,
    stacked,
    svg_of,
)
from collbench.units import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collbench.report.html.material import Material
    from collbench.results.reader import Run
    from collbench.results.row import Row


# Clocks, power and temperature of the GPUs on the time axis of a run, and when they were slowed down.

Figures = NDArray[np.float64]
_MOST_LINES = 4  # more GPUs are drawn as the range of all, with those that were slowed down by name
_MOST_STEPS = 150
_GPUS_MOST_LISTED = 64
_GPUS_PANELS = (("sm_mhz", "SM clock in MHz"), ("power_w", "power in W"), ("temperature_c", "temperature in °C"))
_LARGEST = 1e6  # of a figure: more is none
_TOLD = ((0, 0.0), (0, 0.5), (0, 1.0), (1, 0.5), (1, 1.0), (2, 1.0))  # in the table: figures by number, and which quantile
_GPUS_HEAD = ("samples", "SM clock MHz: least", "median", "most", "power W: median", "most", "temperature °C: most", "slowed down")
_GPUS_MADE = (
    "NVML was asked by a process of its own on each host, a few times a second (--telemetry), while cells of at least 1 MiB were measured; "
    "between them a line only joins what was seen. The hosts' clocks are put onto the run's so that no sample is later than its cell's "
    "end. Of more than four GPUs the range and the median of all are drawn, and those that were slowed down most. A triangle marks "
    "samples at which NVML named a slow-down: power, heat, or the board's brake; clocks that somebody set, and idling, are none."
)


@dataclass
class _Gpu:
    """A GPU's samples: when (in seconds since the run's start), figures in the order of _PANELS (NaN: not told), why it was slowed down."""

    name: str
    times: list[float] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)
    slowed: list[list[str]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of the samples at which it was slowed down."""
        return sum(map(bool, self.slowed)) / len(self.slowed)

    @cached_property
    def arrays(self) -> tuple[Figures, Figures]:
        """(times, figures: a row for each of _PANELS)."""
        return np.array(self.times), np.array(self.values).T

    def figures(self, panel: int, slowed: bool = False) -> tuple[Figures, Figures]:
        """(times, figures) of the samples that have it; of those alone at which it was slowed down."""
        times, values = self.arrays
        known = np.isfinite(values[panel]) & (np.array([bool(why) for why in self.slowed]) if slowed else True)
        return times[known], values[panel][known]

    def text(self, panel: int, share: float) -> str:
        """A quantile of its figures; a dash where there is none."""
        known = self.figures(panel)[1]
        return f"{np.quantile(known, share):.4g}" if len(known) else NOTHING

    def reasons(self) -> str:
        """How often it was slowed down, and why."""
        words = Counter(word for each in self.slowed for word in each)
        often = f"{format_percent(100 * self.share)} of its samples"
        return f"{often} ({', '.join(cut(word) for word, _ in words.most_common(4))})" if words else "no"


def gpu_chart(key: str, title: str, run: Run, axis: TimeAxis) -> Chart | None:
    """The chart of a run's telemetry; None where it has none. `axis` is that of the run's cells."""
    gpus = sorted(_gpus(run).values(), key=lambda each: (-each.share, each.name))
    panels = [each for each in range(len(_GPUS_PANELS)) if any(len(gpu.figures(each)[0]) for gpu in gpus)]
    if not panels:
        return None
    last = max(max(gpu.times) for gpu in gpus)
    own = TimeAxis(max(axis.end, last) if axis.told else last, told=True)
    figure, every = stacked(len(panels), own)
    for shown, axes in zip(panels, every, strict=True):
        _draw_gpus(axes, gpus, shown, own)
    _mark_gpus(every[0], gpus, panels[0], own)
    if every[0].get_legend_handles_labels()[1]:
        every[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=_MOST_LINES + 1, borderaxespad=0, handletextpad=0.4)
    points = _points(every[0], gpus, panels[0], own)
    return Chart(key, title, _says_gpus(gpus), _GPUS_MADE, svg_of(figure, key, title), _table_gpus(gpus), points, wide=True)


def _draw_gpus(axes: Axes, gpus: Sequence[_Gpu], panel: int, axis: TimeAxis) -> None:
    few = len(gpus) <= _MOST_LINES
    if not few:
        _range(axes, gpus, panel, axis)
    alone = gpus if few else [gpu for gpu in gpus if gpu.share][: _MOST_LINES - 1]
    for place, gpu in enumerate(alone, start=0 if few else 1):
        steps = _steps([gpu], panel)
        style = line(place) | {"marker": "none"}
        axes.plot([axis.at(at) for at, _ in steps], [float(np.median(values)) for _, values in steps], label=gpu.name, **style)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(_GPUS_PANELS[panel][1])


def _mark_gpus(axes: Axes, gpus: Sequence[_Gpu], panel: int, axis: TimeAxis) -> None:
    """The samples at which a GPU was slowed down."""
    parts = [gpu.figures(panel, slowed=True) for gpu in gpus]
    times, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    every = max(1, -(-len(times) // _MOST_STEPS))
    xs = [axis.at(at) for at in times[::every]]
    axes.plot(xs, values[::every], linestyle="none", marker="v", markersize=5, color=BAD, markeredgecolor=PAPER)


def _range(axes: Axes, gpus: Sequence[_Gpu], panel: int, axis: TimeAxis) -> None:
    """From the least to the most of all GPUs, and their median."""
    steps = _steps(gpus, panel)
    xs = [axis.at(at) for at, _ in steps]
    low, middle, high = ([float(np.quantile(values, share)) for _, values in steps] for share in (0, 0.5, 1))
    axes.fill_between(xs, low, high, color=series_color(0), alpha=0.25, linewidth=0)
    axes.plot(xs, middle, color=series_color(0), label="all GPUs: range and median")


def _steps(gpus: Sequence[_Gpu], panel: int) -> list[tuple[float, Figures]]:
    """The figures by time, neighbours together where there are more than can be drawn: (when, figures)."""
    times, values = (np.concatenate(part) for part in zip(*(gpu.figures(panel) for gpu in gpus), strict=True))
    order = np.argsort(times, kind="stable")
    parts = np.array_split(order, min(_MOST_STEPS, len(order))) if len(order) else []
    return [(float(times[part[0]]), values[part]) for part in parts]


def _points(axes: Axes, gpus: Sequence[_Gpu], panel: int, axis: TimeAxis) -> list[Spot]:
    """What all GPUs did at a time, on the first drawing."""
    steps = [(at, *np.quantile(values, (0, 0.5, 1)).tolist()) for at, values in _steps(gpus, panel)]
    unit = _GPUS_PANELS[panel][1]
    texts = [f"{axis.text(at)}: {unit} {low:.4g}–{high:.4g}, median {middle:.4g}" for at, low, middle, high in steps]
    return spots(axes, [axis.at(at) for at, *_ in steps], [middle for _, _, middle, _ in steps], texts)


def _says_gpus(gpus: Sequence[_Gpu]) -> str:
    """Who was slowed down, most of all."""
    slow = [gpu for gpu in gpus if gpu.share]
    if not slow:
        return f"None of {len(gpus)} GPUs was slowed down." if len(gpus) > 1 else "The GPU was not slowed down."
    return f"{len(slow)} of {len(gpus)} GPUs were slowed down, {slow[0].name} most: in {slow[0].reasons()}."


def _table_gpus(gpus: Sequence[_Gpu]) -> Table:
    """The GPUs that were slowed down most first; of many those alone."""
    rows = [
        [gpu.name, str(len(gpu.times)), *(gpu.text(panel, share) for panel, share in _TOLD), gpu.reasons()]
        for gpu in gpus[:_GPUS_MOST_LISTED]
    ]  # fmt: skip
    marks = {place: "doubtful" for place, gpu in enumerate(gpus[:_GPUS_MOST_LISTED]) if gpu.share}
    more = f"GPU ({_GPUS_MOST_LISTED} of {len(gpus)}, most slowed first)" if len(gpus) > _GPUS_MOST_LISTED else "GPU"
    return Table((more, *_GPUS_HEAD), rows, frozenset(range(1, 8)), marks)


def _gpus(run: Run) -> dict[tuple[str, str], _Gpu]:
    """All samples by host and GPU; times are the run's."""
    found: dict[tuple[str, str], _Gpu] = {}
    told = list(_samples(run))
    offsets: dict[str, float] = {}
    for host, event_s, monotonic_s, _ in told:
        offsets[host] = min(offsets.get(host, event_s - monotonic_s), event_s - monotonic_s)
    for host, _, monotonic_s, gpus in told:
        for address, state in gpus.items():
            if isinstance(state, dict):
                if (gpu := found.get((host, address))) is None:
                    gpu = found[host, address] = _Gpu(cut(f"{host} {address}"))
                _add(gpu, max(0.0, monotonic_s + offsets[host]), state)
    return found


def _add(gpu: _Gpu, at_s: float, state: dict[str, Any]) -> None:
    slowed = state.get("slowed_by")
    gpu.times.append(at_s)
    gpu.values.append([_figure(state.get(name)) for name, _ in _GPUS_PANELS])
    gpu.slowed.append([str(word) for word in slowed] if isinstance(slowed, list) else [])


def _figure(value: Any) -> float:
    """A stored figure, NaN where it is none; on the way of every sample, hence quick."""
    return value if type(value) in (int, float) and abs(value) < _LARGEST else nan


def _samples(run: Run) -> Iterator[tuple[str, float, float, dict[str, Any]]]:
    """(host, when its cell ended on the run's clock, when it was taken on the host's clock, GPUs), in seconds."""
    for event in run.events:
        ended_s = seconds_between(run.info.get("started_utc"), event.get("utc")) if event.get("kind") == "telemetry" else None
        hosts = event.get("hosts")
        if ended_s is None or not isinstance(hosts, dict):
            continue
        for host, samples in hosts.items():
            for sample in samples if isinstance(samples, list) else ():
                taken_s, gpus = (sample.get("monotonic_s"), sample.get("gpus")) if isinstance(sample, dict) else (None, None)
                if (known := number(taken_s)) is not None and isinstance(gpus, dict):
                    yield host, ended_s, known, gpus


# The machine's state around each cell of a run, in the order of time.

FLAGS = ("state_flip", "remeasured", "cpu_shared")  # what the state of the machine did to a cell


@dataclass(frozen=True)
class Moment:
    """A cell, or some that followed one another (`cells` of them, their worst figures).

    begin, end     on the run's `TimeAxis`
    before, after  the canary in seconds, None: not measured; of several cells the least and the largest
    stolen         share of the CPUs' time that a hypervisor took (0 … 1); None: not told
    lost           how often a rank lost its core; None: not told
    flags          those of FLAGS
    """

    name: str
    begin: float
    end: float
    before: float | None
    after: float | None
    stolen: float | None
    lost: float | None
    flags: tuple[str, ...] = ()
    cells: int = 1

    @property
    def weight(self) -> tuple[int, float, float, float]:
        """How unlike the others' the machine's state was: the larger the worse."""
        swing = abs(log(self.after / self.before)) if self.before and self.after else 0.0
        return len(self.flags), self.stolen or 0.0, swing, self.lost or 0.0


def moments(run: Run) -> tuple[list[Moment], TimeAxis]:
    """The cells of a run that were measured, by time; in measuring order where a row does not say when that was."""
    rows = [row for row in run.rows if row.na is None]
    times = [_at(row) for row in rows]
    told = bool(times) and None not in times
    spans = [at for at in times if at is not None] if told else [(place + 0.5, place + 1.5) for place in range(len(rows))]
    found = sorted((_moment(row, span) for row, span in zip(rows, spans, strict=True)), key=lambda each: each.begin)
    return found, TimeAxis(max((each.end for each in found), default=0.0), told)


def grouped(found: Sequence[Moment], most: int) -> list[Moment]:
    """At most so many: neighbours together, where there are more."""
    each = -(-len(found) // most)
    return [_together(found[first : first + each]) for first in range(0, len(found), each)] if each > 1 else list(found)


def _at(row: Row) -> tuple[float, float] | None:
    known = numbers(row.evidence.get("at_s"))
    return (known[0], known[1]) if known and len(known) == 2 and 0 <= known[0] <= known[1] else None


def _moment(row: Row, span: tuple[float, float]) -> Moment:
    before, after = (_positive(row.canary_s.get(when)) for when in ("before", "after"))
    stolen, lost = (number(row.evidence.get(name)) for name in ("stolen", "preempted"))
    flags = tuple(flag for flag in FLAGS if flag in row.flags)
    return Moment(cut(printable(f"{name_of(row)} {row.backend}"), 60), *span, before, after, stolen, lost, flags)


def _positive(value: object) -> float | None:
    known = number(value)
    return known if known and 1e-12 <= known <= 1e3 else None


def _together(some: Sequence[Moment]) -> Moment:
    canaries = [value for each in some for value in (each.before, each.after) if value is not None]
    return Moment(
        f"{len(some)} cells from {some[0].name} on" if len(some) > 1 else some[0].name, some[0].begin, max(each.end for each in some),
        min(canaries, default=None), max(canaries, default=None),
        max((each.stolen for each in some if each.stolen is not None), default=None),
        max((each.lost for each in some if each.lost is not None), default=None),
        tuple(flag for flag in FLAGS if any(flag in each.flags for each in some)), len(some),
    )  # fmt: skip


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
