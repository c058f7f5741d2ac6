"""A baseline: a folder with a file for each good allocation, in plain text with one case per line, so that git can track it.

Nothing is locked: a file appears complete or not at all, under a unique name, and is never changed.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import fields
from numpy.typing import NDArray

from collbench.analysis.ceilings import LinkCeiling
from collbench.analysis.differences import KINDS
from collbench.analysis.launches import LONGEST_S, SHORTEST_S, is_time, known
from collbench.errors import UsageError
from collbench.gating.allocation import COLUMNS, NAME, Allocation, CaseTimes, in_order, moment
from collbench.results.row import UNDER_LOAD, CaseKey
from collbench.results.store import to_line
from collbench.units import first_of, plural
from collbench.untrusted import open_file, read_file, uncollected, values_in

# The file of an allocation: a line on the whole, then a line per case. It may have been edited by hand, so `read` checks it.

SCHEMA = 1
ENDING = ".allocation.jsonl"
_KEPT = ("name", "began_utc", "launches", "unfinished", "canary_s", "facts", "imported", "jobs", "ceilings")
_LARGEST = 128 << 20  # bytes: 10,000 cases take about 3 MB
_LARGEST_HEAD = 16 << 20
_MOST_LINES = 1 << 20
_MOST_VALUES = 1 << 23  # 10,000 cases have about 300,000; an empty list has two characters, and takes 64 bytes of memory
_FIGURES = ("medians_s", "wrong", "na")
_LATER = len(CaseKey._field_defaults)  # columns that a file has only if a case has a value of its own there
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_TYPES: dict[Any, Any] = {int: _Count, int | None: _Count | None}
_CASE = [_TYPES.get(kind, kind) for kind in get_type_hints(CaseKey).values()]
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class AllocationHead(msgspec.Struct, frozen=True):
    """The first line of a file: the fields of `Allocation` besides its cases; those with a default are missing in an older file."""

    name: str
    began_utc: str
    launches: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    unfinished: _Count
    canary_s: tuple[float | None, ...]
    facts: dict[str, dict[str, str]]
    columns: tuple[str, ...]
    imported: bool = False
    jobs: tuple[str, ...] = ()
    ceilings: tuple[LinkCeiling, ...] = ()

    def impossible(self, file: Path) -> str | None:
        """Return the first field with an impossible value; None if there is none."""
        texts = [text for ceiling in self.ceilings for text in ceiling if isinstance(text, str)]
        counts = [count for ceiling in self.ceilings for count in (ceiling.ranks, ceiling.nodes or 0)]
        fits = {
            "name": f"{self.name}{ENDING}" == file.name and NAME.fullmatch(self.name),
            "began_utc": not self.began_utc or moment(self.began_utc),
            "canary_s": all(value is None or is_time(value) for value in self.canary_s),
            "facts": set(self.facts) <= set(KINDS),
            "columns": self.columns in (_columns(len(COLUMNS) - later) for later in range(_LATER + 1)),
            "jobs": all(map(str.isprintable, self.jobs)),
            "ceilings": all(map(str.isprintable, texts))
            and min(counts, default=0) >= 0
            and all(known(ceiling.bytes_per_s) for ceiling in self.ceilings),
        }
        return next((name for name, is_fitting in fits.items() if not is_fitting), None)


def write(path: Path, allocation: Allocation) -> Path:
    """Write the allocation's file into the folder, which is created if missing, and return its path.

    Raises UsageError if the file exists or cannot be written.
    """
    target = path / f"{allocation.name}{ENDING}"
    draft = path / f".{allocation.name}.{os.getpid()}.new"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with draft.open("x", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in _lines(allocation))
            file.flush()
            os.fsync(file.fileno())
        _put(draft, target)
    except FileExistsError as error:
        raise UsageError(f"allocation {allocation.name} is already in {path}: drop it there first") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}): choose another folder") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return target


def _put(draft: Path, target: Path) -> None:
    """Link the draft to the target; unlike a rename, this never replaces a file that another process wrote.

    Where the filesystem has no links, it is copied: a concurrent reader may find an incomplete file and reports it.
    """
    try:
        os.link(draft, target)
        return
    except FileExistsError:
        if draft.stat().st_nlink < 2 or not draft.samefile(target):  # else the link exists, and only the file server's reply was lost
            raise
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    with target.open("xb") as file:
        try:
            file.write(draft.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            target.unlink(missing_ok=True)
            raise


def _lines(allocation: Allocation) -> Iterator[str]:
    head = {name: getattr(allocation, name) for name in _KEPT}
    count = max(len(case.stored()) for case in allocation.cases)
    yield to_line({"schema": SCHEMA, **head, "columns": _columns(count)})

    # None first, numbers by size, text by letters, so that equal cases have equal line numbers
    def sortable(value: Any) -> tuple[bool, str, float]:
        number = isinstance(value, int | float)
        return number, "" if number or value is None else str(value), float(value) if number else 0.0

    for case, measured in sorted(allocation.cases.items(), key=lambda entry: tuple(map(sortable, entry[0]))):
        yield json.dumps([*case[:count], list(measured.medians_s), measured.wrong, measured.na], separators=(",", ":"))


def read(file: Path, names: dict[CaseKey, CaseKey]) -> Allocation:
    """Return the allocation in a file. Cases found in `names` (those of earlier files) are not stored again.

    Raises UsageError if the file is not valid.
    """
    try:
        data = read_file(file, _LARGEST)
        if values_in(data) > _MOST_VALUES or data.count(b"\n") > _MOST_LINES:
            raise ValueError(f"it holds more than {_MOST_LINES:,} cases, or {_MOST_VALUES:,} values")
        first, _, lines = data.partition(b"\n")
        head = _head(first, file)
        return Allocation(cases=_cases(lines, head, names), **{name: getattr(head, name) for name in _KEPT})
    except (OSError, ValueError, RecursionError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{file} cannot be read ({why}): restore it, or drop it") from error


def head_of(file: Path) -> AllocationHead | None:
    """Return the first line of a file; None if it is not valid, which `read` reports."""
    try:
        with open_file(file) as lines:
            return _head(lines.readline(_LARGEST_HEAD), file)
    except (OSError, ValueError, RecursionError):
        return None


def _head(line: bytes, file: Path) -> AllocationHead:
    values = msgspec.json.decode(line) if line else None
    if not isinstance(values, dict) or not isinstance(values.get("schema"), int):
        raise ValueError("its first line has no schema")
    if values["schema"] > SCHEMA:
        raise ValueError(f"it was written by a newer collbench (schema {values['schema']}, this one knows {SCHEMA}): update")
    decoded = {}
    for field in fields(AllocationHead):
        try:
            decoded[field.name] = msgspec.convert(values.get(field.name, field.default), field.type)
        except msgspec.ValidationError:
            raise _misfit(field.name, values) from None
    head = AllocationHead(**decoded)
    impossible = head.impossible(file)
    if impossible is not None:
        raise _misfit(impossible, values)
    if len(head.canary_s) != head.launches:
        raise ValueError(f"it has {head.launches} launches but {len(head.canary_s)} state probes")
    return head


def _misfit(name: str, values: Mapping[str, Any]) -> ValueError:
    return ValueError(f"'{name}' in its first line is {str(values.get(name))[:40]!r}")


def _columns(count: int) -> tuple[str, ...]:
    """Return the columns of a file that has the first `count` fields of its cases."""
    return (*COLUMNS[:count], *_FIGURES)


@cache
def _decoder(count: int) -> Any:
    return msgspec.json.Decoder(GenericAlias(tuple, (*_CASE[:count], tuple[float | None, ...], _Count, str | None)))


def _cases(lines: bytes, head: AllocationHead, names: dict[CaseKey, CaseKey]) -> dict[CaseKey, CaseTimes]:
    decoder = _decoder(len(head.columns) - len(_FIGURES))
    try:
        values = decoder.decode_lines(lines)
    except msgspec.ValidationError:  # name the first line that is not a valid case
        for number, line in enumerate(lines.split(b"\n"), start=2):
            try:
                decoder.decode(line)
            except msgspec.ValidationError:
                stored = msgspec.json.decode(line)
                is_case = isinstance(stored, list) and len(stored) == len(head.columns)
                raise ValueError(f"line {number} {'has impossible figures' if is_case else 'is not a case'}") from None
        raise ValueError("it has impossible figures") from None
    cases: dict[CaseKey, CaseTimes] = {}
    for number, (*columns, medians, wrong, na) in enumerate(values, start=2):
        case = CaseKey(*columns)
        if len(medians) != head.launches or not (case in names or all(str(value).isprintable() for value in case)):
            raise ValueError(f"line {number} has impossible figures")
        cases[names.setdefault(case, case)] = CaseTimes(medians, wrong, na)
    if not cases:
        raise ValueError("it has no case")
    if len(cases) < len(values):
        raise ValueError(f"{len(values) - len(cases)} of its lines repeat a case")
    times = np.array([measured.medians_s for measured in cases.values()], dtype=np.float64)
    impossible = ~(np.isnan(times) | (times >= SHORTEST_S) & (times <= LONGEST_S)).all(axis=1)
    if impossible.any():
        raise ValueError(f"line {int(np.argmax(impossible)) + 2} has impossible figures")
    return cases


# Size classes, and groups of cases, which are judged in addition to their cases.

_LARGEST_SMALL = 16 << 10  # bytes
_LARGEST_MID = 1 << 20
CLASSES = ("small", "mid", "large")
Numbers = NDArray[np.int64]
Figures = NDArray[np.float64]


class CaseGroup(NamedTuple):
    """Cases with similar scatter that one cause would slow together: a backend's operation in one size class."""

    backend: str
    operation: str
    size_class: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.backend}, {self.size_class} messages"


