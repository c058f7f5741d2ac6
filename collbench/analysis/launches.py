"""Launches of one allocation, combined case by case: statistics are over launches, not over iterations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec.structs import replace

from collbench.columns import column
from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.plugin import record_files
from collbench.results.reader import Run, read_run
from collbench.results.row import UNDER_LOAD, CaseKey, Row, Times
from collbench.untrusted import list_of

if TYPE_CHECKING:
    from collbench.stats.launches import Spread
    from collbench.stats.median import Median

T = TypeVar("T")
K = TypeVar("K")

# The identity of a case: only rows of the same case are combined or compared.

# the meaning of None in these fields; in others it means that the case does not have them
WHERE_NONE = {"algorithm": "auto", "protocol": "auto", "call": "blocking"}
_NAMED = attrgetter(*CaseKey._fields)
SHORTEST_S = 1e-15  # outside of these, logarithms and their squares overflow
LONGEST_S = 1e12


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by key, in the order in which the keys first occur."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def case_of(row: Row) -> CaseKey:
    """Return the identity of the row's case."""
    return CaseKey._make(_NAMED(row))


def sort_time(row: Row) -> float:
    """Return the row's time as a sort key: infinite without a valid one."""
    time_s = time_of(row)
    return float("inf") if time_s is None else time_s


def forced(row: Row) -> str:
    """Return the forced algorithm and protocol: "tree/ll128", "tree", "ll128"; "" where the library chose."""
    return "/".join(word for word in (row.algorithm, row.protocol) if word)


def time_of(row: Row) -> float | None:
    """Return the median in seconds; None for n/a, and for a stored figure that cannot be a time."""
    value = row.time_s.p50 if row.na is None and row.time_s else None
    return value if is_time(value) else None


def figure_of(row: Row) -> float | None:
    """Return the figure that comparisons and the gate use: the median in seconds, or the factor of a row under load.

    None for n/a, for a stored figure that is not valid, and for an inconclusive row under load (ranks share cores, too few blocks).
    """
    if row.mode != UNDER_LOAD:
        return time_of(row)
    factor = row.interference.get("factor")
    return factor if row.na is None and why_inconclusive(row) is None and is_time(factor) else None


def why_inconclusive(row: Row) -> str | None:
    """Return why a row under load has no factor to compare: "cores" or "blocks"; None for every other row."""
    why = row.interference.get("why") if row.mode == UNDER_LOAD and row.na is None else None
    return why if why in ("cores", "blocks") else None


def is_time(value: Any) -> bool:
    """Return whether the value is a plausible time in seconds: a femtosecond to 30 000 years."""
    return known(value) and SHORTEST_S <= value <= LONGEST_S


def row_times(rows: Iterable[Row]) -> list[float]:
    """Return the times of those rows that have a valid one, in seconds."""
    return [time for time in map(time_of, rows) if time is not None]


def row_figures(rows: Iterable[Row]) -> list[float]:
    """Return the figures of `figure_of` of those rows that have one."""
    return [figure for figure in map(figure_of, rows) if figure is not None]


