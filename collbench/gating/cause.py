"""The likely cause of a slowdown from the pattern of slower cases (link, backend, operation or host), and a ranking of changes.

A cause is named only if its cases are slower by similar factors and the others are not. Where the measured cases cannot separate
two causes, the fact names both and the cause is "unclear". Where no cause fits, there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date
from math import inf, isclose, isfinite, log, sqrt
from statistics import median
from typing import Literal

import msgspec
from msgspec.structs import replace

from collbench.analysis.differences import NOTHING, Difference
from collbench.gating import reasons as facts
from collbench.gating.baseline import CLASSES, CaseGroup, group_of_case
from collbench.gating.conditions import ExpectedChange
from collbench.gating.reasons import BACKEND, CASES, HOST, LATENCY, LINK, MEMORY, OPERATION, UNCLEAR, LikelyCause, PathCause, Slowdown
from collbench.gating.verdict import CONFIRMED, SUSPECTED, Change, GroupState, Suspicion
from collbench.results.row import CaseKey

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


class GroupEffect(msgspec.Struct, frozen=True):
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


class Pattern(msgspec.Struct, frozen=True):
    """The evidence from which a cause is named.

    groups      all that were judged
    slowdown    the typical excess of what is slower, in ln of time
    suspicions  the confirmed ones; the suspected ones if none is confirmed
    cases       all cases that have a history
    """

    groups: Sequence[GroupEffect]
    slowdown: float
    suspicions: Sequence[Suspicion]
    cases: Sequence[CaseKey]

    @property
    def touched(self) -> list[GroupEffect]:
        """Return the groups that are slower or have a slower case."""
        return [effect for effect in self.groups if effect.touched]

    def mostly(self, effect: GroupEffect) -> bool:
        """Return whether most cases of a group are slower, not only a few."""
        return effect.excess is not None and effect.excess >= self.slowdown / 2

    def where(self, fits: Callable[[CaseGroup], bool]) -> list[GroupEffect]:
        """Return the measured groups for which `fits` holds."""
        return [effect for effect in self.groups if effect.excess is not None and fits(effect.group)]

    def state(self, groups: Collection[GroupEffect]) -> State:
        """Return whether all these groups are slower by similar factors, or none is; "unsure" if they differ or chance could hide it."""
        measured = [(effect.excess, effect.spread) for effect in groups if effect.excess is not None and effect.spread < inf]
        if not measured:
            return UNSURE if groups else UNKNOWN
        half = self.slowdown / 2
        if _SURE * sqrt(median(spread for _, spread in measured) ** 2 / len(measured) + _COMMON**2) > half:
            return UNSURE
        if median(excess for excess, _ in measured) >= half:
            is_similar = all(half <= excess + _SURE * spread and excess <= _ALIKE * self.slowdown + spread for excess, spread in measured)
            return SLOW if is_similar else UNSURE
        clear = median(excess for excess, _ in measured) < half / 2 and all(excess - _SURE * spread < half for excess, spread in measured)
        return CLEAR if clear else UNSURE

    def sizes(self) -> set[int]:
        """Return the sizes in bytes of what is slower: single cases, and all cases of groups that are slower as a whole."""
        single = {int(suspicion.case["size_bytes"]) for suspicion in self.suspicions if suspicion.kind == "cell"}
        whole = {effect.group for effect in self.touched if self.mostly(effect)}
        return single | {case.size_bytes for case in self.cases if group_of_case(case) in whole}

    def columns(self, groups: Iterable[GroupEffect], name: str) -> set[object]:
        """Return the values that the cases of these groups have in a column: {2} nodes."""
        touched_groups = {effect.group for effect in groups}
        return {getattr(case, name) for case in self.cases if group_of_case(case) in touched_groups}


def pattern_of(suspicions: Sequence[Suspicion], groups: Sequence[GroupState], cases: Sequence[CaseKey]) -> Pattern | None:
    """Return the evidence; None if nothing is confirmed or suspected, or if no excess is known."""
    confirmed = [suspicion for suspicion in suspicions if suspicion.state == CONFIRMED]
    active = confirmed or [suspicion for suspicion in suspicions if suspicion.state == SUSPECTED]
    if not active:
        return None
    touched = {suspicion.name for suspicion in active if suspicion.kind == "group"}
    touched |= {str(group_of_case(CaseKey(**suspicion.case))) for suspicion in active if suspicion.kind == "cell"}
    effects = []
    for state in groups:
        # a group that is too small to be judged has the limit of one of its cases
        limit = state.limit if state.limit is not None else state.worst_limit
        spread = log(limit) / _LIMIT if limit is not None and limit > 1 else inf
        group = CaseGroup(state.backend, state.operation, state.size_class)
        effects.append(GroupEffect(group, state.cases, _typical(state.factors), spread, state.name in touched))
    touched_effects = [effect for effect in effects if effect.touched]
    beyond_limit = [effect.excess for effect in touched_effects if effect.excess is not None and effect.excess > _LIMIT * effect.spread]
    excesses = [_typical(suspicion.factors) for suspicion in active]
    slowdown = median(beyond_limit or [excess for excess in excesses if excess is not None] or [0.0])
    if not touched_effects:  # only the whole is slower, and no group shows that alone
        effects = [replace(effect, touched=(effect.excess or 0) >= slowdown / 2) for effect in effects]
    return Pattern(effects, slowdown, active, cases) if slowdown > 0 else None


def _typical(factors: Sequence[float | None]) -> float | None:
    logarithms = [log(factor) for factor in factors if factor is not None and factor > 0]
    return median(logarithms) if logarithms else None


_MOST_SIZES = 3


def cause_of(suspicions: Sequence[Suspicion], groups: Sequence[GroupState], cases: Sequence[CaseKey] = ()) -> LikelyCause | None:
    """Return the likely cause; None if nothing is slower or no cause fits.

    `cases` are those with a history: they give the number of nodes and the sizes of a group.
    """
    pattern = pattern_of(suspicions, groups, cases)
    if pattern is None or not pattern.touched:
        return None
    finders: tuple[Callable[[Pattern], LikelyCause | None], ...] = (_of_cases, _of_backend, _of_operation, _of_classes)
    return next(filter(None, (finder(pattern) for finder in finders)), None)


def _of_cases(pattern: Pattern) -> LikelyCause | None:
    """Return single slower sizes of a series with other sizes that are not slower: a switch of algorithm."""
    series = {(effect.group.backend, effect.group.operation) for effect in pattern.touched}
    whole = [effect for effect in pattern.touched if pattern.mostly(effect)]
    sizes = pattern.sizes()
    scattered = len(series) == 1 and not whole and len(sizes) <= _MOST_SIZES
    if not sizes or not (len(sizes) == 1 or scattered) or any(effect.cases > 1 for effect in whole if not pattern.cases):
        return None
    others = [effect for effect in pattern.groups if (effect.group.backend, effect.group.operation) in series and effect not in whole]
    if pattern.state(others) != CLEAR:
        return None
    return facts.SlowSizes(tuple(sorted(sizes)), tuple(sorted(series)), pattern.slowdown)


def _of_backend(pattern: Pattern) -> LikelyCause | None:
    same = _the_only(pattern, "backend", "operation")
    touched = pattern.touched
    if same is None:
        return None
    (backend,) = _names(touched, "backend")
    small_too = any(effect.group.size_class == CLASSES[0] for effect in touched) or pattern.columns(touched, "nodes") == {1}
    operations = _names(touched, "operation")
    all_operations = len(operations) > 1 and operations == _names(pattern.where(lambda group: group.backend == backend), "operation")
    named = () if all_operations else operations
    return facts.SlowBackend(backend, not small_too, _classes_of(touched), named, _slower(pattern), _names(same, "backend"))


def _of_operation(pattern: Pattern) -> LikelyCause | None:
    same = _the_only(pattern, "operation", "backend")
    touched = pattern.touched
    if same is None:
        return None
    (operation,) = _names(touched, "operation")
    return facts.SlowOperation(operation, _classes_of(touched), _names(touched, "backend"), _slower(pattern), _names(same, "operation"))


def _the_only(pattern: Pattern, column: str, other_column: str) -> list[GroupEffect] | None:
    """Return the same groups of other backends (or operations) if only one is slower; None if there is no such one.

    Whole groups must be slower: scattered single cases may belong to one backend or operation by chance.
    """
    touched = pattern.touched
    names = _names(touched, column)
    kinds = {(getattr(effect.group, other_column), effect.group.size_class) for effect in touched}
    same = pattern.where(lambda group: (getattr(group, other_column), group.size_class) in kinds and getattr(group, column) not in names)
    enough = 2 * sum(map(pattern.mostly, touched)) >= len(touched)
    return same if len(names) == 1 and enough and pattern.state(same) == CLEAR else None


def _of_classes(pattern: Pattern) -> LikelyCause | None:
    """Return what is slower on every backend: large messages, small ones, or all."""
    small, mid, large = (_class_state(pattern, name) for name in CLASSES)
    if large == SLOW and small == SLOW:
        return _of_messages(pattern, [HOST], "all", None) if mid != CLEAR else None
    if large == SLOW:
        path = _path_of_large_messages(pattern)
        # without small messages it may also be slow hosts
        return _of_messages(pattern, [*path, HOST] if small == UNSURE else path, "large", small)
    if small == SLOW:
        return _of_messages(pattern, [LATENCY] if large == CLEAR else [LATENCY, HOST], "small", large)
    return None


def _class_state(pattern: Pattern, size_class: str) -> State:
    """Return the state of a size class: slow only if each backend is slow, or two are and no other contradicts."""
    groups = pattern.where(lambda group: group.size_class == size_class)
    state = pattern.state(groups)
    if state != SLOW:
        return state
    backends = _names(groups, "backend")
    states = [pattern.state([effect for effect in groups if effect.group.backend == backend]) for backend in backends]
    return SLOW if states.count(SLOW) >= min(2, len(backends)) else UNSURE


def _path_of_large_messages(pattern: Pattern) -> list[PathCause]:
    """Return what large messages cross: links between nodes or GPUs, or a node's memory; both if that is unknown."""
    groups = [effect for effect in pattern.groups if effect.group.size_class == CLASSES[-1]]
    nodes = pattern.columns(groups, "nodes")
    if nodes == {1}:
        return [LINK] if pattern.columns(groups, "device") == {"cuda"} else [MEMORY]
    if nodes and all(isinstance(number, int) and number > 1 for number in nodes):
        return [LINK]
    return [LINK, MEMORY]


