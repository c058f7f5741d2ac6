"""The whole conversation: a sweep, every candidate again with partners that are well, groups that grow, suspects alone; then the verdict.

Nobody is named whose slowness was not there again with two partners that are known to be well, beside pairs that were not slow.
Assumed is what `analysis.pair_effects` assumes: fewer than half of the places are sick. Where more than a third would have to be
accused, nobody is: then it may as well be the others that are fast.
"""

from __future__ import annotations

import random as draws
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeVar

from collbench.analysis.hunt import candidates, few, groups, growing, isolation, parts, sweep, telling
from collbench.analysis.hunt.asks import Answer, Ask, Hint, Hunt, Options
from collbench.analysis.hunt.book import Book, hardly_met, lost
from collbench.analysis.hunt.candidates import Seen
from collbench.analysis.hunt.crosscheck import CrossCheck
from collbench.analysis.hunt.verdict import CONFIRMED, INCONCLUSIVE, Suspect, Verdict
from collbench.analysis.pair_finding import hosts_of
from collbench.errors import UsageError

_CROSS_CHECK_ROUNDS = ((8, 26), (16, 18), (64, 14), (256, 10), (inf, 9))  # by the number of places
_LEAST_CROSS_CHECK = 3
_BY_GROUPS = "the sweep was by groups: a slow path between two places, and small messages that take longer, were not looked for"
_MOST_ACCUSED = 3  # one place in so many

_T = TypeVar("_T")


def promise(n: int, options: Options) -> int:
    """How many rounds a hunt among n places takes at most; it keeps to it, and mostly takes far fewer.

    Raises UsageError where `options.rounds` or `options.most_rounds` does not hold the fewest that tell anything.
    """
    if n < few.LEAST_PLACES:
        return few.rounds(n)
    return _shares(n, options).all_of_them


def cross_check_rounds(n: int) -> int:
    """Return how many rounds may measure suspects of n places again: more for few places, where a round has few controls."""
    return next(rounds for most, rounds in _CROSS_CHECK_ROUNDS if n < most)


def hunt(names: Sequence[str], options: Options) -> Hunt:
    """Ask until it is clear who is sick; the verdict is returned. Raises UsageError as `promise` does."""
    if len(names) < few.LEAST_PLACES:
        return (yield from few.hunt(tuple(names)))
    return (yield from _Hunt(tuple(names), options).run())


@dataclass(frozen=True)
class _Shares:
    """How many rounds each stage may take."""

    method: str
    sweep: int
    cross_check: int
    growing: int
    isolation: int

    @property
    def all_of_them(self) -> int:
        return self.sweep + self.cross_check + self.growing + self.isolation


def _shares(n: int, options: Options) -> _Shares:
    """Every stage as much as it wants; where the rounds are limited the sweep and the cross-check come first, then isolation."""
    method = _method(n, options)
    by_groups = method == "groups"
    wanted = groups.rounds(n, options) if by_groups else sweep.rounds(n, options)
    least = wanted if by_groups else sweep.least_rounds(n, options)
    if wanted < least:
        raise UsageError(
            f"a sweep of {wanted} {'round' if wanted == 1 else 'rounds'} does not tell a sick one of {n} places from a sick partner: "
            f"allow {least} or more (--rounds {least})"
        )
    grown = growing.most_rounds(n, options) if options.growing else 0
    alone = isolation.most_rounds(options)
    most = options.most_rounds if options.most_rounds is not None else wanted + cross_check_rounds(n) + grown + alone
    if most < least + _LEAST_CROSS_CHECK:
        raise UsageError(
            f"{most} rounds are too few for {n} places: the sweep takes {least} and measuring suspects again {_LEAST_CROSS_CHECK}; "
            f"allow {least + _LEAST_CROSS_CHECK} or more (a larger --budget, or a smaller --max-time)"
        )
    swept = max(least, min(wanted, most - cross_check_rounds(n)))
    left = most - swept
    checked = min(cross_check_rounds(n), left)
    isolated = min(alone, left - checked)
    return _Shares(method, swept, checked, min(grown, left - checked - isolated), isolated)


def _method(n: int, options: Options) -> str:
    """Groups where asked for, or where pairs take more rounds than allowed; pairs where groups cannot tell, or links are to be crossed."""
    if n < groups.LEAST_PLACES or options.cover or options.method == "pairs":
        return "pairs"
    fits = options.most_rounds is None or sweep.rounds(n, options) + cross_check_rounds(n) <= options.most_rounds
    return "groups" if options.method == "groups" or not fits else "pairs"


