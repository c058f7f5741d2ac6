"""Statistics of a pair matrix: the pairs and places that are slower than chance explains.

All values are natural logarithms of speeds, and those of a pair of places i, j are fitted by

    speed[i, j] = middle + row effect[i] + column effect[j] + residual[i, j]

by medians (`two_way`). A place is slow by its effects, a pair by its residual. Chance is modelled as scale · t: Student's t with 4 degrees
of freedom for a pair (`TAIL_DEGREES`), with 8 for medians and means of pairs (`MEDIANS_DEGREES`). With a false-alarm rate p that all tests
of a matrix share, a value is slow below −max(least, t(1 − p / tests) · scale). What was measured twice needs only t(1 − √(p / tests)).
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from math import log, sqrt
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.plugins.hunt.records import Figures, PairMatrix
from collbench.stats.median import t_quantile

Mask = NDArray[np.bool_]

LEAST_CELLS = 3  # fewer give no effect of their own: two slow cells of two may be the place or both partners
_SWEEPS = 10
_SETTLED = 1e-6

TAIL_DEGREES = 4.0  # of freedom
MEDIANS_DEGREES = 8.0  # medians and means have lighter tails than cells
_MOST_SLOW = 0.1
_LEAST_SLOW = 2
_EXACT = 1e-9  # medians fit some cells exactly, which do not show the noise
_MEDIAN_ERROR = 1.34  # of n values of Student's t with 4 degrees, times scale / √n
_SMALLEST_CHANCE = 1e-11

PAIR_ROUNDS_LEAST_CELLS = 6  # with fewer the median removes more than the effect of the round
_TIMES = 2

LEAST_PLACES = 4  # of fewer no slow one can be named
TO_OTHER_HOSTS, INSIDE_HOST = "to other hosts", "inside its host"  # the kinds of paths, where both exist
INTERVAL_WIDTH = 2 * 1.96  # of a 95 % interval, in standard errors
_LEAST_TESTS = 10  # pairs: of the six latencies of four places, four determine the places' effects
_FAST = 0.5  # of the effect: with a partner with which a place is less slow, it counts as fast
_EXCEPTIONS = 100  # one of so many partners may be fast by chance


class TwoWay(msgspec.Struct, frozen=True):
    """A two-way fit: value[i, j] = middle + rows[i] + columns[j] + residuals[i, j]; an effect is 0 if too few cells determine it.

    has_row_effect, has_column_effect: by row and column, whether at least LEAST_CELLS cells determine its effect. In a symmetric table
    rows and columns are equal.
    """

    middle: float
    rows: Figures
    columns: Figures
    residuals: Figures
    has_row_effect: Mask
    has_column_effect: Mask


def two_way(values: Figures, symmetric: bool = False) -> TwoWay:
    """Return the effects of a square table [n × n], with NaN for unknown cells.

    It is Tukey's median polish, with two differences: cells may be missing (NaN), and the upper of the two middle values is used for an
    even number of values. Values are speeds, and a pair is as slow as the slower of its two ends. With k slow places among n, a healthy
    place has n - 1 - k fast partners and k slow ones, so the upper median is a fast one for every k < n / 2.
    """
    is_known = np.isfinite(values)
    has_row_effect = is_known.sum(axis=1) >= LEAST_CELLS
    has_column_effect = is_known.sum(axis=0) >= LEAST_CELLS
    residuals = values.copy()
    middle = 0.0
    rows = np.zeros(len(values))
    columns = np.zeros(len(values))
    for _ in range(_SWEEPS):
        shift = _upper_middle(residuals[is_known])
        residuals = residuals - shift
        middle += shift
        by_row = _centred(upper_medians(residuals), has_row_effect)
        by_column = by_row
        if not symmetric:
            by_column = _centred(upper_medians((residuals - by_row[:, None]).T), has_column_effect)
        residuals -= by_row[:, None] + by_column[None, :]
        rows = rows + by_row
        columns = columns + by_column
        if max(np.abs(by_row).max(), np.abs(by_column).max(), abs(shift)) < _SETTLED:
            break
    return TwoWay(middle, rows, columns, residuals, has_row_effect, has_column_effect)


def upper_medians(values: Figures) -> Figures:
    """Return the median of each row without NaN, the upper one of an even number of values; 0 without values."""
    ordered = np.sort(values, axis=1)  # NaN goes to the end
    count = np.isfinite(values).sum(axis=1)
    medians = ordered[np.arange(len(values)), count // 2 * (count > 0)]
    return np.where(count > 0, medians, 0.0)


def _centred(effects: Figures, mask: Mask) -> Figures:
    """Return the effects with enough cells minus their median, 0 for the others. With fewer than three, the median is not subtracted."""
    determined = effects[mask]
    middle = _upper_middle(determined) if len(determined) >= LEAST_CELLS else 0.0
    return np.where(mask, effects - middle, 0.0)


def _upper_middle(values: Figures) -> float:
    return float(np.sort(values)[len(values) // 2]) if len(values) else 0.0


def scale_of_medians(scale: float, cells: Figures) -> Figures:
    """Return the scale of medians over `cells` cells each: 1.34 · scale / √cells."""
    return _MEDIAN_ERROR * scale / np.sqrt(np.maximum(cells, 1))


def quantile(chance: float, degrees: float) -> float:
    """Return how many scales Student's t exceeds with this probability (at least 1e-11, the limit of the computation)."""
    return t_quantile(1 - max(chance, _SMALLEST_CHANCE), degrees)


