"""What is asked of a hunt, and of one of its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collbench.measure.tasks.pair_places import PairsRequest
from collbench.operations.groups import Groups


@dataclass(frozen=True)
class HuntRequest:
    """One hunt.

    pairs    how pairs are measured, among which places, and the time for all rounds (`budget_s`)
    method   "auto", "pairs" or "groups"; rounds: of the sweep at most, None: by the number of places
    growing  whether groups that grow are measured; isolate: whether who is confirmed is looked at alone
    node     what the scheduler calls this rank's node, where it tells
    """

    pairs: PairsRequest
    method: str = "auto"
    rounds: int | None = None
    growing: bool = True
    isolate: bool = True
    node: str | None = None


@dataclass(frozen=True)
class Asked:
    """One round that is to be measured, as the hunt asks for it: see `results.hunts.HuntRound`."""

    kind: str
    groups: Groups
    why: str
    stage: str
    nic: str | None = None
    pause_s: float = 0.0

    @classmethod
    def told(cls, values: Mapping[str, Any]) -> Asked:
        """From what came over the control plane, where tuples are lists."""
        groups = tuple(tuple(int(place) for place in group) for group in values["groups"])
        return cls(values["kind"], groups, values["why"], values["stage"], values["nic"], values.get("pause_s", 0.0))
