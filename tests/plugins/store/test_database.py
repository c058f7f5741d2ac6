"""Opening stores: versions, what is not a store, and disks, servers and connections that fail."""

import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import dialect

from collbench.errors import UsageError
from collbench.plugins.store.database import Database, open_store
from collbench.plugins.store.schema import APPLICATION_ID, NAMESPACE, STORE, TABLES, VERSION, VIEWS, create
from collbench.plugins.store.writing import Writer
from tests.cli.command import ROOT, until
from tests.conftest import cannot
from tests.plugins.store.postgresql import NoServer, Server, server
from tests.plugins.store.runs import added, night, rows

PASSWORD = "tr0ub4dor-secret"


# Versions


OTHER = f", but this collbench uses schema {VERSION}: make a new store with "


@pytest.mark.parametrize(("version", "said"), [
    (str(VERSION - 1), f"has schema {VERSION - 1}{OTHER}"), (str(VERSION + 1), f"has schema {VERSION + 1}{OTHER}"),
    *((text, "no valid schema version") for text in ("", "two", "0", "-1", "1e9", "99999999999")),
])  # fmt: skip
def test_another_schema_and_what_is_none_are_refused_and_left_alone(name: str, version: str, said: str) -> None:
    database = open_store(name, write=True)
    database.rows(STORE.update().values(value=version))
    database.close()
    for write in (False, True):
        with pytest.raises(UsageError, match=said):
            open_store(name, write=write)


def test_a_store_that_an_earlier_collbench_made_has_the_same_tables_and_stays_usable(tmp_path: Path) -> None:
    name = str(tmp_path / "runs.db")
    connection = sqlite3.connect(name)
    connection.executescript((Path(__file__).parent / "version-3.sql").read_text())
    open_store(str(tmp_path / "new.db"), write=True).close()
    new = sqlite3.connect(tmp_path / "new.db")
    for relation in (*TABLES, *VIEWS):
        described = [each.execute(f"PRAGMA table_info({relation.name})").fetchall() for each in (connection, new)]
        columns, of_new = ([(column[1:3], column[5]) for column in each] for each in described)
        assert columns == of_new, relation.name
    indexes = "SELECT name FROM sqlite_master WHERE type = 'index' ORDER BY name"
    assert connection.execute(indexes).fetchall() == new.execute(indexes).fetchall()
    connection.close()
    added(name, night(tmp_path, 1))
    assert added(name, night(tmp_path, 2, hosts=("b",)), labels=["good"]).count("added") == 1
    counted = rows(name, "SELECT run, node, count(*) FROM node_history GROUP BY 1, 2 ORDER BY 1")
    assert counted == [("night-1", "node1", 3), ("night-2", "b", 3)]


def test_the_definition_names_each_part_once_and_explains_it() -> None:
    names = [each.name for each in (*TABLES, *VIEWS)]
    assert len(names) == len(set(names))
    for table in (*TABLES, *VIEWS):
        assert table.info["about"] and all(column.doc for column in table.c)


# What is not a store


def test_a_file_that_is_not_a_store_is_refused_and_unchanged(tmp_path: Path) -> None:
    text, other, empty = tmp_path / "notes.txt", tmp_path / "other.db", tmp_path / "empty.db"
    text.write_text("not a database, but longer than the head of one")
    empty.touch()
    connection = sqlite3.connect(other)
    connection.executescript("CREATE TABLE runs (x); INSERT INTO runs VALUES (1)")
    connection.close()
    before = other.read_bytes()
    for path, write in ((text, False), (text, True), (other, False), (other, True), (empty, False), (tmp_path, True), (tmp_path, False)):
        with pytest.raises(UsageError):
            open_store(str(path), write=write)
    assert (text.read_text()[:3], other.read_bytes(), empty.stat().st_size) == ("not", before, 0)


def test_only_a_store_is_opened_and_a_missing_one_made_for_writing_only(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with pytest.raises(UsageError, match="does not exist: make it with `collbench store add "):
        open_store(str(path))
    assert not path.exists()
    with pytest.raises(UsageError, match="its folder does not exist"):
        open_store(str(tmp_path / "no" / "new.db"), write=True)
    open_store(str(path), write=True).close()
    assert sqlite3.connect(path).execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="a pipe, not a regular file"):
        open_store(str(tmp_path / "pipe"), write=True)


