"""Allocations as series: of all cells together, of each group and of each cell what it took, and how much of that is chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collbench.gate.allocation import COLUMNS, Allocation, Cell
from collbench.gate.baseline import group_of_cell, scheme_of, seconds_of, times_of
from collbench.gate.names import name_of
from collbench.gate.rule import LEAST_CELLS, floors_of, pooled
from collbench.gate.scheme import Figures, Group, Scheme, known_median
from collbench.gate.steps import scatter, typical

KINDS = WHOLE, GROUP, CELL = "whole", "group", "cell"
_ROUNDS = 4  # of a median polish; more move nothing that a floor would not hide


@dataclass(frozen=True)
class About:
    """What a series is of.

    kind   WHOLE, GROUP or CELL
    name   in words: "all cells", "allreduce on mpi, large messages", "allreduce 64 MiB mpi"
    group  that it is, or that the cell is of; None for the whole. cell: its columns; None for the others
    """

    kind: str
    name: str
    group: Group | None = None
    cell: Cell | None = None


@dataclass(frozen=True, eq=False)
class Sheet:
    """abouts   [series] the whole and groups, where they have three cells or more, then all cells
    values   [allocations × series] ln of time: of a cell in seconds, of others by how much its cells are slower than usual; NaN: unknown
    floors   [series] in ln of time: less is nobody's business
    """

    abouts: tuple[About, ...]
    values: Figures
    floors: Figures
    _launches: Figures

    def variance(self, allocations: slice | Sequence[int] = slice(None)) -> Figures:
        """[series] between these allocations, steps apart; NaN where nothing is known of it."""
        values, parts = self.values[allocations], {kind: self._of_kind(kind) for kind in KINDS}
        found = scatter(values)
        found[parts[GROUP]] = drawn(found[parts[GROUP]], values[:, parts[GROUP]], self._scheme(GROUP))
        own = found[parts[CELL]]
        found[parts[CELL]] = drawn(
            np.where(np.isfinite(own), np.fmax(own, typical(self._launches[allocations])), np.nan),
            values[:, parts[CELL]], self._scheme(CELL),
        )  # fmt: skip
        return found

    def _of_kind(self, kind: str) -> list[int]:
        return [number for number, about in enumerate(self.abouts) if about.kind == kind]

    def _scheme(self, kind: str) -> Scheme:
        """Who lends whom a variance: cells those of their group, groups those of their class of sizes."""
        groups = [about.group for about in self.abouts if about.kind == kind and about.group is not None]
        return Scheme.of_cells(groups if kind == CELL else [Group("", "", group.size_class) for group in groups])


def sheet_of(allocations: Sequence[Allocation]) -> Sheet:
    """All series of these allocations."""
    cells = list(dict.fromkeys(cell for each in allocations for cell in each.cells))
    scheme, times = scheme_of(cells), times_of(allocations, cells)
    floors = floors_of(scheme)
    judged = [number for number, members in enumerate(scheme.members) if len(members) >= LEAST_CELLS]
    whole = [0] if len(cells) >= LEAST_CELLS else []
    abouts = (
        *(About(WHOLE, "all cells") for _ in whole),
        *(About(GROUP, str(scheme.groups[number]), scheme.groups[number]) for number in judged),
        *(About(CELL, name, group_of_cell(cell), cell) for cell, name in zip(cells, told_apart(cells), strict=True)),
    )
    columns = [*(common(times) for _ in whole), *(common(times[:, scheme.members[number]]) for number in judged)]
    own_floors = np.concatenate([[floors.whole for _ in whole], floors.groups[judged], floors.cells])
    return Sheet(abouts, np.column_stack([*columns, times]), own_floors, _of_launches(allocations, cells))


def told_apart(cells: Sequence[Cell]) -> list[str]:
    """Each cell as `name_of` calls it, and in brackets what tells it from others of that name: "allreduce 8 B mpi (mode batched)"."""
    names = [name_of(cell) for cell in cells]
    alike: dict[str, list[Cell]] = {}
    for name, cell in zip(names, cells, strict=True):
        alike.setdefault(name, []).append(cell)
    places = {name: [place for place, each in enumerate(zip(*alike[name], strict=True)) if len(set(each)) > 1] for name in alike}
    told = [", ".join(f"{COLUMNS[place]} {cell[place]}" for place in places[name]) for name, cell in zip(names, cells, strict=True)]
    return [f"{name} ({more})" if more else name for name, more in zip(names, told, strict=True)]


def common(times: Figures) -> Figures:
    """[allocations × cells] -> [allocations] by how much, in ln of time, all cells are slower than they usually are; NaN: too few.

    A median polish (Tukey 1977): which cells an allocation has does not move it.
    """
    found = np.zeros(len(times))
    for _ in range(_ROUNDS):
        usual = known_median((times - found[:, None]).T)
        found = np.nan_to_num(known_median(times - usual))
    return np.where(np.isfinite(times).sum(axis=1) >= LEAST_CELLS, found, np.nan)


def drawn(own: Figures, values: Figures, scheme: Scheme) -> Figures:
    """[series] variances, drawn towards those of their group as the rule does it, but never less than what each shows by itself.

    A cell with two states shows more than its group, and three launches in the slower one by chance look like a step.
    """
    counts = np.where(np.isfinite(own), np.isfinite(values).sum(axis=0), 1)
    return np.fmax(own, pooled(own, counts, scheme))


def median_variance(launches: Figures) -> Figures:
    """[… × launches] ln of time -> […] the variance of their median; NaN of fewer than two."""
    known = np.isfinite(launches)
    counts = known.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, launches, 0.0).sum(axis=-1) / counts
        squares = np.where(known, launches - mean[..., None], 0.0) ** 2
        found: Figures = np.where(counts > 1, np.pi / 2 * squares.sum(axis=-1) / (counts - 1) / counts, np.nan)
    return found


def _of_launches(allocations: Sequence[Allocation], cells: Sequence[Cell]) -> Figures:
    """[allocations × cells] the variance of an allocation's median, as its launches let expect."""
    return np.array([median_variance(np.log(seconds_of(each, cells))) for each in allocations])
