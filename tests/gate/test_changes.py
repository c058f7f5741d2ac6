"""Announced changes and slowdowns: what a file may say, and what it allows."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.analysis.differences import Difference, Item
from collbench.analysis.launches import case_of
from collbench.errors import UsageError
from collbench.gate.allocation import Allocation, CaseTimes
from collbench.gate.changes import ExpectedChange, accepted, changes, expired, from_table, read_expected, unannounced
from collbench.gate.reasons import ExpiredAnnouncement
from collbench.gate.verdict import Announcement, Suspicion
from tests.gate.verdicts import suspicion
from tests.results.rows import make_row

GOOD = '[[change]]\nkind = "software"\nwhat = "nccl *"\nreason = "2.30 in week 47"\nreviewer = "ops"\nexpires = 2026-12-01\n'


def test_a_table_for_each_change(tmp_path: Path) -> None:
    (tmp_path / "changes.toml").write_text(GOOD + GOOD.replace("software", "*"))
    first, second = read_expected(tmp_path / "changes.toml")
    assert first == ExpectedChange("software", "nccl *", "2.30 in week 47", "ops", date(2026, 12, 1))
    assert second.kind == "*"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "only tables [[change]] are allowed"),
        ("changes = 1", "only tables [[change]] are allowed"),
        (GOOD + "more = 1\n", "required keys are kind, what, reason, reviewer, expires"),
        (GOOD.replace('reviewer = "ops"\n', ""), "change 1: required keys are kind, what, reason, reviewer, expires"),
        (GOOD.replace('"ops"', '" "'), "change 1: 'reviewer' is ' ', not a text"),
        (GOOD.replace("2026-12-01", '"2026-12-01"'), "'expires' is 2026-12-01, not a valid date (write 2027-01-31"),
        (
            GOOD.replace("software", "sofware"),
            "unknown kind 'sofware': choose from software, environment, topology",
        ),
        ("[[change]", "cannot be read"),
        ("x = " + "[" * 5000, "cannot be read"),
        ("#" + "x" * (1 << 20), "cannot be read (it is larger than 1 MiB)"),
        (GOOD + 'backend = "mpi"\n', "it selects cases, but slower_percent is missing"),
        (GOOD.replace('kind = "software"\n', "") + "slower_percent = 5\n", "required keys are kind, what, reason, reviewer, expires"),
        (GOOD + "slower_percent = 0\n", "'slower_percent' is 0, where a number above 0 and up to 1000 is wanted"),
        (GOOD + "slower_percent = nan\n", "'slower_percent' is nan"),
        (GOOD + "slower_percent = true\n", "'slower_percent' is True"),
        (GOOD + 'slower_percent = 5\nsizes = "16M-1M"\n', "change 1: sizes '16M-1M' are in descending order"),
        (GOOD + "slower_percent = 5\nsizes = 5\n", "'sizes' is 5, not a text"),
    ],
)
def test_nonsense_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "changes.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_expected(tmp_path / "changes.toml")
    assert told in str(caught.value)


TODAY = date(2026, 11, 21)
SLOWER = (
    '[[change]]\nreason = "fewer CTAs leave room for kernels"\nreviewer = "A. Reviewer"\nexpires = 2027-01-31\n'
    'operation = "all*"\nbackend = "mpi"\nsizes = "64M-"\nslower_percent = 13.5\n'
)
CELLS = [case_of(make_row(size << 20, backend="mpi")) for size in (2, 64, 128)]
GROUP = suspicion("suspected", "allreduce on mpi, large messages", kind="group", case={}, factors=(1.1,))


def expected(tmp_path: Path, text: str) -> list[ExpectedChange]:
    (tmp_path / "changes.toml").write_text(text)
    return read_expected(tmp_path / "changes.toml")


def allowed(told: list[ExpectedChange], *suspicions: Suspicion, today: date = TODAY) -> list[str]:
    return [each.state for each in accepted(suspicions, told, today, CELLS)]


def test_a_slowdown_may_be_announced_without_a_difference_that_anything_tells_of(tmp_path: Path) -> None:
    (found,) = expected(tmp_path, SLOWER)
    assert (found.slower_percent, found.operation, found.backend, found.smallest, found.largest) == (13.5, "all*", "mpi", 64 << 20, None)
    assert not found.covers(Difference(Item.of("software", "mpi"), "1", "2"), TODAY)
    assert expected(tmp_path, GOOD + "slower_percent = 5\n")[0].covers(Difference(Item.of("software", "nccl nccl"), "2.29", "2.30"), TODAY)


def test_what_is_no_slower_than_announced_is_accepted_and_says_who_announced_it(tmp_path: Path) -> None:
    (found,) = accepted([suspicion()], expected(tmp_path, SLOWER), TODAY, CELLS)
    assert found.state == "accepted"
    assert found.announced == Announcement("fewer CTAs leave room for kernels", "A. Reviewer", "2027-01-31")
    assert allowed(expected(tmp_path, SLOWER), suspicion("suspected", factors=(1.12, None))) == ["accepted"]


@pytest.mark.parametrize(
    "text",
    [
        SLOWER.replace("13.5", "11.5"),
        SLOWER.replace("64M-", "128M-"),
        SLOWER.replace("all*", "broadcast"),
        SLOWER.replace('"mpi"', '"nccl"'),
        SLOWER.replace("2027-01-31", "2026-11-20"),
        GOOD,
    ],
)
def test_what_is_slower_or_was_not_meant_or_is_over_stays_what_it_is(tmp_path: Path, text: str) -> None:
    assert allowed(expected(tmp_path, text), suspicion()) == ["confirmed"]


def test_what_is_cleared_needs_no_announcement_and_comes_last(tmp_path: Path) -> None:
    told = expected(tmp_path, SLOWER)
    states = allowed(told, suspicion(), suspicion("suspected", factors=(1.5,)), suspicion("cleared", factors=(1.05, 1.0)))
    assert states == ["suspected", "accepted", "cleared"]


def test_a_group_is_accepted_only_where_all_its_cases_are_meant(tmp_path: Path) -> None:
    assert allowed(expected(tmp_path, SLOWER), GROUP) == ["suspected"]
    assert allowed(expected(tmp_path, SLOWER.replace("64M-", "2M-")), GROUP) == ["accepted"]
    whole = suspicion("confirmed", "all cases", kind="whole", case={}, factors=(1.05, 1.05, 1.05))
    assert allowed(expected(tmp_path, SLOWER.replace("64M-", "2M-")), whole) == ["accepted"]
    assert allowed(expected(tmp_path, SLOWER), whole) == ["confirmed"]


def test_the_day_of_expiry_is_the_last_on_which_it_counts(tmp_path: Path) -> None:
    told = expected(tmp_path, GOOD + SLOWER)
    nccl = Difference(Item.of("software", "nccl nccl"), "2.29", "2.30")
    assert (unannounced([nccl], told, date(2026, 12, 1)), unannounced([nccl], told, date(2026, 12, 2))) == ([], [nccl])
    assert expired(told, date(2026, 12, 1)) == []
    assert expired(told, date(2026, 12, 2)) == [ExpiredAnnouncement("ops", "2.30 in week 47", "2026-12-01")]
    assert allowed(told, suspicion(), today=date(2027, 2, 1)) == ["confirmed"]


@pytest.mark.parametrize(("kind", "what"), [("*", "*"), ("**", " * ?")])
def test_what_announces_everything_is_refused(tmp_path: Path, kind: str, what: str) -> None:
    with pytest.raises(UsageError, match=r"match every change: be more specific$"):
        expected(tmp_path, GOOD.replace('"software"', f'"{kind}"').replace('"nccl *"', f'"{what}"'))


VALUE = st.one_of(st.text(max_size=9), st.integers(), st.floats(), st.booleans(), st.just(date(2026, 12, 1)))
KEYS = st.sampled_from(["kind", "what", "reason", "reviewer", "expires", "sizes", "operation", "slower_percent", "else"])


@settings(max_examples=60)
@given(st.dictionaries(KEYS, VALUE, max_size=8))
def test_whatever_a_table_says_is_understood_or_a_sentence(told: dict[str, object]) -> None:
    try:
        found = from_table(told, "change 1")
    except UsageError as error:
        assert str(error).startswith("change 1: ")
    else:
        assert type(found.expires) is date


def test_software_of_a_backend_that_one_did_not_measure_is_no_change() -> None:
    told = {"software": {"nccl version": "2.29", "mpi mpi": "MPICH 5.0", "kernel": "6.1"}}
    both, one = ({case_of(make_row(8, backend=backend)): CaseTimes((1e-6,)) for backend in names} for names in (("nccl", "mpi"), ("nccl",)))
    before = Allocation("good", "2026-11-12", 1, 0, (None,), told, both)
    alone = Allocation("again", "2026-11-20", 1, 0, (None,), {"software": {"nccl version": "2.30", "kernel": "6.1"}}, one)
    assert [each.sentence() for each in changes(before, alone)] == ["software nccl version: 2.29 → 2.30"]
    without = Allocation("new", "2026-11-20", 1, 0, (None,), {"software": {"nccl version": "2.29", "kernel": "6.1"}}, both)
    assert [each.sentence() for each in changes(before, without)] == ["software mpi mpi: MPICH 5.0 → –"]


def test_software_of_a_backend_that_the_candidate_alone_measured_is_no_change() -> None:
    told = {"software": {"nccl version": "2.29", "kernel": "6.1"}}
    both, one = ({case_of(make_row(8, backend=backend)): CaseTimes((1e-6,)) for backend in names} for names in (("nccl", "mpi"), ("nccl",)))
    before = Allocation("good", "2026-11-12", 1, 0, (None,), told, one)
    after = Allocation("new", "2026-11-20", 1, 0, (None,), {"software": {**told["software"], "mpi mpi": "MPICH 5.0"}}, both)
    assert changes(before, after) == []
