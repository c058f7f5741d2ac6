"""The first look: rounds of disjoint pairs, as few as tell a sick place from a sick partner."""

from __future__ import annotations

import random as draws
from collections.abc import Generator, Iterator, Sequence

from collbench.analysis.hunt.asks import PAIRS, Answer, Ask, Options
from collbench.analysis.hunt.book import Book
from collbench.analysis.hunt.cover import packed
from collbench.operations.groups import Pair, Round, schedule

LEAST_PARTNERS = 3  # fewer give a place no effect of its own
_ALL = 8  # up to so many places every pair is measured
_PARTNERS = 8  # of more places each meets so many others: with a quarter sick still mostly such as are well
_UP_TO = 64  # and one more with each doubling from here on


def rounds(n: int, options: Options) -> int:
    """How many there are: all for n ≤ 8, else 8 to 64 places, 11 for 512; never fewer than the pairs to cover take.

    Of an odd number of places each rests once, so it takes one more.
    """
    every = n - 1 + n % 2
    wanted = options.rounds if options.rounds is not None else every if n <= _ALL else partners(n) + n % 2
    return max(min(wanted, every), len(cover_rounds(options)))


def least_rounds(n: int, options: Options) -> int:
    """The fewest that say anything of every place, and cover what has to be covered."""
    return max(min(LEAST_PARTNERS + n % 2, n - 1 + n % 2), len(cover_rounds(options)))


def partners(n: int) -> int:
    """With how many others each of more than eight places is measured."""
    return _PARTNERS + max(0, ((n - 1) // _UP_TO).bit_length())


def cover_rounds(options: Options) -> list[Round]:
    """The pairs that a schedule has to hold, packed into rounds."""
    return [tuple(each) for each in packed(options.cover)] if options.cover else []


def plan(n: int, options: Options, number: int, random: draws.Random) -> Iterator[Round]:
    """So many rounds: first those to cover, in which whoever is free meets somebody new, then drawn ones of a tournament."""
    covering = cover_rounds(options)
    met = {pair for pairs in covering for pair in pairs}
    for pairs in covering:
        whole = (*pairs, *_free(n, pairs, met, random))
        met |= set(whole)
        yield whole
    left = number - len(covering)
    if left > 0:
        yield from schedule(n, most=left, seed=random.getrandbits(32)).rounds()


def run(book: Book, options: Options, number: int, random: draws.Random) -> Generator[Ask, Answer, None]:
    """All rounds of the plan, into the book."""
    for at, pairs in enumerate(plan(len(book.names), options, number, random)):
        yield from book.asking(Ask(PAIRS, pairs, f"round {at + 1} of {number}"))


def _free(n: int, pairs: Sequence[Pair], met: set[Pair], random: draws.Random) -> Iterator[Pair]:
    """Those who are in none of the pairs, by two: with somebody they have not met, if possible."""
    busy = {place for pair in pairs for place in pair}
    free = random.sample(order := [place for place in range(n) if place not in busy], len(order))
    while len(free) > 1:
        place = free.pop()
        other = next((each for each in free if (min(place, each), max(place, each)) not in met), free[0])
        free.remove(other)
        yield min(place, other), max(place, other)
