"""Alternatives: the same operation over several backends, rank counts or runs. The fastest one at each size, and the lag of the others.

The rows of a group agree in all fields of their case but one. A row is slower only if both are reliable and the 95 % interval of the ratio
of times is above 1. Within one launch each the interval must be above the margin, since another launch may differ; between runs of the same
case it decides nothing, as in `analysis.compare`. If the state of the machine differs, the interval must be above the square of that
difference, since a disturbed state may slow communication more than the state probe.
Among three or more the intervals of both times must not overlap either: the fastest of a dozen equal ones looks fast by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import log
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.analysis.best import fits_cache, is_shown_as_time
from collbench.analysis.compare import CaseRatio, rows_by_case, state_probe_s
from collbench.analysis.launches import WHERE_NONE, Launches, case_of, estimate_of, grouped, known, row_times, time_of
from collbench.analysis.outcome import MARGIN, Outcome, outcome_of
from collbench.machine.peak.ceiling import LEAST_RATE_BYTES
from collbench.results.quality import is_unreliable
from collbench.results.row import UNDER_LOAD, CaseKey, Row
from collbench.stats.launches import Ratio, inverse, ratio_of_launches, ratio_of_medians
from collbench.units import plural

BACKEND = "backend"
RANKS = "ranks"
NODES = "nodes"
RUN = "run"
# The fields of a case in which alternatives may differ, the usual ones first. The number of nodes may change with the number of ranks.
_FIELDS = (
    BACKEND, RANKS, "algorithm", "protocol", "registration", "traffic", "streams", "call", "window", "in_place", "buffers", "dtype",
    "redop", "root", "device",
)  # fmt: skip
# What depends on the field, and need not agree: a library may have only one placing, and only some have streams or registration.
_DEPENDENT: Mapping[str, frozenset[str]] = {
    BACKEND: frozenset({"in_place", "registration", "streams"}), RANKS: frozenset({"nodes", "group"}),
}  # fmt: skip
_DEFAULTS = {"registration": "none", "streams": 1}  # what None means where another library has a choice
_NAMED = ("root", "window", "streams")  # numbers, which need their name


class Undecided(Enum):
    """Why a row is not slower than the leader according to the evidence."""

    NO_INTERVAL = "the ratio has no interval"
    ONE_LAUNCH = "both are of the same case, and another launch may differ by more"
    SMALL = "the interval is not above the least difference that counts"
    STATE = "another state of the machine may explain the difference"
    OVERLAP = "the intervals of the times overlap"


class AlternativeTime(msgspec.Struct, frozen=True):
    """The row of an alternative in a group.

    row         its row; of several launches the combined one
    launches    the rows of its launches
    ratio       its time / that of the group's leader; None of the leader, and without a sound time
    outcome     SLOWER, or NO_CHANGE or INCONCLUSIVE: as fast as the leader, or undecided; None where `ratio` is
    undecided   why `outcome` is not SLOWER; None if it is, and where `ratio` is
    efficiency  of ranks and nodes: the bus bandwidth / that of the smallest count, 1 is ideal; for messages of less than 4 KiB, and without
                bus bandwidth: the time of the smallest count / this time. None of the smallest count, and without a sound time
    """

    row: Row
    launches: Sequence[Row]
    ratio: CaseRatio | None = None
    outcome: Outcome | None = None
    undecided: Undecided | None = None
    efficiency: Ratio | None = None

    @property
    def is_sound(self) -> bool:
        """Return whether the row has a time with right data that is not unreliable."""
        return time_of(self.row) is not None and not self.row.wrong and not is_unreliable(self.row)

    @property
    def over_launches(self) -> bool:
        """Return whether the ratio's interval is over several launches of both, and not within one launch each."""
        return self.ratio is not None and self.ratio.launches


