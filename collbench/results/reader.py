"""Reading a run's folder. Its files are untrusted: invalid content becomes a warning, never a traceback."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.machine.peak.limits import limit_parts
from collbench.results.folder import CASES, EVENTS, RUN, SAMPLES
from collbench.results.row import FIGURES, SCHEMA, Row, Times, stored_operation
from collbench.results.store import parse_object, read_object
from collbench.untrusted import open_file, values_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LONGEST_LINE = 16 << 20  # bytes; a round of 20,000 places has about 3 MB
_LARGEST_LINES = 1 << 30  # bytes of a file of lines; 100,000 rows have about 300 MB
_MOST_VALUES = 1 << 25  # in the lines of a file, which stay in memory; a row has about 200, a row of another tool 130
_MOST_BAD = 10_000  # lines that cannot be read; a file with more is not a run's file
_LARGEST_ARRAY = 128 << 20  # bytes of one of a row's arrays
_T = TypeVar("_T")


class _ArrayPlace(msgspec.Struct, frozen=True):
    """Where an array is in samples.bin."""

    dtype: Annotated[str, Meta(pattern=r"^[<>|=]?[biuf][1248]\Z")]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=8)]
    offset: int


class Damage(str):
    """A warning about results that cannot be read."""


class Run(msgspec.Struct, frozen=True):
    """A stored run: run.json, rows in measuring order, events, and warnings about invalid content.

    `compared` has what comparisons use, by (kind, path), if it was read earlier; None: it is read from the folder when it is needed.
    """

    path: Path
    info: dict[str, Any] = msgspec.field(default_factory=dict)
    rows: list[Row] = msgspec.field(default_factory=list)
    events: list[dict[str, Any]] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)
    compared: Mapping[tuple[str, tuple[str, ...]], str] | None = None

    def __repr__(self) -> str:
        """Return the folder; the rows may be many."""
        return f"Run({str(self.path)!r})"

    @property
    def finished(self) -> bool:
        """Return whether run.json has an end time: the run was not killed."""
        return "finished_utc" in self.info

    @property
    def damaged(self) -> bool:
        """Return whether stored results are missing because they cannot be read. A run that was stopped is not damaged."""
        return any(isinstance(warning, Damage) for warning in self.warnings)

    def array(self, row: Row, name: str) -> NDArray[Any]:
        """Return one of the row's stored arrays. Raises UsageError if the row has none of that name, or samples.bin lacks it."""
        dtype, shape, offset = _checked_place(row.samples.get(name), f"array '{name}' of {row.operation} in {self.path}")
        length = math.prod(shape) * dtype.itemsize
        path = self.path / SAMPLES
        if length > _LARGEST_ARRAY:
            raise UsageError(f"array '{name}' in {path} would have {length} bytes, more than any row keeps: the row was altered")
        data = _slice(path, offset, length)
        if len(data) < length:
            raise UsageError(f"array '{name}' lies outside {path} (offset {offset}, {length} bytes): the file was cut or is another run's")
        import numpy as np

        try:
            return np.frombuffer(data, dtype=dtype).reshape(shape)
        except ValueError as error:
            raise UsageError(f"array '{name}' in {path} has no possible shape {shape}: the row was altered") from error


def read_run(path: Path) -> Run:
    """Return the run stored in `path`, up to its last finished case. Raises UsageError if it is missing or cannot be opened."""
    if not (_is_file(path / RUN) or _is_file(path / CASES)):
        raise UsageError(
            f"{path} is not a run folder (no {RUN}, no {CASES} in it): specify the folder that collbench printed, or the one of --out"
        )
    warnings: list[str] = []
    info = _read_info(path / RUN, warnings)
    rows = list(read_lines(path / CASES, row_from_json, warnings))
    events = list(read_lines(path / EVENTS, lambda values: values, warnings))
    if not info and not rows:
        raise UsageError(f"{path} is not a run folder that can be read ({'; '.join(warnings) or 'it is empty'}): specify another one")
    return Run(path, info, rows, events, warnings)


