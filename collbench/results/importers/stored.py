"""Renders what an imported run says of itself: where it is from, what is missing, what is doubtful, what was skipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MOST = 12  # of a kind; a log may have thousands of tables
_LONGEST = 400


def sentences(info: Mapping[str, Any]) -> list[str]:
    """Sentences of a run.json: one per tool and statistic, one on what is missing, then options, doubts and skipped tables.

    Nothing for a run that collbench measured.
    """
    imported = info.get("imported")
    if not isinstance(imported, dict):
        return []
    doubts = [f"doubtful: {text}" for text in _texts(imported.get("doubts"))]
    skipped = [_skipped(each) for each in _objects(imported.get("skipped"))]
    unused = list(dict.fromkeys(_unused(each) for each in _objects(imported.get("unused_options"))))
    missing = "; ".join(_texts(imported.get("missing")))
    return [
        *_few(list(_tools(imported)), "statistics"), *([f"not in it: {missing}"] if missing else []), *_few(unused, "unused options"),
        *_few(doubts, "doubts"), *_few(skipped, "skipped tables"),
    ]  # fmt: skip


def _tools(imported: Mapping[str, Any]) -> Iterator[str]:
    """ "imported from nccl-tests 2.17.6: 32 rows of all_reduce_perf (a.log), …; a time is the mean over 20 iterations"."""
    found: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
    for each in _objects(imported.get("tables")):
        tool = " ".join(str(each[name]) for name in ("tool", "version") if each.get(name))
        files = found.setdefault((tool[:_LONGEST], str(each.get("statistic"))[:_LONGEST]), {})
        programs = files.setdefault(str(each.get("file")), {})
        rows = each.get("rows")
        programs[str(each.get("program"))] = programs.get(str(each.get("program")), 0) + (rows if isinstance(rows, int) else 0)
    for (tool, statistic), files in found.items():
        listed = [_file(name, programs) for name, programs in files.items()]
        yield f"imported from {tool}: {', '.join(_few(listed, 'files'))}; a time is {statistic}"


def _file(name: str, programs: Mapping[str, int]) -> str:
    rows = [f"{number} row{'' if number == 1 else 's'} of {program}" for program, number in programs.items()]
    return f"{', '.join(_few(rows, 'programs'))[:_LONGEST]} ({name})"[: 2 * _LONGEST]


def _skipped(each: Mapping[str, Any]) -> str:
    return f"skipped a table of {each.get('file')}: {each.get('reason')}"[:_LONGEST]


def _unused(each: Mapping[str, Any]) -> str:
    return (
        f"{each.get('option')} {each.get('given')} is not used for {each.get('program')} ({each.get('file')}): "
        f"that table is of {each.get('found')}"
    )[:_LONGEST]


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [text[:_LONGEST] for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _few(texts: list[str], what: str) -> list[str]:
    return texts if len(texts) <= _MOST else [*texts[:_MOST], f"and {len(texts) - _MOST} more {what}"]
