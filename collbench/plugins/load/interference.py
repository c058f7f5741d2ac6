"""Interference: how much slower victims are while aggressors use the same links, from pairs of blocks with aggressors off and on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from collbench.plugins.load.blocks import FEWEST_GROUPS, Blocks, QuantileEstimate, block_quantile, block_ratio
from collbench.plugins.load.records import SHARES, LoadQuantile, Verdict
from collbench.reason import Fact
from collbench.results.estimate import Estimate
from collbench.units import plural

FEWEST_BLOCKS = FEWEST_GROUPS
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
            return f"inconclusive: {plural(self.blocks, 'pair')} of blocks, and an interval needs {FEWEST_BLOCKS}; use a larger --blocks"
        known = f" ({self.low:.3g}–{self.high:.3g}×)" if self.low is not None and self.high is not None else ""
        return f"inconclusive{known}: use a larger --blocks or --max-time for a narrower interval"


def quantiles_of(off: Blocks, on: Blocks) -> dict[str, LoadQuantile]:
    """Return by name the quantiles of the victims' seconds with aggressors off and on. The blocks at the same place are a pair."""
    return {
        name: LoadQuantile(
            _estimate(block_quantile(off, share)), _estimate(block_quantile(on, share)), _estimate(block_ratio(off, on, share, _JOINT))
        )
        for name, share in SHARES.items()
    }


def _estimate(found: QuantileEstimate) -> Estimate:
    return Estimate(found.value, found.low, found.high)


def judge(quantiles: Mapping[str, LoadQuantile], blocks: int, crowded: bool) -> tuple[Verdict, LoadInconclusive | None]:
    """Return the verdict of a row, and why it is inconclusive. crowded: whether ranks share cores."""
    if crowded:
        return "inconclusive", LoadInconclusive("cores", blocks)
    if blocks < FEWEST_BLOCKS:
        return "inconclusive", LoadInconclusive("blocks", blocks)
    if any(each.factor.low is not None and each.factor.low > _NOTABLE for each in quantiles.values()):
        return "interference", None
    middle = quantiles["p50"].factor
    if middle.high is not None and middle.high <= _SMALL:
        return "no interference", None
    return "inconclusive", LoadInconclusive("wide", blocks, middle.low, middle.high)


def unknown_quantiles(quantiles: Mapping[str, LoadQuantile]) -> Sequence[str]:
    """Return the names of the quantiles for which the samples are not enough."""
    return [name for name, each in quantiles.items() if each.factor.low is None]