class AlternativeGroup(msgspec.Struct, frozen=True):
    """The alternatives of an operation at a size.

    times            by name, in the order of `Alternatives.names`; a name without a row is missing
    leader           the name of the shortest sound time; None without one
    smallest         of ranks and nodes: the name with which efficiencies compare
    by_bandwidth     whether the efficiencies are those of the bus bandwidth
    placings_differ  whether some rows are in place and others not, because no placing has all
    """

    times: Mapping[str, AlternativeTime]
    leader: str | None
    smallest: str | None = None
    by_bandwidth: bool = False
    placings_differ: bool = False

    @property
    def row(self) -> Row:
        """Return the first row, for what is the same in all."""
        return next(iter(self.times.values())).row

    @property
    def followers(self) -> list[str]:
        """Return the names of the other sound times, the shortest first."""
        names = [name for name, alternative in self.times.items() if alternative.ratio is not None]
        return sorted(names, key=lambda name: time_of(self.times[name].row) or 0.0)

    @property
    def fastest(self) -> str | None:
        """Return the name of the leader if every other sound one is slower, and there is one; else None."""
        followers = self.followers
        return self.leader if followers and all(self.times[name].outcome is Outcome.SLOWER for name in followers) else None

    @property
    def as_fast(self) -> list[str]:
        """Return the names of the leader and of those that are not slower according to the evidence; without those without an interval."""
        equal = [name for name in self.followers if self.times[name].undecided not in (None, Undecided.NO_INTERVAL)]
        return [] if self.leader is None else [self.leader, *equal]

    @property
    def without_interval(self) -> list[str]:
        """Return the names of the sound times without an interval, so that no ratio to them has one."""
        names = [name for name in self.times if name == self.leader or self.times[name].ratio is not None]
        return [name for name in names if (estimate_of(self.times[name].row).ci_low or 0.0) <= 0]

    @property
    def unranked(self) -> list[str]:
        """Return the names of the rows with a time that is wrong or unreliable."""
        return [name for name, alternative in self.times.items() if alternative.row.na is None and not alternative.is_sound]

    @property
    def lead(self) -> CaseRatio | None:
        """Return the ratio of the second fastest to the fastest one; None unless there is a fastest one."""
        return None if self.fastest is None else self.times[self.followers[0]].ratio

    @property
    def expected_bytes_per_s(self) -> float | None:
        """Return the highest expected bus bandwidth of the rows; None without one, for small messages, and for different rank counts."""
        rows = [alternative.row for alternative in self.times.values() if alternative.row.size_bytes >= LEAST_RATE_BYTES]
        rates = [row.comparison.expected_bytes_per_s for row in rows if row.comparison is not None and not fits_cache(row)]
        rates = [rate for rate in rates if known(rate)]
        return max(rates) if rates and len({row.ranks for row in rows}) == 1 else None

    @property
    def expected_s(self) -> float | None:
        """Return the time at the expected bus bandwidth in seconds; None without one."""
        expected = self.expected_bytes_per_s
        for alternative in self.times.values():
            time_s = time_of(alternative.row)
            rate = alternative.row.busbw_bytes_per_s
            if expected and time_s is not None and rate is not None and known(rate):
                return time_s * rate / expected
        return None


class Alternatives(msgspec.Struct, frozen=True):
    """Alternatives compared in every group that has two of them or more.

    field    in what they differ: BACKEND, RANKS, NODES, another field of a case; or RUN, if runs of the same case are among them
    names    backends and runs from the fastest on, by the mean of their ratios to the leaders; counts ascending
    groups   by operation, the other fields of their cases, and size
    sides    the runs
    others   the rows without an alternative
    margin   as in `analysis.compare`
    """

    field: str
    names: Sequence[str]
    groups: Sequence[AlternativeGroup]
    sides: Sequence[Launches]
    others: Sequence[Row]
    margin: float = MARGIN

    @property
    def times(self) -> list[AlternativeTime]:
        """Return the rows of all groups."""
        return [alternative for group in self.groups for alternative in group.times.values()]

    @property
    def is_scaling(self) -> bool:
        """Return whether the alternatives are numbers of ranks or nodes."""
        return self.field in (RANKS, NODES)


