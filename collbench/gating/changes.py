"""Changes between the last good allocation and a candidate, and announced changes (`--expect`) with the slowdown that they allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from itertools import combinations
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from msgspec.structs import replace

from collbench.analysis.differences import Difference, Facts, Item, comparable, differing, transient
from collbench.errors import UsageError
from collbench.gating.allocation import COLUMNS, Allocation
from collbench.gating.baseline import Baseline, group_of_case, same
from collbench.gating.floors import sizes_of
from collbench.gating.reasons import AnotherCluster, ColumnDiffers, ExpiredAnnouncement, UnusedAnnouncement
from collbench.gating.verdict import ACCEPTED, CLEARED, CONFIRMED, SUSPECTED, Announcement, Suspicion
from collbench.results.row import CaseKey
from collbench.untrusted import parse_toml, read_file

# Whether a baseline can judge a candidate: fresh allocations, the same cases, the same cluster.

# Cases that differ only in one of these are the same measurement by another method.
_WAYS = tuple(COLUMNS.index(name) for name in COLUMNS if name not in ("operation", "backend", "size_bytes"))
_OTHER_MACHINES = {"topology", "machine"}


def check(baseline: Baseline, candidate: Sequence[Allocation], cases: Collection[CaseKey]) -> None:
    """Raise UsageError if the candidates cannot be judged by the baseline; `cases` are the baseline's."""
    twice = next(((each, held) for each in candidate for held in baseline.allocations if same(each, held)), None)
    if twice is not None:
        known_as = "" if twice[0].name == twice[1].name else f" as {twice[1].name}"
        raise UsageError(f"allocation {twice[0].name} is in the baseline {baseline.path}{known_as}: drop it there first to judge it")
    if len({each.name for each in candidate}) < len(candidate):
        raise UsageError("two of the candidate's allocations have the same name: measure with another --allocation NAME")
    twins = next((pair for pair in combinations(candidate, 2) if same(*pair)), None)
    if twins is not None:
        raise UsageError(f"{twins[0].name} and {twins[1].name} are one allocation under two names: measure a fresh one")
    other = next((each for each in candidate if each.imported is not baseline.allocations[0].imported), None)
    if other is not None:
        here, there = ("imported", "was measured here") if other.imported else ("measured here", "was imported")
        raise UsageError(
            f"allocation {other.name} was {here} and the baseline {baseline.path} {there}: their statistics differ; compare like with like"
        )
    first = candidate[0]
    if not any(case in first.cases for case in cases):
        differs = differing_column(cases, first.cases)
        why = f" ({differs.render()})" if differs else ""
        raise UsageError(f"allocation {first.name} and {baseline.path} have no case in common{why}: measure the same suite")


def differing_column(expected: Collection[CaseKey], there: Collection[CaseKey]) -> ColumnDiffers | None:
    """Return the only column in which the wanted cases differ from the measured ones; None if there is no such column."""
    found = Counter[tuple[str, object, object]]()
    for place in _WAYS:
        others = {(*case[:place], *case[place + 1 :]): case[place] for case in there}
        for case in expected:
            key = (*case[:place], *case[place + 1 :])
            if key in others and others[key] != case[place]:
                found[COLUMNS[place], others[key], case[place]] += 1
    if not found:
        return None
    (name, here, wants), _ = found.most_common(1)[0]
    return ColumnDiffers(name, *(None if value is None else str(value) for value in (here, wants)))


def of_another_cluster(baseline: Baseline, candidate: Allocation, found: Sequence[Difference]) -> AnotherCluster | None:
    """Return a reason if no host is in the baseline and the machines differ too; else None. `found` are unexpected changes."""
    held = {host for each in baseline.allocations for host in each.hosts}
    hosts = set(candidate.hosts)
    if not held or not hosts or held & hosts or not any(each.kind in _OTHER_MACHINES for each in found):
        return None
    return AnotherCluster(candidate.name, tuple(sorted(hosts)), str(baseline.path), tuple(sorted(held)))