def _of_messages(
    pattern: Pattern, causes: Sequence[PathCause], messages: Literal["all", "large", "small"], contrast: State | None
) -> LikelyCause:
    """Return the cause of slower messages of a size class. A single measured backend may itself be the cause."""
    backends = _names(pattern.groups, "backend")
    only = backends[0] if len(backends) == 1 else ""
    assert contrast != "slow"
    return facts.SlowMessages(tuple(causes), messages, contrast, _slower(pattern), _names(pattern.touched, "backend"), only)


def _slower(pattern: Pattern) -> Slowdown:
    excesses = [effect.excess for effect in pattern.touched if effect.excess is not None and pattern.mostly(effect)]
    return (min(excesses), max(excesses)) if excesses else (pattern.slowdown, pattern.slowdown)


def _classes_of(effects: Iterable[GroupEffect]) -> tuple[str, ...]:
    return tuple(name for name in CLASSES if name in _names(effects, "size_class"))


def _names(effects: Iterable[GroupEffect], column: str) -> tuple[str, ...]:
    return tuple(sorted({getattr(effect.group, column) for effect in effects}))


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
    "rccl": ("NCCL_", "RCCL_", "MSCCL_", "HIP_", "HSA_", "ROCR_"),
    "torch-nccl": ("NCCL_", "TORCH_NCCL_", "SHARP_"),
    "gloo": ("GLOO_",),
    "mpi": ("UCX_", "UCC_", "MPICH_", "MPIR_", "OMPI_", "FI_", "I_MPI_", "MV2_", "PMIX_", "RDMAV_", "MLX5_", "SLURM_MPI_TYPE"),
}
_Ranked = tuple[int, facts.Plausible | None]


