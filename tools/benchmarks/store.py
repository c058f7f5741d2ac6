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
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sqlalchemy import Column, Index, MetaData, PrimaryKeyConstraint, Table, func, select

from collbench.plugins.store import schema
from collbench.plugins.store.database import Database, open_store
from collbench.plugins.store.folders import read_folder
from collbench.plugins.store.query import Query, records
from collbench.plugins.store.reading import RunSelection
from collbench.plugins.store.writing import Writer
from tests.plugins.store.postgresql import NoServer, server
from tests.results.rows import make_row, make_times
from tests.results.rows import store as write_run
from tools.benchmarks.figures import MEBIBYTES, Figure, Outcome, Unit, timed
from tools.benchmarks.launches import LaunchFailed

NODES, NIGHTS, SIZES = 1000, 365, 28
_QUERY_S, _ADD_S, _MS = 0.1, 1.0, Unit("ms", 1e3, 1)
_WRITERS, _RUNS_EACH = 4, 25
_FIRST_S = 1_767_225_600.0  # 2026-01-01
_BY_RUN = Table(
    "results", MetaData(), *(Column(each.name, each.type) for each in schema.RESULTS.c), PrimaryKeyConstraint("run_id", "number"),
    Index("results_by_case_id_run_id", "case_id", "run_id"), sqlite_with_rowid=False,
)  # fmt: skip
_ADD = """
import sys
from pathlib import Path
from collbench.plugins.store.database import open_store
from collbench.plugins.store.writing import Writer
writer = Writer(open_store(sys.argv[1], write=True))
for path in sys.argv[2:]:
    assert writer.add(Path(path))[0] == "added"
"""


def measure(count: int = 20, nodes: int = NODES, nights: int = NIGHTS, sizes: int = SIZES) -> Outcome:
    """`count` queries of a case's history on a node, and additions of runs, on each database."""
    figures: list[Figure] = []
    raw: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        measured = {name: partial(_on_stored, stored, Path(folder) / "runs") for name, stored in _databases(Path(folder))}
        measured["DuckDB"] = partial(_on_duckdb, Path(folder))
        for name, on_database in measured.items():
            one = on_database(count, (nodes, nights, sizes))
            raw.append({"database": name, **one})
            figures += _figures(name, one, sizes)
            print(*(each.cases() for each in _figures(name, one, sizes)), sep="\n", file=sys.stderr, flush=True)
    how = (
        f"{nodes:,} nodes, a run of {sizes} cases each in {nights} nights: {nodes * nights * sizes:,} results. History: all results of one "
        f"case on one node ({nights} records), by the code of `collbench store query`. Addition: reading a run folder and adding it. "
        f"Writers: {_WRITERS} processes add {_RUNS_EACH} runs of {sizes} cases each at the same time, start of Python included. "
        "DuckDB has the same columns, through its own Python package."
    )
    return Outcome("store", how, figures, raw)


