"""In which order the places of a matrix are drawn, and which of them share a row of the picture where there are many."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.analysis.pairs import hosts_of

MOST_ROWS = 64  # of a picture in which a cell can still be seen, and pointed at
_LEAST_GROUPS = 8  # fewer show less than rows of neighbours do
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")


@dataclass(frozen=True)
class Groups:
    """order   places in the order in which they are drawn
    starts  where in `order` each group begins
    labels  what each group is called
    by      what a group is: "place", "host", "name" (names that differ in their last number only) or "neighbours"
    """

    order: tuple[int, ...]
    starts: tuple[int, ...]
    labels: tuple[str, ...]
    by: str

    @property
    def rows(self) -> dict[int, int]:
        """The row of the picture by place."""
        ends = (*self.starts[1:], len(self.order))
        spans = enumerate(zip(self.starts, ends, strict=True))
        return {place: row for row, (start, end) in spans for place in self.order[start:end]}

    def slowest(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The highest class of each pair of groups, of classes whose rows and columns are in `order`."""
        found: NDArray[np.int64] = np.maximum.reduceat(np.maximum.reduceat(classes, self.starts, axis=0), self.starts, axis=1)
        return found


def grouped(places: Sequence[str], most: int = MOST_ROWS) -> Groups:
    """At most `most` groups: each place alone, or those of one host, or of hosts whose names differ in the last number, or neighbours."""
    if len(places) <= most:
        return Groups(tuple(range(len(places))), tuple(range(len(places))), tuple(places), "place")
    hosts = hosts_of(places)
    alike = [_alike(host) for host in hosts]
    for by, names in (("host", hosts), ("name", alike)):
        if _LEAST_GROUPS <= len(set(names)) <= most:
            return _by_name(names, by)
    return _neighbours(places, _by_name(alike, "name").order, most)


def _alike(host: str) -> str:
    """The host's name with a star for its last number; of a name with a domain the first part counts, of an address all of it."""
    head, dot, rest = host.partition(".")
    return _LAST_NUMBER.sub("*", host) if head.isdigit() else f"{_LAST_NUMBER.sub('*', head)}{dot}{rest}"


def _by_name(names: Sequence[str], by: str) -> Groups:
    """Groups in the order in which their first places come."""
    labels = tuple(dict.fromkeys(names))
    number = {name: at for at, name in enumerate(labels)}
    group = np.array([number[name] for name in names])
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(labels)))
    return Groups(tuple(order.tolist()), tuple(starts.tolist()), labels, by)


def _neighbours(places: Sequence[str], order: Sequence[int], most: int) -> Groups:
    size = -(-len(order) // most)
    starts = tuple(range(0, len(order), size))
    return Groups(tuple(order), starts, tuple(f"{places[order[start]]} …" for start in starts), "neighbours")
