"""Statistics of one quantity of a pair matrix over one kind of path: the pairs and places that are slower than chance explains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.stats.median import t_quantile

# A table split by medians into a middle, an effect of each row, an effect of each column, and a rest for each cell.
#
# Tukey's median polish, with two differences: cells may be missing (NaN), and the upper of the two middle values is used for an even
# number of values. Values are speeds, and a pair is as slow as the slower of its two ends. With k slow places among n, a healthy place
# has n - 1 - k fast partners and k slow ones, so the upper median is a fast one for every k < n / 2.

Figures = NDArray[np.float64]

LEAST_CELLS = 3  # fewer give no effect of their own: two slow cells of two may be the place or both partners
_SWEEPS = 10
_SETTLED = 1e-6


@dataclass(frozen=True)
class TwoWay:
    """A two-way fit: value[i, j] = middle + rows[i] + columns[j] + rest[i, j]; an effect is 0 if too few cells determine it.

    known_rows, known_columns: by row and column, whether at least LEAST_CELLS cells determine its effect. In a symmetric table rows and
    columns are equal.
    """

    middle: float
    rows: Figures
    columns: Figures
    rest: Figures
    known_rows: NDArray[np.bool_]
    known_columns: NDArray[np.bool_]


def two_way(values: Figures, symmetric: bool = False) -> TwoWay:
    """Return the effects of a square table [n × n], with NaN for unknown cells."""
    there = np.isfinite(values)
    known_rows, known_columns = (there.sum(axis=axis) >= LEAST_CELLS for axis in (1, 0))
    rest, middle = values.copy(), 0.0
    rows, columns = np.zeros(len(values)), np.zeros(len(values))
    for _ in range(_SWEEPS):
        shift = _upper_middle(rest[there])
        rest, middle = rest - shift, middle + shift
        by_row = _centred(upper_medians(rest), known_rows)
        by_column = by_row if symmetric else _centred(upper_medians((rest - by_row[:, None]).T), known_columns)
        rest -= by_row[:, None] + by_column[None, :]
        rows, columns = rows + by_row, columns + by_column
        if max(np.abs(by_row).max(), np.abs(by_column).max(), abs(shift)) < _SETTLED:
            break
    return TwoWay(middle, rows, columns, rest, known_rows, known_columns)


def upper_medians(values: Figures) -> Figures:
    """Return the median of each row without NaN, the upper one of an even number of values; 0 without values."""
    ordered = np.sort(values, axis=1)  # NaN goes to the end
    count = np.isfinite(values).sum(axis=1)
    found = ordered[np.arange(len(values)), count // 2 * (count > 0)]
    return np.where(count > 0, found, 0.0)


def _centred(effects: Figures, mask: NDArray[np.bool_]) -> Figures:
    """Return the effects with enough cells minus their median, 0 for the others. With fewer than three, the median is not subtracted."""
    known = effects[mask]
    around = _upper_middle(known) if len(known) >= LEAST_CELLS else 0.0
    return np.where(mask, effects - around, 0.0)


def _upper_middle(values: Figures) -> float:
    return float(np.sort(values)[len(values) // 2]) if len(values) else 0.0


# The deviation of a cell or a place of a pair matrix that chance explains.
#
# The rests are assumed to follow Student's t with 4 degrees of freedom, which has the tails that launches showed. Lighter tails are not
# used even if the cells show them: a million cells determine the probability of one in a thousand, not of one in a billion. So with many
# places a pair that was measured only once is hardly ever named. The scale is the larger of two: that of the slower half of the cells, and
# that of the slowest tenth without the worst. Up to a tenth of the cells may be slow without an effect on the scale. If more are slow, they
# are part of the network's structure: the scale grows, and no pair is named.

TAILS = 4.0  # degrees of freedom
_MOST_SLOW = 0.1
_LEAST_SLOW = 2
_EXACT = 1e-9  # medians fit some cells exactly, which do not show the noise
_MEDIAN_ERROR = 1.34  # of n values of Student's t with 4 degrees, times scale / √n
_SMALLEST_CHANCE = 1e-11


def of_medians(scale: float, cells: Figures) -> Figures:
    """Return the scale of medians over `cells` cells each."""
    return _MEDIAN_ERROR * scale / np.sqrt(np.maximum(cells, 1))


def quantile(chance: float, degrees: float) -> float:
    """Return how many scales Student's t exceeds with this probability (at least 1e-11, the limit of the computation)."""
    return t_quantile(1 - max(chance, _SMALLEST_CHANCE), degrees)


