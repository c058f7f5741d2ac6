"""What is slower and what is not, group by group: the evidence from which a cause is named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import median
from typing import Literal

from collbench.gate.allocation import COLUMNS, Cell
from collbench.gate.baseline import group_of_cell
from collbench.gate.scheme import Group
from collbench.gate.verdict import CONFIRMED, SUSPECTED, GroupState, Suspicion

State = Literal["slow", "clear", "unsure", "unknown"]
SLOW: State = "slow"
CLEAR: State = "clear"
UNSURE: State = "unsure"
UNKNOWN: State = "unknown"
_LIMIT = 3.0  # spreads that a limit is above what is usual
_SURE = 1.65  # spreads: 5 % beyond on one side
_COMMON = 0.004  # ln of time: what all groups of an allocation share, which more of them do not average out
_ALIKE = 2.5  # times the usual slowdown: what is slower by more than that has another cause
_SIZE = COLUMNS.index("size_bytes")


@dataclass(frozen=True)
class Seen:
    """A group as it was measured.

    excess   ln of its time over what the baseline says, the median over allocations; None where nothing is known
    spread   what of that is chance, likewise; without end where the group has no limit
    touched  it is confirmed or suspected, or a cell of it is
    """

    group: Group
    cells: int
    excess: float | None
    spread: float
    touched: bool

    @property
    def over(self) -> bool:
        """Whether it exceeds what may be by chance."""
        return self.excess is not None and self.excess > _LIMIT * self.spread


@dataclass(frozen=True)
class Pattern:
    """groups  all that were judged
    slowdown   ln: by how much what is slower usually is
    suspicions  those that count: the confirmed ones, or where there are none those suspected
    cells      all that have a history
    """

    groups: Sequence[Seen]
    slowdown: float
    suspicions: Sequence[Suspicion]
    cells: Sequence[Cell]

    @property
    def touched(self) -> list[Seen]:
        """The groups with something slower in them."""
        return [each for each in self.groups if each.touched]

    def mostly(self, seen: Seen) -> bool:
        """Whether most cells of a group are slower, and not single ones alone."""
        return seen.excess is not None and seen.excess >= self.slowdown / 2

    def where(self, fits: Callable[[Group], bool]) -> list[Seen]:
        """The groups that fit and were measured."""
        return [each for each in self.groups if each.excess is not None and fits(each.group)]

    def state(self, groups: Collection[Seen]) -> State:
        """Whether all of these are slower by alike factors, or none is; "unsure" where they differ, or chance could hide it."""
        known = [(each.excess, each.spread) for each in groups if each.excess is not None and each.spread < inf]
        if not known:
            return UNSURE if groups else UNKNOWN
        half = self.slowdown / 2
        if _SURE * sqrt(median(spread for _, spread in known) ** 2 / len(known) + _COMMON**2) > half:
            return UNSURE
        if median(excess for excess, _ in known) >= half:
            alike = all(half <= excess + _SURE * spread and excess <= _ALIKE * self.slowdown + spread for excess, spread in known)
            return SLOW if alike else UNSURE
        clear = median(excess for excess, _ in known) < half / 2 and all(excess - _SURE * spread < half for excess, spread in known)
        return CLEAR if clear else UNSURE

    def sizes(self) -> set[int]:
        """Of what is slower, in bytes: of single cells, and of all cells of groups that are slower as a whole."""
        single = {int(each.cell["size_bytes"]) for each in self.suspicions if each.kind == "cell"}
        whole = {each.group for each in self.touched if self.mostly(each)}
        return single | {int(cell[_SIZE]) for cell in self.cells if group_of_cell(cell) in whole}

    def columns(self, groups: Iterable[Seen], name: str) -> set[object]:
        """What the cells of these groups have in a column: {2} nodes."""
        place, wanted = COLUMNS.index(name), {each.group for each in groups}
        return {cell[place] for cell in self.cells if group_of_cell(cell) in wanted}


def pattern_of(suspicions: Sequence[Suspicion], groups: Sequence[GroupState], cells: Sequence[Cell]) -> Pattern | None:
    """The evidence; None where nothing is confirmed or suspected, or nothing is known of by how much."""
    active = next((found for state in (CONFIRMED, SUSPECTED) if (found := [each for each in suspicions if each.state == state])), [])
    if not active:
        return None
    touched = _touched(active)
    seen = [_seen(each, touched) for each in groups]
    slowdown = _slowdown(seen, active)
    if not any(each.touched for each in seen):  # the whole alone, which no group shows for itself
        seen = [Seen(each.group, each.cells, each.excess, each.spread, (each.excess or 0) >= slowdown / 2) for each in seen]
    return Pattern(seen, slowdown, active, cells) if slowdown > 0 else None


def _touched(active: Sequence[Suspicion]) -> dict[str, bool]:
    names = [each.name for each in active if each.kind == "group"]
    names += [str(group_of_cell(tuple(each.cell[name] for name in COLUMNS))) for each in active if each.kind == "cell"]
    return defaultdict(bool, dict.fromkeys(names, True))


def _seen(state: GroupState, touched: dict[str, bool]) -> Seen:
    excess = _typical(state.factors)
    limit = state.limit if state.limit is not None else state.worst_limit  # a group too small to be judged is as sure as a cell of it
    spread = log(limit) / _LIMIT if limit is not None and limit > 1 else inf
    return Seen(Group(state.backend, state.operation, state.size_class), state.cells, excess, spread, touched[state.name])


def _typical(factors: Sequence[float | None]) -> float | None:
    known = [log(factor) for factor in factors if factor is not None and factor > 0]
    return median(known) if known else None


def _slowdown(seen: Sequence[Seen], active: Sequence[Suspicion]) -> float:
    over = [each.excess for each in seen if each.touched and each.over and each.excess is not None]
    own = [excess for each in active if (excess := _typical(each.factors)) is not None]
    return median(over or own or [0.0])


def times(excesses: Sequence[float]) -> str:
    """ "1.11", or "1.05 to 1.11" times, of ln of time; three digits of what is more: "6250"."""
    low, high = (_three_digits(exp(each)) for each in (min(excesses), max(excesses)))
    return low if low == high else f"{low} to {high}"


def _three_digits(factor: float) -> str:
    rounded = float(f"{factor:.3g}")
    return f"{rounded:.{2 if rounded < 10 else 1 if rounded < 100 else 0}f}"
