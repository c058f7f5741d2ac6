"""The section "Machine state over time": state probe, stolen CPU time and preemptions around each case, and GPU telemetry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import isfinite, log, nan
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct, ValidationError, convert

from collbench.report.cases import NOTHING, name_of
from collbench.report.figures import DASHES
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Section, Table, marks_of
from collbench.report.html.picture import PAGE, WIDE, Picture, drawn
from collbench.results.flags import flag_names
from collbench.results.timeline import number, span_of, telemetry_of
from collbench.stats.median import quantile
from collbench.units import format_percent, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collbench.report.material import Material
    from collbench.results.reader import Run
    from collbench.results.row import Row


# The axis of all panels of a run.

_PANEL_HEIGHT = 132  # pixels
_AROUND_PANELS = 60
_FAR = 6  # values further apart by this factor are on a logarithmic axis
_UNITS = ((180.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (float("inf"), 3600.0, "h"))
_ORDER = "cases in the order of measurement"


class TimeAxis(msgspec.Struct, frozen=True):
    """The x axis of a run.

    end    its length: in seconds, or in cases if the rows have no times
    timed  whether the rows have times
    """

    end: float
    timed: bool

    @property
    def unit(self) -> tuple[float, str]:
        """Return the unit of the axis in seconds, and its name; (1, "") for cases."""
        if not self.timed:
            return 1.0, ""
        return next((factor, name) for most, factor, name in _UNITS if self.end <= most)

    @property
    def title(self) -> str:
        """Return the title of the axis."""
        return f"{self.unit[1]} since the start of the run" if self.timed else _ORDER

    def at(self, place: float) -> float:
        """Return the position of a time in seconds (or of the number of a case)."""
        return place / self.unit[0]

    def text(self, place: float) -> str:
        """Return a time as text: "12.3 s", "case 5"."""
        return f"{self.at(place):.4g} {self.unit[1]}" if self.timed else f"case {round(place + 0.5)}"


_DECADES = 30  # of the largest value to the smallest: an axis of more has a label for each power of ten alone


def _draw_panel(axes: Axes, axis: TimeAxis, title: str, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> None:
    """Draw lines of (place, value) with their colors by index; logarithmic if the values are far apart."""
    from matplotlib.ticker import LogLocator, NullLocator

    for index, (name, points) in enumerate(lines):
        look = {"color": PAGE.of_series(index), "linestyle": DASHES[index % len(DASHES)], "label": printable(name)}
        axes.plot([axis.at(place) for place, _ in points], [value for _, value in points], gid=f"line {index}", **look)
    values = [value for _, points in lines for _, value in points if isfinite(value)]
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    if low > 0 and high > _FAR * low:
        axes.set_yscale("log")
        axes.set_ylim(0.8 * low, 1.6 * high)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _DECADES * low else (1,)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # by default it would be TeX, which only matplotlib draws
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.1 * high or 1.0)
    axes.set_title(title)


def _draw_triangles(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Draw a red triangle at each (position on the axis, value)."""
    if points:
        places, values = zip(*points, strict=True)
        axes.plot(places, values, marker="v", color=PAGE.wrong, linestyle="none", zorder=4, gid="marks")


# Clocks, power and temperature of the GPUs over time, and when they were throttled.

_MOST_GPUS = 4
_MOST_POINTS = 150
_MOST_GPU_ROWS = 64
_GPU_PANELS = {"sm_mhz": "SM clock in MHz", "power_w": "power in W", "temperature_c": "temperature in °C"}
_GPU_COLUMNS = (("sm_mhz", 0.0), ("sm_mhz", 0.5), ("power_w", 0.5), ("power_w", 1.0), ("temperature_c", 1.0))  # quantiles
_GPU_HEAD = ("samples", "SM clock MHz: min", "median", "power W: median", "max", "temperature °C: max", "throttled")
_GPU_METHOD = (
    "A process on each host reads NVML a few times per second (--telemetry) while cases of at least 1 MiB are measured; between cases a "
    "line only connects the samples. The clocks of the hosts are aligned with that of the run, so that no sample is later than the end of "
    "its case. The chart shows the GPUs that were throttled most. A triangle marks samples at which NVML reported throttling: power, "
    "heat, or the hardware brake; clocks that were set, and idling, do not count."
)


_Value = Annotated[float, Meta(ge=-1e6, le=1e6)]  # others are not valid


class _GpuState(Struct):
    """A GPU in a sample. slowed_by: why it was throttled."""

    sm_mhz: _Value | None = None
    power_w: _Value | None = None
    temperature_c: _Value | None = None
    slowed_by: list[str] = []


