"""The store with a year of nightly runs of 1,000 nodes, 10 million results: time of a query and of an addition, size, several writers.

The same data is in SQLite with results clustered by case (as collbench has it), in SQLite with results clustered by run, in PostgreSQL,
and in DuckDB, for the decision between them. Filling is not measured.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.figures import MEBIBYTES, SECONDS, Figure, Outcome, timed
from benchmarks.launches import LaunchFailed
from collbench.store import schema
from collbench.store.database import Database, open_store
from collbench.store.folders import read_folder
from collbench.store.query import Query, records
from collbench.store.reading import RunSelection
from collbench.store.writing import Writer
from tests.results.rows import make_row, make_times
from tests.results.rows import store as write_run
from tests.store.postgresql import NoServer, server

NODES, NIGHTS, SIZES = 1000, 365, 28
_QUERY_S, _ADD_S = 0.1, 1.0
_WRITERS, _RUNS_EACH = 4, 25
_FIRST_S = 1_767_225_600.0  # 2026-01-01
_BY_RUN = replace(schema.RESULTS, key=("run_id", "number"), indexes=(("case_id", "run_id"),))
_FIGURES = tuple(each.name for each in schema.RESULTS.columns[3:])
_ADD = """
import sys
from pathlib import Path
from collbench.store.database import open_store
from collbench.store.writing import Writer
writer = Writer(open_store(sys.argv[1], write=True))
for path in sys.argv[2:]:
    assert writer.add(Path(path))[0] == "added"
"""


def measure(count: int = 20, nodes: int = NODES, nights: int = NIGHTS, sizes: int = SIZES) -> Outcome:
    """`count` queries of a case's history on a node, and additions of runs, on each database."""
    figures: list[Figure] = []
    raw: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        runs = Path(folder) / "runs"
        for name, stored in _databases(Path(folder)):
            with stored as found:
                one = _on(found, runs, count, (nodes, nights, sizes))
                raw.append({"database": name, **one})
                figures += _figures(name, one)
        duckdb = _on_duckdb(Path(folder), count, (nodes, nights, sizes))
    raw.append({"database": "DuckDB", **duckdb})
    figures += _figures("DuckDB", duckdb)
    how = (
        f"{nodes:,} nodes, a run of {sizes} cases each in {nights} nights: {nodes * nights * sizes:,} results. History: all results of one "
        f"case on one node ({nights} records), by the code of `collbench store query`. Addition: reading a run folder and adding it. "
        f"Writers: {_WRITERS} processes add {_RUNS_EACH} runs of {sizes} cases each at the same time, start of Python included. "
        "DuckDB has the same columns, through its own Python package."
    )
    return Outcome("store", how, figures, raw)


def _figures(name: str, found: dict[str, Any]) -> Iterator[Figure]:
    yield timed(f"{name}: history of a case", found["history_s"], SECONDS, below=_QUERY_S)
    yield timed(f"{name}: addition of {SIZES} cases", found["add_s"], SECONDS, below=_ADD_S)
    if found["add_large_s"]:
        yield timed(f"{name}: addition of 1,000 cases", found["add_large_s"], SECONDS, below=_ADD_S)
    yield Figure(f"{name}: size", f"{MEBIBYTES.show(found['bytes'])} MiB")
    yield Figure(f"{name}: {_WRITERS} writers", found["writers"])


@dataclass(frozen=True)
class _Stored:
    """A store that can be opened by its name, and how its size is read."""

    name: str
    size: Any


def _databases(folder: Path) -> Iterator[tuple[str, Any]]:
    @contextmanager
    def sqlite(results: schema.Table) -> Iterator[_Stored]:
        tables = tuple(results if table.name == "results" else table for table in schema.TABLES)
        path = folder / "runs.db"
        with patch.object(schema, "TABLES", tables):
            open_store(str(path), write=True).close()
        yield _Stored(str(path), lambda: path.stat().st_size)
        path.unlink()

    @contextmanager
    def postgresql() -> Iterator[_Stored]:
        with ExitStack() as stack:
            running = stack.enter_context(server(shared_buffers="512MB", fsync="on", max_wal_size="4GB"))
            size = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'collbench'::regnamespace"
            yield _Stored(running.url, lambda: int(running.sql(size)))

    yield "SQLite, by case", sqlite(schema.RESULTS)
    yield "SQLite, by run", sqlite(_BY_RUN)
    with suppress(NoServer, ImportError):
        import psycopg  # noqa: F401

        yield "PostgreSQL", postgresql()


