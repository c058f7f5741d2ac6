"""Runs that were read from another tool's output: from which files, and what those did not tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from collbench.analysis.launches import known
from collbench.report.columns import NOTHING
from collbench.report.headlines import short
from collbench.report.html.chart import Table
from collbench.results.importers.store import sentences
from collbench.results.reader import Run
from collbench.units import format_bytes

_MOST = 40


def imported_texts(runs: Sequence[Run]) -> Iterator[str]:
    """What imported runs say of themselves: the tables, what is not in them, what is doubtful; each sentence once."""
    told = dict.fromkeys(short(f"{sentence}.", 600) for run in runs for sentence in sentences(run.info))
    yield from list(told)[:_MOST]
    if len(told) > _MOST:
        yield f"And {len(told) - _MOST} more sentences of imported runs: each run.json has its own."


def imported_files(runs: Sequence[Run]) -> list[tuple[str, Table]]:
    """The files with their checksums, as a table; none where every run was measured."""
    rows = list(dict.fromkeys(_file(each) for run in runs for each in _files(run)))
    more = f" (the first {_MOST} of {len(rows)})" if len(rows) > _MOST else ""
    head = ("file", "format", "size", "SHA-256")
    return [(f"Files that were imported{more}", Table(head, rows[:_MOST], frozenset({2})))] if rows else []


def _files(run: Run) -> Iterator[Mapping[str, Any]]:
    imported = run.info.get("imported")
    listed = imported.get("files") if isinstance(imported, dict) else None
    yield from (each for each in (listed if isinstance(listed, list) else []) if isinstance(each, dict))


def _file(told: Mapping[str, Any]) -> tuple[str, str, str, str]:
    name, form, digest = (short(str(value), 120) if (value := told.get(key)) else NOTHING for key in ("name", "format", "sha256"))
    size = told.get("size_bytes")
    return name, form, format_bytes(size) if isinstance(size, int) and known(size) else NOTHING, digest
