"""What the page is made of: sections of charts, each with the table of what it shows and how its numbers were made.

All text here is plain: the template escapes it. `Chart.drawing` alone is markup, and made by this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """A table of texts; `right` are the columns of figures, by number. `marks` has a style by row number: "na", "doubtful", "wrong"."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = frozenset()
    marks: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Spot:
    """A point of a drawing and what it stands for, exactly: shown under the pointer, and by the arrow keys."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Chart:
    """One chart.

    key      names it within the page: letters, digits and hyphens
    title    what is drawn: "allreduce: bus bandwidth"
    says     what one should see, in a sentence; a screen reader says it instead of the drawing
    made     how its numbers were made, one paragraph
    drawing  SVG (see `drawing.draw.svg_of`); behind it may stand what the script of its kind shows, too (matrix.js)
    table    the same in figures
    spots    in the drawing's own units (its viewBox)
    data     what the page's script needs beyond spots, JSON-ready (the values behind a large matrix); else None
    wide     whether it needs the whole width of the page
    """

    key: str
    title: str
    says: str
    made: str
    drawing: str
    table: Table
    spots: Sequence[Spot] = ()
    data: dict[str, object] | None = None
    wide: bool = False


@dataclass(frozen=True)
class Link:
    """A link to a file beside the page; `address` is relative and percent-encoded."""

    text: str
    address: str


@dataclass(frozen=True)
class Section:
    """A part of the page: texts, then tables with their captions, then charts, then lists of links. `key` is its anchor.

    links  a caption and the links below it: the raw files of a run
    """

    key: str
    title: str
    texts: Sequence[str] = ()
    tables: Sequence[tuple[str, Table]] = ()
    charts: Sequence[Chart] = ()
    links: Sequence[tuple[str, Sequence[Link]]] = ()