def _on(stored: _Stored, runs: Path, count: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Fill a store and return its figures: seconds of queries and additions, bytes, and what several writers did."""
    nodes, nights, sizes = shape
    database = open_store(stored.name, write=True)
    start = time.perf_counter()
    fill(database, nodes, nights, sizes)
    filled_s = time.perf_counter() - start
    size = stored.size()
    queries = history_s(database, nodes, sizes, count)
    writer = Writer(database)
    added = [list(_additions(writer, runs, cases, count, stored.name)) for cases in (sizes, 1000)]
    database.close()
    writers = _several_writers(stored.name, runs, sizes)
    return {"history_s": queries, "add_s": added[0], "add_large_s": added[1], "bytes": size, "writers": writers, "filled_s": filled_s}


def _run(path: Path, cases: int, number: int) -> Path:
    if not path.exists():
        rows = [make_row(8 * (1 + case), time_s=make_times(1e-5 + number * 1e-9)) for case in range(cases)]
        write_run(path, rows, hosts=[f"node{number}"], started_utc=f"2027-01-01T00:{number % 60:02d}:00Z", collbench="0.1.0")
    return path


def _additions(writer: Writer, runs: Path, cases: int, count: int, name: str) -> Iterator[float]:
    for number in range(count):
        path = _run(runs / f"{abs(hash(name))}-{cases}-{number}", cases, number)
        start = time.perf_counter()
        writer.add(path)
        yield time.perf_counter() - start


def _several_writers(name: str, runs: Path, cases: int) -> str:
    """Return how long the writers took, and whether all runs are there; raises LaunchFailed if one of them failed."""
    parts = [
        [_run(runs / f"{abs(hash(name))}-w{writer}-{number}", cases, number) for number in range(_RUNS_EACH)] for writer in range(_WRITERS)
    ]
    start = time.perf_counter()
    processes = [subprocess.Popen([sys.executable, "-c", _ADD, name, *map(str, part)], stderr=subprocess.PIPE, text=True) for part in parts]
    errors = [process.communicate()[1][-300:] for process in processes]
    wall_s = time.perf_counter() - start
    if any(process.returncode for process in processes):
        raise LaunchFailed(f"a writer failed: {next(filter(None, errors))}")
    return f"{wall_s:.1f} s, {_WRITERS * _RUNS_EACH} of {_WRITERS * _RUNS_EACH} runs"


# The year of runs: the same figures on each database.


def fill(database: Database, nodes: int, nights: int, sizes: int) -> None:
    """Insert the runs of all nodes, night by night, as `store add` would: node 3's run of night 5 is number 1 + 5 * nodes + 2."""
    writer = Writer(database)
    with tempfile.TemporaryDirectory() as folder:
        template = read_folder(_template(Path(folder), sizes))
    with database.transaction():
        writer._put_run(template, ())
    [(template_id,)] = database.rows("SELECT max(run_id) FROM runs")
    shared = database.rows("SELECT remark_id, ceiling_id FROM results WHERE run_id = ? LIMIT 1", [template_id])[0]
    cases = [case for (case,) in database.rows("SELECT case_id FROM results WHERE run_id = ? ORDER BY number", [template_id])]
    [(info, facts)] = database.rows("SELECT info, facts FROM runs WHERE run_id = ?", [template_id])
    for table in ("results", "run_nodes", "runs"):
        with database.transaction():
            database.rows(f"DELETE FROM {table} WHERE run_id = ?", [template_id])
    with database.transaction():
        database.insert("INSERT INTO nodes (node_id, name) VALUES (?, ?)", [(1000 + node, f"host{node}") for node in range(nodes)])
    for night in range(nights):
        with database.transaction():
            for table, rows in _night(night, nodes, cases, shared, (info, facts)):
                _insert(database, table, rows)
    with database.transaction():
        database.rows("ANALYZE")


def _insert(database: Database, table: str, rows: list[dict[str, Any]]) -> None:
    names = ", ".join(rows[0])
    if database.dialect is schema.POSTGRESQL:
        connection: Any = vars(database)["_connection"]
        with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(tuple(row.values()))
        return
    database.insert(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(rows[0]))})", (tuple(row.values()) for row in rows))


def _template(folder: Path, sizes: int) -> Path:
    rows = [make_row(8 << size) for size in range(sizes)]
    software = [{"hosts": ["host"], "kernel": "6.1", "glibc": "2.36", "mpi": "MPICH 4.3.0", "nccl": "2.27.3"}]
    return write_run(folder / "run", rows, hosts=["template"], software=software, command=["collbench", "allreduce"], collbench="0.1.0")


