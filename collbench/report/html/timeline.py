"""The section "Machine state over time": state probe, stolen CPU time and preemptions around each case, and GPU telemetry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
        return next((factor, name) for most, factor, name in _UNITS if self.end <= most) if self.timed else (1.0, "")

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


def _draw_panel(axes: Axes, axis: TimeAxis, title: str, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> None:
    """Draw lines of (place, value) with their colors by number; logarithmic if the values are far apart."""
    for place, (name, points) in enumerate(lines):
        look = {"color": PAGE.of_series(place), "linestyle": DASHES[place % len(DASHES)], "label": printable(name)}
        axes.plot([axis.at(at) for at, _ in points], [value for _, value in points], gid=f"line {place}", **look)
    values = [value for _, points in lines for _, value in points if isfinite(value)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low > 0 and high > _FAR * low:
        axes.set_yscale("log")
        axes.set_ylim(0.8 * low, 1.6 * high)
    else:
        axes.set_ylim(0, 1.1 * high or 1.0)
    axes.set_title(title)


def _draw_triangles(axes: Axes, points: Iterable[tuple[float, float]]) -> None:
    """Draw a red triangle at each (position on the axis, value)."""
    places = list(points)
    if places:
        axes.plot(
            [at for at, _ in places], [value for _, value in places], marker="v", color=PAGE.wrong, linestyle="none", zorder=4, gid="marks"
        )


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

    def points(self, what: str) -> list[tuple[float, float, bool]]:
        """Return (time, value, whether it was throttled) of the samples with a value, in the order of time."""
        return sorted((at, value, bool(state.slowed_by)) for at, state in self.samples if (value := getattr(state, what)) is not None)

    def text(self, what: str, share: float) -> str:
        """Return a quantile of its values; a dash if there are none."""
        values = [value for _, value, _ in self.points(what)]
        return f"{quantile(np.sort(values), share):.4g}" if values else NOTHING

    def reasons(self) -> str:
        """Return how often it was throttled, and why."""
        counts = Counter(reason for _, state in self.samples for reason in state.slowed_by)
        often = f"{format_percent(100 * self.share)} of its samples"
        return f"{often} ({', '.join(short(reason) for reason, _ in counts.most_common(4))})" if counts else "no"


def gpu_chart(key: str, title: str, run: Run, axis: TimeAxis) -> Chart | None:
    """Return the chart of the telemetry of a run; None if there is none. `axis` is that of the cases of the run."""
    gpus = sorted(_gpus(run).values(), key=lambda each: (-each.share, each.name))
    panels = [each for each in _GPU_PANELS if any(gpu.points(each) for gpu in gpus)]
    if not panels:
        return None
    last = max(at for gpu in gpus for at, _ in gpu.samples)
    own = TimeAxis(max(axis.end, last) if axis.timed else last, timed=True)
    slow = [gpu for gpu in gpus if gpu.share]
    caption = f"{len(slow)} of {plural(len(gpus), 'GPU')} were throttled{f', {slow[0].name} most: in {slow[0].reasons()}' if slow else ''}."
    height = _PANEL_HEIGHT * len(panels) + _AROUND_PANELS
    shown = gpus[:_MOST_GPUS]
    return drawn(
        Chart(key, title, caption, _GPU_METHOD, _gpu_table(gpus)), lambda picture: _draw_gpus(picture, shown, panels, own), WIDE, height
    )


def _draw_gpus(picture: Picture, gpus: Sequence[_Gpu], panels: Sequence[str], axis: TimeAxis) -> None:
    """Draw a panel for each quantity with a line for each GPU; triangles in the first one are samples at which it was throttled."""
    every_axes = picture.axes(len(panels))
    tips: list[tuple[float, float, str]] = []
    for place, (panel, axes) in enumerate(zip(panels, every_axes, strict=True)):
        lines = []
        for gpu in gpus:
            points = gpu.points(panel)
            shown = points[:: 1 + len(points) // _MOST_POINTS]
            lines.append((gpu.name, [(at, value) for at, value, _ in shown]))
            if place == 0:
                _draw_triangles(axes, [(axis.at(at), value) for at, value, slowed in points if slowed][:_MOST_POINTS])
                tips += [(at, value, f"{axis.text(at)}: {gpu.name}: {_GPU_PANELS[panel]} {value:.4g}") for at, value, _ in shown]
        _draw_panel(axes, axis, _GPU_PANELS[panel], lines)
    for at, value, text in sorted(tips, key=lambda tip: tip[0]):
        picture.tip(every_axes[0], axis.at(at), value, text)
    every_axes[-1].set_xlabel(axis.title)
    handles, names = every_axes[0].get_legend_handles_labels()
    picture.figure.legend(handles, names, loc="outside upper left", ncols=2)


def _gpu_table(gpus: Sequence[_Gpu]) -> Table:
    """Return the table of GPUs, those that were throttled most first."""
    shown = gpus[:_MOST_GPU_ROWS]
    rows = [[gpu.name, str(len(gpu.samples)), *(gpu.text(*column) for column in _GPU_COLUMNS), gpu.reasons()] for gpu in shown]
    head = f"GPU ({len(shown)} of {len(gpus)}, most throttled first)" if len(shown) < len(gpus) else "GPU"
    return Table((head, *_GPU_HEAD), rows, frozenset(range(1, 7)), marks_of("doubtful" if gpu.share else "" for gpu in shown))


def _gpus(run: Run) -> dict[tuple[str, str], _Gpu]:
    """Return all valid samples by host and GPU, with times of the run's clock."""
    found: dict[tuple[str, str], _Gpu] = {}
    for each in telemetry_of(run):
        with suppress(ValidationError):
            gpu = found.setdefault((each.host, each.gpu), _Gpu(short(f"{each.host} {each.gpu}")))
            gpu.samples.append((each.at_s, convert(each.values, _GpuState)))
    return {key: gpu for key, gpu in found.items() if gpu.samples}


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
    times = [span_of(row) for row in rows]
    timed = bool(times) and None not in times
    known = [(at.begin_s, at.end_s) for at in times if at is not None]
    spans = known if timed else [(place + 0.5, place + 1.5) for place in range(len(rows))]
    found = sorted((_moment(row, span) for row, span in zip(rows, spans, strict=True)), key=lambda each: each.begin)
    return found, TimeAxis(max((each.end for each in found), default=0.0), timed)