class _Gpu(msgspec.Struct):
    """A GPU with its samples, each with the seconds since the start of the run."""

    name: str
    samples: list[tuple[float, _GpuState]] = msgspec.field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of samples at which it was throttled."""
        return sum(bool(state.slowed_by) for _, state in self.samples) / len(self.samples)

    def points(self, quantity: str) -> list[tuple[float, float, bool]]:
        """Return (time, value, whether it was throttled) of the samples with a value, in the order of time."""
        points = [(at_s, getattr(state, quantity), bool(state.slowed_by)) for at_s, state in self.samples]
        return sorted(point for point in points if point[1] is not None)

    def text(self, quantity: str, share: float) -> str:
        """Return a quantile of its values; a dash if there are none."""
        values = [value for _, value, _ in self.points(quantity)]
        return f"{quantile(np.sort(values), share):.4g}" if values else NOTHING

    def reasons(self) -> str:
        """Return how often it was throttled, and why."""
        counts = Counter(reason for _, state in self.samples for reason in state.slowed_by)
        often = f"{format_percent(100 * self.share)} of its samples"
        return f"{often} ({', '.join(short(reason) for reason, _ in counts.most_common(4))})" if counts else "no"


def gpu_chart(key: str, title: str, run: Run, axis: TimeAxis) -> Chart | None:
    """Return the chart of the telemetry of a run; None if there is none. `axis` is that of the cases of the run."""
    gpus = sorted(_gpus(run).values(), key=lambda gpu: (-gpu.share, gpu.name))
    panels = [quantity for quantity in _GPU_PANELS if any(gpu.points(quantity) for gpu in gpus)]
    if not panels:
        return None
    last_s = max(at_s for gpu in gpus for at_s, _ in gpu.samples)
    gpu_axis = TimeAxis(max(axis.end, last_s) if axis.timed else last_s, timed=True)
    slow = [gpu for gpu in gpus if gpu.share]
    most = f", {slow[0].name} most: in {slow[0].reasons()}" if slow else ""
    caption = f"{len(slow)} of {plural(len(gpus), 'GPU')} were throttled{most}."
    height = _PANEL_HEIGHT * len(panels) + _AROUND_PANELS
    chart = Chart(key, title, caption, _GPU_METHOD, _gpu_table(gpus))
    return drawn(chart, lambda picture: _draw_gpus(picture, gpus[:_MOST_GPUS], panels, gpu_axis), WIDE, height)


def _draw_gpus(picture: Picture, gpus: Sequence[_Gpu], panels: Sequence[str], axis: TimeAxis) -> None:
    """Draw a panel for each quantity with a line for each GPU; triangles in the first one are samples at which it was throttled."""
    all_axes = picture.axes(len(panels))
    tips: list[tuple[float, float, str]] = []
    for place, (panel, axes) in enumerate(zip(panels, all_axes, strict=True)):
        lines = []
        for gpu in gpus:
            points = gpu.points(panel)
            shown = points[:: 1 + len(points) // _MOST_POINTS]
            lines.append((gpu.name, [(at_s, value) for at_s, value, _ in shown]))
            if place == 0:
                _draw_triangles(axes, [(axis.at(at_s), value) for at_s, value, slowed in points if slowed][:_MOST_POINTS])
                tips += [(at_s, value, f"{axis.text(at_s)}: {gpu.name}: {_GPU_PANELS[panel]} {value:.4g}") for at_s, value, _ in shown]
        _draw_panel(axes, axis, _GPU_PANELS[panel], lines)
    for at_s, value, text in sorted(tips, key=lambda tip: tip[0]):
        picture.tip(all_axes[0], axis.at(at_s), value, text)
    all_axes[-1].set_xlabel(axis.title)
    handles, names = all_axes[0].get_legend_handles_labels()
    picture.figure.legend(handles, names, loc="outside upper left", ncols=2)


def _gpu_table(gpus: Sequence[_Gpu]) -> Table:
    """Return the table of GPUs, those that were throttled most first."""
    shown = gpus[:_MOST_GPU_ROWS]
    rows = [[gpu.name, str(len(gpu.samples)), *(gpu.text(*column) for column in _GPU_COLUMNS), gpu.reasons()] for gpu in shown]
    head = f"GPU ({len(shown)} of {len(gpus)}, most throttled first)" if len(shown) < len(gpus) else "GPU"
    return Table((head, *_GPU_HEAD), rows, frozenset(range(1, 7)), marks_of("doubtful" if gpu.share else "" for gpu in shown))


def _gpus(run: Run) -> dict[tuple[str, str], _Gpu]:
    """Return all valid samples by host and GPU, with times of the run's clock."""
    gpus: dict[tuple[str, str], _Gpu] = {}
    for sample in telemetry_of(run):
        with suppress(ValidationError):
            gpu = gpus.setdefault((sample.host, sample.gpu), _Gpu(short(f"{sample.host} {sample.gpu}")))
            gpu.samples.append((sample.at_s, convert(sample.values, _GpuState)))
    return {key: gpu for key, gpu in gpus.items() if gpu.samples}


