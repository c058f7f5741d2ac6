"""An old and a new stack side by side: what passes, what is a regression, and what is neither."""

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.analysis.ceilings import LinkCeiling
from collbench.analysis.differences import Difference, Item
from collbench.analysis.launches import case_of
from collbench.errors import UsageError
from collbench.gating import reasons
from collbench.gating.allocation import Allocation, CaseTimes, ShownFigures
from collbench.gating.baseline import CaseGroup, Figures, Scheme, known_median
from collbench.gating.conditions import ExpectedChange, read_floor
from collbench.gating.paired import SideBySide, Starts, decide, in_pairs, judge_paired, learn_pairs, side_by_side
from collbench.gating.rule import exceed, slower
from collbench.gating.verdict import Verdict
from collbench.results.row import CaseKey
from tests.gate.allocations import edit_info
from tests.results.rows import NIC, make_row, make_times, store

TODAY = date(2026, 11, 21)
SIZES = (8, 1 << 20, 64 << 20, 128 << 20, 256 << 20)
LARGE = 64 << 20
CALM, FLIPPED = 6e-8, 2.4e-7
HOSTS = {"names": "node1, node2"}
OLD, NEW = ({"hosts": HOSTS, "software": {"nccl": version}} for version in ("2.29", "2.30"))


def case(size: int) -> CaseKey:
    return case_of(make_row(size))


def stack(name: str, factors: Sequence[float], size: int | None, **changes: Any) -> Allocation:
    """Each launch takes 20 % longer than the one before; times its factor for one size, or for all."""
    cases = {}
    for each in SIZES:
        by = factors if size in (each, None) else [1.0] * len(factors)
        cases[case(each)] = CaseTimes(tuple((1e-5 + each * 1e-9) * (1 + 0.2 * number) * factor for number, factor in enumerate(by)))
    flipped = changes.pop("flipped", ())
    probe_s = tuple(FLIPPED if number in flipped else CALM for number in range(len(factors)))
    return replace(Allocation(name, "2026-11-20", len(factors), 0, probe_s, {}, cases), **changes)


def minutes(*numbers: int | None) -> Starts:
    return [None if number is None else datetime(2026, 11, 20, 10, number, tzinfo=UTC) for number in numbers]


def turns(name: str = "a", slower: float | Sequence[float] = 1.0, size: int | None = LARGE, pairs: int = 5, **stacks: Any) -> SideBySide:
    """Return interleaved launches; the new stack takes `slower` times as long; `stacks`: changes of old and new, and their starts."""
    factors = [slower] * pairs if isinstance(slower, float) else slower
    before = stack(name, [1.0] * len(factors), None, **{"facts": OLD, **stacks.get("old", {})})
    after = stack(name, factors, size, **{"facts": NEW, **stacks.get("new", {})})
    usual = [minutes(*range(first, 2 * len(factors), 2)) for first in (0, 1)]
    return in_pairs(before, after, *stacks.get("starts", usual))


def judged(*both: SideBySide, expected: Sequence[ExpectedChange] = ()) -> Verdict:
    return decide(both, expected, TODAY)


def lacking(allocation_pairs: SideBySide, stack_name: str, *launches: int) -> SideBySide:
    """Without the times of 64 MiB in these launches of a stack."""
    held: Allocation = getattr(allocation_pairs, stack_name)
    times = held.cases[case(LARGE)].medians_s
    torn = CaseTimes(tuple(None if number in launches else time for number, time in enumerate(times)))
    changed: dict[str, Any] = {stack_name: replace(held, cases={**held.cases, case(LARGE): torn})}
    return replace(allocation_pairs, **changed)


