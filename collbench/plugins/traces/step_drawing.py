"""The drawing of a recorded step: by rank its exchanges and its computing over time, and the exchanges that computing does not hide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from collbench.plugins.training.text import milliseconds
from collbench.report.cases import NOTHING
from collbench.report.headlines import short
from collbench.report.html.chart import Chart, Table
from collbench.report.html.drawing import Picture, linear_scale
from collbench.units import format_bytes, format_percent

if TYPE_CHECKING:
    from collbench.plugins.traces.recording import RankTimeline, RecordedExchange
    from collbench.plugins.training.records import StepRow

_WIDTH, _LEFT, _RIGHT, _TOP = 540, 8, 520, 30  # pixels
_LANE, _BAR, _TITLE, _SPACE = 15, 11, 16, 14  # of a row of bars, a bar, a rank's title, and between ranks
_MOST_ROWS = 4  # of exchanges at the same time
_LONGEST = 1e9  # seconds: a longer time is not valid
_HIDDEN, _EXPOSED, _COMPUTING = "s0 open", "s0", "s2 open"
_METHOD = (
    "The times are those of the trace: of the job that was recorded, not of the replay. Each rank begins at its own first event, because "
    "the clocks of hosts differ. An exchange lasts from its start at the rank to its end there, so it includes waiting for other ranks. "
    "It is filled while the rank does not compute: that part is exposed, and a faster network can shorten it."
)


def timeline_chart(key: str, prefix: str, rows: Sequence[StepRow]) -> Chart | None:
    """Return the chart of the recorded step of one replay; None without recorded times."""
    timelines = next((row.replay.timelines for row in rows if row.replay), ())
    valid = [each for each in timelines if 0 < each.step_s < _LONGEST]
    if not valid:
        return None
    stacks = [_stacked(each) for each in valid]
    rows_of = [max(stack, default=0) + 1 + bool(each.computing) for each, stack in zip(valid, stacks, strict=True)]
    height = _TOP + sum(_TITLE + _LANE * number + _SPACE for number in rows_of) + 38
    picture = Picture(_WIDTH, height)
    x = linear_scale(0.0, 1e3 * max(each.step_s for each in valid), _LEFT, _RIGHT, "ms since the rank's step began")
    for value, text in x.ticks:
        picture.line([(x.at(value), _TOP), (x.at(value), height - 40)], "grid")
        picture.text(x.at(value), height - 24, text, "middle")
    picture.text((x.start + x.end) / 2, height - 6, x.title, "middle")
    _legend(picture, computing=any(each.computing for each in valid))

    def bar(top: float, begin_s: float, end_s: float, classes: str) -> None:
        left, right = x.at(1e3 * begin_s), x.at(1e3 * end_s)
        picture.add("rect", classes, x=left, y=top, width=max(0.5, right - left), height=_BAR)

    top = float(_TOP)
    for timeline, stack, number in zip(valid, stacks, rows_of, strict=True):
        picture.text(_LEFT, top + 12, f"rank {timeline.rank}", classes="ink")
        picture.text(_RIGHT, top + 12, _brief(timeline), "end", "ink")
        top += _TITLE
        for exchange, row in zip(timeline.exchanges, stack, strict=True):
            y = top + row * _LANE
            bar(y, exchange.begin_s, exchange.end_s, _HIDDEN if timeline.computing else _EXPOSED)
            for begin, end in _uncovered(timeline, exchange.begin_s, exchange.end_s):
                bar(y, begin, end, _EXPOSED)
            picture.tip(x.at(1e3 * exchange.begin_s), y + _BAR / 2, _text(timeline.rank, exchange))
        for begin, end in timeline.computing:
            bar(top + (number - 1) * _LANE, begin, end, _COMPUTING)
        top += number * _LANE + _SPACE
    name = f"{prefix}The recorded step, by rank"
    return Chart(f"{key}-recorded", name, _caption(valid), _METHOD, picture.markup(name), _table(valid), picture.tooltips)


def _stacked(timeline: RankTimeline) -> list[int]:
    """Return the row of each exchange: the first one that is free, or the last one."""
    free: list[float] = []
    found = []
    for exchange in timeline.exchanges:
        row = next((row for row, until in enumerate(free) if until <= exchange.begin_s), min(len(free), _MOST_ROWS - 1))
        free[row : row + 1] = [exchange.end_s]
        found.append(row)
    return found


def _uncovered(timeline: RankTimeline, begin: float, end: float) -> Iterator[tuple[float, float]]:
    """Yield the parts of a time in which the rank does not compute."""
    for low, high in timeline.computing:
        if high > begin and low < end:
            if low > begin:
                yield begin, low
            begin = high
    if timeline.computing and begin < end:
        yield begin, end


def _legend(picture: Picture, *, computing: bool) -> None:
    entries = [(_EXPOSED, "exchange, exposed"), (_HIDDEN, "exchange while computing"), (_COMPUTING, "computing")]
    left = float(_LEFT)
    for classes, text in entries if computing else [(_EXPOSED, "exchange (computing not recorded)")]:
        picture.add("rect", classes, x=left, y=6, width=18, height=_BAR)
        picture.text(left + 24, 15, text, classes="ink")
        left += 24 + 6.3 * len(text) + 22


def _brief(timeline: RankTimeline) -> str:
    """Return "934.1 ms, exposed 210.5 ms (23 %)"."""
    whole = f"{milliseconds(timeline.step_s)} ms"
    if timeline.exposed_s is None:
        return f"{whole}, exchanges {milliseconds(timeline.exchanges_s)} ms"
    return f"{whole}, exposed {milliseconds(timeline.exposed_s)} ms ({format_percent(100 * timeline.exposed_s / timeline.step_s)})"


def _text(rank: int, exchange: RecordedExchange) -> str:
    begin, end = exchange.begin_s, exchange.end_s
    shown = f"{milliseconds(begin)} to {milliseconds(end)} ms" if isfinite(end) else NOTHING
    return short(f"rank {rank}: {exchange.operation} of {format_bytes(exchange.size_bytes)} ({exchange.what}), {shown}", 300)


def _caption(timelines: Sequence[RankTimeline]) -> str:
    """Return the rank with the most exposed communication, and what is not drawn."""
    known = [each for each in timelines if each.exposed_s is not None]
    texts = []
    if known:
        worst = max(known, key=lambda each: each.exposed_s or 0.0)
        texts.append(
            f"Recorded, not replayed: rank {worst.rank} has the most exposed communication, {milliseconds(worst.exposed_s or 0.0)} of "
            f"{milliseconds(worst.step_s)} ms"
        )
    else:
        texts.append("Recorded, not replayed. The trace does not contain when ranks computed, so the exposed part is unknown")
    if left_out := sum(each.left_out for each in timelines):
        texts.append(f"{left_out:,} more exchanges are not drawn")
    return short(". ".join(texts) + ".", 600)


def _table(timelines: Sequence[RankTimeline]) -> Table:
    cells = [
        [
            str(of.rank),
            *(NOTHING if time is None else milliseconds(time) for time in (of.step_s, of.exchanges_s, of.computing_s, of.exposed_s)),
        ]
        for of in timelines
    ]
    return Table(["rank", "step ms", "exchanges ms", "computing ms", "exposed ms"], cells, frozenset(range(5)))
