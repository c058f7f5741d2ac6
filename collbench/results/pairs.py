"""What `collbench pairs` measured: one line per round in pairs.jsonl, and the matrix that they make together.

A place is what is paired: a rank, or a node. Of a pair (a, b) three things are measured in turn: the latency, then a's messages to b,
then b's to a. A time is a median over the samples, of the slowest pair of ranks where places are nodes; there the time of a message is
that of the slowest by the number of pairs, since so many messages pass meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.results import folder

PAIRS = folder.PAIRS
Figures = NDArray[np.float64]


@dataclass(frozen=True)
class PairRound:
    """Disjoint pairs measured at the same time; every list has one value per pair, None (or a null) where there is no figure.

    round        which round of the schedule, from 0; again: whether suspects were measured again
    pairs        places, as indices into the run's list of places
    latency_s    half the round trip; latency_ci_s: its 95 % interval [low, high]
    forward_s    of one message from a to b, backward_s from b to a, with their intervals
    wrong        wrong elements in all three, None: not verified
    na           why a pair was not measured, None: it was
    n            samples of each of the three: [latency, forward, backward]
    wrong_detail of each pair, what the first rank found wrong: element, what was wanted and got; None: nothing; empty: not recorded
    cpu_wait     of each pair, share of the round that a rank waited for a CPU (the rank that waited most); empty: not recorded
    flipped      of each pair, whether the state probe of one of its ranks changed during the round; empty: not recorded
    """

    round: int
    pairs: tuple[tuple[int, int], ...]
    latency_s: tuple[float | None, ...]
    latency_ci_s: tuple[tuple[float | None, float | None], ...]
    forward_s: tuple[float | None, ...]
    forward_ci_s: tuple[tuple[float | None, float | None], ...]
    backward_s: tuple[float | None, ...]
    backward_ci_s: tuple[tuple[float | None, float | None], ...]
    wrong: tuple[int | None, ...]
    na: tuple[str | None, ...]
    n: tuple[int, int, int] = (0, 0, 0)
    again: bool = False
    flags: tuple[str, ...] = ()
    wrong_detail: tuple[str | None, ...] = ()
    cpu_wait: tuple[float, ...] = ()
    flipped: tuple[bool, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> PairRound:
        """The round that `as_json` gave; lists become tuples. Raises TypeError when a field is missing."""
        known = {field.name: _tuples(values[field.name]) for field in fields(cls) if field.name in values}
        return cls(**known)


@dataclass(frozen=True)
class PairMatrix:
    """All figures by sending (row) and receiving (column) place; NaN where nothing was measured.

    places       their names: "node1", "rank 3 (node1)"
    latency_s    symmetric
    bandwidth    bytes per second of messages from row to column
    low, high    the bandwidth's interval
    wrong        wrong elements of the pair, symmetric; NaN: not verified
    size_bytes   of the messages whose bandwidth it is; latency_size_bytes: of those whose latency
    latency_spread  by what factor the upper end of the latency's interval exceeds the lower one; None: of none known
    """

    places: tuple[str, ...]
    latency_s: Figures
    bandwidth: Figures
    low: Figures
    high: Figures
    wrong: Figures
    size_bytes: int
    latency_size_bytes: int
    latency_spread: Figures | None = None

    @property
    def n(self) -> int:
        """How many places."""
        return len(self.places)


def matrix_of(places: Sequence[str], rounds: Iterable[PairRound], size_bytes: int, latency_size_bytes: int) -> PairMatrix:
    """The matrix of some rounds: of a pair measured again the faster of its figures, since a disturbance only makes it slower.

    So whoever is slow in the matrix was slow both times. Wrong elements are added up, since what was wrong once stays so.
    """
    latency, bandwidth, low, high, wrong, spread = (np.full((len(places), len(places)), np.nan) for _ in range(6))
    found = PairMatrix(tuple(places), latency, bandwidth, low, high, wrong, size_bytes, latency_size_bytes, spread)
    for one in rounds:
        _put(found, one)
    return found


def _put(found: PairMatrix, one: PairRound) -> None:
    """All pairs of a round at once: they are disjoint."""
    done = [turn for turn, why in enumerate(one.na) if why is None]
    if not done:
        return
    a, b = np.array([one.pairs[turn] for turn in done]).T
    _put_latency(found, one, (a, b), done)
    wrong = _figures(one.wrong, done)
    summed = np.where(np.isnan(wrong), found.wrong[a, b], np.nan_to_num(found.wrong[a, b]) + wrong)
    found.wrong[a, b] = found.wrong[b, a] = summed
    for (row, column), times, intervals in (((a, b), one.forward_s, one.forward_ci_s), ((b, a), one.backward_s, one.backward_ci_s)):
        rates, bounds = (_rates(found.size_bytes, _figures(values, done)) for values in (times, intervals))
        kept = found.bandwidth[row, column] >= np.nan_to_num(rates)
        for figures, measured in ((found.bandwidth, rates), (found.high, bounds[:, 0]), (found.low, bounds[:, 1])):
            figures[row, column] = np.where(kept, figures[row, column], measured)


def _put_latency(found: PairMatrix, one: PairRound, pairs: tuple[NDArray[np.int64], NDArray[np.int64]], done: Sequence[int]) -> None:
    assert found.latency_spread is not None
    ends, latency = _figures(one.latency_ci_s, done), _figures(one.latency_s, done)
    kept = found.latency_s[pairs] <= np.where(np.isnan(latency), np.inf, latency)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = ends[:, 1] / ends[:, 0]
    for figures, measured in ((found.latency_s, latency), (found.latency_spread, spread)):
        figures[pairs] = figures[pairs[::-1]] = np.where(kept, figures[pairs], measured)


def _rates(size: int, seconds: Figures) -> Figures:
    """Bytes per second; NaN where the time is unknown, or too short to be one."""
    with np.errstate(divide="ignore"):
        return np.where(seconds > 0, size / seconds, np.nan)


def _figures(values: Sequence[Any], done: Sequence[int]) -> Figures:
    """Of these turns; None becomes NaN, as does what is below zero."""
    found = np.array([values[turn] for turn in done], dtype=np.float64)
    return np.where(found >= 0, found, np.nan)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(inner) if isinstance(inner, list) else inner for inner in value) if isinstance(value, list) else value
