"""A baseline: a folder with a file for each allocation that was good. Plain text, a cell per line, so that it can live in git.

Nothing is locked: a file appears whole or not at all, under a name that no other has, and is never changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collbench.analysis.cells import is_time
from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, Allocation, Cell, Measured, is_moment
from collbench.gate.scheme import Figures, Group, Scheme, size_class
from collbench.results.jsonl import to_line

SCHEMA = 1
_ENDING = ".allocation.jsonl"
_LARGEST = 256 << 20  # bytes: 10,000 cells take some 3 MB
_BACKEND, _OPERATION, _SIZE = (COLUMNS.index(name) for name in ("backend", "operation", "size_bytes"))
_PLACES = len(COLUMNS) + 3
_PLAIN = {str, int, bool, type(None)}  # what a column of a cell can be


@dataclass(frozen=True)
class Baseline:
    """The allocations in a folder, in the order in which they began."""

    path: Path
    allocations: Sequence[Allocation]

    @property
    def cells(self) -> list[Cell]:
        """All cells that any allocation has, in order of first appearance."""
        return list(dict.fromkeys(cell for each in self.allocations for cell in each.cells))


def group_of_cell(cell: Cell) -> Group:
    """The group that a cell is judged with."""
    return Group(cell[_BACKEND], cell[_OPERATION], size_class(cell[_SIZE]))


def scheme_of(cells: Sequence[Cell]) -> Scheme:
    """How these cells are grouped."""
    return Scheme.of_cells(list(map(group_of_cell, cells)))


def times_of(allocations: Sequence[Allocation], cells: Sequence[Cell]) -> Figures:
    """[allocations × cells] ln of seconds; NaN where an allocation has no time."""
    found = np.full((len(allocations), len(cells)), np.nan)
    for number, allocation in enumerate(allocations):
        times = (measured.time if (measured := allocation.cells.get(cell)) else None for cell in cells)
        found[number] = [np.nan if time is None else time for time in times]
    return found


def load(path: Path) -> Baseline:
    """The baseline in a folder. Raises UsageError where there is none, or a file in it cannot be understood."""
    try:
        files = sorted(each for each in path.iterdir() if each.name.endswith(_ENDING))
    except OSError as error:
        raise UsageError(f"{path} is not a baseline ({error.strerror or error}): make one with `collbench baseline add`") from error
    if not files:
        raise UsageError(f"{path} holds no allocation: add runs to it with `collbench baseline add {path} RUN…`")
    names: dict[Cell, Cell] = {}
    return Baseline(path, sorted((_read(file, names) for file in files), key=lambda each: each.began_utc))


def add_all(path: Path, allocations: Sequence[Allocation]) -> list[Path]:
    """Writes all of them into the folder, which is made where it is missing, or none; returns their files.

    Raises UsageError where one has wrong data, did not come to its end or is in there already, and where nothing can be written.
    """
    for allocation in allocations:
        _refuse_a_bad_one(allocation)
    written: list[Path] = []
    try:
        written.extend(_add(path, allocation) for allocation in allocations)
    except UsageError:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    return written


def _refuse_a_bad_one(allocation: Allocation) -> None:
    """What is to be judged by has to be good."""
    wrong = sum(measured.wrong for measured in allocation.cells.values())
    if wrong:
        raise UsageError(f"allocation {allocation.name} has {wrong} wrong elements: what judges others has to be right; leave it out")
    if allocation.unfinished:
        raise UsageError(f"allocation {allocation.name} has {allocation.unfinished} launches that broke off: leave them out")


def _add(path: Path, allocation: Allocation) -> Path:
    target = path / f"{allocation.name}{_ENDING}"
    draft = path / f".{allocation.name}.{os.getpid()}.new"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with draft.open("x", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in _lines(allocation))
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, target)  # unlike a rename it never replaces what somebody else put there meanwhile
    except FileExistsError as error:
        raise UsageError(f"allocation {allocation.name} is in {path} already: an allocation counts once; drop it there first") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}): choose another folder") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return target


def drop(path: Path, name: str) -> None:
    """Takes an allocation out. Raises UsageError where it is not in there."""
    target = path / f"{Path(name).name}{_ENDING}"
    try:
        target.unlink()
    except OSError as error:
        held = ", ".join(each.name for each in load(path).allocations)
        raise UsageError(f"allocation {name} is not in {path} ({error.strerror or error}): choose from {held}") from error


def _lines(allocation: Allocation) -> Iterator[str]:
    head = {name: value for name, value in vars(allocation).items() if name not in ("cells", "shown")}
    yield to_line({"schema": SCHEMA, **head, "columns": [*COLUMNS, "medians_s", "wrong", "na"]})
    ordered = sorted(allocation.cells.items(), key=lambda each: tuple(map(_sortable, each[0])))
    yield from (
        json.dumps([*cell, list(measured.medians_s), measured.wrong, measured.na], separators=(",", ":")) for cell, measured in ordered
    )


def _sortable(value: Any) -> tuple[bool, str, float]:
    """Numbers by size, text by letters, None first: so that the same cells always stand on the same lines."""
    number = isinstance(value, int | float)
    return number, "" if number or value is None else str(value), float(value) if number else 0.0


def _read(file: Path, names: dict[Cell, Cell]) -> Allocation:
    """The allocation in a file. `names` are the cells of those read before: they are checked, and kept in memory, once."""
    try:
        if not file.is_file():
            raise ValueError("it is no file")
        if file.stat().st_size > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
        lines = file.read_text(encoding="utf-8").splitlines()
        head = _head(json.loads(lines[0]) if lines else None, file)
        cells = dict(_cell(line, number, head["launches"], names) for number, line in enumerate(lines[1:], start=2))
        if not cells:
            raise ValueError("it holds no cell")
        return Allocation(**head, cells=cells)
    except (OSError, ValueError, RecursionError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{file} cannot be read ({why}): take it from where it was whole, or drop it") from error


def _head(told: Any, file: Path) -> dict[str, Any]:
    if not isinstance(told, dict) or not isinstance(told.get("schema"), int):
        raise ValueError("its first line does not say what it is")
    if told["schema"] > SCHEMA:
        raise ValueError(f"it was written by a newer collbench (schema {told['schema']}, this one knows {SCHEMA}): update")
    fits: dict[str, Callable[[Any], bool]] = {
        "name": lambda value: isinstance(value, str) and f"{value}{_ENDING}" == file.name,
        "began_utc": lambda value: value == "" or is_moment(value),
        "launches": lambda value: _is_count(value) and value > 0,
        "unfinished": _is_count,
        "canary_s": lambda value: isinstance(value, list) and all(each is None or is_time(each) for each in value),
        "facts": lambda value: isinstance(value, dict) and all(map(_is_texts, value.values())),
        "columns": lambda value: value == [*COLUMNS, "medians_s", "wrong", "na"],
    }
    for name, fit in fits.items():
        if not fit(told.get(name)):
            raise ValueError(f"'{name}' in its first line is {str(told.get(name))[:40]!r}")
    return {**{name: told[name] for name in fits if name != "columns"}, "canary_s": tuple(told["canary_s"])}


def _cell(line: str, number: int, launches: int, names: dict[Cell, Cell]) -> tuple[Cell, Measured]:
    told = json.loads(line)
    if not isinstance(told, list) or len(told) != _PLACES:
        raise ValueError(f"line {number} is no cell")
    *columns, medians, wrong, na = told
    times = isinstance(medians, list) and len(medians) == launches and all(value is None or is_time(value) for value in medians)
    plain = _PLAIN.issuperset(map(type, columns))
    if not (times and plain and _is_count(wrong) and (na is None or isinstance(na, str))):
        raise ValueError(f"line {number} has figures that no allocation can have")
    cell = names.get(tuple(columns))
    if cell is None:
        cell = names.setdefault(tuple(columns), tuple(columns))
        if not (isinstance(cell[_BACKEND], str) and isinstance(cell[_OPERATION], str) and _is_count(cell[_SIZE])):
            raise ValueError(f"line {number} has figures that no allocation can have")
    return cell, Measured(tuple(medians), wrong, na)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