class TestResults:
    def test_equal_stacks_pass_although_each_launch_is_slower_than_the_one_before(self) -> None:
        verdict = judged(turns())
        assert (verdict.result, verdict.exit_code, verdict.mode, verdict.reasons, verdict.notes) == ("passed", 0, "paired", (), ())
        assert (verdict.cases, verdict.allocations, verdict.candidates, verdict.thin) == (5, 1, ("a",), False)
        expected = [(f"allreduce on nccl, {size_class} messages", "passed") for size_class in ("small", "mid", "large")]
        assert [(group.name, group.state) for group in verdict.groups] == expected
        assert [each.sentence() for each in verdict.changes] == ["software nccl: 2.29 → 2.30"]

    def test_one_allocation_makes_a_suspect_and_a_fast_second_one_clears_it(self) -> None:
        verdict = judged(turns(slower=1.05))
        assert (verdict.result, verdict.reasons) == ("no verdict", (reasons.StillSuspected(1, 1),))
        (suspect,) = verdict.suspicions
        assert (suspect.name, suspect.state, suspect.limit) == ("allreduce 64 MiB nccl", "suspected", pytest.approx(1.02))
        assert suspect.factors == pytest.approx((1.05,))
        verdict = judged(turns("a", 1.05), turns("b"))
        assert (verdict.result, verdict.suspicions[0].state) == ("passed", "cleared")

    def test_what_exceeds_its_limit_in_both_allocations_is_a_regression(self) -> None:
        verdict = judged(turns("a", 1.05), turns("b", [1.04, 1.05, 1.06, 1.05, 1.05, 1.06]))
        assert (verdict.result, verdict.exit_code) == ("regression", 1)
        (confirmed,) = verdict.suspicions
        assert (confirmed.name, confirmed.state, confirmed.factors) == ("allreduce 64 MiB nccl", "confirmed", pytest.approx((1.05, 1.05)))
        verdict = judged(turns("a", 1.018, None), turns("b", 1.018, None))
        assert (verdict.result, {each.kind for each in verdict.suspicions}) == ("regression", {"whole", "group"})
        alone = turns("b", 1.05)
        only = {case(LARGE): alone.new.cases[case(LARGE)]}
        assert judged(turns("a", 1.05), replace(alone, new=replace(alone.new, cases=only))).result == "regression"

    def test_scattered_pairs_and_announced_slowdowns_pass(self) -> None:
        """Five pairs of 0.9 to 1.2 with a median of 1.05: four standard errors are far more."""
        scattered = [0.9, 0.95, 1.05, 1.15, 1.2]
        assert judged(turns("a", scattered), turns("b", scattered)).result == "passed"
        expected = ExpectedChange("software", "nccl*", "fewer CTAs", "A. Reviewer", date(2027, 1, 31), slower_percent=6.0)
        verdict = judged(turns("a", 1.05), turns("b", 1.05), expected=[expected])
        assert (verdict.result, verdict.suspicions[0].state) == ("passed", "accepted")


@pytest.mark.parametrize(("hosts", "result", "percents"), [
    ("node1, node2", "regression", [(47.5, 47.5)]), ("node3, node4", "no verdict", []),
])  # fmt: skip
def test_floors_use_the_old_ceiling_on_equal_hosts_only(hosts: str, result: str, percents: list[tuple[float, ...]]) -> None:
    was = LinkCeiling("allreduce", "nccl", "all", 4, 1, None, "ring", 100e9, "NIC 400 Gb/s")
    shown = {case(LARGE): ShownFigures(frozenset(), 95.0, NIC, None, (95.0,) * 5)}
    after = {"facts": {**NEW, "hosts": {"names": hosts}}, "shown": shown}
    both = [turns(name, old={"ceilings": (was,)}, new=after) for name in "ab"]
    verdict = decide(both, [], TODAY, [read_floor("ring:80@64M")])
    assert (verdict.result, [floor.percents for floor in verdict.floors]) == (result, percents)


