"""One operation, collbench and a peer in turns: pairs of launches among state probes, their ratios and verdicts, and the table."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

import numpy as np

from collbench.stats.launches import ratio_of_pairs, spread
from tools.benchmarks.figures import MICROSECONDS, Outcome
from tools.benchmarks.launches import Missing, compiled, launch
from tools.benchmarks.peers.ours import Ours

# The state of the machine before and after a launch: how long a cache line takes between two cores and back.

WITHIN = 1.2


def read_state_probe() -> float:
    """Nanoseconds per round trip of a cache line between the first two cores this process may use. Raises Missing."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        raise Missing("the state probe needs two cores: allow this process a second one")
    if not shutil.which("cc"):
        raise Missing("the state probe needs a C compiler: apt install gcc libc6-dev")
    program = compiled("cc", Path(__file__).with_name("state_probe.c"), "-pthread")
    return float(launch([program, *map(str, cpus)]).out)


def agree(probes_ns: Sequence[float]) -> bool:
    """Whether the largest is at most 20 % above the smallest: the machine did not change its state meanwhile."""
    return max(probes_ns) <= WITHIN * min(probes_ns)


# Pairs of launches that take turns in going first, each among state probes; a pair during which the machine changed is repeated.

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Pair(Generic[A, B]):
    """What both sides found, and the state probes before, between and after them in nanoseconds."""

    ours: A
    theirs: B
    probes_ns: tuple[float, float, float]
    ours_first: bool

    @property
    def counts(self) -> bool:
        """Whether the state probes agree within 20 %."""
        return agree(self.probes_ns)


def take_turns(ours: Callable[[], A], theirs: Callable[[], B], probe: Callable[[], float], wanted: int, most: int) -> list[Pair[A, B]]:
    """Pairs until `wanted` of them count or `most` were run, those that do not count among them.

    The first pair only warms caches and is not kept, unless a single one is wanted. The order alternates between pairs that
    count: a repeated pair keeps its order.
    """
    if wanted > 1:
        ours(), theirs()
    found: list[Pair[A, B]] = []
    good = 0
    while good < wanted and len(found) < most:
        pair = _pair(ours, theirs, probe, good % 2 == 0)
        found.append(pair)
        good += pair.counts
    return found


def _pair(ours: Callable[[], A], theirs: Callable[[], B], probe: Callable[[], float], ours_first: bool) -> Pair[A, B]:
    before = probe()
    if ours_first:
        a, between = ours(), probe()
        b = theirs()
    else:
        b, between = theirs(), probe()
        a = ours()
    return Pair(a, b, (before, between, probe()), ours_first)


# What a ratio must be, and whether it is: by the whole of its interval, or by its median alone.

_RANKED = 6  # fewer pairs have no pair of order statistics that covers the median with 95 %
VERDICTS = ("met", "met by the median", "missed by the median", "MISSED")


@dataclass(frozen=True)
class Span:
    """A median and its 95 % interval; the interval is None where the pairs are worth too few."""

    value: float
    low: float | None
    high: float | None

    def within(self, least: float, most: float) -> str:
        """One of VERDICTS: all of the interval within [least, most], the median only, not even that, none of the interval."""
        if self.low is not None and self.high is not None:
            if least <= self.low and self.high <= most:
                return VERDICTS[0]
            if self.high < least or self.low > most:
                return VERDICTS[3]
        return VERDICTS[1] if least <= self.value <= most else VERDICTS[2]

    def show(self, scale: float = 1.0, digits: int = 3) -> str:
        """1.013 (1.002 to 1.020)."""
        if self.low is None or self.high is None:
            return f"{self.value * scale:.{digits}f} (no interval)"
        return f"{self.value * scale:.{digits}f} ({self.low * scale:.{digits}f} to {self.high * scale:.{digits}f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Span:
    """The median over pairs of collbench's time over the peer's."""
    known = ratio_of_pairs(theirs, ours)
    return Span(known.value, known.low, known.high)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Span:
    """The median over pairs of collbench's time less the peer's; its interval by ranks, from six pairs on."""
    values = np.subtract(ours, theirs)
    if len(values) < _RANKED:
        return Span(float(np.median(values)), None, None)
    known = spread(values)
    return Span(known.value, known.low, known.high)


@dataclass(frozen=True)
class Target:
    """Bounds of collbench's time over the peer's; or, if that is easier, of the difference in seconds.

    most  upper bound of the ratio · least  its lower bound: a benchmark that reads too fast is wrong as well
    """

    most: float
    least: float = 0.0
    or_seconds: float | None = None

    def judge(self, of_times: Span, apart: Span) -> str:
        """The better of the two verdicts, on the ratio and on the difference."""
        found = [of_times.within(self.least, self.most)]
        if self.or_seconds is not None:
            lowest = -self.or_seconds if self.least else float("-inf")
            found.append(apart.within(lowest, self.or_seconds))
        return min(found, key=VERDICTS.index)

    def show(self) -> str:
        """≤ 1.10 or ≤ +0.1 µs."""
        times = f"{self.least:.2f} to {self.most:.2f}" if self.least else f"≤ {self.most:.2f}"
        if self.or_seconds is None:
            return times
        return f"{times} or {'±' if self.least else '≤ +'}{self.or_seconds * 1e6:g} µs"


