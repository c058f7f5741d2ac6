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
    skipped = [
        f"skipped a table of {each.get('file')}: {each.get('reason')}"[:_STORED_LONGEST] for each in list_of(imported.get("skipped"), dict)
    ]
    unused = [
        (
            f"{each.get('option')} {each.get('given')} is not used for {each.get('program')} ({each.get('file')}): "
            f"the table has {each.get('found')}"
        )[:_STORED_LONGEST]
        for each in list_of(imported.get("unused_options"), dict)
    ]
    missing = "; ".join(_texts(imported.get("missing")))
    return [
        *_few(list(_tools(imported)), "statistics"), *([f"missing in the output: {missing}"] if missing else []),
        *_few(list(dict.fromkeys(unused)), "unused options"), *_few(doubts, "doubts"), *_few(skipped, "skipped tables"),
    ]  # fmt: skip


def _tools(imported: Mapping[str, Any]) -> Iterator[str]:
    """Yield "imported from nccl-tests 2.17.6: 32 rows of all_reduce_perf (a.log), …; a time is the mean over 20 iterations"."""
    found: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
    for each in list_of(imported.get("tables"), dict):
        tool = " ".join(str(each[name]) for name in ("tool", "version") if each.get(name))
        files = found.setdefault((tool[:_STORED_LONGEST], str(each.get("statistic"))[:_STORED_LONGEST]), {})
        programs = files.setdefault(str(each.get("file")), {})
        program, number = str(each.get("program")), each.get("rows")
        programs[program] = programs.get(program, 0) + (number if isinstance(number, int) else 0)
    for (tool, statistic), files in found.items():
        listed = []
        for name, programs in files.items():
            rows = _few([f"{plural(number, 'row')} of {program}" for program, number in programs.items()], "programs")
            listed.append(f"{', '.join(rows)[:_STORED_LONGEST]} ({name})"[: 2 * _STORED_LONGEST])
        yield f"imported from {tool}: {', '.join(_few(listed, 'files'))}; a time is {statistic}"


def _texts(value: Any) -> list[str]:
    return [text[:_STORED_LONGEST] for text in list_of(value, str)]


def _few(texts: list[str], what: str) -> list[str]:
    return texts if len(texts) <= _MOST else [*texts[:_MOST], f"and {len(texts) - _MOST} more {what}"]