def _night(night: int, nodes: int, cases: list[int], shared: tuple[Any, ...], info: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    first, start_s = 1 + night * nodes + 1_000_000, _FIRST_S + night * 86_400.0
    same = {
        "operation": "allreduce", "exit_code": 0, "ranks": 8, "nodes": 1, "results": len(cases), "command": "collbench allreduce",
        "launch_index": 0, "launches": 1, "version": "0.1.0", "imported": 0, "slowed": 0, "missing": 0, "added_s": start_s, "info": info[0],
        "facts": info[1],
    }  # fmt: skip
    yield "runs", [
        {
            "run_id": first + node, "path": f"/runs/host{node}/2026-{night:03d}-allreduce", "name": f"2026-{night:03d}-{node}",
            "started_s": start_s + node, "finished_s": start_s + node + 60, "fingerprint": f"{first + node:032x}", **same,
        }
        for node in range(nodes)
    ]  # fmt: skip
    yield "run_nodes", [{"run_id": first + node, "node_id": 1000 + node} for node in range(nodes)]
    random = np.random.default_rng(night)
    times = 1e-5 * random.uniform(1.0, 1.1, (len(cases), nodes))
    yield "results", [
        {
            "case_id": case, "run_id": first + node, "number": number, "n": 200, "time_p50_s": time_s, "time_ci_low_s": time_s * 0.99,
            "time_ci_high_s": time_s * 1.01, "algbw_bytes_per_s": 1e5 / time_s, "busbw_bytes_per_s": 1.75e5 / time_s,
            "percent_of_ceiling": 8e-4 / time_s, "wrong": 0, "remark_id": shared[0], "checked": 1, "n_eff": 190.0 * time_s / 1e-5,
            "time_min_s": time_s * 0.9, "time_p95_s": time_s * 1.2, "time_p99_s": time_s * 1.5, "time_max_s": time_s * 2.1,
            "time_rank_mean_s": time_s * 0.97, "ceiling_id": shared[1], "ceiling_bytes_per_s": 5e10, "probe_before_s": 6e-8 * time_s / 1e-5,
            "probe_after_s": 6.1e-8 * time_s / 1e-5,
        }
        for number, (case, of_case) in enumerate(zip(cases, times.tolist(), strict=True)) for node, time_s in enumerate(of_case)
    ]  # fmt: skip


def history_s(database: Database, nodes: int, sizes: int, count: int) -> list[float]:
    """Return the seconds of `count` queries, each of another case on another node, which are in no cache of the database."""
    random, found = np.random.default_rng(1), []
    for _ in range(count):
        node, size = int(random.integers(nodes)), int(random.integers(sizes))
        query = Query(operations=("allreduce",), backends=("nccl",), sizes=str(8 << size), runs=RunSelection(nodes=(f"host{node}",)))
        start = time.perf_counter()
        number = sum(1 for _ in records(database, query))
        found.append(time.perf_counter() - start)
        if not number:
            raise LaunchFailed(f"the store has no result of host{node} at {8 << size} B")
    return found


# DuckDB, for the decision: the same tables, without collbench's code for it.


def _on_duckdb(folder: Path, count: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Return the figures of DuckDB; raises LaunchFailed if it is not installed."""
    try:
        import duckdb
        import pyarrow as pa
    except ImportError as error:
        raise LaunchFailed(f"DuckDB is compared, and needs its packages ({error}): pip install duckdb pyarrow") from error
    nodes, nights, sizes = shape
    path = folder / "runs.duckdb"
    connection = duckdb.connect(str(path))
    integers = {each.name for each in schema.RESULTS.columns if each.kind in ("id", "integer")}
    columns = ", ".join(f"{each.name} {'BIGINT' if each.name in integers else 'DOUBLE'}" for each in schema.RESULTS.columns[:-1])
    connection.execute(f"CREATE TABLE results ({columns})")
    connection.execute("CREATE TABLE runs (run_id BIGINT, path TEXT, name TEXT, started_s DOUBLE, info TEXT, facts TEXT)")
    connection.execute("CREATE TABLE run_nodes (run_id BIGINT, node_id BIGINT)")
    cases = list(range(1, sizes + 1))
    for night in range(nights):
        for table, rows in _night(night, nodes, cases, (1, 1), ('[{"schema":1,"exit_code":0},{"host":1}]', '{"software":2}')):
            names = [
                name for (name,) in connection.execute(f"SELECT column_name FROM duckdb_columns() WHERE table_name = '{table}'").fetchall()
            ]
            part = pa.table({name: [row.get(name) for row in rows] for name in names})  # noqa: F841 - DuckDB finds it by its name
            connection.execute(f"INSERT INTO {table} SELECT * FROM part")
    connection.execute("CHECKPOINT")
    size, random = path.stat().st_size, np.random.default_rng(1)
    sql = (
        "SELECT * FROM results JOIN runs USING (run_id) JOIN run_nodes USING (run_id) WHERE case_id = ? AND node_id = ? ORDER BY started_s"
    )
    queries, additions = [], []
    for number in range(count):
        node, case = int(random.integers(nodes)), 1 + int(random.integers(sizes))
        start = time.perf_counter()
        connection.execute(sql, [case, 1000 + node]).fetchall()
        queries.append(time.perf_counter() - start)
        rows = dict(_night(nights + 1 + number, 1, cases, (1, 1), ("[]", "{}")))["results"]
        names = [each.name for each in schema.RESULTS.columns[:-1]]
        start = time.perf_counter()
        with suppress(duckdb.Error):
            connection.begin()
            connection.executemany(
                f"INSERT INTO results VALUES ({', '.join('?' * len(names))})", [[row.get(name) for name in names] for row in rows]
            )
            connection.commit()
        additions.append(time.perf_counter() - start)
    second = subprocess.run(
        [sys.executable, "-c", "import duckdb, sys; duckdb.connect(sys.argv[1])", str(path)], capture_output=True, text=True, check=False
    )
    writers = "a second process cannot open the file" if "lock" in second.stderr else f"exit code {second.returncode}"
    connection.close()
    return {"history_s": queries, "add_s": additions, "add_large_s": [], "bytes": size, "writers": writers}
