"""Announced changes and slowdowns: the keys of a file, and their effect."""

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.analysis.differences import Difference, Item
from collbench.analysis.launches import case_of
from collbench.errors import UsageError
from collbench.gating.allocation import Allocation, CaseTimes
from collbench.gating.conditions import ExpectedChange, accepted, changes, expired, from_table, read_expected, unannounced
from collbench.gating.reasons import ExpiredAnnouncement
from collbench.gating.verdict import Announcement, Suspicion
from tests.gate.verdicts import suspicion
from tests.results.rows import make_row

GOOD = '[[change]]\nkind = "software"\nwhat = "nccl *"\nreason = "2.30 in week 47"\nreviewer = "ops"\nexpires = 2026-12-01\n'


def test_a_table_for_each_change(tmp_path: Path) -> None:
    (tmp_path / "changes.toml").write_text(GOOD + GOOD.replace("software", "*"))
    first, second = read_expected(tmp_path / "changes.toml")
    assert first == ExpectedChange("software", "nccl *", "2.30 in week 47", "ops", date(2026, 12, 1))
    assert second.kind == "*"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", "[[change]]"),
        ("changes = 1", "[[change]]"),
        (GOOD + "more = 1\n", "kind, what, reason, reviewer, expires"),
        (GOOD.replace('reviewer = "ops"\n', ""), "change 1: "),
        (GOOD.replace('"ops"', '" "'), "change 1: 'reviewer' is ' '"),
        (GOOD.replace("2026-12-01", '"2026-12-01"'), "'expires' is 2026-12-01"),
        (GOOD.replace("software", "sofware"), "'sofware'"),
        ("[[change]", "changes.toml"),
        ("x = " + "[" * 5000, "changes.toml"),
        ("#" + "x" * (1 << 20), "1 MiB"),
        (GOOD + 'backend = "mpi"\n', "slower_percent"),
        (GOOD.replace('kind = "software"\n', "") + "slower_percent = 5\n", "kind, what, reason, reviewer, expires"),
        (GOOD + "slower_percent = 0\n", "'slower_percent' is 0"),
        (GOOD + "slower_percent = nan\n", "'slower_percent' is nan"),
        (GOOD + "slower_percent = true\n", "'slower_percent' is True"),
        (GOOD + 'slower_percent = 5\nsizes = "16M-1M"\n', "change 1: sizes '16M-1M'"),
        (GOOD + "slower_percent = 5\nsizes = 5\n", "'sizes' is 5"),
    ],
)
def test_an_invalid_file_is_rejected(tmp_path: Path, text: str, value: str) -> None:
    (tmp_path / "changes.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_expected(tmp_path / "changes.toml")
    assert value in str(caught.value)


TODAY = date(2026, 11, 21)
SLOWER = (
    '[[change]]\nreason = "fewer CTAs leave room for kernels"\nreviewer = "A. Reviewer"\nexpires = 2027-01-31\n'
    'operation = "all*"\nbackend = "mpi"\nsizes = "64M-"\nslower_percent = 13.5\n'
)
CASES = [case_of(make_row(size << 20, backend="mpi")) for size in (2, 64, 128)]
GROUP = suspicion("suspected", "allreduce on mpi, large messages", kind="group", case={}, factors=(1.1,))


def expected(tmp_path: Path, text: str) -> list[ExpectedChange]:
    (tmp_path / "changes.toml").write_text(text)
    return read_expected(tmp_path / "changes.toml")


def allowed(expected: list[ExpectedChange], *suspicions: Suspicion, today: date = TODAY) -> list[str]:
    return [each.state for each in accepted(suspicions, expected, today, CASES)]


def test_an_announced_slowdown_is_accepted_with_or_without_a_visible_change(tmp_path: Path) -> None:
    (found,) = expected(tmp_path, SLOWER)
    assert (found.slower_percent, found.operation, found.backend, found.smallest, found.largest) == (13.5, "all*", "mpi", 64 << 20, None)
    assert not found.covers(Difference(Item.of("software", "mpi"), "1", "2"), TODAY)
    assert expected(tmp_path, GOOD + "slower_percent = 5\n")[0].covers(Difference(Item.of("software", "nccl nccl"), "2.29", "2.30"), TODAY)
    (found,) = accepted([suspicion()], expected(tmp_path, SLOWER), TODAY, CASES)
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
def test_a_larger_unmatched_or_expired_slowdown_is_not_accepted(tmp_path: Path, text: str) -> None:
    assert allowed(expected(tmp_path, text), suspicion()) == ["confirmed"]


def test_groups_are_accepted_by_all_their_cases_and_cleared_ones_come_last(tmp_path: Path) -> None:
    actual = expected(tmp_path, SLOWER)
    states = allowed(actual, suspicion(), suspicion("suspected", factors=(1.5,)), suspicion("cleared", factors=(1.05, 1.0)))
    assert states == ["suspected", "accepted", "cleared"]
    assert allowed(expected(tmp_path, SLOWER), GROUP) == ["suspected"]
    assert allowed(expected(tmp_path, SLOWER.replace("64M-", "2M-")), GROUP) == ["accepted"]
    whole = suspicion("confirmed", "all cases", kind="whole", case={}, factors=(1.05, 1.05, 1.05))
    assert allowed(expected(tmp_path, SLOWER.replace("64M-", "2M-")), whole) == ["accepted"]
    assert allowed(expected(tmp_path, SLOWER), whole) == ["confirmed"]


def test_an_announcement_counts_on_its_day_of_expiry(tmp_path: Path) -> None:
    actual = expected(tmp_path, GOOD + SLOWER)
    nccl = Difference(Item.of("software", "nccl nccl"), "2.29", "2.30")
    assert (unannounced([nccl], actual, date(2026, 12, 1)), unannounced([nccl], actual, date(2026, 12, 2))) == ([], [nccl])
    assert expired(actual, date(2026, 12, 1)) == []
    assert expired(actual, date(2026, 12, 2)) == [ExpiredAnnouncement("ops", "2.30 in week 47", "2026-12-01")]
    assert allowed(actual, suspicion(), today=date(2027, 2, 1)) == ["confirmed"]


@pytest.mark.parametrize(("kind", "what"), [("*", "*"), ("**", " * ?")])
def test_an_announcement_of_every_change_is_rejected(tmp_path: Path, kind: str, what: str) -> None:
    with pytest.raises(UsageError, match="every change"):
        expected(tmp_path, GOOD.replace('"software"', f'"{kind}"').replace('"nccl *"', f'"{what}"'))


VALUE = st.one_of(st.text(max_size=9), st.integers(), st.floats(), st.booleans(), st.just(date(2026, 12, 1)))
KEYS = st.sampled_from(["kind", "what", "reason", "reviewer", "expires", "sizes", "operation", "slower_percent", "else"])


@settings(max_examples=60)
@given(st.dictionaries(KEYS, VALUE, max_size=8))
def test_any_table_is_valid_or_one_sentence(expected: dict[str, object]) -> None:
    try:
        found = from_table(expected, "change 1")
    except UsageError as error:
        assert str(error).startswith("change 1: ")
    else:
        assert type(found.expires) is date


def with_software(name: str, *backends: str, **software: str) -> Allocation:
    cases = {case_of(make_row(8, backend=backend)): CaseTimes((1e-6,)) for backend in backends}
    return Allocation(name, "2026-11-12", 1, 0, (None,), {"software": {"kernel": "6.1", **software}}, cases)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("nccl", "mpi"), ("nccl",), ["software nccl: 2.29 → 2.30"]),  # of MPI, which one side did not measure, nothing
        (("nccl",), ("nccl", "mpi"), ["software nccl: 2.29 → 2.30"]),
        (("nccl", "mpi"), ("nccl", "mpi"), ["software nccl: 2.29 → 2.30", "software mpi: MPICH 5.0 → –"]),
    ],
)
def test_software_of_a_backend_that_one_side_did_not_measure_is_no_change(
    before: tuple[str, ...], after: tuple[str, ...], expected: list[str]
) -> None:
    sides = [with_software("good", *before, nccl="2.29", mpi="MPICH 5.0"), with_software("new", *after, nccl="2.30")]
    if "mpi" not in before:
        sides = [with_software("good", *before, nccl="2.29"), with_software("new", *after, nccl="2.30", mpi="MPICH 5.0")]
    assert sorted(each.sentence() for each in changes(*sides)) == sorted(expected)
