"""Whoever is confirmed, alone: among its own ranks, and over each of its interfaces; what is slow there is the part to look at.

Every figure is compared with the same one of places that are known to be well, taken at the same time. All suspects are measured at
once: a round inside, and one for each interface. Messages of a sender are judged by what it sends, of a receiver by what it gets.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

import numpy as np

from collbench.analysis.hunt.asks import INSIDE, NIC, Answer, Ask, Figure, Options
from collbench.analysis.hunt.verdict import CONFIRMED, Suspect

_INSIDE = "inside"  # as in `Suspect.kind`
IN_HOST = "inside the host (its CPU, memory or GPU links)"
TO_NETWORK = "its way to the network"
_NOT_INSIDE = "it was not measured inside (that takes several ranks per place): over TCP cores that are busy with something else look alike"
_BOUNDS = (0.8, 0.95)  # slow is below half of the loss (of its logarithm), but never within noise, and a fifth is always slow
_CONTROLS = 3  # good places inside of which the median is taken, at least
_BY_MESSAGES = ("node", "sender", "receiver")  # their messages are slow: well inside, it is the way to the network
_WORDS = {"sender": "what it sends", "receiver": "what it receives"}


def most_rounds(options: Options) -> int:
    """How many rounds `look` takes at most."""
    return int(options.can_inside) + len(options.nics) if options.isolate else 0


def look(suspects: Sequence[Suspect], good: Sequence[int], options: Options) -> Generator[Ask, Answer, tuple[Suspect, ...]]:
    """The suspects in their order; of confirmed single places `part` and `evidence` tell what was found, and `kind` may become "inside":
    then `ratio` is that of its own ranks among themselves.

    Paths and whoever is not confirmed come back as they were; whoever is slow at scale alone is looked at inside alone, since messages of
    pairs do not show it. What could not be measured is evidence, too: "could not be told: why".
    """
    alone = [suspect for suspect in suspects if _is_one(suspect)] if options.isolate else []
    found = {suspect.places[0]: _Found(suspect) for suspect in alone}
    if found and options.can_inside:
        yield from _inside(found, good)
    by_pairs = {place: each for place, each in found.items() if each.suspect.kind != "scale"}
    for nic in options.nics if by_pairs else ():
        yield from _over(nic, by_pairs, good)
    told = {place: each.told() for place, each in found.items()}
    return tuple(told[suspect.places[0]] if suspect in alone else suspect for suspect in suspects)


def _is_one(suspect: Suspect) -> bool:
    return suspect.state == CONFIRMED and len(suspect.places) == 1


@dataclass
class _Found:
    """What was measured of a suspect: ratios to places that are well, inside and by interface; None where it could not be told."""

    suspect: Suspect
    inside: float | None = None
    nics: dict[str, float | None] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)

    @property
    def limit(self) -> float:
        """Below this ratio a part is slow: half of the whole's loss, as logarithms go."""
        return min(max(sqrt(max(self.suspect.ratio, 0.0)), _BOUNDS[0]), _BOUNDS[1])

    def told(self) -> Suspect:
        """The suspect with its part, where one was found."""
        kind, part = self._part()
        unsure = [_NOT_INSIDE] if self.inside is None and part.startswith(TO_NETWORK) else []
        found = replace(self.suspect, kind=kind, part=part, evidence=(*self.suspect.evidence, *self.evidence, *unsure))
        if kind != _INSIDE or self.inside is None:
            return found
        return replace(found, ratio=self.inside, low=None, high=None)  # what its own ranks reach, and no longer its messages

    def _part(self) -> tuple[str, str]:
        if self.inside is not None and self.inside < self.limit:
            return _INSIDE, IN_HOST
        known = {nic: ratio for nic, ratio in self.nics.items() if ratio is not None}
        slow = [nic for nic, ratio in known.items() if ratio < self.limit]
        if slow and len(slow) < len(known):
            return self.suspect.kind, f"the {'interface' if len(slow) == 1 else 'interfaces'} {' and '.join(slow)}"
        if slow or (self.inside is not None and not known and self.suspect.kind in _BY_MESSAGES):
            return self.suspect.kind, TO_NETWORK + (f" ({' and '.join(slow)})" if slow else "")
        return self.suspect.kind, self.suspect.part


def _inside(found: Mapping[int, _Found], good: Sequence[int]) -> Generator[Ask, Answer, None]:
    controls = list(good[: max(_CONTROLS, len(found))])
    groups = tuple((place,) for place in [*found, *controls])
    answer = yield Ask(INSIDE, groups, f"{_suspects(found)} inside, beside {len(controls)} that are well", stage="isolation")
    usual = _median([figure.speed for figure in answer.figures[len(found) :]])
    for each, figure in zip(found.values(), answer.figures, strict=False):
        ratio = figure.speed / usual if figure.speed and usual else None
        each.inside = ratio
        each.evidence.append(f"inside: {_said(ratio, figure, 'among its own ranks an all-reduce reaches', len(controls))}")


def _over(nic: str, found: Mapping[int, _Found], good: Sequence[int]) -> Generator[Ask, Answer, None]:
    """Over one interface alone: each suspect with a partner that is well, and at least one pair that is well on both sides."""
    taken = list(found)[: max(0, len(good) - 2)]
    for place in list(found)[len(taken) :]:
        found[place].evidence.append(f"{nic}: could not be told: only {len(good)} places are known to be well")
    if not taken:
        return
    partners, rest = good[: len(taken)], good[len(taken) :]
    tested = [_pair(place, partner) for place, partner in zip(taken, partners, strict=True)]
    controls = [_pair(a, b) for a, b in zip(rest[::2], rest[1::2], strict=False)][: max(_CONTROLS, len(taken))]
    why = f"{_suspects(taken)} over {nic} alone, beside {len(controls)} pairs that are well"
    answer = yield Ask(NIC, tuple(tested + controls), why, stage="isolation", nic=nic)
    usual = _median([speed for figure in answer.figures[len(tested) :] for speed in (figure.speed, figure.backward)])
    for place, pair, figure in zip(taken, tested, answer.figures, strict=False):
        each = found[place]
        speed = _judged(each.suspect.kind, figure, first=pair[0] == place)
        ratio = each.nics[nic] = speed / usual if speed and usual else None
        what = f"over it alone {_WORDS.get(each.suspect.kind, 'its messages')} reach{'es' if each.suspect.kind in _WORDS else ''}"
        each.evidence.append(f"{nic}: {_said(ratio, figure, what, len(controls))}")


def _judged(kind: str, figure: Figure, first: bool) -> float | None:
    """The speed that counts: of a sender what leaves it, of a receiver what comes, else the slower way."""
    leaves, comes = (figure.speed, figure.backward) if first else (figure.backward, figure.speed)
    if kind in _WORDS:
        return leaves if kind == "sender" else comes
    return min(leaves, comes) if leaves and comes else None


def _said(ratio: float | None, figure: Figure, what: str, controls: int) -> str:
    if ratio is None:
        own = figure.na or ("" if figure.speed else "no reason was given")
        return f"could not be told: {own or f'none of the {controls} to compare with could be measured'}"
    return f"{what} {ratio:.0%} of what {controls} that are well do at the same time"


def _median(speeds: Sequence[float | None]) -> float | None:
    known = [speed for speed in speeds if speed]
    return float(np.median(known)) if known else None


def _pair(a: int, b: int) -> tuple[int, int]:
    return min(a, b), max(a, b)


def _suspects(found: Mapping[int, _Found] | Sequence[int]) -> str:
    return f"{len(found)} suspect{'' if len(found) == 1 else 's'}"
