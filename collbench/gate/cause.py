"""The likely cause of a slowdown from the pattern of slower cases (link, backend, operation or host), and a ranking of changes.

A cause is named only if its cases are slower by similar factors and the others are not. Where the measured cases cannot separate
two causes, the fact names both and the cause is "unclear". Where no cause fits, there is none.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from math import inf, isclose, isfinite, log, sqrt
from statistics import median
from typing import Literal

from collbench.analysis.differences import NOTHING, Difference
from collbench.gate.allocation import COLUMNS, Case
from collbench.gate.baseline import CLASSES, CaseGroup, group_of_case
from collbench.gate.changes import ExpectedChange
from collbench.gate.plausible import (
    BACKEND,
    CELLS,
    HOST,
    LATENCY,
    LINK,
    MEMORY,
    OPERATION,
    UNCLEAR,
    CarriesAll,
    CarriesNone,
    CarriesSome,
    FasterLink,
    LikelyCause,
    LinkOfAll,
    LinkOfSome,
    MatchingRate,
    OnTheHost,
    OwnVersion,
    PathCause,
    Plausible,
    SameLink,
    SlowBackend,
    Slowdown,
    SlowMessages,
    SlowOperation,
    SlowSizes,
)
from collbench.gate.verdict import CONFIRMED, SUSPECTED, Announcement, Change, GroupState, Suspicion

# The evidence: which groups are slower and which are not.

State = Literal["slow", "clear", "unsure", "unknown"]
SLOW: State = "slow"
CLEAR: State = "clear"
UNSURE: State = "unsure"
UNKNOWN: State = "unknown"
_LIMIT = 3.0  # spreads between the usual value and a limit
_SURE = 1.65  # spreads: 5 % of normal values are beyond it on one side
_COMMON = 0.004  # ln of time: the effect that all groups of an allocation share, which an average over them does not reduce
_ALIKE = 2.5  # times the usual slowdown: a larger slowdown has another cause
_SIZE = COLUMNS.index("size_bytes")


@dataclass(frozen=True)
class GroupEffect:
    """The measured effect on a group of cases.

    excess   ln of its time over the baseline's, the median over allocations; None if it is unknown
    spread   the part of it that chance explains, in ln of time; infinite where the group has no limit
    touched  whether it, or a case of it, is confirmed or suspected
    """

    group: CaseGroup
    cases: int
    excess: float | None
    spread: float
    touched: bool

    @property
    def over(self) -> bool:
        """Return whether the excess is larger than chance explains."""
        return self.excess is not None and self.excess > _LIMIT * self.spread


@dataclass(frozen=True)
class Pattern:
    """The evidence from which a cause is named.

    groups      all that were judged
    slowdown    the typical excess of what is slower, in ln of time
    suspicions  the confirmed ones; the suspected ones if none is confirmed
    cases       all cases that have a history
    """

    groups: Sequence[GroupEffect]
    slowdown: float
    suspicions: Sequence[Suspicion]
    cases: Sequence[Case]

    @property
    def touched(self) -> list[GroupEffect]:
        """Return the groups that are slower or have a slower case."""
        return [each for each in self.groups if each.touched]

    def mostly(self, seen: GroupEffect) -> bool:
        """Return whether most cases of a group are slower, not only a few."""
        return seen.excess is not None and seen.excess >= self.slowdown / 2

    def where(self, fits: Callable[[CaseGroup], bool]) -> list[GroupEffect]:
        """Return the measured groups for which `fits` holds."""
        return [each for each in self.groups if each.excess is not None and fits(each.group)]

    def state(self, groups: Collection[GroupEffect]) -> State:
        """Return whether all these groups are slower by similar factors, or none is; "unsure" if they differ or chance could hide it."""
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
        """Return the sizes in bytes of what is slower: single cases, and all cases of groups that are slower as a whole."""
        single = {int(each.case["size_bytes"]) for each in self.suspicions if each.kind == "cell"}
        whole = {each.group for each in self.touched if self.mostly(each)}
        return single | {int(case[_SIZE]) for case in self.cases if group_of_case(case) in whole}

    def columns(self, groups: Iterable[GroupEffect], name: str) -> set[object]:
        """Return the values that the cases of these groups have in a column: {2} nodes."""
        place, touched_groups = COLUMNS.index(name), {each.group for each in groups}
        return {case[place] for case in self.cases if group_of_case(case) in touched_groups}


def pattern_of(suspicions: Sequence[Suspicion], groups: Sequence[GroupState], cases: Sequence[Case]) -> Pattern | None:
    """Return the evidence; None if nothing is confirmed or suspected, or if no excess is known."""
    active = next((found for state in (CONFIRMED, SUSPECTED) if (found := [each for each in suspicions if each.state == state])), [])
    if not active:
        return None
    touched = _touched(active)
    seen = [_seen(each, touched) for each in groups]
    slowdown = _slowdown(seen, active)
    if not any(each.touched for each in seen):  # only the whole is slower, and no group shows that alone
        seen = [GroupEffect(each.group, each.cases, each.excess, each.spread, (each.excess or 0) >= slowdown / 2) for each in seen]
    return Pattern(seen, slowdown, active, cases) if slowdown > 0 else None


def _touched(active: Sequence[Suspicion]) -> dict[str, bool]:
    names = [each.name for each in active if each.kind == "group"]
    names += [str(group_of_case(tuple(each.case[name] for name in COLUMNS))) for each in active if each.kind == "cell"]
    return defaultdict(bool, dict.fromkeys(names, True))


def _seen(state: GroupState, touched: dict[str, bool]) -> GroupEffect:
    excess = _typical(state.factors)
    # a group that is too small to be judged has the limit of one of its cases
    limit = state.limit if state.limit is not None else state.worst_limit
    spread = log(limit) / _LIMIT if limit is not None and limit > 1 else inf
    return GroupEffect(CaseGroup(state.backend, state.operation, state.size_class), state.cases, excess, spread, touched[state.name])


def _typical(factors: Sequence[float | None]) -> float | None:
    known = [log(factor) for factor in factors if factor is not None and factor > 0]
    return median(known) if known else None


def _slowdown(seen: Sequence[GroupEffect], active: Sequence[Suspicion]) -> float:
    over = [each.excess for each in seen if each.touched and each.over and each.excess is not None]
    own = [excess for each in active if (excess := _typical(each.factors)) is not None]
    return median(over or own or [0.0])


_MOST_SIZES = 3


def cause_of(suspicions: Sequence[Suspicion], groups: Sequence[GroupState], cases: Sequence[Case] = ()) -> LikelyCause | None:
    """Return the likely cause; None if nothing is slower or no cause fits.

    `cases` are those with a history: they give the number of nodes and the sizes of a group.
    """
    pattern = pattern_of(suspicions, groups, cases)
    if pattern is None or not pattern.touched:
        return None
    looks: tuple[Callable[[Pattern], LikelyCause | None], ...] = (_of_cases, _of_backend, _of_operation, _of_classes)
    return next((found for look in looks if (found := look(pattern)) is not None), None)


def _of_cases(pattern: Pattern) -> LikelyCause | None:
    """Return single slower sizes of a series with other sizes that are not slower: a switch of algorithm."""
    series = {(each.group.backend, each.group.operation) for each in pattern.touched}
    whole = [each for each in pattern.touched if pattern.mostly(each)]
    sizes = pattern.sizes()
    scattered = len(series) == 1 and not whole and len(sizes) <= _MOST_SIZES
    if not sizes or not (len(sizes) == 1 or scattered) or any(each.cases > 1 for each in whole if not pattern.cases):
        return None
    others = [each for each in pattern.groups if (each.group.backend, each.group.operation) in series and each not in whole]
    if pattern.state(others) != CLEAR:
        return None
    return SlowSizes(tuple(sorted(sizes)), tuple(sorted(series)), pattern.slowdown)


def _of_backend(pattern: Pattern) -> LikelyCause | None:
    touched = pattern.touched
    backends = {each.group.backend for each in touched}
    kinds = {(each.group.operation, each.group.size_class) for each in touched}
    same = pattern.where(lambda group: (group.operation, group.size_class) in kinds and group.backend not in backends)
    if len(backends) > 1 or pattern.state(same) != CLEAR or not _enough(pattern):
        return None
    (backend,) = backends
    own = pattern.where(lambda group: group.backend == backend)
    small_too = any(each.group.size_class == CLASSES[0] for each in touched) or pattern.columns(touched, "nodes") == {1}
    operations = {each.group.operation for each in touched}
    every = len(operations) > 1 and operations == {each.group.operation for each in own}
    named = () if every else tuple(sorted(operations))
    return SlowBackend(backend, not small_too, _classes_of(touched), named, _slower(pattern), _backends(same))


def _of_operation(pattern: Pattern) -> LikelyCause | None:
    touched = pattern.touched
    operations = {each.group.operation for each in touched}
    kinds = {(each.group.backend, each.group.size_class) for each in touched}
    same = pattern.where(lambda group: (group.backend, group.size_class) in kinds and group.operation not in operations)
    if len(operations) > 1 or pattern.state(same) != CLEAR or not _enough(pattern):
        return None
    (operation,) = operations
    others = tuple(sorted({each.group.operation for each in same}))
    return SlowOperation(operation, _classes_of(touched), _backends(touched), _slower(pattern), others)


def _enough(pattern: Pattern) -> bool:
    """Return whether whole groups are slower. Scattered single cases may belong to one backend or operation by chance."""
    return 2 * sum(map(pattern.mostly, pattern.touched)) >= len(pattern.touched)


def _of_classes(pattern: Pattern) -> LikelyCause | None:
    """Return what is slower on every backend: large messages, small ones, or all."""
    small, mid, large = (_class_state(pattern, name) for name in CLASSES)
    if large == SLOW and small == SLOW:
        return _of_messages(pattern, [HOST], "all", None) if mid != CLEAR else None
    if large == SLOW:  # without small messages it may also be slow hosts
        path = _path(pattern)
        return _of_messages(pattern, [*path, HOST] if small == UNSURE else path, "large", small)
    if small != SLOW:
        return None
    return _of_messages(pattern, [LATENCY] if large == CLEAR else [LATENCY, HOST], "small", large)


def _path(pattern: Pattern) -> list[PathCause]:
    """Return what large messages cross: links between nodes or GPUs, or a node's memory; both if that is unknown."""
    large = [each for each in pattern.groups if each.group.size_class == CLASSES[-1]]
    nodes, devices = pattern.columns(large, "nodes"), pattern.columns(large, "device")
    if nodes == {1}:
        return [LINK] if devices == {"cuda"} else [MEMORY]
    return [LINK] if nodes and all(isinstance(each, int) and each > 1 for each in nodes) else [LINK, MEMORY]