def noise_scale(residuals: Figures) -> float:
    """Return the scale of a cell from the residuals; 0 if medians fit nearly all of them exactly.

    The residuals are assumed to follow Student's t with 4 degrees of freedom, which has the tails that launches showed. Lighter tails are
    not used even if the cells show them: a million cells determine the probability of one in a thousand, not of one in a billion. So with
    many places a pair that was measured only once is hardly ever named. The scale is the larger of two: that of the slower half of the
    cells, and that of the slowest tenth without the worst. Up to a tenth of the cells may be slow without an effect on the scale. If more
    are slow, they are part of the network's structure: the scale grows, and no pair is named.
    """
    measured = residuals[np.isfinite(residuals)]
    slowdowns = np.sort(-measured[measured < -_EXACT])[::-1]
    if len(slowdowns) <= _LEAST_SLOW:
        return 0.0
    near = float(np.median(slowdowns)) / quantile(0.25, TAIL_DEGREES)
    worst = min(max(_LEAST_SLOW, int(_MOST_SLOW * len(measured))), len(slowdowns) - 1)
    far = 0.0
    if 2 * (worst + 1) < len(measured):
        far = float(slowdowns[worst]) / quantile((worst + 1) / len(measured), TAIL_DEGREES)
    return max(near, far)


def scale_of(effects: Figures) -> float:
    """Return the scale of the places' effects around their middle, from their median distance."""
    distances = np.sort(np.abs(effects))
    return float(distances[len(distances) // 2]) / quantile(0.25, TAIL_DEGREES) if len(distances) else 0.0


def without_round_effects(values: Figures, turns: NDArray[np.int64], symmetric: bool = False) -> Figures:
    """Return the logarithms [n × n] without the effect of the round in which each was measured; NaN stays.

    All pairs of a round are faster or slower by some percent than in another round. This effect is fitted together with the places'
    effects: the median over each round of the residuals of a two-way fit is subtracted, repeatedly. The fit includes the slow places, so
    that a round with many of them does not count as a slow round.

    turns  by cell the round, from 0; -1: none. Rounds of fewer than PAIR_ROUNDS_LEAST_CELLS known cells are not changed
    """
    effects = np.zeros(int(turns.max(initial=-1)) + 1)
    if not len(effects):
        return values
    is_known = np.isfinite(values)
    in_round = turns >= 0
    for _ in range(_TIMES):
        residuals = two_way(values - np.where(in_round, effects[turns], 0.0), symmetric).residuals
        cells = [residuals[is_known & (turns == turn)] for turn in range(len(effects))]
        mask = np.array([len(round_cells) >= PAIR_ROUNDS_LEAST_CELLS for round_cells in cells])
        middles = np.array([np.median(round_cells) if enough else 0.0 for round_cells, enough in zip(cells, mask, strict=True)])
        if mask.any():  # around the middle of all rounds, so that the overall speed does not change
            effects += np.where(mask, middles - np.median(middles[mask]), 0.0)
    return values - np.where(in_round, effects[turns], 0.0)


class NamingLevel(NamedTuple):
    """The smallest effect that is named, and the false-alarm rate per matrix."""

    effect: float
    false_alarm_rate: float

    @property
    def least(self) -> float:
        """Return the smallest effect, as a slowdown (a logarithm)."""
        return -log(1 - self.effect)


PAIRS_LEVEL = {"bandwidth": NamingLevel(0.15, 0.004), "latency": NamingLevel(1 / 4, 0.002)}
PLACES_LEVEL = {"bandwidth": NamingLevel(0.05, 0.001), "latency": NamingLevel(1 / 6, 0.001)}


class SlowPlaces(NamedTuple):
    """Slow places by index: those that are slow with all partners, and those that are slow with most but not all."""

    slow_with_all: Mask
    slow_with_most: Mask


class MatrixView(msgspec.Struct, frozen=True, eq=False, dict=True):
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
        """Return the two-way fit: middle, effects and residuals."""
        return two_way(self.speeds, self.symmetric)

    @cached_property
    def noise(self) -> float:
        """Return the scale of a cell's noise."""
        return noise_scale(self.fit.residuals)

    @cached_property
    def error(self) -> float:
        """Return the standard error of a typical cell, from its own interval; 0 if no cell has one."""
        errors = self.errors[self.measured & np.isfinite(self.errors)]
        return float(np.median(errors)) if len(errors) else 0.0

    @property
    def can_name_pairs(self) -> bool:
        """Return whether there are enough cells besides the effects to judge a single one."""
        return self._tests >= _LEAST_TESTS

    @property
    def can_name_places(self) -> bool:
        """Return whether enough places have enough partners to judge one of them."""
        return max(int(self.fit.has_row_effect.sum()), int(self.fit.has_column_effect.sum())) >= LEAST_PLACES

    def detectable(self, twice: bool) -> float:
        """Return the smallest slowdown at which a typical cell is named, as a logarithm; `twice`: if it was measured again."""
        return float(self._limits(np.array(self.error), np.array(twice)))

    def slow_cells(self, twice: Mask) -> Mask:
        """Return [n × n] which cells are slower than their places explain; the threshold is lower for those in `twice`."""
        errors = np.where(np.isfinite(self.errors), self.errors, self.error)
        below: Mask = np.nan_to_num(self.fit.residuals) < -self._limits(errors, twice)
        return self.measured & below & self.can_name_pairs

    def exceptions(self, slow: Mask) -> Mask:
        """Return the slow cells that are exceptions in their row and in their column."""
        few_in_row, few_in_column = (slow.sum(axis=axis) <= np.maximum(1, self.measured.sum(axis=axis) // 3) for axis in (1, 0))
        few: Mask = few_in_row[:, None] & few_in_column[None, :]
        return slow & few

    def senders(self, twice: bool = False) -> SlowPlaces:
        """Return the places that send slowly; `twice`: with the lower threshold of what is worth measuring again."""
        return self._slow(self.fit.rows, self.fit.has_row_effect, self.speeds, self.remeasured, twice)

    def receivers(self, twice: bool = False) -> SlowPlaces:
        """Return the places that receive slowly."""
        return self._slow(self.fit.columns, self.fit.has_column_effect, self.speeds.T, self.remeasured.T, twice)

    @property
    def _tests(self) -> int:
        return int(self.measured.sum()) // (2 if self.symmetric else 1)

    def _limits(self, errors: Figures, twice: Mask) -> Figures:
        """Return by cell the slowdown from which on it is slow; the noise has heavier tails than the medians with these errors."""
        level = PAIRS_LEVEL[self.quantity]
        rate = level.false_alarm_rate / max(1, self._tests)
        by_noise, by_interval = (
            np.where(twice, quantile(sqrt(rate), degrees), quantile(rate, degrees)) for degrees in (TAIL_DEGREES, MEDIANS_DEGREES)
        )
        limits: Figures = np.maximum(level.least, np.maximum(by_noise * self.noise, by_interval * errors))
        return limits

    def _slow(self, effects: Figures, has_effect: Mask, speeds: Figures, remeasured: Mask, twice: bool) -> SlowPlaces:
        level = PLACES_LEVEL[self.quantity]
        places = int(has_effect.sum())
        rate = level.false_alarm_rate / max(1, places * (1 if self.symmetric else 2))
        max_z = quantile(sqrt(rate) if twice else rate, MEDIANS_DEGREES)
        cells = np.isfinite(speeds).sum(axis=1)
        scale = np.maximum(scale_of(effects[has_effect]), scale_of_medians(max(self.noise, self.error), cells.astype(np.float64)))
        low = has_effect & (effects < -np.maximum(level.least, max_z * scale)) & (places >= LEAST_PLACES)
        above_middle = np.where(np.isfinite(speeds), speeds - self.fit.middle, -np.inf)
        fast = (above_middle > _FAST * effects[:, None]).sum(axis=1)
        with_all = low & (fast <= cells // _EXCEPTIONS)
        with_most = low & ~with_all
        for place in np.flatnonzero(with_all):
            repeated = above_middle[place][remeasured[place] & np.isfinite(above_middle[place])]
            with_all[place] = len(repeated) == 0 or bool(np.median(repeated) < effects[place] / 2)
        return SlowPlaces(with_all, with_most)


def views_of(matrix: PairMatrix, remeasured: Collection[tuple[int, int]] = ()) -> list[MatrixView]:
    """Return the views: bandwidth, then latency; each by paths inside hosts and between them, where both exist; none below four places."""
    if matrix.n < LEAST_PLACES:
        return []
    is_remeasured = np.zeros((matrix.n, matrix.n), bool)
    for a, b in remeasured:
        is_remeasured[a, b] = is_remeasured[b, a] = True
    kinds = {TO_OTHER_HOSTS: ~matrix.inside, INSIDE_HOST: matrix.inside & ~np.eye(matrix.n, dtype=bool)}
    mixed = all(bool(kind.any()) for kind in kinds.values())
    with np.errstate(all="ignore"):
        errors = (np.log(matrix.high) - np.log(matrix.low)) / INTERVAL_WIDTH
        spread = np.full_like(errors, np.nan) if matrix.latency_spread is None else np.log(matrix.latency_spread)
        quantities = {
            "bandwidth": (_finite(np.log(matrix.bandwidth)), errors),
            "latency": (_finite(-np.log(matrix.latency_s)), _finite(spread) / INTERVAL_WIDTH),
        }
    return [
        MatrixView(quantity, where if mixed else "", np.where(kind, speeds, np.nan), speed_errors, is_remeasured)
        for quantity, (speeds, speed_errors) in quantities.items()
        for where, kind in kinds.items()
        if np.isfinite(speeds[kind]).any()
    ]


def _finite(values: Figures) -> Figures:
    return np.where(np.isfinite(values), values, np.nan)
