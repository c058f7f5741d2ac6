"""The ranks that an operation runs over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Group:
    """Ranks that an operation runs over, as the library knows them.

    ranks    ranks of the job, in the order of their rank within the group
    driven   which ranks of the group this process drives
    handle   the library's communicator or group
    """

    ranks: tuple[int, ...]
    driven: tuple[int, ...]
    handle: Any = field(default=None, compare=False)

    @property
    def n(self) -> int:
        """How many ranks."""
        return len(self.ranks)
