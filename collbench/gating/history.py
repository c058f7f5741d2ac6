"""The history of cases, groups and the whole over allocations, and comparisons of baselines: what changed, by how much, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import exp, isfinite, pi, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import numpy as np

from collbench.analysis.differences import Difference
from collbench.analysis.launches import launch_folders
from collbench.analysis.outcome import MARGIN, Outcome, count_outcomes, counts_by_name, outcome_by_limit
from collbench.columns import column, figure
from collbench.errors import UsageError
from collbench.gating import baseline as baselines
from collbench.gating.allocation import COLUMNS, Allocation, allocations_in, allocations_of, in_order, name_of
from collbench.gating.baseline import Baseline, CaseGroup, Figures, Numbers, Scheme, known_median, scheme_of, seconds_of, times_of
from collbench.gating.conditions import changes
from collbench.gating.rule import K_SIGMA, LEAST_CASES, STATE, flipped, floors_of, pooled, typical_probe_s, variance
from collbench.results.reader import Run
from collbench.results.row import CaseKey
from collbench.units import first_of, plural

# Steps: changes of a series from one level to another for at least three allocations.
#
# The levels are those that explain the series best at a price for each (optimal partitioning: Jackson et al. 2005). The medians of
# neighboring levels differ by more than five standard errors and by more than the rule's floor; otherwise the levels are joined. The rule
# for a single allocation uses three standard errors. Here it is five, since every position of every series is tested.
#
# Simulated with the noise of `self_test.Noise`, 336 cases, allocations of three launches, 300 histories (tests/gate/test_history.py):
# - 20 allocations without a change: 0.7 % of the histories have a case with a step, none a group or the whole with one.
# - 20 allocations with a step in the middle, detected: one large case slower by 5 % in 89 %, by 10 % in 99 %; a large group slower by 2 %
#   in 89 %, by 5 % in all.
# - 8 allocations: 0.3 % and none without a change; 53, 93, 24 and 99 % with a step.
# A slow drift appears as several steps. The last two allocations never form a level: use the gate for them.

LEAST = 3  # allocations of a level: fewer may be chance
_ERRORS = 5.0
_AT_ONCE = 2000  # series at once; more would exceed the processor's cache
_PRICE = 10.0  # of another level, in variances; chance explains less
_LEAST_VARIANCE = 1e-8  # relative 1e-4: no clock is more precise, and rounding must not look like a step
OF_MEDIAN = pi / 2  # the variance of a median over that of a mean, for a normal distribution
_TWO_SIDED = 1.96  # standard errors to either side: 95 %
_LARGEST = 0.285  # the usual value of the largest of m squares of normal numbers is the square of NormalDist().inv_cdf(1 - _LARGEST / m)


class LevelChange(NamedTuple):
    """A change of level, in ln of time.

    before, at  the numbers of the last allocation on the old level and of the first on the new one
    change      the difference of the levels' medians; positive: slower
    error       its standard error
    limit       the size that it exceeds, in either direction
    """

    before: int
    at: int
    change: Annotated[float, column("The new level over the old one.", key="factor", value=lambda step: exp(step.change))]
    error: float
    limit: Annotated[float, column("The factor that it exceeds, in either direction.", value=lambda step: exp(step.limit))]

    @property
    @figure("The lower end of its 95 % confidence interval.", after="change")
    def low(self) -> float:
        """Return the lower end of the 95 % interval, a factor; slightly too far from 1: the position of the largest change was chosen."""
        return exp(self.change - _TWO_SIDED * self.error)

    @property
    @figure("The upper end of its 95 % confidence interval.", after="low")
    def high(self) -> float:
        """Return its upper end, likewise."""
        return exp(self.change + _TWO_SIDED * self.error)


def scatter(values: Figures) -> Figures:
    """Return [series] the variance between successive allocations, from [allocations × series]; NaN for fewer than three.

    It uses successive differences without the largest, so that a step does not count as scatter.
    """
    last = np.full(values.shape[1], np.nan)
    squares = np.full(values.shape, np.nan)  # of the difference of each known value to the previous known one
    for number, current in enumerate(values):
        squares[number] = (current - last) ** 2
        last = np.where(np.isfinite(current), current, last)
    return typical(squares) / 2


def typical(squares: Figures) -> Figures:
    """Return [series] the mean of normal squares [… × series] without the largest, which may not be chance; NaN for fewer than two."""
    is_known = np.isfinite(squares)
    counts = is_known.sum(axis=0)
    kept = np.where(is_known, squares, 0.0)
    expected = np.array([NormalDist().inv_cdf(1 - _LARGEST / max(count, 2)) ** 2 for count in range(len(squares) + 1)])
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 1, (kept.sum(axis=0) - kept.max(axis=0, initial=0.0)) / (counts - expected[counts]), np.nan)


def steps(values: Figures, variance: Figures, floors: Figures) -> list[list[LevelChange]]:
    """Return the steps of each series, in time order.

    values    [allocations × series], NaN if not measured
    variance  [series] between allocations
    floors    [series] the smallest step that counts, in ln of time
    """
    price = _PRICE * np.maximum(np.nan_to_num(variance), _LEAST_VARIANCE)
    parts = [slice(first, first + _AT_ONCE) for first in range(0, values.shape[1], _AT_ONCE)]
    starts = [series_starts for part in parts for series_starts in _levels(values[:, part], price[part])]
    series_steps: list[list[LevelChange]] = [[] for _ in starts]
    for number, series_starts in enumerate(starts):
        if len(series_starts) > 1:
            series_steps[number] = _sure(values[:, number], series_starts, float(variance[number]), float(floors[number]))
    return series_steps


def _levels(values: Figures, price: Figures) -> list[list[int]]:
    """Return for each series the first allocations of its levels: least squares with a price for each level."""
    count, series = values.shape
    measured = np.isfinite(values)
    around = np.where(measured, values - known_median(values.T), 0.0)
    nothing = np.zeros((1, series))
    counts, sums, squares = (np.vstack([nothing, cumulated.cumsum(axis=0)]) for cumulated in (measured.astype(float), around, around**2))
    costs = np.full((count + 1, series), np.inf)
    costs[0] = 0.0
    came = np.zeros((count + 1, series), dtype=np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        for end in range(LEAST, count + 1):
            for start in (0, *range(LEAST, end - LEAST + 1)):
                number = counts[end] - counts[start]
                within = squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / number
                cost = np.where(number >= LEAST, costs[start] + within + price, np.inf)
                better = cost < costs[end]
                costs[end] = np.where(better, cost, costs[end])
                came[end] = np.where(better, start, came[end])
    levels = []
    for starts_at in came.T:
        starts = [int(starts_at[-1])]
        while starts[0] > 0:
            starts.insert(0, int(starts_at[starts[0]]))
        levels.append(starts)
    return levels


def _sure(values: Figures, starts: list[int], variance: float, floor: float) -> list[LevelChange]:
    """Return the significant steps between levels: the least significant one is removed until all are significant."""
    ends = [*starts[1:], len(values)]
    levels = [np.flatnonzero(np.isfinite(values[start:end])) + start for start, end in zip(starts, ends, strict=True)]
    while True:
        level_changes = [_step(values, old, new, variance, floor) for old, new in pairwise(levels)]
        significances = [abs(step.change) / step.limit for step in level_changes]
        weakest = min(range(len(level_changes)), key=significances.__getitem__, default=None)
        if weakest is None or abs(level_changes[weakest].change) > level_changes[weakest].limit:
            return level_changes
        levels[weakest : weakest + 2] = [np.concatenate(levels[weakest : weakest + 2])]


def _step(values: Figures, old: Numbers, new: Numbers, variance: float, floor: float) -> LevelChange:
    """Return the step between two levels; a step of 0 if one has too few allocations that are nearer to it than to the other level."""
    before = float(np.median(values[old]))
    after = float(np.median(values[new]))
    is_new = [np.abs(values[numbers] - after) < np.abs(values[numbers] - before) for numbers in (old, new)]
    firm = min(int((~is_new[0]).sum()), int(is_new[1].sum())) >= LEAST
    error = sqrt(variance * OF_MEDIAN * (1 / len(old) + 1 / len(new)))
    return LevelChange(int(old[-1]), int(new[0]), after - before if firm else 0.0, error, max(floor, _ERRORS * error))


# Allocations in a folder, a baseline or runs, in the order in which they began.

T = TypeVar("T")
_MOST_NAMED = 3
_RUN = ("run.json", "cells.jsonl")


def dated_in(path: Path) -> tuple[list[Allocation], list[str]]:
    """Return the allocations of a baseline, or of the runs in a folder, in the order in which they began, and notes as sentences.

    A note names each run that cannot be read. Raises UsageError if there is no allocation, or if none has a start time.
    """
    if baselines.is_baseline(path):
        return _dated(str(path), list(baselines.load(path).allocations), [])
    try:
        folders = [path] if _holds_runs(path) else sorted(folder for folder in path.iterdir() if folder.is_dir() and _holds_runs(folder))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}): name a baseline, or a folder that holds runs") from error
    if not folders:
        raise UsageError(f"{path} holds neither allocations of a baseline nor runs: name such a folder")
    return _dated(str(path), *_accepted(folders, allocations_in))


def dated_runs(where: str, runs: Sequence[Run]) -> tuple[list[Allocation], list[str]]:
    """Return the allocations of runs as `dated_in` does; `where` names their source."""
    with_rows = [run for run in runs if run.rows]
    if not with_rows:
        raise UsageError(f"{where}: no selected run has a case, which a history needs; name other runs")
    return _dated(where, *_accepted(with_rows, allocations_of))


def _dated(where: str, allocations: list[Allocation], notes: list[str]) -> tuple[list[Allocation], list[str]]:
    ordered = in_order([allocation for allocation in allocations if allocation.began is not None])
    if not ordered:
        raise UsageError(f"{where}: no allocation has a start time, which a history needs; name another folder")
    typical_s = typical_probe_s(ordered)
    remarks = {
        "no start time; left out": [allocation for allocation in allocations if allocation.began is None],
        "some launches stopped early": [allocation for allocation in ordered if allocation.unfinished],
        "wrong data": [allocation for allocation in ordered if any(measured.wrong for measured in allocation.cases.values())],
        "slowed on purpose": [allocation for allocation in ordered if allocation.slowed],
        "some launches ran in another machine state (state probe more than 20 % off the others')": [
            allocation for allocation in ordered if any(flipped(allocation, typical_s))
        ],
    }
    for remark, affected in remarks.items():
        if affected:
            notes.append(f"{first_of((allocation.name for allocation in affected), _MOST_NAMED)}: {remark}")
    if len(ordered) < 2 * LEAST:
        count = plural(len(ordered), "allocation")
        notes.append(f"{count}: a change is detected with at least {2 * LEAST}, {LEAST} before it and {LEAST} after")
    return ordered, notes


def _accepted(parts: Sequence[T], allocations: Callable[[Sequence[T]], list[Allocation]]) -> tuple[list[Allocation], list[str]]:
    """Return the allocations of all folders or runs that can be used, and a note if others are left out. Raises UsageError if none can."""
    try:
        return allocations(parts), []
    except UsageError:
        kept = []
        refusals = []
        for part in parts:
            try:
                allocations([part])
                kept.append(part)
            except UsageError as error:
                refusals.append(str(error))
        if not kept or not refusals:
            raise
    return allocations(kept), [f"left out: {first_of(refusals, 1)}"]


def _holds_runs(folder: Path) -> bool:
    return any((folder / name).exists() for name in _RUN) or bool(launch_folders(folder))


# Series of times over allocations, for the whole, each group and each case, with their scatter.

WHOLE = "whole"
GROUP = "group"
CASE = "cell"
KINDS = (WHOLE, GROUP, CASE)
_ROUNDS = 4  # of a median polish; the effect of more is smaller than any floor


class SeriesSubject(msgspec.Struct, frozen=True):
    """The subject of a series: a case, a group or the whole. group: the group itself, or the case's; None for the whole."""

    kind: Annotated[str, column('"cell", "group" or "whole".')]
    name: Annotated[str, column('In words: "all cases", "allreduce on mpi, large messages", "allreduce 64 MiB mpi".')]
    group: CaseGroup | None = None
    case: Annotated[
        CaseKey | None,
        column("The case's columns; empty for all others.", key="cell", value=lambda about: about.case.named() if about.case else {}),
    ] = None


