"""What a hunt has heard so far: every round with its answer, and the matrix of pairs that the sweep makes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from collbench.analysis.hunt.asks import PAIRS, Answer, Ask, Figure
from collbench.analysis.pair_rounds import levelled
from collbench.results.rounds import PairMatrix

Figures = NDArray[np.float64]
_HARDLY = 1e-12  # an interval from a rate below it says nothing


@dataclass
class Book:
    """names: of the places; told: every ask with its answer, in order."""

    names: tuple[str, ...]
    told: list[tuple[Ask, Answer]] = field(default_factory=list)

    def asking(self, ask: Ask) -> Generator[Ask, Answer, Answer]:
        """Ask, and write down what was answered; figures that no network has (0, below 0, infinite) count as not measured.

        Raises ValueError for an answer that has not a figure for each group.
        """
        answer = yield ask
        if len(answer.figures) != len(ask.groups):
            raise ValueError(f"{len(answer.figures)} figures for {len(ask.groups)} groups: {ask.why}")
        clean = replace(answer, figures=tuple(map(_clean, answer.figures)))
        self.told.append((ask, clean))
        return clean

    def rounds(self) -> dict[str, int]:
        """How many there were, by stage."""
        found: dict[str, int] = {}
        for ask, _ in self.told:
            found[ask.stage] = found.get(ask.stage, 0) + 1
        return found

    def figures(self, kind: str = PAIRS) -> Iterator[tuple[int, tuple[int, ...], Figure]]:
        """(number of the round, group, figure), in the order in which they were measured."""
        for number, (ask, answer) in enumerate(self.told):
            if ask.kind == kind:
                for group, figure in zip(ask.groups, answer.figures, strict=True):
                    yield number, group, figure

    def matrix(self, level: bool = True) -> PairMatrix:
        """All pairs so far, the first figure of each; `level`: without what rounds have in common."""
        n = len(self.names)
        figures = {name: np.full((n, n), np.nan) for name in ("latency", "bandwidth", "low", "high", "wrong")}
        turns = np.full((n, n), -1, np.int64)
        for number, (a, b), figure in self.figures():
            if figure.speed is None or turns[a, b] >= 0:
                continue
            turns[a, b], turns[b, a] = 2 * number, 2 * number + 1  # there and back are measured one after the other
            _put(figures, (a, b), figure)
        return self._made(figures, turns if level else np.full_like(turns, -1))

    def _made(self, figures: dict[str, Figures], turns: NDArray[np.int64]) -> PairMatrix:
        raw = figures["bandwidth"]
        bandwidth = np.exp(levelled(np.log(raw), turns))
        latency = np.exp(levelled(np.log(figures["latency"]), np.where(turns >= 0, turns // 2, -1), symmetric=True))
        low, high = (figures[name] * bandwidth / raw for name in ("low", "high"))
        return PairMatrix(self.names, latency, bandwidth, low, high, figures["wrong"], 0, 0)


def _put(figures: dict[str, Figures], pair: tuple[int, int], figure: Figure) -> None:
    """The interval is that of the slower direction; relative to the speed it is taken for both."""
    ways = [each for each in (figure.speed, figure.backward) if each]
    low, high = ((bound or np.nan) / min(ways) for bound in (figure.low, figure.high))
    for cell, speed in ((pair, figure.speed), (pair[::-1], figure.backward)):
        figures["bandwidth"][cell] = speed or np.nan
        figures["low"][cell], figures["high"][cell] = (speed or np.nan) * low, (speed or np.nan) * high
        figures["latency"][cell] = figure.latency_s or np.nan
        figures["wrong"][cell] = figure.wrong


def _clean(figure: Figure) -> Figure:
    """The figure with None for what is no speed and no time; without a speed it is not measured at all."""
    speed, backward, latency, low, high = (
        each if each is not None and isfinite(each) and each > _HARDLY else None
        for each in (figure.speed, figure.backward, figure.latency_s, figure.low, figure.high)
    )
    why = figure.na or ("no speed came out" if speed is None else None)
    if why is not None:
        return Figure(None, wrong=figure.wrong, na=why)
    return replace(figure, speed=speed, backward=backward, latency_s=latency, low=low, high=high)


def lost(book: Book) -> dict[int, str]:
    """Places that give no figures any longer, with the reason: all that was asked of them since at least two rounds (or ever) is missing.

    Partners of such a place lose figures by it, too; those do not count.
    """
    found: dict[int, str] = {}
    while worst := _most_lost(book, found):
        found[worst[0]] = worst[1]
    return found


def _most_lost(book: Book, known: dict[int, str]) -> tuple[int, str] | None:
    missed: dict[int, list[str]] = {}
    met: dict[int, set[int]] = {}
    asked: dict[int, int] = {}
    for _, pair, figure in book.figures():
        for place, other in (pair, pair[::-1]):
            if place in known or other in known:
                continue
            asked[place] = asked.get(place, 0) + 1
            missed[place] = [] if figure.speed is not None else [*missed.get(place, []), figure.na or ""]
            met[place] = set() if figure.speed is not None else met.get(place, set()) | {other}
    gone = [place for place, whys in missed.items() if whys and (len(met[place]) >= 2 or len(whys) == asked[place] >= 2)]
    if not gone:
        return None
    worst = max(gone, key=lambda place: (len(missed[place]), -place))
    return worst, f"no figure of its last {len(missed[worst])} of {asked[worst]} pairs: {missed[worst][-1]}"


def hardly_met(book: Book, least: int) -> dict[int, str]:
    """Places that have figures with fewer than so many others, with the reason why that says nothing of them."""
    met: list[set[int]] = [set() for _ in book.names]
    for _, (a, b), figure in book.figures():
        if figure.speed is not None:
            met[a].add(b)
            met[b].add(a)
    return {
        place: f"figures with {len(others)} others alone, fewer than {least}" for place, others in enumerate(met) if len(others) < least
    }


def wrong_data(book: Book) -> dict[int, tuple[int, int]]:
    """Places in whose pairs or groups elements arrived wrong: in how many of how many they were in."""
    found: dict[int, tuple[int, int]] = {}
    for ask, answer in book.told:
        for group, figure in zip(ask.groups, answer.figures, strict=True):
            for place in group:
                bad, all_of_it = found.get(place, (0, 0))
                found[place] = (bad + (figure.wrong > 0), all_of_it + 1)
    return {place: counts for place, counts in found.items() if counts[0]}
