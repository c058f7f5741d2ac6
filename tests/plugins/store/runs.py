"""Run folders for tests of the store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import text

from collbench.plugins.store.database import Database, open_store
from collbench.plugins.store.writing import Changes, Writer, add_all, find_all
from collbench.results.folder import FinishedRun, write_all
from collbench.results.row import Row
from tests.results.rows import make_row, make_times

SIZES = (8, 64 << 10, 64 << 20)


def night(folder: Path, number: int, *, hosts: Sequence[str] = ("node1",), slower: float = 1.0, **info: Any) -> Path:
    """The run of a night in November 2026: an all-reduce at three sizes."""
    rows = [make_row(size, time_s=make_times((1e-5 + size / 20e9) * slower), busbw_bytes_per_s=42e9 / slower) for size in SIZES]
    return run(folder / f"night-{number}", rows, hosts=list(hosts), started_utc=f"2026-11-{number:02d}T02:00:00.000Z", **info)


def run(path: Path, rows: Sequence[Row], **info: Any) -> Path:
    write_all([FinishedRun(path, "allreduce", info, rows)])
    return path


def added(name: str, *paths: Path, labels: Sequence[str] = ()) -> Changes:
    database = open_store(name, write=True)
    try:
        return add_all(Writer(database), find_all(paths), labels)
    finally:
        database.close()


def rows(name: str, sql: str) -> list[tuple[Any, ...]]:
    database: Database = open_store(name)
    try:
        return [tuple(record) for record in database.rows(text(sql))]
    finally:
        database.close()