class HistoryMatrix(msgspec.Struct, frozen=True, eq=False):
    """Allocations as series of times.

    abouts   [series] the whole and the groups (those with at least three cases), then all cases
    values   [allocations × series] ln of time; NaN: unknown. For a case in seconds, else by how much its cases are slower than usual
    floors   [series] in ln of time: a smaller change does not count
    """

    abouts: tuple[SeriesSubject, ...]
    values: Figures
    floors: Figures
    _launches: Figures

    def variance(self, allocations: slice | Sequence[int] = slice(None)) -> Figures:
        """Return [series] the variance between these allocations, without steps; NaN if it is unknown.

        It is drawn towards that of a case's group, or of a group's size class.
        """
        values = self.values[allocations]
        variances = scatter(values)
        for kind in (GROUP, CASE):
            places = [number for number, subject in enumerate(self.abouts) if subject.kind == kind]
            groups = [subject.group for subject in self.abouts if subject.kind == kind and subject.group is not None]
            measured = variances[places]
            if kind == CASE:
                measured = np.where(np.isfinite(measured), np.fmax(measured, typical(self._launches[allocations])), np.nan)
            else:
                groups = [CaseGroup("", "", group.size_class) for group in groups]
            variances[places] = drawn(measured, values[:, places], Scheme.of_cases(groups))
        return variances


