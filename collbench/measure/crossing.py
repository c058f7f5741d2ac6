"""What must cross between places (hosts, or single ranks), whatever the algorithm: a lower bound that no library can pass.

It follows from what an operation says must arrive. A part that ranks of a place need, and that no rank there can make from what
lies there, comes in at least once; what others need of a place goes out at least once, summed where it is reduced. That holds for
switches that copy or add, too. All places together need more where nothing adds on the way: sums from a places for b places take
a + b - 2 moves (one more if none of the a is among the b), 2(m-1) for the all-reduce of m hosts, as in the room peak's cuts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Place
from collbench.operations.traffic import Traffic, is_rough

Groups = tuple[tuple[int, ...], ...]
_REFERENCE = 1 << 30  # elements per part for which it is reckoned; all else is in proportion


@dataclass(frozen=True)
class Least:
    """Bytes that must at least cross in one iteration: out of and into each place, and all places' in one direction together.

    In `total` nothing copies or adds on the way.
    """

    out: Mapping[str, float]
    into: Mapping[str, float]
    total: float


@dataclass(frozen=True)
class _Question:
    """What the answer depends on; it is the same for all sizes, and at 1,024 ranks takes seconds.

    count   elements per part for which it is reckoned: those of the cell only where uneven parts are so small that rounding tells
    """

    name: str
    count: int
    root: int | None
    seed: int
    groups: Groups
    places: tuple[tuple[int, str], ...]
    traffic: Traffic | None
    operation: Operation = field(compare=False)
    cell: Cell = field(compare=False)


def least(operation: Operation, cell: Cell, groups: Groups, place_of: Mapping[int, str]) -> Least:
    """For a cell whose ranks (of `groups`) are at these places. Ranks' blocks are the same or do not overlap."""
    n = len(groups[0]) if groups else 0
    count = operation.count(cell, n) if n else 0
    reckoned = count if count and operation.uneven and is_rough(cell.traffic, n, count) else _REFERENCE
    places = tuple(sorted(place_of.items()))
    part = _per_element(_Question(operation.name, reckoned, cell.root, cell.seed, groups, places, cell.traffic, operation, cell))
    size = count * cell.dtype.size * ((cell.window or 1) if operation.windowed else 1)
    out, into = ({place: share * size for place, share in shares.items()} for shares in (part.out, part.into))
    return Least(out, into, part.total * size)


@lru_cache(maxsize=64)
def _per_element(question: _Question) -> Least:
    """In elements for each element that a part has."""
    out: dict[str, float] = defaultdict(float)
    into: dict[str, float] = defaultdict(float)
    total = 0.0
    places = dict(question.places)
    for group in question.groups:
        for count, sources, needing in _parts(question, [places[rank] for rank in group]):
            share = count / question.count
            for place in needing:
                into[place] += share if sources - {place} else 0.0
            for place in sources:
                out[place] += share if needing - {place} else 0.0
            total += share * (len(sources) + len(needing) - 2 + (not sources & needing))
    return Least(dict(out), dict(into), total)


def _parts(question: _Question, place_of: Sequence[str]) -> Iterator[tuple[int, frozenset[str], frozenset[str]]]:
    """(elements, the places that hold what they are made of, the places that need them) of one group."""
    n, width = len(place_of), question.cell.dtype.size
    cell = replace(question.cell, size_bytes=question.count * width * question.operation.parts(n))
    needing: dict[tuple[Hashable, int, int], set[str]] = defaultdict(set)
    for rank in range(n):
        for block in question.operation.arrives(Place(rank, n, question.operation.count(cell, n), cell)):
            needing[_key(block.sources), block.at, block.count].add(place_of[rank])
    holding: dict[Hashable, frozenset[str]] = {}
    for (sources, _, count), places in needing.items():
        if sources not in holding:
            holding[sources] = frozenset(place_of[rank] for rank in _ranks(sources))
        yield count, holding[sources], frozenset(places)


def _key(sources: Sequence[int]) -> Hashable:
    return sources if isinstance(sources, range) else tuple(sources)


def _ranks(key: Hashable) -> Sequence[int]:
    assert isinstance(key, range | tuple)
    return key
