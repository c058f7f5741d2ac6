"""The conditions of a comparison: changes since the last good allocation, announced ones (`--expect`) with the slowdown that they allow,
and floors (`--min-percent`): a required share of the ceiling for given sizes and a given model, which needs no history.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from fnmatch import fnmatchcase
from itertools import combinations, product
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.analysis.ceilings import OF_LINKS, LinkCeiling
from collbench.analysis.differences import Difference, Facts, Item, comparable, differing, transient
from collbench.errors import UsageError
from collbench.gating import reasons
from collbench.gating.allocation import COLUMNS, Allocation, ShownFigures, case_names, name_of
from collbench.gating.baseline import Baseline, fresh, group_of_case, same
from collbench.gating.rule import CONFIRMATIONS
from collbench.gating.verdict import ACCEPTED, CLEARED, CONFIRMED, SUSPECTED, UNDECIDED, Announcement, FloorState, Suspicion
from collbench.machine.peak.ceiling import Ceiling
from collbench.results.row import CaseKey
from collbench.units import parse_size
from collbench.untrusted import parse_toml, read_file

# Whether a baseline can judge a candidate: fresh allocations, the same cases, the same cluster.

# Cases that differ only in one of these are the same measurement by another method.
_WAYS = tuple(COLUMNS.index(name) for name in COLUMNS if name not in ("operation", "backend", "size_bytes"))
_OTHER_MACHINES = {"topology", "machine"}


def check(baseline: Baseline, candidate: Sequence[Allocation], cases: Collection[CaseKey]) -> None:
    """Raise UsageError if the candidates cannot be judged by the baseline; `cases` are the baseline's."""
    for allocation, held in product(candidate, baseline.allocations):
        if same(allocation, held):
            known_as = "" if allocation.name == held.name else f" as {held.name}"
            raise UsageError(f"allocation {allocation.name} is in the baseline {baseline.path}{known_as}: drop it there first to judge it")
    if len({allocation.name for allocation in candidate}) < len(candidate):
        raise UsageError("two of the candidate's allocations have the same name: measure with another --allocation NAME")
    for first, second in combinations(candidate, 2):
        if same(first, second):
            raise UsageError(f"{first.name} and {second.name} are one allocation under two names: measure a fresh one")
    unlike = next((allocation for allocation in candidate if allocation.imported is not baseline.allocations[0].imported), None)
    if unlike is not None:
        ours = "imported" if unlike.imported else "measured here"
        theirs = "measured here" if unlike.imported else "imported"
        raise UsageError(
            f"allocation {unlike.name} was {ours} and the baseline {baseline.path} was {theirs}: their statistics differ; "
            "compare like with like"
        )
    first = candidate[0]
    if not any(case in first.cases for case in cases):
        differs = differing_column(cases, first.cases)
        why = f" ({differs.render()})" if differs else ""
        raise UsageError(f"allocation {first.name} and {baseline.path} have no case in common{why}: measure the same suite")


def differing_column(expected: Collection[CaseKey], measured: Collection[CaseKey]) -> reasons.ColumnDiffers | None:
    """Return the only column in which the wanted cases differ from the measured ones; None if there is no such column."""
    counts = Counter[tuple[str, object, object]]()
    for place in _WAYS:
        others = {(*case[:place], *case[place + 1 :]): case[place] for case in measured}
        for case in expected:
            key = (*case[:place], *case[place + 1 :])
            if key in others and others[key] != case[place]:
                counts[COLUMNS[place], others[key], case[place]] += 1
    if not counts:
        return None
    (name, measured_value, expected_value), _ = counts.most_common(1)[0]
    return reasons.ColumnDiffers(name, *(None if value is None else str(value) for value in (measured_value, expected_value)))


