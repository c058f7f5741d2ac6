"""Names for charts: of a series among others, and of whatever a file calls something."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.report.columns import NOTHING, value_of
from collbench.report.headlines import short
from collbench.report.plan import SERIES
from collbench.results.row import Row

_MOST_SERIES_WORDS = 60


def telling(rows: Sequence[Row]) -> list[str]:
    """The fields that tell the series of one operation apart: the backend, and whatever else differs."""
    return [name for name in SERIES if name == "backend" or (name != "operation" and len({getattr(row, name) for row in rows}) > 1)]


def series_name(row: Row, names: Sequence[str]) -> str:
    """A series in few words, the fields `names` of it: "mpi", "gloo in place"."""
    words = [text for name in names if (text := value_of(row, name)) != NOTHING]
    return cut(" ".join(words), _MOST_SERIES_WORDS)


def cut(text: str, most: int = 40) -> str:
    """A name that may be drawn: printable, at most so many characters."""
    return short(text, most)
