"""Read token counts per expert from CSV, NPZ or Parquet, for `workload expert-parallel --routing FILE`.

CSV and Parquet have a row for each step, layer and expert, with the columns `step`, `layer`, `expert`, `tokens`, and `rank` where the
tokens of each rank are counted separately. NPZ has an array `tokens`: [step, layer, expert] or [step, layer, rank, expert].
Every step must have every layer, rank and expert; an expert without tokens has the count 0.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from collbench.errors import UsageError
from collbench.plugins.training.workloads.routing import MOST_TOKENS
from collbench.untrusted import read_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LARGEST_BYTES = 256 * 2**20  # of a file
_MOST_COUNTS = 2**24  # 128 MiB
_MOST_LINES = 2**22  # of CSV, which takes about 4 s
_COLUMNS = ("step", "layer", "expert", "tokens")
_OPTIONAL = "rank"
_MOST_NUMBER = 10**9  # of a step, layer, rank or expert
_REMEDY = "give the columns step, layer, expert, tokens, and rank if the tokens of each rank are counted separately"
_ARRAY = "save an array tokens[step, layer, expert] or tokens[step, layer, rank, expert] of integers with numpy.savez"


class TokenCounts(msgspec.Struct, frozen=True, eq=False):
    """The token counts of a file.

    steps   the numbers of the steps, ascending
    tokens  [steps × layers × ranks × experts]; 1 rank where the file does not count by rank
    ranked  whether the file counts by rank
    """

    steps: tuple[int, ...]
    tokens: NDArray[np.int64]
    ranked: bool


def read_counts(path: Path) -> TokenCounts:
    """Return the token counts of a file. Raises UsageError, one sentence with the file, the place and the remedy."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"routing file '{path}': the suffix must be one of {', '.join(_READERS)}")
    try:
        raw = read_file(path, _LARGEST_BYTES)
    except OSError as error:
        raise UsageError(f"routing file '{path}' cannot be read ({error.strerror or error}): name a .csv, .npz or .parquet file") from error
    return reader(raw, path)


def _broken(path: Path, what: str, remedy: str = _REMEDY) -> UsageError:
    return UsageError(f"routing file '{path}'{what}: {remedy}")


# Columns, of CSV and Parquet.


def _from_columns(columns: Mapping[str, NDArray[Any]], path: Path) -> TokenCounts:
    """Return the counts from integer columns of equal length."""
    import numpy as np

    names = [name for name in ("step", "layer", "rank", "expert") if name in columns]
    if not len(columns["tokens"]):
        raise _broken(path, " has no rows")
    for name in (*names, "tokens"):
        _check_range(columns[name], name, path)
    axes = []
    for name in names:
        first, last = int(columns[name].min()), int(columns[name].max())
        begin = first if name in ("step", "layer") else 0  # the first layers of a model may have no experts
        axes.append((begin, last - begin + 1))
    number = int(np.prod([float(size) for _, size in axes]))
    if number > _MOST_COUNTS and len(columns["tokens"]) >= number:
        raise _broken(path, f" has more than {_MOST_COUNTS:,} counts", "keep fewer steps")
    # as large as the rows allow: a sparse file must not take memory
    index = np.zeros(len(columns["tokens"]), np.int64)
    if number <= max(_MOST_COUNTS, len(index)):
        for name, (begin, size) in zip(names, axes, strict=True):
            index = index * size + (columns[name] - begin)
        seen = np.bincount(index, minlength=number)
        if (twice := np.flatnonzero(seen > 1)).size:
            raise _broken(path, f" has {_place(int(twice[0]), names, axes)} twice", "keep one row for each")
        absent = np.flatnonzero(seen == 0)
        if not absent.size:
            tokens = np.zeros(number, np.int64)
            tokens[index] = columns["tokens"]
            sizes = [size for _, size in axes]
            shape = sizes if "rank" in names else [*sizes[:2], 1, sizes[2]]
            start, count = axes[0]
            return TokenCounts(tuple(range(start, start + count)), tokens.reshape(shape), "rank" in names)
        raise _missing(path, names, axes, columns, int(absent[0]))
    raise _missing(path, names, axes, columns, None)