@pytest.mark.parametrize("place", [100, 5000, 20000])
def test_a_damaged_file_is_one_sentence(place: int, tmp_path: Path) -> None:
    name = str(tmp_path / "runs.db")
    added(name, *(night(tmp_path, number) for number in range(1, 4)))
    with Path(name).open("r+b") as file:
        file.seek(place)
        file.write(os.urandom(40_000))
    with pytest.raises(UsageError, match=r"damaged|not a store|no valid schema"):
        for sql in ("SELECT * FROM history", "SELECT * FROM documents", "SELECT * FROM runs"):
            rows(name, sql)


@pytest.mark.long
@pytest.mark.parametrize("first", ["creates it", "fails"])
def test_writers_that_create_a_store_at_the_same_time_wait_for_the_first_one(first: str, postgresql: Server) -> None:
    """The first writer has created everything but not committed it; the second one waits for it, and then finds a store, or none."""
    psycopg = pytest.importorskip("psycopg")
    url = postgresql.database(f"creation_{first.split(maxsplit=1)[0]}")
    opened: list[Database] = []
    other = threading.Thread(target=lambda: opened.append(open_store(url, write=True)))
    with suppress(_Undo), psycopg.connect(url, options=f"-c search_path={NAMESPACE}") as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [APPLICATION_ID])
        other.start()
        until(lambda: _waiting(postgresql, url), "the second writer to wait for the first one")
        for statement in (f"CREATE SCHEMA {NAMESPACE}", *create(dialect())):
            connection.execute(statement)
        assert not opened
        if first == "fails":
            raise _Undo
    other.join(60)
    (store,) = opened
    try:
        assert store.rows(text("SELECT key, value FROM store")) == [("schema", str(VERSION))]
    finally:
        store.close()


class _Undo(Exception):
    """Ends a writer's transaction without a commit."""


def _waiting(server: Server, url: str) -> bool:
    """Return whether a connection to the database waits for the lock of the creation."""
    database = urlsplit(url).path.strip("/")
    asked = "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database WHERE locktype = 'advisory' AND NOT granted"
    return server.sql(f"{asked} AND datname = '{database}'") == "1"


@pytest.mark.long
def test_a_database_without_a_store_is_not_changed_by_a_reader(postgresql: Server) -> None:
    url = postgresql.database("nothing")
    with pytest.raises(UsageError, match="is not a store of collbench: make one with"):
        open_store(url)
    assert postgresql.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'collbench'", "nothing") == "0"


# Disks that are full or may not be written

_ON_TMPFS = """
import subprocess, sys
from pathlib import Path
from collbench.errors import UsageError
from collbench.plugins.store.database import Database, open_store
from collbench.plugins.store.writing import Writer, add_all
from sqlalchemy import text

disk, *folders = map(Path, sys.argv[1:])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=320k", "none", disk], check=True)
name = str(disk / "runs.db")
database, errors = open_store(name, write=True), []
for folder in folders:
    try:
        add_all(Writer(database), [folder])
    except UsageError as error:
        errors.append(str(error))
print(len(folders) - len(errors), database.rows(text("SELECT count(*), sum(results) FROM runs"))[0], errors[-1], sep="|")
database.close()
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
print(open_store(name).rows(text("SELECT count(*) FROM runs"))[0][0])
try:
    open_store(name, write=True)
    add_all(Writer(open_store(name, write=True)), folders)
except UsageError as error:
    print(error)
"""


@pytest.mark.long
def test_a_full_and_a_read_only_disk_lose_nothing(tmp_path: Path) -> None:
    if os.getuid():
        cannot("a small disk needs root")
    folders = [night(tmp_path / "runs", number, software=[os.urandom(9000).hex()]) for number in range(1, 28)]
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "--mount", sys.executable, "-c", _ON_TMPFS, str(disk), *map(str, folders)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    full, readable, read_only = done.stdout.splitlines()
    added_runs, counts, error = full.split("|")
    assert 0 < int(added_runs) < 27
    assert counts == f"({added_runs}, {3 * int(added_runs)})"
    assert error.endswith("(no space left on its disk): nothing was changed; make room there, and try again")
    assert readable == added_runs
    assert re.search(r"cannot be written \(.*\): check the permissions", read_only)