def worst(found: Sequence[Moment], most: int) -> list[Moment]:
    """Return at most `most` moments by time: those in which the machine state differed most."""
    places = sorted(range(len(found)), key=lambda place: found[place].weight, reverse=True)[:most]
    return [found[place] for place in sorted(places)]


def _moment(row: Row, span: tuple[float, float]) -> Moment:
    before, after = (known if known and 1e-12 <= known <= 1e3 else None for known in map(number, map(row.canary_s.get, _PROBES)))
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
    ("state probe in ns, before and after", lambda each: (each.before and 1e9 * each.before, each.after and 1e9 * each.after)),
    ("CPU time stolen in %", lambda each: (each.stolen and 100 * each.stolen,) * 2),
    ("preemptions", lambda each: (each.lost,) * 2),
)


def section(material: Material) -> Section | None:
    """Return the section: the runs in which the machine state disturbed a case, or a GPU was throttled; None without any."""
    named = [run for run in material.runs if run.rows]
    counted = [(sum(bool(each.flags) for each in moments(run)[0]), run) for run in named]
    disturbed = [(flagged, run) for flagged, run in counted if flagged or any(gpu.share for gpu in _gpus(run).values())]
    shown = sorted(disturbed, key=lambda each: -each[0])[:_MOST_RUNS]
    charts: list[Chart | None] = []
    for place, (_, run) in enumerate(shown):
        where = f" ({short(run.path.resolve().name)})" if len(named) > 1 else ""
        found, axis = moments(run)
        if any(each.before or each.after or each.stolen for each in found):
            charts.append(_chart(f"timeline-{place}", f"machine state around each case{where}", found, axis))
        charts.append(gpu_chart(f"timeline-{place}-gpus", f"GPUs over time{where}", run, axis))
    known = [chart for chart in charts if chart is not None]
    less = f"The charts show {len(shown)} of {len(named)} runs: those with the most cases that the machine state disturbed."
    return Section("timeline", "Machine state over time", [less] if len(shown) < len(named) else [], (), known) if known else None