def row_from_json(values: dict[str, Any]) -> Row:
    """Return the row in `values`, with every field's type checked; unknown keys are left out. Raises ValueError naming the first misfit."""
    fields = with_limits(values)
    for derived in ("expectation", "own"):  # of a report's JSON: what is derived from a run is not read as its data
        fields.pop(derived, None)
    if isinstance(fields.get("operation"), str):
        fields["operation"] = stored_operation(fields["operation"])
    time_s = fields.get("time_s")
    if isinstance(time_s, dict) and "p50" in time_s and time_s["p50"] is None:  # NaN or infinite: the row has no figures
        fields["na"] = fields.get("na") or "its time is not a number"
        fields |= dict.fromkeys(FIGURES)
    return decode_record(fields, Row)


def with_limits(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record with the limiting links of its ceilings decoded."""
    decoded = dict(values)
    for name in ("ceiling", "hard_bound"):
        ceiling = decoded.get(name)
        if isinstance(ceiling, dict) and "limited_by_parts" in ceiling:
            decoded[name] = {**ceiling, "limited_by_parts": limit_parts(ceiling["limited_by_parts"])}
    return decoded


def decode_record(values: Mapping[str, Any], kind: type[_T]) -> _T:
    """Return the dataclass from JSON values; unknown keys are left out. Raises ValueError naming the first field that does not fit.

    Nothing that a record, or a time, ceiling or record in it, holds as a number of its own can be negative.
    """
    try:
        record = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).rstrip("`").partition(" - at `$.")
        if not where or "missing" in problem:
            raise ValueError(f"fields are missing or misplaced ({error})") from error
        path = re.sub(r"(?:\[[\d.]+\])+$", "", where.partition("[...]")[0])  # of a list or an object the whole
        value: Any = values
        for key in re.findall(r"[^.\[\]]+", path):
            value = value[int(key)] if isinstance(value, list | tuple) else value[key]
        raise misfit(path, value) from error
    check_signs(record, "")
    return record


def misfit(name: str, value: Any) -> ValueError:
    """Return the error for a field with a value that it cannot have."""
    return ValueError(f"'{name}' is {str(value)[:40]!r}")


def check_signs(record: Any, path: str) -> None:
    """Raise ValueError for a negative number in a record, or in a time, ceiling or record of it. path: before the field's name."""
    from collbench.records import Record  # which imports this module

    names = record.__struct_fields__ if isinstance(record, msgspec.Struct) else vars(record)
    for name in names:
        value = getattr(record, name)
        if isinstance(value, int | float) and value < 0:
            raise misfit(path + name, value)
        for inner in value if isinstance(value, list | tuple) else (value,):
            if isinstance(inner, Times | Ceiling | Record):  # other values, such as an overlap, may have a sign
                check_signs(inner, f"{path}{name}.")


def _read_info(path: Path, warnings: list[str]) -> dict[str, Any]:
    try:
        info = read_object(path) if _is_file(path) else parse_object(b"")
    except OSError as error:
        raise UsageError(_cannot_read(path, error)) from error
    except ValueError as error:
        warnings.append(Damage(f"{path} is {error}: what was run is unknown"))
        return {}
    schema = info.get("schema")
    if not isinstance(schema, int) or schema is True or schema < 1:
        named = "names no schema" if schema is None else f"names a schema that there never was ({str(schema)[:20]!r})"
        warnings.append(f"{path} {named}: it is read as schema {SCHEMA}")
    elif schema > SCHEMA:
        warnings.append(
            f"{path} was written by a newer collbench (schema {schema}, this one knows {SCHEMA}): what is unknown here is left out; "
            f"{_reader_of(info)} reads all of it"
        )
    return info


def _reader_of(info: Mapping[str, Any]) -> str:
    """Return the version to update to: the one that wrote the file, as the file names it."""
    version = info.get("collbench")
    is_valid = isinstance(version, str) and re.fullmatch(r"\d+(?:\.\w+){0,5}", version)
    return f"collbench {version} or newer" if is_valid else "the version that wrote it"


def read_lines(path: Path, parse: Callable[[dict[str, Any]], Any], warnings: list[str]) -> Iterator[Any]:
    """Yield what `parse` returns for each line's object. A ValueError of `parse` becomes a warning; a missing file has no lines."""
    refused = _Counted()
    unknown = _Counted()
    for number, line in enumerate(_lines(path, warnings), start=1):
        if refused.number == _MOST_BAD:
            warnings.append(Damage(f"{path}: what follows line {number - 1} is left out, too: too many of its lines cannot be read"))
            break
        strange = list[str]()
        try:
            yield parse(parse_object(line, strange))
        except (ValueError, RecursionError) as error:
            if line.endswith(b"\n"):
                refused.add(f"line {number}: {error}")
            else:
                warnings.append(f"{path} ends in the middle of line {number}: the run was stopped there")
        unknown.add(*strange)
    if refused.number:
        lines = "line is" if refused.number == 1 else "lines are"
        warnings.append(Damage(f"{path}: {refused.number} {lines} left out, the first is {refused.first}"))
    if unknown.number:
        warnings.append(f"{path} holds what no measurement gives ({unknown.first[:20]}, {unknown.number} in all): such figures are unknown")


class _Counted(msgspec.Struct):
    """The number of texts of a kind, and the first one, since a file may have any number of them."""

    number: int = 0
    first: str = ""

    def add(self, *texts: str) -> None:
        """Count these texts."""
        self.first = self.first or (texts[0] if texts else "")
        self.number += len(texts)


def _lines(path: Path, warnings: list[str]) -> Iterator[bytes]:
    """Yield lines up to the largest number that a run writes, with a warning beyond it; none if it is not a regular file."""
    size = 0
    values = 0
    if not _is_file(path):
        return
    try:
        with open_file(path) as file:
            while line := file.readline(_LONGEST_LINE):
                size += len(line)
                values += values_in(line)
                if size > _LARGEST_LINES or values > _MOST_VALUES or (len(line) == _LONGEST_LINE and line[-1:] != b"\n"):
                    warnings.append(f"{path} holds more than any run writes: what follows byte {size - len(line)} is left out")
                    return
                yield line
    except OSError as error:
        raise UsageError(_cannot_read(path, error)) from error


def _slice(path: Path, offset: int, length: int) -> bytes:
    """Return at most `length` bytes from `offset`, never more than the file has: a row may claim any length."""
    if not _is_file(path):
        return b""
    try:
        with open_file(path) as file:
            if file.seek(0, os.SEEK_END) <= offset:
                return b""
            file.seek(offset)
            return file.read(length) or b""
    except OSError as error:
        raise UsageError(_cannot_read(path, error)) from error


def _is_file(path: Path) -> bool:
    """Return whether it is a regular file; a pipe or a device in its place would block forever."""
    try:
        return path.is_file()
    except OSError:
        return False


def _cannot_read(path: Path, error: OSError) -> str:
    return f"{path} cannot be read ({error.strerror or error}): check its permissions and its disk"


def _checked_place(place: Any, subject: str) -> tuple[Any, tuple[int, ...], int]:
    if not isinstance(place, dict):
        raise UsageError(f"{subject} was not stored with this row")
    import numpy as np

    try:
        array_place = decode_record(place, _ArrayPlace)
        return np.dtype(array_place.dtype), array_place.shape, array_place.offset
    except ValueError as error:
        raise UsageError(f"{subject}: {str(place)[:80]} is not a valid position in {SAMPLES}: the row was altered") from error
    except TypeError as error:  # for example a float of one byte
        raise UsageError(f"{subject} has an unknown number type '{place['dtype']}': the row was altered") from error
