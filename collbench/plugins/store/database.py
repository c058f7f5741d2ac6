"""Opening a store: an SQLite file or a PostgreSQL database, its version, transactions, and its errors as one sentence each.

SQL is written with `?` for values. A store is created only for writing; readers cannot change it.
"""

from __future__ import annotations

import os
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from collbench.errors import UsageError
from collbench.machine.readers.text import printable
from collbench.plugins.store.schema import APPLICATION_ID, NAMESPACE, POSTGRESQL, SQLITE, VERSION, Dialect, create
from collbench.untrusted import open_file

Record = tuple[Any, ...]
WAIT_S = 60.0  # for another writer
_CONNECT_S = 10  # for a server that does not answer, unless the URL has connect_timeout
_MAGIC = b"SQLite format 3\0"
_URL = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)
_SECRETS = ("password", "sslpassword")
_AT_ONCE = 400  # values in a list of SQL: SQLite accepts 999
_PIECE = 2000  # records of a query that are in memory at a time


class Database(ABC):
    """An open store. Every method raises UsageError: what failed, where, and what to do."""

    dialect: Dialect
    errors: tuple[type[Exception], ...]  # of its library

    def __init__(self, name: str, write: bool) -> None:
        self.name, self._write = shown_name(name), write
        self._connection: Any = None

    @abstractmethod
    def version(self) -> int | None:
        """Return the schema version; None without a store in the database. Raises UsageError for a database of another program."""

    @abstractmethod
    def prepare(self) -> None:
        """Mark the database as one with a store, before its tables are made."""

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Record]:
        """Return all records of a query; of a statement without records []."""
        with self._errors():
            cursor = self._connection.execute(*self._query(sql, values))
            return cursor.fetchall() if cursor.description else []

    def rows_among(self, sql: str, values: Iterable[Any]) -> list[Record]:
        """Return the records of a query with "IN ({})" for these values, which it gets in pieces that databases accept."""
        ordered = sorted(set(values))
        records: list[Record] = []
        for start in range(0, len(ordered), _AT_ONCE):
            piece = ordered[start : start + _AT_ONCE]
            records += self.rows(sql.format(marks(piece)), piece)
        return records

    @abstractmethod
    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Record]:
        """Yield the records of a query; a part of them is in memory at a time."""

    def insert(self, sql: str, records: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each record."""
        with self._errors():
            self._connection.cursor().executemany(sql.replace("?", self.dialect.mark), records)

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Return a context manager: all statements in it take effect, or none. Only in SQLite it excludes other writers."""

    def exclude(self, others: Literal["creators", "writers"]) -> None:
        """Make other processes wait that create the store, or write to it, until the transaction ends. In SQLite they already do."""
        if self.dialect.locks:
            self.rows(self.dialect.locks[others])

    def close(self) -> None:
        """Close it."""
        if self._connection is not None:
            self._connection.close()

    def _query(self, sql: str, values: Sequence[Any]) -> tuple[Any, ...]:
        return (sql.replace("?", self.dialect.mark), values) if values else (sql,)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self.errors as error:
            raise UsageError(self._sentence(error)) from error

    @abstractmethod
    def _sentence(self, error: Any) -> str:
        """Return what an error means."""


def marks(values: Sized) -> str:
    """Return the places of values in a list of SQL."""
    return ", ".join("?" * len(values))


def is_url(name: str) -> bool:
    """Return whether a store is a PostgreSQL database."""
    return bool(_URL.match(name))


def shown_name(name: str) -> str:
    """Return a store's name as messages show it: the path, or the URL without user and options. Raises UsageError for a password."""
    return _refuse_password(name) if is_url(name) else printable(name)


def open_store(name: str, *, write: bool = False, make: bool = True) -> Database:
    """Return an open store. `write` and `make`: it is created if it is missing.

    Raises UsageError if it is missing, not a store, of another schema, or cannot be opened.
    """
    database = _PostgreSQL(name, write) if is_url(name) else _SQLite(name, write, make)
    try:
        version = database.version()
        if version is None and write and make:
            with database.transaction():
                database.exclude("creators")
                version = database.version()  # another process may have been faster
                if version is None:
                    database.prepare()
                    for sql in create(database.dialect):
                        database.rows(sql)
                    version = VERSION
        if version is None:
            raise UsageError(f"{database.name} is not a store of collbench: make one with `collbench store add {database.name} RUN…`")
        if version != VERSION:
            raise UsageError(
                f"store {database.name} has schema {version}, but this collbench uses schema {VERSION}: "
                "make a new store with `collbench store add STORE RUN…`"
            )
    except BaseException:
        database.close()
        raise
    return database


def _version_of(database: Database, records: Sequence[Record]) -> int:
    """Return the version in the records of the table `store`. Raises UsageError if there is none."""
    text = str(records[0][0]) if records else ""
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise UsageError(f"store {database.name} has no valid schema version: restore it, or make a new one from the run folders")
    return int(text)


_VERSION = "SELECT value FROM {} WHERE key = 'schema'"


# SQLite: one file. It keeps the rollback journal, since write-ahead logs do not work on network file systems.


class _SQLite(Database):
    dialect = SQLITE
    errors = (sqlite3.Error, UnicodeError, OverflowError)

    def __init__(self, name: str, write: bool, make: bool) -> None:
        super().__init__(name, write)
        path = Path(name)
        self._check_file(path, write and make)
        mode = "rwc" if write and make else "rw" if os.access(path, os.W_OK) else "ro"  # rw: a killed writer's journal must be rolled back
        with self._errors():
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False
            )
            for setting in ("trusted_schema = OFF", "cache_size = -65536", *([] if write else ["query_only = ON"])):
                self._connection.execute(f"PRAGMA {setting}")

    def _check_file(self, path: Path, make: bool) -> None:
        """Raise UsageError for a path that cannot be a store, before SQLite opens it."""
        try:
            with open_file(path) as file:
                head = file.read(len(_MAGIC))
        except FileNotFoundError as error:
            if not make:
                raise UsageError(f"store {self.name} does not exist: make it with `collbench store add {self.name} RUN…`") from error
            if not path.absolute().parent.is_dir():
                raise UsageError(f"store {self.name} cannot be made: its folder does not exist; make the folder first") from error
            return
        except OSError as error:
            raise UsageError(f"store {self.name} cannot be read ({error.strerror or error}): name the file of a store") from error
        if head != _MAGIC and (head or not make):
            raise UsageError(f"{self.name} is not a store of collbench (not an SQLite file): name another file")

    def version(self) -> int | None:
        [(application,)], [(tables,)] = self.rows("PRAGMA application_id"), self.rows("SELECT count(*) FROM sqlite_master")
        if not tables and not application:
            return None
        if application != APPLICATION_ID:
            raise UsageError(f"{self.name} is not a store of collbench (another program's SQLite file): name another file")
        return _version_of(self, self.rows(_VERSION.format("store")))

    def prepare(self) -> None:
        self.rows(f"PRAGMA application_id = {APPLICATION_ID}")

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Record]:
        with self._errors():
            cursor = self._connection.execute(sql, values)
            while records := cursor.fetchmany(_PIECE):
                yield from records

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE" if self._write else "BEGIN")
        try:
            yield
            with self._errors():
                self._connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def _sentence(self, error: Any) -> str:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            return f"store {self.name} is used by another process for more than {WAIT_S:.0f} s: wait until it has ended, and try again"
        if code == sqlite3.SQLITE_FULL:
            return f"store {self.name} cannot be written (no space left on its disk): nothing was changed; make room there, and try again"
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
            what = "written" if self._write else "read"
            return f"store {self.name} cannot be {what} ({error}): check the permissions of the file and of its folder"
        if code == sqlite3.SQLITE_IOERR:
            return f"store {self.name} cannot be used ({error}): check its disk; a store can be made again from the run folders"
        return f"store {self.name} is damaged ({error}): restore it, or make a new one from the run folders"


