"""Grid, tick labels and titles of axes, as one path and a few texts.

matplotlib's own axes are 70 % of a drawing's time and a third of its bytes: five artists for each tick. Its locators and formatters
are still asked; where somebody asked for more (turned labels, a second side), its own axes are left as they are.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from collbench.report.html.overlay import SIZE, rule, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_PLAIN = {"bottom": True, "top": False, "left": True, "right": False, "gridOn": None, "length": 0, "labelsize": None, "size": 0,
          "labelbottom": True, "labeltop": False, "labelleft": True, "labelright": False}  # fmt: skip


def draw_frame(axes: Axes) -> None:
    """Takes the axes' ticks, labels and titles out of matplotlib's hands, each of its two sides where it is a plain one."""
    if not axes.axison:
        return
    for axis, across, title in ((axes.xaxis, False, axes.get_xlabel()), (axes.yaxis, True, axes.get_ylabel())):
        if axis.get_visible() and _is_plain(axis):
            _side(axes, axis, across, title)


def _is_plain(axis: Axis) -> bool:
    """Whether nothing about its ticks was asked for that a frame does not know."""
    asked = axis.get_tick_params()
    return all(name in _PLAIN and (_PLAIN[name] is None or _PLAIN[name] == value) for name, value in asked.items())


def _side(axes: Axes, axis: Axis, across: bool, title: str) -> None:
    """One side: its lines, labels and title, at pixels of the figure."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    ticks, box = _ticks(axis), axes.bbox
    axis.set_visible(False)
    size = axis.get_tick_params().get("labelsize", SIZE)
    places = axes.transData.transform(
        [(axes.get_xlim()[0], tick) if across else (tick, axes.get_ylim()[0]) for tick, _ in ticks] or [(1, 1)]
    )
    for (x, y), (_, text) in zip(places, ticks, strict=False):
        at = (box.x0 - 7, float(y) - 0.35 * size) if across else (float(x), box.y0 - 7 - 0.75 * size)
        write(figure, at, text, size=size, anchor="end" if across else "middle")
    rule(figure, [(box.x0, y, box.x1, y) if across else (x, box.y0, x, box.y1) for x, y in places[: len(ticks)].tolist()])
    if title:  # of y above the axes, where it can be read without turning one's head
        at, anchor = ((max(4.0, box.x0 - 50), box.y1 + 10), "start") if across else (((box.x0 + box.x1) / 2, box.y0 - 30), "middle")
        write(figure, at, title, anchor=anchor)


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    """The ticks within the view with their labels."""
    from matplotlib.ticker import LogFormatter, ScalarFormatter

    low, high = sorted(axis.get_view_interval())
    spare = 1e-9 * (high - low)
    places = [float(tick) for tick in axis.get_majorticklocs() if isfinite(tick)]
    form: Any = axis.get_major_formatter()
    own = not isinstance(form, ScalarFormatter | LogFormatter)  # those two may write an exponent apart, or mathematics
    texts = form.format_ticks(places) if own else [f"{tick:.6g}" for tick in places]
    return [(tick, text) for tick, text in zip(places, texts, strict=True) if low - spare <= tick <= high + spare]
