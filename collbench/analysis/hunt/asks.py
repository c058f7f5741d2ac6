"""What a hunt asks for, and what it is told: the conversation between who thinks (this room) and who measures (the runner, or a model).

A hunt is a generator: it yields an `Ask`, is sent the `Answer`, and returns a `Verdict`. Places are numbered from 0, as in `pairs`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collbench.analysis.hunt.verdict import Verdict

PAIRS, GROUPS, INSIDE, NIC = "pairs", "groups", "inside", "nic"


@dataclass(frozen=True)
class Ask:
    """One round: everything in it is measured at the same time, so its groups are disjoint.

    kind    PAIRS: messages both ways between two places; GROUPS: an all-reduce in each group of places; INSIDE: an all-reduce among the
            ranks of each place (a group is one place); NIC: messages of a pair over one interface alone (`nic`)
    groups  of places; of PAIRS and NIC two each, the lower first
    why     for the log: "round 3 of 8", "3 suspects with two partners that are well"
    stage   "sweep", "cross-check", "growing", "isolation": rounds are counted by it
    pause_s seconds to wait before the round: rounds that repeat a measurement are apart in time, so a short disturbance reaches one of them
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    why: str
    stage: str = "sweep"
    nic: str | None = None
    pause_s: float = 0.0


@dataclass(frozen=True)
class Figure:
    """What one group reached; None where it could not be measured (`na` says why).

    speed      bytes per second: of GROUPS and INSIDE the bus bandwidth; of PAIRS and NIC the messages from the first place to the second
    backward   PAIRS, NIC: from the second to the first
    latency_s  PAIRS: half the round trip
    low, high  the speed's 95 % interval; of PAIRS that of the slower direction
    wrong      elements that were not what was sent
    cpu_wait   PAIRS: share of the round's time that its ranks waited for a CPU, of the rank that waited most; 0 where unknown
    flipped    PAIRS: whether the state probe of one of its ranks changed during the round
    """

    speed: float | None
    backward: float | None = None
    latency_s: float | None = None
    low: float | None = None
    high: float | None = None
    wrong: int = 0
    na: str | None = None
    cpu_wait: float = 0.0
    flipped: bool = False


@dataclass(frozen=True)
class Answer:
    """A figure for each group of the ask, in its order; flags hold for the whole round."""

    figures: tuple[Figure, ...]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hint:
    """Who may be sick, before it is confirmed.

    places  one, or two of a path, or all of a group of which somebody is slow
    kind    as in `Suspect.kind`
    ratio   the speed reached of what the others do
    why     one sentence: what was seen
    state   CONFIRMED, CLEARED or INCONCLUSIVE where whoever gives the hint has measured again itself, as groups that grow have to be;
            "": it is to be measured again with pairs. partners, evidence: as of a `Suspect`, with such a state; `why` is then all of it
    """

    places: tuple[int, ...]
    kind: str
    ratio: float
    why: str
    state: str = ""
    partners: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """How a hunt goes about it.

    method      "pairs": rounds of pairs; "groups": collectives over groups that overlap, O(log N) of them; "auto": pairs where so many
                rounds fit into the time, else groups
    rounds      of the sweep at most (None: chosen by the number of places); most_rounds: of everything, the promise printed beforehand
    seed        of every draw
    growing     whether groups that grow are measured where no pair is slow: faults that show at scale alone
    isolate     whether who is confirmed is looked at alone: inside, and over each interface
    can_inside  whether places have several ranks; nics: interface names that all places have (for NIC)
    leaf_of     by place the switch it hangs on, where that is known: partners are chosen from elsewhere, too
    cover       pairs that a schedule has to hold, so that every link of the fabric is crossed (`--cover-links`); None: not asked for
    """

    method: str = "auto"
    rounds: int | None = None
    most_rounds: int | None = None
    seed: int = 0
    growing: bool = True
    isolate: bool = True
    can_inside: bool = False
    nics: tuple[str, ...] = ()
    leaf_of: tuple[str, ...] | None = None
    cover: tuple[tuple[int, int], ...] | None = None


Hunt = Generator[Ask, Answer, "Verdict"]