def noise_scale(rest: Figures) -> float:
    """Return the scale of a cell from the rests; 0 if medians fit nearly all of them exactly."""
    known = rest[np.isfinite(rest)]
    depths, cells = np.sort(-known[known < -_EXACT])[::-1], len(known)
    if len(depths) <= _LEAST_SLOW:
        return 0.0
    near = float(np.median(depths)) / quantile(0.25, TAILS)
    worst = min(max(_LEAST_SLOW, int(_MOST_SLOW * cells)), len(depths) - 1)
    far = float(depths[worst]) / quantile((worst + 1) / cells, TAILS) if 2 * (worst + 1) < cells else 0.0
    return max(near, far)


def scale_of(effects: Figures) -> float:
    """Return the scale of the places' effects around their middle, from their median distance."""
    distances = np.sort(np.abs(effects))
    return float(distances[len(distances) // 2]) / quantile(0.25, TAILS) if len(distances) else 0.0


# The effect of a round: all its pairs are faster or slower by some percent than in another round.
#
# It is fitted together with the places' effects: the median over each round of the rests of a two-way fit is subtracted, repeatedly.
# The fit includes the slow places, so that a round with many of them does not count as a slow round.

PAIR_ROUNDS_LEAST_CELLS = 6  # with fewer the median removes more than the effect of the round
_TIMES = 2


def levelled(values: Figures, turns: NDArray[np.int64], symmetric: bool = False) -> Figures:
    """Return the logarithms [n × n] without the effect of the round in which each was measured; NaN stays.

    turns  by cell the round, from 0; -1: none. Rounds of fewer than PAIR_ROUNDS_LEAST_CELLS known cells are not changed
    """
    level = np.zeros(int(turns.max(initial=-1)) + 1)
    if not len(level):
        return values
    known = np.isfinite(values)
    for _ in range(_TIMES):
        rest = two_way(values - _spread(level, turns), symmetric).rest
        cells = [rest[known & (turns == turn)] for turn in range(len(level))]
        mask = np.array([len(each) >= PAIR_ROUNDS_LEAST_CELLS for each in cells])
        middles = np.array([np.median(each) if enough else 0.0 for each, enough in zip(cells, mask, strict=True)])
        if mask.any():  # around the middle of all rounds, so that the overall speed does not change
            level += np.where(mask, middles - np.median(middles[mask]), 0.0)
    return values - _spread(level, turns)


def _spread(level: Figures, turns: NDArray[np.int64]) -> Figures:
    return np.where(turns >= 0, level[turns], 0.0)


Mask = NDArray[np.bool_]

LEAST_PLACES = 4  # of fewer no slow one can be named
TO_OTHER_HOSTS, INSIDE_HOST = "to other hosts", "inside its host"  # the kinds of paths, where both exist
INTERVAL_WIDTH = 2 * 1.96  # of a 95 % interval, in standard errors
_MEDIANS_DEGREES = 8.0  # medians have lighter tails than cells
_LEAST_TESTS = 10  # pairs: of the six latencies of four places, four determine the places' effects
_FAST = 0.5  # of the effect: with a partner with which a place is less slow, it counts as fast
_EXCEPTIONS = 100  # one of so many partners may be fast by chance


class NamingLevel(NamedTuple):
    """The smallest effect that is named, and the false-alarm rate per matrix."""

    effect: float
    chance: float

    @property
    def least(self) -> float:
        """Return the smallest effect, as the depth of a logarithm."""
        return -log(1 - self.effect)


CELLS = {"bandwidth": NamingLevel(0.15, 0.004), "latency": NamingLevel(1 / 4, 0.002)}
PLACES = {"bandwidth": NamingLevel(0.05, 0.001), "latency": NamingLevel(1 / 6, 0.001)}


class SlowPlaces(NamedTuple):
    """Slow places by index: their effects (negative), and which of them are slow with all partners or only with some."""

    effects: Figures
    steady: Mask
    uneven: Mask


@dataclass(frozen=True, eq=False)
class MatrixView:
    """One quantity of a pair matrix over one kind of path.

    quantity   "bandwidth" or "latency"
    where      the kind of path; "" where there is only one
    speeds     logarithms [n × n], high is fast; NaN: another kind of path, or unknown
    errors     standard errors of the speeds from their own intervals, NaN if unknown
    remeasured  pairs that were measured again, both ways
    """

    quantity: str
    where: str
    speeds: Figures
    errors: Figures
    remeasured: Mask

    @property
    def symmetric(self) -> bool:
        """Return whether i to j equals j to i."""
        return self.quantity == "latency"

    @cached_property
    def measured(self) -> Mask:
        """Return [n × n] which cells are known."""
        return np.isfinite(self.speeds)

    @cached_property
    def fit(self) -> TwoWay:
        """Return the two-way fit: middle, effects and rests."""
        return two_way(self.speeds, self.symmetric)

    @cached_property
    def noise(self) -> float:
        """Return the scale of a cell's noise."""
        return noise_scale(self.fit.rest)

    @cached_property
    def error(self) -> float:
        """Return the standard error of a typical cell, from its own interval; 0 if no cell has one."""
        known = self.errors[self.measured & np.isfinite(self.errors)]
        return float(np.median(known)) if len(known) else 0.0

    def depth(self, twice: bool) -> float:
        """Return how far below expectation a typical cell must be, as a logarithm; `twice`: if it was measured again."""
        return float(self._depths(np.array(self.error), np.array(twice)))

    @property
    def can_name_pairs(self) -> bool:
        """Return whether there are enough cells besides the effects to judge a single one."""
        return self._tests >= _LEAST_TESTS

    @property
    def can_name_places(self) -> bool:
        """Return whether enough places have enough partners to judge one of them."""
        return max(int(self.fit.known_rows.sum()), int(self.fit.known_columns.sum())) >= LEAST_PLACES

    def slow_cells(self, twice: Mask) -> Mask:
        """Return [n × n] which cells are slower than their places explain; the threshold is lower for those in `twice`."""
        errors = np.where(np.isfinite(self.errors), self.errors, self.error)
        below: Mask = np.nan_to_num(self.fit.rest) < -self._depths(errors, twice)
        return self.measured & below & self.can_name_pairs

    def exceptions(self, slow: Mask) -> Mask:
        """Return the slow cells that are exceptions in their row and in their column."""
        rows, columns = (slow.sum(axis=axis) <= np.maximum(1, self.measured.sum(axis=axis) // 3) for axis in (1, 0))
        few: Mask = rows[:, None] & columns[None, :]
        return slow & few

    def senders(self, twice: bool = False) -> SlowPlaces:
        """Return the places that send slowly; `twice`: with the lower threshold of what is worth measuring again."""
        return self._slow(self.fit.rows, self.fit.known_rows, self.speeds, self.remeasured, twice)

    def receivers(self, twice: bool = False) -> SlowPlaces:
        """Return the places that receive slowly."""
        return self._slow(self.fit.columns, self.fit.known_columns, self.speeds.T, self.remeasured.T, twice)

    def _depths(self, errors: Figures, twice: Mask) -> Figures:
        share = CELLS[self.quantity].chance / max(1, self._tests)
        by_spread, by_interval = (
            np.where(twice, quantile(sqrt(share), degrees), quantile(share, degrees)) for degrees in (TAILS, _MEDIANS_DEGREES)
        )
        depths: Figures = np.maximum(CELLS[self.quantity].least, np.maximum(by_spread * self.noise, by_interval * errors))
        return depths

    @property
    def _tests(self) -> int:
        return int(self.measured.sum()) // (2 if self.symmetric else 1)

    def _slow(self, effects: Figures, mask: Mask, speeds: Figures, again: Mask, twice: bool) -> SlowPlaces:
        level, known = PLACES[self.quantity], int(mask.sum())
        share = level.chance / max(1, known * (1 if self.symmetric else 2))
        tail = quantile(sqrt(share) if twice else share, _MEDIANS_DEGREES)
        cells = np.isfinite(speeds).sum(axis=1)
        scale = np.maximum(scale_of(effects[mask]), of_medians(max(self.noise, self.error), cells.astype(np.float64)))
        low = mask & (effects < -np.maximum(level.least, tail * scale)) & (known >= LEAST_PLACES)
        behind = np.where(np.isfinite(speeds), speeds - self.fit.middle, -np.inf)
        fast = (behind > _FAST * effects[:, None]).sum(axis=1)
        steady = low & (fast <= cells // _EXCEPTIONS)
        confirmed = np.ones(len(effects), bool)
        for place in np.flatnonzero(steady):
            repeated = behind[place][again[place] & np.isfinite(behind[place])]
            confirmed[place] = len(repeated) == 0 or bool(np.median(repeated) < effects[place] / 2)
        return SlowPlaces(effects, steady & confirmed, low & ~steady)
