"""What else has to be known of a verdict."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

from collbench.gate.allocation import Measured, Shown
from collbench.gate.baseline import Baseline
from collbench.gate.changes import Expected
from tests.gate.judging import BASE, allocation, cell, judged, slow


class TestNotes:
    def test_nothing_to_be_noted(self) -> None:
        assert judged(allocation("new")).notes == ()

    def test_slowed_on_purpose(self) -> None:
        assert judged(replace(allocation("new"), slowed="by=10%")).notes == (
            "allocation new was slowed on purpose (by=10%): this verdict says nothing of the cluster",
        )

    def test_no_canary(self) -> None:
        assert judged(allocation("new", canary_s=(None, 6e-8, None, 6e-8, 6e-8))).notes == (
            "allocation new: 2 of 5 launches without a canary: the state of the machine is not known",
        )
        silent = Baseline(Path("base"), [replace(each, canary_s=(None,) * 3) for each in BASE.allocations])
        assert judged(allocation("new"), baseline=silent).notes == (
            "6 of 6 allocations of the baseline without a canary: the state of the machine is not known",
        )

    def test_no_start(self) -> None:
        assert judged(allocation("new", began_utc="")).notes == (
            "allocation new does not say when it began, and may be older than the baseline",
        )
        base = Baseline(Path("base"), [replace(BASE.allocations[0], began_utc=""), *BASE.allocations[1:]])
        assert judged(slow("a"), slow("b"), replace(slow("c"), began_utc=""), baseline=base).notes == (
            "1 of 6 allocations of the baseline do not say when they began (good-0): they count as the oldest",
            "allocation c does not say when it began; all are taken in the order in which they are named",
        )

    def test_few_launches(self) -> None:
        assert judged(allocation("a", launches=1), allocation("b", launches=2)).notes == (
            "a and 1 other: fewer than 3 launches, so it is not known whether cells are stable; five are usual",
        )

    def test_cells_without_a_history(self) -> None:
        whole = allocation("new")
        (note,) = judged(replace(whole, cells={**whole.cells, cell(2048): Measured((1e-6,) * 5)})).notes
        assert note.startswith("1 cell of allocation new without a history long enough: not judged (allreduce 2 KiB nccl)")

    def test_what_was_not_verified(self) -> None:
        unchecked = {cell(size): Shown(frozenset(), None, None, checked=size > 8) for size in (0, 8, 1024)}
        assert judged(allocation("new", shown=unchecked)).notes == (
            "allocation new: what arrived was not compared with what was sent in allreduce 8 B nccl",
        )

    def test_what_is_slower_in_all_allocations_but_the_first(self) -> None:
        assert judged(allocation("a"), slow("b"), slow("c")).notes == (
            "slower in several allocations, but not in a, which came first: allreduce 64 MiB nccl; judge the later ones alone",
        )
        assert judged(allocation("a"), slow("b"), allocation("c")).notes == ()

    def test_an_announcement_that_expired(self) -> None:
        (note,) = judged(allocation("new"), expected=(Expected("software", "x", "upgrade", "ops", date(2026, 11, 1)),)).notes
        assert "expired on 2026-11-01" in note