class _Member(msgspec.Struct, frozen=True):
    """A row of a side: its value of the field, and those of its launches."""

    side: int
    value: Any
    row: Row
    launches: Sequence[Row]


def alternatives(sides: Sequence[Launches], margin: float = MARGIN) -> Alternatives | None:
    """Return the comparison of these runs in the one field in which their cases differ; None if no two cases are alternatives.

    Several runs: cases of different runs. One run: its backends. Of several fields the one that compares most rows is chosen.
    """
    by_side = [rows_by_case(side.runs) for side in sides]
    best: tuple[int, str, list[list[_Member]]] | None = None
    for field in _FIELDS if len(sides) > 1 else (BACKEND,):
        members = [
            _Member(number, (row.nodes or 1, row.ranks) if field == RANKS else getattr(row, field), row, launches[case_of(row)])
            for number, (side, launches) in enumerate(zip(sides, by_side, strict=True))
            for row in side.rows
            if row.mode != UNDER_LOAD
        ]
        by_key: dict[tuple[Any, ...], list[_Member]] = {}
        for member in members:
            by_key.setdefault(_key(member.row, field), []).append(member)
        groups = [group for same_key in by_key.values() for group in _placed(same_key, field) if _compares(group, len(sides))]
        compared = sum(map(len, groups))
        if groups and (best is None or compared > best[0]):
            best = compared, field, groups
    return None if best is None else _compared(best[1], best[2], sides, margin)


def _compares(group: Sequence[_Member], sides: int) -> bool:
    """Return whether a group has rows of two runs, or of a single run two backends."""
    compared = {member.side if sides > 1 else member.value for member in group}
    return len(compared) > 1


def _key(row: Row, field: str) -> tuple[Any, ...]:
    """Return what the alternatives of a field have in common: the case without the field, and without what depends on it."""
    ignored = {field, *_DEPENDENT.get(field, ())}
    values = [getattr(row, name) for name in CaseKey._fields if name not in ignored]
    if field == BACKEND:
        values += [default if getattr(row, name) is None else getattr(row, name) for name, default in _DEFAULTS.items()]
    if field == RANKS:
        values.append("pairs" if row.group[:1].isdigit() else row.group)
    return tuple(values)


def _place(row: Row, field: str) -> list[tuple[bool, Any]]:
    """Return the order of groups: by what their rows have in common, the size last."""
    ignored = {field, "size_bytes", *_DEPENDENT.get(field, ())}
    values = [getattr(row, name) for name in CaseKey._fields if name not in ignored]
    return [*((value is not None, 0 if value is None else value) for value in values), (True, row.size_bytes)]


def _placed(members: Sequence[_Member], field: str) -> list[list[_Member]]:
    """Return the rows in place and those out of place apart, if all alternatives have a placing in common; else one of each alternative."""
    if field != BACKEND:
        return [list(members)]
    by_alternative = grouped(members, lambda member: (member.side, member.value))
    placings = [_placings(rows) for rows in by_alternative.values()]
    common = set.intersection(*placings)
    if common:
        return [[member for member in members if member.row.in_place is placing] for placing in sorted(common)]
    usual = sum(True in values for values in placings) > sum(False in values for values in placings)
    chosen = [next((member for member in rows if member.row.in_place is usual), rows[0]) for rows in by_alternative.values()]
    if any(len(_placings(rows)) > 1 for rows in grouped(chosen, lambda member: member.value).values()):
        return []  # of two runs of one backend the placing is what differs
    return [chosen]


def _placings(members: Iterable[_Member]) -> set[bool]:
    return {member.row.in_place for member in members}


