"""Unstable cells: launches of one allocation lie so far apart that their median says nothing.

Launches of a cell may scatter as they did in the baseline. Unstable is a cell all but one of whose launches (of many: all but a fifth)
lie further from their median than 10 %, than twice the baseline's launches from its centre (all but one, or a twentieth), and than twice
what is usual for its backend and class of sizes (the 95 % quantile over cells): so a cell with two modes that the baseline, by chance, saw
in one of them only is not called unstable while its like have two. What rows say of themselves (`two_modes`, `drift`) decides nothing:
it is within a launch, and the baseline's rows say it as often.

Simulated with the noise of `gate.noise` (336 cells, a tenth of them with two modes): of gates where nothing changed about 1 in 70 had an
unstable cell with a baseline of six allocations, 1 in 30 with one of four; a large cell that came to be slower by 20 % in two of five
launches was called unstable in 97 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collbench.gate.allocation import Allocation, Cell
from collbench.gate.baseline import seconds_of
from collbench.gate.rule import Limits, Mask
from collbench.gate.scheme import Figures, Scheme, known_median

FEWEST_LAUNCHES = 3  # of fewer it is not known how they scatter
_FLOOR = float(np.log1p(0.10))
_TIMES, _OF_ITS_LIKE = 2.0, 0.95
_BASELINE_SHARE, _SHARE = 0.05, 0.20  # of the launches that may lie anywhere, at least one


def launch_limits(allocations: Sequence[Allocation], cells: Sequence[Cell], limits: Limits) -> Figures:
    """[cells] how far from their median a candidate's launches may lie, in ln of time; `allocations` are the baseline's."""
    launches = np.hstack([_logs(each, cells) for each in allocations])
    own = _all_but(np.abs(launches - limits.centre[:, None]), _BASELINE_SHARE, 1)
    return np.maximum(_FLOOR, _TIMES * np.fmax(np.nan_to_num(own), _of_its_like(own, limits.scheme)))


def unstable(allocation: Allocation, cells: Sequence[Cell], allowed: Figures) -> Mask:
    """[cells] whose launches lie further apart than is allowed."""
    launches = _logs(allocation, cells)
    apart = _all_but(np.abs(launches - known_median(launches)[:, None]), _SHARE, FEWEST_LAUNCHES)
    with np.errstate(invalid="ignore"):
        found: Mask = apart > allowed
    return found


def _logs(allocation: Allocation, cells: Sequence[Cell]) -> Figures:
    found: Figures = np.log(seconds_of(allocation, cells))
    return found


def _all_but(distances: Figures, share: float, fewest: int) -> Figures:
    """[cells] the largest of [cells × launches] that are known, but for one or that share of them; NaN of fewer than `fewest`."""
    ordered = np.sort(distances, axis=1)  # NaN comes last
    counts = np.isfinite(distances).sum(axis=1)
    places = np.maximum(counts - 1 - np.maximum(1, (counts * share).astype(np.int64)), 0)
    picked = np.take_along_axis(ordered, places[:, None], axis=1)[:, 0]
    return np.where(counts >= fewest, picked, np.nan)


def _of_its_like(own: Figures, scheme: Scheme) -> Figures:
    """[cells] what is usual for the cell's backend and class of sizes, all operations together; 0 where nothing is known."""
    found = np.zeros(len(own))
    names = [(group.backend, group.size_class) for group in scheme.groups]
    for backend, size in dict.fromkeys(names):
        groups = [number for number, name in enumerate(names) if name == (backend, size)]
        like = np.isin(scheme.of, groups) & np.isfinite(own)
        found[np.isin(scheme.of, groups)] = np.quantile(own[like], _OF_ITS_LIKE) if like.any() else 0.0
    return found
