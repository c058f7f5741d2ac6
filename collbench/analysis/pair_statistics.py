"""One quantity of a pair matrix over one kind of path: which cells and which places are slower than chance and the others explain."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.analysis.pair_noise import TAILS, noise_scale, of_medians, quantile, scale_of
from collbench.analysis.two_way import Figures, TwoWay, two_way

Mask = NDArray[np.bool_]

LEAST_PLACES = 4
_MEDIANS_DEGREES = 8.0  # medians have lighter tails than cells among each other
_LEAST_TESTS = 10  # pairs: of the six latencies of four places, four make the places' effects
_FAST = 0.5  # of the effect: who lags less with a partner is as fast there as the others
_EXCEPTIONS = 100  # one partner in so many may be as fast by chance


class Level(NamedTuple):
    """From which effect on something is named, and how often by chance per matrix."""

    effect: float
    chance: float

    @property
    def least(self) -> float:
        """The effect as the depth of a logarithm."""
        return -log(1 - self.effect)


CELLS = {"bandwidth": Level(0.15, 0.004), "latency": Level(1 / 4, 0.002)}
PLACES = {"bandwidth": Level(0.05, 0.001), "latency": Level(1 / 6, 0.001)}


class Slow(NamedTuple):
    """Places by index: their effects (negative), which of them are slow with everybody, and which only with some."""

    effects: Figures
    steady: Mask
    uneven: Mask


@dataclass(frozen=True, eq=False)
class View:
    """quantity   "bandwidth" or "latency"
    where      which paths, "" where there is but one kind
    speeds     logarithms [n × n], high is fast, NaN: not of this view, or unknown
    errors     standard errors of the speeds from their own intervals, NaN where unknown
    again      pairs that were measured again, both ways
    """

    quantity: str
    where: str
    speeds: Figures
    errors: Figures
    again: Mask

    @property
    def symmetric(self) -> bool:
        """Whether i to j is j to i."""
        return self.quantity == "latency"

    @cached_property
    def there(self) -> Mask:
        """Which cells are known."""
        return np.isfinite(self.speeds)

    @cached_property
    def fit(self) -> TwoWay:
        """Middle, effects and rests."""
        return two_way(self.speeds, self.symmetric)

    @cached_property
    def noise(self) -> float:
        """The scale of a cell."""
        return noise_scale(self.fit.rest)

    @cached_property
    def error(self) -> float:
        """Of a usual cell, from its own interval; 0 where no cell has one."""
        known = self.errors[self.there & np.isfinite(self.errors)]
        return float(np.median(known)) if len(known) else 0.0

    def depth(self, twice: bool) -> float:
        """How far below expectation a usual cell has to be, as a logarithm; `twice`: where it was measured again."""
        return float(self._depths(np.array(self.error), np.array(twice)))

    @property
    def tells_pairs(self) -> bool:
        """Whether there are enough cells beside the effects to say anything of a single one."""
        return self._tests >= _LEAST_TESTS

    @property
    def tells_places(self) -> bool:
        """Whether enough places have partners enough to say anything of one of them."""
        return max(int(self.fit.told_rows.sum()), int(self.fit.told_columns.sum())) >= LEAST_PLACES

    def slow_cells(self, twice: Mask) -> Mask:
        """Cells too far below what their places explain; of those in `twice` less is asked."""
        errors = np.where(np.isfinite(self.errors), self.errors, self.error)
        below: Mask = np.nan_to_num(self.fit.rest) < -self._depths(errors, twice)
        return self.there & below & self.tells_pairs

    def exceptions(self, slow: Mask) -> Mask:
        """Those of the slow cells that are exceptions in their row and in their column."""
        rows, columns = (slow.sum(axis=axis) <= np.maximum(1, self.there.sum(axis=axis) // 3) for axis in (1, 0))
        few: Mask = rows[:, None] & columns[None, :]
        return slow & few

    def senders(self, twice: bool = False) -> Slow:
        """Places by what they send; `twice`: what is worth measuring again."""
        return self._slow(self.fit.rows, self.fit.told_rows, self.speeds, self.again, twice)

    def receivers(self, twice: bool = False) -> Slow:
        """Places by what they receive."""
        return self._slow(self.fit.columns, self.fit.told_columns, self.speeds.T, self.again.T, twice)

    def _depths(self, errors: Figures, twice: Mask) -> Figures:
        by_spread, by_interval = (
            np.where(twice, *(quantile(self._chance(each), degrees) for each in (True, False))) for degrees in (TAILS, _MEDIANS_DEGREES)
        )
        depths: Figures = np.maximum(CELLS[self.quantity].least, np.maximum(by_spread * self.noise, by_interval * errors))
        return depths

    @property
    def _tests(self) -> int:
        return int(self.there.sum()) // (2 if self.symmetric else 1)

    def _chance(self, twice: bool) -> float:
        share = CELLS[self.quantity].chance / max(1, self._tests)
        return sqrt(share) if twice else share

    def _slow(self, effects: Figures, told: Mask, speeds: Figures, again: Mask, twice: bool) -> Slow:
        low = told & (effects < -self._place_depths(effects, told, speeds, twice)) & (int(told.sum()) >= LEAST_PLACES)
        behind = np.where(np.isfinite(speeds), speeds - self.fit.middle, -np.inf)
        fast = (behind > _FAST * effects[:, None]).sum(axis=1)
        steady = low & (fast <= np.isfinite(speeds).sum(axis=1) // _EXCEPTIONS)
        confirmed = np.ones(len(effects), bool)
        for place in np.flatnonzero(steady):
            repeated = behind[place][again[place] & np.isfinite(behind[place])]
            confirmed[place] = len(repeated) == 0 or bool(np.median(repeated) < effects[place] / 2)
        return Slow(effects, steady & confirmed, low & ~steady)

    def _place_depths(self, effects: Figures, told: Mask, speeds: Figures, twice: bool) -> Figures:
        level, known = PLACES[self.quantity], int(told.sum())
        share = level.chance / max(1, known * (1 if self.symmetric else 2))
        tail = quantile(sqrt(share) if twice else share, _MEDIANS_DEGREES)
        cells = np.isfinite(speeds).sum(axis=1).astype(np.float64)
        scale = np.maximum(scale_of(effects[told]), of_medians(max(self.noise, self.error), cells))
        return np.maximum(level.least, tail * scale)
