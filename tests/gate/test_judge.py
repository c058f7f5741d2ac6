"""The decision: what passes, what is a regression, and everything that is neither."""

import json
from datetime import date

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.analysis.ceilings import CeilingChange, LinkCeiling
from collbench.analysis.differences import Difference, Item
from collbench.analysis.launches import case_of
from collbench.analysis.outcome import Outcome
from collbench.errors import UsageError
from collbench.gating import reasons
from collbench.gating.allocation import Allocation, CaseTimes, ShownFigures
from collbench.gating.baseline import Baseline, scheme_of
from collbench.gating.conditions import ExpectedChange, read_floor
from collbench.gating.judge import group_states, result_of
from collbench.gating.rule import exceed, learn
from collbench.gating.verdict import PASSED, REGRESSION, UNDECIDED, from_json
from collbench.records import document
from tests.gate.judging import BASE, FACTS, SIZES, allocation, base, case, judged, slow, with_case, without_case
from tests.gate.verdicts import suspicion
from tests.results.rows import NIC, make_row

SCATTERED = (1e-6, 1.4e-6, 0.6e-6, 1.5e-6, 0.5e-6)
HALF_ELSEWHERE = {**FACTS, "topology": {"nic": "100 Gb/s"}, "hosts": {"names": "node1, node7"}}
ELSEWHERE = {**FACTS, "topology": {"nic": "100 Gb/s"}, "hosts": {"names": "node7, node8"}}
OTHER_NIC = reasons.UnexpectedChange(Difference(Item.of("topology", "nic"), "400 Gb/s", "100 Gb/s"))


class TestResults:
    def test_an_unchanged_candidate_passes_and_a_slowdown_of_every_case_is_found(self) -> None:
        verdict = judged(allocation("new"))
        assert (verdict.result, verdict.exit_code, verdict.reasons, verdict.suspicions) == ("passed", 0, (), ())
        assert (verdict.cases, verdict.allocations, verdict.thin) == (5, 6, False)
        slower = [allocation(name, dict.fromkeys(SIZES, 1.018)) for name in "abc"]
        verdict = judged(*slower)
        assert (verdict.result, {each.kind for each in verdict.suspicions}) == ("regression", {"whole", "group"})
        alike = judged(slower[0])
        suspects = {each.name for each in alike.suspicions if each.kind == "group"}
        assert suspects and {each.name for each in alike.groups if each.state == "suspected"} == suspects

    def test_slow_allocations_are_a_suspect_then_a_regression_or_cleared(self) -> None:
        verdict = judged(slow("new"))
        assert (verdict.result, verdict.exit_code, verdict.reasons) == ("no verdict", 3, (reasons.StillSuspected(1, 2),))
        (suspect,) = verdict.suspicions
        assert (suspect.kind, suspect.name, suspect.state) == ("cell", "allreduce 64 MiB nccl", "suspected")
        assert (suspect.factors, suspect.limit) == (pytest.approx((1.1,)), pytest.approx(1.02))
        assert suspect.case["size_bytes"] == 64 << 20
        (group,) = (each for each in verdict.groups if each.state == "suspected")
        assert (group.worst, group.worst_factor, group.worst_limit) == (suspect.name, pytest.approx(1.1), pytest.approx(1.02))
        verdict = judged(slow("a"), slow("b", 1.09), slow("c", 1.12))
        assert (verdict.result, verdict.exit_code) == ("regression", 1)
        assert [(each.name, each.state) for each in verdict.suspicions] == [("allreduce 64 MiB nccl", "confirmed")]
        verdict = judged(slow("a"), slow("b"), allocation("c"))
        assert (verdict.result, verdict.suspicions[0].state) == ("passed", "cleared")

    def test_confirmations_may_hold_the_suspects_alone_but_do_not_make_all_cases_suspect(self) -> None:
        alone = [replace(allocation(name, launches=1), cases={case(64 << 20): CaseTimes((0.0741,))}) for name in "bc"]
        verdict = judged(slow("a"), *alone)
        assert (verdict.result, [each.kind for each in verdict.suspicions]) == ("regression", ["cell"])
        verdict = judged(allocation("a", dict.fromkeys(SIZES, 1.1)), *alone)
        states = {each.name: each.state for each in verdict.suspicions}
        assert states["allreduce 64 MiB nccl"] == "confirmed"
        assert states["all cases"] == states["allreduce on nccl, large messages"] == "suspected"


