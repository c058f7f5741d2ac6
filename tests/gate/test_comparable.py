"""Candidates that cannot be compared with the baseline, and candidates of another cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from collbench.analysis.differences import Difference, Item
from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, Case, CaseTimes
from collbench.gate.baseline import Baseline
from collbench.gate.changes import ExpectedChange
from collbench.gate.reasons import AnotherCluster, CaseNames, ColumnDiffers, MissingCases, UnexpectedChange
from tests.gate.judging import BASE, FACTS, allocation, case, judged, slow


class TestBadInput:
    def test_an_allocation_cannot_be_judged_by_itself(self) -> None:
        with pytest.raises(UsageError, match=r"allocation good-3 .*base"):
            judged(allocation("good-3"))

    def test_an_allocation_of_the_baseline_is_rejected_under_another_name(self) -> None:
        base = Baseline(Path("base"), [replace(each, began_utc=f"2026-11-12T0{n}:00Z") for n, each in enumerate(BASE.allocations)])
        with pytest.raises(UsageError, match=r"allocation new .*good-0"):
            judged(replace(base.allocations[0], name="new"), baseline=base)

    def test_two_candidates_of_one_name_are_rejected(self) -> None:
        with pytest.raises(UsageError, match="--allocation"):
            judged(slow("a"), slow("b"), slow("b"))

    def test_a_candidate_without_a_common_case_is_rejected(self) -> None:
        with pytest.raises(UsageError, match="new and base "):
            judged(replace(allocation("new"), cases={case(5): CaseTimes((1e-6,))}))

    def test_one_allocation_under_two_names_is_rejected(self) -> None:
        one = allocation("a", began_utc="2026-11-20T10:00:00Z")
        with pytest.raises(UsageError, match="a and b "):
            judged(one, replace(one, name="b", began_utc="2026-11-20T11:00:00+01:00"))

    def test_the_error_has_the_column_that_differs(self) -> None:
        piped = replace(allocation("new"), cases={in_mode(name, "pipelined"): each for name, each in allocation("new").cases.items()})
        with pytest.raises(UsageError, match=r"mode .*pipelined.*isolated"):
            judged(piped)

    def test_some_cases_in_another_mode_are_missing(self) -> None:
        whole = allocation("new")
        mixed = {in_mode(name, "pipelined") if name == case(8) else name: each for name, each in whole.cases.items()}
        assert judged(replace(whole, cases=mixed)).reasons == (
            MissingCases("new", CaseNames(("allreduce 8 B nccl",)), differs=ColumnDiffers("mode", "pipelined", "isolated")),
        )

    def test_imported_and_measured_allocations_are_not_compared(self) -> None:
        with pytest.raises(UsageError, match=r"new .*imported.*base"):
            judged(replace(allocation("new"), imported=True))
        imported = Baseline(Path("base"), [replace(each, imported=True) for each in BASE.allocations])
        assert judged(replace(allocation("new"), imported=True), baseline=imported).result == "passed"


def in_mode(name: Case, mode: str) -> Case:
    return tuple(mode if column == "mode" else value for column, value in zip(COLUMNS, name, strict=True))


ELSEWHERE = {**FACTS, "topology": {"nic": "100 Gb/s"}, "hosts": {"names": "node7, node8"}}


class TestAnotherCluster:
    def test_other_hosts_and_other_machines_are_another_cluster(self) -> None:
        verdict = judged(replace(allocation("new"), facts=ELSEWHERE))
        assert verdict.result == "no verdict"
        assert verdict.reasons[0] == AnotherCluster("new", ("node7", "node8"), "base", ("node1",))

    def test_a_host_in_common_is_a_change_of_the_same_cluster(self) -> None:
        verdict = judged(replace(allocation("new"), facts={**ELSEWHERE, "hosts": {"names": "node1, node7"}}))
        assert verdict.reasons == (UnexpectedChange(Difference(Item.of("topology", "nic"), "400 Gb/s", "100 Gb/s")),)

    def test_other_nodes_with_equal_machines_pass(self) -> None:
        assert judged(replace(allocation("new"), facts={**FACTS, "hosts": {"names": "node7"}})).result == "passed"

    def test_an_announced_change_is_not_another_cluster(self) -> None:
        announced = ExpectedChange("topology", "nic", "slower NICs", "ops", date(2026, 12, 1))
        assert judged(replace(allocation("new"), facts=ELSEWHERE), expected=(announced,)).result == "passed"