def history_matrix(allocations: Sequence[Allocation]) -> HistoryMatrix:
    """Return all series of these allocations."""
    cases = list(dict.fromkeys(case for allocation in allocations for case in allocation.cases))
    scheme = scheme_of(cases)
    times = times_of(allocations, cases)
    floors = floors_of(scheme)
    subjects: list[SeriesSubject] = []
    columns: list[Figures] = []
    series_floors: list[float] = []
    if len(cases) >= LEAST_CASES:
        subjects.append(SeriesSubject(WHOLE, "all cases"))
        columns.append(common(times))
        series_floors.append(floors.whole)
    for group, members, floor in zip(scheme.groups, scheme.members, floors.groups, strict=True):
        if len(members) >= LEAST_CASES:
            subjects.append(SeriesSubject(GROUP, str(group), group))
            columns.append(common(times[:, members]))
            series_floors.append(floor)
    for case, name in zip(cases, distinct_names(cases), strict=True):
        subjects.append(SeriesSubject(CASE, name, baselines.group_of_case(case), case))
    launches = np.array([median_variance(np.log(seconds_of(allocation, cases))) for allocation in allocations])
    return HistoryMatrix(tuple(subjects), np.column_stack([*columns, times]), np.array([*series_floors, *floors.cases]), launches)