def size_class(size_bytes: int) -> str:
    """Return "small" (up to 16 KiB, and operations that move no data), "mid" (up to 1 MiB) or "large"."""
    if size_bytes <= _LARGEST_SMALL:
        return CLASSES[0]
    return CLASSES[1] if size_bytes <= _LARGEST_MID else CLASSES[2]


class Scheme(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The assignment of cases to groups.

    groups  the groups, in order of first appearance
    of      [cases] the number of each case's group
    """

    groups: tuple[CaseGroup, ...]
    of: Numbers

    @classmethod
    def of_cases(cls, groups: Sequence[CaseGroup]) -> Scheme:
        """Return the scheme for the group of each case."""
        names = tuple(dict.fromkeys(groups))
        number = {name: place for place, name in enumerate(names)}
        return cls(names, np.array([number[group] for group in groups], dtype=np.int64))

    @cached_property
    def members(self) -> list[Numbers]:
        """Return for each group the numbers of its cases."""
        ordered = np.argsort(self.of, kind="stable")
        ends = np.cumsum(np.bincount(self.of, minlength=len(self.groups)))[:-1]
        return [np.asarray(part, dtype=np.int64) for part in np.split(ordered, ends)]

    @cached_property
    def classes(self) -> Numbers:
        """Return [groups] the number of each group's size class."""
        return np.array([CLASSES.index(group.size_class) for group in self.groups], dtype=np.int64)

    def medians(self, values: Figures) -> Figures:
        """Return […, groups] of […, cases]: the median over each group's known cases; NaN without any."""
        medians = np.full((*values.shape[:-1], len(self.groups)), np.nan)
        for number, cases in enumerate(self.members):
            medians[..., number] = known_median(values[..., cases])
        return medians

    def means(self, values: Figures) -> Figures:
        """Return [groups] of [cases]: the mean over each group's known cases; NaN without any."""
        is_known = np.isfinite(values)
        sums = np.bincount(self.of, np.where(is_known, values, 0.0), len(self.groups))
        counts = np.bincount(self.of, is_known, len(self.groups))
        with np.errstate(invalid="ignore"):
            return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def known_median(values: Figures) -> Figures:
    """Return the median of the known values over the last axis; NaN without any."""
    is_known = np.isfinite(values)
    if is_known.all():
        return np.median(values, axis=-1) if values.shape[-1] else np.full(values.shape[:-1], np.nan)
    ordered = np.sort(np.where(is_known, values, np.inf), axis=-1)
    counts = is_known.sum(axis=-1)
    low, high = ((counts + shift) // 2 - 1 for shift in (1, 2))
    picked = [np.take_along_axis(ordered, np.maximum(positions, 0)[..., None], axis=-1)[..., 0] for positions in (low, high)]
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, (picked[0] + picked[1]) / 2, np.nan)


class Baseline(msgspec.Struct, frozen=True):
    """The good allocations in a folder, in the order in which they began."""

    path: Path
    allocations: Sequence[Allocation]

    @property
    def cases(self) -> list[CaseKey]:
        """Return all cases that any allocation has, in order of first appearance."""
        return list(dict.fromkeys(case for allocation in self.allocations for case in allocation.cases))


def group_of_case(case: CaseKey) -> CaseGroup:
    """Return the group that a case is judged with."""
    under_load = " under load" if case.mode == UNDER_LOAD else ""  # factors, which other causes change than times
    return CaseGroup(case.backend, f"{case.operation}{under_load}", size_class(case.size_bytes))


def scheme_of(cases: Sequence[CaseKey]) -> Scheme:
    """Return the grouping of these cases."""
    return Scheme.of_cases([group_of_case(case) for case in cases])


def times_of(allocations: Sequence[Allocation], cases: Sequence[CaseKey]) -> Figures:
    """Return [allocations × cases] ln of seconds; NaN if an allocation has no time."""
    times = [np.log(known_median(seconds_of(allocation, cases))) for allocation in allocations]
    return np.array(times).reshape(len(allocations), len(cases))


def seconds_of(allocation: Allocation, cases: Sequence[CaseKey]) -> Figures:
    """Return [cases × launches] the median of each launch in seconds; NaN if it has none."""
    lacking = CaseTimes((None,) * allocation.launches)
    return np.array([allocation.cases.get(case, lacking).medians_s for case in cases], dtype=np.float64).reshape(len(cases), -1)


def is_baseline(path: Path) -> bool:
    """Return whether the path is a folder with at least one file of a baseline, valid or not."""
    try:
        return any(file.name.endswith(ENDING) for file in path.iterdir())
    except OSError:
        return False


def load(path: Path) -> Baseline:
    """Return the baseline in a folder; allocations without a start time come first.

    Raises UsageError if there is none, a file is not valid, two files hold one allocation, or only some allocations were imported.
    """
    try:
        files = sorted(file for file in path.iterdir() if file.name.endswith(ENDING))
    except OSError as error:
        raise UsageError(f"{path} is not a baseline ({error.strerror or error}): make one with `collbench baseline add`") from error
    if not files:
        raise UsageError(f"{path} has no allocation: add runs with `collbench baseline add {path} RUN…`")
    names: dict[CaseKey, CaseKey] = {}  # equal cases are stored once
    with uncollected():
        allocations = [read(file, names) for file in files]
    _refuse_duplicates(path, allocations)
    _refuse_a_mixture(path, allocations)
    dated = in_order([allocation for allocation in allocations if allocation.began is not None])
    return Baseline(path, [*(allocation for allocation in allocations if allocation.began is None), *dated])


def add_all(path: Path, allocations: Sequence[Allocation]) -> list[Path]:
    """Write all allocations into the folder, or none of them, and return their files. A missing folder is created.

    Raises UsageError for an allocation that has wrong data, stopped early, was slowed on purpose or is in the folder under any name.
    Likewise for two allocations of one job, for a mixture of imported and measured ones, and if writing fails.
    """
    for allocation in allocations:
        wrong = sum(measured.wrong for measured in allocation.cases.values())
        if wrong:
            raise UsageError(f"allocation {allocation.name} has {wrong} wrong elements, so it is not a valid baseline; omit it")
        if allocation.unfinished:
            stopped = plural(allocation.unfinished, "launch")
            folders = f" ({first_of(allocation.stopped, 3)})" if allocation.stopped else ""
            raise UsageError(
                f"allocation {allocation.name} has {stopped} that stopped early{folders}: repeat what stopped, "
                "or name the other launches one by one"
            )
        if allocation.slowed:
            slowed = f"slowed on purpose ({allocation.slowed})"
            raise UsageError(f"allocation {allocation.name} was {slowed}: it does not show the cluster's speed; omit it")
    heads = {file: head_of(file) for file in sorted(path.glob(f"*{ENDING}"))}
    names = {allocation.began: allocation.name for allocation in allocations if _is_exact(allocation.began_utc)}
    renamed = [file for file, head in heads.items() if head and names.get(moment(head.began_utc), head.name) != head.name]
    _refuse_duplicates(path, [*(read(file, {}) for file in renamed), *allocations])
    all_allocations: list[Allocation | AllocationHead] = [*filter(None, heads.values()), *allocations]
    shared = shares_one_job(all_allocations)
    if shared is not None:  # they scatter less than those of several jobs, so limits would be too narrow
        raise UsageError(
            f"{path}: {shared[0]} and {shared[1]} are both of {shared[2]}, so they are one allocation: measure each in its own job"
        )
    _refuse_a_mixture(path, all_allocations)
    written: list[Path] = []
    try:
        written.extend(write(path, allocation) for allocation in allocations)
    except UsageError:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    return written


def same(first: Allocation, second: Allocation) -> bool:
    """Return whether both are one allocation, even under different names."""
    return first.name == second.name or (_is_exact(first.began_utc) and first.began == second.began and first.cases == second.cases)


def shares_one_job(allocations: Sequence[Allocation] | Sequence[Allocation | AllocationHead]) -> tuple[str, str, str] | None:
    """Return (name, name, job) of two allocations measured in one job; None if there are none."""
    owner: dict[str, str] = {}
    for allocation in allocations:
        for job in allocation.jobs:
            if owner.setdefault(job, allocation.name) != allocation.name:
                return owner[job], allocation.name, job
    return None


def fresh(candidate: Sequence[Allocation], held: Sequence[Allocation] = ()) -> list[bool]:
    """Return for each candidate whether it shares no job with an earlier candidate or with an allocation in `held`."""
    used = {job for allocation in held for job in allocation.jobs}
    is_fresh = []
    for allocation in candidate:
        is_fresh.append(not used.intersection(allocation.jobs))
        used.update(allocation.jobs)
    return is_fresh


def _is_exact(moment_utc: str) -> bool:
    """Return whether this is a moment, not only a day, on which several allocations may begin."""
    return len(moment_utc) > len("2026-11-21")


def _refuse_duplicates(path: Path, allocations: Sequence[Allocation]) -> None:
    by_start: dict[object, list[Allocation]] = {}
    for allocation in allocations:
        earlier = by_start.setdefault(allocation.began, [])
        duplicate = next((candidate for candidate in earlier if same(candidate, allocation)), None)
        if duplicate is not None:
            raise UsageError(f"allocations {duplicate.name} and {allocation.name} are the same allocation ({path}): omit one")
        earlier.append(allocation)


def _refuse_a_mixture(path: Path, allocations: Sequence[Allocation | AllocationHead]) -> None:
    """Raise UsageError for imported and measured allocations together: their statistics differ."""
    imported = [allocation.name for allocation in allocations if allocation.imported]
    measured = [allocation.name for allocation in allocations if not allocation.imported]
    if imported and measured:
        raise UsageError(f"{path}: {imported[0]} was imported and {measured[0]} measured here: keep them in two baselines")


def drop(path: Path, name: str) -> None:
    """Remove an allocation from the folder. Raises UsageError if it is not in there."""
    target = path / f"{Path(name).name}{ENDING}"
    try:
        target.unlink()
    except OSError as error:
        names = ", ".join(allocation.name for allocation in load(path).allocations)
        raise UsageError(f"allocation {name} is not in {path} ({error.strerror or error}): choose from {names}") from error