def known(value: Any) -> bool:
    """Return whether the value is a finite number above zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


# A resumed run: its rows are from several launches, though in one table.


def rows_by_launch(run: Run) -> list[int]:
    """Return how many rows each launch of a resumed run has measured, in their order; those that measured none are left out.

    The list has a 0 for each launch whose number is unknown: of a run with lines of another kind, and if run.json is inconsistent.
    """
    notes = _notes(run)
    if str(run.info.get("operation")) in record_files():  # its counts are of the lines of another file
        return [0] * (len(notes) + 1)
    starts = [0, *(note.get("rows") for note in notes), len(run.rows)]
    sound = [start for start in starts if isinstance(start, int) and not isinstance(start, bool)]
    if len(sound) < len(starts) or any(later < earlier for earlier, later in pairwise(sound)):
        return [0] * (len(notes) + 1)
    return [later - earlier for earlier, later in pairwise(sound) if later > earlier]


def sentence(run: Run) -> str | None:
    """Return the note on a run with rows of several launches; None for all others."""
    rows = rows_by_launch(run)
    if len(rows) < 2:
        return None
    parts = f": {' + '.join(map(str, rows))}" if all(rows) else ""
    names = {run.info.get("allocation_id"), *(note.get("allocation_id") for note in _notes(run))}
    allocations = len([name for name in names if isinstance(name, str)])
    where = f" in {allocations} allocations" if allocations > 1 else ""
    return (
        f"{run.path} was resumed: its {len(run.rows)} rows are of {len(rows)} launches{where}{parts}; an interval covers one launch, "
        "and different launches may differ by more"
    )


def _notes(run: Run) -> list[dict[str, Any]]:
    return list_of(run.info.get("resumed"), dict)


_LAUNCH = re.compile(r"launch-(\d{1,9})")
_WORST = 16
# Of several launches' reasons the first one here is shown, since it explains most.
_STOPPED = ("max_time", "out_of_reach", "most_samples", "iterations", "precision")


class Launches(msgspec.Struct, frozen=True):
    """Launches of one allocation under equal conditions, in the given order; `rows` combines their rows."""

    name: Annotated[str, column("Its name.")]
    runs: Annotated[tuple[Run, ...], column("The number of its launches.", key="launches", value=lambda side: len(side.runs))]
    rows: list[Row]


def runs_in(path: Path) -> list[Run]:
    """Return the run in `path`, or all launches in it (launch-1, launch-2, …, as `--launches` writes them).

    A launch that cannot be read becomes a warning of the first one that can. Raises UsageError if there is neither.
    """
    folders = [] if (path / "run.json").exists() or (path / "cells.jsonl").exists() else launch_folders(path)
    if not folders:
        return [read_run(path)]
    runs = []
    unreadable = []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except UsageError as error:
            unreadable.append(str(error))
    if not runs:
        raise UsageError(unreadable[0])
    return [replace(runs[0], warnings=[*runs[0].warnings, *unreadable]), *runs[1:]]


def launch_folders(path: Path) -> list[Path]:
    """Return the folders of launches in `path`, by number."""
    try:
        folders = [folder for folder in path.iterdir() if _LAUNCH.fullmatch(folder.name) and folder.is_dir()]
    except OSError:
        return []
    return sorted(folders, key=lambda folder: (int(folder.name.removeprefix("launch-")), folder))


def read_all(paths: Iterable[Path]) -> list[Run]:
    """Return the runs in all of `paths`. Raises UsageError for a path without any, and for a launch that is named twice."""
    runs = [run for path in paths for run in runs_in(path)]
    check_once(runs)
    return runs


def check_once(runs: Iterable[Run]) -> None:
    """Raise UsageError for a launch that is named twice, or is a copy of another: it would count twice."""
    seen: dict[Any, Path] = {}
    for run in runs:
        start = [run.info.get(name) for name in ("started_utc", "id")]  # no two launches have both in common
        marks: list[Any] = [run.path.resolve()]
        if all(isinstance(fact, str) for fact in start):
            marks.append((*start, str(run.info.get("allocation_id"))))
        earlier = next((seen[mark] for mark in marks if mark in seen), None)
        if earlier is not None:
            raise UsageError(f"{run.path} is named twice{'' if run.path == earlier else f', as {earlier}, too'}: name each launch once")
        seen |= dict.fromkeys(marks, run.path)


def together(runs: Sequence[Run]) -> tuple[list[Launches], list[str]]:
    """Return the runs by allocation, and a sentence for each that is kept separate although its allocation is the same."""
    groups, sentences = repetitions(runs)
    return [Launches(_name(group), tuple(group), combined_rows(group)) for group in groups], sentences


def repetitions(runs: Sequence[Run]) -> tuple[list[list[Run]], list[str]]:
    """Return the lists of runs by allocation, and a sentence for each run that is kept separate although its allocation is the same.

    Launches with different software, settings, hosts or links are kept separate: they do not repeat one another.
    """
    groups: list[list[Run]] = []
    sentences: list[str] = []
    for run in runs:
        same = [group for group in groups if allocation_of(run) is not None and allocation_of(group[0]) == allocation_of(run)]
        if not same:
            groups.append([run])
            continue
        from collbench.analysis.differences import apart  # a measurement needs no comparison of runs

        fitting = next((group for group in same if not apart(group[0], run)), None)
        if fitting is not None:
            fitting.append(run)
        else:
            groups.append([run])
            why = "; ".join(difference.sentence() for difference in apart(same[0][0], run)[:3])
            sentences.append(f"{run.path} is not combined with {same[0][0].path}, though of the same allocation: {why}")
    return groups, sentences


def allocation_of(run: Run) -> str | None:
    """Return the name of the run's allocation; None: the run is an allocation of its own."""
    name = run.info.get("allocation_id")
    return name if isinstance(name, str) and name else None


