"""The rule for an old and a new stack by turns in one allocation: what may be by chance, learned from the pairs of launches themselves.

No history is needed: what the allocation does to both cancels in a pair. A limit is four standard errors of the median over the pairs,
never less than the floor that a baseline's limits have. Slower is what exceeds it in two allocations. Four, and a spread that no single
pair can make: simulated with the noise of `gate.noise` three of the usual spread's raised twice as many alarms as were to be allowed and
found less, since one launch of a cell with two modes widens what its median hardly feels. `self_test` says how often it alarms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from collbench.gate.rule import FEWEST, LEAST_CELLS, LENT, Limits, floors_of
from collbench.gate.scheme import Figures, Numbers, Scheme, known_median

PAIRS, PAIRED_STRIKES = 5, 2  # of launches of two stacks, at least, in each of so many allocations
_ERRORS = 4.0
_OF_A_MEDIAN = 1.2533  # its standard error over that of a mean, for a normal distribution
_DRAWN = 20_000


def learn_pairs(differences: Figures, scheme: Scheme) -> Limits:
    """The limits of [allocations × pairs × cells] ln of new over old time; NaN where one launch of a pair has none. Centres are 0.

    A later allocation may hold suspects alone: what is judged is what the first one measured. A cell's spread, of all allocations about
    the mean of each, is drawn towards the median of its group's, a group's towards that of its class.
    """
    counts = np.isfinite(differences[0]).sum(axis=0)
    judged = counts >= FEWEST
    known_well = np.where(judged, differences, np.nan)
    cells = _chance(differences, lambda own: scheme.medians(own)[scheme.of])
    groups = _chance(scheme.medians(known_well), lambda own: _by_class(own, scheme))
    whole = float(_chance(known_median(known_well)[..., None], lambda own: own)[0])
    floors = floors_of(scheme)
    many = np.bincount(scheme.of, judged, len(scheme.groups)) >= LEAST_CELLS
    return Limits(
        scheme, counts, np.zeros(len(scheme.of)), np.maximum(floors.cells, cells),
        np.zeros(len(many)), np.where(many, np.maximum(floors.groups, groups), np.inf),
        0.0, float(np.inf if judged.sum() < LEAST_CELLS else max(floors.whole, whole)),
    )  # fmt: skip


def _by_class(values: Figures, scheme: Scheme) -> Figures:
    """[groups] the median over all groups of the same class of sizes."""
    return np.array([known_median(values[scheme.classes == each]) for each in scheme.classes])


def _chance(values: Figures, lent_by: Callable[[Figures], Figures]) -> Figures:
    """[allocations × pairs × …] -> […]: how far the median over an allocation's pairs is from 0 by chance."""
    counts = np.isfinite(values).sum(axis=1)
    degrees = np.maximum(counts - 1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        own = (degrees * np.array([_variance(each) for each in values])).sum(axis=0) / degrees.sum(axis=0)
        drawn = (LENT * lent_by(own) + degrees.sum(axis=0) * np.nan_to_num(own)) / (LENT + degrees.sum(axis=0))
        fewest = np.where(counts > 0, counts, np.inf).min(axis=0)
        found = _ERRORS * _OF_A_MEDIAN * np.sqrt(drawn / fewest)
    return np.where(np.isfinite(found) & np.isfinite(fewest), found, np.inf)


def _variance(values: Figures) -> Figures:
    """[pairs × …] -> […]: of what is known, the outermost on each side drawn in to its neighbour (winsorised); 0 of fewer than two."""
    counts = np.isfinite(values).sum(axis=0)
    ordered = np.sort(values, axis=0)  # NaN comes last
    inward = (counts >= FEWEST).astype(np.int64)
    low, high = (np.take_along_axis(ordered, np.maximum(at, 0)[None], axis=0) for at in (inward, counts - 1 - inward))
    drawn_in = np.clip(values, low, high)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(drawn_in, axis=0) / counts
        plain = np.nansum((drawn_in - mean) ** 2, axis=0) / (counts - 1)
    return np.where(counts > 1, plain * _widening(counts), 0.0)


def _widening(counts: Numbers) -> Figures:
    """By what the winsorised variance of so many falls short of the plain one, for a normal distribution."""
    found = np.ones(counts.shape)
    for count in np.unique(counts[counts >= FEWEST]):
        found[counts == count] = _shortfall(int(count))
    return found


@cache
def _shortfall(count: int) -> float:
    values = np.sort(np.random.default_rng(0).normal(size=(_DRAWN, count)), axis=1)
    return float(1 / np.clip(values, values[:, 1:2], values[:, -2:-1]).var(axis=1, ddof=1).mean())