def ranked(
    differences: Sequence[Difference],
    expected: Sequence[ExpectedChange],
    today: date,
    suspicions: Sequence[Suspicion],
    cause: LikelyCause | None,
    *,
    groups: Sequence[GroupState] = (),
) -> list[Change]:
    """Return each difference with its announcement and its plausibility, the most plausible cause first; unsorted if nothing is slower."""
    pattern = pattern_of(suspicions, groups, ())
    ranks: list[_Ranked] = [(_FIRST, None) if pattern is None else _plausible(difference, pattern, cause) for difference in differences]
    changes = []
    for (rank, why), difference in sorted(zip(ranks, differences, strict=True), key=lambda pair: pair[0][0]):
        announced = next((change.announcement for change in expected if change.covers(difference, today)), None)
        explains = why is not None and rank <= _POSSIBLE
        changes.append(Change(difference.item, difference.a, difference.b, why, announced, difference.times, explains))
    return changes


def _plausible(change: Difference, pattern: Pattern, cause: LikelyCause | None) -> _Ranked:
    kind = cause.cause if cause else ""
    slower = {str(suspicion.case["backend"]) for suspicion in pattern.suspicions if suspicion.kind == "cell"}
    slower |= {effect.group.backend for effect in pattern.touched}
    first = change.item.path[0]
    owners: set[str] = set()  # none: it belongs to no single backend
    if change.kind == "software" and first in {*(effect.group.backend for effect in pattern.groups), *slower, *_VARIABLES}:
        owners = {first}
    elif change.kind == "environment":
        owners = {backend for backend, begins in _VARIABLES.items() if first.startswith(begins)}
    if owners:
        return _of_library(owners, slower, kind)
    if change.kind == "topology" and _has_word(_LINKS, change):
        return _of_link(change, pattern, kind)
    if first in ("collbench", "schema"):
        return _POSSIBLE, facts.OwnVersion()
    if kind == MEMORY and _has_word(_MEMORY, change):
        return _FIRST, facts.OnTheHost("memory")
    return _OF_HOST.get(kind, (_POSSIBLE, facts.OnTheHost("both")))