@dataclass
class _Hunt:
    """One hunt as it goes on."""

    names: tuple[str, ...]
    options: Options
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = draws.Random(f"hunt, {self.options.seed}")
        self.book = Book(self.names)
        self.shares = _shares(len(self.names), self.options)
        if self.options.method == "groups" and self.shares.method == "pairs":
            self.notes.append(f"groups take {groups.LEAST_PLACES} places or more, and cover no links: pairs were measured instead of them")

    def run(self) -> Hunt:
        """All stages, as far as each is needed."""
        hints = yield from self._sweep()
        found = self._seen(hints)
        too_many = self._too_many(found)
        if too_many:
            return self._verdict(telling.as_they_were(found, too_many), found, too_many)
        suspects = yield from self._cross_check(found)
        good = self._good(suspects)
        if self.options.growing and not _confirmed(suspects):
            suspects += yield from self._growing(good)
        if self.options.isolate and _confirmed(suspects):
            suspects = yield from self._isolated(suspects)
        return self._verdict(suspects, found, None)

    def _sweep(self) -> Generator[Ask, Answer, tuple[Hint, ...]]:
        if self.shares.method == "groups":
            self.notes.append(_BY_GROUPS)
            return (yield from self._heard(groups.sweep(len(self.names), self.options, self.random)))
        yield from sweep.run(self.book, self.options, self.shares.sweep, self.random)
        return ()

    def _seen(self, hints: Sequence[Hint]) -> Seen:
        gone = list(self._untold())
        if self.shares.method == "groups":
            return candidates.from_hints(hints, len(self.names), gone)
        return candidates.seen(self.book.matrix(), gone)

    def _untold(self) -> dict[int, str]:
        """Places of which it cannot be told whether they are slow, with the reason."""
        gone = lost(self.book)
        return gone if self.shares.method == "groups" else {**hardly_met(self.book, sweep.LEAST_PARTNERS), **gone}

    def _too_many(self, found: Seen) -> str | None:
        """Why nobody can be accused, where those who are well are no majority to measure against."""
        n = len(self.names) - len(self._untold())
        slow = len({each.places for each in found.places})
        if n < few.LEAST_PLACES:
            return f"only {n} of {len(self.names)} places give figures with enough others: too few to tell a sick one from the others"
        if slow and (len(found.well) < 2 or 2 * slow >= n):
            return f"{slow} of {n} places are slower than the rest: no majority that is well, so it may as well be the rest that is fast"
        return None

    def _cross_check(self, found: Seen) -> Generator[Ask, Answer, list[Suspect]]:
        check = CrossCheck(self.book, found, _hosts(self.names), self.options.leaf_of, self.random)
        done = yield from check.run(self.shares.cross_check)
        if not done:
            self.notes.append(f"{self.shares.cross_check} rounds did not suffice to measure every suspect again: the rest is inconclusive")
        if check.left_out:
            self.notes.append(f"{check.left_out} more pairs were slow once, and were not measured again: too many to be exceptions")
        gone = self._untold()
        judged = parts.told(telling.suspects(check, self.names), self.book, check.alike)
        places = [each for each in judged if not set(each.places) & gone.keys()]
        return self._at_most_a_third(places) + [telling.silent(place, why) for place, why in gone.items()]

    def _at_most_a_third(self, suspects: list[Suspect]) -> list[Suspect]:
        accused = [each for each in suspects if each.state == CONFIRMED and len(each.places) == 1]
        if _MOST_ACCUSED * len(accused) <= len(self.names):
            return suspects
        why = (
            f"{len(accused)} of {len(self.names)} places are slower than the rest, more than a third: "
            "it may as well be the rest that is fast, so nobody is accused; compare with the ceiling"
        )
        self.notes.append(why)
        return [replace(each, state=INCONCLUSIVE, evidence=(*each.evidence, why)) if each in accused else each for each in suspects]

    def _good(self, suspects: Sequence[Suspect]) -> list[int]:
        """Everybody of whom nothing is known against."""
        out = {place for each in suspects if each.state in (CONFIRMED, INCONCLUSIVE) and each.kind != "path" for place in each.places}
        return [place for place in range(len(self.names)) if place not in out]

    def _growing(self, good: Sequence[int]) -> Generator[Ask, Answer, list[Suspect]]:
        needed = growing.most_rounds(len(good), self.options)
        if needed > self.shares.growing:
            self.notes.append(
                f"groups that grow may take {needed} rounds, and {self.shares.growing} are left: faults at scale were not looked for"
            )
            return []
        hints, notes = yield from self._heard(growing.look(good, self.options, self.random))
        self.notes += notes
        return [telling.of_hint(hint) for hint in hints]

    def _isolated(self, suspects: list[Suspect]) -> Generator[Ask, Answer, list[Suspect]]:
        needed = isolation.most_rounds(self.options)
        if needed > self.shares.isolation:
            self.notes.append(f"looking at suspects alone may take {needed} rounds, and {self.shares.isolation} are left: not done")
            return suspects
        return list((yield from self._heard(isolation.look(suspects, self._good(suspects), self.options))))

    def _heard(self, others: Generator[Ask, Answer, _T]) -> Generator[Ask, Answer, _T]:
        """Another's conversation, written into the book."""
        try:
            ask = next(others)
            while True:
                answer = yield from self.book.asking(ask)
                ask = others.send(answer)
        except StopIteration as stop:
            result: _T = stop.value
            return result

    def _verdict(self, suspects: Sequence[Suspect], found: Seen, why: str | None) -> Verdict:
        notes = [*self.notes, *telling.notes(self.book, suspects, found)]
        suspects = telling.with_leaf(telling.with_wrong(suspects, self.book), _hosts(self.names), self.options.leaf_of)
        told = tuple(telling.ordered(suspects))
        middle = found.middle or telling.usual(self.book)
        return Verdict(self.names, told, self.book.rounds(), self.shares.all_of_them, tuple(notes), why, middle)


def _confirmed(suspects: Sequence[Suspect]) -> bool:
    return any(each.state == CONFIRMED for each in suspects)


def _hosts(names: Sequence[str]) -> Sequence[str]:
    """Of each place; on a single host every place counts as one of its own: there are no other paths to tell theirs from."""
    hosts = hosts_of(names)
    return names if len(set(hosts)) == 1 else hosts