def _class_state(pattern: Pattern, name: str) -> State:
    """Return the state of a size class; "slow" only if each backend is slow, or two are and no other contradicts."""
    groups = pattern.where(lambda group: group.size_class == name)
    state = pattern.state(groups)
    if state != SLOW:
        return state
    backends = {each.group.backend for each in groups}
    each_one = [pattern.state([each for each in groups if each.group.backend == backend]) for backend in backends]
    return SLOW if each_one.count(SLOW) >= min(2, len(backends)) else UNSURE


def _of_messages(
    pattern: Pattern, causes: Sequence[PathCause], messages: Literal["all", "large", "small"], contrast: State | None
) -> LikelyCause:
    """Return the cause of slower messages of a size class. A single measured backend may itself be the cause."""
    backends = {each.group.backend for each in pattern.groups}
    only = next(iter(backends)) if len(backends) == 1 else ""
    assert contrast != "slow"
    return SlowMessages(tuple(causes), messages, contrast, _slower(pattern), _backends(pattern.touched), only)


def _slower(pattern: Pattern) -> Slowdown:
    found = [each.excess for each in pattern.touched if each.excess is not None and pattern.mostly(each)]
    return (min(found), max(found)) if found else (pattern.slowdown, pattern.slowdown)


def _classes_of(seen: Iterable[GroupEffect]) -> tuple[str, ...]:
    found = {each.group.size_class for each in seen}
    return tuple(name for name in CLASSES if name in found)


