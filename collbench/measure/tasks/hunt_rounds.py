"""The rounds of a hunt, of every kind, each measured on all ranks in step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collbench.measure.tasks.hunt_asked import Asked
from collbench.measure.tasks.hunt_groups import play_groups, rate
from collbench.measure.tasks.hunt_nics import Streaming
from collbench.measure.tasks.pair_round import Court, play
from collbench.operations.groups import Pair
from collbench.results.rounds import HuntRound, PairRound

_Ends = tuple[float | None, float | None]


@dataclass(frozen=True)
class Field:
    """Where a hunt's rounds are measured: the court of pairs, the interfaces, and why no groups can be measured (None: they can)."""

    court: Court
    streaming: Streaming
    no_groups: str | None = None

    def play(self, number: int, ask: Asked) -> HuntRound | None:
        """The round at rank 0, elsewhere None. All ranks call with the same ask."""
        if ask.kind == "pairs":
            pairs = tuple((group[0], group[1]) for group in ask.groups)
            played = list(play(self.court, number, pairs))
            return _of_pairs(number, ask, played, self.court.asked.size_bytes) if self.court.world.rank == 0 else None
        if ask.kind == "nic":
            return self._over_nic(number, ask)
        return self._in_groups(number, ask)

    def _over_nic(self, number: int, ask: Asked) -> HuntRound | None:
        if ask.nic not in self.streaming.rails:
            return _nothing(number, ask, f"not all nodes have the interface {ask.nic}") if self.court.world.rank == 0 else None
        return self.streaming.play(number, ask)

    def _in_groups(self, number: int, ask: Asked) -> HuntRound | None:
        if self.no_groups:
            return _nothing(number, ask, self.no_groups) if self.court.world.rank == 0 else None
        return play_groups(self.court, number, ask)


def _nothing(number: int, ask: Asked, why: str) -> HuntRound:
    """No group was measured."""
    none, n = (None,) * len(ask.groups), len(ask.groups)
    return HuntRound(number, ask.kind, ask.stage, ask.why, ask.groups, none, none, none, none, none, (0,) * n, (why,) * n, ask.nic)


@dataclass(frozen=True)
class _Met:
    """What the two ends of a pair reached."""

    there: float | None
    back: float | None
    latency_s: float | None
    ends: _Ends
    wrong: int
    detail: str | None
    na: str | None
    cpu_wait: float
    flipped: bool


def _of_pairs(number: int, ask: Asked, played: Sequence[PairRound], size: int) -> HuntRound:
    """One round of what the tournament's rounds gave: several where some rank refused."""
    met = dict(_met(played, size))
    each = [met[group[0], group[1]] for group in ask.groups]
    flags = dict.fromkeys(flag for one in played for flag in one.flags)
    return HuntRound(
        number, ask.kind, ask.stage, ask.why, ask.groups, tuple(one.there for one in each), tuple(one.back for one in each),
        tuple(one.latency_s for one in each), tuple(one.ends[0] for one in each), tuple(one.ends[1] for one in each),
        tuple(one.wrong for one in each), tuple(one.na for one in each), ask.nic, tuple(flags), tuple(one.detail for one in each),
        tuple(one.cpu_wait for one in each), tuple(one.flipped for one in each),
    )  # fmt: skip


def _met(played: Iterable[PairRound], size: int) -> Iterable[tuple[Pair, _Met]]:
    for one in played:
        details = one.wrong_detail or (None,) * len(one.pairs)
        for turn, pair in enumerate(one.pairs):
            times = [(one.forward_s[turn], one.forward_ci_s[turn]), (one.backward_s[turn], one.backward_ci_s[turn])]
            _, (first, last) = max(times, key=lambda way: way[0] or 0.0)  # the slower direction's
            there, back = (rate(size, seconds) for seconds, _ in times)
            ends = (rate(size, last), rate(size, first))
            cpu_wait, flipped = (one.cpu_wait[turn] if one.cpu_wait else 0.0), bool(one.flipped and one.flipped[turn])
            yield pair, _Met(there, back, one.latency_s[turn], ends, one.wrong[turn] or 0, details[turn], one.na[turn], cpu_wait, flipped)