def _compared(field: str, groups: Sequence[Sequence[_Member]], sides: Sequence[Launches], margin: float) -> Alternatives:
    members = [member for group in groups for member in group]
    names, is_by_run = _names(field, members, sides)
    in_order = sorted(groups, key=lambda group: _place(group[0].row, field))
    judged = [_group({names[member.side, member.value]: member for member in group}, field, margin) for group in in_order]
    if field == RANKS:
        order = [names[member.side, member.value] for member in sorted(members, key=lambda member: (member.value, member.side))]
    else:
        order = sorted(names.values(), key=lambda name: _mean_ratio(name, judged))
    order = list(dict.fromkeys(order))
    shown = field
    if field == RANKS and len({member.value[0] for member in members}) > 1:
        shown = NODES
    if is_by_run and field != RANKS:
        shown = RUN
    compared = {id(member.row) for member in members}
    others = [row for side in sides for row in side.rows if id(row) not in compared]
    ordered = [replace(group, times={name: group.times[name] for name in order if name in group.times}) for group in judged]
    return Alternatives(shown, order, ordered, sides, others, margin)


def _names(field: str, members: Iterable[_Member], sides: Sequence[Launches]) -> tuple[dict[tuple[int, Any], str], bool]:
    """Return the name of each (side, value), and whether these are names of runs: if two runs have the same value."""
    pairs = list(dict.fromkeys((member.side, member.value) for member in members))
    counts = _labels(field, [value for _, value in pairs])
    if len(set(pairs)) == len({value for _, value in pairs}):
        return {(side, value): counts[value] for side, value in pairs}, False
    titles = [side.name for side in sides]
    runs = ["/".join(side.runs[0].path.resolve().parts[-2:]) if titles.count(side.name) > 1 else side.name for side in sides]
    runs = [f"{name} #{number}" if runs.count(name) > 1 else name for number, name in enumerate(runs, start=1)]
    if field == RANKS:
        return {(side, value): f"{counts[value]} ({runs[side]})" for side, value in pairs}, True
    values_of = Counter(side for side, _ in pairs)
    return {(side, value): runs[side] if values_of[side] == 1 else f"{runs[side]} {counts[value]}" for side, value in pairs}, True


def _labels(field: str, values: Sequence[Any]) -> dict[Any, str]:
    """Return each value as text: "gloo", "4 ranks", "2 nodes", "8 ranks on 2 nodes", "in place", "window 64"."""
    if field == "in_place":
        return {value: "in place" if value else "out of place" for value in values}
    if field != RANKS:
        texts = {value: str(WHERE_NONE.get(field, "none") if value is None else value) for value in values}
        return {value: f"{field} {text}" if field in _NAMED else text for value, text in texts.items()}
    several_nodes = len({nodes for nodes, _ in values}) > 1
    if not several_nodes:
        return {value: plural(value[1], "rank") for value in values}
    if len({ranks / nodes for nodes, ranks in values}) == 1:
        return {value: plural(value[0], "node") for value in values}
    return {value: f"{plural(value[1], 'rank')} on {plural(value[0], 'node')}" for value in values}


def _mean_ratio(name: str, groups: Iterable[AlternativeGroup]) -> tuple[bool, float, str]:
    """Return the order of backends and runs: those without a sound time last, then by the geometric mean of the ratios to the leaders."""
    logs = []
    for group in groups:
        alternative = group.times.get(name)
        if alternative is not None and name == group.leader:
            logs.append(0.0)
        elif alternative is not None and alternative.ratio is not None and alternative.ratio.time is not None:
            logs.append(log(alternative.ratio.time.value))
    return not logs, sum(logs) / len(logs) if logs else 0.0, name


def _group(members: Mapping[str, _Member], field: str, margin: float) -> AlternativeGroup:
    times = {name: AlternativeTime(member.row, member.launches) for name, member in members.items()}
    sound = sorted((name for name in times if times[name].is_sound), key=lambda name: time_of(times[name].row) or 0.0)
    leader = sound[0] if sound else None
    counted = [name for name in sound if times[name].row.ranks > 1]
    smallest = min(counted, key=lambda name: members[name].value) if counted and field == RANKS else None
    rows = [times[name].row for name in counted]
    by_bandwidth = all(row.size_bytes >= LEAST_RATE_BYTES and known(row.busbw_bytes_per_s) and not is_shown_as_time(row) for row in rows)
    judged: dict[str, AlternativeTime] = {}
    for name, alternative in times.items():
        ratio = outcome = undecided = efficiency = None
        if leader is not None and name in sound and name != leader:
            ratio = _ratio(times[leader], alternative, margin)
            undecided = _undecided(ratio, among=len(sound), is_same_case=members[name].value == members[leader].value)
            outcome = _outcome(ratio, undecided)
        if smallest is not None and name in counted and members[name].value != members[smallest].value:
            efficiency = _efficiency(times[smallest], alternative, margin, by_bandwidth=by_bandwidth)
        judged[name] = replace(alternative, ratio=ratio, outcome=outcome, undecided=undecided, efficiency=efficiency)
    placings_differ = field != "in_place" and len(_placings(members.values())) > 1
    return AlternativeGroup(judged, leader, smallest, by_bandwidth and smallest is not None, placings_differ)


