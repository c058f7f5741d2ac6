"""An allocation as a file of a baseline: a line on the whole, then a cell per line. Read again it may have been edited by hand."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from collbench.analysis.ceilings import LinkCeiling
from collbench.analysis.differences import KINDS
from collbench.analysis.launches import LONGEST_S, SHORTEST_S, is_time, known
from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, NAME, Allocation, Cell, Measured, moment
from collbench.results.store import to_line
from collbench.untrusted import open_file, read_file, values_in

SCHEMA = 1
ENDING = ".allocation.jsonl"
_NOT_KEPT = ("cells", "shown", "slowed")
_LARGEST, _LARGEST_HEAD = 128 << 20, 16 << 20  # bytes: 10,000 cells take some 3 MB
_MOST_LINES = 1 << 20
_MOST_VALUES = 1 << 23  # of 10,000 cells there are some 300,000; an empty list takes two characters, and 64 bytes of memory
_PLACES = len(COLUMNS) + 3
_COUNTS = {"root", "window", "ranks", "nodes", "streams", "size_bytes"}
_ALWAYS = {"operation", "backend", "device", "dtype", "mode", "in_place", "buffers", "group", "ranks", "size_bytes"}
_NUMBERS = {float, int, type(None)}
_HALF = re.compile(r"\\u[dD]")  # half of a character that UTF-16 makes of two: no output can hold one alone
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def write(path: Path, allocation: Allocation) -> Path:
    """Its file in the folder, which is made where it is missing. Raises UsageError where there is one of that name, or none can be."""
    target = path / f"{allocation.name}{ENDING}"
    draft = path / f".{allocation.name}.{os.getpid()}.new"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with draft.open("x", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in _lines(allocation))
            file.flush()
            os.fsync(file.fileno())
        _put(draft, target)
    except FileExistsError as error:
        raise UsageError(f"allocation {allocation.name} is in {path} already: an allocation counts once; drop it there first") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}): choose another folder") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return target


def _put(draft: Path, target: Path) -> None:
    """Unlike a rename it never replaces what somebody else put there meanwhile."""
    try:
        os.link(draft, target)
    except FileExistsError:
        if draft.stat().st_nlink < 2 or not draft.samefile(target):  # else only the server's answer got lost, and was asked for again
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy(draft, target)


def _copy(draft: Path, target: Path) -> None:
    """Where a filesystem has no links: who reads meanwhile may find a part of it, and is told so."""
    with target.open("xb") as file:
        try:
            file.write(draft.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            target.unlink(missing_ok=True)
            raise


def _lines(allocation: Allocation) -> Iterator[str]:
    head = {name: value for name, value in vars(allocation).items() if name not in _NOT_KEPT}
    yield to_line({"schema": SCHEMA, **head, "columns": [*COLUMNS, "medians_s", "wrong", "na"]})
    ordered = sorted(allocation.cells.items(), key=lambda each: tuple(map(_sortable, each[0])))
    yield from (
        json.dumps([*cell, list(measured.medians_s), measured.wrong, measured.na], separators=(",", ":")) for cell, measured in ordered
    )


def _sortable(value: Any) -> tuple[bool, str, float]:
    """Numbers by size, text by letters, None first: so that the same cells always stand on the same lines."""
    number = isinstance(value, int | float)
    return number, "" if number or value is None else str(value), float(value) if number else 0.0


def read(file: Path, names: dict[Cell, Cell]) -> Allocation:
    """The allocation in a file. `names` are the cells of those read before: they are checked, and kept in memory, once.

    Raises UsageError where the file cannot be understood.
    """
    try:
        data = read_file(file, _LARGEST)
        if values_in(data) > _MOST_VALUES or data.count(b"\n") > _MOST_LINES:
            raise ValueError(f"it holds more than {_MOST_LINES:,} cells, or {_MOST_VALUES:,} values")
        lines = data.decode("utf-8").removesuffix("\n").split("\n")
        head = _head(_parsed(lines[0]) if data else None, file)
        return Allocation(**head, cells=_cells(_all_parsed(lines[1:]), head["launches"], names))
    except (OSError, ValueError, RecursionError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{file} cannot be read ({why}): take it from where it was whole, or drop it") from error


def head_of(file: Path) -> dict[str, Any]:
    """What its first line says; nothing where that cannot be understood, as `read` would tell."""
    try:
        with open_file(file) as lines:
            return _head(_parsed(lines.readline(_LARGEST_HEAD).decode("utf-8")), file)
    except (OSError, ValueError, RecursionError):
        return {}


def _parsed(line: str) -> Any:
    told = _DECODER.decode(line)
    if _HALF.search(line):
        json.dumps(told, ensure_ascii=False).encode()  # raises ValueError
    return told


def _all_parsed(lines: Sequence[str]) -> list[Any]:
    """What each line says; of a sound file in one go, which takes half the time."""
    whole = ",".join(lines)
    try:
        told = _parsed(f"[{whole}]")
    except (ValueError, RecursionError):
        told = []
    return told if len(told) == len(lines) else [_parsed(line) for line in lines]


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _head(told: Any, file: Path) -> dict[str, Any]:
    if not isinstance(told, dict) or not isinstance(told.get("schema"), int):
        raise ValueError("its first line does not say what it is")
    if told["schema"] > SCHEMA:
        raise ValueError(f"it was written by a newer collbench (schema {told['schema']}, this one knows {SCHEMA}): update")
    told = {"imported": False, "jobs": [], "ceilings": [], **told}
    for name, fit in _FITS.items():
        if not fit(told.get(name)):
            raise ValueError(f"'{name}' in its first line is {str(told.get(name))[:40]!r}")
    if f"{told['name']}{ENDING}" != file.name:
        raise ValueError(f"'name' in its first line is {told['name'][:40]!r}")
    if len(told["canary_s"]) != told["launches"]:
        raise ValueError(f"it has {told['launches']} launches and {len(told['canary_s'])} canaries")
    return {**{name: told[name] for name in _FITS if name != "columns"}, "canary_s": tuple(told["canary_s"]), "jobs": tuple(told["jobs"]),
            "ceilings": tuple(LinkCeiling(*each) for each in told["ceilings"])}  # fmt: skip


def _cells(lines: Sequence[Any], launches: int, names: dict[Cell, Cell]) -> dict[Cell, Measured]:
    cells = dict(_cell(told, number, launches, names) for number, told in enumerate(lines, start=2))
    if not cells:
        raise ValueError("it holds no cell")
    if len(cells) < len(lines):
        raise ValueError(f"{len(lines) - len(cells)} of its lines name a cell that another one names, too")
    with suppress(OverflowError):
        times = np.array([measured.medians_s for measured in cells.values()], dtype=np.float64)
        wrong = ~(np.isnan(times) | (times >= SHORTEST_S) & (times <= LONGEST_S)).all(axis=1)
        if not wrong.any():
            return cells
        raise ValueError(f"line {int(np.argmax(wrong)) + 2} has figures that no allocation can have")
    raise ValueError("it has figures that no allocation can have")


def _cell(told: Any, number: int, launches: int, names: dict[Cell, Cell]) -> tuple[Cell, Measured]:
    """A line's cell; how long it took is looked at later, of all cells together."""
    if not isinstance(told, list) or len(told) != _PLACES:
        raise ValueError(f"line {number} is no cell")
    medians, wrong, na = told[-3:]
    times = isinstance(medians, list) and len(medians) == launches and _NUMBERS.issuperset(map(type, medians))
    if not (times and _is_count(wrong) and (na is None or isinstance(na, str))):
        raise ValueError(f"line {number} has figures that no allocation can have")
    columns = tuple(told[:-3])
    try:
        cell = names.get(columns)
    except TypeError:  # a list, an object
        raise ValueError(f"line {number} has figures that no allocation can have") from None
    if cell is None:
        if not all(map(_is_column, COLUMNS, columns)):
            raise ValueError(f"line {number} has figures that no allocation can have")
        cell = names.setdefault(columns, columns)
    return cell, Measured(tuple(medians), wrong, na)


