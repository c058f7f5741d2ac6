"""The rates between two groups compared with those inside them, without the effect of each place.

ln(rate from i to j) = level of their two groups + effect of i as a sender + effect of j as a receiver + noise. The levels are fitted first,
then the effects, repeatedly, each by the upper median: so a slow place does not make the paths of its group slow, and slow paths do not
make a place slow. The paths between two groups are compared with the slower of both insides; with three groups or more also with the
paths between other groups, and the lower level counts. So a network that is slower between all groups accuses no path.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, permutations
from math import sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.plugins.hunt.pair_statistics import (
    MEDIANS_DEGREES,
    Mask,
    NamingLevel,
    noise_scale,
    quantile,
    scale_of_medians,
    upper_medians,
)
from collbench.plugins.hunt.records import Figures
from collbench.plugins.hunt.trials import BANDWIDTH_WAYS

LEVEL = NamingLevel(0.10, 0.001)  # the smallest slowdown of a path between groups that is reported, and the false-alarm rate per hunt
_SWEEPS = 10
_LEAST_CELLS = 2  # of the upper one of two both must be slow
_CLEAR = 4.0  # an effect, in scales of its noise
_FAR_APART = 0.15  # ln: smaller steps between latencies are one group
_STEP = 2.0  # the step between latencies inside and between groups, in steps between others


class Contrast(msgspec.Struct, frozen=True):
    """The slow paths between two groups, by their numbers, the lower first.

    ways          BANDWIDTH_WAYS: from the first group to the second, and back
    log_slowdown  the mean over these ways, above 0
    slow, pairs   how many of the measured pairs are behind by more than half of it
    """

    groups: tuple[int, int]
    ways: tuple[str, ...]
    log_slowdown: float
    slow: int
    pairs: int


class BlockFit(msgspec.Struct, frozen=True):
    """The fit.

    group_of  by place its group, -1: none; hosts: by place
    levels    [group × group], NaN if no pair was measured; senders, receivers: effects of the places
    noise     the scale of a pair that is not over a slow path
    """

    group_of: NDArray[np.int64]
    hosts: tuple[str, ...]
    log_speeds: Figures
    levels: Figures
    senders: Figures
    receivers: Figures
    noise: float

    def corrected(self, sender: int, receiver: int, speed: float) -> float:
        """Return ln(speed) without the effects of its places."""
        return float(np.log(speed) - self.senders[sender] - self.receivers[receiver])

    def inside(self) -> float:
        """Return the usual level inside a group; NaN if none was measured."""
        return _upper_median(np.diag(self.levels))

    def slow_places(self) -> set[int]:
        """Return the places that are noticeably slow by themselves, which must not show the rate of a path."""
        cells = np.isfinite(self.log_speeds).sum(axis=1).astype(np.float64)
        limit = np.maximum(LEVEL.least, _CLEAR * scale_of_medians(self.noise, cells))
        return {int(place) for place in np.flatnonzero(np.minimum(self.senders, self.receivers) < -limit)}

    def contrasts(self) -> list[Contrast]:
        """Return the slow paths between groups, the slowest first; the limit is loose, since they are measured again."""
        tests = max(1, len(self.levels) * (len(self.levels) - 1))
        rate = sqrt(LEVEL.false_alarm_rate / tests)
        contrasts = []
        for first, second in combinations(range(len(self.levels)), 2):
            slowdowns: dict[str, float] = {}
            cells = []
            for way, (sender, receiver) in zip(BANDWIDTH_WAYS, ((first, second), (second, first)), strict=True):
                block = self._block(sender, receiver)
                slowdown = self.reference(first, second) - self.levels[sender, receiver]
                limit = quantile(rate, MEDIANS_DEGREES) * sqrt(2) * float(scale_of_medians(self.noise, np.array(max(1, len(block)))))
                if len(block) and slowdown > max(LEVEL.least, limit):
                    slowdowns[way] = float(slowdown)
                    cells.append(block)
            if slowdowns:
                mean = float(np.mean(list(slowdowns.values())))
                pairs = np.concatenate(cells)
                slow = int((pairs < self.reference(first, second) - mean / 2).sum())
                contrasts.append(Contrast((first, second), tuple(slowdowns), mean, slow // len(cells), len(pairs) // len(cells)))
        return sorted(contrasts, key=lambda contrast: -contrast.log_slowdown)

    def reference(self, first: int, second: int) -> float:
        """Return the level to compare the paths between two groups with; NaN if a group has no measured pair inside."""
        return _reference(self.levels, first, second)

    def _block(self, sender: int, receiver: int) -> Figures:
        """Return the known speeds from one group to another, as logarithms, without the effects of the places."""
        speeds = self.log_speeds - self.senders[:, None] - self.receivers[None, :]
        block = speeds[np.ix_(self.group_of == sender, self.group_of == receiver)]
        return block[np.isfinite(block)]


def fit_blocks(log_speeds: Figures, group_of: NDArray[np.int64], hosts: Sequence[str]) -> BlockFit:
    """Return the fit of speeds [n × n] between places on these hosts, as logarithms; NaN: unknown. Pairs inside a host do not count."""
    number = int(group_of.max(initial=-1)) + 1
    _, host_of = np.unique(np.array(hosts), return_inverse=True)
    judged = (group_of >= 0)[:, None] & (group_of >= 0)[None, :] & (host_of[:, None] != host_of[None, :])
    speeds = np.where(judged, log_speeds, np.nan)
    residuals = speeds.copy()
    levels = np.zeros((number, number))
    senders = np.zeros(len(group_of))
    receivers = np.zeros(len(group_of))
    for _ in range(_SWEEPS):
        for first in range(number):
            for second in range(number):
                block = np.ix_(group_of == first, group_of == second)
                level = _upper_median(residuals[block])
                levels[first, second] += level
                residuals[block] -= level
        # pairs over a slow path are slower the more of them a round has: they show no effect of a place, and no noise
        usable = np.where(_over_slow_path(levels, group_of), np.nan, 0.0)
        by_sender = _effects(residuals + usable)
        residuals -= by_sender[:, None]
        by_receiver = _effects((residuals + usable).T)
        residuals -= by_receiver[None, :]
        senders = senders + by_sender
        receivers = receivers + by_receiver
        for group in range(number):  # the upper one of the middle places of a group has no effect
            members = group_of == group
            shift = _upper_median(senders[members])
            senders[members] -= shift
            levels[group] += shift
            shift = _upper_median(receivers[members])
            receivers[members] -= shift
            levels[:, group] += shift
    return BlockFit(group_of, tuple(hosts), speeds, levels, senders, receivers, noise_scale(residuals + usable))


def _over_slow_path(levels: Figures, group_of: NDArray[np.int64]) -> Mask:
    """Return [n × n] which pairs are between groups with a level that is noticeably below the reference."""
    over = np.zeros((len(group_of), len(group_of)), bool)
    for first, second in permutations(range(len(levels)), 2):
        if levels[first, second] < _reference(levels, min(first, second), max(first, second)) - LEVEL.least:
            over |= (group_of == first)[:, None] & (group_of == second)[None, :]
    return over


def _reference(levels: Figures, first: int, second: int) -> float:
    """Return the slower inside of two groups; with other groups also the usual level between these, and the lower of both."""
    inside = float(np.minimum(levels[first, first], levels[second, second]))
    other_levels = levels.copy()
    np.fill_diagonal(other_levels, np.nan)
    other_levels[[first, second], [second, first]] = np.nan
    between = _upper_median(other_levels)
    return inside if np.isnan(between) else min(inside, between)


def _effects(residuals: Figures) -> Figures:
    """Return the upper median of each row, 0 for a row of fewer than two cells."""
    return np.where(np.isfinite(residuals).sum(axis=1) >= _LEAST_CELLS, upper_medians(residuals), 0.0)


def _upper_median(values: Figures) -> float:
    ordered = np.sort(values[np.isfinite(values)], axis=None)
    return float(ordered[len(ordered) // 2]) if len(ordered) else float("nan")


def groups_by_latency(latency_s: Figures) -> tuple[str, ...]:
    """Return by place the name of its group: places whose latencies to one another are clearly shorter than to all others.

    Latencies [n × n] are joined by single linkage, the shortest first. The largest step (in ln) between two joins ends it. () if that step
    is not clear, or if it leaves fewer than two groups of two places.
    """
    n = len(latency_s)
    logs = np.log(np.fmin(latency_s, latency_s.T))
    parts = {place: {place} for place in range(n)}
    joins: list[tuple[float, list[frozenset[int]]]] = []
    for first, second in sorted(combinations(range(n), 2), key=lambda pair: logs[pair]):
        if not np.isfinite(logs[first, second]) or parts[first] is parts[second]:
            continue
        joins.append((float(logs[first, second]), list({frozenset(part) for part in parts.values()})))
        parts[first] |= parts[second]
        for place in parts[second]:
            parts[place] = parts[first]
    steps = [after[0] - before[0] for before, after in pairwise(joins)]
    if not steps:
        return ()
    largest = int(np.argmax(steps))
    second_largest = max(steps[:largest] + steps[largest + 1 :], default=0.0)
    groups = joins[largest + 1][1]
    is_clear = steps[largest] > max(_FAR_APART, _STEP * second_largest)
    if not is_clear or sum(len(group) > 1 for group in groups) < 2:
        return ()
    names = {place: f"group {number}" for number, group in enumerate(sorted(groups, key=min), 1) for place in group}
    return tuple(names[place] for place in range(n))


def numbered(names: Sequence[str]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return (by place the number of its group, -1 without a name; the names of the groups)."""
    groups = tuple(dict.fromkeys(name for name in names if name))
    return np.array([groups.index(name) if name else -1 for name in names], np.int64), groups