def _backends(seen: Iterable[GroupEffect]) -> tuple[str, ...]:
    return tuple(sorted({each.group.backend for each in seen}))


# Changes since the last good allocation, the most plausible cause of the slowdown first.
#
# A backend's library can slow its own cases, a link's rate can slow the messages that cross it, and a kernel can slow everything. The
# facts give the evidence for and against a change; they prove nothing.

_FIRST, _LIKELY, _POSSIBLE, _UNLIKELY, _HARDLY = range(5)
_RATE = re.compile(r"rate_bits_per_s|rate_text|speed\w*_per_s|shaped_bits_per_s|\bwidth\b|\bmtu\w*", re.ASCII)
_FASTER_IS_MORE = re.compile(r"_per_s\b|rate_text|\bwidth\b", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?", re.ASCII)
_LINKS = re.compile(r"interfaces|nics?\b|ports?\b|fabric|links?\b|switch", re.ASCII | re.IGNORECASE)
_MEMORY = re.compile(r"numa|memory|huge_pages|shm|\bdimm", re.ASCII | re.IGNORECASE)
_NEAR = 0.35  # of the slowdown's logarithm: a rate explains a slowdown within this distance
# By prefix of a variable the backends that read it. A variable without an entry may affect any backend.
_VARIABLES = {
    "nccl": ("NCCL_", "TORCH_NCCL_", "SHARP_"),
    "torch-nccl": ("NCCL_", "TORCH_NCCL_", "SHARP_"),
    "gloo": ("GLOO_",),
    "mpi": ("UCX_", "UCC_", "MPICH_", "MPIR_", "OMPI_", "FI_", "I_MPI_", "MV2_", "PMIX_", "RDMAV_", "MLX5_", "SLURM_MPI_TYPE"),
}
_Ranked = tuple[int, Plausible | None]


def ranked(
    found: Sequence[Difference],
    expected: Sequence[ExpectedChange],
    today: date,
    suspicions: Sequence[Suspicion],
    cause: LikelyCause | None,
    *,
    groups: Sequence[GroupState] = (),
) -> list[Change]:
    """Return each difference with its announcement and its plausibility, the most plausible cause first; unsorted if nothing is slower."""
    pattern = pattern_of(suspicions, groups, ())
    ranks: list[_Ranked] = [(_FIRST, None) if pattern is None else _plausible(each, pattern, cause) for each in found]
    order = sorted(range(len(found)), key=lambda place: ranks[place][0])
    return [_change(found[place], *ranks[place], expected, today) for place in order]


def _change(each: Difference, rank: int, plausible: Plausible | None, expected: Sequence[ExpectedChange], today: date) -> Change:
    by = next((one for one in expected if one.covers(each, today)), None)
    announced: Announcement | None = None if by is None else by.announcement
    explains = plausible is not None and rank <= _POSSIBLE
    return Change(each.item, each.a, each.b, plausible, announced, each.times, explains)


def _plausible(change: Difference, pattern: Pattern, cause: LikelyCause | None) -> _Ranked:
    kind = cause.cause if cause else ""
    owners = _owners(change, {each.group.backend for each in pattern.groups} | _slower_backends(pattern))
    if owners is not None:
        return _of_library(owners, pattern, kind)
    if change.kind == "topology" and _has_word(_LINKS, change):
        return _of_link(change, pattern, kind)
    if change.item.path[0] in ("collbench", "schema"):
        return _POSSIBLE, OwnVersion()
    return _of_host(change, kind)


def _owners(change: Difference, backends: set[str]) -> set[str] | None:
    """Return the backends of a changed library or setting; None if it belongs to no single one."""
    first = change.item.path[0]
    if change.kind == "software":
        return {first} if first in backends or first in _VARIABLES else None
    if change.kind == "environment":
        found = {backend for backend, begins in _VARIABLES.items() if first.startswith(begins)}
        return found or None
    return None


def _slower_backends(pattern: Pattern) -> set[str]:
    single = {str(each.case["backend"]) for each in pattern.suspicions if each.kind == "cell"}
    return single | {each.group.backend for each in pattern.touched}


def _of_library(owners: set[str], pattern: Pattern, kind: str) -> _Ranked:
    slower = _slower_backends(pattern)
    if not slower & owners:
        return _HARDLY, CarriesNone(tuple(sorted(owners)))
    if slower <= owners:
        return (_LIKELY if kind == LINK else _FIRST), CarriesAll()
    return _UNLIKELY, CarriesSome(tuple(sorted(slower - owners)))


def _of_link(change: Difference, pattern: Pattern, kind: str) -> _Ranked:
    slowdown = _slowdown_of(change)
    if slowdown is not None and slowdown < 0:
        return _HARDLY, FasterLink()
    if slowdown is not None and isclose(slowdown, pattern.slowdown, rel_tol=_NEAR) and kind in (LINK, UNCLEAR, ""):
        return _FIRST, MatchingRate(slowdown, pattern.slowdown)
    if kind in (LINK, LATENCY, UNCLEAR):
        return (_FIRST if _has_word(_RATE, change) else _LIKELY), LinkOfAll()
    if kind in (BACKEND, OPERATION, CELLS):
        return _UNLIKELY, SameLink()
    return _POSSIBLE, LinkOfSome()


def _has_word(pattern: re.Pattern[str], change: Difference) -> bool:
    """Return whether a word of the change's path matches."""
    return any(map(pattern.search, change.item.path))


def _slowdown_of(change: Difference) -> float | None:
    """Return how much slower a link became by its rate, in ln of time; None if the item is not a rate of both."""
    if not _has_word(_FASTER_IS_MORE, change) or NOTHING in (change.a, change.b):
        return None
    found = [_NUMBER.search(text) for text in (change.a, change.b)]
    before, after = (float(each[0]) if each else 0.0 for each in found)
    return log(before / after) if before > 0 and after > 0 and isfinite(before) and isfinite(after) and before != after else None


def _of_host(change: Difference, kind: str) -> _Ranked:
    if kind == MEMORY and _has_word(_MEMORY, change):
        return _FIRST, OnTheHost("memory")
    if kind == HOST:
        return _FIRST, OnTheHost("all")
    if kind in (MEMORY, LATENCY, UNCLEAR):
        return _LIKELY, OnTheHost("slower")
    if kind in (BACKEND, OPERATION, CELLS):
        return _UNLIKELY, OnTheHost("others")
    return _POSSIBLE, OnTheHost("both")
