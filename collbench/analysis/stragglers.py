"""Which rank holds the others up: one that is the slowest in more than its share of the samples, and noticeably so.

Compared are only cells in which every rank has the same part by design:
- no rooted operation: a broadcast's root leaves first, and ranks deep in its tree finish later;
- no pairs: of a pair only the first rank is timed, and pairs within a host are faster than pairs between hosts;
- no groups of a split: ranks of different groups do not wait for one another;
- no uneven traffic: whoever sends or receives most is the slowest;
- no cell whose ranks lack cores (who waits for a core is chance) or left the synchronisation far apart (`skew_limited`).

A rank stands out in a cell when both hold:
- it is the slowest in significantly more samples than 1/n of them (of two ranks each is in half): a binomial test with as many
  samples as the series is worth (at least 20), at 0.1 % for the whole run (Bonferroni over ranks × cells);
- its median is above the others' median by more than 5 %, by more than the clock shows (10 ns), and by more than the ranks'
  exit skew: a rank that starts first waits for the last, and is no slower for that. Hence also no word where medians are unknown:
  a rank that is always 1 ns behind is the slowest in every sample.

A rank is named when it stands out in at least a quarter of one backend's cells, and in two of them if there are two: what hits
a single cell is the machine's noise. Simulated (2–32 ranks, 1–12 cells of 60–456 samples, lag-1 correlation 0–0.97): false alarms
in less than 1 % of the runs; a rank that is 10 % slower is named in 19 of 20 runs of 12 cells up to a correlation of 0.5.

What cannot be told apart: a slow rank, and one to which the library's algorithm gives an extra step (recursive doubling does
where the number of ranks is no power of two).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, floor, lgamma, log, log1p

import numpy as np
from numpy.typing import NDArray

from collbench.errors import UsageError
from collbench.results.reader import Run
from collbench.results.record import Row
from collbench.units import format_percent

_ALARMS = 0.001  # false ones per run of like ranks; the estimate of the independent samples eats up a part of the 1 % aimed at
_NOTICEABLE = 0.05
_CLOCK_S = 10e-9
_OFTEN = 0.25
_ENOUGH = 20  # independent samples; with fewer the estimate of their number is no better than a guess
_WITHOUT = frozenset({"oversubscribed", "skew_limited"})


@dataclass(frozen=True)
class Straggler:
    """A rank that holds the others up.

    share     of the samples in which it was the slowest, in the cells where it stands out (each counts alike)
    expected  what its share would be there if all ranks were alike
    cells     in how many cells it stands out, of `of_cells` compared
    excess    its median there over the median of the other ranks' medians, minus 1 (the median over those cells)
    """

    rank: int
    host: str
    share: float
    expected: float
    cells: int
    of_cells: int
    excess: float

    def sentence(self) -> str:
        """What was found: who, how often, where, and by how much."""
        name = f"rank {self.rank} ({self.host})" if self.host else f"rank {self.rank}"
        often = f"{format_percent(100 * self.share)} of the samples (its share would be {format_percent(100 * self.expected)})"
        above = f"its median there is {format_percent(100 * self.excess)} above the others'"
        return f"{name} was the slowest in {often} in {self.cells} of {self.of_cells} cells: {above}"


@dataclass(frozen=True)
class Compared:
    """A cell whose ranks may be compared: the slowest rank of each sample, and every rank's median in seconds."""

    row: Row
    slowest: NDArray[np.int64]
    medians_s: NDArray[np.float64]

    @property
    def expected(self) -> float:
        """A rank's share if all were alike."""
        return 1 / len(self.medians_s)

    def share(self, rank: int) -> float:
        """The part of the samples in which the rank was the slowest."""
        return float(np.mean(self.slowest == rank))

    def others_s(self, rank: int) -> float:
        """The median of the other ranks' medians in seconds."""
        return float(self._others_s[rank])

    @cached_property
    def _others_s(self) -> NDArray[np.float64]:
        """For each rank the median of the others: all at once, from where each stands in the sorted medians."""
        stands = np.argsort(np.argsort(self.medians_s))
        ascending, others = np.sort(self.medians_s), len(self.medians_s) - 1
        low, high = (ascending[place + (stands <= place)] for place in ((others - 1) // 2, others // 2))
        both: NDArray[np.float64] = (low + high) / 2
        return both

    def excess(self, rank: int) -> float:
        """The rank's median over the others', minus 1."""
        return float(self.medians_s[rank]) / self.others_s(rank) - 1


def stragglers(run: Run) -> list[Straggler]:
    """The ranks of a run that hold the others up, the worst first; none where nothing can be compared."""
    return stragglers_in(compared(run), hosts_of(run))


def stragglers_in(cells: Sequence[Compared], hosts: Mapping[int, str]) -> list[Straggler]:
    """The ranks that hold the others up in these cells, which may be those of several launches on the same hosts."""
    tests = sum(len(cell.medians_s) for cell in cells)
    found: dict[int, list[Compared]] = {}
    for cell in cells:
        for rank in _outstanding(cell, _ALARMS / tests):
            found.setdefault(rank, []).append(cell)
    named = [_straggler(rank, hosts, out, len(cells)) for rank, out in found.items() if _often(out, cells)]
    return sorted(named, key=lambda each: (-each.cells * each.excess, each.rank))


def compared(run: Run) -> list[Compared]:
    """The cells of a run whose ranks may be compared, as far as their arrays were stored and are sound."""
    cells = [_compared(run, row) for row in run.rows if _alike_by_design(row)]
    return [cell for cell in cells if cell is not None]


def histogram(cells: Sequence[Compared]) -> list[tuple[int, float]]:
    """How often each rank was the slowest, the most frequent first: (rank, share). Each cell counts alike, however many samples it has."""
    shares: Counter[int] = Counter()
    for cell in cells:
        ranks, times = np.unique(cell.slowest, return_counts=True)
        for rank, share in zip(ranks.tolist(), times / len(cell.slowest) / len(cells), strict=True):
            shares[rank] += share
    return sorted(((rank, float(share)) for rank, share in shares.items()), key=lambda each: (-each[1], each[0]))


def hosts_of(run: Run) -> dict[int, str]:
    """The host of each rank, as far as run.json tells."""
    places = run.info.get("rank_map")
    known = [place for place in places if isinstance(place, dict)] if isinstance(places, list) else []
    return {place["rank"]: place["host"] for place in known if isinstance(place.get("rank"), int) and isinstance(place.get("host"), str)}


def exit_skew_s(row: Row) -> tuple[float, float] | None:
    """How far apart the ranks left the synchronisation, in seconds: (median, 95th percentile), or None when it was not measured."""
    known = row.evidence.get("exit_skew_s")
    if not isinstance(known, dict):
        return None
    p50, p95 = known.get("p50"), known.get("p95")
    return (float(p50), float(p95)) if isinstance(p50, int | float) and isinstance(p95, int | float) else None


def _alike_by_design(row: Row) -> bool:
    even = row.root is None and row.group == "all" and row.traffic in (None, "even")
    return row.na is None and even and row.ranks > 1 and not _WITHOUT.intersection(row.flags)


def _compared(run: Run, row: Row) -> Compared | None:
    try:
        slowest, medians = run.array(row, "slowest_rank"), run.array(row, "rank_p50_s")
    except UsageError:  # not stored, or cut off: nothing can be said of this cell
        return None
    sound = slowest.ndim == medians.ndim == 1 and len(slowest) and len(medians) > 1
    if not (sound and slowest.dtype.kind in "iu" and slowest.min() >= 0 and slowest.max() < len(medians)):
        return None
    seconds = medians.astype(np.float64)
    return Compared(row, slowest.astype(np.int64), seconds) if bool(np.all((seconds > 0) & (seconds < 1e9))) else None


def _outstanding(cell: Compared, level: float) -> list[int]:
    return [int(rank) for rank in np.unique(cell.slowest) if _is_behind(cell, int(rank)) and _is_unlikely(cell, int(rank), level)]


def _is_behind(cell: Compared, rank: int) -> bool:
    """Whether its median is noticeably above the others'."""
    skew = exit_skew_s(cell.row)
    others = cell.others_s(rank)
    least = max(_NOTICEABLE * others, _CLOCK_S * 1.05, skew[1] if skew else 0.0)  # two readings of the clock differ by whole steps
    return float(cell.medians_s[rank]) - others > least


def _is_unlikely(cell: Compared, rank: int, level: float) -> bool:
    """Whether a rank like the others would be the slowest so often with a probability below `level` only."""
    worth = min(cell.row.n_eff or len(cell.slowest), _worth(cell.slowest == rank))
    return worth >= _ENOUGH and _tail(floor(cell.share(rank) * worth), floor(worth), cell.expected) < level


def _worth(hits: NDArray[np.bool_]) -> float:
    """As how many independent samples the yes-or-no series counts: n / (1 + 2 Σ ρ_k (1 - k/n)) up to the first ρ_k that is not
    positive (Geyer). A constant series counts in full.
    """
    n, centred = len(hits), hits - np.mean(hits)
    variance = float(np.dot(centred, centred)) / n
    inflation = 1.0
    for lag in range(1, n // 2 if variance > 0 else 0):
        rho = float(np.dot(centred[:-lag], centred[lag:])) / ((n - lag) * variance)
        if rho <= 0:
            break
        inflation += 2 * rho * (1 - lag / n)
    return n / inflation


def _tail(hits: int, trials: int, chance: float) -> float:
    """The probability of at least `hits` in `trials` independent samples (binomial, exact)."""
    ways = lgamma(trials + 1)
    terms = (
        ways - lgamma(i + 1) - lgamma(trials - i + 1) + i * log(chance) + (trials - i) * log1p(-chance) for i in range(hits, trials + 1)
    )
    return min(1.0, sum(map(exp, terms)))


def _often(out: Sequence[Compared], cells: Sequence[Compared]) -> bool:
    """Whether it stands out in enough cells of a backend: a rank may be slow in one library only."""
    here, all_cells = (Counter(cell.row.backend for cell in part) for part in (out, cells))
    return any(here[backend] >= max(_OFTEN * all_cells[backend], min(2, all_cells[backend])) for backend in here)


def _straggler(rank: int, hosts: Mapping[int, str], out: Sequence[Compared], of_cells: int) -> Straggler:
    share, expected = (float(np.mean(values)) for values in ([cell.share(rank) for cell in out], [cell.expected for cell in out]))
    excess = float(np.median([cell.excess(rank) for cell in out]))
    return Straggler(rank, hosts.get(rank, ""), share, expected, len(out), of_cells, excess)
