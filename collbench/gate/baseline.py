"""A baseline: a folder with a file for each good allocation, in plain text with one case per line, so that git can track it.

Nothing is locked: a file appears complete or not at all, under a unique name, and is never changed.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collbench.analysis.ceilings import LinkCeiling
from collbench.analysis.differences import KINDS
from collbench.analysis.launches import LONGEST_S, SHORTEST_S, is_time, known
from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, NAME, Allocation, Case, CaseTimes, in_order, moment
from collbench.results.store import to_line
from collbench.units import plural
from collbench.untrusted import open_file, read_file, uncollected, values_in

# The file of an allocation: a line on the whole, then a line per case. It may have been edited by hand, so `read` checks it.

SCHEMA = 1
ENDING = ".allocation.jsonl"
_NOT_KEPT = ("cells", "shown", "slowed")
_LARGEST, _LARGEST_HEAD = 128 << 20, 16 << 20  # bytes: 10,000 cases take about 3 MB
_MOST_LINES = 1 << 20
_MOST_VALUES = 1 << 23  # 10,000 cases have about 300,000; an empty list has two characters, and takes 64 bytes of memory
_PLACES = len(COLUMNS) + 3
_COUNTS = {"root", "window", "ranks", "nodes", "streams", "size_bytes"}
_ALWAYS = {"operation", "backend", "device", "dtype", "mode", "in_place", "buffers", "group", "ranks", "size_bytes"}
_NUMBERS = {float, int, type(None)}
_HALF = re.compile(r"\\u[dD]")  # half of a UTF-16 surrogate pair, which no output can encode alone
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


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
    """Link the draft to the target; unlike a rename, this never replaces a file that another process wrote."""
    try:
        os.link(draft, target)
    except FileExistsError:
        if draft.stat().st_nlink < 2 or not draft.samefile(target):  # else the link exists, and only the file server's reply was lost
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy(draft, target)


def _copy(draft: Path, target: Path) -> None:
    """Copy the draft where the filesystem has no links; a concurrent reader may find an incomplete file and reports it."""
    with target.open("xb") as file:
        try:
            file.write(draft.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            target.unlink(missing_ok=True)
            raise


def _lines(allocation: Allocation) -> Iterator[str]:
    head = {name: value for name, value in vars(allocation).items() if name not in _NOT_KEPT}
    yield to_line({"schema": SCHEMA, **head, "columns": [*COLUMNS, "medians_s", "wrong", "na"]})
    ordered = sorted(allocation.cases.items(), key=lambda each: tuple(map(_sortable, each[0])))
    yield from (
        json.dumps([*case, list(measured.medians_s), measured.wrong, measured.na], separators=(",", ":")) for case, measured in ordered
    )


def _sortable(value: Any) -> tuple[bool, str, float]:
    """Return a sort key (None first, numbers by size, text by letters), so that equal cases have equal line numbers."""
    number = isinstance(value, int | float)
    return number, "" if number or value is None else str(value), float(value) if number else 0.0


def read(file: Path, names: dict[Case, Case]) -> Allocation:
    """Return the allocation in a file. Cases found in `names` (those of earlier files) are not checked or stored again.

    Raises UsageError if the file is not valid.
    """
    try:
        data = read_file(file, _LARGEST)
        if values_in(data) > _MOST_VALUES or data.count(b"\n") > _MOST_LINES:
            raise ValueError(f"it holds more than {_MOST_LINES:,} cases, or {_MOST_VALUES:,} values")
        lines = data.decode("utf-8").removesuffix("\n").split("\n")
        head = _head(_parsed(lines[0]) if data else None, file)
        return Allocation(**head, cases=_cases(_all_parsed(lines[1:]), head["launches"], names))
    except (OSError, ValueError, RecursionError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{file} cannot be read ({why}): restore it, or drop it") from error


def head_of(file: Path) -> dict[str, Any]:
    """Return the first line's object; empty if the line is not valid, which `read` reports."""
    try:
        with open_file(file) as lines:
            return _head(_parsed(lines.readline(_LARGEST_HEAD).decode("utf-8")), file)
    except (OSError, ValueError, RecursionError):
        return {}


def _parsed(line: str) -> Any:
    values = _DECODER.decode(line)
    if _HALF.search(line):
        json.dumps(values, ensure_ascii=False).encode()  # raises ValueError
    return values


