"""Allocations as the gate reads them: the medians of each case by launch, the circumstances, and failures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import log
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from collbench.analysis import launches
from collbench.analysis.ceilings import LinkCeiling, link_ceilings
from collbench.analysis.differences import facts
from collbench.analysis.launches import allocation_of, case_of, figure_of, time_of
from collbench.columns import column
from collbench.errors import FINE, UsageError
from collbench.gating.reasons import CaseNames
from collbench.machine.peak.ceiling import Ceiling
from collbench.operations.traffic import EVEN
from collbench.results.reader import Run
from collbench.results.row import IMPORTED, CaseKey, Row
from collbench.units import format_size
from collbench.untrusted import dict_of, list_of

SLOWED = "slowed"  # the flag on every row that `--slowed` made slower
_JOBS = {"SLURM_JOB_ID": "Slurm job", "PBS_JOBID": "PBS job", "LSB_JOBID": "LSF job"}  # by the variable with its number
COLUMNS = CaseKey._fields
_LONGEST_JOB = 200
NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,99}", re.ASCII)


class CaseTimes(NamedTuple):
    """The times of a case in one allocation.

    medians_s  by launch, in seconds, of a case under load (mode "load") the factors; None if the launch lacks the case or has no figure
    wrong      received elements that differ from those sent, summed over all launches
    na         why no launch has a time; None: at least one has
    """

    medians_s: tuple[float | None, ...]
    wrong: int = 0
    na: str | None = None

    @property
    def log_time(self) -> float | None:
        """Return ln of seconds of the median of the launches' medians; None without any."""
        middle = median_of(self.medians_s)
        return None if middle is None else log(middle)


class ShownFigures(NamedTuple):
    """The figures of a case's rows besides its times, over all launches.

    flags    those of any row
    percent  of the ceiling, the median over launches; None if a launch has none, or another kind of ceiling
    ceiling  the last row's
    bound    the last row's hard limit
    percents by launch; None if it has no time, no percentage or another kind of ceiling than the others
    checked  whether every launch compared the received data with the data sent, and reports the wrong elements
    """

    flags: frozenset[str]
    percent: float | None
    ceiling: Ceiling | None
    bound: Ceiling | None = None
    percents: tuple[float | None, ...] = ()
    checked: bool = True


