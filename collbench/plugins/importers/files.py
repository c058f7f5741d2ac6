"""Files of other tools: their bytes within bounds, the reader that fits, and their tables with the file that each is from."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.readers.text import printable
from collbench.operations.dtypes import dtype_named
from collbench.plugins.importers.failures import FailureLine, failure_lines, with_failures, wrong_data
from collbench.plugins.importers.importer import UserInput, lines_of
from collbench.plugins.importers.rows import operation_named, short
from collbench.plugins.importers.store import FileTable, Source, read_lines, store, together
from collbench.results.folder import CASES, RUN
from collbench.untrusted import open_file, uncollected

STDIN = Path("-")
_LARGEST = 256 << 20  # bytes; in memory a line takes about 60 more
_LONGEST_PATH = 4096


def user_input(
    ranks: int | None = None, nodes: int | None = None, operation: str | None = None, dtype: str | None = None
) -> UserInput:  # fmt: skip
    """Return what the user knows about tables and their files lack. Raises UsageError for an unknown operation or data type."""
    operation_name = None if operation is None else operation_named(operation).name
    return UserInput(ranks, nodes, operation_name, None if dtype is None else dtype_named(dtype).name)


def read_tables(paths: Iterable[Path], additions: UserInput, format: str | None = None, strict: bool = False) -> list[FileTable]:
    """Return the tables of all files, in their order.

    additions  what the files may lack
    format     the name of a reader; None: the one that recognizes the lines
    strict     whether a table that cannot be read is an error, instead of being skipped

    Raises UsageError, with the name of the file, if it cannot be read or has no table, and for two files with the same content.
    """
    tables_by_file = [_read(path, additions, format, strict) for path in paths]
    names: dict[str, str] = {}  # by SHA-256
    for source in [tables[0].source for tables in tables_by_file]:
        if source.sha256 in names:  # as launches they would not be independent
            raise UsageError(f"{names[source.sha256]} and {source.name} have the same content: name one of them")
        names[source.sha256] = source.name
    return [table for tables in tables_by_file for table in tables]


def _read(path: Path, additions: UserInput, format: str | None, strict: bool) -> list[FileTable]:
    data = _bytes(path)
    name = "stdin" if path == STDIN else path.name
    failures: list[FailureLine] = []
    try:
        lines = lines_of(data)
        failures = failure_lines(lines)
        readings = read_lines(lines, format, replace(additions, file=name))
        skipped = [table for _, reading in readings for table in reading.skipped]
        tables = [(reader, run) for reader, reading in readings for run in reading.runs]
        if not tables:
            reader = readings[0][0].name
            raise UsageError(f"as {reader} output it has no table with a size and a time: name the whole output, or use --as FORMAT")
        runs, skipped = with_failures([run for _, run in tables], failures, skipped)
        if skipped and strict:
            raise UsageError(f"{skipped[0].reason} (with --strict no table is skipped; {len(skipped)} cannot be read)")
    except UsageError as error:
        wrong = wrong_data(failures)  # no row has it
        more = f" (the file reports wrong data: line {wrong[0].number}: {wrong[0].text})" if wrong else ""
        raise UsageError(f"{short(name)} cannot be imported: {error}{more}") from error
    sha256 = hashlib.sha256(data).hexdigest()
    sources = [Source(short(name), len(data), sha256, reader.name) for reader, _ in tables]
    return [
        FileTable(source, run, () if number else tuple(skipped)) for number, (source, run) in enumerate(zip(sources, runs, strict=True))
    ]


def _bytes(path: Path) -> bytes:
    """Return the content of a file or of stdin. Raises UsageError if it cannot be read, or is larger than 256 MiB."""
    shown = printable(str(path), _LONGEST_PATH)
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(_LARGEST + 1)
        elif not path.is_file():
            remedy = "; `collbench report` takes this folder as it is" if (path / RUN).exists() else ""
            if path.is_fifo():
                remedy = "; a pipe is read as -"
            raise UsageError(f"{shown} is not a file: name what the tool printed{remedy}")
        elif path.name in (RUN, CASES):
            raise UsageError(f"{shown} is collbench's own: `collbench report` takes its folder as it is")
        else:
            with open_file(path) as file:
                data = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read ({error.strerror or error}): check its permissions") from error
    if len(data) > _LARGEST:
        raise UsageError(f"{shown} is larger than {_LARGEST >> 20} MiB: cut out the part with the tables")
    return data


def read_files(
    files: Sequence[Path],
    folder: Path,
    *,
    format: str | None,
    ranks: int | None,
    nodes: int | None,
    operation: str | None,
    dtype: str | None,
) -> list[Path]:
    """Import the files into run folders below a folder, as `collbench import` does; return the run folders. Raises UsageError."""
    with uncollected():
        tables = read_tables(files, user_input(ranks, nodes, operation, dtype), format)
        name = re.sub(r"[^\w.+-]", "_", files[0].name)[:80].strip(".") or "imported"
        return store(together(tables), folder / name, ["import", *map(str, files)], None, None)