# The machine state around each case of a run, in the order of time.

STATE_FLAGS = ("state_flip", "remeasured", "cpu_shared")
_PROBES = ("before", "after")


class Moment(msgspec.Struct, frozen=True):
    """A case.

    begin, end     on the run's `TimeAxis`
    before, after  the state probe in seconds, None if it was not measured
    stolen         share of the CPU time that a hypervisor took (0 … 1); None if unknown
    lost           how often a rank was preempted; None if unknown
    flags          those of STATE_FLAGS
    """

    name: str
    begin: float
    end: float
    before: float | None
    after: float | None
    stolen: float | None
    lost: float | None
    flags: tuple[str, ...] = ()

    @property
    def middle(self) -> float:
        """The middle of the case, on the run's `TimeAxis`."""
        return (self.begin + self.end) / 2

    @property
    def weight(self) -> tuple[int, float, float, float]:
        """A key to sort by: the larger, the more the machine state differed."""
        swing = abs(log(self.after / self.before)) if self.before and self.after else 0.0
        return len(self.flags), self.stolen or 0.0, swing, self.lost or 0.0


def moments(run: Run) -> tuple[list[Moment], TimeAxis]:
    """Return the measured cases of a run by time, or in the order of measurement if a row has no time."""
    rows = [row for row in run.rows if row.na is None]
    spans = [(span.begin_s, span.end_s) for span in map(span_of, rows) if span is not None]
    timed = bool(rows) and len(spans) == len(rows)
    if not timed:
        spans = [(place + 0.5, place + 1.5) for place in range(len(rows))]
    cases = sorted((_moment(row, span) for row, span in zip(rows, spans, strict=True)), key=lambda case: case.begin)
    return cases, TimeAxis(max((case.end for case in cases), default=0.0), timed)


def worst(cases: Sequence[Moment], most: int) -> list[Moment]:
    """Return at most `most` cases by time: those in which the machine state differed most."""
    places = sorted(range(len(cases)), key=lambda place: cases[place].weight, reverse=True)[:most]
    return [cases[place] for place in sorted(places)]


def _moment(row: Row, span: tuple[float, float]) -> Moment:
    probes_s = (number(row.canary_s.get(name)) for name in _PROBES)
    before, after = (probe_s if probe_s and 1e-12 <= probe_s <= 1e3 else None for probe_s in probes_s)
    stolen, lost = (number(row.evidence.get(name)) for name in ("stolen", "preempted"))
    flags = tuple(flag for flag in STATE_FLAGS if flag in row.flags)
    return Moment(short(f"{name_of(row)} {row.backend}", 60), *span, before, after, stolen, lost, flags)


_MOST_RUNS = 6
_MOST_DRAWN = 120
_MOST_LISTED = 100
_HEAD = ("case", "state probe before ns", "after ns", "stolen", "preemptions", "flags")
_METHOD = (
    "The state probe is a short measurement of the machine itself: two cores pass a cache line back and forth (a rank without a partner "
    "does a fixed piece of work), before and after each case. The chart shows the slowest rank. Every small latency moves with it. If "
    "both values differ by more than 1.25 times within a case, the machine state changed, and the case is measured again. Stolen is the "
    "share of CPU time that a hypervisor took during the case, at the worst rank. Preemptions is how often a rank lost its core to "
    "another process."
)
# (title, values at begin and end of a case; None: unknown)
_PANELS: tuple[tuple[str, Callable[[Moment], tuple[float | None, float | None]]], ...] = (
    ("state probe in ns, before and after", lambda case: (case.before and 1e9 * case.before, case.after and 1e9 * case.after)),
    ("CPU time stolen in %", lambda case: (case.stolen and 100 * case.stolen,) * 2),
    ("preemptions", lambda case: (case.lost,) * 2),
)


