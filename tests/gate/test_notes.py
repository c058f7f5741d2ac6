"""What else has to be known of a verdict."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

from collbench.gate.allocation import CaseTimes, ShownFigures
from collbench.gate.baseline import Baseline
from collbench.gate.changes import ExpectedChange
from collbench.gate.reasons import (
    BaselineWithoutProbe,
    BaselineWithoutStart,
    CaseNames,
    ExpiredAnnouncement,
    FewLaunches,
    SlowedOnPurpose,
    SlowerLater,
    UncheckedCases,
    WithoutHistory,
    WithoutProbe,
    WithoutStart,
)
from tests.gate.judging import BASE, allocation, case, judged, slow


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
