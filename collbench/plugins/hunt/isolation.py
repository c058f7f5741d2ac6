"""Each confirmed place measured alone: among its own ranks, and over each of its interfaces. A slow one is the part to check.

Every figure is compared with that of healthy places, measured at the same time. All suspects are measured at once: one round inside, and
one for each interface. A sender is judged by the messages that it sends, a receiver by those that it gets.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import sqrt

import msgspec
import numpy as np
from msgspec.structs import replace

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.protocol import (
    BY_MESSAGES,
    CONFIRMED,
    INSIDE,
    NIC,
    HuntLog,
    Options,
    RoundRequest,
    RoundResult,
    Suspect,
    pair_of,
)
from collbench.reason import Fact
from collbench.units import plural

# of the limit for a slow part: at 0.95 noise is excluded, and below 0.8 it is always slow
_BOUNDS = (0.8, 0.95)
_CONTROLS = 3  # healthy places at least; their median is the comparison
_WAYS: dict[str, facts.Ways] = {"sender": "sends", "receiver": "receives"}


def most_rounds(options: Options) -> int:
    """Return the largest number of rounds that `measure_isolation` takes."""
    return int(options.can_inside) + len(options.nics) if options.isolate else 0


def measure_isolation(
    log: HuntLog, suspects: Sequence[Suspect], good: Sequence[int], options: Options
) -> Generator[RoundRequest, RoundResult, list[Suspect]]:
    """Return the suspects in their order. Confirmed single places have the result in `part` and `evidence`.

    Their `kind` may become "inside"; then `ratio` is that of their own ranks among themselves. Paths and unconfirmed suspects
    are returned unchanged. A place that is slow at scale only is measured inside only, since messages of pairs do not show
    that fault. Missing figures are evidence, too.
    """
    if not options.isolate:
        return list(suspects)
    isolated = {suspect.places[0]: _Isolated(suspect) for suspect in suspects if suspect.state == CONFIRMED and len(suspect.places) == 1}
    if isolated and options.can_inside:
        controls = [(place,) for place in good[: max(_CONTROLS, len(isolated))]]
        groups = [(place,) for place in isolated]
        why = f"{plural(len(isolated), 'suspect')} inside, with {len(controls)} healthy ones as controls"
        request = RoundRequest(INSIDE, (*groups, *controls), why, stage="isolation")
        yield from _compare(log, request, list(isolated.values()), len(controls))
    by_messages = [place for place in isolated.values() if place.suspect.kind != "scale"]
    tested = by_messages[: max(0, len(good) - 2)]  # each has a healthy partner, besides at least one pair of healthy places
    left_out = by_messages[len(tested) :]
    pairs = [pair_of(place.place, partner) for place, partner in zip(tested, good, strict=False)]
    unpaired = good[len(tested) :]
    healthy = [pair_of(a, b) for a, b in zip(unpaired[::2], unpaired[1::2], strict=False)][: max(_CONTROLS, len(tested))]
    for nic in options.nics:
        for place in left_out:
            place.evidence.append(facts.PartNotMeasured(nic, f"only {plural(len(good), 'healthy endpoint')}"))
        if tested:
            why = f"{plural(len(tested), 'suspect')} over {nic} alone, with {len(healthy)} healthy pairs as controls"
            request = RoundRequest(NIC, (*pairs, *healthy), why, stage="isolation", nic=nic)
            yield from _compare(log, request, tested, len(healthy))
    judged = []
    for suspect in suspects:
        measured = isolated.get(suspect.places[0])
        judged.append(measured.with_part() if measured is not None and measured.suspect is suspect else suspect)
    return judged


def _compare(log: HuntLog, request: RoundRequest, tested: Sequence[_Isolated], controls: int) -> Generator[RoundRequest, RoundResult, None]:
    """Measure the groups of the suspects and then of the controls; add each suspect's ratio to the controls' median as evidence."""
    answer = yield from log.request(request)
    usual = [speed for figure in answer.figures[len(tested) :] for speed in (figure.speed, figure.backward) if speed]
    part = request.nic or INSIDE
    for place, group, figure in zip(tested, request.groups, answer.figures, strict=False):
        kind = place.suspect.kind
        speed = figure.speed
        if request.nic is not None:  # what a sender sends, what a receiver receives, else the slower direction
            sent, received = (figure.speed, figure.backward) if group[0] == place.place else (figure.backward, figure.speed)
            slower = min(sent, received) if sent and received else None
            speed = {"sender": sent, "receiver": received}.get(kind, slower)
        if not speed or not usual:
            no_control = f"none of {plural(controls, 'control')} could be measured" if figure.speed else "no reason is known"
            place.evidence.append(facts.PartNotMeasured(part, figure.na or no_control))
            continue
        ratio = speed / float(np.median(usual))
        place.ratios[part] = ratio
        if request.nic is None:
            place.evidence.append(facts.InsideRatio(ratio, controls))
        else:
            place.evidence.append(facts.InterfaceRatio(request.nic, _WAYS.get(kind, "sends and receives"), ratio, controls))


class _Isolated(msgspec.Struct):
    """A suspect measured alone: its known ratios to healthy places, inside and by interface."""

    suspect: Suspect
    ratios: dict[str, float] = msgspec.field(default_factory=dict)
    evidence: list[Fact] = msgspec.field(default_factory=list)

    @property
    def place(self) -> int:
        return self.suspect.places[0]

    def with_part(self) -> Suspect:
        """Return the suspect with its part, if one was found."""
        # a part is slow below half of the whole's loss (of its logarithm)
        limit = min(max(sqrt(max(self.suspect.ratio, 0.0)), _BOUNDS[0]), _BOUNDS[1])
        suspect = replace(self.suspect, evidence=(*self.suspect.evidence, *self.evidence))
        inside = self.ratios.get(INSIDE)
        if inside is not None and inside < limit:  # the ratio of its own ranks replaces that of its messages
            return replace(suspect, kind=INSIDE, part=facts.InsideHost(), ratio=inside, low=None, high=None)
        by_nic = {nic: ratio for nic, ratio in self.ratios.items() if nic != INSIDE}
        slow = tuple(nic for nic, ratio in by_nic.items() if ratio < limit)
        if slow and len(slow) < len(by_nic):
            return replace(suspect, part=facts.SlowInterfaces(slow))
        if slow or (inside is not None and not by_nic and suspect.kind in BY_MESSAGES):
            if inside is None:
                suspect = replace(suspect, evidence=(*suspect.evidence, facts.InsideNotMeasured()))
            return replace(suspect, part=facts.WayToNetwork(slow))
        return suspect