STARTS = minutes(0, 2, 4, 6, 8)
LARGE_CASE = reasons.CaseNames(("allreduce 64 MiB nccl",))
OTHER_RATE = turns(old={"facts": {**OLD, "topology": {"nic rate": "400"}}}, new={"facts": {**NEW, "topology": {"nic rate": "200"}}})
NEWER = {"facts": {**NEW, "software": {"nccl": "2.31"}}}
OF_JOB_7 = {"old": {"jobs": ("Slurm job 7",)}, "new": {"jobs": ("Slurm job 7",)}}
ALL_NEW = reasons.NewCases(5, reasons.CaseNames(tuple(f"allreduce {size} nccl" for size in ("8 B", "1 MiB", "64 MiB", "128 MiB")), 1))


def cases_to_judge() -> dict[str, tuple[list[SideBySide], str, tuple[reasons.GateReason, ...], tuple[reasons.GateNote, ...]]]:
    """Made anew for each test, so that it shows what the code does now."""
    flipped_pairs = turns("a", [1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 1.0], None, old={"flipped": (4,)}, new={"flipped": (5,)})
    unequal = in_pairs(stack("a", [1.0] * 5, None), stack("a", [1.0] * 6, None), minutes(*range(5)), minutes(*range(6)))
    other_name = in_pairs(stack("b", [1.0] * 5, None), stack("a", [1.0] * 5, None), STARTS, minutes(1, 3, 5, 7, 9))
    return {
        "any order within a pair": ([turns(starts=(minutes(0, 3, 4, 7, 8), minutes(1, 2, 5, 6, 9)))], "passed", (), ()),
        "equal stacks": ([turns(new={"facts": OLD})], "passed", (), (reasons.EqualStacks(),)),
        "other nodes": ([turns(slower=1.1, new={"facts": {**NEW, "hosts": {"names": "node3, node4"}}})], "no verdict",
            (reasons.OtherHosts("a", "node1, node2", "node3, node4"),), (ALL_NEW,)),
        "another topology": ([OTHER_RATE], "no verdict", (reasons.SidesDiffer(Difference(Item.of("topology", "nic rate"), "400", "200")),),
            ()),
        "another stack in the second allocation": ([turns("a", 1.1), turns("b", 1.1, new=NEWER)], "no verdict",
            (reasons.StackChanged("new", "a", "b", Difference(Item.of("software", "nccl"), "2.30", "2.31")),), ()),
        "allocations of one job": ([turns("a", 1.1, **OF_JOB_7), turns("b", 1.1, **OF_JOB_7)], "no verdict",
            (reasons.SameJob("a", "b", "Slurm job 7"),), ()),
        "slowed on purpose": ([turns(new={"slowed": "by=10%"})], "passed", (),
            (reasons.SlowedOnPurpose("a (new stack)", "by=10%", "stacks"),)),
        "one stack after the other": ([turns(slower=1.1, starts=(minutes(0, 1, 2, 3, 4), minutes(5, 6, 7, 8, 9)))], "no verdict",
            (reasons.NotInterleaved("a"),), (ALL_NEW,)),
        "unknown start": ([turns(starts=(STARTS, minutes(1, 3, None, 7, 9)))], "no verdict", (reasons.StartUnknown("a"),), (ALL_NEW,)),
        "launches without a partner": ([unequal], "no verdict", (reasons.UnequalLaunches("a", 5, 6),), (reasons.EqualStacks(), ALL_NEW)),
        "too few pairs": ([turns(slower=1.1, pairs=4)], "no verdict", (reasons.PairsNeeded("a", 4, 5), reasons.StillSuspected(1, 1)), ()),
        "other allocations": ([other_name], "no verdict", (reasons.OtherAllocation("a", "b"),), (reasons.EqualStacks(), ALL_NEW)),
        "pairs in another machine state": ([flipped_pairs], "passed", (), (reasons.PairsLeftOut("a", 2, 7),)),
        "pairs to be replaced": ([turns(old={"flipped": (4,)})], "no verdict", (reasons.PairsNeeded("a", 4, 5),), ()),
        "too many pairs in another state": ([turns(pairs=9, new={"flipped": (1, 3, 5)})], "no verdict",
            (reasons.PairsStateChanged("a", 3, 9),), ()),
        "no state probe": ([turns(new={"canary_s": (None,) * 5})], "passed", (), (reasons.WithoutProbe("a (new stack)", 5, 5),)),
        "missing case": ([lacking(turns(), "new", *range(5))], "no verdict", (reasons.MissingCases("a (new stack)", LARGE_CASE),), ()),
        "case missing in an old launch": ([lacking(turns(), "old", 2)], "no verdict",
            (reasons.IncompleteCases("a (old stack)", LARGE_CASE),), ()),
        "case missing in a new launch": ([lacking(turns(), "new", 2)], "no verdict",
            (reasons.IncompleteCases("a (new stack)", LARGE_CASE),), ()),
        "case of the new stack only": ([lacking(turns(), "old", *range(5))], "passed", (), (reasons.NewCases(1, LARGE_CASE),)),
        "unfinished launch": ([turns(old={"unfinished": 1})], "no verdict", (reasons.UnfinishedLaunches("a (old stack)", 1, 5),), ()),
        "wide limits": ([turns(slower=[0.5, 0.8, 1.0, 1.3, 2.0])], "passed", (), (reasons.WideLimits(LARGE_CASE),)),
    }  # fmt: skip


