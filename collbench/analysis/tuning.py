"""Whether a library chooses well: its automatic choice of algorithm and protocol against those that it was made to use.

A claim needs two intervals that do not overlap, which is stricter than a ratio whose interval leaves out 1: the fastest of a dozen
equal choices looks fast by chance. Left out are rows whose time is not one number (as in `alpha_beta`), and those with wrong data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from collbench.analysis.cells import forced, is_time
from collbench.analysis.compare import inverse, median_of
from collbench.analysis.latency import reason, series_of
from collbench.results.row import SERIES, Row
from collbench.stats.launches import Ratio, ratio_of_launches, ratio_of_medians

_CHOICE = frozenset({"algorithm", "protocol"})


@dataclass(frozen=True)
class Loss:
    """A size at which a forced choice is faster.

    better   the fastest row whose interval does not overlap that of the automatic choice
    part     the part of its bandwidth that the automatic choice loses, with its 95 % interval: 0.12, 0.09, 0.15
    """

    better: Row
    part: float
    low: float
    high: float


@dataclass(frozen=True)
class Judged:
    """The automatic choice of one series, size by size.

    row       its first row: its fields name the series
    losses    where something else is faster, ascending in size
    as_good   the sizes in bytes at which nothing is, as far as the intervals tell
    within    the largest part of its bandwidth that it may lose there all the same: 0.02
    unknown   those that cannot be judged: no sound interval of the automatic choice, or of anything else
    """

    row: Row
    losses: tuple[Loss, ...]
    as_good: tuple[int, ...]
    within: float
    unknown: tuple[int, ...]


def judged(rows: Iterable[Row]) -> list[Judged]:
    """One judgement for each series in which something was forced, in the order in which they first occur."""
    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        own = (value for name, value in zip(SERIES, series_of(row), strict=True) if name not in _CHOICE)
        series.setdefault(tuple(own), []).append(row)
    return [_judged(members) for members in series.values() if any(forced(row) for row in members)]


def _judged(members: Sequence[Row]) -> Judged:
    losses, as_good, unknown, within = [], [], [], 0.0
    for size in sorted({row.size_bytes for row in members}):
        sound = [row for row in members if row.size_bytes == size and _sound(row)]
        own, others = next((row for row in sound if not forced(row)), None), [row for row in sound if forced(row)]
        if own is None or not others:
            unknown.append(size)
        elif found := _loss(own, others):
            losses.append(found)
        else:
            as_good.append(size)
            within = max(within, *(_may_lose(own, other) for other in others))
    return Judged(members[0], tuple(losses), tuple(as_good), within, tuple(unknown))


def _sound(row: Row) -> bool:
    """Whether the row has a time that is one number, an interval around it, and right data."""
    if reason(row) or row.wrong:
        return False
    times = median_of(row)
    return times.ci_low is not None and times.ci_high is not None


def _loss(own: Row, others: Sequence[Row]) -> Loss | None:
    faster = [row for row in others if (median_of(row).ci_high or 0) < (median_of(own).ci_low or 0)]
    if not faster:
        return None
    better = min(faster, key=lambda row: median_of(row).value)
    ratio = inverse(_ratio(better, own))
    if ratio.low is None or ratio.high is None or ratio.high >= 1:
        return None
    return Loss(better, 1 - ratio.value, 1 - ratio.high, 1 - ratio.low)


def _may_lose(own: Row, other: Row) -> float:
    ratio = inverse(_ratio(other, own))
    return 1 - (ratio.value if ratio.low is None else ratio.low)


def _ratio(before: Row, after: Row) -> Ratio:
    """Over launches where both have several, else within one."""
    a, b = _launches(before), _launches(after)
    return ratio_of_launches(a, b) if min(len(a), len(b)) > 1 else ratio_of_medians(median_of(before), median_of(after))


def _launches(row: Row) -> list[float]:
    medians = row.evidence.get("launch_medians_s")
    return [time for time in medians if is_time(time)] if isinstance(medians, list) and row.launches > 1 else []
