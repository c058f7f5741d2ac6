"""Sections, tables and charts of a page. All texts are plain: the template escapes them. Only `Chart.drawing` is markup.

Each makes its texts printable and cuts them, so that a section needs no care with texts from files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import force_setattr

from collbench.report.headlines import short

if TYPE_CHECKING:
    from collbench.report.frame import Frame

_LONGEST, _LONGEST_TEXT = 600, 2000  # characters of a text in a table, and of a paragraph


class Table(msgspec.Struct, frozen=True):
    """A table of texts. `right` has the numbers of right-aligned columns, `marks` a style by row number: "na", "doubtful", "wrong"."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = frozenset()
    marks: dict[int, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        force_setattr(self, "rows", [[short(text, _LONGEST) for text in row] for row in self.rows])

    @classmethod
    def of(cls, frame: Frame[Any]) -> Table:
        """Return the table of a frame of the terminal, with all its columns and the styles of its records."""
        rows = [[column.text(record) for column in frame.columns] for record in frame.records]
        right = frozenset(number for number, column in enumerate(frame.columns) if column.right)
        return cls([column.title for column in frame.columns], rows, right, marks_of(map(frame.style, frame.records)))


def marks_of(styles: Iterable[str]) -> dict[int, str]:
    """Return the marks of a table from the style of each row; "": none."""
    return {number: style for number, style in enumerate(styles) if style}


class Tooltip(msgspec.Struct, frozen=True):
    """A point of a drawing, in units of its viewBox, and the exact values there: shown under the pointer, and by the arrow keys."""

    x: float
    y: float
    text: str


class Chart(msgspec.Struct, frozen=True):
    """One chart.

    key      its identifier in the page: letters, digits and hyphens
    title    what is drawn: "allreduce: bus bandwidth"
    caption  what the drawing shows, in a sentence, which screen readers use instead of the drawing
    method   how the numbers were measured or computed, one paragraph
    table    the values
    drawing  SVG (see `html.picture.drawn`)
    spots    points with tooltips
    data     what the page's script KIND.js needs beyond tooltips, JSON-ready, with its "kind" (the values of a large matrix); else None
    wide     whether it needs the whole width of the page
    """

    key: str
    title: str
    caption: str
    method: str
    table: Table
    drawing: str = ""
    spots: Sequence[Tooltip] = ()
    data: dict[str, object] | None = None
    wide: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "title", short(self.title, _LONGEST))
        force_setattr(self, "caption", short(self.caption, _LONGEST_TEXT))


class FileLink(msgspec.Struct, frozen=True):
    """A link to a file beside the page; `address` is relative and percent-encoded."""

    text: str
    address: str


class Section(msgspec.Struct, frozen=True):
    """A section of the page: texts, tables with captions, charts, lists of links with captions. `key` is its anchor."""

    key: str
    title: str
    texts: Sequence[str] = ()
    tables: Sequence[tuple[str, Table]] = ()
    charts: Sequence[Chart] = ()
    links: Sequence[tuple[str, Sequence[FileLink]]] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "texts", [short(text, _LONGEST_TEXT) for text in self.texts])
        force_setattr(self, "tables", [(short(caption, _LONGEST), table) for caption, table in self.tables])
