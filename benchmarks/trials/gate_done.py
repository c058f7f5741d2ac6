"""The defect of a gate trial, drawn by its seed, and the verdict that is expected of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collbench.gate.baseline import CaseGroup, size_class

CELL_PERCENT, GROUP_PERCENT = 10.0, 5.0


@dataclass(frozen=True)
class Done:
    """The defect of a trial: a slowdown in percent of a backend's sizes, or of the link; neither: no defect.

    sizes     of allreduce, in bytes
    at_hosts  whether the hosts see the link's new rate; None: the link is unchanged
    """

    backend: str = ""
    sizes: tuple[int, ...] = ()
    percent: float = 0.0
    at_hosts: bool | None = None

    @property
    def spec(self) -> str:
        """Return the value for `--slowed`; "" without one."""
        sizes = ",".join(map(str, self.sizes))
        return f"by={self.percent:.4g}% operations=allreduce backends={self.backend} sizes={sizes}" if self.sizes else ""

    @property
    def words(self) -> str:
        """Return the text for a table."""
        if self.at_hosts is None:
            return self.spec or "no defect"
        return "link rate changed, visible to the hosts" if self.at_hosts else "link rate changed, hidden from the hosts"

    def explains(self, suspicion: Mapping[str, Any]) -> bool:
        """Whether this defect explains a suspicion of verdict.json: its cell, its cell's group, or anything over the link."""
        if self.at_hosts is not None:
            return True
        if suspicion["kind"] == "cell":
            return suspicion["cell"]["backend"] == self.backend and suspicion["cell"]["size_bytes"] in self.sizes
        return suspicion["kind"] == "group" and suspicion["name"] in self._groups()

    def _groups(self) -> set[str]:
        return {str(CaseGroup(self.backend, "allreduce", size_class(size))) for size in self.sizes}


def drawn(kind: str, seed: int, visible: Mapping[tuple[str, int], float]) -> Done:
    """Draw the defect of a trial; `visible` is the smallest visible slowdown, in percent, by backend and size."""
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
    """Return the confirmed suspicions."""
    return [each for each in verdict["suspicions"] if each["state"] == "confirmed"]


def right(kind: str, done: Done, verdict: Mapping[str, Any]) -> bool:
    """Whether a verdict is the expected one for this defect."""
    if kind == "same":
        return verdict["result"] != "regression"
    explained = [each for each in confirmed(verdict) if done.explains(each)] if verdict["result"] == "regression" else []
    if kind == "link":
        return bool(explained) and verdict["cause"] is not None and verdict["cause"]["kind"] == "link"
    if kind == "group":
        return any(each["kind"] == "group" for each in explained)
    return bool(explained) == (kind != "half")
