"""A pair that was measured again, compared with pairs of healthy places that were measured at the same time (the controls)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import log, sqrt

import msgspec
import numpy as np

from collbench.plugins.hunt import facts
from collbench.plugins.hunt.pair_statistics import INTERVAL_WIDTH, noise_scale
from collbench.plugins.hunt.protocol import GroupFigure
from collbench.plugins.hunt.records import Figures

SENDS, RECEIVES, LATENCY = "sends", "receives", "latency"
BANDWIDTH_WAYS = (SENDS, RECEIVES)
WAYS = (SENDS, RECEIVES, LATENCY)
OPPOSITE = {SENDS: RECEIVES, RECEIVES: SENDS, LATENCY: LATENCY}  # by way that of the other place

PathKind = Callable[[int, int], Hashable]
Measured = tuple[tuple[int, ...], GroupFigure]
_LEAST_RESIDUALS = 8  # the scatter of fewer controls is not valid
_MEDIAN_SHARE = 1.8  # factor of the variance that the median of m figures with the tails of t₄ adds to one figure, times 1/m


class Trial(msgspec.Struct, frozen=True):
    """A measured pair as seen from `place`: what it sends, what it receives, and the latency.

    A slowdown is a natural logarithm: ln(speed of the controls / speed of the pair), above 0 if the pair is slower. The speed of a
    latency is 1/s, other speeds are in bytes per second.

    partner        the other place; healthy: whether it is known to be healthy
    controls       their number; 0: the median of the sweep is used instead
    same_kind      whether they are on the same kind of path (host, leaf)
    log_slowdowns  by way the slowdown of the pair
    noise          by way the scale of the slowdown
    speeds         by way the speed; usual: that of the controls
    control_log_slowdowns  by way how far each of the controls was behind their middle
    na             why figures are missing
    cpu_wait       share of the round in which a rank of the pair waited for a CPU, above the controls' median, which the same waits slow
    flipped        whether a rank's state probe changed during the round
    """

    place: int
    partner: int
    healthy: bool
    controls: int = 0
    same_kind: bool = False
    log_slowdowns: Mapping[str, float] = msgspec.field(default_factory=dict)
    noise: Mapping[str, float] = msgspec.field(default_factory=dict)
    speeds: Mapping[str, float] = msgspec.field(default_factory=dict)
    usual: Mapping[str, float] = msgspec.field(default_factory=dict)
    control_log_slowdowns: Mapping[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    na: str | None = None
    cpu_wait: float = 0.0
    flipped: bool = False

    def evidence(self, names: Sequence[str], end: bool = False) -> facts.Retest:
        """Return the trial as evidence. end: the suspect is a path, and `place` is one of its ends."""
        endpoint = names[self.place] if end else ""
        partner = names[self.partner]
        if self.na is not None:
            return facts.Retest(partner, self.healthy, na=self.na, endpoint=endpoint)
        return facts.Retest(
            partner=partner,
            healthy=self.healthy,
            controls=self.controls,
            sent=self.speeds.get(SENDS),
            received=self.speeds.get(RECEIVES),
            latency_s=1 / self.speeds[LATENCY] if LATENCY in self.speeds else None,
            usual_sent=self.usual.get(SENDS),
            usual_received=self.usual.get(RECEIVES),
            usual_latency_s=1 / self.usual[LATENCY] if LATENCY in self.usual else None,
            endpoint=endpoint,
        )


class ControlComparison(msgspec.Struct):
    """The comparison with controls of the same round and kind of path, and the scatter of these controls.

    path_kind  returns the kind of path between two places (host, leaf). Controls of other kinds are used only if none is of that kind
    usual      by way the sweep's result, for rounds without any control
    residuals  by way the distances of single controls from the middle of their round, as logarithms
    errors     standard errors of controls from their own intervals
    """

    path_kind: PathKind
    usual: Mapping[str, float] = msgspec.field(default_factory=dict)
    residuals: dict[str, list[float]] = msgspec.field(default_factory=lambda: {way: [] for way in WAYS})
    errors: list[float] = msgspec.field(default_factory=list)

    def learn(self, controls: Sequence[Measured]) -> None:
        """Add the scatter of controls, once per round."""
        by_kind: dict[Hashable, list[Measured]] = {}
        for pair, figure in controls:
            if figure.low and figure.high and figure.high > figure.low:
                self.errors.append(log(figure.high / figure.low) / INTERVAL_WIDTH)
            by_kind.setdefault(self.path_kind(pair[0], pair[1]), []).append((pair, figure))
        for way in WAYS:
            for same_kind in by_kind.values():
                speeds = _log_speeds(way, same_kind)
                if len(speeds) > 1:
                    self.residuals[way] += list(speeds - np.median(speeds))

    def trial(self, place: int, measured: Measured, controls: Sequence[Measured], healthy: bool, noise: Mapping[str, float]) -> Trial:
        """Return the trial of `place`, its pair compared with the controls. noise: the sweep's noise of the place, by way."""
        pair, figure = measured
        is_first = place == pair[0]
        partner = pair[1] if is_first else pair[0]
        if figure.speed is None:
            return Trial(place, partner, healthy, na=figure.na)
        kind = self.path_kind(pair[0], pair[1])
        same_kind = [control for control in controls if self.path_kind(control[0][0], control[0][1]) == kind]
        compared = same_kind or list(controls)
        speeds = _speeds_at(is_first, figure)
        usual: dict[str, float] = {}
        log_slowdowns: dict[str, float] = {}
        noises: dict[str, float] = {}
        control_log_slowdowns: dict[str, tuple[float, ...]] = {}
        for way, speed in speeds.items():
            # the two directions of a pair follow each other: that of the controls that was measured at the same time
            control_way = way if is_first else OPPOSITE[way]
            log_speeds = _log_speeds(control_way, compared)
            if len(log_speeds):
                # of an even number of controls the faster middle one, since a control that is not healthy is slower
                usual_speed = float(np.exp(np.sort(log_speeds)[len(log_speeds) // 2]))
            elif control_way in self.usual:
                usual_speed = self.usual[control_way]
            else:
                continue
            usual[way] = usual_speed
            log_slowdowns[way] = log(usual_speed / speed)
            noises[way] = self._noise(way, noise.get(way, 0.0), len(compared))
            control_log_slowdowns[way] = tuple(float(log(usual_speed) - log_speed) for log_speed in log_speeds)
        waits = [control.cpu_wait for _, control in compared]
        return Trial(
            place=place,
            partner=partner,
            healthy=healthy,
            controls=len(compared),
            same_kind=bool(same_kind),
            log_slowdowns=log_slowdowns,
            noise=noises,
            speeds=speeds,
            usual=usual,
            control_log_slowdowns=control_log_slowdowns,
            cpu_wait=max(0.0, figure.cpu_wait - float(np.median(waits or [0.0]))),
            flipped=figure.flipped,
        )

    def _noise(self, way: str, sweep_noise: float, controls: int) -> float:
        """Return the scale of a slowdown: the largest that is known, times √(1 + 1.8 / controls) for the median of the controls."""
        scatter = noise_scale(np.array(self.residuals[way])) if len(self.residuals[way]) >= _LEAST_RESIDUALS else 0.0
        error = float(np.median(self.errors)) if self.errors and way != LATENCY else 0.0
        return max(sweep_noise, scatter, error) * sqrt(1 + _MEDIAN_SHARE / max(1, controls))


def _speeds_at(is_first: bool, figure: GroupFigure) -> dict[str, float]:
    """Return by way the known speeds as seen from the first place of a pair, or from the second."""
    sent, received = (figure.speed, figure.backward) if is_first else (figure.backward, figure.speed)
    speeds = {SENDS: sent, RECEIVES: received, LATENCY: 1 / figure.latency_s if figure.latency_s else None}
    return {way: speed for way, speed in speeds.items() if speed}


def _log_speeds(way: str, controls: Sequence[Measured]) -> Figures:
    speeds = [_speeds_at(True, figure) for _, figure in controls]
    return np.log([by_way[way] for by_way in speeds if way in by_way])
