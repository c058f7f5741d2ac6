"""The verdict: what it counts, and the form in which it is kept."""

from __future__ import annotations

import json
from dataclasses import replace

from collbench.gate.reasons import CaseNames, MissingCases, StillSuspected, SuspectedBelowFloor
from collbench.gate.verdict import from_json
from collbench.reason import Text
from tests.gate.verdicts import regression, suspicion, verdict


def test_it_goes_through_json_and_back() -> None:
    for each in (verdict(), regression()):
        assert from_json(json.loads(json.dumps(each.as_json()))) == each


def test_it_counts_suspicions_and_floors_of_a_state() -> None:
    told = regression()
    assert {state: told.count(state) for state in ("confirmed", "suspected", "accepted", "cleared")} == {
        "confirmed": 2, "suspected": 0, "accepted": 1, "cleared": 1,
    }  # fmt: skip


def test_a_share_that_no_case_is_below_is_reached() -> None:
    (floor,) = regression().floors
    assert regression().reached == ["ring:50@1M-"]
    assert regression(floors=(replace(floor, state="cleared"),)).reached == ["ring:80@64M-", "ring:50@1M-"]
    assert regression(floors=(replace(floor, state="no verdict"),)).reached == ["ring:50@1M-"]


def test_it_waits_if_only_a_second_allocation_is_missing() -> None:
    first = StillSuspected(1, 2)
    undecided = {"result": "no verdict", "suspicions": (suspicion("suspected"),)}
    assert verdict(**undecided, reasons=(first,)).waits
    assert verdict(**undecided, reasons=(first, SuspectedBelowFloor(CaseNames(("allreduce 8 B mpi",))))).waits
    assert not verdict(**undecided, reasons=(first, MissingCases("new", CaseNames(("allreduce 8 B mpi",))))).waits
    assert not verdict(**undecided, reasons=(Text("1 suspect"),)).waits
    assert not verdict().waits
    assert not regression(reasons=(first,)).waits