# PostgreSQL: tables in a schema of their own. Passwords come from PGPASSWORD, PGPASSFILE or ~/.pgpass, never from the command line.


def _refuse_password(url: str) -> str:
    """Return the URL as messages show it. Raises UsageError if it has a password, which `ps` would show to every user, or is not valid."""
    try:
        parts = urlsplit(url)
        secret = parts.password is not None or any(name in _SECRETS for name, _ in parse_qsl(parts.query, keep_blank_values=True))
        shown = printable(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
    except ValueError as error:
        raise UsageError("the URL of the store is not valid: use postgresql://HOST/DATABASE") from error
    if secret:
        raise UsageError(f"{shown}: a password in a URL is visible to all users of this host: use PGPASSFILE, ~/.pgpass or PGPASSWORD")
    return shown


_READER = " -c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read"  # a run is read whole


class _PostgreSQL(Database):
    dialect = POSTGRESQL

    def __init__(self, url: str, write: bool) -> None:
        super().__init__(url, write)
        try:
            import psycopg
        except ImportError as error:
            raise UsageError(f"store {self.name} needs psycopg ({error}): install collbench[postgresql]") from error
        self.errors = (psycopg.Error,)
        settings = f"-c search_path={NAMESPACE} -c cursor_tuple_fraction=1 -c lock_timeout={WAIT_S:.0f}s{'' if write else _READER}"
        given = dict(parse_qsl(urlsplit(url).query))
        with self._errors():
            self._connection = psycopg.connect(
                url, autocommit=True, application_name="collbench", options=f"{given.get('options', '')} {settings}".strip(),
                connect_timeout=given.get("connect_timeout", _CONNECT_S),
            )  # fmt: skip

    def version(self) -> int | None:
        # not to_regclass(): after a wait for another process it may still answer from the session's cache that there is no such table
        found = self.rows("SELECT 1 FROM pg_tables WHERE schemaname = ? AND tablename = 'store'", [NAMESPACE])
        # with the schema's name: without the permission on it, the search path skips the schema, and the error would be another one
        return _version_of(self, self.rows(_VERSION.format(f"{NAMESPACE}.store"))) if found else None

    def prepare(self) -> None:
        if not self.rows("SELECT 1 FROM pg_namespace WHERE nspname = ?", [NAMESPACE]):
            self.rows(f"CREATE SCHEMA {NAMESPACE}")

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Record]:
        with self._errors(), self._connection.transaction(), self._connection.cursor("collbench") as cursor:
            cursor.itersize = _PIECE
            cursor.execute(*self._query(sql, values))
            yield from cursor

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._errors(), self._connection.transaction():
            yield

    def _sentence(self, error: Any) -> str:
        why, code = printable(" ".join(str(error).split("\n", 1)[0].split())), error.sqlstate or ""
        if self._connection is None:
            return f"store {self.name} cannot be opened ({why}): check the URL, the server and your access"
        if self._connection.closed or code.startswith("08"):
            return f"the connection to store {self.name} was lost: what was not finished is not in it; check the server, and try again"
        what = "written" if self._write else "read"
        known = {
            "53100": f"store {self.name} cannot be written (no space left on the server's disk): nothing was changed; make room there",
            "42501": f"store {self.name} cannot be {what} ({why}): ask for the permission on its schema",
            "25006": f"store {self.name} cannot be {what} ({why}): name a server that allows writing",
            "55P03": f"store {self.name} is used by another process for more than {WAIT_S:.0f} s: wait until it has ended, and try again",
        }
        broken = "is not a store of collbench" if code.startswith("42") else "reports an error"
        return known.get(code, f"{self.name} {broken} ({why}): check the database")
