"""How cells belong together: classes by size, and groups that are judged as one besides their cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SMALL, _MID = 16 << 10, 1 << 20  # bytes: up to here a class reaches
CLASSES = ("small", "mid", "large")
Numbers = NDArray[np.int64]
Figures = NDArray[np.float64]


class Group(NamedTuple):
    """Cells whose scatter is alike and which one cause would slow together: a backend's operation in one class of sizes."""

    backend: str
    operation: str
    size_class: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.backend}, {self.size_class} messages"


def size_class(size_bytes: int) -> str:
    """ "small" (up to 16 KiB, and what moves nothing), "mid" (up to 1 MiB) or "large"."""
    return CLASSES[0] if size_bytes <= _SMALL else CLASSES[1] if size_bytes <= _MID else CLASSES[2]


@dataclass(frozen=True, eq=False)
class Scheme:
    """groups  the groups, in order of first appearance
    of         [cells] the number of each cell's group
    """

    groups: tuple[Group, ...]
    of: Numbers

    @classmethod
    def of_cells(cls, groups: Sequence[Group]) -> Scheme:
        """From each cell's group."""
        names = tuple(dict.fromkeys(groups))
        number = {name: place for place, name in enumerate(names)}
        return cls(names, np.array([number[group] for group in groups], dtype=np.int64))

    @cached_property
    def members(self) -> list[Numbers]:
        """The numbers of the cells of each group."""
        ordered = np.argsort(self.of, kind="stable")
        ends = np.cumsum(np.bincount(self.of, minlength=len(self.groups)))[:-1]
        return [np.asarray(part, dtype=np.int64) for part in np.split(ordered, ends)]

    @cached_property
    def classes(self) -> Numbers:
        """[groups] the number of each group's class of sizes."""
        return np.array([CLASSES.index(group.size_class) for group in self.groups], dtype=np.int64)

    def medians(self, values: Figures) -> Figures:
        """[…, cells] -> […, groups]: the median over each group's known cells; NaN where none is known."""
        found = np.full((*values.shape[:-1], len(self.groups)), np.nan)
        for number, cells in enumerate(self.members):
            found[..., number] = known_median(values[..., cells])
        return found

    def means(self, values: Figures) -> Figures:
        """[cells] -> [groups]: the mean over each group's known cells; NaN where none is known."""
        known = np.isfinite(values)
        sums = np.bincount(self.of, np.where(known, values, 0.0), len(self.groups))
        counts = np.bincount(self.of, known, len(self.groups))
        with np.errstate(invalid="ignore"):
            return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def known_median(values: Figures) -> Figures:
    """The median over the last axis of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    if known.all():
        return np.median(values, axis=-1) if values.shape[-1] else np.full(values.shape[:-1], np.nan)
    ordered = np.sort(np.where(known, values, np.inf), axis=-1)
    counts = known.sum(axis=-1)
    low, high = ((counts + shift) // 2 - 1 for shift in (1, 2))
    picked = [np.take_along_axis(ordered, np.maximum(each, 0)[..., None], axis=-1)[..., 0] for each in (low, high)]
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, (picked[0] + picked[1]) / 2, np.nan)