def combined_rows(runs: Sequence[Run]) -> list[Row]:
    """Return one row per case, in the order of first appearance, with expected times and the flag `dip` where they apply."""
    from collbench.analysis.expected_time import with_expectations  # a measurement derives nothing afterwards
    from collbench.results.dips import with_dips

    if len(runs) == 1:
        return with_expectations(with_dips(runs[0].rows), runs[0])
    by_launch = [{case_of(row): row for row in run.rows} for run in runs]
    measured_operations = [{row.operation for row in run.rows} for run in runs]
    combined = []
    for case in dict.fromkeys(case for rows in by_launch for case in rows):
        rows_of_case = [rows[case] for rows in by_launch if case in rows]
        measured = [row for row in rows_of_case if time_of(row) is not None]
        row = combine(measured) if measured else rows_of_case[0]
        # a run that stopped early would have measured the case if its earlier rows include similar ones
        broke_off = any(
            case not in rows and not run.finished and (not operations or case.operation in operations)
            for rows, run, operations in zip(by_launch, runs, measured_operations, strict=True)
        )
        missing = bool(measured) and (broke_off or len(measured) < len(rows_of_case))
        combined.append(replace(row, flags=(*row.flags, "missing_launches")) if missing else row)
    return with_expectations(with_dips(combined), runs[0])


def combine(rows: Sequence[Row]) -> Row:
    """Return one row for a case from its rows of several launches; each of them has a time.

    The time is the median of the launches' medians, with its interval over these. Min and max are over all; p95 and p99 are the median of
    the launches'. Bandwidths follow from the new time. Wrong elements, samples and slowest ranks are summed, flags united.
    """
    from collbench.stats.launches import over_launches

    if len(rows) == 1:
        return rows[0]
    medians = row_times(rows)
    spread = over_launches(medians)
    algbw, busbw = _bandwidths(rows, spread.value)
    ceiling = _ceiling([row.ceiling for row in rows])
    percent = None
    if busbw and ceiling and ceiling.bytes_per_s and all(row.comparison for row in rows):
        percent = 100 * busbw / ceiling.bytes_per_s
    agreed = {name: value for name, value in rows[0].evidence.items() if all(row.evidence.get(name) == value for row in rows)}
    reached = [row.reached for row in rows if row.reached is not None]
    wrong = [row.wrong for row in rows if row.wrong is not None]
    factors = row_figures(row for row in rows if row.mode == UNDER_LOAD)
    interference = rows[0].interference  # of a row under load the factor over the launches that have one
    if factors:
        load = over_launches(factors)
        interference = {"factor": load.value, "low": load.low, "high": load.high}
    combined = replace(
        rows[0], launches=len(rows), n=sum(row.n for row in rows), n_eff=None,
        time_s=_quantiles([row.time_s for row in rows if row.time_s], spread),
        target=max((row.target for row in rows if row.target), default=None), reached=all(reached) if reached else None,
        stopped=next((why for why in _STOPPED if any(row.stopped == why for row in rows)), None), modes=_modes(rows),
        time_rank_mean_s=_median(row.time_rank_mean_s for row in rows), algbw_bytes_per_s=algbw, busbw_bytes_per_s=busbw,
        message_rate=_median(row.message_rate for row in rows), groups=_groups(rows), interference=interference,
        checked=sum(row.checked for row in rows), wrong=sum(wrong) if wrong else None,
        wrong_detail=next((row.wrong_detail for row in rows if row.wrong_detail), None),
        flags=tuple(dict.fromkeys(flag for row in rows for flag in row.flags)), evidence={**agreed, "launch_medians_s": medians},
        canary_s={when: _median(row.canary_s.get(when) for row in rows) for when in ("before", "after")},
        slowest_ranks=_slowest_ranks(rows), samples={},
    )  # fmt: skip
    return combined.compared_with(ceiling, _ceiling([row.hard_bound for row in rows]), percent)


def _bandwidths(rows: Sequence[Row], time_s: float) -> tuple[float | None, float | None]:
    """Return algorithm and bus bandwidth at this time, in bytes per second; None where no row has one."""
    messages = next((round(row.algbw_bytes_per_s * row.time_s.p50 / row.size_bytes) for row in rows
                     if row.message_rate and row.algbw_bytes_per_s and row.time_s and row.size_bytes), 1)  # fmt: skip
    algbw = messages * rows[0].size_bytes / time_s if any(row.algbw_bytes_per_s for row in rows) else None
    factor = next((row.busbw_bytes_per_s / row.algbw_bytes_per_s for row in rows if row.busbw_bytes_per_s and row.algbw_bytes_per_s), None)
    return algbw, algbw * factor if algbw and factor else None


def _quantiles(times: Sequence[Times], spread: Spread) -> Times:
    """Return the median over launches with its interval, and the other quantiles of all launches together."""
    shortest = [launch.min for launch in times if launch.min is not None and known(launch.min)]
    longest = [launch.max for launch in times if launch.max is not None and known(launch.max)]
    return Times(
        spread.value, spread.low, spread.high,
        min=min(*shortest, spread.value) if shortest else None,
        p95=_median(launch.p95 for launch in times),
        p99=_median(launch.p99 for launch in times),
        max=max(*longest, spread.value) if longest else None,
    )  # fmt: skip


