"""What the pattern of slower cells points at: the link, a backend, an operation, the host.

A cause is named only where something speaks for it and something against the others: what it would slow is slower by alike factors,
and what it would leave alone is not. Where two cannot be told apart, because what would tell was not measured, the sentence names both
and the kind is "unclear". Where nothing fits, nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from collbench.gate.allocation import Cell
from collbench.gate.pattern import CLEAR, SLOW, UNKNOWN, UNSURE, Pattern, Seen, State, pattern_of, times
from collbench.gate.scheme import CLASSES
from collbench.gate.verdict import Cause, GroupState, Suspicion
from collbench.units import format_size

LINK, MEMORY, LATENCY, HOST, BACKEND, OPERATION, CELLS, UNCLEAR = KINDS = (
    "link", "memory", "latency", "host", "backend", "operation", "cells", "unclear",
)  # fmt: skip
_MOST_SIZES = 3
_WAYS = {
    LINK: "the link",
    MEMORY: "the memory of the node",
    LATENCY: "the latency of the path, not its rate",
    HOST: "the hosts (clock, power, kernel, a neighbour)",
}


def cause_of(suspicions: Sequence[Suspicion], groups: Sequence[GroupState], cells: Sequence[Cell] = ()) -> Cause | None:
    """What is slower, and what is not, as one sentence; None where nothing is, or nothing can be said.

    `cells` are those with a history: they say over how many nodes a group goes, and of which sizes it is.
    """
    pattern = pattern_of(suspicions, groups, cells)
    if pattern is None or not pattern.touched:
        return None
    looks: tuple[Callable[[Pattern], Cause | None], ...] = (_of_cells, _of_backend, _of_operation, _of_classes)
    return next((found for look in looks if (found := look(pattern)) is not None), None)


def _of_cells(pattern: Pattern) -> Cause | None:
    """Single sizes, among others of the same series that are not slower: a switch of algorithm."""
    series = {(each.group.backend, each.group.operation) for each in pattern.touched}
    whole = [each for each in pattern.touched if pattern.mostly(each)]
    sizes = pattern.sizes()
    scattered = len(series) == 1 and not whole and len(sizes) <= _MOST_SIZES
    if not sizes or not (len(sizes) == 1 or scattered) or any(each.cells > 1 for each in whole if not pattern.cells):
        return None
    others = [each for each in pattern.groups if (each.group.backend, each.group.operation) in series and each not in whole]
    if pattern.state(others) != CLEAR:
        return None
    named = _listed(format_size(size) for size in sorted(sizes))
    who = _series(sorted(series))
    factors = times([pattern.slowdown])
    return Cause(
        CELLS, f"single sizes: {named} of {who} is {factors} times slower, other sizes are not: the library may switch its algorithm"
    )


def _series(listed: Sequence[tuple[str, str]]) -> str:
    """ "allreduce and broadcast on gloo and mpi" where each is on each, else one by one."""
    backends, operations = (list(dict.fromkeys(names)) for names in zip(*listed, strict=True))
    if len(backends) * len(operations) == len(listed):
        return f"{_listed(operations)} on {_listed(backends)}"
    return _listed(f"{operation} on {backend}" for backend, operation in listed)


def _of_backend(pattern: Pattern) -> Cause | None:
    touched = pattern.touched
    backends = {each.group.backend for each in touched}
    kinds = {(each.group.operation, each.group.size_class) for each in touched}
    same = pattern.where(lambda group: (group.operation, group.size_class) in kinds and group.backend not in backends)
    if len(backends) > 1 or pattern.state(same) != CLEAR or not _enough(pattern):
        return None
    (backend,) = backends
    own = pattern.where(lambda group: group.backend == backend)
    others = _listed(sorted({each.group.backend for each in same}))
    small_too = any(each.group.size_class == CLASSES[0] for each in touched) or pattern.columns(touched, "nodes") == {1}
    beside = "" if small_too else f", or a link that {backend} alone uses"
    return Cause(BACKEND, f"{backend}{beside}: {_what(touched, own)} {_slower(pattern)} on it, on {others} not")


def _of_operation(pattern: Pattern) -> Cause | None:
    touched = pattern.touched
    operations = {each.group.operation for each in touched}
    kinds = {(each.group.backend, each.group.size_class) for each in touched}
    same = pattern.where(lambda group: (group.backend, group.size_class) in kinds and group.operation not in operations)
    if len(operations) > 1 or pattern.state(same) != CLEAR or not _enough(pattern):
        return None
    (operation,) = operations
    others = _listed(sorted({each.group.operation for each in same}))
    classes = _classes_of(touched)
    return Cause(OPERATION, f"{operation}: {classes} messages of it {_slower(pattern)} on {_backends(touched)}, of {others} not")


def _enough(pattern: Pattern) -> bool:
    """Whether whole groups are slower, and not single cells here and there, which one backend or operation has by chance."""
    return 2 * sum(map(pattern.mostly, pattern.touched)) >= len(pattern.touched)


def _of_classes(pattern: Pattern) -> Cause | None:
    """What is slower on every backend: large messages, small ones, or all."""
    small, mid, large = (_class_state(pattern, name) for name in CLASSES)
    if large == SLOW and small == SLOW:
        return _told(pattern, [HOST], "all messages, small ones too,", "") if mid != CLEAR else None
    if large == SLOW:
        return _large(pattern, small)
    if small != SLOW:
        return None
    if large == CLEAR:
        return _told(pattern, [LATENCY], "small messages", ", large ones are not")
    return _told(pattern, [LATENCY, HOST], "small messages", f"; of large ones {_lacking(large)}")


def _large(pattern: Pattern, small: State) -> Cause | None:
    """Large messages are slower: the link where they cross nodes, though slow hosts do the same where no small ones tell."""
    path = _path(pattern)
    if small == CLEAR:
        return _told(pattern, path, "large messages", ", small ones are not")
    if small == UNKNOWN:
        return _told(pattern, path, "large messages", "; small ones, which would tell it from slower hosts, were not measured")
    return _told(pattern, [*path, HOST], "large messages", f"; of small ones {_lacking(small)}")


def _lacking(state: State) -> str:
    return "it is not known well enough" if state == UNSURE else "nothing is known"


def _path(pattern: Pattern) -> list[str]:
    """What large messages go through: links between nodes or GPUs, or a node's memory; both where that is not known."""
    large = [each for each in pattern.groups if each.group.size_class == CLASSES[-1]]
    nodes, devices = pattern.columns(large, "nodes"), pattern.columns(large, "device")
    if nodes == {1}:
        return [LINK] if devices == {"cuda"} else [MEMORY]
    return [LINK] if nodes and all(isinstance(each, int) and each > 1 for each in nodes) else [LINK, MEMORY]


