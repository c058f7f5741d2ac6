"""Stores for tests: a new SQLite file, and a new database of a real PostgreSQL server."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.conftest import cannot
from tests.plugins.store.postgresql import NoServer, Server, server

_NUMBERS = count()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    try:
        with server() as running:
            yield running
    except NoServer as why:
        cannot(why)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    running: Server = request.getfixturevalue("postgresql")
    return running.database(f"store_{next(_NUMBERS)}")
