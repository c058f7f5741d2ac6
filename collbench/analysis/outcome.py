"""The four outcomes of a comparison, and the rule that chooses one from a ratio of times and its 95 % confidence interval.

slower, faster   the whole interval is on one side of 1
no change        the interval is inside ±margin
inconclusive     the interval is wider than that, or missing: `Doubt` has which

An interval from within one launch on a side does not include what differs between launches. It decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

MARGIN = 0.05
_ROUNDING = 1e-9


class Outcome(StrEnum):
    """The outcome of a comparison, in the order in which to check them."""

    SLOWER = "slower"
    INCONCLUSIVE = "inconclusive"
    NO_CHANGE = "no change"
    FASTER = "faster"


class Doubt(StrEnum):
    """The reason why a comparison is inconclusive."""

    WIDE = "interval too wide"
    ONE_RUN_EACH = "one launch each"
    NO_INTERVAL = "no interval"
    OF_A_SIDE = "a side is inconclusive"


def outcome_of(low: float | None, high: float | None, margin: float = MARGIN) -> Outcome:
    """Return the outcome for a ratio of times, after / before, with the 95 % interval [low, high], which includes differences of launches.

    margin  largest difference that counts as no change: 0.05 is ±5 %
    """
    if low is None or high is None:
        return Outcome.INCONCLUSIVE
    if low > 1:
        return Outcome.SLOWER
    if high < 1:
        return Outcome.FASTER
    return Outcome.NO_CHANGE if 1 - margin <= low and high <= 1 + margin else Outcome.INCONCLUSIVE


def outcome_by_limit(factors: Iterable[float | None], limit: float | None, margin: float = MARGIN) -> Outcome:
    """Return the outcome for factors of time, after / before, of which chance explains up to `limit` (a factor, 1.02 is 2 %).

    Slower or faster is what exceeds the limit every time; no change needs a limit and factors inside the margin.
    """
    known_factors = [factor for factor in factors if factor is not None]
    if not known_factors or limit is None:
        return Outcome.INCONCLUSIVE
    if min(known_factors) > limit:
        return Outcome.SLOWER
    if max(known_factors) < 1 / limit:
        return Outcome.FASTER
    inside = max(limit, *known_factors) <= 1 + margin + _ROUNDING and min(known_factors) >= 1 - margin
    return Outcome.NO_CHANGE if inside else Outcome.INCONCLUSIVE


def count_outcomes(outcomes: Iterable[Outcome]) -> dict[Outcome, int]:
    """Return the number of each outcome, zeros included, in the order of `Outcome`."""
    counts = Counter(outcomes)
    return {outcome: counts[outcome] for outcome in Outcome}


def counts_by_name(counts: Mapping[Outcome, int]) -> dict[str, int]:
    """Return numbers of outcomes by names for programs: "no_change"."""
    return {outcome.value.replace(" ", "_"): number for outcome, number in counts.items()}
