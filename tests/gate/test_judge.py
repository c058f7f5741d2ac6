"""The decision: what passes, what is a regression, and everything that is neither."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from collbench.analysis.ceilings import CeilingChange, LinkCeiling
from collbench.analysis.differences import Difference, Item
from collbench.analysis.launches import case_of
from collbench.analysis.outcome import Outcome
from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, Case, CaseTimes, ShownFigures
from collbench.gate.baseline import Baseline, scheme_of
from collbench.gate.changes import ExpectedChange
from collbench.gate.floors import read_floor
from collbench.gate.judge import group_states, result_of
from collbench.gate.reasons import (
    AnotherCluster,
    BaselineWithoutProbe,
    BaselineWithoutStart,
    BeganBeforeBaseline,
    BeganInFuture,
    CaseNames,
    ColumnDiffers,
    ExpiredAnnouncement,
    FewLaunches,
    IncompleteCases,
    MissingCases,
    NoHistory,
    ShortBaseline,
    SlowedOnPurpose,
    SlowerLater,
    StillSuspected,
    UncheckedCases,
    UnexpectedChange,
    UnfinishedLaunches,
    UnusedAnnouncement,
    WithoutHistory,
    WithoutProbe,
    WithoutStart,
    WrongCases,
)
from collbench.gate.rule import exceed, learn
from collbench.gate.verdict import PASSED, from_json
from tests.gate.judging import BASE, FACTS, SIZES, allocation, case, judged, slow
from tests.gate.verdicts import suspicion
from tests.results.rows import NIC, make_row


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


# The state of each group: its worst case, what is missing, what its suspicions are.


SIZES_GROUPS = (8, 64 << 20, 128 << 20, 256 << 20)
CELLS = [case_of(make_row(size)) for size in SIZES_GROUPS]
USUAL = np.log([1e-6, 1e-3, 2e-3, 4e-3])


def states(factors: list[float], suspicions: tuple[str, ...] = (), undecided: list[bool] | None = None) -> dict[str, object]:
    """By class of sizes the group's state, for an allocation slower by these factors; NaN: not measured. The third case scatters."""
    history = USUAL + np.array([[0.0, 0.0, 0.1 * (-1) ** number, 0.0] for number in range(6)])
    limits = learn(history, scheme_of(CELLS))
    excess = exceed(limits, (USUAL + np.log(factors))[None, :])
    case = dict(zip(COLUMNS, CELLS[1], strict=True))
    found = group_states(
        limits, excess, CELLS, [suspicion(state, case=case) for state in suspicions], None if undecided is None else np.array(undecided)
    )
    return {each.size_class: each for each in found}


def test_the_worst_case_is_the_one_nearest_to_its_own_limit() -> None:
    large = states([1.0, 1.05, 1.08, 1.0])["large"]
    assert (large.worst, large.worst_factor, large.cases, large.missing) == ("allreduce 64 MiB nccl", pytest.approx(1.05), 3, 0)


def test_a_group_without_a_figure_has_no_worst_case() -> None:
    large = states([1.0, np.nan, np.nan, np.nan])["large"]
    assert (large.worst, large.worst_factor, large.missing, large.factors, large.state) == (None, None, 3, (None,), "no verdict")


@pytest.mark.parametrize(
    ("factors", "suspicions", "undecided", "state"),
    [
        ([1.0] * 4, (), None, "passed"),
        ([1.0, np.nan, 1.0, 1.0], (), None, "no verdict"),
        ([1.0] * 4, (), [False, False, True, False], "no verdict"),
        ([1.0] * 4, (), [True, False, False, False], "passed"),
        ([1.0] * 4, ("suspected",), None, "suspected"),
        ([1.0, np.nan, 1.0, 1.0], ("suspected", "confirmed"), None, "confirmed"),
        ([1.0] * 4, ("cleared",), None, "passed"),
    ],
)
def test_the_state_of_a_group(factors: list[float], suspicions: tuple[str, ...], undecided: list[bool] | None, state: str) -> None:
    assert states(factors, suspicions, undecided)["large"].state == state


# What else has to be known of a verdict.


class TestNotes:
    def test_nothing_to_be_noted(self) -> None:
        assert judged(allocation("new")).notes == ()

    def test_slowed_on_purpose(self) -> None:
        assert judged(replace(allocation("new"), slowed="by=10%")).notes == (SlowedOnPurpose("new", "by=10%"),)

    def test_no_canary(self) -> None:
        assert judged(allocation("new", canary_s=(None, 6e-8, None, 6e-8, 6e-8))).notes == (WithoutProbe("new", 2, 5),)
        silent = Baseline(Path("base"), [replace(each, canary_s=(None,) * 3) for each in BASE.allocations])
        assert judged(allocation("new"), baseline=silent).notes == (BaselineWithoutProbe(6, 6),)

    def test_no_start(self) -> None:
        assert judged(allocation("new", began_utc="")).notes == (WithoutStart("new", several=False),)
        base = Baseline(Path("base"), [replace(BASE.allocations[0], began_utc=""), *BASE.allocations[1:]])
        assert judged(slow("a"), slow("b"), replace(slow("c"), began_utc=""), baseline=base).notes == (
            BaselineWithoutStart(1, 6, "good-0"),
            WithoutStart("c", several=True),
        )

    def test_few_launches(self) -> None:
        assert judged(allocation("a", launches=1), allocation("b", launches=2)).notes == (FewLaunches("a", 1, 3),)

    def test_cases_without_a_history(self) -> None:
        whole = allocation("new")
        (note,) = judged(replace(whole, cases={**whole.cases, case(2048): CaseTimes((1e-6,) * 5)})).notes
        assert note == WithoutHistory("new", 1, CaseNames(("allreduce 2 KiB nccl",)))

    def test_unverified_cases_are_noted(self) -> None:
        unchecked = {case(size): ShownFigures(frozenset(), None, None, checked=size > 8) for size in (0, 8, 1024)}
        assert judged(allocation("new", shown=unchecked)).notes == (UncheckedCases("new", CaseNames(("allreduce 8 B nccl",))),)

    def test_a_slowdown_in_all_allocations_but_the_first_is_noted(self) -> None:
        assert judged(allocation("a"), slow("b"), slow("c")).notes == (SlowerLater("a", ("allreduce 64 MiB nccl",)),)
        assert judged(allocation("a"), slow("b"), allocation("c")).notes == ()

    def test_an_announcement_that_expired(self) -> None:
        (note,) = judged(allocation("new"), expected=(ExpectedChange("software", "x", "upgrade", "ops", date(2026, 11, 1)),)).notes
        assert note == ExpiredAnnouncement("ops", "upgrade", "2026-11-01")


# Candidates that cannot be compared with the baseline, and candidates of another cluster.


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
