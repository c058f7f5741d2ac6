"""The page of the store's tables and views."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.plugins.store.query import SUBJECTS, columns_of
from collbench.plugins.store.schema import TABLES, VERSION, VIEWS
from site_pages.markdown import code, codes, escaped, page, table

_TYPES = {int: "integer", float: "real", str: "text", bytes: "bytes"}


def store() -> str:
    """Return the page of a store: what a query may name, the views for SQL, and the tables."""
    return page(
        "The store",
        "`collbench store` keeps an index of run folders in an SQLite file or a PostgreSQL database. "
        "[Many runs in one place](../guides/many-runs.md) shows how to use it.",
        f"The schema has version {VERSION}. A store of another version is an error: make a new one from the run folders with `store add`.",
        "Units are in the names: `_s` is seconds, or seconds since 1970 (UTC) for moments; `_bytes_per_s` is bytes per second. "
        "NULL means unknown or not applicable; flags are 0 or 1. In PostgreSQL the tables are in the schema `collbench`.",
        "## Columns of queries",
        "`collbench store query DB --of KIND --columns NAMES --where CONDITION` takes these names.",
        *_queries(),
        "## Views",
        "Use these for SQL and dashboards. `started` is a moment of the database: `timestamptz` in PostgreSQL, ISO 8601 text in SQLite.",
        table(["view", "content", "columns"], ((code(view.name), escaped(view.info["about"]), codes(view.c.keys())) for view in VIEWS)),
        "## Tables",
        *_tables(),
    )


def _queries() -> Iterator[str]:
    for subject in SUBJECTS.values():
        yield f"### {subject.name}"
        yield f"One record for each of the {escaped(subject.about)}."
        yield table(["column", "meaning"], ((code(name), escaped(column.doc or "")) for name, column in columns_of(subject).items()))


def _tables() -> Iterator[str]:
    for stored in TABLES:
        yield f"### Table {stored.name}"
        yield escaped(stored.info["about"])
        rows = ((code(column.name), _TYPES[column.type.python_type], escaped(column.doc or "")) for column in stored.c)
        yield table(["column", "type", "meaning"], rows)
