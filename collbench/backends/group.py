"""The ranks that an operation runs over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Group:
    """Ranks that an operation runs over, as the library knows them.

    ranks    ranks of the job, in the order of their rank within the group
    driven   which ranks of the group this process drives
    handle   the library's communicator or group; where the library has one per driven rank, a tuple of them
    names    the ranks as the library names them within `handle`; (): 0 … n-1
    """

    ranks: tuple[int, ...]
    driven: tuple[int, ...]
    handle: Any = field(default=None, compare=False)
    names: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        """How many ranks."""
        return len(self.ranks)

    def name(self, rank: int) -> int:
        """How the library names rank `rank` of the group within its handle."""
        return self.names[rank] if self.names else rank

    def part(self, ranks: Sequence[int]) -> Group | None:
        """Some of these ranks of the job, over the same handle; None where this process drives none of them."""
        mine = self._turns
        driven = tuple(place for place, rank in enumerate(ranks) if rank in mine)
        if not driven:
            return None
        handle = tuple(self.handle[mine[ranks[place]]] for place in driven) if isinstance(self.handle, tuple) else self.handle
        names = tuple(self.name(self._places[rank]) for rank in ranks)
        return Group(tuple(ranks), driven, handle, names)

    @cached_property
    def _turns(self) -> dict[int, int]:
        """Of the ranks of the job that this process drives, which one of them each is."""
        return {self.ranks[place]: turn for turn, place in enumerate(self.driven)}

    @cached_property
    def _places(self) -> dict[int, int]:
        """The ranks within the group, by those of the job."""
        return {rank: place for place, rank in enumerate(self.ranks)}