class Allocation(msgspec.Struct, frozen=True, eq=False):
    """An allocation with its launches, as the gate judges it and as a baseline stores it, without `shown` and `stopped`."""

    name: Annotated[str, column("Its identity: no allocation counts twice.")]
    began_utc: Annotated[str, column('When its first launch began, as ISO 8601; "" where no launch records it.')]
    launches: Annotated[int, column("Their number.")]
    unfinished: Annotated[int, column("How many launches stopped early.")]
    canary_s: Annotated[tuple[float | None, ...], column("By launch, the median over its cases of the state probe; None without one.")]
    facts: Annotated[Mapping[str, Mapping[str, str]], column("By kind and item, its value as text: all that is compared.")]
    cases: Annotated[Mapping[CaseKey, CaseTimes], column("What was measured, by case.")]
    shown: Annotated[Mapping[CaseKey, ShownFigures], column("The rows' other figures by case.")] = msgspec.field(default_factory=dict)
    imported: Annotated[bool, column("Whether another tool measured it.")] = False
    slowed: Annotated[str, column('How it was slowed on purpose (`--slowed`); "" where it was not, as in every baseline.')] = ""
    jobs: Annotated[
        tuple[str, ...], column('The scheduler\'s jobs of its launches: "Slurm job testbed-12"; empty if none is recorded.')
    ] = ()
    ceilings: Annotated[tuple[LinkCeiling, ...], column("Those of its cases that come from links, each once; empty in an old file.")] = ()
    stopped: Annotated[tuple[str, ...], column("The folders of the launches that stopped early.")] = ()

    __hash__ = None  # type: ignore[assignment]  # its mappings cannot be hashed

    def __eq__(self, other: object) -> bool:
        """Return whether a baseline stores both alike."""
        return isinstance(other, Allocation) and self._stored == other._stored

    @property
    def _stored(self) -> tuple[Any, ...]:
        return astuple(replace(self, shown={}, stopped=()))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the names of its hosts, sorted. Its facts are texts by item, and have them as "node1, node2"."""
        return tuple(filter(None, self.facts.get("hosts", {}).get("names", "").split(", ")))

    @property
    def began(self) -> datetime | None:
        """Return when it began, comparable between allocations; None if that is unknown."""
        return moment(self.began_utc)


def allocations_in(paths: Sequence[Path]) -> list[Allocation]:
    """Return the allocations of all runs in `paths`, in the order in which they began.

    Where one has no start time, all keep the order of `paths`. Raises UsageError if `paths` have no run, or if a launch is named twice,
    cannot be read or is missing. Likewise if launches of one allocation do not repeat one another.
    """
    runs = launches.read_all(paths)
    read = {run.path: run for run in runs}
    for path in paths:  # a single launch of an incomplete folder does not count as an allocation
        folders = [] if path in read else launches.launch_folders(path)
        unreadable = next((folder for folder in folders if folder not in read), None)
        if unreadable is not None:
            raise UsageError(f"{unreadable} cannot be read; repeat that launch, or name the others one by one")
        counts = [read[folder].info.get("launches") for folder in folders]
        planned = max((count for count in counts if isinstance(count, int)), default=0)
        if planned > len(folders):
            raise UsageError(f"{path} holds {len(folders)} of {planned} launches: repeat those missing, or name the others one by one")
        if len(folders) > 1 and any(allocation_of(read[folder]) is None for folder in folders):
            raise UsageError(f"{path} has launches without an allocation name: measure them again with --allocation NAME")
    return allocations_of(runs)


def allocations_of(runs: Sequence[Run]) -> list[Allocation]:
    """Return the allocations of runs, in the order in which they began. Raises UsageError if launches do not repeat one another."""
    by_allocation, conflicts = launches.repetitions(runs)
    if conflicts:
        raise UsageError(f"{conflicts[0]}: launches of one allocation need equal software and settings; name those that have them")
    return in_order([allocation_from(repeated) for repeated in by_allocation])


def in_order(allocations: Sequence[Allocation]) -> list[Allocation]:
    """Return the allocations in the order in which they began; unchanged if one has no start time."""
    dated = [(allocation.began, number) for number, allocation in enumerate(allocations) if allocation.began is not None]
    return [allocations[number] for _, number in sorted(dated)] if len(dated) == len(allocations) else list(allocations)


def allocation_from(runs: Sequence[Run]) -> Allocation:
    """Return the allocation that these launches form. Raises UsageError if its name is not usable as a file name, or if it has no row."""
    first = runs[0].path
    name = allocation_of(runs[0]) or first.resolve().name
    if not NAME.fullmatch(name):
        raise UsageError(f"{first}: allocation name {name[:100]!r} is not a valid file name: measure with another --allocation NAME")
    by_launch = [{case_of(row): row for row in run.rows} for run in runs]  # of a case measured twice in a launch the last row counts
    cases = dict.fromkeys(case for launch_rows in by_launch for case in launch_rows)
    rows = {case: [launch_rows.get(case) for launch_rows in by_launch] for case in cases}
    if not rows:
        raise UsageError(f"{first} has no finished case: name another run")
    all_rows = [row for run in runs for row in run.rows]
    imported = {IMPORTED in row.flags for row in all_rows}
    if len(imported) > 1:  # another tool's statistic is not comparable with our median
        raise UsageError(f"{first}: some of its allocation's rows are imported, others measured here: give them two names")
    wrong = Counter[CaseKey]()  # of all rows
    for row in all_rows:
        if row.wrong:
            wrong[case_of(row)] += row.wrong
    started = list_of([run.info.get("started_utc") for run in runs], str)
    began = min((text for text in started if moment(text)), key=lambda text: (moment(text), text), default="")
    texts: dict[str, dict[str, str]] = {}  # the first launch takes precedence; later ones add only the facts that it lacks
    for run in runs:
        for item, text in facts(run).items():
            texts.setdefault(item.kind, {}).setdefault(item.what, text)
    slowed = ""  # how they were slowed on purpose, from the rows that record it
    if any(SLOWED in row.flags for row in all_rows):
        recorded = [text for run in runs for text in list_of(run.info.get("slowed"), str)]
        slowed = "; ".join(dict.fromkeys(recorded)) or "unknown"
    return Allocation(
        name, began, len(runs), sum(map(_broke_off, runs)), tuple(map(_probe_s, runs)), texts,
        cases={case: _measured(case_rows, wrong[case]) for case, case_rows in rows.items()},
        shown={case: _shown(case_rows) for case, case_rows in rows.items()},
        imported=True in imported, slowed=slowed, jobs=_jobs(runs), ceilings=link_ceilings(all_rows),
        stopped=tuple(str(run.path) for run in runs if _broke_off(run)),
    )  # fmt: skip


def moment(value: Any) -> datetime | None:
    """Return the time of an ISO 8601 day or moment, in UTC where it has no zone; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed


