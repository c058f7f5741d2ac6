"""One chart per quantity of a pair matrix: the picture, the values behind it, and the figures as a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

import numpy as np

from collbench.analysis.pairs import PairEffects, PairFinding
from collbench.report.columns import NOTHING
from collbench.report.flags import printable
from collbench.report.html.chart import Chart, Table
from collbench.report.html.drawing import picture
from collbench.report.html.groups import Groups, grouped
from collbench.report.html.image import image_of
from collbench.report.html.marks import marks
from collbench.report.html.quantity import Quantity, quantities
from collbench.report.html.values import texts_of

_WHOLE = 12  # places up to which the table is the matrix itself, and half the width of the page is enough
_SLOWEST = 40  # pairs in the table of a larger one
_SHOWN = 2  # pixels of a cell in the picture of all cells, before anybody zooms
_EACH = {
    "host": "Each row and column of the first picture stands for one host",
    "name": "Each row and column of the first picture stands for the places of hosts whose names differ in their last number only",
    "neighbours": "Each row and column of the first picture stands for several neighbouring places",
}


@dataclass(frozen=True)
class Told:
    """A matrix with what there is to say of it.

    key      of its charts within the page; run: before their titles, where there are several
    found    who is named
    samples  of the latency, and of a bandwidth one way, at most
    places   what is paired: "nodes", "ranks"
    """

    key: str
    run: str
    places: str
    effects: PairEffects
    found: Sequence[PairFinding]
    samples: tuple[int, int]


def charts(told: Told) -> list[Chart]:
    """Bandwidth, then latency; what nobody measured has no chart."""
    groups = grouped(told.effects.matrix.places)
    return [_chart(told, each, groups) for each in quantities(told.effects.matrix) if np.isfinite(each.values).any()]


def _chart(told: Told, quantity: Quantity, groups: Groups) -> Chart:
    named = marks(quantity, told.found, groups)
    title = f"{told.run}{quantity.word.capitalize()} of {quantity.size} messages between {quantity.matrix.n} {told.places}"
    shown = picture(f"{told.key}-{quantity.word}", title, quantity, groups, named)
    return Chart(
        key=f"{told.key}-{quantity.word}", title=title, says=_says(quantity, [mark.text for mark in named]),
        made=_made(quantity, groups, told.samples[not quantity.symmetric]),
        drawing=shown.svg + ("" if groups.by == "place" else _full(quantity, groups, title)), table=_table(quantity, told.found),
        data=_data(quantity, told.effects.again, groups, shown.box), wide=quantity.matrix.n > _WHOLE,
    )  # fmt: skip


def _says(quantity: Quantity, named: Sequence[str]) -> str:
    who = f"Named: {'; '.join(named[:3])}{f' and {len(named) - 3} more' if len(named) > 3 else ''}." if named else "Nobody is named."
    how = "a cell is a pair" if quantity.symmetric else "who sends is a row, who receives a column"
    return f"{who} {how.capitalize()}; dark cells are near the median, the brighter a cell the slower it is."


def _made(quantity: Quantity, groups: Groups, samples: int) -> str:
    each_way = "the size over the time of one message, each way for itself"
    what = "half the time of a message there and back" if quantity.symmetric else each_way
    counted = f"up to {samples} samples" if samples else "its samples"
    parts = [
        f"The {quantity.word} of a pair is {what}, by the median of {counted} of {quantity.size}.",
        "Disjoint pairs are measured at the same time; of a pair that was measured again the faster figure counts, since a disturbance "
        "only makes it slower.",
        f"Colours are five classes below {quantity.median}: the first one is as deep as chance alone reaches, each next one twice as deep.",
        "A ring marks a pair that its two ends do not explain, an arrow a place that is slow with all.",
    ]
    parts += [f"{_EACH[groups.by]}, a cell for their slowest pair; the second picture has every pair."] if groups.by in _EACH else []
    if quantity.matrix.n > _WHOLE:
        named = "beside those of places that are named"
        parts.append(f"The table has the {_SLOWEST} slowest pairs {named}; `collbench report RUN --csv FILE` writes every one.")
    return " ".join(parts)


def _full(quantity: Quantity, groups: Groups, title: str) -> str:
    """All cells, to be scrolled; matrix.css and matrix.js let them be read."""
    side = _SHOWN * quantity.matrix.n
    image, name = image_of(quantity.classes[0][np.ix_(groups.order, groups.order)]), quoteattr(f"{title}, every pair")
    return f'<div class="matrix"><img src="{image}" width="{side}" height="{side}" alt={name}></div>'


def _data(quantity: Quantity, again: Collection[tuple[int, int]], groups: Groups, box: tuple[float, float, float]) -> dict[str, object]:
    """For matrix.js. `joint` stands between the names of a pair; places are in the order of drawing, `starts` are their groups."""
    places = [printable(quantity.matrix.places[place])[:200] for place in groups.order]
    return {
        "kind": "pairs", "places": places, "starts": groups.starts, "labels": [printable(label)[:200] for label in groups.labels],
        "box": box, "joint": "and" if quantity.symmetric else "to", "symmetric": quantity.symmetric,
        **texts_of(quantity, again, np.array(groups.order)).packed(),
    }  # fmt: skip


def _table(quantity: Quantity, found: Sequence[PairFinding]) -> Table:
    return _whole(quantity) if quantity.matrix.n <= _WHOLE else _slowest(quantity, found)


def _whole(quantity: Quantity) -> Table:
    """The matrix itself."""
    names = [printable(place) for place in quantity.matrix.places]
    corner = f"{quantity.unit}, {'between' if quantity.symmetric else 'from ↓ to →'}"
    rows = [
        [name, *(quantity.figure(value) or NOTHING for value in row)] for name, row in zip(names, quantity.values.tolist(), strict=True)
    ]
    return Table([corner, *names], rows, frozenset(range(1, len(names) + 1)))


def _slowest(quantity: Quantity, found: Sequence[PairFinding]) -> Table:
    """The pairs that are furthest below the median and that no place that is named explains."""
    above = np.where(np.isnan(quantity.above), np.inf, quantity.above)
    if quantity.symmetric:
        above[np.tril_indices(len(above))] = np.inf
    for each in (each for each in found if each.quantity == quantity.word and each.kind != "pair"):
        if each.kind != "receiver":
            above[list(each.places)] = np.inf
        if each.kind != "sender":
            above[:, list(each.places)] = np.inf
    lowest = np.argpartition(above, _SLOWEST, axis=None)[:_SLOWEST]
    pairs = [divmod(int(cell), len(above)) for cell in lowest[np.argsort(above.ravel()[lowest], kind="stable")]]
    shares, names = quantity.shares(), quantity.matrix.places
    rows = [
        [
            printable(names[a]),
            printable(names[b]),
            quantity.figure(float(quantity.values[a, b])),
            quantity.against_median(int(shares[a, b])),
        ]
        for a, b in pairs
        if np.isfinite(above[a, b])
    ]
    ends = ("place", "place") if quantity.symmetric else ("sender", "receiver")
    return Table([*ends, quantity.unit, "it is"], rows, frozenset({2}))
