"""Clocks, power and temperature of the GPUs on the time axis of a run, and when they were slowed down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from collbench.report.columns import NOTHING
from collbench.report.html.chart import Chart, Spot, Table
from collbench.report.html.draw import BAD, PAPER, line, series_color, spots, svg_of
from collbench.report.html.names import cut
from collbench.report.html.time_axis import TimeAxis, number, seconds_between, stacked
from collbench.units import format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collbench.results.reader import Run

Figures = NDArray[np.float64]
_MOST_LINES = 4  # more GPUs are drawn as the range of all, with those that were slowed down by name
_MOST_STEPS = 150
_MOST_LISTED = 64
_PANELS = (("sm_mhz", "SM clock in MHz"), ("power_w", "power in W"), ("temperature_c", "temperature in °C"))
_LARGEST = 1e6  # of a figure: more is none
_TOLD = ((0, 0.0), (0, 0.5), (0, 1.0), (1, 0.5), (1, 1.0), (2, 1.0))  # in the table: figures by number, and which quantile
_HEAD = ("samples", "SM clock MHz: least", "median", "most", "power W: median", "most", "temperature °C: most", "slowed down")
_MADE = (
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
    panels = [each for each in range(len(_PANELS)) if any(len(gpu.figures(each)[0]) for gpu in gpus)]
    if not panels:
        return None
    last = max(max(gpu.times) for gpu in gpus)
    own = TimeAxis(max(axis.end, last) if axis.told else last, told=True)
    figure, every = stacked(len(panels), own)
    for shown, axes in zip(panels, every, strict=True):
        _draw(axes, gpus, shown, own)
    _mark(every[0], gpus, panels[0], own)
    if every[0].get_legend_handles_labels()[1]:
        every[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=_MOST_LINES + 1, borderaxespad=0, handletextpad=0.4)
    points = _points(every[0], gpus, panels[0], own)
    return Chart(key, title, _says(gpus), _MADE, svg_of(figure, key, title), _table(gpus), points, wide=True)


def _draw(axes: Axes, gpus: Sequence[_Gpu], panel: int, axis: TimeAxis) -> None:
    few = len(gpus) <= _MOST_LINES
    if not few:
        _range(axes, gpus, panel, axis)
    alone = gpus if few else [gpu for gpu in gpus if gpu.share][: _MOST_LINES - 1]
    for place, gpu in enumerate(alone, start=0 if few else 1):
        steps = _steps([gpu], panel)
        style = line(place) | {"marker": "none"}
        axes.plot([axis.at(at) for at, _ in steps], [float(np.median(values)) for _, values in steps], label=gpu.name, **style)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(_PANELS[panel][1])


def _mark(axes: Axes, gpus: Sequence[_Gpu], panel: int, axis: TimeAxis) -> None:
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
    unit = _PANELS[panel][1]
    texts = [f"{axis.text(at)}: {unit} {low:.4g}–{high:.4g}, median {middle:.4g}" for at, low, middle, high in steps]
    return spots(axes, [axis.at(at) for at, *_ in steps], [middle for _, _, middle, _ in steps], texts)


def _says(gpus: Sequence[_Gpu]) -> str:
    """Who was slowed down, most of all."""
    slow = [gpu for gpu in gpus if gpu.share]
    if not slow:
        return f"None of {len(gpus)} GPUs was slowed down." if len(gpus) > 1 else "The GPU was not slowed down."
    return f"{len(slow)} of {len(gpus)} GPUs were slowed down, {slow[0].name} most: in {slow[0].reasons()}."


def _table(gpus: Sequence[_Gpu]) -> Table:
    """The GPUs that were slowed down most first; of many those alone."""
    rows = [
        [gpu.name, str(len(gpu.times)), *(gpu.text(panel, share) for panel, share in _TOLD), gpu.reasons()]
        for gpu in gpus[:_MOST_LISTED]
    ]  # fmt: skip
    marks = {place: "doubtful" for place, gpu in enumerate(gpus[:_MOST_LISTED]) if gpu.share}
    more = f"GPU ({_MOST_LISTED} of {len(gpus)}, most slowed first)" if len(gpus) > _MOST_LISTED else "GPU"
    return Table((more, *_HEAD), rows, frozenset(range(1, 8)), marks)


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
    gpu.values.append([_figure(state.get(name)) for name, _ in _PANELS])
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
