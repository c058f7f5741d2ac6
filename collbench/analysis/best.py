"""The row that represents each operation, the scaling efficiency of a training step, and whether a library's own choice is the fastest.

An automatic choice of algorithm or protocol is slower only if its interval does not overlap that of a forced choice. That is stricter
than a ratio with an interval that excludes 1, since the fastest of a dozen equal choices looks fast by chance. Rows with wrong data,
and rows with a time that is not one number (as in `latency`), are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from collbench.analysis.launches import forced, grouped, is_time, known, median_of, sort_time, time_of
from collbench.machine.peak.ceiling import LEAST_BYTES
from collbench.operations.registry import operations
from collbench.results.quality import is_unreliable
from collbench.results.row import SERIES, Row

if TYPE_CHECKING:
    from collbench.stats.launches import Ratio

# The row that represents each operation over each backend, at the beginning of a report. It is never an average over sizes.

# Rows that differ in one of these have separate peaks. For other differences (type, placement, algorithm …) the best row has the value.
_APART = ("operation", "backend", "device", "mode", "group", "ranks", "nodes")
# A row with bytes on another path than the expected one is a peak only if nothing else was measured.
_ELSEWHERE = frozenset({"above_bound", "other_path"})


class Headline(msgspec.Struct, frozen=True):
    """The rows that represent one operation over one backend.

    row       the largest size of at least 4 MiB that is not unreliable, else the largest size; of several rows the one with the highest bus
              bandwidth. Rows with wrong data, above the hard limit, or with bytes on another path, are chosen only without others. Without
              any bandwidth (a barrier, one rank), or if the time is the result (a ping-pong), the row of the shortest time. Without valid
              figures, the first row
    smallest  the fastest row of the smallest size that has a time, for the latency; None without one, or without sizes
    cases     (the number of rows, the number of rows with valid figures)
    left_out  the sizes in bytes above that of `row` that were measured, but are unreliable
    """

    row: Row
    smallest: Row | None
    cases: int
    sound: int
    left_out: tuple[int, ...] = ()


def headlines(rows: Iterable[Row]) -> list[Headline]:
    """Return one headline for each operation over each backend, in the order in which they first occur."""
    return [_headline(members) for members in grouped(rows, attrgetter(*_APART)).values()]


def differing(best: Iterable[Headline]) -> list[str]:
    """Return the fields besides operation and backend that distinguish these peaks: "mode" in a table of two modes."""
    rows = [headline.row for headline in best]
    return [name for name in _APART[2:] if len({getattr(row, name) for row in rows}) > 1]


def is_shown_as_time(row: Row) -> bool:
    """Return whether a row's figure is its time: in a ping-pong one direction is idle, so its bandwidth is not a peak."""
    operation = operations().get(row.operation)
    return row.busbw_bytes_per_s is None or row.ranks == 1 or (operation is not None and operation.self_synchronizing)


def fits_cache(row: Row) -> bool:
    """Return whether a row's reference was measured inside the host, at a size that fits into a cache: no library aims at that rate."""
    return row.ceiling is not None and row.ceiling.kind == "measured" and row.size_bytes < LEAST_BYTES


def _headline(members: list[Row]) -> Headline:
    sound = [row for row in members if time_of(row) is not None and not row.wrong]
    fast = [row for row in sound if known(row.busbw_bytes_per_s) and not is_shown_as_time(row)]
    fast = [row for row in fast if not _ELSEWHERE.intersection(row.flags)] or fast
    best = min(sound, key=sort_time, default=members[0])
    left_out: tuple[int, ...] = ()
    if fast:
        reliable = [row for row in fast if row.size_bytes >= LEAST_BYTES and not is_unreliable(row)]
        candidates = reliable or fast
        largest = max(row.size_bytes for row in candidates)
        best = max((row for row in candidates if row.size_bytes == largest), key=lambda row: row.busbw_bytes_per_s or 0)
        left_out = tuple(sorted({row.size_bytes for row in fast if row.size_bytes > largest}))
    sized = [row for row in sound if row.size_bytes]
    smallest = min(sized, key=lambda row: (row.size_bytes, sort_time(row)), default=None)
    return Headline(best, smallest, len(members), len(sound), left_out)