# One operation, collbench and a peer: the pairs, and the table's line per size.

_ENOUGH = 20
Found = Pair[Mapping[int, Ours], Mapping[int, float]]


@dataclass(frozen=True)
class Contest:
    """What one pair is: a launch of collbench and of the peer, both measuring the same sizes; times in seconds by size.

    like   which figure of each side is compared
    pages  what pages the peer's memory lies on, a sentence; looked at once, before the pairs
    sides  the names of both sides; a peer may also be compared with itself, with one change
    """

    name: str
    like: str
    ours: Callable[[], Mapping[int, Ours]]
    theirs: Callable[[], Mapping[int, float]]
    targets: Mapping[int, Target] = field(default_factory=dict)
    pages: Callable[[], str] = str
    sides: tuple[str, str] = ("collbench", "peer")

    def head(self) -> list[str]:
        """The table's."""
        shown = [f"{side} µs" for side in self.sides]
        return ["cell", *shown, "ratio (95 %)", "difference µs (95 %)", "target", "verdict", "pairs", "repeated"]


@dataclass(frozen=True)
class Line:
    """One case of one contest, over the pairs that count."""

    case: str
    ours_s: Sequence[float]
    theirs_s: Sequence[float]
    target: Target | None
    repeated: int

    @property
    def verdict(self) -> str:
        """Return the verdict of the target; with fewer than 20 pairs also their number."""
        if self.target is None or not self.ours_s:
            return ""
        few = "" if len(self.ours_s) >= _ENOUGH else f" (only {len(self.ours_s)} pairs)"
        return self.target.judge(ratio(self.ours_s, self.theirs_s), difference(self.ours_s, self.theirs_s)) + few

    def cases(self) -> list[str]:
        """The table's line."""
        target = self.target.show() if self.target else ""
        if not self.ours_s:
            return [self.case, "no pair counts", "", "", "", target, "", "0", str(self.repeated)]
        medians = [MICROSECONDS.show(median(side)) for side in (self.ours_s, self.theirs_s)]
        shown = [ratio(self.ours_s, self.theirs_s).show(), difference(self.ours_s, self.theirs_s).show(1e6)]
        return [self.case, *medians, *shown, target, self.verdict, str(len(self.ours_s)), str(self.repeated)]


def compete(contest: Contest, wanted: int, most: int, probe: Callable[[], float] = read_state_probe) -> Outcome:
    """The contest's pairs and its lines. Raises Missing or LaunchFailed."""
    seen = contest.pages()
    pairs = take_turns(contest.ours, contest.theirs, probe, wanted, most)
    return Outcome(
        contest.name, f"{contest.like} {_circumstances(pairs)} {seen}".strip(), lines(contest, pairs), raw(pairs), contest.head()
    )


def lines(contest: Contest, pairs: Sequence[Found]) -> list[Line]:
    """Return a line per size, of the pairs with agreeing state probes; the others were repeated."""
    good = [pair for pair in pairs if pair.counts]
    found = []
    for size in pairs[0].ours:
        ours, theirs = [pair.ours[size].like_s for pair in good], [pair.theirs[size] for pair in good]
        found.append(Line(f"{contest.name} {_short(size)}", ours, theirs, contest.targets.get(size), len(pairs) - len(good)))
    return found


def raw(pairs: Sequence[Found]) -> list[dict[str, Any]]:
    """One object per pair and size, pairs that do not count among them."""
    return [
        {"pair": number, "counts": pair.counts, "ours_first": pair.ours_first, "canaries_ns": list(pair.probes_ns),
         "size_bytes": size, "peer_s": pair.theirs[size], **{f"collbench_{name}": value for name, value in asdict(ours).items()}}
        for number, pair in enumerate(pairs) for size, ours in pair.ours.items()
    ]  # fmt: skip


def _circumstances(pairs: Sequence[Found]) -> str:
    """Thread level, loop and page sizes of collbench's side, and the state probes of all pairs."""
    each = [(size, one) for pair in pairs for size, one in pair.ours.items()]
    probes_ns = [value for pair in pairs for value in pair.probes_ns]
    state = f"State probes {min(probes_ns):.0f} to {max(probes_ns):.0f} ns."
    if not each[0][1].loop:
        return state
    levels = ", ".join(sorted({one.thread_level or "none" for _, one in each}))
    loops = ", ".join(sorted({one.loop for _, one in each}))
    sizes = sorted({(size, one.page_bytes) for size, one in each})
    pages = ", ".join(f"{_short(size)} on {page // 1024} KiB" for size, page in sizes)
    return f"collbench: {loops} loop, thread level {levels}, pages: {pages}. {state}"


def _short(size: int) -> str:
    """8 B, 64 KiB, 16 MiB."""
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"