def distinct_names(cases: Sequence[CaseKey]) -> list[str]:
    """Return each case's `name_of`, with what distinguishes equal names in brackets: "allreduce 8 B mpi (mode batched)"."""
    same_name: dict[str, list[CaseKey]] = {}
    for case in cases:
        same_name.setdefault(name_of(case), []).append(case)
    names = []
    for case in cases:
        name = name_of(case)
        columns = zip(COLUMNS, case, zip(*same_name[name], strict=True), strict=True)
        differing = ", ".join(f"{column} {value}" for column, value, values in columns if len(set(values)) > 1)
        names.append(f"{name} ({differing})" if differing else name)
    return names


def common(times: Figures) -> Figures:
    """Return [allocations] by how much all cases are slower than usual, in ln of time, from [allocations × cases]; NaN: too few.

    A median polish (Tukey 1977), so that missing cases do not shift it.
    """
    effects = np.zeros(len(times))
    for _ in range(_ROUNDS):
        medians = known_median((times - effects[:, None]).T)
        effects = np.nan_to_num(known_median(times - medians))
    return np.where(np.isfinite(times).sum(axis=1) >= LEAST_CASES, effects, np.nan)


def drawn(variances: Figures, values: Figures, scheme: Scheme) -> Figures:
    """Return [series] variances drawn towards those of their group as in the rule, but never less than their own.

    A bimodal case scatters more than its group; three launches in the slower mode by chance would look like a step.
    """
    counts = np.where(np.isfinite(variances), np.isfinite(values).sum(axis=0), 1)
    return np.fmax(variances, pooled(variances, counts, scheme))


