"""That the benchmark of the gate judges and prints what it must. Times are not asserted: this machine may be busy."""

from __future__ import annotations

import pytest

from benchmarks import gate_10k


@pytest.mark.in_turn
def test_it_prints_times_and_memory_and_imports_nothing_heavy() -> None:
    outcome = gate_10k.measure(1, cases=60, allocations=4)
    figures = [figure.cases() for figure in outcome.figures]
    assert [each["what"] for each in outcome.raw] == ["one", "three"]
    assert {each["result"] for each in outcome.raw} <= {"passed", "no verdict"}
    assert [each[0] for each in figures] == [
        f"one allocation ({outcome.raw[0]['result']})",
        "one allocation, peak memory",
        f"three allocations, all cases ({outcome.raw[1]['result']})",
        "three allocations, all cases, peak memory",
        "imported of torch, mpi4py, cupy",
    ]
    assert figures[-1][1] == "none"
