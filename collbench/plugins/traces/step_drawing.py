"""The drawing of a recorded step: by rank its exchanges and its computing over time, and the exchanges that computing does not hide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from collbench.plugins.training.text import milliseconds
from collbench.report.cases import NOTHING
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Table
from collbench.report.html.picture import PAGE, Picture, drawn
from collbench.units import format_bytes, format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from collbench.plugins.traces.recording import RankTimeline, RecordedExchange
    from collbench.plugins.training.records import StepRow

_LANE, _TITLE_LANES, _AROUND = 16, 1.6, 80  # pixels of a row of bars; rows of a rank's title; pixels of the axis and the legend
_MOST_ROWS = 4  # of exchanges at the same time
_LONGEST = 1e9  # seconds: a longer time is not valid
_EXPOSED: dict[str, Any] = {"facecolor": PAGE.series[0], "edgecolor": PAGE.series[0], "linewidth": 0.8}
_HIDDEN: dict[str, Any] = {**_EXPOSED, "facecolor": PAGE.paper}
_COMPUTING: dict[str, Any] = {"facecolor": PAGE.paper, "edgecolor": PAGE.series[2], "linewidth": 0.8}
_METHOD = (
    "The times are those of the trace: of the job that was recorded, not of the replay. Each rank begins at its own first event, because "
    "the clocks of hosts differ. An exchange lasts from its start at the rank to its end there, so it includes waiting for other ranks. "
    "It is filled while the rank does not compute: that part is exposed, and a faster network can shorten it."
)


def timeline_chart(key: str, prefix: str, rows: Sequence[StepRow]) -> Chart | None:
    """Return the chart of the recorded step of one replay; None without recorded times."""
    timelines = next((row.replay.timelines for row in rows if row.replay), ())
    valid = [timeline for timeline in timelines if 0 < timeline.step_s < _LONGEST]
    if not valid:
        return None
    stacks = list(map(_stacked, valid))
    rows_of = [max(stack, default=0) + 1 + bool(timeline.computing) for timeline, stack in zip(valid, stacks, strict=True)]
    height = _LANE * (sum(rows_of) + len(valid) * _TITLE_LANES) + _AROUND
    name = f"{prefix}The recorded step, by rank"
    chart = Chart(f"{key}-recorded", name, _caption(valid), _METHOD, _table(valid))
    return drawn(chart, lambda picture: _draw(picture, valid, stacks, rows_of), height=height)


def _draw(picture: Picture, timelines: Sequence[RankTimeline], stacks: Sequence[Sequence[int]], rows_of: Sequence[int]) -> None:
    """Draw for each rank its exchanges and its computing as bars over time."""
    from matplotlib.patches import Patch

    axes = picture.axes()
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    top = 0.0
    for timeline, stack, rows in zip(timelines, stacks, rows_of, strict=True):
        axes.text(0, top + 0.7, f"rank {timeline.rank}")
        axes.text(1, top + 0.7, _brief(timeline), transform=axes.get_yaxis_transform(), ha="right")
        top += 1
        for exchange, row in zip(timeline.exchanges, stack, strict=True):
            _draw_bar(axes, top + row, [(exchange.begin_s, exchange.end_s)], _HIDDEN if timeline.computing else _EXPOSED)
            _draw_bar(axes, top + row, list(_uncovered(timeline, exchange.begin_s, exchange.end_s)), _EXPOSED)
            picture.tip(axes, 1e3 * exchange.begin_s, top + row + 0.4, _text(timeline.rank, exchange))
        _draw_bar(axes, top + rows - 1, timeline.computing, _COMPUTING)
        top += rows + 0.6
    axes.set_ylim(top, 0)
    axes.set_yticks([])
    axes.set_xlim(0, 1e3 * max(timeline.step_s for timeline in timelines))
    axes.set_xlabel("ms since the rank's step began")
    computing = any(timeline.computing for timeline in timelines)
    looks = [("exchange, exposed", _EXPOSED), ("exchange while computing", _HIDDEN), ("computing", _COMPUTING)]
    handles = [Patch(label=text, **look) for text, look in looks]
    if not computing:
        handles = [Patch(label="exchange (computing not recorded)", **_EXPOSED)]
    picture.figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))


def _draw_bar(axes: Axes, row: float, spans: Sequence[tuple[float, float]], look: dict[str, Any]) -> None:
    axes.broken_barh([(1e3 * begin, 1e3 * (end - begin)) for begin, end in spans], (row, 0.75), **look)


def _stacked(timeline: RankTimeline) -> list[int]:
    """Return the row of each exchange: the first one that is free, or the last one."""
    free: list[float] = []
    rows = []
    for exchange in timeline.exchanges:
        row = next((row for row, until in enumerate(free) if until <= exchange.begin_s), min(len(free), _MOST_ROWS - 1))
        free[row : row + 1] = [exchange.end_s]
        rows.append(row)
    return rows


def _uncovered(timeline: RankTimeline, begin: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield the parts of a time in which the rank does not compute."""
    for low, high in timeline.computing:
        if high > begin and low < end:
            if low > begin:
                yield begin, low
            begin = high
    if timeline.computing and begin < end:
        yield begin, end


def _brief(timeline: RankTimeline) -> str:
    """Return "934.1 ms, exposed 210.5 ms (23 %)"."""
    whole = f"{milliseconds(timeline.step_s)} ms"
    if timeline.exposed_s is None:
        return f"{whole}, exchanges {milliseconds(timeline.exchanges_s)} ms"
    return f"{whole}, exposed {milliseconds(timeline.exposed_s)} ms ({format_percent(100 * timeline.exposed_s / timeline.step_s)})"


def _text(rank: int, exchange: RecordedExchange) -> str:
    shown = f"{milliseconds(exchange.begin_s)} to {milliseconds(exchange.end_s)} ms" if isfinite(exchange.end_s) else NOTHING
    return short(f"rank {rank}: {exchange.operation} of {format_bytes(exchange.size_bytes)} ({exchange.what}), {shown}", 300)


def _caption(timelines: Sequence[RankTimeline]) -> str:
    """Return the rank with the most exposed communication, and what is not drawn."""
    with_exposed = [timeline for timeline in timelines if timeline.exposed_s is not None]
    texts = []
    if with_exposed:
        worst = max(with_exposed, key=lambda timeline: timeline.exposed_s or 0.0)
        texts.append(
            f"Recorded, not replayed: rank {worst.rank} has the most exposed communication, {milliseconds(worst.exposed_s or 0.0)} of "
            f"{milliseconds(worst.step_s)} ms"
        )
    else:
        texts.append("Recorded, not replayed. The trace does not contain when ranks computed, so the exposed part is unknown")
    left_out = sum(timeline.left_out for timeline in timelines)
    if left_out:
        texts.append(f"{left_out:,} more exchanges are not drawn")
    return short(". ".join(texts) + ".", 600)


def _table(timelines: Sequence[RankTimeline]) -> Table:
    cells = []
    for timeline in timelines:
        times = (timeline.step_s, timeline.exchanges_s, timeline.computing_s, timeline.exposed_s)
        cells.append([str(timeline.rank), *(NOTHING if time is None else milliseconds(time) for time in times)])
    return Table(["rank", "step ms", "exchanges ms", "computing ms", "exposed ms"], cells, frozenset(range(5)))
