"""Interference: how much slower victims are while aggressors use the same links, from pairs of blocks with aggressors off and on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, floor, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from collbench.plugins.load.records import SHARES, LoadQuantile, Verdict
from collbench.reason import Fact
from collbench.results.estimate import Estimate
from collbench.stats.median import quantile, t_quantile
from collbench.units import plural

# Quantiles of samples that come in blocks.

FEWEST_GROUPS = 4  # of which an interval follows: Student's t with 3 degrees of freedom
_BEYOND = 3  # samples of a group above a quantile: 6 for the median, 300 for p99, 3,000 for p99.9
_NORMAL = 1e6  # degrees of freedom of a normal variable
Blocks = Sequence[NDArray[np.float64]]


def fewest_samples(share: float) -> int:
    """Return the number of samples of a group for a quantile (0 to 1): three beyond it, and six at least."""
    return max(6, round(_BEYOND / (1 - share))) if share < 1 else 6


def grouped(blocks: Sequence[Blocks], share: float) -> list[list[NDArray[np.float64]]]:
    """Return [groups][conditions] the samples of neighboring blocks, each with enough samples for a quantile.

    blocks: [conditions][blocks]; the block of each condition at the same place is of the same pair. There are at most as many groups as
    blocks, all of the same number of blocks but for the last ones; none if the blocks together do not have enough samples.
    """
    sizes = [[len(block) for block in condition] for condition in blocks]
    number = len(sizes[0])
    for count in range(number, 0, -1):
        ends = [floor(number * index / count) for index in range(count + 1)]
        parts = list(pairwise(ends))
        if all(sum(condition[low:high]) >= fewest_samples(share) for condition in sizes for low, high in parts):
            return [[np.concatenate(condition[low:high]) for condition in blocks] for low, high in parts]
    return []


def block_quantile(blocks: Blocks, share: float, confidence: float = 0.95) -> Estimate:
    """Return a quantile of all samples, in their unit. The interval covers the spread inside the blocks and between them.

    It is the union of the order statistics' interval, which needs no distribution but independent samples, and of Student's interval
    of the groups' quantiles. Without four groups the interval is unknown.
    """
    groups = grouped([blocks], share)
    if not groups:
        return Estimate()
    ordered = np.sort(np.concatenate([group[0] for group in groups]))
    value = quantile(ordered, share)
    if len(groups) < FEWEST_GROUPS:
        return Estimate(value)
    reach = t_quantile((1 + confidence) / 2, _NORMAL) * sqrt(len(ordered) * share * (1 - share))
    place = share * (len(ordered) - 1)
    ends = (place - reach - 0.5, place + reach + 0.5)
    low, high = (float(ordered[min(max(0, round(end)), len(ordered) - 1)]) for end in ends)
    half = _half_width(np.log([max(quantile(np.sort(group[0]), share), 1e-12) for group in groups]), confidence)
    return Estimate(value, min(low, value * exp(-half)), max(high, value * exp(half)))


def block_ratio(before: Blocks, after: Blocks, share: float, confidence: float = 0.95) -> Estimate:
    """Return the quantile `after` divided by that `before`: the geometric mean over groups of pairs, with Student's interval.

    Both have a block of each pair, in the same order, so that what changes slowly affects both blocks of a pair alike.
    """
    groups = grouped([before, after], share)
    if not groups:
        return Estimate()
    pairs = [[max(quantile(np.sort(part), share), 1e-12) for part in group] for group in groups]
    log_ratios = np.array([log(second / first) for first, second in pairs])
    value = exp(float(log_ratios.mean()))
    if len(groups) < FEWEST_GROUPS:
        return Estimate(value)
    half = _half_width(log_ratios, confidence)
    return Estimate(value, exp(log(value) - half), exp(log(value) + half))


def _half_width(logs: NDArray[np.float64], confidence: float) -> float:
    return min(700.0, t_quantile((1 + confidence) / 2, len(logs) - 1) * float(logs.std(ddof=1)) / sqrt(len(logs)))


_JOINT = 1 - 0.05 / len(SHARES)  # so that the intervals of a row's factors hold together with 95 %
_NOTABLE = 1.01  # an interval above this factor is interference; in 1 of 100 trials without aggressors it was 1.0001 to 1.0006
_SMALL = 1.1  # an interval of the median's factor that ends at this or below excludes interference that matters


class LoadInconclusive(Fact, frozen=True):
    """The measurement does not show whether the aggressors slow the victims down.

    why     "blocks": fewer than four pairs of blocks; "cores": ranks share cores; "wide": the interval contains 1 and larger factors
    blocks  measured pairs; low, high: the interval of the median's factor
    """

    why: Literal["blocks", "cores", "wide"]
    blocks: int = 0
    low: float | None = None
    high: float | None = None

    def render(self) -> str:
        """Return the sentence that users see."""
        if self.why == "cores":
            return "inconclusive: ranks share cores, so aggressors also take the victims' cores; start at most one rank per core"
        if self.why == "blocks":
            return f"inconclusive: {plural(self.blocks, 'pair')} of blocks, and an interval needs {FEWEST_GROUPS}; use a larger --blocks"
        interval = f" ({self.low:.3g}–{self.high:.3g}×)" if self.low is not None and self.high is not None else ""
        return f"inconclusive{interval}: use a larger --blocks or --max-time for a narrower interval"


def quantiles_of(off: Blocks, on: Blocks) -> dict[str, LoadQuantile]:
    """Return by name the quantiles of the victims' seconds with aggressors off and on. The blocks at the same place are a pair."""
    return {
        name: LoadQuantile(block_quantile(off, share), block_quantile(on, share), block_ratio(off, on, share, _JOINT))
        for name, share in SHARES.items()
    }


def judge(quantiles: Mapping[str, LoadQuantile], blocks: int, crowded: bool) -> tuple[Verdict, LoadInconclusive | None]:
    """Return the verdict of a row, and why it is inconclusive. crowded: whether ranks share cores."""
    if crowded:
        return "inconclusive", LoadInconclusive("cores", blocks)
    if blocks < FEWEST_GROUPS:
        return "inconclusive", LoadInconclusive("blocks", blocks)
    if any(times.factor.low is not None and times.factor.low > _NOTABLE for times in quantiles.values()):
        return "interference", None
    middle = quantiles["p50"].factor
    if middle.high is not None and middle.high <= _SMALL:
        return "no interference", None
    return "inconclusive", LoadInconclusive("wide", blocks, middle.low, middle.high)


def unknown_quantiles(quantiles: Mapping[str, LoadQuantile]) -> Sequence[str]:
    """Return the names of the quantiles for which the samples are not enough."""
    return [name for name, times in quantiles.items() if times.factor.low is None]
