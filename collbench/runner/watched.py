"""A cell measured under watch: the canary and the CPUs' counters before and after, and again when the machine changed its state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from collbench.evidence.conditions import between, noticeable, now
from collbench.runner.one_cell import Ready, time_cell
from collbench.timing.budget import Budget
from collbench.timing.canary import Canary, flipped
from collbench.timing.protocol import Measured
from collbench.world.world import World

_MOST_REPEATS = 2
_LEAST_LEFT = 0.2  # of the budget: with less a repetition would know less than what it replaces


@dataclass(frozen=True)
class Watched:
    """A measurement and what was seen around it, at rank 0.

    canary_s   {"before", "after"}: the slowest rank's canary, None unknown; empty without a canary
    silent     two ranks of a host could not run at the same time, so that the canary was not heard
    stolen     the largest share of CPU time that a hypervisor took at any rank; None unknown
    preempted  how often the rank that fared worst lost its core
    repeats    how often the cell was measured again because the canary had flipped; flipped: it did again the last time
    """

    measured: Measured
    canary_s: dict[str, float | None]
    silent: bool
    stolen: float | None
    preempted: int
    repeats: int
    flipped: bool

    @property
    def flags(self) -> list[str]:
        """What a reader must know."""
        words = {
            "remeasured": self.repeats and not self.flipped,
            "state_flip": self.flipped,
            "cpu_shared": self.silent or noticeable(self.stolen),
        }
        return [word for word, true in words.items() if true]


def watch(ready: Ready, world: World, budget: Budget, canary: Canary | None) -> Watched | None:
    """Runs the protocol on all ranks, again while the canary flips and the budget allows; the result is at rank 0."""
    ending, repeats = time.monotonic() + budget.max_time_s, 0
    while True:
        before, began = canary.sing() if canary else None, now()
        measured = time_cell(ready, world, budget)
        span, after = between(began, now()), canary.sing() if canary else None
        everyone = world.gather({"before": before, "after": after, **span.as_json()}, f"{ready.cell.title()}: looking at the machine")
        left = ending - time.monotonic()
        found = _result(measured, everyone, canary is not None, repeats) if measured and everyone else None
        again = bool(found and found.flipped and repeats < _MOST_REPEATS and left > _LEAST_LEFT * budget.max_time_s)
        left = world.decide(left if again else 0.0, f"{ready.cell.title()}: looking at the machine")
        if not left:
            return found
        repeats, budget = repeats + 1, replace(budget, max_time_s=left)


def _result(measured: Measured, everyone: Sequence[dict[str, Any]], listening: bool, repeats: int) -> Watched:
    canaries = {when: _largest(one[when] for one in everyone) for when in ("before", "after")}
    changed = any(flipped(one["before"], one["after"]) for one in everyone)
    stolen = _largest(one["stolen"] for one in everyone)
    silent = listening and None in canaries.values()
    return Watched(measured, canaries if listening else {}, silent, stolen, max(one["preempted"] for one in everyone), repeats, changed)


def _largest(values: Any) -> float | None:
    return max((value for value in values if value is not None), default=None)