def test_a_file_without_write_permission_can_be_read(tmp_path: Path) -> None:
    name = str(tmp_path / "runs.db")
    added(name, night(tmp_path, 1))
    Path(name).chmod(stat.S_IRUSR)
    assert rows(name, "SELECT count(*) FROM runs") == [(1,)]


def test_readers_cannot_write(name: str, tmp_path: Path) -> None:
    added(name, night(tmp_path, 1))
    database = open_store(name)
    with pytest.raises(UsageError, match="cannot be read"):
        database.rows(text("DELETE FROM runs"))
    database.close()
    assert rows(name, "SELECT count(*) FROM runs") == [(1,)]


# Servers and connections that fail


@pytest.mark.long
def test_a_lost_connection_is_one_sentence_and_leaves_nothing_half_added(postgresql: Server, tmp_path: Path) -> None:
    url = postgresql.database("lost")
    added(url, night(tmp_path, 1))
    database = open_store(url, write=True)
    writer = Writer(database)
    label = writer._label

    def end_connection(run_id: int, labels: object) -> None:
        postgresql.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'lost' AND pid <> pg_backend_pid()")
        label(run_id, ["x"])

    writer._label = end_connection  # type: ignore[assignment]
    with pytest.raises(UsageError, match=r"^the connection to store postgresql:///lost was lost: what was not finished is not in it"):
        writer.add(night(tmp_path, 2))
    assert rows(url, "SELECT count(*), sum(results) FROM runs") == [(1, 3)]


@pytest.mark.parametrize(
    "url",
    [f"postgresql://u:{PASSWORD}@h/d", f"postgres://h/d?password={PASSWORD}", f"postgresql://h/d?sslmode=require&sslpassword={PASSWORD}"],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="PGPASSFILE") as error:
        open_store(url)
    assert PASSWORD not in str(error.value)


@pytest.mark.long
def test_the_password_comes_from_the_environment_or_a_file_and_is_in_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.delenv("PGPASSFILE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    passfile = tmp_path / "pass"
    passfile.write_text(f"*:*:*:*:{PASSWORD}\n")
    passfile.chmod(0o600)
    try:
        with server(PASSWORD) as running:
            with pytest.raises(UsageError, match="cannot be opened") as missing:
                open_store(running.url)
            monkeypatch.setenv("PGPASSWORD", f"{PASSWORD}-wrong")
            with pytest.raises(UsageError, match="password authentication failed") as wrong:
                open_store(running.url)
            monkeypatch.delenv("PGPASSWORD")
            monkeypatch.setenv("PGPASSFILE", str(passfile))
            open_store(running.url, write=True).close()
            running.kill()
            with pytest.raises(UsageError, match="cannot be opened") as gone:
                open_store(running.url)
    except NoServer as why:
        cannot(why)
    for error in (missing, wrong, gone):
        assert PASSWORD not in str(error.value)
        assert "\n" not in str(error.value)


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"install collbench\[postgresql\]"):
        open_store("postgresql://localhost/runs")


@pytest.mark.long
def test_a_missing_permission_is_reported(postgresql: Server, tmp_path: Path) -> None:
    url = postgresql.database("private")
    added(url, night(tmp_path, 1))
    postgresql.sql("CREATE ROLE guest LOGIN")
    with pytest.raises(UsageError, match="ask for the permission"):
        open_store(url.replace("collbench@", "guest@"))
    postgresql.sql("GRANT USAGE ON SCHEMA collbench TO guest; GRANT SELECT ON ALL TABLES IN SCHEMA collbench TO guest", "private")
    guest = url.replace("collbench@", "guest@")
    assert rows(guest, "SELECT count(*) FROM history") == [(3,)]
    with pytest.raises(UsageError, match="ask for the permission"):
        added(guest, night(tmp_path, 2))


@pytest.mark.long
def test_a_million_rows_on_a_server_answer_in_a_tenth_of_a_second(postgresql: Server) -> None:
    from tools.benchmarks.store import fill, history_s

    url = postgresql.database("million")
    database = open_store(url, write=True)
    fill(database, nodes=100, nights=365, sizes=28)
    assert database.rows(text("SELECT count(*) FROM results")) == [(100 * 365 * 28,)]
    assert sorted(history_s(database, nodes=100, sizes=28, count=9))[4] < 0.1
