"""The decision: what passes, what is a regression, and everything that is neither."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from collbench.analysis.ceilings import CeilingChange, LinkCeiling
from collbench.analysis.differences import Difference, Item
from collbench.analysis.outcome import Outcome
from collbench.gate.allocation import CaseTimes, ShownFigures
from collbench.gate.baseline import Baseline
from collbench.gate.changes import ExpectedChange
from collbench.gate.floors import read_floor
from collbench.gate.judge import result_of
from collbench.gate.reasons import (
    BeganBeforeBaseline,
    BeganInFuture,
    CaseNames,
    IncompleteCases,
    MissingCases,
    NoHistory,
    ShortBaseline,
    StillSuspected,
    UnexpectedChange,
    UnfinishedLaunches,
    UnusedAnnouncement,
    WrongCases,
)
from collbench.gate.verdict import PASSED, from_json
from tests.gate.judging import BASE, FACTS, SIZES, allocation, case, judged, slow
from tests.gate.verdicts import suspicion
from tests.results.rows import NIC


class TestResults:
    def test_an_unchanged_candidate_passes(self) -> None:
        verdict = judged(allocation("new"))
        assert (verdict.result, verdict.exit_code, verdict.reasons, verdict.suspicions) == ("passed", 0, (), ())
        assert (verdict.cases, verdict.allocations, verdict.thin) == (5, 6, False)

    def test_one_slow_allocation_makes_a_suspect_and_no_verdict(self) -> None:
        verdict = judged(slow("new"))
        assert (verdict.result, verdict.exit_code) == ("no verdict", 3)
        assert verdict.reasons == (StillSuspected(1, 2),)
        (suspect,) = verdict.suspicions
        assert (suspect.kind, suspect.name, suspect.state) == ("cell", "allreduce 64 MiB nccl", "suspected")
        assert suspect.factors == pytest.approx((1.1,))
        assert suspect.limit == pytest.approx(1.02)
        assert suspect.case["size_bytes"] == 64 << 20

    def test_three_slow_allocations_are_a_regression(self) -> None:
        verdict = judged(slow("a"), slow("b", 1.09), slow("c", 1.12))
        assert (verdict.result, verdict.exit_code) == ("regression", 1)
        assert [(each.name, each.state) for each in verdict.suspicions] == [("allreduce 64 MiB nccl", "confirmed")]

    def test_a_suspect_that_was_fast_again_is_cleared(self) -> None:
        verdict = judged(slow("a"), slow("b"), allocation("c"))
        assert (verdict.result, verdict.suspicions[0].state) == ("passed", "cleared")

    def test_confirmations_may_hold_the_suspects_alone(self) -> None:
        alone = {case(64 << 20): CaseTimes((0.0741,))}
        verdict = judged(slow("a"), *(replace(slow(name, launches=1), cases=alone) for name in "bc"))
        assert verdict.result == "regression"
        assert [each.kind for each in verdict.suspicions] == ["cell"]

    def test_suspects_alone_do_not_make_all_cases_suspect(self) -> None:
        all_slow = dict.fromkeys(SIZES, 1.1)
        alone = [replace(allocation(name, launches=1), cases={case(64 << 20): CaseTimes((0.0741,))}) for name in "bc"]
        verdict = judged(allocation("a", all_slow), *alone)
        states = {(each.kind, each.name): each.state for each in verdict.suspicions}
        assert states["cell", "allreduce 64 MiB nccl"] == "confirmed"
        assert states["whole", "all cases"] == "suspected"
        assert states["group", "allreduce on nccl, large messages"] == "suspected"

    def test_a_slowdown_below_the_limit_of_every_case_is_found_in_all_cases(self) -> None:
        slower = dict.fromkeys(SIZES, 1.018)
        verdict = judged(*(allocation(name, slower) for name in "abc"))
        assert verdict.result == "regression"
        assert {each.kind for each in verdict.suspicions} == {"whole", "group"}


class TestNoPass:
    def test_a_short_history_gives_no_verdict(self) -> None:
        short = Baseline(Path("base"), BASE.allocations[:3])
        verdict = judged(*(slow(name) for name in "abc"), baseline=short)
        assert verdict.result == "no verdict"
        assert verdict.reasons[0] == ShortBaseline("base", 3, 4)

    def test_four_allocations_are_a_thin_baseline(self) -> None:
        assert judged(allocation("new"), baseline=Baseline(Path("base"), BASE.allocations[:4])).thin

    def test_a_missing_case_never_passes(self) -> None:
        whole = allocation("new")
        torn = replace(whole, cases={name: measured for name, measured in whole.cases.items() if name != case(8)})
        verdict = judged(torn)
        assert verdict.result == "no verdict"
        assert verdict.reasons == (MissingCases("new", CaseNames(("allreduce 8 B nccl",))),)

    def test_a_case_that_could_not_be_measured_is_missing_with_its_reason(self) -> None:
        whole = allocation("new")
        torn = replace(whole, cases={**whole.cases, case(8): CaseTimes((None,) * 5, 0, "no GPU")})
        assert judged(torn).reasons == (MissingCases("new", CaseNames(("allreduce 8 B nccl",)), "no GPU"),)

    def test_a_regression_is_reported_with_another_case_missing(self) -> None:
        without = {name: measured for name, measured in slow("a").cases.items() if name != case(8)}
        verdict = judged(replace(slow("a"), cases=without), slow("b"), slow("c"))
        assert (verdict.result, len(verdict.reasons)) == ("regression", 1)

    def test_a_launch_that_broke_off_never_passes(self) -> None:
        verdict = judged(allocation("new", unfinished=2))
        assert (verdict.result, verdict.reasons) == ("no verdict", (UnfinishedLaunches("new", 2, 5),))

    def test_a_case_that_broke_in_some_launches_never_passes(self) -> None:
        whole = allocation("new")
        torn = replace(whole, cases={**whole.cases, case(8): CaseTimes((1e-6, None, None, None, None))})
        verdict = judged(torn)
        assert verdict.result == "no verdict"
        assert verdict.reasons == (IncompleteCases("new", CaseNames(("allreduce 8 B nccl",))),)

    def test_an_incomplete_confirmation_clears_no_suspect(self) -> None:
        fast = allocation("b")
        torn = {
            **fast.cases,
            case(64 << 20): CaseTimes((None, None, None, None, 64e-3)),
            case(8): CaseTimes((None, 1e-6, 1e-6, 1e-6, 1e-6)),
        }
        verdict = judged(slow("a"), replace(fast, cases=torn), allocation("c"))
        assert verdict.result == "no verdict"
        assert verdict.reasons == (IncompleteCases("b", CaseNames(("allreduce 64 MiB nccl",))),)
        assert [each.state for each in verdict.groups] == ["passed", "no verdict"]

    def test_a_case_of_the_last_good_allocation_may_not_be_missing(self) -> None:
        newest = BASE.allocations[-1]
        more = replace(newest, cases={**newest.cases, case(2048): CaseTimes((3e-6,) * 3)})
        later = Baseline(Path("base"), [*BASE.allocations[:-1], more])
        assert judged(allocation("new"), baseline=later).reasons == (MissingCases("new", CaseNames(("allreduce 2 KiB nccl",))),)
        earlier = Baseline(Path("base"), [more, *BASE.allocations[:-1]])
        assert judged(allocation("new"), baseline=earlier).result == "passed"

    def test_a_baseline_in_which_no_case_has_a_history_gives_no_verdict(self) -> None:
        each_its_own = [
            replace(each, cases={case(size): CaseTimes((1e-6,) * 3)}) for each, size in zip(BASE.allocations, SIZES, strict=False)
        ]
        verdict = judged(allocation("new"), baseline=Baseline(Path("base"), each_its_own))
        assert (verdict.result, verdict.cases) == ("no verdict", 0)
        assert verdict.reasons == (NoHistory("base", 4),)

    def test_a_clock_in_the_past_gives_no_verdict(self) -> None:
        verdict = judged(allocation("new"), replace(allocation("old"), began_utc="2026-11-11"))
        assert verdict.result == "no verdict"
        assert verdict.reasons[0] == BeganBeforeBaseline("old", "2026-11-11", "good-5", "2026-11-12")

    def test_a_clock_in_the_future_gives_no_verdict(self) -> None:
        verdict = judged(allocation("new", began_utc="2026-11-23T01:00:00+00:00"))
        assert verdict.reasons == (BeganInFuture("new", "2026-11-23T01:00:00+00:00", "2026-11-21"),)
        assert judged(allocation("new", began_utc="2026-11-22T23:00:00+00:00")).result == "passed"

    def test_wrong_data_come_before_everything(self) -> None:
        whole = slow("new")
        verdict = judged(replace(whole, cases={**whole.cases, case(8): CaseTimes((1e-6,) * 5, 7)}))
        assert (verdict.result, verdict.exit_code) == ("wrong data", 4)
        assert verdict.reasons[0] == WrongCases("new", CaseNames(("allreduce 8 B nccl",)))


NEW = {**FACTS, "software": {"nccl": "2.30"}}
UNEXPECTED = UnexpectedChange(Difference(Item.of("software", "nccl"), "2.29", "2.30"))


class TestChanges:
    def test_an_unexpected_change_that_explains_a_confirmed_slowdown_is_named_by_the_regression(self) -> None:
        verdict = judged(*(replace(slow(name), facts=NEW) for name in "abc"))
        assert (verdict.result, verdict.exit_code) == ("regression", 1)
        assert verdict.reasons[0] == UNEXPECTED
        assert verdict.unexpected_cause is not None and verdict.unexpected_cause.sentence() == "software nccl: 2.29 → 2.30"

    def test_an_unexpected_change_that_cannot_explain_it_is_not_named_as_the_cause(self) -> None:
        torch = {**FACTS, "software": {**FACTS["software"], "gloo": "2"}}
        verdict = judged(*(replace(slow(name), facts=torch) for name in "abc"))
        assert (verdict.result, verdict.unexpected_cause) == ("regression", None)
        assert [each.explains for each in verdict.changes] == [False] * len(verdict.changes)

    @pytest.mark.parametrize("measured", [(), ("a",), ("a", "b")])
    def test_an_unexpected_change_without_a_confirmed_slowdown_gives_no_verdict(self, measured: tuple[str, ...]) -> None:
        allocations = [replace(slow(name), facts=NEW) for name in measured] or [replace(allocation("new"), facts=NEW)]
        verdict = judged(*allocations)
        assert (verdict.result, verdict.exit_code, verdict.unexpected_cause) == ("no verdict", 3, None)
        assert UNEXPECTED in verdict.reasons

    def test_an_announced_one_is_judged_and_stays_attached(self) -> None:
        announced = ExpectedChange("software", "nccl*", "upgrade", "ops", date(2026, 12, 1))
        verdict = judged(*(replace(slow(name), facts=NEW) for name in "abc"), expected=(announced,))
        assert verdict.result == "regression"
        assert [each.sentence() for each in verdict.changes] == ["software nccl: 2.29 → 2.30"]

    def test_a_change_before_a_confirmation_counts_too(self) -> None:
        verdict = judged(slow("a"), replace(slow("b"), facts=NEW), slow("c"))
        assert verdict.result == "regression"
        assert verdict.reasons[0] == UNEXPECTED

    def test_an_announcement_expires(self) -> None:
        expired = ExpectedChange("software", "nccl", "upgrade", "ops", date(2026, 11, 20))
        assert judged(replace(allocation("new"), facts=NEW), expected=(expired,)).result == "no verdict"

    def test_a_slowdown_is_accepted_only_where_the_change_that_it_comes_of_is_there(self) -> None:
        announced = ExpectedChange("software", "nccl*", "fewer CTAs", "ops", date(2026, 12, 1), slower_percent=20)
        verdict = judged(slow("a"), expected=(announced,))
        assert (verdict.result, verdict.suspicions[0].state) == ("no verdict", "suspected")
        assert verdict.notes == (UnusedAnnouncement("ops", "fewer CTAs", "software", "nccl*"),)
        changed = judged(replace(slow("a"), facts=NEW), expected=(announced,))
        assert (changed.result, changed.suspicions[0].state) == ("passed", "accepted")
        half = Baseline(Path("base"), [*BASE.allocations[:-1], replace(BASE.allocations[-1], facts=NEW)])
        assert judged(replace(slow("a"), facts=NEW), expected=(announced,), baseline=half).suspicions[0].state == "accepted"

    def test_other_hosts_are_no_change(self) -> None:
        assert judged(replace(allocation("new"), facts={**FACTS, "hosts": {"names": "node7"}})).result == "passed"


class TestFloors:
    BELOW = ShownFigures(frozenset(), 71.0, NIC, None, (71.0,) * 5)

    def test_below_in_three_allocations_is_a_regression_though_nothing_else_is_known(self) -> None:
        asked = (read_floor("ring:80@64M"),)
        nights = [replace(allocation(name), shown={case(64 << 20): self.BELOW}) for name in "abc"]
        verdict = judged(*nights, asked=asked, baseline=Baseline(Path("base"), BASE.allocations[:3]))
        assert (verdict.result, verdict.floors[0].state) == ("regression", "confirmed")
        assert judged(nights[0], asked=asked).result == "no verdict"

    def test_flipped_launches_count_neither_for_nor_against_it(self) -> None:
        shown = {case(64 << 20): self.BELOW._replace(percents=(71.0, 71.0, 85.0, 85.0, 85.0), percent=85.0)}
        flipped = allocation("new", canary_s=(6e-8, 6e-8, 6e-8, 26e-8, 26e-8), shown=shown)
        assert judged(flipped, asked=(read_floor("ring:80@64M"),)).floors[0].percents == (71.0,)


def test_a_ceiling_that_fell_is_reported_and_floors_use_the_one_from_before() -> None:
    was = LinkCeiling("allreduce", "nccl", "all", 4, 1, None, "ring", 50e9, "NIC 4×100 Gb/s")
    now = was._replace(bytes_per_s=25e9, limited_by="NIC 2×100 Gb/s")
    base = Baseline(Path("base"), [allocation(f"good-{number}", launches=3, ceilings=(was,)) for number in range(6)])
    given = judged(allocation("night", ceilings=(now,)), baseline=base)
    assert given.result == PASSED
    assert given.ceilings == (CeilingChange("allreduce", "nccl", "ring", 50e9, 25e9, "NIC 4×100 Gb/s", "NIC 2×100 Gb/s"),)
    assert judged(allocation("night", ceilings=(was,)), baseline=base).ceilings == ()
    assert from_json(json.loads(json.dumps(given.as_json()))) == given


def test_the_four_outcomes_of_cases_are_counted() -> None:
    assert judged(allocation("night")).outcomes == {Outcome.SLOWER: 0, Outcome.INCONCLUSIVE: 0, Outcome.NO_CHANGE: 5, Outcome.FASTER: 0}
    suspected = judged(slow("night"))
    assert suspected.outcomes[Outcome.INCONCLUSIVE] == 1 and suspected.outcomes[Outcome.SLOWER] == 0
    of_group = judged(allocation("night", dict.fromkeys(SIZES[2:], 1.015)))
    assert (of_group.suspicions[0].kind, of_group.outcomes[Outcome.NO_CHANGE]) == ("group", 2)
    confirmed = judged(*(slow(f"night-{number}") for number in range(3)))
    assert confirmed.outcomes[Outcome.SLOWER] == 1
    assert judged(slow("night", 0.5)).outcomes[Outcome.FASTER] == 1


class TestLaterAllocations:
    """Allocations after the first measure suspects again: what else they hold, or lack, decides nothing."""

    SCATTERED = CaseTimes((1e-6, 1.4e-6, 0.6e-6, 1.5e-6, 0.5e-6))

    def test_unstable_cases_that_are_not_suspects_do_not_prevent_passing(self) -> None:
        later = allocation("b")
        assert judged(allocation("a"), replace(later, cases={**later.cases, case(8): self.SCATTERED})).result == "passed"
        first = allocation("a")
        assert judged(replace(first, cases={**first.cases, case(8): self.SCATTERED})).result == "no verdict"

    def test_incomplete_cases_that_are_not_suspects_do_not_prevent_passing(self) -> None:
        later = allocation("b")
        torn = {**later.cases, case(8): CaseTimes((1e-6, None, 1e-6, 1e-6, 1e-6))}
        assert judged(allocation("a"), replace(later, cases=torn)).result == "passed"

    def test_a_case_that_is_slow_in_every_launch_is_slow_and_not_unstable(self) -> None:
        scattered = CaseTimes(tuple((1e-6 + (64 << 20) * 1e-9) * factor for factor in (1.3, 2.0, 3.0, 1.5, 4.0)))
        each = [replace(allocation(name), cases={**allocation(name).cases, case(64 << 20): scattered}) for name in "abc"]
        verdict = judged(*each)
        assert (verdict.result, verdict.reasons) == ("regression", ())


@pytest.mark.parametrize(
    ("problems", "suspects", "result"),
    [
        ((), (), "passed"),
        ((), ("confirmed",), "regression"),
        ((), ("cleared", "accepted"), "passed"),
        ((False,), (), "no verdict"),
        ((False,), ("confirmed",), "regression"),
        ((True,), ("confirmed",), "no verdict"),
        ((False, True), ("confirmed",), "no verdict"),
    ],
)
def test_a_problem_that_makes_the_sides_incomparable_blocks_a_regression(
    problems: tuple[bool, ...], suspects: tuple[str, ...], result: str
) -> None:
    assert (
        result_of(
            [NoHistory("base", 4) if blocks else UnfinishedLaunches("new", 1, 5) for blocks in problems],
            [suspicion(state) for state in suspects],
            [],
        )
        == result
    )
