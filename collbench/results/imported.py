"""Notes on an imported run: its sources, missing values, doubts, and skipped lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from collbench.units import plural
from collbench.untrusted import list_of

_MOST = 12  # notes of a kind, since a log may have thousands of tables
_STORED_LONGEST = 400


def import_notes(info: Mapping[str, Any]) -> list[str]:
    """Return the notes in a run.json: one per tool and statistic, one on what is missing, then options, doubts and skipped tables.

    There are none for a run that collbench measured.
    """
    imported = info.get("imported")
    if not isinstance(imported, dict):
        return []
    doubts = [f"doubtful: {text}" for text in _texts(imported.get("doubts"))]
    tables = list_of(imported.get("skipped"), dict)
    skipped = [f"skipped a table of {table.get('file')}: {table.get('reason')}"[:_STORED_LONGEST] for table in tables]
    unused = [
        (
            f"{option.get('option')} {option.get('given')} is not used for {option.get('program')} ({option.get('file')}): "
            f"the table has {option.get('found')}"
        )[:_STORED_LONGEST]
        for option in list_of(imported.get("unused_options"), dict)
    ]
    notes = _few(list(_tools(imported)), "statistics")
    missing = "; ".join(_texts(imported.get("missing")))
    if missing:
        notes.append(f"missing in the output: {missing}")
    unused = list(dict.fromkeys(unused))
    return [*notes, *_few(unused, "unused options"), *_few(doubts, "doubts"), *_few(skipped, "skipped tables")]


def _tools(imported: Mapping[str, Any]) -> Iterator[str]:
    """Yield "imported from nccl-tests 2.17.6: 32 rows of all_reduce_perf (a.log), …; a time is the mean over 20 iterations"."""
    files_by_tool: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
    for table in list_of(imported.get("tables"), dict):
        tool = " ".join(str(table[name]) for name in ("tool", "version") if table.get(name))
        files = files_by_tool.setdefault((tool[:_STORED_LONGEST], str(table.get("statistic"))[:_STORED_LONGEST]), {})
        programs = files.setdefault(str(table.get("file")), {})
        program = str(table.get("program"))
        number = table.get("rows")
        programs[program] = programs.get(program, 0) + (number if isinstance(number, int) else 0)
    for (tool, statistic), files in files_by_tool.items():
        listed = []
        for name, programs in files.items():
            rows = _few([f"{plural(number, 'row')} of {program}" for program, number in programs.items()], "programs")
            listed.append(f"{', '.join(rows)[:_STORED_LONGEST]} ({name})"[: 2 * _STORED_LONGEST])
        yield f"imported from {tool}: {', '.join(_few(listed, 'files'))}; a time is {statistic}"


def _texts(value: Any) -> list[str]:
    return [text[:_STORED_LONGEST] for text in list_of(value, str)]


def _few(texts: list[str], noun: str) -> list[str]:
    return texts if len(texts) <= _MOST else [*texts[:_MOST], f"and {len(texts) - _MOST} more {noun}"]
