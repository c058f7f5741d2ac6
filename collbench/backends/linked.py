"""What backends have in common that carry messages over a connection of their own between the two ranks of a pair."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from collbench.backends.group import Group
from collbench.backends.host import HostBackend
from collbench.backends.socket_links import Links
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason


class AnyLink(Protocol):
    """A connection to one other rank."""

    def close(self) -> None:
        """Ends it."""
        ...

    def facts(self) -> Mapping[str, str]:
        """What it became, for `versions`."""
        ...


class LinkedBackend(HostBackend):
    """Point-to-point alone; a pair's connection lives as long as its cell.

    A backend of this kind makes `_links` and `_about` in `open`, what `versions` tells before anything is connected, and says how.
    """

    local_path = "loopback"
    passes_messages = True
    _link: AnyLink | None = None
    _links: Links
    _about: dict[str, str]

    @abstractmethod
    def connect(self, peer: int, cell: Cell) -> AnyLink:
        """A connection to that rank, which calls, too. Raises RunFailed that says why not."""

    def communicator(self, ranks: Sequence[int]) -> Any:
        """Nothing before a pair is made."""
        return None

    def pair(self, whole: Group | None, ranks: Sequence[int], cell: Cell) -> Group | None:
        """Connects the two. Raises RunFailed that says why not."""
        both = super().pair(whole, ranks, cell)
        if both is None:
            return None
        self._hang_up()  # a pair that another rank's failure left unreleased; each rank is in one at a time
        self._link = self.connect(next(rank for rank in ranks if rank != self.rank), cell)
        return replace(both, handle=self._link)

    def release(self, group: Group) -> None:
        """Closes the pair's connection; what became of it is remembered for `versions`."""
        if self._link and group.handle is self._link:
            self._about |= self._link.facts()
            self._hang_up()

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """Pairs only."""
        return None if operation.pair else f"{self.name} connects pairs of ranks: it has p2p only"

    def versions(self) -> Mapping[str, str]:
        """What is known of the library and the path, and what the connection of the last cell was."""
        return dict(self._about)

    def close(self) -> None:
        """Closes everything."""
        self._hang_up()
        self._links.close()

    def _hang_up(self) -> None:
        if self._link:
            self._link.close()
            self._link = None
