"""Links from the page to the files of a run."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from collbench.report.html.chart import Link
from collbench.results.folder import CELLS, EVENTS, PAIRS, RUN, SAMPLES, TOOLS, TOPOLOGY
from collbench.results.reader import Run
from collbench.units import format_bytes

_FILES = (RUN, TOPOLOGY, CELLS, PAIRS, TOOLS, SAMPLES, EVENTS)


def raw_files(run: Run, page: Path) -> list[Link]:
    """The run's files that are there, relative to the folder of `page`; never an address with a scheme."""
    return [Link(f"{name} ({format_bytes(size)})", _address(run.path / name, page)) for name in _FILES if (size := _size(run.path / name))]


def _size(path: Path) -> int:
    """In bytes; 0 for what is empty, not there, or no regular file."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _address(path: Path, page: Path) -> str:
    """As a browser takes it: links in between are left as they are, since a browser does not follow them either."""
    relative = os.path.relpath(path, page.parent)
    return quote(os.fsencode(relative.replace(os.sep, "/")))