NEWEST, SMALL_CASE = BASE.allocations[-1], reasons.CaseNames(("allreduce 8 B nccl",))
MORE = with_case(NEWEST, 2048, 3e-6, 3e-6, 3e-6)
INCOMPLETE_AGAIN = with_case(with_case(allocation("b"), 64 << 20, None, None, None, None, 64e-3), 8, None, 1e-6, 1e-6, 1e-6, 1e-6)
SINGLE = [replace(each, cases={case(size): CaseTimes((1e-6,) * 3)}) for each, size in zip(BASE.allocations, SIZES, strict=False)]
AT_NIGHT, LATER = "2026-11-22T23:00:00+00:00", "2026-11-23T01:00:00+00:00"
PIPED_CASE = case(8)._replace(mode="pipelined")
MODES = replace(allocation("new"), cases={PIPED_CASE if name == case(8) else name: each for name, each in allocation("new").cases.items()})
JUDGED: dict[str, tuple[list[Allocation], Baseline, str, tuple[reasons.GateReason, ...]]] = {
    "short history": ([allocation("new")], base(*BASE.allocations[:3]), UNDECIDED, (reasons.ShortBaseline("base", 3, 4),)),
    "no case with a history": ([allocation("new")], base(*SINGLE), UNDECIDED, (reasons.NoHistory("base", 4),)),
    "missing case": ([without_case(allocation("new"), 8)], BASE, UNDECIDED, (reasons.MissingCases("new", SMALL_CASE),)),
    "case without a time": ([with_case(allocation("new"), 8, *[None] * 5, na="no GPU")], BASE, UNDECIDED,
        (reasons.MissingCases("new", SMALL_CASE, "no GPU"),)),
    "case in another mode": ([MODES], BASE, UNDECIDED,
        (reasons.MissingCases("new", SMALL_CASE, differs=reasons.ColumnDiffers("mode", "pipelined", "isolated")),)),
    "regression with another case missing": ([without_case(slow("a"), 8), slow("b"), slow("c")], BASE, REGRESSION,
        (reasons.MissingCases("a", SMALL_CASE),)),
    "case of the last good allocation": ([allocation("new")], base(*BASE.allocations[:-1], MORE), UNDECIDED,
        (reasons.MissingCases("new", reasons.CaseNames(("allreduce 2 KiB nccl",))),)),
    "case of an earlier good allocation": ([allocation("new")], base(MORE, *BASE.allocations[:-1]), PASSED, ()),
    "unfinished launches": ([allocation("new", unfinished=2)], BASE, UNDECIDED, (reasons.UnfinishedLaunches("new", 2, 5),)),
    "case missing in some launches": ([with_case(allocation("new"), 8, 1e-6, None, None, None, None)], BASE, UNDECIDED,
        (reasons.IncompleteCases("new", SMALL_CASE),)),
    "incomplete confirmation": ([slow("a"), INCOMPLETE_AGAIN, allocation("c")], BASE, UNDECIDED,
        (reasons.IncompleteCases("b", reasons.CaseNames(("allreduce 64 MiB nccl",))),)),
    "began before the baseline": ([allocation("new"), replace(allocation("old"), began_utc="2026-11-11")], BASE, UNDECIDED,
        (reasons.BeganBeforeBaseline("old", "2026-11-11", "good-5", "2026-11-12"),)),
    "began in the future": ([allocation("new", began_utc=LATER)], BASE, UNDECIDED, (reasons.BeganInFuture("new", LATER, "2026-11-21"),)),
    "began today in another time zone": ([allocation("new", began_utc=AT_NIGHT)], BASE, PASSED, ()),
    # what later allocations have, or lack, besides suspects decides nothing
    "unstable case": ([with_case(allocation("a"), 8, *SCATTERED)], BASE, UNDECIDED, (reasons.UnstableCases("a", SMALL_CASE),)),
    "unstable case later": ([allocation("a"), with_case(allocation("b"), 8, *SCATTERED)], BASE, PASSED, ()),
    "incomplete case later": ([allocation("a"), with_case(allocation("b"), 8, 1e-6, None, 1e-6, 1e-6, 1e-6)], BASE, PASSED, ()),
    "slow in every launch, not unstable": (
        [with_case(allocation(name), 64 << 20, *(0.067 * by for by in (1.3, 2.0, 3.0, 1.5, 4.0))) for name in "abc"], BASE, REGRESSION, ()),
    "another cluster": ([replace(allocation("new"), facts=ELSEWHERE)], BASE, UNDECIDED,
        (reasons.AnotherCluster("new", ("node7", "node8"), "base", ("node1",)), OTHER_NIC)),
    "a host in common": ([replace(allocation("new"), facts=HALF_ELSEWHERE)], BASE, UNDECIDED, (OTHER_NIC,)),
    "other nodes with equal machines": ([replace(allocation("new"), facts={**FACTS, "hosts": {"names": "node7"}})], BASE, PASSED, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", JUDGED)
def test_the_result_and_its_reasons(name: str) -> None:
    candidate, baseline, result, expected = JUDGED[name]
    verdict = judged(*candidate, baseline=baseline)
    assert (verdict.result, verdict.reasons) == (result, expected)


@pytest.mark.parametrize(("by", "result"), [(1.0, UNDECIDED), (1e6, REGRESSION)])
def test_a_baseline_that_detects_only_huge_slowdowns_lets_nothing_pass(by: float, result: str) -> None:
    noisy = base(*(allocation(f"good-{number}", dict.fromkeys(SIZES, 9.0 ** (number % 2))) for number in range(6)))
    verdict = judged(*(allocation(name, dict.fromkeys(SIZES, by)) for name in "abc"), baseline=noisy)
    assert verdict.result == result and {each.state for each in verdict.groups} == {"no verdict" if by == 1.0 else "confirmed"}
    (reason,) = verdict.reasons
    assert isinstance(reason, reasons.TooCoarse) and reason.detected is not None and reason.detected > 10


def test_one_sensitive_case_is_enough_and_imported_or_announced_allocations_are_judged() -> None:
    noisy = base(*(allocation(f"good-{number}", dict.fromkeys(SIZES[2:], 9.0 ** (number % 2))) for number in range(6)))
    assert judged(allocation("a"), baseline=noisy).result == PASSED
    imported = base(*(replace(each, imported=True) for each in BASE.allocations))
    assert judged(allocation("new", imported=True), baseline=imported).result == "passed"
    announced = ExpectedChange("topology", "nic", "slower NICs", "ops", date(2026, 12, 1))
    assert judged(replace(allocation("new"), facts=ELSEWHERE), expected=(announced,)).result == "passed"
    (note,) = judged(allocation("new"), expected=(ExpectedChange("software", "x", "upgrade", "ops", date(2026, 11, 1)),)).notes
    assert note == reasons.ExpiredAnnouncement("ops", "upgrade", "2026-11-01")


def test_short_incomplete_and_wrong_allocations() -> None:
    assert judged(*map(slow, "abc"), baseline=base(*BASE.allocations[:3])).result == UNDECIDED
    assert judged(allocation("new"), baseline=base(*BASE.allocations[:4])).thin
    assert judged(allocation("new"), baseline=base(*SINGLE)).cases == 0
    assert [each.state for each in judged(slow("a"), INCOMPLETE_AGAIN, allocation("c")).groups] == ["passed", "no verdict"]
    verdict = judged(with_case(slow("new"), 8, *[1e-6] * 5, wrong=7))
    assert (verdict.result, verdict.exit_code) == ("wrong data", 4)
    assert verdict.reasons[0] == reasons.WrongCases("new", SMALL_CASE)


NEW = {**FACTS, "software": {"nccl": "2.30"}}
UNEXPECTED = reasons.UnexpectedChange(Difference(Item.of("software", "nccl"), "2.29", "2.30"))


class TestChanges:
    def test_an_unexpected_change_is_the_cause_of_a_regression_where_it_can_be(self) -> None:
        verdict = judged(*(replace(slow(name), facts=NEW) for name in "abc"))
        assert (verdict.result, verdict.exit_code, verdict.reasons[0]) == ("regression", 1, UNEXPECTED)
        assert verdict.unexpected_cause is not None and verdict.unexpected_cause.sentence() == "software nccl: 2.29 → 2.30"
        torch = {**FACTS, "software": {**FACTS["software"], "gloo": "2"}}
        verdict = judged(*(replace(slow(name), facts=torch) for name in "abc"))
        assert (verdict.result, verdict.unexpected_cause) == ("regression", None)
        assert [each.explains for each in verdict.changes] == [False] * len(verdict.changes)
        verdict = judged(slow("a"), replace(slow("b"), facts=NEW), slow("c"))
        assert (verdict.result, verdict.reasons[0]) == ("regression", UNEXPECTED)

    @pytest.mark.parametrize("measured", [(), ("a",), ("a", "b")])
    def test_an_unexpected_change_without_a_confirmed_slowdown_gives_no_verdict(self, measured: tuple[str, ...]) -> None:
        allocations = [replace(slow(name), facts=NEW) for name in measured] or [replace(allocation("new"), facts=NEW)]
        verdict = judged(*allocations)
        assert (verdict.result, verdict.exit_code, verdict.unexpected_cause) == ("no verdict", 3, None)
        assert UNEXPECTED in verdict.reasons

    def test_an_announcement_is_judged_until_it_expires_and_accepts_a_slowdown_of_its_change(self) -> None:
        announced = ExpectedChange("software", "nccl*", "upgrade", "ops", date(2026, 12, 1))
        verdict = judged(*(replace(slow(name), facts=NEW) for name in "abc"), expected=(announced,))
        assert verdict.result == "regression"
        assert [each.sentence() for each in verdict.changes] == ["software nccl: 2.29 → 2.30"]
        expired = ExpectedChange("software", "nccl", "upgrade", "ops", date(2026, 11, 20))
        assert judged(replace(allocation("new"), facts=NEW), expected=(expired,)).result == "no verdict"
        announced = ExpectedChange("software", "nccl*", "fewer CTAs", "ops", date(2026, 12, 1), slower_percent=20)
        verdict = judged(slow("a"), expected=(announced,))
        assert (verdict.result, verdict.suspicions[0].state) == ("no verdict", "suspected")
        assert verdict.notes == (reasons.UnusedAnnouncement("ops", "fewer CTAs", "software", "nccl*"),)
        changed = judged(replace(slow("a"), facts=NEW), expected=(announced,))
        assert (changed.result, changed.suspicions[0].state) == ("passed", "accepted")
        half = base(*BASE.allocations[:-1], replace(BASE.allocations[-1], facts=NEW))
        assert judged(replace(slow("a"), facts=NEW), expected=(announced,), baseline=half).suspicions[0].state == "accepted"


def test_a_floor_is_judged_without_flipped_launches_even_if_nothing_else_is_known() -> None:
    asked = (read_floor("ring:80@64M"),)
    below = ShownFigures(frozenset(), 71.0, NIC, None, (71.0,) * 5)
    nights = [replace(allocation(name), shown={case(64 << 20): below}) for name in "abc"]
    verdict = judged(*nights, asked=asked, baseline=base(*BASE.allocations[:3]))
    assert (verdict.result, verdict.floors[0].state) == ("regression", "confirmed")
    assert judged(nights[0], asked=asked).result == "no verdict"
    shown = {case(64 << 20): below._replace(percents=(71.0, 71.0, 85.0, 85.0, 85.0), percent=85.0)}
    flipped = allocation("new", canary_s=(6e-8, 6e-8, 6e-8, 26e-8, 26e-8), shown=shown)
    assert judged(flipped, asked=asked).floors[0].percents == (71.0,)


def test_a_ceiling_that_fell_is_reported_and_floors_use_the_one_from_before() -> None:
    was = LinkCeiling("allreduce", "nccl", "all", 4, 1, None, "ring", 50e9, "NIC 4×100 Gb/s")
    now = was._replace(bytes_per_s=25e9, limited_by="NIC 2×100 Gb/s")
    before = base(*(allocation(f"good-{number}", launches=3, ceilings=(was,)) for number in range(6)))
    given = judged(allocation("night", ceilings=(now,)), baseline=before)
    assert given.result == PASSED
    assert given.ceilings == (CeilingChange("allreduce", "nccl", "ring", 50e9, 25e9, "NIC 4×100 Gb/s", "NIC 2×100 Gb/s"),)
    assert judged(allocation("night", ceilings=(was,)), baseline=before).ceilings == ()
    assert from_json(json.loads(json.dumps(document(given)))) == given


def test_the_ceilings_of_another_cluster_are_not_those_from_before() -> None:
    was = LinkCeiling("allreduce", "nccl", "all", 4, 1, None, "ring", 100e9, "NIC 400 Gb/s")
    now = was._replace(bytes_per_s=50e9, limited_by="NIC 4×100 Gb/s")
    before = base(*(allocation(f"good-{number}", launches=3, ceilings=(was,)) for number in range(6)))
    shown = {case(64 << 20): ShownFigures(frozenset(), 95.0, NIC, None, (95.0,) * 5)}
    asked = (read_floor("ring:80@64M"),)
    nights = [allocation(name, ceilings=(now,), shown=shown) for name in "abc"]
    same_hosts = judged(*nights, baseline=before, asked=asked)
    assert (same_hosts.result, same_hosts.floors[0].percents) == (REGRESSION, (47.5,) * 3)
    elsewhere = judged(*(replace(night, facts=ELSEWHERE) for night in nights), baseline=before, asked=asked)
    assert (elsewhere.result, elsewhere.floors, elsewhere.ceilings) == (UNDECIDED, (), ())


def test_the_four_outcomes_of_cases_are_counted() -> None:
    assert judged(allocation("night")).outcomes == {Outcome.SLOWER: 0, Outcome.INCONCLUSIVE: 0, Outcome.NO_CHANGE: 5, Outcome.FASTER: 0}
    suspected = judged(slow("night"))
    assert suspected.outcomes[Outcome.INCONCLUSIVE] == 1 and suspected.outcomes[Outcome.SLOWER] == 0
    of_group = judged(allocation("night", dict.fromkeys(SIZES[2:], 1.015)))
    assert (of_group.suspicions[0].kind, of_group.outcomes[Outcome.NO_CHANGE]) == ("group", 2)
    confirmed = judged(*(slow(f"night-{number}") for number in range(3)))
    assert confirmed.outcomes[Outcome.SLOWER] == 1
    assert judged(slow("night", 0.5)).outcomes[Outcome.FASTER] == 1


def test_a_group_has_no_outcome_no_change_where_all_cases_together_are_slower() -> None:
    def small(name: str, factor: float = 1.0) -> Allocation:
        times_s = {case(8 << place): 1e-6 * (1 + place) * factor for place in range(6)}
        return replace(allocation(name), cases={key: CaseTimes((time_s,) * 5) for key, time_s in times_s.items()})

    verdict = judged(*(small(name, 1.02) for name in "abc"), baseline=base(*(small(f"good-{number}") for number in range(6))))
    assert (verdict.result, [each.kind for each in verdict.suspicions]) == (REGRESSION, ["whole"])
    assert [each.outcome for each in verdict.groups] == ["inconclusive"] and verdict.outcomes[Outcome.INCONCLUSIVE] == 6


@pytest.mark.parametrize(("problems", "suspects", "result"), [
    ((), (), "passed"), ((), ("confirmed",), "regression"), ((), ("cleared", "accepted"), "passed"), ((False,), (), "no verdict"),
    ((False,), ("confirmed",), "regression"), ((True,), ("confirmed",), "no verdict"), ((False, True), ("confirmed",), "no verdict"),
])  # fmt: skip
def test_a_problem_that_makes_the_sides_incomparable_blocks_a_regression(problems, suspects, result):
    found = [reasons.NoHistory("base", 4) if blocks else reasons.UnfinishedLaunches("new", 1, 5) for blocks in problems]
    assert result_of(found, [suspicion(state) for state in suspects], []) == result


# The state of each group: its worst case, what is missing, what its suspicions are.

SIZES_GROUPS = (8, 64 << 20, 128 << 20, 256 << 20)
CASES = [case_of(make_row(size)) for size in SIZES_GROUPS]
USUAL = np.log([1e-6, 1e-3, 2e-3, 4e-3])


def states(factors: list[float], suspicions: tuple[str, ...] = (), undecided: list[bool] | None = None) -> dict[str, object]:
    """By class of sizes the group's state, for an allocation slower by these factors; NaN: not measured. The third case scatters."""
    history = USUAL + np.array([[0.0, 0.0, 0.1 * (-1) ** number, 0.0] for number in range(6)])
    limits = learn(history, scheme_of(CASES))
    excess = exceed(limits, (USUAL + np.log(factors))[None, :])
    listed = [suspicion(state, case=CASES[1]._asdict()) for state in suspicions]
    found = group_states(limits, excess, CASES, listed, None if undecided is None else np.array(undecided))
    return {each.size_class: each for each in found}


def test_the_worst_case_of_a_group() -> None:
    large = states([1.0, 1.05, 1.08, 1.0])["large"]
    assert (large.worst, large.worst_factor, large.cases, large.missing) == ("allreduce 64 MiB nccl", pytest.approx(1.05), 3, 0)
    large = states([1.0, np.nan, np.nan, np.nan])["large"]
    assert (large.worst, large.worst_factor, large.missing, large.factors, large.state) == (None, None, 3, (None,), "no verdict")


@pytest.mark.parametrize(("factors", "suspicions", "undecided", "state"), [
    ([1.0] * 4, (), None, "passed"), ([1.0, np.nan, 1.0, 1.0], (), None, "no verdict"),
    ([1.0] * 4, (), [False, False, True, False], "no verdict"), ([1.0] * 4, (), [True, False, False, False], "passed"),
    ([1.0] * 4, ("suspected",), None, "suspected"), ([1.0, np.nan, 1.0, 1.0], ("suspected", "confirmed"), None, "confirmed"),
    ([1.0] * 4, ("cleared",), None, "passed"),
])  # fmt: skip
def test_the_state_of_a_group(factors: list[float], suspicions: tuple[str, ...], undecided: list[bool] | None, state: str) -> None:
    assert states(factors, suspicions, undecided)["large"].state == state


UNCHECKED = {case(size): ShownFigures(frozenset(), None, None, checked=size > 8) for size in (0, 8, 1024)}
PROBELESS = [replace(each, canary_s=(None,) * 3) for each in BASE.allocations]
NOTED: dict[str, tuple[list[Allocation], Baseline, tuple[reasons.GateNote, ...]]] = {
    "nothing": ([allocation("new")], BASE, ()),
    "slowed on purpose": ([allocation("new", slowed="by=10%")], BASE, (reasons.SlowedOnPurpose("new", "by=10%"),)),
    "no state probe": ([allocation("new", canary_s=(None, 6e-8, None, 6e-8, 6e-8))], BASE, (reasons.WithoutProbe("new", 2, 5),)),
    "no state probe in the baseline": ([allocation("new")], base(*PROBELESS), (reasons.BaselineWithoutProbe(6, 6),)),
    "no start": ([allocation("new", began_utc="")], BASE, (reasons.WithoutStart("new", several=False),)),
    "no start on both sides": ([slow("a"), replace(slow("c"), began_utc="")],
        base(replace(BASE.allocations[0], began_utc=""), *BASE.allocations[1:]),
        (reasons.BaselineWithoutStart(1, 6, "good-0"), reasons.WithoutStart("c", several=True))),
    "few launches": ([allocation("a", launches=1), allocation("b", launches=2)], BASE, (reasons.FewLaunches("a", 1, 3),)),
    "case without a history": ([with_case(allocation("new"), 2048, *[1e-6] * 5)], BASE,
        (reasons.WithoutHistory("new", 1, reasons.CaseNames(("allreduce 2 KiB nccl",))),)),
    "data not checked": ([allocation("new", shown=UNCHECKED)], BASE, (reasons.UncheckedCases("new", SMALL_CASE),)),
    "slower in all but the first": ([allocation("a"), slow("b"), slow("c")], BASE, (reasons.SlowerLater("a", ("allreduce 64 MiB nccl",)),)),
    "slower in one but the first": ([allocation("a"), slow("b"), allocation("c")], BASE, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTED)
def test_notes(name: str) -> None:
    candidate, baseline, notes = NOTED[name]
    assert judged(*candidate, baseline=baseline).notes == notes


def test_a_candidate_with_no_common_case_reports_the_column_that_differs() -> None:
    piped = {name._replace(mode="pipelined"): each for name, each in allocation("new").cases.items()}
    with pytest.raises(UsageError, match=r"mode .*pipelined.*isolated"):
        judged(replace(allocation("new"), cases=piped))
