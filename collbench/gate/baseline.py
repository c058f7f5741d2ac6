"""A baseline: a folder with a file for each allocation that was good. Plain text, a cell per line, so that it can live in git.

Nothing is locked: a file appears whole or not at all, under a name that no other has, and is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, Allocation, Cell, Measured, in_order, moment
from collbench.gate.kept import ENDING, head_of, read, write
from collbench.gate.scheme import Figures, Group, Scheme, known_median, size_class
from collbench.untrusted import uncollected

_BACKEND, _OPERATION, _SIZE = (COLUMNS.index(name) for name in ("backend", "operation", "size_bytes"))


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
        found[number] = np.log(known_median(seconds_of(allocation, cells)))
    return found


def seconds_of(allocation: Allocation, cells: Sequence[Cell]) -> Figures:
    """[cells × launches] the medians of each launch; NaN where it has none."""
    lacking = Measured((None,) * allocation.launches)
    return np.array([allocation.cells.get(cell, lacking).medians_s for cell in cells], dtype=np.float64).reshape(len(cells), -1)


def is_baseline(path: Path) -> bool:
    """Whether it is a folder with an allocation of a baseline in it, be that one good or not."""
    try:
        return any(each.name.endswith(ENDING) for each in path.iterdir())
    except OSError:
        return False


def load(path: Path) -> Baseline:
    """The baseline in a folder; allocations that do not say when they began come first.

    Raises UsageError where there is none, a file in it cannot be understood, two are one allocation, or only some were imported.
    """
    try:
        files = sorted(each for each in path.iterdir() if each.name.endswith(ENDING))
    except OSError as error:
        raise UsageError(f"{path} is not a baseline ({error.strerror or error}): make one with `collbench baseline add`") from error
    if not files:
        raise UsageError(f"{path} holds no allocation: add runs to it with `collbench baseline add {path} RUN…`")
    allocations = _read(files)
    _refuse_twins(path, allocations)
    _refuse_a_mixture(path, [(each.name, each.imported) for each in allocations])
    unknown = [each for each in allocations if each.began is None]
    return Baseline(path, [*unknown, *in_order([each for each in allocations if each.began is not None])])


def _read(files: Sequence[Path]) -> list[Allocation]:
    """All of them; what has been read is checked, and kept in memory, once."""
    names: dict[Cell, Cell] = {}
    with uncollected():
        return [read(file, names) for file in files]


def add_all(path: Path, allocations: Sequence[Allocation]) -> list[Path]:
    """Writes all of them into the folder, which is made where it is missing, or none; returns their files.

    Raises UsageError where one has wrong data, did not come to its end, was slowed on purpose or is in there already, be it under
    another name; where two are of one job; where some were imported and others measured here; and where nothing can be written.
    """
    for allocation in allocations:
        _refuse_a_bad_one(allocation)
    held = {file: head_of(file) for file in sorted(path.glob(f"*{ENDING}"))}
    alike = [read(file, {}) for file, head in held.items() if any(_may_be(head, each) for each in allocations)]
    _refuse_twins(path, [*alike, *allocations])
    _refuse_one_job(
        path, [*((head["name"], head["jobs"]) for head in held.values() if head), *((each.name, each.jobs) for each in allocations)]
    )
    origins = [(head["name"], head["imported"]) for head in held.values() if head]
    _refuse_a_mixture(path, [*origins, *((each.name, each.imported) for each in allocations)])
    written: list[Path] = []
    try:
        written.extend(write(path, allocation) for allocation in allocations)
    except UsageError:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    return written


def same(one: Allocation, other: Allocation) -> bool:
    """Whether they are one, be it under another name."""
    return one.name == other.name or (_is_exact(one.began_utc) and one.began == other.began and one.cells == other.cells)


def of_one_job(held: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, str, str] | None:
    """Two allocations that are of one job, and the job; None where each has its own. `held` are names, and the jobs of each."""
    owner: dict[str, str] = {}
    for name, jobs in held:
        for job in jobs:
            if owner.setdefault(job, name) != name:
                return owner[job], name, job
    return None


def fresh(candidate: Sequence[Allocation], held: Sequence[Allocation] = ()) -> list[bool]:
    """Of each whether no earlier one, and none of those held, is of a job of its own."""
    used = {job for each in held for job in each.jobs}
    found = []
    for each in candidate:
        found.append(not used.intersection(each.jobs))
        used.update(each.jobs)
    return found


def _is_exact(moment_utc: str) -> bool:
    """Whether it is more than a day, on which many may begin."""
    return len(moment_utc) > len("2026-11-21")


def _may_be(head: Mapping[str, Any], allocation: Allocation) -> bool:
    """Whether the allocation with this first line may be this one, under another name."""
    unlike = not head or head["name"] == allocation.name or not _is_exact(allocation.began_utc)
    return not unlike and moment(head["began_utc"]) == allocation.began


def _refuse_twins(path: Path, allocations: Sequence[Allocation]) -> None:
    by_start: dict[object, list[Allocation]] = {}
    for each in allocations:
        earlier = by_start.setdefault(each.began, [])
        twin = next((one for one in earlier if same(one, each)), None)
        if twin is not None:
            raise UsageError(
                f"allocations {twin.name} and {each.name} are one and the same ({path}): an allocation counts once; leave one out"
            )
        earlier.append(each)


def _refuse_one_job(path: Path, held: Sequence[tuple[str, Sequence[str]]]) -> None:
    """What one job measures scatters less than what several do, and limits learned from it would be too narrow."""
    found = of_one_job(held)
    if found is not None:
        one, other, job = found
        raise UsageError(f"{path}: {one} and {other} are both of {job}, so they are one allocation: measure each in a job of its own")


def _refuse_a_mixture(path: Path, origins: Sequence[tuple[str, bool]]) -> None:
    """Another tool's statistic and our median are no scatter of one thing; `origins` are names, and whether they were imported."""
    imported, own = ([name for name, here in origins if here is wanted] for wanted in (True, False))
    if imported and own:
        raise UsageError(f"{path}: {imported[0]} was imported and {own[0]} measured here: keep them in two baselines")


def _refuse_a_bad_one(allocation: Allocation) -> None:
    """What is to be judged by has to be good."""
    wrong = sum(measured.wrong for measured in allocation.cells.values())
    if wrong:
        raise UsageError(f"allocation {allocation.name} has {wrong} wrong elements: what judges others has to be right; leave it out")
    if allocation.unfinished:
        raise UsageError(f"allocation {allocation.name} has {allocation.unfinished} launches that broke off: leave them out")
    if allocation.slowed:
        raise UsageError(
            f"allocation {allocation.name} was slowed on purpose ({allocation.slowed}): it says nothing of the cluster; leave it out"
        )


def drop(path: Path, name: str) -> None:
    """Takes an allocation out. Raises UsageError where it is not in there."""
    target = path / f"{Path(name).name}{ENDING}"
    try:
        target.unlink()
    except OSError as error:
        held = ", ".join(each.name for each in load(path).allocations)
        raise UsageError(f"allocation {name} is not in {path} ({error.strerror or error}): choose from {held}") from error
