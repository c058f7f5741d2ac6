"""Stragglers: ranks that finish last in more than their share of the samples and noticeably later, and why.

Only cases in which every rank has the same part by design are compared:
- no rooted operation: a broadcast's root leaves first, and ranks deep in its tree finish later;
- no pairs: only the first rank of a pair is timed, and pairs within a host are faster than pairs between hosts;
- no groups of a split: ranks of different groups do not wait for one another;
- no uneven traffic: the rank that sends or receives most finishes last;
- no case with too few cores for its ranks (which rank waits for a core is chance), or with too much start skew (`skew_limited`).

A rank is conspicuous in a case if both hold:
- it is the slowest in significantly more samples than 1/n of them (with two ranks, each is in half): a binomial test with the effective
  number of samples (at least 20), at 0.1 % for the whole run (Bonferroni over ranks × cases);
- its median exceeds the others' median by more than 5 %, the clock's resolution (10 ns) and the ranks' exit skew. A rank that starts
  first waits for the last without being slower. Nothing is therefore reported where medians are unknown: a rank that is always 1 ns
  behind is the slowest in every sample.

A rank is reported if it is conspicuous in at least a quarter of one backend's cases, and in two of them if there are two: an effect on
a single case is the machine's noise. Simulated (2–32 ranks, 1–12 cases of 60–456 samples, lag-1 correlation 0–0.97): false alarms
in less than 1 % of the runs; a rank that is 10 % slower is reported in 19 of 20 runs of 12 cases up to a correlation of 0.5.

The rank that finishes last is often not the slow one (`Role`). Measured on four hosts over 200 Mbit/s, of which the third sent at 100
Mbit/s: in all-reduce the second host finished last over Gloo and the fourth over MPICH, and the third first. A rank is therefore reported
as the cause only under two conditions: it receives from every rank directly (all-to-all of at least four), and the others, which equally
depend on it, end at the same time. Of two ranks none is the cause, since each receives from the other. A link that is slower than those of
the other hosts explains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from math import exp, floor, lgamma, log, log1p

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.analysis.ceilings import carrying, link_ceilings, link_rates
from collbench.errors import UsageError
from collbench.results.reader import Run
from collbench.results.row import Row, StartSkew
from collbench.units import format_percent
from collbench.untrusted import list_of

_ALARMS = 0.001  # false alarms per run of equal ranks; the estimate of independent samples uses up a part of the intended 1 %
_NOTICEABLE = 0.05
_CLOCK_S = 10e-9
_OFTEN = 0.25
_ENOUGH = 20  # independent samples; with fewer their number cannot be estimated
_DIRECT = frozenset({"alltoall", "alltoallv"})  # operations in which a rank receives directly from every other one
_FEWEST = 4  # ranks; one of three may wait for only one other
_SLOWER_LINK = 0.99
_SETS = (0.85, 1.001)  # share of a link's rate without packet headers: a ceiling in this range is that of the link
_WITHOUT = frozenset({"oversubscribed", "skew_limited"})


class Role(StrEnum):
    """The reason why a rank finishes last."""

    DELAYS = "delays"  # the rank itself is slow, or a path into it
    WAITS = "waits"  # for the slower link of a host
    UNKNOWN = "finishes last"  # it is slow, or it waits for a rank or a link that it receives from


class SlowLink(msgspec.Struct, frozen=True):
    """A host's link that is slower than those of the other hosts and sets the ceiling; rates in bits per second."""

    host: str
    name: str
    rate: float
    others: float

    def sentence(self) -> str:
        """Return "eth0 of cb1h2 is slower than the links of the other hosts: 0.8 Gb/s, others 1 Gb/s"."""
        return f"{self} is slower than the links of the other hosts: {self.rate / 1e9:g} Gb/s, others {self.others / 1e9:g} Gb/s"

    def __str__(self) -> str:
        return f"{self.name} of {self.host}"


class Straggler(msgspec.Struct, frozen=True):
    """A rank that finishes last.

    share     of the samples in which it was the slowest, in the cases where it is conspicuous (equal weights)
    expected  its share there if all ranks were equal
    cases     in how many of the `of_cases` compared cases it is conspicuous
    excess    its median there over the median of the other ranks' medians, minus 1 (the median over those cases)
    role      the reason, as far as it is known
    link      the link that it waits for; None for other roles
    other     with two ranks the name of the other one; "" with more
    """

    rank: int
    host: str
    share: float
    expected: float
    cases: int
    of_cases: int
    excess: float
    role: Role = Role.UNKNOWN
    link: SlowLink | None = None
    other: str = ""

    @property
    def name(self) -> str:
        """Return "rank 3 (node07)"."""
        return name_of(self.rank, self.host)

    def sentence(self) -> str:
        """Return which rank finishes last, how often, where, by how much, and why as far as that is known."""
        often = f"{format_percent(100 * self.share)} of the samples ({format_percent(100 * self.expected)} if the ranks were alike)"
        after = f"{format_percent(100 * self.excess)} later than {self.other or 'the others'}"
        subject = f"{self.name} finishes last"
        why = "it is slow, or it waits for a rank or a link that it receives from (`collbench hunt` finds out)"
        if self.role is Role.DELAYS:
            subject = f"{self.name}, or a path into it, is slow: it finishes last"
        if self.link is not None:
            why = f"{self.link} explains it"
        elif self.role is Role.DELAYS:
            why = "also in all-to-all, where it receives from every rank directly and the others end at the same time"
        elif self.other:
            why = "either rank, or the link between them, may be slow, since each waits for the other"
        return f"{subject} in {often} in {self.cases} of {self.of_cases} cases, {after}: {why}"