_CHOICE = frozenset({"algorithm", "protocol"})


class Loss(msgspec.Struct, frozen=True):
    """A size at which a forced choice is faster.

    better   the fastest row with an interval that does not overlap that of the automatic choice
    part     the share of its bandwidth that the automatic choice loses, with its 95 % interval: 0.12, 0.09, 0.15
    """

    better: Row
    part: float
    low: float
    high: float


class JudgedChoice(msgspec.Struct, frozen=True):
    """The automatic choice of one series, judged at each size.

    row       its first row: its fields name the series
    losses    where a forced choice is faster, ascending in size
    as_good   the sizes in bytes at which no forced choice is faster, according to the intervals
    within    the largest share of its bandwidth that it may still lose there: 0.02
    unknown   the sizes that cannot be judged: no valid interval of the automatic choice, or of any forced one
    """

    row: Row
    losses: tuple[Loss, ...]
    as_good: tuple[int, ...]
    within: float
    unknown: tuple[int, ...]


def judged(rows: Iterable[Row]) -> list[JudgedChoice]:
    """Return one judgement for each series with a forced choice, in the order in which they first occur."""
    series = grouped(rows, attrgetter(*(name for name in SERIES if name not in _CHOICE)))
    return [_judged(members) for members in series.values() if any(forced(row) for row in members)]


def _judged(members: Sequence[Row]) -> JudgedChoice:
    from collbench.analysis.latency import reason  # a measurement without forced algorithms fits nothing

    losses = []
    as_good = []
    unknown = []
    within = 0.0
    for size in sorted({row.size_bytes for row in members}):
        sound = [row for row in members if row.size_bytes == size and not reason(row) and not row.wrong]
        sound = [row for row in sound if median_of(row).ci_low is not None]
        automatic = next((row for row in sound if not forced(row)), None)
        forced_rows = [row for row in sound if forced(row)]
        if automatic is None or not forced_rows:
            unknown.append(size)
            continue
        loss = _loss(automatic, forced_rows)
        if loss is not None:
            losses.append(loss)
            continue
        as_good.append(size)
        ratios = [_inverse_ratio(row, automatic) for row in forced_rows]
        within = max(within, *(1 - (ratio.value if ratio.low is None else ratio.low) for ratio in ratios))
    return JudgedChoice(members[0], tuple(losses), tuple(as_good), within, tuple(unknown))


def _loss(automatic: Row, forced_rows: Sequence[Row]) -> Loss | None:
    faster = [row for row in forced_rows if (median_of(row).ci_high or 0) < (median_of(automatic).ci_low or 0)]
    if not faster:
        return None
    better = min(faster, key=lambda row: median_of(row).value)
    ratio = _inverse_ratio(better, automatic)
    if ratio.low is None or ratio.high is None or ratio.high >= 1:
        return None
    return Loss(better, 1 - ratio.value, 1 - ratio.high, 1 - ratio.low)


def _inverse_ratio(before: Row, after: Row) -> Ratio:
    """Return the time before divided by that after, with an interval over launches where both have several, else within one."""
    from collbench.stats.launches import (  # a measurement without forced algorithms compares nothing
        inverse,
        ratio_of_launches,
        ratio_of_medians,
    )

    launches_before = _launches(before)
    launches_after = _launches(after)
    if min(len(launches_before), len(launches_after)) > 1:
        return inverse(ratio_of_launches(launches_before, launches_after))
    return inverse(ratio_of_medians(median_of(before), median_of(after)))


def _launches(row: Row) -> list[float]:
    medians = row.evidence.get("launch_medians_s")
    return [time for time in medians if is_time(time)] if isinstance(medians, list) and row.launches > 1 else []