def _on_stored(stored: AbstractContextManager[_Stored], runs: Path, count: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    with stored as found:
        return _on(found, runs, count, shape)


def _figures(name: str, found: dict[str, Any], sizes: int) -> Iterator[Figure]:
    yield timed(f"{name}: history of a case", found["history_s"], _MS, below=_QUERY_S)
    yield timed(f"{name}: addition of {sizes} cases", found["add_s"], _MS, below=_ADD_S)
    if found["add_large_s"]:
        yield timed(f"{name}: addition of 1,000 cases", found["add_large_s"], _MS, below=_ADD_S)
    yield Figure(f"{name}: size", f"{MEBIBYTES.show(found['bytes'])} MiB")
    yield Figure(f"{name}: {_WRITERS} writers", found["writers"])


@dataclass(frozen=True)
class _Stored:
    """A store that can be opened by its name, and how its size is read."""

    name: str
    size: Any


def _databases(folder: Path) -> Iterator[tuple[str, Any]]:
    @contextmanager
    def sqlite(results: Table) -> Iterator[_Stored]:
        tables = tuple(results if table.name == "results" else table for table in schema.TABLES)
        path = folder / "runs.db"
        with patch.object(schema, "TABLES", tables):
            open_store(str(path), write=True).close()
        yield _Stored(str(path), lambda: path.stat().st_size)
        path.unlink()

    @contextmanager
    def postgresql() -> Iterator[_Stored]:
        with server(shared_buffers="512MB", fsync="on", max_wal_size="4GB") as running:
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
    runs, results = schema.RUNS, schema.RESULTS
    template_id = database.rows(select(func.max(runs.c.run_id)))[0][0]
    of_template = select(results.c.case_id, results.c.remark_id, results.c.ceiling_id).where(results.c.run_id == template_id)
    rows = database.rows(of_template.order_by(results.c.number))
    same = {**_SAME, "results": sizes, **database.rows(select(runs.c.info, runs.c.facts))[0]._mapping}
    for table in (results, schema.RUN_NODES, runs):
        database.rows(table.delete())
    hosts = [{"node_id": 1000 + node, "name": f"host{node}"} for node in range(nodes)]
    database.run_for_each(schema.NODES.insert(), hosts)
    cases = [row.case_id for row in rows]
    for night in range(nights):
        first, start_s = _FIRST + night * nodes, _FIRST_S + night * 86_400.0
        heads = [
            {
                "run_id": first + node, "path": f"/runs/host{node}/{night}", "name": f"{night}-{node}", "started_s": start_s + node,
                "fingerprint": f"{first + node:032x}", **same,
            }
            for node in range(nodes)
        ]  # fmt: skip
        with database.transaction():
            database.run_for_each(runs.insert(), heads)
            database.run_for_each(schema.RUN_NODES.insert(), [{"run_id": first + node, "node_id": 1000 + node} for node in range(nodes)])
            of_night = _results_of_night(_RANDOM[database.connection.dialect.name], cases, rows[0][1:], (first, first + nodes - 1))
            database.connection.exec_driver_sql(of_night)
    if database.connection.dialect.name == "postgresql":  # as autovacuum does
        database.connection.exec_driver_sql("ANALYZE")


# A number from 0 to 1, other for each result: figures that repeat would compress better than measured ones.
_RANDOM = {"sqlite": "(random() / 18446744073709551616.0 + 0.5)", "postgresql": "random()", "duckdb": "random()"}
_TIMES = {
    "time_p50_s": 1.0, "time_ci_low_s": 0.99, "time_ci_high_s": 1.01, "time_min_s": 0.9, "time_p95_s": 1.2, "time_p99_s": 1.5,
    "time_max_s": 2.1, "time_rank_mean_s": 0.97, "n_eff": 1.9e7, "probe_before_s": 6e-3, "probe_after_s": 6.1e-3,
}  # fmt: skip
_RATES = {"algbw_bytes_per_s": 1e5, "busbw_bytes_per_s": 1.75e5, "percent_of_ceiling": 8e-4}
_SAME = {
    "operation": "allreduce", "exit_code": 0, "ranks": 8, "nodes": 1, "command": "collbench allreduce", "launch_index": 0, "launches": 1,
    "version": "0.1.0", "imported": 0, "slowed": 0, "missing": 0,
}  # fmt: skip
_FIRST = 1_000_001  # number of the first run


def _results_of_night(random: str, cases: list[int], shared: tuple[int, int], runs: tuple[int, int]) -> str:
    """Return the statement that inserts the results of the runs of a night, from the first to the last one, with a remark and a ceiling."""
    figures = [f"t * {factor}" for factor in _TIMES.values()] + [f"{factor} / t" for factor in _RATES.values()]
    names = ", ".join((*_TIMES, *_RATES))
    wanted = f"case_id IN ({', '.join(map(str, cases))}) AND run_id BETWEEN {runs[0]} AND {runs[1]}"
    of_night = f"SELECT case_id, run_id, 1e-5 * (1.0 + 0.1 * {random}) AS t FROM runs, cases WHERE {wanted}"
    return (
        f"INSERT INTO results (case_id, run_id, number, n, wrong, checked, remark_id, ceiling_id, ceiling_bytes_per_s, {names}) "
        f"WITH x AS MATERIALIZED ({of_night}) "
        f"SELECT case_id, run_id, case_id - {min(cases)}, 200, 0, 1, {shared[0]}, {shared[1]}, 5e10, {', '.join(figures)} FROM x "
        "ORDER BY case_id, run_id"
    )


def _template(folder: Path, sizes: int) -> Path:
    rows = [make_row(8 << size) for size in range(sizes)]
    software = [{"hosts": ["host"], "kernel": "6.1", "glibc": "2.36", "mpi": "MPICH 4.3.0", "nccl": "2.27.3"}]
    return write_run(folder / "run", rows, hosts=["template"], software=software, command=["collbench", "allreduce"], collbench="0.1.0")


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
    except ImportError as error:
        raise LaunchFailed(f"DuckDB is compared, and needs its package ({error}): pip install duckdb") from error
    nodes, nights, sizes = shape
    path, cases = folder / "runs.duckdb", list(range(1, sizes + 1))
    connection = duckdb.connect(str(path))
    kinds = {int: "BIGINT", float: "DOUBLE", str: "TEXT"}
    columns = ", ".join(f"{column.name} {kinds[column.type.python_type]}" for column in schema.RESULTS.c)
    connection.execute(f"CREATE TABLE results ({columns})")
    connection.execute("CREATE TABLE cases (case_id BIGINT)")
    connection.executemany("INSERT INTO cases VALUES (?)", [[case] for case in cases])
    connection.execute("CREATE TABLE runs (run_id BIGINT, path TEXT, name TEXT, started_s DOUBLE, fingerprint TEXT)")
    connection.execute("CREATE TABLE run_nodes (run_id BIGINT, node_id BIGINT)")
    for night in range(nights):
        first = _FIRST + night * nodes
        texts = f"'/runs/host' || n || '/{night}', '{night}-' || n, {_FIRST_S} + {night} * 86400.0 + n, md5(n::TEXT || '{night}')"
        connection.execute(f"INSERT INTO runs SELECT {first} + n, {texts} FROM range({nodes}) r(n)")
        connection.execute(f"INSERT INTO run_nodes SELECT {first} + n, 1000 + n FROM range({nodes}) r(n)")
        connection.execute(_results_of_night(_RANDOM["duckdb"], cases, (1, 1), (first, first + nodes - 1)))
    connection.execute("CHECKPOINT")
    size, random = path.stat().st_size, np.random.default_rng(1)
    joined = "results JOIN runs USING (run_id) JOIN run_nodes USING (run_id)"
    sql = f"SELECT * FROM {joined} WHERE case_id = ? AND node_id = ? ORDER BY started_s"
    queries, additions = [], []
    for number in range(count):
        node, case = int(random.integers(nodes)), 1 + int(random.integers(sizes))
        start = time.perf_counter()
        if len(connection.execute(sql, [case, 1000 + node]).fetchall()) != nights:
            raise LaunchFailed("DuckDB lacks results")
        queries.append(time.perf_counter() - start)
        rows = [[case, number, case, 200, *(1e-5 * case for _ in schema.RESULTS.c[4:-1]), None] for case in cases]
        start = time.perf_counter()
        connection.begin()
        connection.executemany(f"INSERT INTO results VALUES ({', '.join('?' * len(rows[0]))})", rows)
        connection.commit()
        additions.append(time.perf_counter() - start)
    second = subprocess.run(
        [sys.executable, "-c", "import duckdb, sys; duckdb.connect(sys.argv[1])", str(path)], capture_output=True, text=True, check=False
    )
    writers = "a second process cannot open the file" if "lock" in second.stderr else f"exit code {second.returncode}"
    connection.close()
    return {"history_s": queries, "add_s": additions, "add_large_s": [], "bytes": size, "writers": writers, "filled_s": 0.0}
