"""Pairs of launches that take turns in going first, each among canaries; a pair during which the machine changed is repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchmarks.peers.canary import agree

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Pair(Generic[A, B]):
    """What both sides found, and the canaries before, between and after them in nanoseconds."""

    ours: A
    theirs: B
    canaries_ns: tuple[float, float, float]
    ours_first: bool

    @property
    def counts(self) -> bool:
        """Whether the canaries agree within 20 %."""
        return agree(self.canaries_ns)


def take_turns(ours: Callable[[], A], theirs: Callable[[], B], canary: Callable[[], float], wanted: int, most: int) -> list[Pair[A, B]]:
    """Pairs until `wanted` of them count or `most` were run, those that do not count among them.

    The first pair only warms caches and is not kept, unless a single one is wanted. The order alternates between pairs that
    count: a repeated pair keeps its order.
    """
    if wanted > 1:
        ours(), theirs()
    found: list[Pair[A, B]] = []
    good = 0
    while good < wanted and len(found) < most:
        pair = _pair(ours, theirs, canary, good % 2 == 0)
        found.append(pair)
        good += pair.counts
    return found


def _pair(ours: Callable[[], A], theirs: Callable[[], B], canary: Callable[[], float], ours_first: bool) -> Pair[A, B]:
    before = canary()
    if ours_first:
        a, between = ours(), canary()
        b = theirs()
    else:
        b, between = theirs(), canary()
        a = ours()
    return Pair(a, b, (before, between, canary()), ours_first)
