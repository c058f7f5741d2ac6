"""What changed since the last good allocation, the most plausible cause of what became slower first.

A backend's library can slow what it carries, a link's rate what crosses it, a kernel everything. The words say what speaks for a change
and what speaks against it; they prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from math import isclose, isfinite, log

from collbench.analysis.differences import NOTHING, Difference
from collbench.gate.cause import BACKEND, CELLS, HOST, LATENCY, LINK, MEMORY, OPERATION, UNCLEAR
from collbench.gate.changes import Expected
from collbench.gate.pattern import Pattern, pattern_of, times
from collbench.gate.verdict import Announcement, Cause, Change, GroupState, Suspicion

_FIRST, _LIKELY, _POSSIBLE, _UNLIKELY, _HARDLY = range(5)
_RATE = re.compile(r"rate_bits_per_s|rate_text|speed\w*_per_s|shaped_bits_per_s|\bwidth\b|\bmtu\w*", re.ASCII)
_FASTER_IS_MORE = re.compile(r"_per_s\b|rate_text|\bwidth\b", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,9})?(?:e[+-]?\d{1,2})?", re.ASCII)
_LINKS = re.compile(r"interfaces|nics?\b|ports?\b|fabric|links?\b|switch", re.ASCII | re.IGNORECASE)
_MEMORY = re.compile(r"numa|memory|huge_pages|shm|\bdimm", re.ASCII | re.IGNORECASE)
_NEAR = 0.35  # of the slowdown's logarithm: a rate explains what is measured within this
# Whose a variable is, by how it begins; what is in no list may be anybody's.
_VARIABLES = {
    "nccl": ("NCCL_", "TORCH_NCCL_", "SHARP_"),
    "torch-nccl": ("NCCL_", "TORCH_NCCL_", "SHARP_"),
    "gloo": ("GLOO_",),
    "mpi": ("UCX_", "UCC_", "MPICH_", "MPIR_", "OMPI_", "FI_", "I_MPI_", "MV2_", "PMIX_", "RDMAV_", "MLX5_", "SLURM_MPI_TYPE"),
}
_Told = tuple[int, str]  # how plausible, and why in words


def ranked(
    found: Sequence[Difference],
    expected: Sequence[Expected],
    today: date,
    suspicions: Sequence[Suspicion],
    cause: Cause | None,
    *,
    groups: Sequence[GroupState] = (),
) -> list[Change]:
    """Each difference with who announced it, and why it may be the cause, the most plausible first; as found where nothing is slower."""
    pattern = pattern_of(suspicions, groups, ())
    told = [(_FIRST, "") if pattern is None else _told(each, pattern, cause) for each in found]
    order = sorted(range(len(found)), key=lambda place: told[place][0])
    return [_change(found[place], told[place], expected, today) for place in order]


def _change(each: Difference, told: _Told, expected: Sequence[Expected], today: date) -> Change:
    rank, why = told
    by = next((one for one in expected if one.covers(each, today)), None)
    announced: Announcement | None = None if by is None else by.announcement
    return Change(each.kind, each.what, each.a, each.b, why, announced, explains=bool(why) and rank <= _POSSIBLE)


def _told(change: Difference, pattern: Pattern, cause: Cause | None) -> _Told:
    kind = cause.kind if cause else ""
    owners = _owners(change, {each.group.backend for each in pattern.groups} | _slower_backends(pattern))
    if owners is not None:
        return _of_library(owners, pattern, kind)
    if change.kind == "topology" and _LINKS.search(change.what):
        return _of_link(change, pattern, kind)
    if change.what.startswith(("collbench", "schema of")):
        return _POSSIBLE, "the tool itself is another: what it measures should not have changed, but may have"
    return _of_host(change, kind)


def _owners(change: Difference, backends: set[str]) -> set[str] | None:
    """The backends whose library or setting it is; None where it is nobody's own."""
    if change.kind == "software":
        first = change.what.partition(" ")[0]
        return {first} if first in backends or first in _VARIABLES else None
    if change.kind == "environment":
        found = {backend for backend, begins in _VARIABLES.items() if change.what.startswith(begins)}
        return found or None
    return None


def _slower_backends(pattern: Pattern) -> set[str]:
    single = {str(each.cell["backend"]) for each in pattern.suspicions if each.kind == "cell"}
    return single | {each.group.backend for each in pattern.touched}


def _of_library(owners: set[str], pattern: Pattern, kind: str) -> _Told:
    slower = _slower_backends(pattern)
    if not slower & owners:
        return _HARDLY, f"hardly: nothing that is slower is on {' or '.join(sorted(owners))}"
    if slower <= owners:
        return (_LIKELY if kind == LINK else _FIRST), "it carries all that is slower"
    others = sorted(slower - owners)
    also = f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} slower too"
    return _UNLIKELY, f"it carries a part of what is slower; {also}"


def _of_link(change: Difference, pattern: Pattern, kind: str) -> _Told:
    slowdown = _slowdown_told(change)
    if slowdown is not None and slowdown < 0:
        return _HARDLY, "hardly: this makes it faster"
    if slowdown is not None and isclose(slowdown, pattern.slowdown, rel_tol=_NEAR) and kind in (LINK, UNCLEAR, ""):
        return _FIRST, f"a link that is {times([slowdown])} times slower, and {times([pattern.slowdown])} times slower is what was measured"
    if kind in (LINK, LATENCY, UNCLEAR):
        rate = bool(_RATE.search(change.what))
        return (_FIRST if rate else _LIKELY), "it is of the links, which all that is slower shares"
    if kind in (BACKEND, OPERATION, CELLS):
        return _UNLIKELY, "unlikely: other cells cross the same links and are not slower"
    return _POSSIBLE, "it is of the links that the messages cross"


def _slowdown_told(change: Difference) -> float | None:
    """ln of how much slower a link whose rate is told is; None where it is no rate, or none in both."""
    if not _FASTER_IS_MORE.search(change.what) or NOTHING in (change.a, change.b):
        return None
    found = [_NUMBER.search(text) for text in (change.a, change.b)]
    before, after = (float(each[0]) if each else 0.0 for each in found)
    return log(before / after) if before > 0 and after > 0 and isfinite(before) and isfinite(after) and before != after else None


def _of_host(change: Difference, kind: str) -> _Told:
    if kind == MEMORY and _MEMORY.search(f"{change.kind} {change.what}"):
        return _FIRST, "it is of the memory, which is what became slower"
    if kind == HOST:
        return _FIRST, "everything runs on it, and everything is slower"
    if kind in (MEMORY, LATENCY, UNCLEAR):
        return _LIKELY, "all that is slower runs on it"
    if kind in (BACKEND, OPERATION, CELLS):
        return _UNLIKELY, "unlikely: what is not slower runs on it too"
    return _POSSIBLE, "all that is slower runs on it, and so does what is not"