def _broke_off(run: Run) -> bool:
    """Return whether a run stopped early or failed for another reason than wrong data, which its rows report."""
    failed = run.info.get("exit_code") not in (FINE, None) and not any(row.wrong for row in run.rows)
    return failed or not run.finished


def _jobs(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the jobs of the runs, each once; srun outside of an allocation makes each launch a job."""
    jobs = []
    for run in runs:
        environment = dict_of(run.info.get("environment"))
        for variable, kind in _JOBS.items():
            cluster = environment.get("SLURM_CLUSTER_NAME") if variable.startswith("SLURM_") else None
            parts = [part for part in (cluster, environment.get(variable)) if isinstance(part, str) and part]
            number = "-".join(parts) if environment.get(variable) else ""
            if number.isprintable() and 0 < len(number) <= _LONGEST_JOB:
                jobs.append(f"{kind} {number}")
    return tuple(dict.fromkeys(jobs))


def _measured(rows: Sequence[Row | None], wrong: int) -> CaseTimes:
    medians = tuple(None if row is None else figure_of(row) for row in rows)
    if any(value is not None for value in medians):
        return CaseTimes(medians, wrong)
    measured_rows = [row for row in rows if row is not None]
    if any(map(launches.why_inconclusive, measured_rows)):
        return CaseTimes(medians, wrong, "inconclusive")
    return CaseTimes(medians, wrong, next((row.na for row in measured_rows if row.na), "no time"))


def _shown(case_rows: Sequence[Row | None]) -> ShownFigures:
    """Return the figures from the rows of one case, by launch; rows without a time do not count."""
    rows = [row if row is not None and time_of(row) is not None else None for row in case_rows]
    timed_rows = [row for row in rows if row is not None]
    ceilings = [row.ceiling for row in timed_rows if row.ceiling is not None]
    bound = next((row.hard_bound for row in reversed(timed_rows) if row.hard_bound is not None), None)
    has_one_kind = len({(ceiling.kind, ceiling.model) for ceiling in ceilings}) == 1
    percents = tuple(row.comparison.percent if row is not None and row.comparison and has_one_kind else None for row in rows)
    is_complete = sum(share is not None for share in percents) == len(timed_rows)
    percent = median_of(percents) if is_complete else None
    flags = frozenset(flag for row in timed_rows for flag in row.flags)
    checked = all(row.checked and row.wrong is not None for row in timed_rows)
    return ShownFigures(flags, percent, ceilings[-1] if ceilings else None, bound, percents, checked)


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None without any."""
    known_values = [value for value in values if value is not None]
    return median(known_values) if known_values else None


def _probe_s(run: Run) -> float | None:
    return median_of(value for row in run.rows for value in row.canary_s.values() if value is not None and launches.known(value))


# Names of cases in the gate's messages.

_MOST_NAMED = 4


def name_of(case: CaseKey) -> str:
    """Return the short name of a case: "allreduce 64 MiB mpi"; of its other columns it has the call form and traffic other than even."""
    size = format_size(case.size_bytes) if case.size_bytes else ""
    traffic = case.traffic if case.traffic != EVEN.name else ""
    return " ".join(filter(None, (case.operation, size, case.backend, case.call, traffic)))


def names_of(cases: Iterable[CaseKey]) -> CaseNames:
    """Return the names of the cases, the first ones in full; equal names once."""
    return case_names(map(name_of, cases))


def case_names(names: Iterable[str]) -> CaseNames:
    """Return these names, the first ones in full; equal names once."""
    distinct = list(dict.fromkeys(names))
    return CaseNames(tuple(distinct[:_MOST_NAMED]), max(0, len(distinct) - _MOST_NAMED))
