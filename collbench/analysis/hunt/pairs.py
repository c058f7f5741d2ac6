"""The suspects of a pair matrix, measured again as in a hunt: next to control pairs, in rounds that chance does not explain."""

from __future__ import annotations

import random as draws
from collections.abc import Generator, Mapping, Sequence

from collbench.analysis.hunt import candidates, parts, telling
from collbench.analysis.hunt.asks import PAIRS, Answer, Ask, Figure
from collbench.analysis.hunt.book import Book
from collbench.analysis.hunt.crosscheck import CrossCheck
from collbench.analysis.hunt.few import LEAST_PLACES
from collbench.analysis.hunt.hunt import cross_check_rounds
from collbench.analysis.hunt.verdict import Suspect
from collbench.analysis.pair_finding import hosts_of
from collbench.results.rounds import PairMatrix, PairRound

Figures = Mapping[tuple[int, int], Figure]


def judge(matrix: PairMatrix, rounds: Sequence[PairRound], seed: int) -> Generator[Ask, Answer, list[Suspect]]:
    """Ask for rounds until each suspect of the matrix is confirmed, cleared or inconclusive; return the suspects.

    Nothing is asked for with fewer than four places, or where the suspects are half of all places: then no majority is healthy. Suspects
    that are not in the list were not measured again.
    """
    found = candidates.seen(matrix)
    slow = {each.places for each in found.places}
    if matrix.n < LEAST_PLACES or len(found.well) < 2 or 2 * len(slow) >= matrix.n:
        return []
    book = Book(matrix.places, [(Ask(PAIRS, one.pairs, ""), answer_of(one.pairs, [one], matrix.size_bytes)) for one in rounds])
    hosts = hosts_of(matrix.places)
    check = CrossCheck(book, found, matrix.places if len(set(hosts)) == 1 else hosts, None, draws.Random(f"pairs, {seed}"))
    yield from check.run(cross_check_rounds(matrix.n))
    return parts.told(telling.suspects(check, matrix.places), book, check.alike)


def answer_of(groups: Sequence[tuple[int, ...]], rounds: Sequence[PairRound], size_bytes: int) -> Answer:
    """Return the figures of these pairs, each of which is in one of the rounds, or was not measured."""
    figures = {pair: _figure(one, turn, size_bytes) for one in rounds for turn, pair in enumerate(one.pairs)}
    missing = Figure(None, na="not measured")
    flags = dict.fromkeys(flag for one in rounds for flag in one.flags)
    return Answer(tuple(figures.get((group[0], group[1]), missing) for group in groups), tuple(flags))


def _figure(one: PairRound, turn: int, size_bytes: int) -> Figure:
    there, back = (size_bytes / seconds if seconds else None for seconds in (one.forward_s[turn], one.backward_s[turn]))
    slower = max((one.forward_s, one.forward_ci_s), (one.backward_s, one.backward_ci_s), key=lambda way: way[0][turn] or 0.0)[1][turn]
    high, low = (size_bytes / seconds if seconds else None for seconds in slower)
    cpu_wait = one.cpu_wait[turn] if one.cpu_wait else 0.0
    flipped = bool(one.flipped and one.flipped[turn])
    return Figure(there, back, one.latency_s[turn], low, high, one.wrong[turn] or 0, one.na[turn], cpu_wait, flipped)
