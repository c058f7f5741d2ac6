"""One operation, collbench and a peer in turns: the pairs, and the table's line per size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.figures import MICROSECONDS, Outcome
from benchmarks.peers.canary import read_canary
from benchmarks.peers.ours import Ours
from benchmarks.peers.pairing import Pair, take_turns
from benchmarks.peers.verdict import Target, difference, ratio

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


def compete(contest: Contest, wanted: int, most: int, canary: Callable[[], float] = read_canary) -> Outcome:
    """The contest's pairs and its lines. Raises Missing or LaunchFailed."""
    seen = contest.pages()
    pairs = take_turns(contest.ours, contest.theirs, canary, wanted, most)
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
        {"pair": number, "counts": pair.counts, "ours_first": pair.ours_first, "canaries_ns": list(pair.canaries_ns),
         "size_bytes": size, "peer_s": pair.theirs[size], **{f"collbench_{name}": value for name, value in asdict(ours).items()}}
        for number, pair in enumerate(pairs) for size, ours in pair.ours.items()
    ]  # fmt: skip


def _circumstances(pairs: Sequence[Found]) -> str:
    """Thread level, loop and page sizes of collbench's side, and the canaries of all pairs."""
    each = [(size, one) for pair in pairs for size, one in pair.ours.items()]
    canaries = [value for pair in pairs for value in pair.canaries_ns]
    state = f"Canaries {min(canaries):.0f} to {max(canaries):.0f} ns."
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