@pytest.mark.parametrize("name", cases_to_judge())
def test_the_result_with_its_reasons_and_notes(name: str) -> None:
    both, result, expected, notes = cases_to_judge()[name]
    verdict = judged(*both)
    assert (verdict.result, verdict.reasons, verdict.notes) == (result, expected, notes)


def test_an_announced_topology_and_incomplete_stacks() -> None:
    for name in ("old", "new"):
        assert [group.state for group in judged(lacking(turns(), name, 2)).groups] == ["passed", "passed", "no verdict"]
    assert judged(lacking(turns(), "old", *range(5))).cases == 4
    announced = ExpectedChange("topology", "nic*", "new cables", "A. Reviewer", date(2027, 1, 31))
    assert judged(OTHER_RATE, expected=[announced]).result == "passed"


def test_launches_are_paired_by_time_not_by_their_numbers() -> None:
    """Those that take 1.0, 1.2 … times as long on both sides belong together."""
    shuffled = turns()
    times = shuffled.new.cases[case(LARGE)].medians_s
    again = replace(shuffled.new, cases={case(LARGE): CaseTimes(tuple(reversed(times)))})
    both = in_pairs(shuffled.old, again, STARTS, minutes(9, 7, 5, 3, 1))
    assert both.differences([case(LARGE)])[:, 0] == pytest.approx([0] * 5)


@pytest.mark.parametrize("name", ["old", "new"])
def test_wrong_data_come_before_everything(name: str) -> None:
    both = turns(slower=1.1)
    held: Allocation = getattr(both, name)
    wrong: dict[str, Any] = {name: replace(held, cases={**held.cases, case(8): held.cases[case(8)]._replace(wrong=3)})}
    verdict = judged(replace(both, **wrong))
    assert (verdict.result, verdict.exit_code) == ("wrong data", 4)
    assert verdict.reasons[0] == reasons.WrongCases(f"a ({name} stack)", reasons.CaseNames(("allreduce 8 B nccl",)))


def test_stacks_without_a_common_time_have_no_verdict() -> None:
    both = turns()
    others = {case(size + 8): measured for size, measured in zip(SIZES, both.new.cases.values(), strict=True)}
    verdict = judged(replace(both, new=replace(both.new, cases=others)))
    assert (verdict.result, verdict.cases) == ("no verdict", 0)
    assert verdict.reasons[1] == reasons.NoPairs("a", 4)
    nothing = {"cases": {case(8): CaseTimes((None,) * 5, 0, "no GPU")}}
    with pytest.raises(UsageError, match="allocation a "):
        judged(turns(old=nothing, new=nothing))