def _all_parsed(lines: Sequence[str]) -> list[Any]:
    """Return the value of each line. A valid file is parsed as one array, in half the time."""
    whole = ",".join(lines)
    try:
        values = _parsed(f"[{whole}]")
    except (ValueError, RecursionError):
        values = []
    return values if len(values) == len(lines) else [_parsed(line) for line in lines]


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _head(head: Any, file: Path) -> dict[str, Any]:
    if not isinstance(head, dict) or not isinstance(head.get("schema"), int):
        raise ValueError("its first line has no schema")
    if head["schema"] > SCHEMA:
        raise ValueError(f"it was written by a newer collbench (schema {head['schema']}, this one knows {SCHEMA}): update")
    head = {"imported": False, "jobs": [], "ceilings": [], **head}
    for name, fit in _FITS.items():
        if not fit(head.get(name)):
            raise ValueError(f"'{name}' in its first line is {str(head.get(name))[:40]!r}")
    if f"{head['name']}{ENDING}" != file.name:
        raise ValueError(f"'name' in its first line is {head['name'][:40]!r}")
    if len(head["canary_s"]) != head["launches"]:
        raise ValueError(f"it has {head['launches']} launches but {len(head['canary_s'])} state probes")
    return {**{name: head[name] for name in _FITS if name != "columns"}, "canary_s": tuple(head["canary_s"]), "jobs": tuple(head["jobs"]),
            "ceilings": tuple(LinkCeiling(*each) for each in head["ceilings"])}  # fmt: skip


def _cases(lines: Sequence[Any], launches: int, names: dict[Case, Case]) -> dict[Case, CaseTimes]:
    cases = dict(_case(values, number, launches, names) for number, values in enumerate(lines, start=2))
    if not cases:
        raise ValueError("it has no case")
    if len(cases) < len(lines):
        raise ValueError(f"{len(lines) - len(cases)} of its lines repeat a case")
    with suppress(OverflowError):
        times = np.array([measured.medians_s for measured in cases.values()], dtype=np.float64)
        wrong = ~(np.isnan(times) | (times >= SHORTEST_S) & (times <= LONGEST_S)).all(axis=1)
        if not wrong.any():
            return cases
        raise ValueError(f"line {int(np.argmax(wrong)) + 2} has impossible figures")
    raise ValueError("it has impossible figures")


def _case(values: Any, number: int, launches: int, names: dict[Case, Case]) -> tuple[Case, CaseTimes]:
    """Return the case and its times from a line; the values of the times are checked later, for all cases together."""
    if not isinstance(values, list) or len(values) != _PLACES:
        raise ValueError(f"line {number} is not a case")
    medians, wrong, na = values[-3:]
    times = isinstance(medians, list) and len(medians) == launches and _NUMBERS.issuperset(map(type, medians))
    if not (times and _is_count(wrong) and (na is None or isinstance(na, str))):
        raise ValueError(f"line {number} has impossible figures")
    columns = tuple(values[:-3])
    try:
        case = names.get(columns)
    except TypeError:  # a list, an object
        raise ValueError(f"line {number} has impossible figures") from None
    if case is None:
        if not all(map(_is_column, COLUMNS, columns)):
            raise ValueError(f"line {number} has impossible figures")
        case = names.setdefault(columns, columns)
    return case, CaseTimes(tuple(medians), wrong, na)


def _is_column(name: str, value: Any) -> bool:
    """Return whether the value is valid for this column."""
    if value is None:
        return name not in _ALWAYS
    if name == "in_place":
        return isinstance(value, bool)
    return _is_count(value) if name in _COUNTS else isinstance(value, str) and value.isprintable()


def _is_ceiling(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != len(LinkCeiling._fields):
        return False
    each = LinkCeiling(*value)
    texts = (each.operation, each.backend, each.group, each.model, each.limited_by, each.traffic or "")
    counts = (each.ranks, each.nodes or 0)
    return all(isinstance(text, str) and text.isprintable() for text in texts) and all(map(_is_count, counts)) and known(each.bytes_per_s)


def _is_facts(value: Any) -> bool:
    return isinstance(value, dict) and all(kind in KINDS and _is_texts(inner) for kind, inner in value.items())


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


_DECODER = json.JSONDecoder(parse_constant=_no_number)
_FITS: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str) and bool(NAME.fullmatch(value)),
    "began_utc": lambda value: value == "" or moment(value) is not None,
    "launches": lambda value: _is_count(value) and value > 0,
    "unfinished": _is_count,
    "canary_s": lambda value: isinstance(value, list) and all(each is None or is_time(each) for each in value),
    "facts": _is_facts,
    "columns": lambda value: value == [*COLUMNS, "medians_s", "wrong", "na"],
    "imported": lambda value: isinstance(value, bool),
    "ceilings": lambda value: isinstance(value, list) and all(map(_is_ceiling, value)),
    "jobs": lambda value: isinstance(value, list) and all(isinstance(each, str) and each.isprintable() for each in value),
}


