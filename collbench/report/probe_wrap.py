"""Lines of a tree or a list on a terminal: what is too long goes on below its own beginning, not at the screen's edge."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator
from typing import TextIO

from collbench.report.screen import is_terminal
from collbench.report.table import Line

_LEAST = 40  # columns; on less, the terminal's own way is as good
_BRANCHES = str.maketrans({"├": "│", "└": " ", "─": " "})
_HANG = 2


def width_of(stream: TextIO) -> int | None:
    """The columns of the terminal that `stream` is, None for a file or a pipe, whose lines stay whole."""
    if not is_terminal(stream):
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return None
    return columns if columns >= _LEAST else None


def wrapped(lines: Iterable[Line], width: int | None) -> Iterator[Line]:
    """The lines, those wider than `width` in several, with the tree's branches drawn on beside them. None: as they are."""
    for line in lines:
        if width is None or len(line.text) <= width:
            yield line
            continue
        own = len(line.text) - len(line.text.lstrip(" │├└─"))
        below = line.text[:own].translate(_BRANCHES) + " " * _HANG
        parts = textwrap.wrap(line.text[own:], width, initial_indent=line.text[:own], subsequent_indent=below, break_on_hyphens=False)
        yield from (Line(part, line.style) for part in parts)