def other_cluster(baseline: Baseline, candidate: Allocation, differences: Sequence[Difference]) -> reasons.AnotherCluster | None:
    """Return a reason if no host is in the baseline and the machines differ too; else None. `differences` are unexpected changes."""
    baseline_hosts = {host for allocation in baseline.allocations for host in allocation.hosts}
    hosts = set(candidate.hosts)
    differs = any(difference.kind in _OTHER_MACHINES for difference in differences)
    if not baseline_hosts or not hosts or baseline_hosts & hosts or not differs:
        return None
    return reasons.AnotherCluster(candidate.name, tuple(sorted(hosts)), str(baseline.path), tuple(sorted(baseline_hosts)))


# Hosts, the launcher's numbers and the list of cases differ in each fresh allocation, and paths do not matter.
COMPARED = ("software", "environment", "topology", "ranks", "machine")
_ALWAYS = ("reason", "reviewer", "expires")
_DIFFERENCE = ("kind", "what")
_SLOWER = ("operation", "backend", "sizes", "slower_percent")
_MOST_PERCENT = 1000
_LARGEST = 1 << 20  # bytes
_ORDER = (CONFIRMED, SUSPECTED, ACCEPTED, CLEARED)


class ExpectedChange(msgspec.Struct, frozen=True):
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
        return typical <= 1 + self.slower_percent / 100 and all(_selects(self, case) for case in cases)


def _selects(rule: ExpectedChange | Floor, case: CaseKey) -> bool:
    """Return whether an announcement or a floor applies to a case of this size, operation and backend."""
    fits = rule.smallest <= case.size_bytes and (rule.largest is None or case.size_bytes <= rule.largest)
    return fits and fnmatchcase(case.operation, rule.operation) and fnmatchcase(case.backend, rule.backend)


def changes(before: Allocation, after: Allocation) -> list[Difference]:
    """Return what differs in software, settings, topology, machines or the number of ranks, the most important first.

    What differs in each fresh allocation is left out: hosts, their addresses and their order. So is the software of a backend that one
    side did not measure, as when only suspects are measured again.
    """
    backends = [{case.backend for case in allocation.cases} for allocation in (before, after)]
    lonely = backends[0] ^ backends[1]
    differences = differing(*comparable(_compared(before, lonely), _compared(after, lonely)))
    return [difference for difference in differences if difference.kind in COMPARED and not transient(difference)]


def unannounced(differences: Sequence[Difference], expected: Sequence[ExpectedChange], today: date) -> list[Difference]:
    """Return the unexpected changes: those without an announcement that is still valid."""
    return [difference for difference in differences if not any(change.covers(difference, today) for change in expected)]


def accepted(suspicions: Sequence[Suspicion], expected: Sequence[ExpectedChange], today: date, cases: Sequence[CaseKey]) -> list[Suspicion]:
    """Return the suspicions with "accepted" as the state of those that an announcement allows; the surest first, accepted ones last.

    `cases` are the baseline's. A group, or the whole, is accepted only if the announcement covers all its cases.
    """
    allowing = [change for change in expected if change.slower_percent is not None]
    judged = []
    for suspicion in suspicions:
        by = None
        if allowing and suspicion.state in (CONFIRMED, SUSPECTED):
            whole = [case for case in cases if suspicion.kind == "whole" or str(group_of_case(case)) == suspicion.name]
            covered_cases = [CaseKey(**suspicion.case)] if suspicion.kind == "cell" else whole
            by = next((change for change in allowing if change.allows(suspicion, covered_cases, today)), None)
        judged.append(suspicion if by is None else replace(suspicion, state=ACCEPTED, announced=by.announcement))
    return sorted(judged, key=lambda suspicion: _ORDER.index(suspicion.state))


