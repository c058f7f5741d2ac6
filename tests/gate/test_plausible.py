"""Plausible causes among the changes: the evidence for and against each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from math import exp
from typing import Any

import pytest

from collbench.analysis.differences import Difference, Item
from collbench.gate.cause import cause_of, ranked
from collbench.gate.changes import ExpectedChange
from collbench.gate.plausible import (
    CarriesAll,
    CarriesNone,
    CarriesSome,
    FasterLink,
    LinkOfAll,
    MatchingRate,
    OnTheHost,
    OwnVersion,
    Plausible,
    SameLink,
)
from collbench.gate.verdict import Change
from collbench.reason import Text
from tests.gate.patterns import LARGE, SMALL, Judged, cases, judged

TODAY = date(2026, 11, 21)
MPI = Difference(Item.of("software", "mpi mpi"), "MPICH 4.3", "MPICH 5.0")
TORCH = Difference(Item.of("software", "gloo torch"), "2.12", "2.13")
KERNEL = Difference(Item.of("software", "kernel"), "6.1", "6.12")
UCX = Difference(Item.of("environment", "UCX_TLS"), "rc", "tcp")
RATE = Difference(Item.of("topology", "interfaces 0 shaped_bits_per_s"), "500000000.0", "450000000.0")
PAGES = Difference(Item.of("machine", "huge_pages"), "always", "never")
OURS = Difference(Item.of("software", "collbench"), "0.1.0", "0.2.0")
ALL = [OURS, MPI, TORCH, KERNEL, UCX, RATE, PAGES]


def changed(found: list[Difference], slower: Callable[[dict[str, Any]], bool], factor: float = 1.11, **changes: Any) -> list[Change]:
    known: Judged = judged(cases(sizes=(*SMALL, *LARGE), **changes), lambda case: factor if slower(case) else 1.0)
    cause = cause_of(known.suspicions, known.groups, known.cases)
    return ranked(found, (), TODAY, known.suspicions, cause, groups=known.groups)


def large(case: dict[str, Any]) -> bool:
    return bool(case["size_bytes"] > 1 << 20)


def why(found: list[Change], of: Difference) -> Plausible | Text | None:
    return next(each.plausible for each in found if each.what == of.what)


def test_a_link_s_new_rate_comes_first_where_the_link_became_slower_by_as_much() -> None:
    found = changed(ALL, large)
    assert found[0].what == RATE.what
    assert isinstance(found[0].plausible, MatchingRate) and exp(found[0].plausible.link) == pytest.approx(1.11, abs=0.005)
    assert why(found, MPI) == CarriesSome(("gloo",))
    assert why(found, KERNEL) == OnTheHost("both")


def test_a_library_that_carries_all_that_is_slower_comes_before_the_link() -> None:
    found = changed(ALL, lambda case: case["backend"] == "mpi")
    assert [each.what for each in found[:2]] == [MPI.what, UCX.what]
    assert found[0].plausible == found[1].plausible == CarriesAll()
    assert why(found, RATE) == SameLink()
    assert (found[-1].what, found[-1].plausible) == (TORCH.what, CarriesNone(("gloo",)))


def test_a_kernel_comes_first_where_everything_is_slower() -> None:
    found = changed(ALL, lambda case: True)
    assert {each.what for each in found[:2]} == {KERNEL.what, PAGES.what}
    assert found[0].plausible == OnTheHost("all")
    assert why(found, OURS) == OwnVersion()


def test_memory_that_is_set_up_otherwise_comes_first_where_memory_became_slower() -> None:
    found = changed(ALL, large, nodes=1)
    assert (found[0].what, found[0].plausible) == (PAGES.what, OnTheHost("memory"))


def test_a_link_that_became_faster_is_hardly_it() -> None:
    found = changed([Difference(Item.of("topology", RATE.what), RATE.b, RATE.a), KERNEL], large)
    assert (found[-1].what, found[-1].plausible) == (RATE.what, FasterLink())


@pytest.mark.parametrize(
    ("a", "b"), [("400 Gb/sec (4X NDR)", "200 Gb/sec (2X NDR)"), ("–", "200 Gb/sec"), ("fast", "slow"), ("9" * 400, "1"), ("0", "0.0")]
)
def test_an_unknown_link_rate_is_still_a_change_of_the_link(a: str, b: str) -> None:
    (found,) = changed([Difference(Item.of("topology", "machines 0 nics mlx5_0 ports 1 rate_text"), a, b)], large)
    assert found.plausible == LinkOfAll()


def test_without_a_slowdown_changes_keep_their_order_and_have_no_cause() -> None:
    announced = ExpectedChange("software", "mpi *", "week 47", "ops", date(2026, 12, 1))
    found = ranked([PAGES, MPI], [announced], TODAY, [], None)
    assert [(each.what, each.plausible) for each in found] == [(PAGES.what, None), (MPI.what, None)]
    assert found[0].announced is None
    assert found[1].announced == announced.announcement
    assert ranked([MPI], [announced], date(2026, 12, 2), [], None)[0].announced is None