# Size classes, and groups of cases, which are judged in addition to their cases.

_SMALL, _MID = 16 << 10, 1 << 20  # bytes: the upper ends of the classes
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
    return CLASSES[0] if size_bytes <= _SMALL else CLASSES[1] if size_bytes <= _MID else CLASSES[2]


@dataclass(frozen=True, eq=False)
class Scheme:
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
        found = np.full((*values.shape[:-1], len(self.groups)), np.nan)
        for number, cases in enumerate(self.members):
            found[..., number] = known_median(values[..., cases])
        return found

    def means(self, values: Figures) -> Figures:
        """Return [groups] of [cases]: the mean over each group's known cases; NaN without any."""
        known = np.isfinite(values)
        sums = np.bincount(self.of, np.where(known, values, 0.0), len(self.groups))
        counts = np.bincount(self.of, known, len(self.groups))
        with np.errstate(invalid="ignore"):
            return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def known_median(values: Figures) -> Figures:
    """Return the median of the known values over the last axis; NaN without any."""
    known = np.isfinite(values)
    if known.all():
        return np.median(values, axis=-1) if values.shape[-1] else np.full(values.shape[:-1], np.nan)
    ordered = np.sort(np.where(known, values, np.inf), axis=-1)
    counts = known.sum(axis=-1)
    low, high = ((counts + shift) // 2 - 1 for shift in (1, 2))
    picked = [np.take_along_axis(ordered, np.maximum(each, 0)[..., None], axis=-1)[..., 0] for each in (low, high)]
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, (picked[0] + picked[1]) / 2, np.nan)


_BACKEND, _OPERATION, _SIZE = (COLUMNS.index(name) for name in ("backend", "operation", "size_bytes"))


@dataclass(frozen=True)
class Baseline:
    """The good allocations in a folder, in the order in which they began."""

    path: Path
    allocations: Sequence[Allocation]

    @property
    def cases(self) -> list[Case]:
        """Return all cases that any allocation has, in order of first appearance."""
        return list(dict.fromkeys(case for each in self.allocations for case in each.cases))


def group_of_case(case: Case) -> CaseGroup:
    """Return the group that a case is judged with."""
    return CaseGroup(case[_BACKEND], case[_OPERATION], size_class(case[_SIZE]))


def scheme_of(cases: Sequence[Case]) -> Scheme:
    """Return the grouping of these cases."""
    return Scheme.of_cases(list(map(group_of_case, cases)))


def times_of(allocations: Sequence[Allocation], cases: Sequence[Case]) -> Figures:
    """Return [allocations × cases] ln of seconds; NaN if an allocation has no time."""
    found = np.full((len(allocations), len(cases)), np.nan)
    for number, allocation in enumerate(allocations):
        found[number] = np.log(known_median(seconds_of(allocation, cases)))
    return found


def seconds_of(allocation: Allocation, cases: Sequence[Case]) -> Figures:
    """Return [cases × launches] the median of each launch in seconds; NaN if it has none."""
    lacking = CaseTimes((None,) * allocation.launches)
    return np.array([allocation.cases.get(case, lacking).medians_s for case in cases], dtype=np.float64).reshape(len(cases), -1)


def is_baseline(path: Path) -> bool:
    """Return whether the path is a folder with at least one file of a baseline, valid or not."""
    try:
        return any(each.name.endswith(ENDING) for each in path.iterdir())
    except OSError:
        return False


def load(path: Path) -> Baseline:
    """Return the baseline in a folder; allocations without a start time come first.

    Raises UsageError if there is none, a file is not valid, two files hold one allocation, or only some allocations were imported.
    """
    try:
        files = sorted(each for each in path.iterdir() if each.name.endswith(ENDING))
    except OSError as error:
        raise UsageError(f"{path} is not a baseline ({error.strerror or error}): make one with `collbench baseline add`") from error
    if not files:
        raise UsageError(f"{path} has no allocation: add runs with `collbench baseline add {path} RUN…`")
    allocations = _read(files)
    _refuse_duplicates(path, allocations)
    _refuse_a_mixture(path, [(each.name, each.imported) for each in allocations])
    unknown = [each for each in allocations if each.began is None]
    return Baseline(path, [*unknown, *in_order([each for each in allocations if each.began is not None])])


def _read(files: Sequence[Path]) -> list[Allocation]:
    """Return the allocations of all files; equal cases are checked and stored once."""
    names: dict[Case, Case] = {}
    with uncollected():
        return [read(file, names) for file in files]