def used_announcements(
    expected: Sequence[ExpectedChange], candidate: Sequence[Allocation], good: Sequence[Allocation]
) -> tuple[list[ExpectedChange], list[reasons.UnusedAnnouncement]]:
    """Return the announcements with a change that happened (or without a named change), and a note for each of the others.

    The candidate is compared with each of the `good` allocations, since some are older than the change.
    """
    named = [change for change in expected if change.slower_percent is not None and change.kind]
    differences = {difference for before in good for after in candidate for difference in changes(before, after)} if named else set()
    # `expired` reports what expired
    idle = [change for change in named if not any(change.covers(difference, change.expires) for difference in differences)]
    notes = [reasons.UnusedAnnouncement(change.reviewer, change.reason, change.kind, change.what) for change in idle]
    return [change for change in expected if change not in idle], notes


def expired(expected: Sequence[ExpectedChange], today: date) -> list[reasons.ExpiredAnnouncement]:
    """Return a note for each announcement that expired."""
    late = [change for change in expected if today > change.expires]
    return [reasons.ExpiredAnnouncement(change.reviewer, change.reason, change.expires.isoformat()) for change in late]


def _compared(allocation: Allocation, lonely: Collection[str]) -> Facts:
    items = {Item.of(kind, what): text for kind in COMPARED for what, text in allocation.facts.get(kind, {}).items()}
    return {item: text for item, text in items.items() if item.kind != "software" or item.path[0] not in lonely}