def _missing(
    path: Path, names: Sequence[str], axes: Sequence[tuple[int, int]], columns: Mapping[str, NDArray[Any]], at: int | None
) -> UsageError:
    """Return the error of rows that are missing: a whole step, if one is, else the first row."""
    import numpy as np

    for name, (begin, _) in zip(names, axes, strict=True):
        known = np.unique(columns[name])
        gap = np.flatnonzero(known != begin + np.arange(len(known)))
        if gap.size:
            return _broken(path, f": {name} {begin + int(gap[0])} is missing, but {name} {int(known[gap[0]])} exists", "write all of them")
    where = f": {_place(at, names, axes)} is missing" if at is not None else " has missing rows"
    return _broken(path, where, "write a row with 0 tokens for an expert without tokens")


def _place(index: int, names: Sequence[str], axes: Sequence[tuple[int, int]]) -> str:
    """Return "step 3, layer 0, expert 5"."""
    found = []
    for name, (begin, size) in reversed(list(zip(names, axes, strict=True))):
        index, at = divmod(index, size)
        found.append(f"{name} {begin + at}")
    return ", ".join(reversed(found))


def _check_range(values: NDArray[Any], name: str, path: Path) -> None:
    """Raise UsageError for a value that cannot be a count or a number of a step, layer, rank or expert."""
    import numpy as np

    most = MOST_TOKENS if name == "tokens" else _MOST_NUMBER
    bad = np.flatnonzero((values < 0) | (values > most))
    if bad.size:
        what = "is negative" if values[bad[0]] < 0 else f"exceeds {most:,}"
        raise _broken(path, f", row {int(bad[0]) + 1}: {name} {int(values[bad[0]])} {what}", f"use whole numbers from 0 to {most:,}")


def _read_csv(raw: bytes, path: Path) -> TokenCounts:
    import csv

    import numpy as np

    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _broken(path, " is not text") from error
    if text.count("\n") > _MOST_LINES:
        raise _broken(path, f" has more than {_MOST_LINES:,} lines", "use .npz or .parquet")
    try:
        lines = csv.reader(io.StringIO(text, newline=""))
        header = [name.strip().lower() for name in next(lines, [])]
        places = _places_of(header, path)
        values: list[list[int]] = [[] for _ in places]
        for line in lines:
            if not line:
                continue
            if len(line) != len(header):
                raise _broken(path, f", line {lines.line_num}: {len(line)} fields, but the header has {len(header)}")
            for column, place in zip(values, places.values(), strict=True):
                column.append(_whole(line[place], lines.line_num, path))
    except csv.Error as error:
        raise _broken(path, f" is not valid CSV ({error})") from error
    return _from_columns({name: np.array(column, np.int64) for name, column in zip(places, values, strict=True)}, path)


def _places_of(header: Sequence[str], path: Path) -> dict[str, int]:
    """Return the position of each column that is used."""
    for name in _COLUMNS:
        if header.count(name) != 1:
            raise _broken(path, f" {'has no column' if name not in header else 'has more than one column'} '{name}'")
    if header.count(_OPTIONAL) > 1:
        raise _broken(path, f" has more than one column '{_OPTIONAL}'")
    return {name: header.index(name) for name in (*_COLUMNS, _OPTIONAL) if name in header}


def _whole(text: str, line: int, path: Path) -> int:
    typed = text.strip()
    digits = typed.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        shown = "".join(letter if letter.isprintable() else "?" for letter in typed[:40])
        raise _broken(path, f", line {line}: '{shown}' is not a whole number")
    return int(typed)


