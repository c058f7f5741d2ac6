"""Whether a network is built so that some of its pairs are slow: then nobody is sick for being in one of those."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import log

import numpy as np

from collbench.analysis.hunt.book import Book
from collbench.analysis.hunt.trials import Alike
from collbench.analysis.hunt.verdict import CONFIRMED, INCONCLUSIVE, Suspect
from collbench.analysis.pair_rounds import LEAST_CELLS
from collbench.analysis.pair_view import CELLS
from collbench.analysis.two_way import Figures
from collbench.results.rounds import PairMatrix
from collbench.units import format_percent

_MOST_SLOW = 0.3  # of the pairs without any suspect: with a sixth of all places sick and unseen
_FAST = 0.75  # the quantile of pairs that stands for what is usual
_LEAST_PAIRS = 6


def told(suspects: Sequence[Suspect], book: Book, alike: Alike) -> list[Suspect]:
    """The suspects; those that are no slower than many pairs of others, of the same kind of path, become inconclusive."""
    accused = {place for each in suspects if each.state == CONFIRMED for place in each.places}
    if not accused:
        return list(suspects)
    matrices = {level: book.matrix(level) for level in (False, True)}
    return [_one(each, matrices, accused, alike) if each.state == CONFIRMED else each for each in suspects]


def _one(suspect: Suspect, matrices: Mapping[bool, PairMatrix], accused: set[int], alike: Alike) -> Suspect:
    """Levelled rounds hide a part that met another one as a whole; rounds that are not run in modes of their own."""
    weak = -log(suspect.ratio) < CELLS["bandwidth"].least
    if weak and matrices[weak].n < 2 * LEAST_CELLS:
        return suspect  # rounds of so few pairs are not levelled
    speeds = _speeds(suspect, matrices[weak], accused, alike)
    if len(speeds) < _LEAST_PAIRS:
        return suspect
    share = float(np.mean(speeds < np.quantile(speeds, _FAST) + log(suspect.ratio) / 2))
    if share <= _MOST_SLOW:
        return suspect
    why = f"{format_percent(100 * share)} of the pairs of other places are as slow: that is a network of several parts, and nobody is sick"
    return replace(suspect, state=INCONCLUSIVE, evidence=(*suspect.evidence, why))


def _speeds(suspect: Suspect, matrix: PairMatrix, accused: set[int], alike: Alike) -> Figures:
    """Logarithms of the sweep's pairs among those who are not accused, of the kind of path that the suspect was measured on."""
    figures = -np.log(matrix.latency_s) if suspect.kind == "latency" else np.log(matrix.bandwidth)
    kinds: set[Hashable] = {_kind(suspect, partner, alike) for partner in suspect.partners[:1]}
    cells = [(int(a), int(b)) for a, b in np.argwhere(np.isfinite(figures)) if not accused & {int(a), int(b)}]
    return np.array([figures[cell] for cell in cells if not kinds or alike(*cell) in kinds])


def _kind(suspect: Suspect, partner: int, alike: Alike) -> Hashable:
    return alike(*suspect.places) if len(suspect.places) == 2 else alike(suspect.places[0], partner)
