"""The rates that bus bandwidths are set against, as lines with their names: ring reference, hard limit, measured reference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from collbench.analysis.launches import known
from collbench.machine.peak.ceiling import Ceiling
from collbench.report.html.draw import BOUND, LIMIT, place
from collbench.report.html.names import cut
from collbench.results.row import Row
from collbench.units import format_rate

_KINDS = {"measured": "measured reference", "given": "ceiling given", "simulated": "simulated reference"}
_ALIKE = 1.01
_FASTEST = 1e16  # bytes per second: beyond, nothing is


@dataclass
class Limit:
    """A rate by message size, in bytes per second. `kinds` are the ways in which it limits, `backends` those that it was given for."""

    kinds: list[str]
    by: str
    sources: list[str]
    curve: dict[int, float] = field(default_factory=dict)
    backends: list[str] = field(default_factory=list)

    @property
    def hard(self) -> bool:
        """Whether nothing can be above it."""
        return "hard limit" in self.kinds

    @property
    def color(self) -> str:
        """The hard limit's, or the reference's."""
        return BOUND if self.hard else LIMIT

    @property
    def words(self) -> str:
        """ "ring reference 50.0 GB/s: NIC 4×100 Gb/s"."""
        low, high = (format_rate(pick(self.curve.values())) for pick in (min, max))
        rate = low if low == high else f"{low}–{high}"
        by = "" if self.by == f"the {self.kinds[0]}" else f": {self.by}"  # a given one has no other name
        return f"{' and '.join(self.kinds)} {rate} GB/s{by}"

    @property
    def points(self) -> list[tuple[float, float]]:
        """(place along x, GB/s), ascending in size."""
        return [(place(size), rate / 1e9) for size, rate in sorted(self.curve.items())]


def limits(rows: Iterable[Row]) -> list[Limit]:
    """The ceilings of the rows, each once: alike where kind, link and rates are. Where a hard limit is the reference, too, it is both."""
    found: list[Limit] = []
    for row in rows:
        for ceiling, kind in ((row.ceiling, None), (row.hard_bound, "hard limit")):
            rate = ceiling.bytes_per_s if ceiling else None
            if ceiling is not None and rate is not None and known(rate) and rate < _FASTEST and _stands(row):
                _add(found, row, ceiling, kind or kind_of(ceiling), rate)
    return _merged(found)


def kind_of(ceiling: Ceiling) -> str:
    """What it is, in words: "ring reference", "hard limit", "measured reference", "ceiling given"."""
    return _KINDS.get(ceiling.kind, "hard limit" if ceiling.model == "bound" else "ring reference")


def _stands(row: Row) -> bool:
    """Whether the row may be set against it: not where a percentage is withheld, unless for being above it."""
    return row.percent_of_ceiling is not None or "above_bound" in row.flags


def _add(found: list[Limit], row: Row, ceiling: Ceiling, kind: str, rate: float) -> None:
    by = cut(ceiling.limited_by, 80)
    same = (each for each in found if each.kinds == [kind] and each.by == by and _alike(each.curve.get(row.size_bytes, rate), rate))
    limit = next(same, None)
    if limit is None:
        limit = Limit([kind], by, [cut(ceiling.source, 120)])
        found.append(limit)
    limit.curve.setdefault(row.size_bytes, rate)
    if row.backend not in limit.backends:
        limit.backends.append(row.backend)


def _merged(found: list[Limit]) -> list[Limit]:
    """Reference and bound of one link and one rate as one; names of backends where two would read the same."""
    kept: list[Limit] = []
    for limit in found:
        twin = next((each for each in kept if each.by == limit.by and each.kinds != limit.kinds and _same_curve(each, limit)), None)
        if twin is None:
            kept.append(limit)
        else:
            twin.kinds += limit.kinds
    names = [(limit.kinds, limit.by) for limit in kept]
    for limit in kept:
        if names.count((limit.kinds, limit.by)) > 1:
            limit.by = f"{limit.by} ({cut(', '.join(limit.backends))})"
    return kept


def _same_curve(one: Limit, other: Limit) -> bool:
    common = one.curve.keys() & other.curve.keys()
    return bool(common) and all(_alike(one.curve[size], other.curve[size]) for size in common)


def _alike(one: float, other: float) -> bool:
    return max(one, other) <= _ALIKE * min(one, other)