def median_variance(launches: Figures) -> Figures:
    """Return […] the variance of the median of [… × launches] ln of time; NaN for fewer than two."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(OF_MEDIAN * variance(np.moveaxis(launches, -1, 0)) / np.isfinite(launches).sum(axis=-1))


class SeriesLevel(msgspec.Struct, frozen=True):
    """A level of a series: its first and last allocation (both included), and the median in ln of time."""

    first: int
    last: int
    value: float


class CaseHistory(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The history of a case, a group or the whole over all allocations.

    about   its subject
    values  [allocations] ln of time; NaN: not measured. For a case in seconds, else by how much its cases are slower than usual
    steps   in time order
    floor   in ln of time: a smaller change does not count
    """

    about: SeriesSubject
    values: Figures
    steps: tuple[LevelChange, ...]
    floor: float

    @cached_property
    def known(self) -> list[int]:
        """Return the numbers of the allocations in which it was measured."""
        return [int(number) for number in np.flatnonzero(np.isfinite(self.values))]

    @cached_property
    def levels(self) -> list[SeriesLevel]:
        """Return its levels in time order; none if it was never measured."""
        starts = [0, *(step.at for step in self.steps)]
        ends = [*starts[1:], len(self.values)]
        levels = [SeriesLevel(start, end - 1, float(known_median(self.values[start:end]))) for start, end in zip(starts, ends, strict=True)]
        return levels if self.known else []

    @property
    def trend(self) -> float | None:
        """Return the factor from the first level to the last: 1.05 is 5 % slower. None if it was never measured."""
        return exp(self.levels[-1].value - self.levels[0].value) if self.known else None

    @property
    def largest(self) -> float:
        """Return the size of its largest step in ln of time, in either direction; 0 without any."""
        return max((abs(step.change) for step in self.steps), default=0.0)


