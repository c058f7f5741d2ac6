"""What a trial of the gate does to what it measures, drawn by its seed, and what a verdict has to say of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collbench.gate.baseline import Group, size_class

CELL_PERCENT, GROUP_PERCENT = 10.0, 5.0


@dataclass(frozen=True)
class Done:
    """What is done to a trial's allocations: a backend's sizes slower by so many percent, or the link; neither: nothing.

    sizes     of allreduce, in bytes
    at_hosts  whether the hosts see that the link has another rate; None: it has its own
    """

    backend: str = ""
    sizes: tuple[int, ...] = ()
    percent: float = 0.0
    at_hosts: bool | None = None

    @property
    def spec(self) -> str:
        """As `--slowed` takes it; "" where it says nothing."""
        sizes = ",".join(map(str, self.sizes))
        return f"by={self.percent:.4g}% operations=allreduce backends={self.backend} sizes={sizes}" if self.sizes else ""

    @property
    def words(self) -> str:
        """In a table's words."""
        if self.at_hosts is None:
            return self.spec or "nothing done"
        return "the link re-shaped, announced" if self.at_hosts else "the link re-shaped, unseen by the hosts"

    def explains(self, suspicion: Mapping[str, Any]) -> bool:
        """Whether it is the reason why a suspicion (as in verdict.json) is one: its cell, its cell's group, or anything over the link."""
        if self.at_hosts is not None:
            return True
        if suspicion["kind"] == "cell":
            return suspicion["cell"]["backend"] == self.backend and suspicion["cell"]["size_bytes"] in self.sizes
        return suspicion["kind"] == "group" and suspicion["name"] in self._groups()

    def _groups(self) -> set[str]:
        return {str(Group(self.backend, "allreduce", size_class(size))) for size in self.sizes}


def drawn(kind: str, seed: int, visible: Mapping[tuple[str, int], float]) -> Done:
    """What a trial does; `visible` is the smallest slowdown, in percent, that is seen of each backend's size."""
    (backend, size), percent = random.Random(f"{kind} {seed}").choice(sorted(visible.items()))
    if kind == "link":
        return Done(at_hosts=seed % 2 == 1)
    if kind == "group":
        large = sorted(one for name, one in visible if name == backend and size_class(one) == "large")
        return Done(backend, tuple(large), GROUP_PERCENT)
    if kind in ("twice", "half"):
        return Done(backend, (size,), percent * (2 if kind == "twice" else 0.5))
    return Done(backend, (size,), CELL_PERCENT) if kind == "cell" else Done()


def confirmed(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The suspicions that are: what is slower."""
    return [each for each in verdict["suspicions"] if each["state"] == "confirmed"]


def right(kind: str, done: Done, verdict: Mapping[str, Any]) -> bool:
    """Whether a verdict is what it has to be after what was done."""
    if kind == "same":
        return verdict["result"] != "regression"
    explained = [each for each in confirmed(verdict) if done.explains(each)] if verdict["result"] == "regression" else []
    if kind == "link":
        return bool(explained) and verdict["cause"] is not None and verdict["cause"]["kind"] == "link"
    if kind == "group":
        return any(each["kind"] == "group" for each in explained)
    return bool(explained) == (kind != "half")
