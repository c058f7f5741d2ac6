"""The verdict: what it counts, and the form in which it is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.gate.plausible import StoredCause
from collbench.gate.reasons import CaseNames, MissingCases, StillSuspected, SuspectedBelowFloor
from collbench.gate.verdict import from_json, read_verdict
from collbench.reason import Text
from tests.gate.verdicts import regression, suspicion, verdict

ROOT = Path(__file__).parents[2]


def test_it_goes_through_json_and_back() -> None:
    for each in (verdict(), regression()):
        assert from_json(json.loads(json.dumps(each.as_json()))) == each


def test_the_cause_of_a_stored_verdict_has_its_name_and_its_sentence() -> None:
    found = read_verdict(ROOT / "reports/gate-trials/group-1/verdict.json").cause
    assert isinstance(found, StoredCause) and found.cause == "backend" and found.sentence.startswith("gloo, or a link")


@pytest.mark.parametrize(
    "fact",
    [
        {"kind": "slow_messages", "causes": [], "messages": "large", "contrast": None, "slowdown": [0, 0], "backends": ["mpi"]},
        {"kind": "slow_messages", "causes": ["link"], "messages": "large", "contrast": None, "slowdown": [0, 1e9], "backends": ["mpi"]},
        {"kind": "slow_sizes", "sizes": [8], "series": [], "slowdown": 0.1},
        {"kind": "of_a_later_version"},
        7,
    ],
)
def test_a_cause_that_is_not_valid_is_its_sentence(fact: object) -> None:
    actual = regression().as_json()
    assert from_json({**actual, "cause": {"kind": "link", "sentence": "a link", "fact": fact}}).cause == StoredCause("link", "a link")


def test_a_factor_that_is_no_number_is_a_text() -> None:
    actual = regression().as_json()
    change = {**actual["changes"][0], "plausible": "x", "plausible_fact": {"kind": "matching_rate", "link": 1e9, "measured": 0.1}}
    assert from_json({**actual, "changes": [change]}).changes[0].plausible == Text("x")


def test_it_counts_suspicions_and_floors_of_a_state() -> None:
    actual = regression()
    assert {state: actual.count(state) for state in ("confirmed", "suspected", "accepted", "cleared")} == {
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