def test_a_case_that_the_old_stack_hardly_has_is_not_missed_in_the_new_one() -> None:
    """Of five launches two have it: too few to compare with, and too few to demand it. The other launches have to be repeated."""
    hardly = lacking(turns(), "old", 0, 1, 2)
    for both in (hardly, lacking(hardly, "new", 0, 1, 2, 3, 4)):
        verdict = judged(both, turns("b"))
        assert (verdict.result, verdict.reasons) == ("no verdict", (reasons.IncompleteCases("a (old stack)", LARGE_CASE),))
    well = judged(lacking(lacking(turns(), "old", 0), "new", 0, 1, 2, 3, 4), turns("b"))
    assert [reason for reason in well.reasons if isinstance(reason, reasons.MissingCases)]


# The rule for pairs of launches on figures that can be computed by hand.

OF_LARGE, MID, SMALL = (CaseGroup("mpi", "allreduce", name) for name in ("large", "mid", "small"))
ONE_GROUP = Scheme.of_cases([OF_LARGE] * 3)
OWN = np.array([-0.3, -0.1, 0.0, 0.1, 0.3])


def pairs(*cases: Figures, allocations: int = 2) -> Figures:
    """[allocations × pairs × cases], the same in each allocation."""
    return np.stack([np.stack(cases, axis=1)] * allocations)


def drawn_in(count: int) -> float:
    """By what drawing in the outermost values of so many normal ones lessens their variance: of five 0.3465, by quadrature."""
    values = np.sort(np.random.default_rng(5).normal(size=(200_000, count)), axis=1)
    return float(np.clip(values, values[:, 1:2], values[:, -2:-1]).var(axis=1, ddof=1).mean())


def test_limits_of_pairs_without_noise_and_of_two_cases() -> None:
    limits = learn_pairs(np.zeros((2, 5, 9)), Scheme.of_cases([SMALL] * 3 + [MID] * 3 + [OF_LARGE] * 3))
    assert limits.visible() == pytest.approx([1.05] * 3 + [1.04] * 3 + [1.02] * 3)
    assert np.exp(limits.groups) == pytest.approx([1.03, 1.02, 1.01])
    assert np.exp(limits.whole) == pytest.approx(1.015)
    assert (limits.centre == 0).all()
    limits = learn_pairs(np.zeros((2, 5, 2)), Scheme.of_cases([OF_LARGE] * 2))
    assert (limits.groups.tolist(), limits.whole) == ([np.inf], np.inf)
    limits = learn_pairs(np.full((1, 5, 3), np.nan), ONE_GROUP)
    assert not limits.judged.any()
    assert not exceed(limits, np.full((1, 3), np.nan)).cases_over.any()


def test_the_spread_is_drawn_in_and_outliers_change_nothing() -> None:
    """−0.3 and 0.3 count as −0.1 and 0.1: a variance of 0.01, of eight degrees; the group adds eight with a median of 0."""
    limits = learn_pairs(pairs(OWN, OWN * 0, OWN * 0), ONE_GROUP)
    variance = 0.01 / drawn_in(5) / 2
    assert limits.cases == pytest.approx([4 * 1.2533 * np.sqrt(variance / 5), np.log(1.02), np.log(1.02)], rel=0.02)
    usual = np.array([-0.1, -0.05, 0.0, 0.05, 0.1])
    off = np.array([-0.1, -0.05, 0.0, 0.05, 5.0])
    assert learn_pairs(pairs(off, off, off), ONE_GROUP).cases == pytest.approx(learn_pairs(pairs(usual, usual, usual), ONE_GROUP).cases)
    limits = learn_pairs(pairs(OWN, OWN, OWN), ONE_GROUP)
    common = 4 * 1.2533 * np.sqrt(0.01 / drawn_in(5) / 5)
    assert [*limits.groups, limits.whole] == pytest.approx([common] * 2, rel=0.02)