# Hosts, the launcher's numbers and the list of cases differ in each fresh allocation, and paths do not matter.
COMPARED = ("software", "environment", "topology", "ranks", "machine")
_ALWAYS, _DIFFERENCE, _SLOWER = ("reason", "reviewer", "expires"), ("kind", "what"), ("operation", "backend", "sizes", "slower_percent")
_MOST_PERCENT, _LARGEST = 1000, 1 << 20
_ORDER = (CONFIRMED, SUSPECTED, ACCEPTED, CLEARED)


@dataclass(frozen=True)
class ExpectedChange:
    """An announced change, from a table of the file of `--expect`.

    kind, what         patterns (`*` is anything) of a difference: "software", "mpi *"; empty for a slowdown without a recorded change
    reason, reviewer   why the change is right, and the person responsible for the announcement
    expires            the last day on which it is valid
    slower_percent     the slowdown that it allows for its cases; None: nothing beyond their limits
    operation, backend patterns of those cases
    smallest, largest  their sizes in bytes; None: unlimited
    """

    kind: str
    what: str
    reason: str
    reviewer: str
    expires: date
    slower_percent: float | None = None
    operation: str = "*"
    backend: str = "*"
    smallest: int = 0
    largest: int | None = None

    @property
    def announcement(self) -> Announcement:
        """Return the reason, the reviewer and the expiry as the verdict stores them."""
        return Announcement(self.reason, self.reviewer, self.expires.isoformat())

    def covers(self, difference: Difference, today: date) -> bool:
        """Return whether it announces this difference and is valid today."""
        return today <= self.expires and fnmatchcase(difference.kind, self.kind) and fnmatchcase(difference.what, self.what)

    def allows(self, suspicion: Suspicion, cases: Sequence[CaseKey], today: date) -> bool:
        """Return whether it allows a slowdown of this size for all `cases`, and is valid today."""
        if today > self.expires or self.slower_percent is None or not cases:
            return False
        typical = median(factor for factor in suspicion.factors if factor is not None)
        return typical <= 1 + self.slower_percent / 100 and all(map(self._meant, cases))

    def _meant(self, case: CaseKey) -> bool:
        fits = self.smallest <= case.size_bytes and (self.largest is None or case.size_bytes <= self.largest)
        return fits and fnmatchcase(case.operation, self.operation) and fnmatchcase(case.backend, self.backend)


def changes(before: Allocation, after: Allocation) -> list[Difference]:
    """Return what differs in software, settings, topology, machines or the number of ranks, the most important first.

    What differs in each fresh allocation is left out: hosts, their addresses and their order. So is the software of a backend that one
    side did not measure, as when only suspects are measured again.
    """
    backends = [{case.backend for case in each.cases} for each in (before, after)]
    lonely = backends[0] ^ backends[1]
    found = differing(*comparable(_compared(before, lonely), _compared(after, lonely)))
    return [each for each in found if each.kind in COMPARED and not transient(each)]


def unannounced(found: Sequence[Difference], expected: Sequence[ExpectedChange], today: date) -> list[Difference]:
    """Return the unexpected changes: those without an announcement that is still valid."""
    return [each for each in found if not any(one.covers(each, today) for one in expected)]


def accepted(suspicions: Sequence[Suspicion], expected: Sequence[ExpectedChange], today: date, cases: Sequence[CaseKey]) -> list[Suspicion]:
    """Return the suspicions with "accepted" as the state of those that an announcement allows; the surest first, accepted ones last.

    `cases` are the baseline's. A group, or the whole, is accepted only if the announcement covers all its cases.
    """
    allowing, found = [each for each in expected if each.slower_percent is not None], []
    for each in suspicions:
        by = None
        if allowing and each.state in (CONFIRMED, SUSPECTED):
            whole = [case for case in cases if each.kind == "whole" or str(group_of_case(case)) == each.name]
            own = [CaseKey(**each.case)] if each.kind == "cell" else whole
            by = next((one for one in allowing if one.allows(each, own, today)), None)
        found.append(each if by is None else replace(each, state=ACCEPTED, announced=by.announcement))
    return sorted(found, key=lambda each: _ORDER.index(each.state))


