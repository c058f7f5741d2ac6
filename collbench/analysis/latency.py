"""Latency and bandwidth of a series: t(size) = α + β·size, fitted over its sizes in up to three regimes (protocols).

The cases of a series differ in size only. Its fit needs at least 4 sizes. Cases with a time that is not one number, or not the
library's, are left out and reported: n/a, wrong data, `oversubscribed` (waiting for a core), `two_modes`, `drift`, `state_flip` and
`budget_exceeded`. Flags of cases that are kept:
- `target_missed`, `warmup_unsettled`: their median is less certain, but the best available.
- `skew_limited`: common for the smallest sizes. Their times, and so α, may be overestimated by at most the ranks' exit skew.
- `drift` within one of several launches: the median over launches is one number.
A series of one rank has no bus bandwidth, and a barrier has no bytes, so neither has a fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from collbench.analysis.launches import case_of, grouped, row_times, time_of
from collbench.results.row import Row
from collbench.stats.fit import Bounds, Fit, FitSegment, fit

_FEWEST = 4
_NEVER_S = 1e9  # a longer time can only be from a broken or hostile file
_WITHOUT = frozenset({"oversubscribed", "two_modes", "drift", "state_flip", "budget_exceeded"})


class LineFit(msgspec.Struct, frozen=True):
    """The fitted latency and bandwidth of one series.

    row        its largest fitted case: its fields name the series, its ceiling is compared with the fit
    first      the smallest size fitted, in bytes
    fit        the regimes, and the sizes that are more than 10 % off: (size_bytes, measured / fitted - 1)
    busbw      the bus bandwidth that very large messages approach (bus factor / β of the last regime), in bytes per second
    percent    busbw as a percentage of the ceiling; None if the row has no percentage, or is off the fit
    half_size  the size in bytes that reaches half of busbw (α / β where there is one regime); None when no regime reaches it, or when its
               α may be 0
    left_out   the sizes that were not fitted, with the reason: (size_bytes, a flag or "n/a")
    """

    row: Row
    first: int
    fit: Fit
    busbw: Bounds
    percent: float | None
    half_size: float | None
    left_out: tuple[tuple[int, str], ...]

    @property
    def alpha_s(self) -> Bounds:
        """Return the latency in seconds: that of the regime of the smallest sizes."""
        return self.fit.regimes[0].alpha_s

    @property
    def switches(self) -> tuple[int, ...]:
        """Return the sizes in bytes at which a new regime begins."""
        return tuple(int(regime.first) for regime in self.fit.regimes[1:])


def series_of(row: Row) -> tuple[Any, ...]:
    """Return what distinguishes the row's series from others: every column but the size."""
    return case_of(row)._replace(size_bytes=0)


def line_fits(rows: Iterable[Row]) -> list[LineFit]:
    """Return one fit for each series of `rows` that allows it, in the order in which the series first occur."""
    fits = (_line_fit(members) for members in grouped(rows, series_of).values())
    return [line for line in fits if line is not None]


def _line_fit(members: list[Row]) -> LineFit | None:
    used = {row.size_bytes: row for row in members if not reason(row)}  # of a repeated size the last measurement counts
    rows = [used[size] for size in sorted(used)]
    last = rows[-1] if len(rows) >= _FEWEST else None
    if last is None or last.ranks < 2 or not last.busbw_bytes_per_s or not last.algbw_bytes_per_s:
        return None
    line = _fitted(tuple(row.size_bytes for row in rows), tuple(row_times(rows)))
    if line is None or not line.regimes or line.regimes[-1].s_per_byte.value <= 0:
        return None
    factor = last.busbw_bytes_per_s / last.algbw_bytes_per_s
    s_per_byte = line.regimes[-1].s_per_byte
    low, high = (factor / end if end > 0 else float("inf") for end in (s_per_byte.high, s_per_byte.low))  # the slow bound is the low one
    busbw = Bounds(factor / s_per_byte.value, low, high)
    reasons = [(row.size_bytes, reason(row)) for row in members]
    left_out = tuple(sorted((size, why) for size, why in reasons if why))
    is_off = any(size == last.size_bytes for size, _ in line.off)
    percent = 100 * busbw.value / last.comparison.expected_bytes_per_s if last.comparison and not is_off else None
    return LineFit(last, rows[0].size_bytes, line, busbw, percent, _half_size(line.regimes), left_out)


@lru_cache(maxsize=1024)
def _fitted(sizes: tuple[int, ...], times_s: tuple[float, ...]) -> Fit | None:
    """Return the fit; cached, since one report shows the same series in its table and on its page."""
    return fit(sizes, times_s)


def reason(row: Row) -> str | None:
    """Return why the row is not fitted: a flag, or "n/a"; None if it is.

    Reasons are a time that is not one number, or not the library's, and wrong data.
    """
    time_s = time_of(row)
    if time_s is None or time_s > _NEVER_S or row.size_bytes <= 0:
        return "n/a"
    if row.wrong:
        return "wrong_data"
    without = _WITHOUT - {"drift"} if row.launches > 1 else _WITHOUT
    return next((flag for flag in row.flags if flag in without), None)


def _half_size(regimes: tuple[FitSegment, ...]) -> float | None:
    """Return the first size with a time of twice that at the asymptotic rate: α + β·n = 2·β_last·n, in the regime that has it."""
    last = regimes[-1].s_per_byte.value
    ends = [*(regime.first for regime in regimes[1:]), float("inf")]
    for regime, end in zip(regimes, ends, strict=True):
        slope = 2 * last - regime.s_per_byte.value
        if slope <= 0:
            continue
        size = max(regime.alpha_s.value / slope, 0.0 if regime is regimes[0] else float(regime.first))
        if size < end:
            return size if regime.alpha_s.low > 0 else None
    return None