def test_cases_that_few_pairs_or_one_allocation_lack_keep_the_limits_of_the_others() -> None:
    differences = np.zeros((2, 5, 3))
    differences[0, :2, 1] = np.nan
    limits = learn_pairs(differences, ONE_GROUP)
    assert (limits.judged.tolist(), limits.groups.tolist()) == ([True, False, True], [np.inf])
    both = pairs(OWN, OWN, OWN)
    alone = both.copy()
    alone[1, :, 1:] = np.nan
    assert learn_pairs(alone, ONE_GROUP).cases == pytest.approx(learn_pairs(both, ONE_GROUP).cases)


def test_slower_is_what_exceeds_in_both_allocations() -> None:
    differences = np.zeros((2, 5, 3))
    differences[:, :, 0] = np.log(1.03)
    differences[0, :, 1] = np.log(1.03)
    found = slower(exceed(learn_pairs(differences, ONE_GROUP), known_median(np.moveaxis(differences, 1, -1))))
    assert (found.cases.tolist(), found.whole) == ([True, False, False], False)


# Folders of launches of two stacks, read as pairs.


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync nothing to the disk: it takes nearly all of the time."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)


def launches(folder: Path, allocation: str, slower: float = 1.0) -> tuple[Path, Path]:
    for number in range(5):
        for second, (stack, factor) in enumerate((("old", 1.0), ("new", slower))):
            row = make_row(LARGE, time_s=make_times(1e-3 * (1 + number) * factor))
            info = {"allocation_id": allocation, "collbench": "0.1.0", "backends": {"nccl": {"version": stack}}}
            began = f"2026-11-20T10:{2 * number + second:02d}:00Z"
            store(folder / allocation / stack / f"launch-{number + 1}", [row], started_utc=began, **info)
    return folder / allocation / "old", folder / allocation / "new"


def test_folders_of_launches_are_judged_and_an_allocation_counts_once(tmp_path: Path) -> None:
    first, second = (launches(tmp_path, name, 1.1) for name in "ab")
    old, new = [first[0], second[0]], [first[1], second[1]]
    verdict = judge_paired(old, new, (), TODAY)
    assert (verdict.result, verdict.baseline) == ("regression", f"{first[0]}, {second[0]}")
    assert verdict.suspicions[0].factors == pytest.approx((1.1, 1.1))
    assert [(each.before, each.after) for each in verdict.changes] == [("old", "new")]
    for launch in (launch for stack in second for launch in stack.iterdir()):
        edit_info(launch, allocation_id="a", id=f"b-{launch.parent.name}-{launch.name}")
    with pytest.raises(UsageError, match="--paired: allocation a "):
        side_by_side(old, new)


def test_launches_are_paired_by_their_start_and_count_once(tmp_path: Path) -> None:
    old, new = launches(tmp_path, "a")
    (new / "launch-1").rename(new / "launch-9")
    (both,) = side_by_side([old], [new])
    assert both.order.tolist() == [[0, 1, 2, 3, 4], [4, 0, 1, 2, 3]]
    assert both.differences(list(both.old.cases))[:, 0] == pytest.approx([0] * 5)
    with pytest.raises(UsageError, match="twice"):
        side_by_side([old], [old])
    edit_info(new / "launch-5", allocation_id="b")
    with pytest.raises(UsageError, match=r"new .*\(a, b\)"):
        side_by_side([old], [new])


@pytest.mark.parametrize("text", ["", "[1]", "[" * 5000, '{"started_utc": 7}'])
def test_a_launch_with_an_invalid_run_json_is_rejected(tmp_path: Path, text: str) -> None:
    old, new = launches(tmp_path, "a")
    (new / "launch-2" / "run.json").write_text(text)
    with pytest.raises(UsageError):
        side_by_side([old], [new])
