"""What an imported run says of itself, in sentences: where it is from, what was missing, what is doubtful."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MOST = 12  # of a kind; a log may have thousands of tables
_LONGEST = 400


def sentences(info: Mapping[str, Any]) -> list[str]:
    """Of a run.json: one per tool and statistic, one on what is not there, and the doubts; nothing of a run that was measured."""
    imported = info.get("imported")
    if not isinstance(imported, dict):
        return []
    doubts = [f"doubtful: {text}" for text in _texts(imported.get("doubts"))]
    missing = "; ".join(_texts(imported.get("missing")))
    return [*_few(list(_tools(imported)), "statistics"), *([f"not in it: {missing}"] if missing else []), *_few(doubts, "doubts")]


def _tools(imported: Mapping[str, Any]) -> Iterator[str]:
    """ "imported from nccl-tests 2.17.6: 32 rows of all_reduce_perf (a.log), …; a time is the mean over 20 iterations"."""
    tables = imported.get("tables")
    found: dict[tuple[str, str], list[str]] = {}
    for each in tables if isinstance(tables, list) else ():
        if isinstance(each, dict):
            tool = " ".join(str(each[name]) for name in ("tool", "version") if each.get(name))
            found.setdefault((tool[:_LONGEST], str(each.get("statistic"))[:_LONGEST]), []).append(_table(each))
    for (tool, statistic), these in found.items():
        yield f"imported from {tool}: {', '.join(_few(these, 'tables'))}; a time is {statistic}"


def _table(told: Mapping[str, Any]) -> str:
    number = told.get("rows")
    rows = f"{number} row{'' if number == 1 else 's'} of " if isinstance(number, int) else ""
    return f"{rows}{told.get('program')} ({told.get('file')})"[:_LONGEST]


def _texts(value: Any) -> list[str]:
    return [text[:_LONGEST] for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _few(texts: list[str], what: str) -> list[str]:
    return texts if len(texts) <= _MOST else [*texts[:_MOST], f"and {len(texts) - _MOST} more {what}"]