def _read_parquet(raw: bytes, path: Path) -> TokenCounts:
    import numpy as np

    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(f"routing file '{path}': Parquet needs pyarrow: pip install 'collbench[pandas]', or use .npz") from error
    try:
        file = parquet.ParquetFile(io.BytesIO(raw))
        about, schema = file.metadata, file.schema_arrow
        places = _places_of(list(schema.names), path)
        for name in places:
            if not arrow.types.is_integer(schema.field(name).type):
                raise _broken(path, f": column '{name}' has the type {schema.field(name).type}, not integer")
        if not 0 <= about.num_rows <= _MOST_COUNTS:
            raise _broken(path, f" has {about.num_rows:,} rows; at most {_MOST_COUNTS:,} are supported", "keep fewer steps")
        table = file.read(columns=list(places))
        if any(table.column(name).null_count for name in places):
            raise _broken(path, " has missing values")
        columns = {name: table.column(name).to_numpy() for name in places}
    except (arrow.ArrowException, OSError, ValueError, MemoryError, RecursionError) as error:
        raise _broken(path, " is not valid Parquet") from error
    for name, values in columns.items():
        if values.dtype == np.uint64 and (values > MOST_TOKENS).any():
            raise _broken(path, f": column '{name}' has a value above {MOST_TOKENS:,}")
    return _from_columns({name: values.astype(np.int64) for name, values in columns.items()}, path)


# An array, of NPZ.


def _read_npz(raw: bytes, path: Path) -> TokenCounts:
    import numpy as np

    tokens = _array_of(_member(raw, path), path)
    if tokens.ndim not in (3, 4) or not tokens.size:
        raise _broken(path, f": the array tokens has the shape {list(tokens.shape)}", _ARRAY)
    if tokens.size > _MOST_COUNTS:
        raise _broken(path, f" has more than {_MOST_COUNTS:,} counts", "keep fewer steps")
    bad = np.argwhere((tokens < 0) | (tokens > MOST_TOKENS))
    if len(bad):
        value, where = tokens[tuple(bad[0])], ", ".join(map(str, bad[0]))
        what = "is negative" if value < 0 else f"exceeds {MOST_TOKENS:,}"
        raise _broken(path, f": tokens[{where}] = {value} {what}", f"use whole numbers from 0 to {MOST_TOKENS:,}")
    ranked = tokens.ndim == 4
    return TokenCounts(tuple(range(len(tokens))), (tokens if ranked else tokens[:, :, None, :]).astype(np.int64), ranked)


def _member(raw: bytes, path: Path) -> bytes:
    """Return the bytes of the array `tokens` in an NPZ, which is a ZIP archive."""
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            about = archive.getinfo("tokens.npy")
            if about.file_size > 8 * _MOST_COUNTS + 2**16:
                raise _broken(path, f" has more than {_MOST_COUNTS:,} counts", "keep fewer steps")
            return archive.read(about)
    except KeyError as error:
        raise _broken(path, " has no array 'tokens'", _ARRAY) from error
    except (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, NotImplementedError, EOFError, OSError, MemoryError) as error:
        raise _broken(path, " is not a valid NPZ file", _ARRAY) from error


def _array_of(data: bytes, path: Path) -> NDArray[Any]:
    """Return the integers of a .npy file. Its data is never unpickled, and its size is compared with the header before it is used."""
    from tokenize import TokenError  # numpy also tries headers of Python 2

    import numpy as np
    from numpy.lib import format as npy

    file = io.BytesIO(data)
    try:
        header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
        shape, in_columns, dtype = header(file)
        if dtype.hasobject or dtype.kind not in "iu":
            raise _broken(path, f": the array tokens has the type {dtype}, not an integer", _ARRAY)
        number = 1
        for size in shape:
            number *= int(size)
        if any(size < 0 for size in shape) or number * dtype.itemsize != len(data) - file.tell():
            raise ValueError("the size differs from the header's")
        values = np.frombuffer(data, dtype, offset=file.tell())
        return values.reshape(shape, order="F" if in_columns else "C")
    except (ValueError, KeyError, TypeError, SyntaxError, TokenError, OverflowError, MemoryError, RecursionError, EOFError) as error:
        raise _broken(path, ": the array tokens is damaged", _ARRAY) from error


_READERS: dict[str, Callable[[bytes, Path], TokenCounts]] = {".csv": _read_csv, ".npz": _read_npz, ".parquet": _read_parquet}