def section(material: Material) -> Section | None:
    """Return the section: the runs in which the machine state disturbed a case, or a GPU was throttled; None without any."""
    runs = [run for run in material.runs if run.rows]
    counted = [(sum(bool(case.flags) for case in moments(run)[0]), run) for run in runs]
    disturbed = [(flagged, run) for flagged, run in counted if flagged or any(gpu.share for gpu in _gpus(run).values())]
    shown = sorted(disturbed, key=lambda pair: -pair[0])[:_MOST_RUNS]
    charts: list[Chart] = []
    for place, (_, run) in enumerate(shown):
        where = f" ({short(run.path.resolve().name)})" if len(runs) > 1 else ""
        cases, axis = moments(run)
        if any(case.before or case.after or case.stolen for case in cases):
            charts.append(_chart(f"timeline-{place}", f"machine state around each case{where}", cases, axis))
        gpus = gpu_chart(f"timeline-{place}-gpus", f"GPUs over time{where}", run, axis)
        if gpus is not None:
            charts.append(gpus)
    if not charts:
        return None
    less = f"The charts show {len(shown)} of {len(runs)} runs: those with the most cases that the machine state disturbed."
    return Section("timeline", "Machine state over time", [less] if len(shown) < len(runs) else [], (), charts)


def _chart(key: str, title: str, cases: Sequence[Moment], axis: TimeAxis) -> Chart:
    shown = worst(cases, _MOST_DRAWN)
    panels = [(name, values) for name, values in _PANELS if any(value for moment in shown for value in values(moment))]
    height = _PANEL_HEIGHT * len(panels) + _AROUND_PANELS

    def draw_moments(picture: Picture) -> None:
        all_axes = picture.axes(len(panels))
        for place, ((name, values), axes) in enumerate(zip(panels, all_axes, strict=True)):
            points: list[tuple[float, float]] = []
            heights: list[float] = []
            for moment in shown:
                before, after = values(moment)
                heights.append(max((value for value in (before, after) if value is not None), default=nan))
                if before is not None and after is not None:
                    points += [(moment.begin, before), (moment.end, after), (moment.end, nan)]
            _draw_panel(axes, axis, name, [(name, points)])
            if place == 0:
                top = axes.get_ylim()[1]
                _draw_triangles(axes, [(axis.at(moment.middle), top) for moment in shown if moment.flags])
                for moment, height in zip(shown, heights, strict=True):
                    picture.tip(axes, axis.at(moment.middle), height if isfinite(height) else 0.0, _tooltip(moment, axis))
        all_axes[-1].set_xlabel(axis.title)

    return drawn(Chart(key, title, _caption(cases), _METHOD, _table(cases, axis)), draw_moments, WIDE, height)


def _tooltip(case: Moment, axis: TimeAxis) -> str:
    stolen = f", stolen {format_percent(100 * case.stolen)}" if case.stolen else ""
    lost = f", preemptions {case.lost:.0f}" if case.lost else ""
    flags = "".join(f", {name}" for name in flag_names(case.flags))
    return f"{axis.text(case.begin)}, {case.name}: state probe {_ns(case.before)} → {_ns(case.after)} ns{stolen}{lost}{flags}"


def _caption(cases: Sequence[Moment]) -> str:
    """Return the range of the state probe, the largest stolen share, and the number of disturbed cases."""
    probes = [value for case in cases for value in (case.before, case.after) if value]
    probe = f"State probe: {_ns(min(probes))} to {_ns(max(probes))} ns" if probes else "The state probe was not measured"
    stolen = max((case.stolen or 0.0 for case in cases), default=0.0)
    taken = f"at most {format_percent(100 * stolen)} of the CPU time was stolen" if stolen else "no CPU time was stolen"
    flagged = sum(bool(case.flags) for case in cases)
    marked = f"{flagged} of {len(cases)} cases have a flag for it (triangles)" if flagged else "No case has a flag for it"
    less = f" Drawn are the {_MOST_DRAWN} cases with the largest changes." if len(cases) > _MOST_DRAWN else ""
    return f"{probe}; {taken}. {marked}.{less}"


def _table(cases: Sequence[Moment], axis: TimeAxis) -> Table:
    """Return the table of cases by time; of many, those in which the machine state differed most."""
    listed = worst(cases, _MOST_LISTED)
    head = (f"time ({len(listed)} of {len(cases)} cases, the largest changes)" if len(listed) < len(cases) else "time", *_HEAD)
    rows = []
    for case in listed:
        stolen = NOTHING if case.stolen is None else format_percent(100 * case.stolen)
        lost = NOTHING if case.lost is None else f"{case.lost:.0f}"
        figures = [_ns(case.before), _ns(case.after), stolen, lost]
        rows.append([axis.text(case.begin), case.name, *figures, ", ".join(flag_names(case.flags))])
    return Table(head, rows, frozenset({2, 3, 4, 5}), marks_of("doubtful" if case.flags else "" for case in listed))


def _ns(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e9:.4g}"