def _is_column(name: str, value: Any) -> bool:
    """Whether it can stand in this column."""
    if value is None:
        return name not in _ALWAYS
    if name == "in_place":
        return isinstance(value, bool)
    return _is_count(value) if name in _COUNTS else isinstance(value, str) and value.isprintable()


def _is_ceiling(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != len(LinkCeiling._fields):
        return False
    each = LinkCeiling(*value)
    texts = (each.operation, each.backend, each.group, each.model, each.limited_by, each.traffic or "")
    counts = (each.ranks, each.nodes or 0)
    return all(isinstance(text, str) and text.isprintable() for text in texts) and all(map(_is_count, counts)) and known(each.bytes_per_s)


def _is_facts(value: Any) -> bool:
    return isinstance(value, dict) and all(kind in KINDS and _is_texts(inner) for kind, inner in value.items())


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


_DECODER = json.JSONDecoder(parse_constant=_no_number)
_FITS: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str) and bool(NAME.fullmatch(value)),
    "began_utc": lambda value: value == "" or moment(value) is not None,
    "launches": lambda value: _is_count(value) and value > 0,
    "unfinished": _is_count,
    "canary_s": lambda value: isinstance(value, list) and all(each is None or is_time(each) for each in value),
    "facts": _is_facts,
    "columns": lambda value: value == [*COLUMNS, "medians_s", "wrong", "na"],
    "imported": lambda value: isinstance(value, bool),
    "ceilings": lambda value: isinstance(value, list) and all(map(_is_ceiling, value)),
    "jobs": lambda value: isinstance(value, list) and all(isinstance(each, str) and each.isprintable() for each in value),
}