class History(msgspec.Struct, frozen=True, eq=False):
    """The histories of all series in a folder.

    of           the folder
    allocations  in the order in which they began
    series       the whole, then groups of at least three cases, then cases, each in the order of the cases
    notes        what was left out, and other remarks, as sentences
    """

    of: str
    allocations: Sequence[Allocation]
    series: Sequence[CaseHistory]
    notes: Sequence[str] = ()
    _found: dict[tuple[int, int], list[Difference]] = msgspec.field(default_factory=dict)

    def of_kind(self, *kinds: str) -> list[CaseHistory]:
        """Return the series of these kinds."""
        return [series for series in self.series if series.about.kind in kinds]

    def between(self, before: int, after: int) -> list[Difference]:
        """Return what changed, besides times, between two allocations."""
        if (before, after) not in self._found:
            self._found[before, after] = changes(self.allocations[before], self.allocations[after])
        return self._found[before, after]

    def state(self, step: LevelChange) -> str:
        """Return a text on the state probe's change between the allocations next to a step; "" if it is equal or unknown."""
        before = typical_probe_s(self.allocations[max(0, step.before + 1 - LEAST) : step.before + 1])
        after = typical_probe_s(self.allocations[step.at : step.at + LEAST])
        if before is None or after is None or max(before, after) <= STATE * min(before, after):
            return ""
        return f"another machine state (state probe {before * 1e9:.3g} → {after * 1e9:.3g} ns)"

    def missing(self, series: CaseHistory) -> str:
        """Return where a series lacks values: "measured since night-4; not since night-9; missing in 2 between"; "" if nowhere."""
        measured = series.known
        names = [allocation.name for allocation in self.allocations]
        if not measured:
            return "never measured"
        gaps = measured[-1] - measured[0] + 1 - len(measured)
        parts = [f"measured since {names[measured[0]]}" if measured[0] > 0 else ""]
        parts.append(f"not since {names[measured[-1] + 1]}" if measured[-1] < len(names) - 1 else "")
        parts.append(f"missing in {gaps} between" if gaps else "")
        return "; ".join(filter(None, parts))


def history(of: str, allocations: Sequence[Allocation], notes: Sequence[str] = ()) -> History:
    """Return the history of allocations, which are in the order in which they began."""
    matrix = history_matrix(allocations)
    level_changes = steps(matrix.values, matrix.variance(), matrix.floors)
    parts = zip(matrix.abouts, matrix.values.T, level_changes, matrix.floors, strict=True)
    series = [CaseHistory(subject, values, tuple(series_steps), float(floor)) for subject, values, series_steps, floor in parts]
    return History(of, allocations, series, notes)


# A comparison of two allocations of a baseline, or of two baselines: cases that moved more than chance explains, and changes.
#
# The limit is three standard errors of the difference, as in the rule, and at least a floor. It was simulated with the noise of
# `self_test.Noise` and no change. Between two allocations of a baseline of six or more, 0.14 % of the cases and up to 2 % of the groups
# exceed it; between two baselines of six, 0.04 % of the cases. One comparison is therefore not a proof.


class Shift(msgspec.Struct, frozen=True):
    """The change of a case, a group or the whole."""

    about: Annotated[SeriesSubject, column("", key="")]
    factor: Annotated[float, column("The new time over the old one.")]
    limit: Annotated[float | None, column("The factor that chance explains, in either direction; None if the scatter is unknown.")]

    @property
    @figure("Whether the change is larger than chance explains, slower or faster.", after="limit")
    def beyond(self) -> bool:
        """Return whether the change is larger than chance explains, slower or faster."""
        return self.limit is not None and not 1 / self.limit <= self.factor <= self.limit

    @property
    @figure("slower, faster, no change (the limit is inside the margin) or inconclusive.", after="beyond")
    def outcome(self) -> Outcome:
        """Return slower, faster, no change (the limit is inside the margin) or inconclusive."""
        return outcome_by_limit([self.factor], self.limit)


def _names(parts: Sequence[Allocation] | Sequence[SeriesSubject]) -> list[str]:
    return [part.name for part in parts]


