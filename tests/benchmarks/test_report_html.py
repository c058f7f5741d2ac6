"""That the benchmark of the page makes both pages and prints what it must. Times are not asserted: this machine may be busy."""

from __future__ import annotations

import pytest

from benchmarks import report_html


@pytest.mark.long
def test_it_prints_times_memory_and_sizes() -> None:
    outcome = report_html.measure(1, ranks=64, operations=("allreduce",))
    assert [figure.cases()[0] for figure in outcome.figures] == [
        "full sweep",
        "full sweep, its page",
        "full sweep, peak memory",
        "matrix of 64 ranks",
        "matrix of 64 ranks, peak memory",
        "matrix of 64 ranks, its page",
    ]
    assert outcome.figures[1].cases()[-1] == "met"
    assert [each["what"] for each in outcome.raw] == ["sweep", "matrix"]