def _class_state(pattern: Pattern, name: str) -> State:
    """Of all groups of a class; "slow" only where each backend for itself is, or none says otherwise and two are."""
    groups = pattern.where(lambda group: group.size_class == name)
    state = pattern.state(groups)
    if state != SLOW:
        return state
    backends = {each.group.backend for each in groups}
    each_one = [pattern.state([each for each in groups if each.group.backend == backend]) for backend in backends]
    return SLOW if each_one.count(SLOW) >= min(2, len(backends)) else UNSURE


def _told(pattern: Pattern, ways: Sequence[str], what: str, against: str) -> Cause:
    """One way is named; several, and one backend that may itself be it, are named as what cannot be told apart."""
    backends = {each.group.backend for each in pattern.groups}
    (only,) = backends if len(backends) == 1 else (None,)
    named = [_WAYS[way] for way in ways] + ([f"{only} itself"] if only else [])
    seen = f"{what} {_slower(pattern)} on {_backends(pattern.touched)}{against}"
    if len(named) == 1:
        return Cause(ways[0], f"{named[0]}: {seen}")
    alone = "; no other backend was measured" if only else ""
    return Cause(UNCLEAR, f"{' or '.join(named)}, which cannot be told apart here: {seen}{alone}")


def _slower(pattern: Pattern) -> str:
    found = [each.excess for each in pattern.touched if each.excess is not None and pattern.mostly(each)]
    return f"are {times(found or [pattern.slowdown])} times slower"


def _what(touched: Sequence[Seen], own: Sequence[Seen]) -> str:
    """ "large messages of allreduce", of all that one backend was measured with."""
    operations = {each.group.operation for each in touched}
    all_of_them = operations == {each.group.operation for each in own}
    return f"{_classes_of(touched)} messages" + ("" if all_of_them and len(operations) > 1 else f" of {_listed(sorted(operations))}")


def _classes_of(seen: Iterable[Seen]) -> str:
    found = {each.group.size_class for each in seen}
    return _listed(name for name in CLASSES if name in found)


def _backends(seen: Iterable[Seen]) -> str:
    return _listed(sorted({each.group.backend for each in seen}))


def _listed(words: Iterable[str]) -> str:
    """ "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