def name_of(rank: int, host: str) -> str:
    """Return "rank 3 (node07)", or "rank 3" where the host is unknown."""
    return f"rank {rank} ({host})" if host else f"rank {rank}"


class Compared(msgspec.Struct, frozen=True, dict=True):
    """A case with comparable ranks: the slowest rank of each sample, and every rank's median in seconds."""

    row: Row
    slowest: NDArray[np.int64]
    medians_s: NDArray[np.float64]

    @property
    def expected(self) -> float:
        """Return a rank's share of the samples if all ranks were equal."""
        return 1 / len(self.medians_s)

    def share(self, rank: int) -> float:
        """Return the share of the samples in which the rank was the slowest."""
        return float(np.mean(self.slowest == rank))

    @cached_property
    def others_s(self) -> NDArray[np.float64]:
        """The median of the other ranks' medians in seconds, by rank: all at once, from the position of each in the sorted medians."""
        positions = np.argsort(np.argsort(self.medians_s))
        ascending = np.sort(self.medians_s)
        others = len(self.medians_s) - 1
        low, high = (ascending[place + (positions <= place)] for place in ((others - 1) // 2, others // 2))
        return np.asarray((low + high) / 2)

    def excess(self, rank: int) -> float:
        """Return the rank's median over the others', minus 1."""
        return float(self.medians_s[rank] / self.others_s[rank]) - 1


def stragglers(run: Run) -> list[Straggler]:
    """Return the ranks of a run that finish last, the worst first; none where nothing can be compared."""
    return stragglers_in(compared(run), hosts_of(run), slow_links(run))


def stragglers_in(cases: Sequence[Compared], hosts: Mapping[int, str], links: Sequence[SlowLink] = ()) -> list[Straggler]:
    """Return the ranks that finish last in these cases, possibly of several launches on the same hosts; `links` are slower ones."""
    tests = sum(len(case.medians_s) for case in cases)
    by_rank: dict[int, list[Compared]] = {}
    for case in cases:
        for rank in np.unique(case.slowest).tolist():
            if _is_conspicuous(case, rank, _ALARMS / tests):
                by_rank.setdefault(rank, []).append(case)
    named = [_straggler(rank, hosts, out, cases, links) for rank, out in by_rank.items() if _often(out, cases)]
    return sorted(named, key=lambda straggler: (-straggler.cases * straggler.excess, straggler.rank))


def slow_links(run: Run) -> list[SlowLink]:
    """Return the links that are slower than those of the other hosts, of the interfaces that carry the traffic and set a ceiling."""
    used = carrying(run)
    rates = {link: rate for link, rate in link_rates(run).items() if link in used}
    fastest = max(rates.values(), default=0.0)
    slow = [SlowLink(*link, rate, fastest) for link, rate in rates.items() if rate < _SLOWER_LINK * fastest]
    ceilings = [ceiling.bytes_per_s for ceiling in link_ceilings(run.rows)]
    return [link for link in slow if any(_SETS[0] <= 8 * ceiling / link.rate <= _SETS[1] for ceiling in ceilings)]


def compared(run: Run) -> list[Compared]:
    """Return the cases of a run with comparable ranks, if their arrays were stored and are valid."""
    cases = [
        _compared(run, row)
        for row in run.rows
        if row.na is None and row.ranks > 1 and not _WITHOUT.intersection(row.flags)
        # every rank has the same part
        and row.root is None and row.group == "all" and row.traffic in (None, "even")
    ]  # fmt: skip
    return [case for case in cases if case is not None]


def histogram(cases: Sequence[Compared]) -> list[tuple[int, float]]:
    """Return (rank, share) of how often each rank was the slowest, the most frequent first. All cases have equal weight."""
    shares: Counter[int] = Counter()
    for case in cases:
        ranks, times = np.unique(case.slowest, return_counts=True)
        for rank, share in zip(ranks.tolist(), times / len(case.slowest) / len(cases), strict=True):
            shares[rank] += share
    return sorted(((rank, float(share)) for rank, share in shares.items()), key=lambda entry: (-entry[1], entry[0]))


def hosts_of(run: Run) -> dict[int, str]:
    """Return the host of each rank, as far as run.json has it."""
    places = list_of(run.info.get("rank_map"), dict)
    return {place["rank"]: place["host"] for place in places if isinstance(place.get("rank"), int) and isinstance(place.get("host"), str)}


def _compared(run: Run, row: Row) -> Compared | None:
    try:
        slowest = run.array(row, "slowest_rank")
        medians = run.array(row, "rank_p50_s")
    except UsageError:  # not stored, or incomplete: the ranks of this case are unknown
        return None
    sound = slowest.ndim == medians.ndim == 1 and len(slowest) and len(medians) > 1
    if not (sound and slowest.dtype.kind in "iu" and slowest.min() >= 0 and slowest.max() < len(medians)):
        return None
    seconds = medians.astype(np.float64)
    return Compared(row, slowest.astype(np.int64), seconds) if bool(np.all((seconds > 0) & (seconds < 1e9))) else None


def _is_conspicuous(case: Compared, rank: int, level: float) -> bool:
    """Return whether its median is noticeably above the others', and it is the slowest more often than chance (`level`) explains."""
    skew = StartSkew.of(case.row.evidence)
    others = float(case.others_s[rank])
    uneven_s = skew.p95 / skew.messages if skew else 0.0
    least = max(_NOTICEABLE * others, _CLOCK_S * 1.05, uneven_s)  # two readings of the clock differ by whole steps
    if float(case.medians_s[rank]) - others <= least:
        return False
    worth = min(case.row.n_eff or len(case.slowest), _worth(case.slowest == rank))
    return worth >= _ENOUGH and _tail(floor(case.share(rank) * worth), floor(worth), case.expected) < level


def _worth(hits: NDArray[np.bool_]) -> float:
    """Return the effective number of independent samples of a Boolean series: n / (1 + 2 Σ ρ_k (1 - k/n)).

    The sum ends at the first ρ_k that is not positive (Geyer). A constant series has n.
    """
    n = len(hits)
    centred = hits - np.mean(hits)
    variance = float(np.dot(centred, centred)) / n
    inflation = 1.0
    for lag in range(1, n // 2 if variance > 0 else 0):
        rho = float(np.dot(centred[:-lag], centred[lag:])) / ((n - lag) * variance)
        if rho <= 0:
            break
        inflation += 2 * rho * (1 - lag / n)
    return n / inflation


def _tail(hits: int, trials: int, chance: float) -> float:
    """Return the probability of at least `hits` in `trials` independent samples (binomial, exact)."""
    ways = lgamma(trials + 1)
    terms = (
        ways - lgamma(i + 1) - lgamma(trials - i + 1) + i * log(chance) + (trials - i) * log1p(-chance) for i in range(hits, trials + 1)
    )
    return min(1.0, sum(map(exp, terms)))


def _often(out: Sequence[Compared], cases: Sequence[Compared]) -> bool:
    """Return whether it is conspicuous in enough cases of a backend: a rank may be slow in one library only."""
    late_cases, all_cases = (Counter(case.row.backend for case in part) for part in (out, cases))
    return any(late_cases[backend] >= max(_OFTEN * all_cases[backend], min(2, all_cases[backend])) for backend in late_cases)


def _straggler(
    rank: int, hosts: Mapping[int, str], out: Sequence[Compared], cases: Sequence[Compared], links: Sequence[SlowLink]
) -> Straggler:
    share = float(np.mean([case.share(rank) for case in out]))
    expected = float(np.mean([case.expected for case in out]))
    excess = float(np.median([case.excess(rank) for case in out]))
    is_pair = all(len(case.medians_s) == 2 for case in out)
    other = name_of(1 - rank, hosts.get(1 - rank, "")) if is_pair else ""
    link = links[0] if links else None
    role = Role.UNKNOWN
    if link:
        role = Role.WAITS
    elif not is_pair and _is_slow(rank, out, cases):
        role = Role.DELAYS
    return Straggler(rank, hosts.get(rank, ""), share, expected, len(out), len(cases), excess, role, link, other)


def _is_slow(rank: int, out: Sequence[Compared], cases: Sequence[Compared]) -> bool:
    """Return whether the rank is late where it receives from every rank directly, while the others end at the same time."""
    alone = []
    for case in filter(_is_direct, out):
        others_s = np.delete(case.medians_s, rank)
        if float(others_s.max() / others_s.min()) - 1 < case.excess(rank) / 2:
            alone.append(case)
    return bool(alone) and _often(alone, list(filter(_is_direct, cases)))


def _is_direct(case: Compared) -> bool:
    """Return whether each rank receives from every other one directly, and there are enough of them."""
    return case.row.operation in _DIRECT and len(case.medians_s) >= _FEWEST
