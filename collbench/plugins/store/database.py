"""Opening a store: an SQLite file or a PostgreSQL database, its version, transactions, and its errors as one sentence each.

A store is created only for writing; readers cannot change it. Each statement takes effect at once, outside of a transaction.
"""

from __future__ import annotations

import os
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    ExceptionContext,
    Executable,
    NullPool,
    Select,
    Table,
    bindparam,
    create_engine,
    event,
    select,
    text,
)
from sqlalchemy.exc import SQLAlchemyError

from collbench.errors import UsageError
from collbench.machine.readers.text import printable
from collbench.plugins.store.schema import APPLICATION_ID, NAMESPACE, STORE, VERSION, create
from collbench.untrusted import open_file

Record = Any  # a row of SQLAlchemy: values in order, and by the names of columns
WAIT_S = 60.0  # for another writer
_CONNECT_S = 10  # for a server that does not answer, unless the URL has connect_timeout
_MAGIC = b"SQLite format 3\0"
_URL = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)
_SECRETS = ("password", "sslpassword")
_AT_ONCE = 400  # values in a list of SQL: SQLite accepts 999
_AMONG = "among"
_PIECE = 2000  # records of a query that are in memory at a time


class Database(ABC):
    """An open store. Every method raises UsageError: what failed, where, and what to do."""

    begin = "BEGIN"

    def __init__(self, name: str, write: bool, dialect: str, connect: Callable[[], Any], errors: tuple[type[Exception], ...]) -> None:
        """Open it. dialect: SQLAlchemy's name; connect: return a connection of the library; errors: those of the library."""
        self.name = shown_name(name)
        self._write = write
        self._errors = errors
        self._in_transaction = False
        engine = create_engine(f"{dialect}://", creator=connect, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        event.listen(engine, "handle_error", self._explained)
        self.connection: Connection = engine.connect()

    @abstractmethod
    def version(self) -> int | None:
        """Return the schema version; None without a store in the database. Raises UsageError for a database of another program."""

    @abstractmethod
    def prepare(self) -> None:
        """Mark the database as one with a store, before its tables are made."""

    @abstractmethod
    def insert(self, table: Table) -> Any:
        """Return the insertion of the database, which knows `on_conflict_do_nothing` and `on_conflict_do_update`."""

    def rows(self, statement: Executable, values: Mapping[str, Any] | None = None) -> Sequence[Record]:
        """Return all records of a query; of a statement without records []. values: of its parameters, by name."""
        result = self.connection.execute(statement, values)
        return result.all() if result.returns_rows else []

    def rows_among(self, query: Select[Any], values: Iterable[Any]) -> list[Record]:
        """Return the records of a query with the condition `among` for these values, which it gets in pieces that databases accept."""
        ordered = sorted(set(values))
        records: list[Record] = []
        for start in range(0, len(ordered), _AT_ONCE):
            records += self.rows(query, {_AMONG: ordered[start : start + _AT_ONCE]})
        return records

    def stream(self, query: Select[Any]) -> Iterator[Record]:
        """Yield the records of a query; a part of them is in memory at a time."""
        for part in self.connection.execute(query, execution_options={"yield_per": _PIECE}).partitions():
            yield from part

    def run_for_each(self, statement: Executable, records: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for each record: its values by name."""
        if records:
            self.connection.execute(statement, records)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all statements of the block take effect, or none. Inside another transaction it is a part of that one.

        Only in SQLite it excludes other writers.
        """
        if self._in_transaction:
            yield
            return
        self.connection.exec_driver_sql(self.begin)
        self._in_transaction = True
        try:
            yield
            self.connection.exec_driver_sql("COMMIT")
        except BaseException:
            with suppress(SQLAlchemyError, UsageError):
                self.connection.exec_driver_sql("ROLLBACK")
            raise
        finally:
            self._in_transaction = False

    def exclude(self, others: Literal["creators", "writers"]) -> None:  # noqa: B027
        """Make other processes wait that create the store, or write to it, until the transaction ends. In SQLite they already do."""

    def close(self) -> None:
        """Close it."""
        with suppress(SQLAlchemyError, UsageError):
            self.connection.close()

    def _explained(self, context: ExceptionContext) -> UsageError | None:
        """Return the error to raise in place of one of the library; None for any other."""
        error = context.original_exception
        return UsageError(self._sentence(error, context)) if isinstance(error, self._errors) else None

    @property
    def _access(self) -> str:
        return "written" if self._write else "read"

    @abstractmethod
    def _sentence(self, error: Any, context: ExceptionContext) -> str:
        """Return what an error means."""


def among(column: Column[Any]) -> ColumnElement[bool]:
    """Return the condition that a column has one of the values of `Database.rows_among`."""
    return column.in_(bindparam(_AMONG, expanding=True))


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
                    for sql in create(database.connection.dialect):
                        database.connection.exec_driver_sql(sql)
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


def _version_of(database: Database, schema: str | None = None) -> int:
    """Return the version in the table `store` (of a schema). Raises UsageError if there is none."""
    records = database.rows(select(STORE.c.value).where(STORE.c.key == "schema").execution_options(schema_translate_map={None: schema}))
    version = str(records[0][0]) if records else ""
    if not (version.isascii() and version.isdecimal() and len(version) < 10 and int(version) > 0):
        raise UsageError(f"store {database.name} has no valid schema version: restore it, or make a new one from the run folders")
    return int(version)


# SQLite: one file. It keeps the rollback journal, since write-ahead logs do not work on network file systems.


class _SQLite(Database):
    def __init__(self, name: str, write: bool, make: bool) -> None:
        path = Path(name)
        self.begin = "BEGIN IMMEDIATE" if write else "BEGIN"
        self._check_file(path, shown_name(name), write and make)
        mode = "rw" if os.access(path, os.W_OK) else "ro"  # rw: a killed writer's journal must be rolled back
        if write and make:
            mode = "rwc"
        uri = f"{path.absolute().as_uri()}?mode={mode}"

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(uri, uri=True, timeout=WAIT_S, check_same_thread=False)

        super().__init__(name, write, "sqlite", connect, (sqlite3.Error, UnicodeError, OverflowError))
        settings = ["trusted_schema = OFF", "cache_size = -65536"]
        if not write:
            settings.append("query_only = ON")
        for setting in settings:
            self.connection.exec_driver_sql(f"PRAGMA {setting}")

    @staticmethod
    def _check_file(path: Path, name: str, make: bool) -> None:
        """Raise UsageError for a path that cannot be a store, before SQLite opens it."""
        try:
            with open_file(path) as file:
                head = file.read(len(_MAGIC))
        except FileNotFoundError as error:
            if not make:
                raise UsageError(f"store {name} does not exist: make it with `collbench store add {name} RUN…`") from error
            if not path.absolute().parent.is_dir():
                raise UsageError(f"store {name} cannot be made: its folder does not exist; make the folder first") from error
            return
        except OSError as error:
            raise UsageError(f"store {name} cannot be read ({error.strerror or error}): name the file of a store") from error
        if head != _MAGIC and (head or not make):
            raise UsageError(f"{name} is not a store of collbench (not an SQLite file): name another file")

    def version(self) -> int | None:
        application = self.connection.exec_driver_sql("PRAGMA application_id").scalar_one()
        tables = self.connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one()
        if not tables and not application:
            return None
        if application != APPLICATION_ID:
            raise UsageError(f"{self.name} is not a store of collbench (another program's SQLite file): name another file")
        return _version_of(self)

    def prepare(self) -> None:
        self.connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")

    def insert(self, table: Table) -> Any:
        from sqlalchemy.dialects.sqlite import insert

        return insert(table)

    def _sentence(self, error: Any, context: ExceptionContext) -> str:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            return f"store {self.name} is used by another process for more than {WAIT_S:.0f} s: wait until it has ended, and try again"
        if code == sqlite3.SQLITE_FULL:
            return f"store {self.name} cannot be written (no space left on its disk): nothing was changed; make room there, and try again"
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
            return f"store {self.name} cannot be {self._access} ({error}): check the permissions of the file and of its folder"
        if code == sqlite3.SQLITE_IOERR:
            return f"store {self.name} cannot be used ({error}): check its disk; a store can be made again from the run folders"
        return f"store {self.name} is damaged ({error}): restore it, or make a new one from the run folders"


# PostgreSQL: tables in a schema of their own. Passwords come from PGPASSWORD, PGPASSFILE or ~/.pgpass, never from the command line.


def _refuse_password(url: str) -> str:
    """Return the URL as messages show it. Raises UsageError if it has a password, which `ps` would show to every user, or is not valid."""
    try:
        parts = urlsplit(url)
        secret = parts.password is not None or any(name in _SECRETS for name, _ in parse_qsl(parts.query, keep_blank_values=True))
        shown_url = printable(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
    except ValueError as error:
        raise UsageError("the URL of the store is not valid: use postgresql://HOST/DATABASE") from error
    if secret:
        raise UsageError(f"{shown_url}: a password in a URL is visible to all users of this host: use PGPASSFILE, ~/.pgpass or PGPASSWORD")
    return shown_url


_READER = " -c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read"  # a run is read whole
_LOCKS = {"creators": f"SELECT pg_advisory_xact_lock({APPLICATION_ID})", "writers": "LOCK TABLE runs, verdicts IN SHARE ROW EXCLUSIVE MODE"}


class _PostgreSQL(Database):
    def __init__(self, url: str, write: bool) -> None:
        name = shown_name(url)
        try:
            import psycopg
        except ImportError as error:
            raise UsageError(f"store {name} needs psycopg ({error}): install collbench[postgresql]") from error
        settings = f"-c search_path={NAMESPACE} -c cursor_tuple_fraction=1 -c lock_timeout={WAIT_S:.0f}s{'' if write else _READER}"
        url_options = dict(parse_qsl(urlsplit(url).query))
        options = f"{url_options.get('options', '')} {settings}".strip()
        wait_s = url_options.get("connect_timeout", _CONNECT_S)

        def connect() -> Any:
            return psycopg.connect(url, autocommit=True, application_name="collbench", options=options, connect_timeout=wait_s)

        super().__init__(url, write, "postgresql+psycopg", connect, (psycopg.Error,))

    def version(self) -> int | None:
        # not to_regclass(): after a wait for another process it may still answer from the session's cache that there is no such table
        tables = text("SELECT 1 FROM pg_tables WHERE schemaname = :schema AND tablename = 'store'").bindparams(schema=NAMESPACE)
        # with the schema's name: without the permission on it, the search path skips the schema, and the error would be another one
        return _version_of(self, NAMESPACE) if self.rows(tables) else None

    def prepare(self) -> None:
        if not self.rows(text("SELECT 1 FROM pg_namespace WHERE nspname = :schema").bindparams(schema=NAMESPACE)):
            self.connection.exec_driver_sql(f"CREATE SCHEMA {NAMESPACE}")

    def insert(self, table: Table) -> Any:
        from sqlalchemy.dialects.postgresql import insert

        return insert(table)

    def stream(self, query: Select[Any]) -> Iterator[Record]:
        with self.transaction():  # in which the server keeps the records
            yield from super().stream(query)

    def exclude(self, others: Literal["creators", "writers"]) -> None:
        self.connection.exec_driver_sql(_LOCKS[others])

    def _sentence(self, error: Any, context: ExceptionContext) -> str:
        reason = printable(" ".join(str(error).split("\n", 1)[0].split()))
        code = error.sqlstate or ""
        if context.connection is None:
            return f"store {self.name} cannot be opened ({reason}): check the URL, the server and your access"
        if context.is_disconnect or code.startswith("08"):
            return f"the connection to store {self.name} was lost: what was not finished is not in it; check the server, and try again"
        sentences = {
            "53100": f"store {self.name} cannot be written (no space left on the server's disk): nothing was changed; make room there",
            "42501": f"store {self.name} cannot be {self._access} ({reason}): ask for the permission on its schema",
            "25006": f"store {self.name} cannot be {self._access} ({reason}): name a server that allows writing",
            "55P03": f"store {self.name} is used by another process for more than {WAIT_S:.0f} s: wait until it has ended, and try again",
        }
        problem = "is not a store of collbench" if code.startswith("42") else "reports an error"
        return sentences.get(code, f"{self.name} {problem} ({reason}): check the database")