def _groups(rows: Sequence[Row]) -> dict[str, Any]:
    """Return each group's median over the launches, and that of all together; empty if a launch lacks them."""
    if not all(row.groups for row in rows):
        return {}
    medians = {**rows[0].groups, "total_busbw_bytes_per_s": _median(row.groups.get("total_busbw_bytes_per_s") for row in rows)}
    for name in ("p50_s", "busbw_bytes_per_s"):
        lists: list[Any] = [row.groups.get(name) for row in rows]
        sound = all(isinstance(values, list) and len(values) == len(lists[0]) and all(map(known, values)) for values in lists)
        medians[name] = [_middle(column) for column in zip(*lists, strict=True)] if sound else None
    return medians


def _modes(rows: Sequence[Row]) -> list[dict[str, float]]:
    """Return two modes if every launch has two: the medians of the lower and of the upper ones, and their mean shares."""
    pairs = [[(mode.get("time_s"), mode.get("share")) for mode in row.modes if isinstance(mode, dict)] for row in rows]
    if not all(len(pair) == 2 and all(known(time) and known(share) for time, share in pair) for pair in pairs):
        return []
    columns = zip(*(sorted(pair) for pair in pairs), strict=True)
    return [{"time_s": _middle(t for t, _ in column), "share": sum(s for _, s in column) / len(rows)} for column in columns]


def _ceiling(ceilings: Sequence[Ceiling | None]) -> Ceiling | None:
    """Return the ceiling that most launches name: its rate is the median of theirs, its interval covers theirs."""
    named = [ceiling for ceiling in ceilings if ceiling]
    if not named:
        return None
    rateless = [replace(ceiling, bytes_per_s=None, low_bytes_per_s=None, high_bytes_per_s=None, disturbed=False) for ceiling in named]
    common = Counter(rateless).most_common(1)[0][0]
    same_ceiling = [ceiling for ceiling, without_rates in zip(named, rateless, strict=True) if without_rates == common]
    return replace(
        common,
        bytes_per_s=_median(ceiling.bytes_per_s for ceiling in same_ceiling),
        low_bytes_per_s=min((ceiling.low_bytes_per_s for ceiling in same_ceiling if ceiling.low_bytes_per_s is not None), default=None),
        high_bytes_per_s=max((ceiling.high_bytes_per_s for ceiling in same_ceiling if ceiling.high_bytes_per_s is not None), default=None),
        disturbed=any(ceiling.disturbed for ceiling in same_ceiling),
    )


def _slowest_ranks(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the counts of all launches together; a launch's row has only its 16 worst ranks."""
    counts: Counter[int] = Counter()
    for row in rows:
        for pair in list_of(row.slowest_ranks.get("worst"), list):
            if len(pair) == 2 and all(isinstance(number, int) for number in pair):
                counts[pair[0]] += pair[1]
    stored_counts = [row.slowest_ranks.get("count") for row in rows]
    numbers = [number for number in stored_counts if isinstance(number, int)]
    if not counts and not numbers:
        return {}
    return {"worst": [list(pair) for pair in counts.most_common(_WORST)], "count": max([len(counts), *numbers])}


def _middle(values: Iterable[float]) -> float:
    from collbench.stats.median import middle  # not before: numpy would delay the start

    return middle(sorted(values))


def _median(values: Iterable[Any]) -> float | None:
    known_values = [value for value in values if known(value)]
    return _middle(known_values) if known_values else None


def _name(runs: Sequence[Run]) -> str:
    """Return a single run's folder, or the folder of all launches, or else the allocation."""
    if len(runs) == 1:
        return runs[0].path.resolve().name
    parents = {run.path.resolve().parent for run in runs}
    whole = len(parents) == 1 and all(_LAUNCH.fullmatch(run.path.resolve().name) for run in runs)
    return parents.pop().name if whole else str(allocation_of(runs[0]))


def median_of(row: Row) -> Median:
    """Return the row's median with its interval, None if that is not valid. Raises ValueError for a row without a time."""
    times = row.time_s
    value = time_of(row)
    if times is None or value is None:
        raise ValueError("a row without a time has no median")
    return _median_within(row, value, times.ci_low, times.ci_high)


def estimate_of(row: Row) -> Median:
    """Return the figure of `figure_of` with its interval, None if that is not valid. Raises ValueError for a row without a figure."""
    factor = figure_of(row)
    if row.mode != UNDER_LOAD or factor is None:
        return median_of(row)
    return _median_within(row, factor, row.interference.get("low"), row.interference.get("high"))


def _median_within(row: Row, value: float, low: Any, high: Any) -> Median:
    from collbench.stats.median import Median  # not before: numpy would delay the start

    is_sound = is_time(low) and is_time(high) and low <= value <= high
    return Median(value, low if is_sound else None, high if is_sound else None, row.n, row.n_eff)