def read_expected(path: Path) -> list[ExpectedChange]:
    """Return the changes in a TOML file, one for each [[change]] table. Raises UsageError naming the first invalid entry."""
    try:
        content = parse_toml(read_file(path, _LARGEST).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--expect {path} cannot be read ({getattr(error, 'strerror', None) or error}): name a TOML file") from error
    listed = content.get("change")
    if set(content) != {"change"} or not isinstance(listed, list):
        raise UsageError(f"--expect {path}: only tables [[change]] are allowed")
    return [from_table(table, f"--expect {path}, change {number}") for number, table in enumerate(listed, 1)]


def from_table(table: Any, where: str) -> ExpectedChange:
    """Return the change of a [[change]] table. Raises UsageError that begins with `where`."""
    names = set(table) if isinstance(table, dict) else set()
    slower = "slower_percent" in names
    needed = set(_ALWAYS)
    if not slower or names & set(_DIFFERENCE):
        needed |= set(_DIFFERENCE)
    if not needed <= names or names - needed - set(_SLOWER):
        more = f"; optional for a slowdown: {', '.join(_SLOWER)}"
        raise UsageError(f"{where}: required keys are {', '.join((*_DIFFERENCE, *_ALWAYS))}{more}")
    if names & set(_SLOWER) and not slower:
        raise UsageError(f"{where}: it selects cases, but slower_percent is missing")
    for name in (*_DIFFERENCE, *_SLOWER[:3], "reason", "reviewer"):
        if name in table and (not isinstance(table[name], str) or not table[name].strip()):
            raise UsageError(f"{where}: '{name}' is {repr(table[name])[:60]}, not a text")
    if type(table["expires"]) is not date:
        raise UsageError(f"{where}: 'expires' is {table['expires']}, not a valid date (write 2027-01-31, without quotes)")
    kind = table.get("kind", "")
    what = table.get("what", "")
    if kind and "*" not in kind and kind not in COMPARED:
        raise UsageError(f"{where}: unknown kind '{kind}': choose from {', '.join(COMPARED)}")
    if kind and not (kind + what).strip("*? "):
        raise UsageError(f"{where}: kind '{kind}' and what '{what}' match every change: be more specific")
    fields = {name: table[name] for name in (*_ALWAYS, "operation", "backend") if name in table}
    if slower:
        percent = table["slower_percent"]
        if type(percent) not in (int, float) or not isfinite(percent) or not 0 < percent <= _MOST_PERCENT:
            raise UsageError(
                f"{where}: 'slower_percent' is {repr(percent)[:60]}, where a number above 0 and up to {_MOST_PERCENT} is wanted"
            )
        smallest, largest = sizes_of(table["sizes"], where) if "sizes" in table else (0, None)
        fields |= {"slower_percent": float(percent), "smallest": smallest, "largest": largest}
    return ExpectedChange(kind=kind, what=what, **fields)


# Floors. Each case has to reach its floor, not an average over sizes: 1 KiB never reaches 80 % of a link, and 1 GiB may hide that 64 MiB
# does not. As in the rule, below in one allocation is suspected, and below in three is confirmed.

HARD = "hard"
MODELS = ("ring", HARD, "network", "measured", "given", "simulated")
_FORM = re.compile(r"(?P<model>[^:@]+):(?P<percent>[^:@]+)@(?P<sizes>[^/+]+)(?:/(?P<operation>[^/+]+))?(?:\+(?P<backend>[^/+]+))?")
_NUMBER = re.compile(r"\d{1,3}(\.\d{1,6})?", re.ASCII)
_LONGEST_FLOOR = 200


class Floor(msgspec.Struct, frozen=True):
    """A required share of the ceiling.

    asked    as it was typed: "ring:80@64M-"
    model    "ring": the expected bandwidth by an algorithm; "hard": the hard limit; else the ceiling's kind, the source of its figure
    percent  of the ceiling, at least
    smallest, largest   the sizes it applies to, in bytes; None: unlimited
    operation, backend  patterns (`*` is anything) of the cases it applies to
    """

    asked: str
    model: str
    percent: float
    smallest: int
    largest: int | None
    operation: str = "*"
    backend: str = "*"

    def meant(self, case: CaseKey) -> bool:
        """Return whether it applies to this case; never to one that moves no data."""
        return case.size_bytes > 0 and _selects(self, case)


def floor_states(
    floors: Sequence[Floor], candidate: Sequence[Allocation], confirmations: int = CONFIRMATIONS, before: Sequence[LinkCeiling] = ()
) -> list[FloorState]:
    """Return the cases below a floor or with an unknown share, in the order of the first allocation's cases.

    confirmations  the number of allocations below the floor that makes a case confirmed
    before   the baseline's ceilings: where a ceiling fell since, the share is that of the old one, so that it shows a slower link

    Raises UsageError if a floor applies to no case of the first allocation, since it could never fail.
    """
    idle = next((floor.asked for floor in floors if not any(map(floor.meant, candidate[0].cases))), None)
    if idle is not None:
        raise UsageError(f"--min-percent {idle}: allocation {candidate[0].name} has no such case; measure those sizes, or change it")
    by_key = {ceiling.key: ceiling for ceiling in before}
    states = (_state(floor, case, candidate, confirmations, by_key) for case in candidate[0].cases for floor in floors if floor.meant(case))
    return [state for state in states if state is not None]


def floor_reasons(states: Sequence[FloorState]) -> list[reasons.SuspectedBelowFloor | reasons.FloorUnknown]:
    """Return why these states prevent a pass. A confirmed one has no reason here: it is a regression."""
    against: list[reasons.SuspectedBelowFloor | reasons.FloorUnknown] = []
    suspected = [state.name for state in states if state.state == SUSPECTED]
    if suspected:
        against.append(reasons.SuspectedBelowFloor(case_names(suspected)))
    unknown = [state for state in states if state.state == UNDECIDED]
    for text in dict.fromkeys(state.asked for state in unknown):
        against.append(reasons.FloorUnknown(text, case_names(state.name for state in unknown if state.asked == text)))
    return against


def _state(
    floor: Floor, case: CaseKey, candidate: Sequence[Allocation], confirmations: int, before: Mapping[tuple[Any, ...], LinkCeiling]
) -> FloorState | None:
    """Return the state of a case; None if the first allocation reaches the floor. Several allocations of one job count once."""
    shares = [_share(floor, case, allocation.shown.get(case), before) for allocation in candidate]
    percents = tuple(percent for percent, _ in shares)
    first = percents[0]
    ceiling = next((shown_ceiling for _, shown_ceiling in shares if shown_ceiling is not None), None)
    if first is not None and first >= floor.percent:
        return None
    below = sum(percent is not None and is_own_job for percent, is_own_job in zip(percents, fresh(candidate), strict=True))
    state = CONFIRMED if below >= confirmations else SUSPECTED
    if first is None:
        state = UNDECIDED
    elif any(percent is not None and percent >= floor.percent for percent in percents):
        state = CLEARED
    limited_by = None if ceiling is None else ceiling.limited_by
    model = None if ceiling is None else ceiling.model
    return FloorState(name_of(case), case.named(), floor.asked, floor.percent, percents, limited_by, model, state)


def _share(
    floor: Floor, case: CaseKey, shown: ShownFigures | None, before: Mapping[tuple[Any, ...], LinkCeiling]
) -> tuple[float | None, Ceiling | None]:
    """Return (percent, ceiling) for the floor's model; the ceiling alone where no valid share is known.

    Where the baseline's ceiling is higher, it is the share of that one.
    """
    if shown is None or shown.ceiling is None or not shown.ceiling.bytes_per_s:
        return None, None
    percent = shown.percent
    ceiling = shown.ceiling
    if floor.model == HARD:
        bound = shown.ceiling if shown.ceiling.model == "bound" else shown.bound
        if bound is None or not bound.bytes_per_s:
            return None, None
        percent = None if shown.percent is None else shown.percent * shown.ceiling.bytes_per_s / bound.bytes_per_s
        ceiling = bound
    elif floor.model not in (ceiling.kind, "" if ceiling.model == "bound" else "ring"):
        return None, None
    if ceiling.kind not in OF_LINKS or not ceiling.bytes_per_s:
        return percent, ceiling
    old = before.get((case.operation, case.backend, case.group, case.ranks, case.nodes, case.traffic, ceiling.model, ceiling.constants))
    if old is None or old.bytes_per_s <= ceiling.bytes_per_s:
        return percent, ceiling
    share = None if percent is None else percent * ceiling.bytes_per_s / old.bytes_per_s
    return share, replace(ceiling, bytes_per_s=old.bytes_per_s, limited_by=f"{old.limited_by}, the baseline's ceiling")


def read_floor(text: str) -> Floor:
    """Return the floor of a text such as "ring:80@64M-". Raises UsageError naming the invalid part."""
    parts = _FORM.fullmatch(text) if len(text) <= _LONGEST_FLOOR else None
    where = f"--min-percent {text[:_LONGEST_FLOOR]}"
    if parts is None:
        raise UsageError(f"{where}: not valid (use MODEL:PERCENT@SIZES, such as ring:75@1G- or hard:40@1G-/allreduce+nccl)")
    if parts["model"] not in MODELS:
        raise UsageError(f"{where}: unknown model '{parts['model']}': choose from {', '.join(MODELS)}")
    if not _NUMBER.fullmatch(parts["percent"]) or not 0 < float(parts["percent"]) <= 100:
        raise UsageError(f"{where}: '{parts['percent']}' is not a percentage above 0 and up to 100")
    sizes = sizes_of(parts["sizes"], where)
    return Floor(text, parts["model"], float(parts["percent"]), *sizes, parts["operation"] or "*", parts["backend"] or "*")


def sizes_of(text: str, where: str) -> tuple[int, int | None]:
    """Return (smallest, largest) in bytes of "64M", "64M-", "-1M" or "1M-16M"; None is unlimited.

    Raises UsageError that begins with `where`.
    """
    low, dash, high = (part.strip() for part in text.partition("-"))
    try:
        smallest = parse_size(low) if low or not high else 1
        largest = None if dash else smallest
        if high:
            largest = parse_size(high)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    if largest is not None and largest < smallest:
        raise UsageError(f"{where}: sizes '{text}' are in descending order: write the smaller one first")
    return smallest, largest
