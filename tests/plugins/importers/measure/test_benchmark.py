"""That the benchmark of the import runs and prints what it must. Times are not asserted: this machine may be busy."""

import pytest

from tools.benchmarks import import_log


@pytest.mark.long
def test_an_import_prints_times_and_memory_of_each_log():
    outcome = import_log.measure(1, lines=4000)
    logs = {"tables within NCCL's log": "56", "a table again and again": "4,480", "lines of a table alone": "7,958"}
    assert outcome.names() == [each for log, rows in logs.items() for each in (f"{log} ({rows} rows)", f"{log}, peak memory")]
    assert [each["rows"] for each in outcome.raw] == [56, 4480, 7958]
