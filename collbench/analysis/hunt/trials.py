"""A pair measured again, against pairs of places that are well, at the same time: the controls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt

import numpy as np

from collbench.analysis.hunt.asks import Figure
from collbench.analysis.hunt.candidates import LATENCY, RECEIVES, SENDS
from collbench.analysis.pair_noise import noise_scale
from collbench.units import format_rate, format_time

Alike = Callable[[int, int], Hashable]
Measured = tuple[tuple[int, ...], Figure]
WAYS = (SENDS, RECEIVES, LATENCY)
_LEAST_RESTS = 8  # of fewer controls the scatter says nothing
_MEDIAN_SHARE = 1.8  # what a median of m figures with the tails of t₄ adds to the variance of one, times 1/m
_WIDTH = 2 * 1.96


@dataclass(frozen=True)
class Trial:
    """Seen from `place`: what it sends, what it receives, and the latency; speeds in bytes per second, the latency as 1/s.

    partner   with whom; well: whether that one is known to be
    depths    by way how far behind the controls, as a logarithm, above 0: slower
    noise     by way the scale of the depth
    values    by way what was measured; usual: what the controls had
    controls  how many there were; 0: the usual speed of the sweep stands for them
    alike     whether they are of the same kind of path (host, leaf)
    beside    by way how far each of the controls was behind their middle
    na        why there is nothing
    cpu_wait  share of the round that a rank of the pair waited for a CPU, above that of the controls (their median), which are slowed alike
    flipped   whether a rank's state probe changed during the round
    """

    place: int
    partner: int
    well: bool
    controls: int = 0
    alike: bool = False
    depths: Mapping[str, float] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    usual: Mapping[str, float] = field(default_factory=dict)
    beside: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    na: str | None = None
    cpu_wait: float = 0.0
    flipped: bool = False

    def sentence(self, names: Sequence[str]) -> str:
        """What was measured, with whom, against what."""
        who = f"again with {names[self.partner]}{'' if self.well else ', which is suspected, too, or was as fast as usual before'}"
        if self.na is not None:
            return f"{who}: not measured ({self.na})"
        parts = [
            f"{format_rate(self.values[way])} GB/s {word}" for way, word in ((SENDS, "sent"), (RECEIVES, "received")) if way in self.values
        ]
        if LATENCY in self.values:
            parts.append(f"{format_time(1 / self.values[LATENCY])} µs")
        return f"{who}: {', '.join(parts)}; {self._against()}"

    def _against(self) -> str:
        usual = [f"{format_rate(self.usual[way])} GB/s" for way in (SENDS, RECEIVES) if way in self.usual]
        usual += [f"{format_time(1 / self.usual[LATENCY])} µs"] if LATENCY in self.usual else []
        if not usual:
            return "nothing to compare it with"
        who = f"{self.controls} pairs of places that are well" if self.controls > 1 else "a pair of places that are well"
        return f"{who} at the same time: {', '.join(usual)}" if self.controls else f"usual in the sweep: {', '.join(usual)}"


@dataclass
class Scale:
    """What to measure against: controls of the same round and kind of path, and how much they scatter.

    alike   the kind of path between two places (host, leaf): of other kinds are only controls where there are none of its own
    usual   by way what the sweep found, for rounds without any control
    rests   by way how far single controls were from the middle of theirs
    errors  standard errors of controls from their own intervals
    """

    alike: Alike
    usual: Mapping[str, float] = field(default_factory=dict)
    rests: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    errors: list[float] = field(default_factory=list)

    def learn(self, controls: Sequence[Measured]) -> None:
        """Their scatter, once per round."""
        for figure in (figure for _, figure in controls if figure.low and figure.high and figure.high > figure.low):
            self.errors.append(log(_known(figure.high) / _known(figure.low)) / _WIDTH)
        kinds = {self.alike(pair[0], pair[1]) for pair, _ in controls}
        for way in WAYS:
            for kind in kinds:
                values = self._values(way, [each for each in controls if self.alike(each[0][0], each[0][1]) == kind])
                self.rests[way] += list(values - np.median(values)) if len(values) > 1 else []

    def trial(self, place: int, measured: Measured, controls: Sequence[Measured], well: bool, noise: Mapping[str, float]) -> Trial:
        """The pair of `place` against the controls. noise: what the sweep knew of it, by way."""
        pair, figure = measured
        partner = pair[1] if place == pair[0] else pair[0]
        if figure.speed is None:
            return Trial(place, partner, well, na=figure.na)
        kind = self.alike(pair[0], pair[1])
        own = [each for each in controls if self.alike(each[0][0], each[0][1]) == kind]
        those = own or list(controls)
        values = {way: value for way, value in _seen_from(place == pair[0], figure).items() if value}
        usual = {way: found for way in values if (found := self._usual(_told(way, place == pair[0]), those))}
        depths = {way: log(usual[way] / values[way]) for way in usual}
        scales = {way: self._noise(way, noise.get(way, 0.0), len(those)) for way in usual}
        told = {way: self._values(_told(way, place == pair[0]), those) for way in usual}
        beside = {way: tuple(float(log(usual[way]) - each) for each in told[way]) for way in usual}
        waited = max(0.0, figure.cpu_wait - float(np.median([control.cpu_wait for _, control in those] or [0.0])))
        return Trial(place, partner, well, len(those), bool(own), depths, scales, values, usual, beside, None, waited, figure.flipped)

    def _usual(self, way: str, controls: Sequence[Measured]) -> float | None:
        """The controls' middle, of an even number the faster one: who is well is not as slow as who may not be."""
        values = np.sort(self._values(way, controls))
        return float(np.exp(values[len(values) // 2])) if len(values) else self.usual.get(way)

    def _values(self, way: str, controls: Sequence[Measured]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.log([value for _, figure in controls if (value := _seen_from(True, figure).get(way))])

    def _noise(self, way: str, known: float, controls: int) -> float:
        rests = np.array(self.rests[way])
        shown = noise_scale(rests) if len(rests) >= _LEAST_RESTS else 0.0
        error = float(np.median(self.errors)) if self.errors and way != LATENCY else 0.0
        return max(known, shown, error) * sqrt(1 + _MEDIAN_SHARE / max(1, controls))


def _seen_from(first: bool, figure: Figure) -> dict[str, float | None]:
    """What the first place of a pair, or the other one, sends and receives."""
    there, back = (figure.speed, figure.backward) if first else (figure.backward, figure.speed)
    return {SENDS: there, RECEIVES: back, LATENCY: 1 / figure.latency_s if figure.latency_s else None}


def _told(way: str, first: bool) -> str:
    """Messages there and back are measured one after the other: which of the controls' two was at the same time."""
    return way if first or way == LATENCY else SENDS if way == RECEIVES else RECEIVES


def _known(value: float | None) -> float:
    assert value is not None
    return value
