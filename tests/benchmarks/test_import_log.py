"""That the benchmark of the import imports all three logs and prints what it must. Times are not asserted: this machine may be busy."""

from __future__ import annotations

import pytest

from benchmarks import import_log


@pytest.mark.long
def test_it_prints_times_and_memory_of_each_log() -> None:
    outcome = import_log.measure(1, lines=4000)
    assert [figure.cases()[0] for figure in outcome.figures] == [
        "tables within NCCL's log (56 rows)",
        "tables within NCCL's log, peak memory",
        "a table again and again (4,480 rows)",
        "a table again and again, peak memory",
        "lines of a table alone (7,958 rows)",
        "lines of a table alone, peak memory",
    ]
    assert [each["rows"] for each in outcome.raw] == [56, 4480, 7958]
