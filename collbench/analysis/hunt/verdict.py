"""What a hunt comes to: of each suspect whether it is the reason, and what speaks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

CONFIRMED, CLEARED, INCONCLUSIVE = "confirmed", "cleared", "inconclusive"


@dataclass(frozen=True)
class Suspect:
    """A place, or a path between two, that was slow in the sweep.

    kind      "node" (both ways), "sender", "receiver", "latency" (small messages alone), "path" (two places), "inside" (its own ranks
              alone), "scale" (slow in larger groups alone): each has a code, see `recommendation.CODES`
    places    one, or two of a path
    state     CONFIRMED: slow with each of at least two partners that are known to be well; CLEARED: as fast as they are with one another;
              INCONCLUSIVE: neither
    ratio     the speed it reaches of what the others do, below 1 where it is slow (of a latency the inverse of how much longer it takes)
    low, high its 95 % interval
    partners  with whom it was measured again
    evidence  sentences: what was measured, with whom, against what
    part      what the isolation found: "the interface eth1", "inside the host", "" where nothing more is known
    """

    kind: str
    places: tuple[int, ...]
    state: str
    ratio: float
    low: float | None = None
    high: float | None = None
    partners: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    part: str = ""

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class Verdict:
    """names     of the places
    suspects  all of them, confirmed ones first, the worst first
    rounds    how many were measured, by stage; promised: how many it said beforehand that it would take at most
    notes     sentences: what could not be told, and why; what all places have in common ("all are equally slow")
    no_verdict  why nobody can be judged at all, None: somebody can
    middle    the usual speed of a pair (groups: of a group), bytes per second; None: unknown
    """

    names: tuple[str, ...]
    suspects: tuple[Suspect, ...]
    rounds: dict[str, int]
    promised: int
    notes: tuple[str, ...] = ()
    no_verdict: str | None = None
    middle: float | None = None

    def of(self, state: str) -> list[Suspect]:
        """The suspects in that state."""
        return [suspect for suspect in self.suspects if suspect.state == state]

    @property
    def result(self) -> str:
        """ "confirmed", "nobody" or "no verdict"; inconclusive suspects alone are no verdict."""
        if self.no_verdict:
            return "no verdict"
        if self.of(CONFIRMED):
            return "confirmed"
        return "no verdict" if self.of(INCONCLUSIVE) else "nobody"

    def name(self, places: Sequence[int]) -> str:
        """ "node07", or "node03 and node09"."""
        return " and ".join(self.names[place] for place in places)