def _chart(key: str, title: str, found: Sequence[Moment], axis: TimeAxis) -> Chart:
    shown = worst(found, _MOST_DRAWN)
    panels = [(name, values) for name, values in _PANELS if any(value for moment in shown for value in values(moment))]
    height = _PANEL_HEIGHT * len(panels) + _AROUND_PANELS

    def draw_moments(picture: Picture) -> None:
        every_axes = picture.axes(len(panels))
        for place, ((name, values), axes) in enumerate(zip(panels, every_axes, strict=True)):
            points: list[tuple[float, float]] = []
            tops: list[float] = []
            for moment in shown:
                before, after = values(moment)
                known = [value for value in (before, after) if value is not None]
                tops.append(max(known, default=nan))
                if before is not None and after is not None:
                    points += [(moment.begin, before), (moment.end, after), (moment.end, nan)]
            _draw_panel(axes, axis, name, [(name, points)])
            if place == 0:
                top = axes.get_ylim()[1]
                _draw_triangles(axes, [(axis.at(moment.middle), top) for moment in shown if moment.flags])
                for moment, height_of in zip(shown, tops, strict=True):
                    picture.tip(axes, axis.at(moment.middle), height_of if isfinite(height_of) else 0.0, _spot(moment, axis))
        every_axes[-1].set_xlabel(axis.title)

    return drawn(Chart(key, title, _caption(found), _METHOD, _table(found, axis)), draw_moments, WIDE, height)


def _spot(each: Moment, axis: TimeAxis) -> str:
    stolen = f", stolen {format_percent(100 * each.stolen)}" if each.stolen else ""
    lost = f", preemptions {each.lost:.0f}" if each.lost else ""
    flags = "".join(f", {name}" for name in flag_names(each.flags))
    return f"{axis.text(each.begin)}, {each.name}: state probe {_ns(each.before)} → {_ns(each.after)} ns{stolen}{lost}{flags}"


def _caption(found: Sequence[Moment]) -> str:
    """Return the range of the state probe, the largest stolen share, and the number of disturbed cases."""
    probes = [value for each in found for value in (each.before, each.after) if value]
    probe = f"State probe: {_ns(min(probes))} to {_ns(max(probes))} ns" if probes else "The state probe was not measured"
    stolen = max((each.stolen or 0.0 for each in found), default=0.0)
    taken = f"at most {format_percent(100 * stolen)} of the CPU time was stolen" if stolen else "no CPU time was stolen"
    flagged = sum(bool(each.flags) for each in found)
    marked = f"{flagged} of {len(found)} cases have a flag for it (triangles)" if flagged else "No case has a flag for it"
    less = f" Drawn are the {_MOST_DRAWN} cases with the largest changes." if len(found) > _MOST_DRAWN else ""
    return f"{probe}; {taken}. {marked}.{less}"


def _table(found: Sequence[Moment], axis: TimeAxis) -> Table:
    """Return the table of cases by time; of many, those in which the machine state differed most."""
    listed = worst(found, _MOST_LISTED)
    head = (f"time ({len(listed)} of {len(found)} cases, the largest changes)" if len(listed) < len(found) else "time", *_HEAD)
    rows = []
    for each in listed:
        stolen = NOTHING if each.stolen is None else format_percent(100 * each.stolen)
        lost, flags = NOTHING if each.lost is None else f"{each.lost:.0f}", ", ".join(flag_names(each.flags))
        rows.append([axis.text(each.begin), each.name, _ns(each.before), _ns(each.after), stolen, lost, flags])
    return Table(head, rows, frozenset({2, 3, 4, 5}), marks_of("doubtful" if each.flags else "" for each in listed))


def _ns(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e9:.4g}"