def add_all(path: Path, allocations: Sequence[Allocation]) -> list[Path]:
    """Write all allocations into the folder, or none of them, and return their files. A missing folder is created.

    Raises UsageError for an allocation that has wrong data, stopped early, was slowed on purpose or is in the folder under any name.
    Likewise for two allocations of one job, for a mixture of imported and measured ones, and if writing fails.
    """
    for allocation in allocations:
        _refuse_a_bad_one(allocation)
    held = {file: head_of(file) for file in sorted(path.glob(f"*{ENDING}"))}
    alike = [read(file, {}) for file, head in held.items() if any(_may_be(head, each) for each in allocations)]
    _refuse_duplicates(path, [*alike, *allocations])
    _refuse_one_job(
        path, [*((head["name"], head["jobs"]) for head in held.values() if head), *((each.name, each.jobs) for each in allocations)]
    )
    origins = [(head["name"], head["imported"]) for head in held.values() if head]
    _refuse_a_mixture(path, [*origins, *((each.name, each.imported) for each in allocations)])
    written: list[Path] = []
    try:
        written.extend(write(path, allocation) for allocation in allocations)
    except UsageError:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    return written


def same(one: Allocation, other: Allocation) -> bool:
    """Return whether both are one allocation, even under different names."""
    return one.name == other.name or (_is_exact(one.began_utc) and one.began == other.began and one.cases == other.cases)


def of_one_job(held: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, str, str] | None:
    """Return (name, name, job) of two allocations measured in one job; None if there are none. `held` are names with their jobs."""
    owner: dict[str, str] = {}
    for name, jobs in held:
        for job in jobs:
            if owner.setdefault(job, name) != name:
                return owner[job], name, job
    return None


def fresh(candidate: Sequence[Allocation], held: Sequence[Allocation] = ()) -> list[bool]:
    """Return for each candidate whether it shares no job with an earlier candidate or with an allocation in `held`."""
    used = {job for each in held for job in each.jobs}
    found = []
    for each in candidate:
        found.append(not used.intersection(each.jobs))
        used.update(each.jobs)
    return found


def _is_exact(moment_utc: str) -> bool:
    """Return whether this is a moment, not only a day, on which several allocations may begin."""
    return len(moment_utc) > len("2026-11-21")


def _may_be(head: Mapping[str, Any], allocation: Allocation) -> bool:
    """Return whether the file with this first line may hold the allocation under another name."""
    unlike = not head or head["name"] == allocation.name or not _is_exact(allocation.began_utc)
    return not unlike and moment(head["began_utc"]) == allocation.began


def _refuse_duplicates(path: Path, allocations: Sequence[Allocation]) -> None:
    by_start: dict[object, list[Allocation]] = {}
    for each in allocations:
        earlier = by_start.setdefault(each.began, [])
        duplicate = next((one for one in earlier if same(one, each)), None)
        if duplicate is not None:
            raise UsageError(f"allocations {duplicate.name} and {each.name} are the same allocation ({path}): omit one")
        earlier.append(each)


def _refuse_one_job(path: Path, held: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Raise UsageError for allocations of one job: they scatter less than those of several jobs, so limits would be too narrow."""
    found = of_one_job(held)
    if found is not None:
        one, other, job = found
        raise UsageError(f"{path}: {one} and {other} are both of {job}, so they are one allocation: measure each in its own job")


def _refuse_a_mixture(path: Path, origins: Sequence[tuple[str, bool]]) -> None:
    """Raise UsageError for imported and measured allocations together: their statistics differ. `origins` are (name, imported)."""
    imported, own = ([name for name, here in origins if here is is_imported] for is_imported in (True, False))
    if imported and own:
        raise UsageError(f"{path}: {imported[0]} was imported and {own[0]} measured here: keep them in two baselines")


def _refuse_a_bad_one(allocation: Allocation) -> None:
    """Raise UsageError for an allocation that is not good, since others are judged by it."""
    wrong = sum(measured.wrong for measured in allocation.cases.values())
    if wrong:
        raise UsageError(f"allocation {allocation.name} has {wrong} wrong elements, so it is not a valid baseline; omit it")
    if allocation.unfinished:
        raise UsageError(f"allocation {allocation.name} has {plural(allocation.unfinished, 'launch')} that stopped early: omit them")
    if allocation.slowed:
        raise UsageError(
            f"allocation {allocation.name} was slowed on purpose ({allocation.slowed}): it does not show the cluster's speed; omit it"
        )


def drop(path: Path, name: str) -> None:
    """Remove an allocation from the folder. Raises UsageError if it is not in there."""
    target = path / f"{Path(name).name}{ENDING}"
    try:
        target.unlink()
    except OSError as error:
        held = ", ".join(each.name for each in load(path).allocations)
        raise UsageError(f"allocation {name} is not in {path} ({error.strerror or error}): choose from {held}") from error
