"""What cannot be judged at all, and what is another cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from collbench.analysis.differences import Difference, Item
from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, CaseTimes, Case
from collbench.gate.baseline import Baseline
from collbench.gate.changes import ExpectedChange
from collbench.gate.reasons import AnotherCluster, CaseNames, ColumnDiffers, MissingCases, UnexpectedChange
from tests.gate.judging import BASE, FACTS, allocation, case, judged, slow


class TestBadInput:
    def test_an_allocation_cannot_be_judged_by_itself(self) -> None:
        with pytest.raises(UsageError, match="allocation good-3 is in the baseline base: drop it there first"):
            judged(allocation("good-3"))

    def test_nor_under_another_name(self) -> None:
        base = Baseline(Path("base"), [replace(each, began_utc=f"2026-11-12T0{n}:00Z") for n, each in enumerate(BASE.allocations)])
        with pytest.raises(UsageError, match="allocation new is in the baseline base as good-0: drop it there first"):
            judged(replace(base.allocations[0], name="new"), baseline=base)

    def test_two_of_one_name_are_refused(self) -> None:
        with pytest.raises(UsageError, match="two of the candidate's"):
            judged(slow("a"), slow("b"), slow("b"))

    def test_nothing_in_common_is_refused(self) -> None:
        with pytest.raises(UsageError, match="allocation new and base have no case in common: measure"):
            judged(replace(allocation("new"), cases={case(5): CaseTimes((1e-6,))}))

    def test_nor_is_one_allocation_two(self) -> None:
        one = allocation("a", began_utc="2026-11-20T10:00:00Z")
        with pytest.raises(UsageError, match="a and b are one allocation under"):
            judged(one, replace(one, name="b", began_utc="2026-11-20T11:00:00+01:00"))

    def test_another_mode_is_named(self) -> None:
        piped = replace(allocation("new"), cases={in_mode(name, "pipelined"): each for name, each in allocation("new").cases.items()})
        with pytest.raises(UsageError, match=r"\(mode is pipelined here, isolated in the baseline\)"):
            judged(piped)

    def test_some_cases_in_another_mode_are_missing_and_named(self) -> None:
        whole = allocation("new")
        mixed = {in_mode(name, "pipelined") if name == case(8) else name: each for name, each in whole.cases.items()}
        assert judged(replace(whole, cases=mixed)).reasons == (
            MissingCases("new", CaseNames(("allreduce 8 B nccl",)), differs=ColumnDiffers("mode", "pipelined", "isolated")),
        )

    def test_imported_and_measured_are_not_judged_by_each_other(self) -> None:
        with pytest.raises(UsageError, match="allocation new was imported and the baseline base was measured here"):
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

    def test_other_nodes_whose_machines_are_equal_pass(self) -> None:
        assert judged(replace(allocation("new"), facts={**FACTS, "hosts": {"names": "node7"}})).result == "passed"

    def test_nor_is_it_another_cluster_where_the_change_was_announced(self) -> None:
        announced = ExpectedChange("topology", "nic", "slower NICs", "ops", date(2026, 12, 1))
        assert judged(replace(allocation("new"), facts=ELSEWHERE), expected=(announced,)).result == "passed"
