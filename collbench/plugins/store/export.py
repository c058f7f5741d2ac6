"""The results of a store as Parquet files, partitioned by month and operation, for data lakes and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path
from urllib.parse import quote

import msgspec
from sqlalchemy import ColumnElement, select

from collbench.errors import UsageError
from collbench.plugins.store.database import Database, Record
from collbench.plugins.store.reading import RunSelection
from collbench.plugins.store.schema import CASES, HISTORY, RUNS

UNKNOWN_MONTH = "unknown"
_AT_ONCE = 100_000  # results of a row group
_COLUMNS = tuple(column for column in HISTORY.c if column.name != "started")


class Exported(msgspec.Struct, frozen=True):
    """The number of results and of files that were written."""

    results: int
    files: int


def export(database: Database, folder: Path, runs: RunSelection | None = None) -> Exported:
    """Write the results of the selected runs below a new or empty folder: month=2026-11/operation=allreduce/part-0.parquet.

    The columns are those of the view `history`, in SI units, with their meaning as metadata; hive-partitioned readers add month and
    operation. Raises UsageError without pyarrow, for a folder that is not empty, and if it cannot be written.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(f"Parquet files need pyarrow ({error}): install collbench[pandas]") from error
    _check_empty(folder)
    kinds = {int: pa.int64(), float: pa.float64(), str: pa.string()}
    schema = pa.schema([pa.field(column.name, kinds[column.type.python_type], metadata={"about": column.doc}) for column in _COLUMNS])
    results = files = 0
    try:
        for partition, records in _partitions(database, runs or RunSelection()):
            (folder / partition).mkdir(parents=True)
            with parquet.ParquetWriter(folder / partition / "part-0.parquet", schema, compression="zstd") as writer:
                while part := list(islice(records, _AT_ONCE)):
                    arrays = [pa.array(values, field.type) for values, field in zip(zip(*part, strict=True), schema, strict=True)]
                    writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                    results += len(part)
            files += 1
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror or error}): make room there, or choose another folder") from error
    return Exported(results, files)


def _check_empty(folder: Path) -> None:
    """Raise UsageError for a folder that has files: an export never mixes with another one."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} is not an empty folder: choose a new one, so that nothing is mixed or lost")
    except OSError as error:
        raise UsageError(f"{folder} cannot be read ({error.strerror or error}): choose another folder") from error


def _partitions(database: Database, runs: RunSelection) -> Iterator[tuple[str, Iterator[Record]]]:
    """Yield the folder of each partition with its results, in the order of time."""
    months = sorted({_month(start) for (start,) in database.rows(select(RUNS.c.started_s).where(*runs.conditions()).distinct())})
    operations = [name for (name,) in database.rows(select(CASES.c.operation).distinct().order_by(CASES.c.operation))]
    for month in months:
        query = select(*_COLUMNS).where(*runs.of_results(HISTORY.c.run_id), *_span(month)).order_by(HISTORY.c.started_s, HISTORY.c.run_id)
        for operation in operations:
            results = database.stream(query.where(HISTORY.c.operation == operation))
            for _, records in groupby(results, lambda record: 0):  # none: no file
                yield f"month={month}/operation={quote(operation, safe='')}", records


def _month(start_s: float | None) -> str:
    return UNKNOWN_MONTH if start_s is None else datetime.fromtimestamp(start_s, UTC).strftime("%Y-%m")


def _span(month: str) -> Sequence[ColumnElement[bool]]:
    if month == UNKNOWN_MONTH:
        return (HISTORY.c.started_s.is_(None),)
    first = datetime.fromisoformat(f"{month}-01").replace(tzinfo=UTC)
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return HISTORY.c.started_s >= first.timestamp(), HISTORY.c.started_s < after.timestamp()
