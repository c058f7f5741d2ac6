"""The benchmark of the store runs on every database, small. Times are not asserted: this machine may be busy."""

import pytest

from tools.benchmarks import store

pytestmark = pytest.mark.long


def test_every_database_is_filled_queried_and_written_by_several_processes() -> None:
    pytest.importorskip("duckdb", reason="DuckDB is not installed: only this benchmark compares it")
    outcome = store.measure(2, nodes=4, nights=5, sizes=3)
    shown = {figure.cases()[0]: figure.cases()[1] for figure in outcome.figures}
    assert shown["SQLite, by case: 4 writers"].endswith("100 of 100 runs")
    assert shown["DuckDB: 4 writers"] == "a second process cannot open the file"
    assert all(each["bytes"] > 0 and len(each["history_s"]) == 2 for each in outcome.raw)