def _ratio(leader: AlternativeTime, follower: AlternativeTime, margin: float) -> CaseRatio:
    """Return the time of `follower` / that of `leader`: over launches if both have several, else with the intervals within them."""
    leader_s = row_times(leader.launches)
    follower_s = row_times(follower.launches)
    several = min(len(leader_s), len(follower_s)) > 1
    time = ratio_of_launches(leader_s, follower_s) if several else ratio_of_medians(estimate_of(leader.row), estimate_of(follower.row))
    probes = (state_probe_s(leader.launches), state_probe_s(follower.launches))
    return CaseRatio(leader.row, follower.row, time, several, probes, (len(leader_s), len(follower_s)), margin)


def _undecided(ratio: CaseRatio, *, among: int, is_same_case: bool) -> Undecided | None:
    """Return why the ratio of a follower to the leader of `among` sound rows does not show that it is slower; None if it does."""
    time = ratio.time
    if time is None or time.low is None:
        return Undecided.NO_INTERVAL
    if is_same_case and not ratio.launches:
        return Undecided.ONE_LAUNCH
    least = 1.0 if ratio.launches else 1 + ratio.margin
    if time.low <= least:
        return Undecided.SMALL
    if ratio.state_differs and time.low <= least * _state_factor(ratio) ** 2:
        return Undecided.STATE
    return Undecided.OVERLAP if among > 2 and _overlap(ratio.a, ratio.b) else None


def _outcome(ratio: CaseRatio, undecided: Undecided | None) -> Outcome:
    """Return SLOWER, NO_CHANGE or INCONCLUSIVE for the ratio of a follower to the leader."""
    if undecided is None:
        return Outcome.SLOWER
    if ratio.time is None or undecided is not Undecided.SMALL or ratio.state_differs or not ratio.launches:
        return Outcome.INCONCLUSIVE
    return outcome_of(ratio.time.low, ratio.time.high, ratio.margin)


def _state_factor(ratio: CaseRatio) -> float:
    """Return the larger state probe / the smaller one; 1 without both."""
    probes = [probe for probe in ratio.probe_s if probe is not None]
    return max(probes) / min(probes) if len(probes) > 1 else 1.0


def _overlap(faster: Row, slower: Row) -> bool:
    """Return whether the intervals of two times overlap, or one has none."""
    high = estimate_of(faster).ci_high
    low = estimate_of(slower).ci_low
    return high is None or low is None or low <= high


def _efficiency(smallest: AlternativeTime, larger: AlternativeTime, margin: float, *, by_bandwidth: bool) -> Ratio | None:
    """Return the efficiency of a count against the smallest one; None if another state of the machine may explain it."""
    ratio = _ratio(smallest, larger, margin)
    if ratio.time is None or ratio.state_differs:
        return None
    inverted = inverse(ratio.time)
    if not by_bandwidth:
        return inverted
    smallest_bytes, larger_bytes = ((time_of(row) or 0.0) * (row.busbw_bytes_per_s or 0.0) for row in (smallest.row, larger.row))
    factor = larger_bytes / smallest_bytes
    low = None if inverted.low is None else factor * inverted.low
    high = None if inverted.high is None else factor * inverted.high
    return Ratio(factor * inverted.value, low, high, inverted.n)
