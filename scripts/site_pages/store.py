"""The page of the store's tables and views."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.plugins.store.query import SUBJECTS, columns_of
from collbench.plugins.store.schema import TABLES, VERSION, VIEWS
from site_pages.markdown import code, codes, escaped, page, table


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
        table(["view", "content", "columns"], ((code(each.name), escaped(each.about), codes(_names(each.columns))) for each in VIEWS)),
        "## Tables",
        *_tables(),
    )


def _names(columns: tuple[tuple[str, str], ...]) -> list[str]:
    return [name for name, _ in columns]


def _queries() -> Iterator[str]:
    for subject in SUBJECTS.values():
        yield f"### {subject.name}"
        yield f"One record for each of the {escaped(subject.about)}."
        yield table(["column", "meaning"], ((code(name), escaped(each.about)) for name, each in columns_of(subject).items()))


def _tables() -> Iterator[str]:
    for each in TABLES:
        yield f"### Table {each.name}"
        yield escaped(each.about)
        rows = ((code(column.name), column.kind, escaped(column.about)) for column in each.columns)
        yield table(["column", "type", "meaning"], rows)