def _of_library(owners: set[str], slower: set[str], kind: str) -> _Ranked:
    if not slower & owners:
        return _HARDLY, facts.CarriesNone(tuple(sorted(owners)))
    if slower <= owners:
        return (_LIKELY if kind == LINK else _FIRST), facts.CarriesAll()
    return _UNLIKELY, facts.CarriesSome(tuple(sorted(slower - owners)))


def _of_link(change: Difference, pattern: Pattern, kind: str) -> _Ranked:
    slowdown = None  # by its rate, in ln of time; None if the item is not a rate of both
    if _has_word(_FASTER_IS_MORE, change) and NOTHING not in (change.a, change.b):
        numbers = [_NUMBER.search(text) for text in (change.a, change.b)]
        before, after = (float(number[0]) if number else 0.0 for number in numbers)
        if before > 0 and after > 0 and isfinite(before) and isfinite(after) and before != after:
            slowdown = log(before / after)
    if slowdown is not None and slowdown < 0:
        return _HARDLY, facts.FasterLink()
    if slowdown is not None and isclose(slowdown, pattern.slowdown, rel_tol=_NEAR) and kind in (LINK, UNCLEAR, ""):
        return _FIRST, facts.MatchingRate(slowdown, pattern.slowdown)
    if kind in (LINK, LATENCY, UNCLEAR):
        return (_FIRST if _has_word(_RATE, change) else _LIKELY), facts.LinkOfAll()
    return (_UNLIKELY, facts.SameLink()) if kind in (BACKEND, OPERATION, CASES) else (_POSSIBLE, facts.LinkOfSome())


def _has_word(pattern: re.Pattern[str], change: Difference) -> bool:
    return any(map(pattern.search, change.item.path))


_OF_HOST: dict[str, tuple[int, facts.OnTheHost]] = {
    HOST: (_FIRST, facts.OnTheHost("all")),
    **dict.fromkeys((MEMORY, LATENCY, UNCLEAR), (_LIKELY, facts.OnTheHost("slower"))),
    **dict.fromkeys((BACKEND, OPERATION, CASES), (_UNLIKELY, facts.OnTheHost("others"))),
}