def of_what_changed(
    expected: Sequence[ExpectedChange], candidate: Sequence[Allocation], good: Sequence[Allocation]
) -> tuple[list[ExpectedChange], list[UnusedAnnouncement]]:
    """Return the announcements with a change that happened (or without a named change), and a note for each of the others.

    The candidate is compared with each of the `good` allocations, since some are older than the change.
    """
    named = [each for each in expected if each.slower_percent is not None and each.kind]
    found = {one for before in good for after in candidate for one in changes(before, after)} if named else set()
    idle = [each for each in named if not any(each.covers(one, each.expires) for one in found)]  # `expired` reports what expired
    notes = [UnusedAnnouncement(each.reviewer, each.reason, each.kind, each.what) for each in idle]
    return [each for each in expected if each not in idle], notes


def expired(expected: Sequence[ExpectedChange], today: date) -> list[ExpiredAnnouncement]:
    """Return a note for each announcement that expired."""
    return [ExpiredAnnouncement(each.reviewer, each.reason, each.expires.isoformat()) for each in expected if today > each.expires]


def _compared(allocation: Allocation, lonely: Collection[str]) -> Facts:
    items = {Item.of(kind, what): text for kind in COMPARED for what, text in allocation.facts.get(kind, {}).items()}
    return {item: text for item, text in items.items() if item.kind != "software" or item.path[0] not in lonely}


def read_expected(path: Path) -> list[ExpectedChange]:
    """Return the changes in a TOML file, one for each [[change]] table. Raises UsageError naming the first invalid entry."""
    try:
        known = parse_toml(read_file(path, _LARGEST).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--expect {path} cannot be read ({getattr(error, 'strerror', None) or error}): name a TOML file") from error
    listed = known.get("change")
    if set(known) != {"change"} or not isinstance(listed, list):
        raise UsageError(f"--expect {path}: only tables [[change]] are allowed")
    return [from_table(one, f"--expect {path}, change {number}") for number, one in enumerate(listed, 1)]


def from_table(table: Any, where: str) -> ExpectedChange:
    """Return the change of a [[change]] table. Raises UsageError that begins with `where`."""
    _check_names(table, where)
    for name in (*_DIFFERENCE, *_SLOWER[:3], "reason", "reviewer"):
        if name in table and (not isinstance(table[name], str) or not table[name].strip()):
            raise UsageError(f"{where}: '{name}' is {repr(table[name])[:60]}, not a text")
    if type(table["expires"]) is not date:
        raise UsageError(f"{where}: 'expires' is {table['expires']}, not a valid date (write 2027-01-31, without quotes)")
    kind = table.get("kind", "")
    if kind and "*" not in kind and kind not in COMPARED:
        raise UsageError(f"{where}: unknown kind '{kind}': choose from {', '.join(COMPARED)}")
    plain = {name: table[name] for name in (*_ALWAYS, "operation", "backend") if name in table}
    what = table.get("what", "")
    if kind and not (kind + what).strip("*? "):
        raise UsageError(f"{where}: kind '{kind}' and what '{what}' match every change: be more specific")
    return ExpectedChange(kind=kind, what=what, **plain, **_slower(table, where))


def _check_names(table: Any, where: str) -> None:
    names = set(table) if isinstance(table, dict) else set()
    slower = "slower_percent" in names
    needed = {*_ALWAYS, *(() if slower and not names & set(_DIFFERENCE) else _DIFFERENCE)}
    if not needed <= names or names - needed - set(_SLOWER):
        more = f"; optional for a slowdown: {', '.join(_SLOWER)}"
        raise UsageError(f"{where}: required keys are {', '.join((*_DIFFERENCE, *_ALWAYS))}{more}")
    if names & set(_SLOWER) and not slower:
        raise UsageError(f"{where}: it selects cases, but slower_percent is missing")


def _slower(table: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a slowdown; empty if the table has none."""
    if "slower_percent" not in table:
        return {}
    percent = table["slower_percent"]
    if type(percent) not in (int, float) or not isfinite(percent) or not 0 < percent <= _MOST_PERCENT:
        raise UsageError(f"{where}: 'slower_percent' is {repr(percent)[:60]}, where a number above 0 and up to {_MOST_PERCENT} is wanted")
    smallest, largest = sizes_of(table["sizes"], where) if "sizes" in table else (0, None)
    return {"slower_percent": float(percent), "smallest": smallest, "largest": largest}