@dataclass(frozen=True)
class BaselineDiff:
    """The differences between two sides of a baseline comparison."""

    old: Annotated[str, column("The name of the old side.")]
    new: Annotated[str, column("The name of the new side.")]
    sides: Annotated[
        tuple[Sequence[Allocation], Sequence[Allocation]],
        column("The allocations of each side.", key="allocations", value=lambda diff: [_names(side) for side in diff.sides]),
    ]
    changes: Annotated[Sequence[Difference], column("From the last allocation of the old side to the last of the new one.")]
    margin: Annotated[float, column("The largest difference that counts as no change: 0.05 is ±5 %.")] = field(default=MARGIN, init=False)
    moved: Annotated[Sequence[Shift], column("The whole, groups and cases that both sides have.")]
    only_old: Annotated[Sequence[SeriesSubject], column("Cases of the old side alone.", value=lambda diff: _names(diff.only_old))]
    only_new: Annotated[Sequence[SeriesSubject], column("Cases of the new side alone.", value=lambda diff: _names(diff.only_new))]

    @property
    @figure("The number of cases of both sides by outcome.", value=lambda diff: counts_by_name(diff.summary), after="margin")
    def summary(self) -> dict[Outcome, int]:
        """Return the number of cases of both sides by outcome."""
        return count_outcomes(shift.outcome for shift in self.moved if shift.about.kind == CASE)


def between_allocations(baseline: Baseline, old: str, new: str) -> BaselineDiff:
    """Return the differences of two allocations, with limits from their baseline.

    Raises UsageError for a name that is not in the baseline, and for the same name twice.
    """
    number = {allocation.name: place for place, allocation in enumerate(baseline.allocations)}
    unknown = next((name for name in (old, new) if name not in number), None)
    if unknown is not None:
        raise UsageError(f"allocation {unknown} is not in {baseline.path}: choose from {', '.join(number)}")
    if old == new:
        raise UsageError(f"allocation {old} is named twice: name two different ones")
    matrix = history_matrix(baseline.allocations)
    return _moves((old, new), baseline.allocations, matrix, ([number[old]], [number[new]]), matrix.variance())


def between_baselines(old: Baseline, new: Baseline) -> BaselineDiff:
    """Return the differences of two baselines. Limits come from the scatter within each, not from the difference between them."""
    if old.path.resolve() == new.path.resolve():
        raise UsageError(f"{old.path} is named twice: name two different baselines")
    allocations = [*old.allocations, *new.allocations]
    matrix = history_matrix(allocations)
    old_count = len(old.allocations)
    sides = list(range(old_count)), list(range(old_count, len(allocations)))
    variances = np.array([matrix.variance(side) for side in sides])
    is_known = np.isfinite(variances)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Figures = np.where(is_known, variances, 0.0).sum(axis=0) / is_known.sum(axis=0)
    return _moves((str(old.path), str(new.path)), allocations, matrix, sides, mean)


def _moves(
    names: tuple[str, str],
    allocations: Sequence[Allocation],
    matrix: HistoryMatrix,
    sides: tuple[Sequence[int], Sequence[int]],
    variance: Figures,
) -> BaselineDiff:
    values = [matrix.values[side] for side in sides]
    old, new = (known_median(side_values.T) for side_values in values)
    counts = [np.isfinite(side_values).sum(axis=0).astype(float) for side_values in values]
    with np.errstate(invalid="ignore", divide="ignore"):
        variance_of_medians = sum(np.where(count > 2, OF_MEDIAN, 1.0) / count for count in counts)  # median and mean of two are equal
        reach = K_SIGMA * np.sqrt(variance * variance_of_medians)
    limits = np.where(np.isfinite(reach), np.maximum(matrix.floors, reach), np.nan)
    moved = []
    only_old = []
    only_new = []
    for subject, before, after, limit in zip(matrix.abouts, old, new, limits, strict=True):
        if isfinite(before) and isfinite(after):
            moved.append(Shift(subject, exp(after - before), exp(limit) if isfinite(limit) else None))
        elif subject.kind == CASE and isfinite(before):
            only_old.append(subject)
        elif subject.kind == CASE and isfinite(after):
            only_new.append(subject)
    old_side = [allocations[number] for number in sides[0]]
    new_side = [allocations[number] for number in sides[1]]
    return BaselineDiff(*names, (old_side, new_side), changes(old_side[-1], new_side[-1]), moved, only_old, only_new)
