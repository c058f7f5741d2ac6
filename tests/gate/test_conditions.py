"""Announced changes and slowdowns: the keys of a file, and their effect."""

import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.analysis.ceilings import LinkCeiling
from collbench.analysis.differences import Difference, Item
from collbench.analysis.launches import case_of
from collbench.errors import UsageError
from collbench.gating.allocation import Allocation, CaseTimes, ShownFigures
from collbench.gating.conditions import (
    ExpectedChange,
    Floor,
    accepted,
    changes,
    expired,
    floor_reasons,
    floor_states,
    from_table,
    read_expected,
    read_floor,
    unannounced,
)
from collbench.gating.reasons import CaseNames, ExpiredAnnouncement, FloorUnknown, SuspectedBelowFloor
from collbench.gating.verdict import Announcement, Suspicion
from collbench.machine.peak.ceiling import Ceiling, no_ceiling
from collbench.results.row import CaseKey
from tests.gate.verdicts import suspicion
from tests.results.rows import NIC, make_row

GOOD = '[[change]]\nkind = "software"\nwhat = "nccl *"\nreason = "2.30 in week 47"\nreviewer = "ops"\nexpires = 2026-12-01\n'


def expected(folder: Path, text: str) -> list[ExpectedChange]:
    (folder / "changes.toml").write_text(text)
    return read_expected(folder / "changes.toml")


def test_a_table_for_each_change_also_of_every_kind(tmp_path: Path) -> None:
    first, second = expected(tmp_path, GOOD + GOOD.replace("software", "*").replace("nccl *", "X*"))
    assert first == ExpectedChange("software", "nccl *", "2.30 in week 47", "ops", date(2026, 12, 1))
    assert (second.kind, second.what) == ("*", "X*")


@pytest.mark.parametrize(("text", "value"), [
    ("", "[[change]]"), ("changes = 1", "[[change]]"), (GOOD + "more = 1\n", "kind, what, reason, reviewer, expires"),
    (GOOD.replace('reviewer = "ops"\n', ""), "change 1: "), (GOOD.replace('"ops"', '" "'), "change 1: 'reviewer' is ' '"),
    (GOOD.replace("2026-12-01", '"2026-12-01"'), "'expires' is 2026-12-01"), (GOOD.replace("software", "sofware"), "'sofware'"),
    ("[[change]", "changes.toml"), ("x = " + "[" * 5000, "changes.toml"), ("#" + "x" * (1 << 20), "1 MiB"),
    (GOOD + 'backend = "mpi"\n', "slower_percent"),
    (GOOD.replace('kind = "software"\n', "") + "slower_percent = 5\n", "kind, what, reason, reviewer, expires"),
    (GOOD + "slower_percent = 0\n", "'slower_percent' is 0"), (GOOD + "slower_percent = nan\n", "'slower_percent' is nan"),
    (GOOD + "slower_percent = true\n", "'slower_percent' is True"),
    (GOOD + 'slower_percent = 5\nsizes = "16M-1M"\n', "change 1: sizes '16M-1M'"),
    (GOOD + "slower_percent = 5\nsizes = 5\n", "'sizes' is 5"),
    (GOOD.replace("software", "**").replace("nccl *", " * ?"), "every change"),
])  # fmt: skip
def test_an_invalid_file_is_rejected(tmp_path: Path, text: str, value: str) -> None:
    with pytest.raises(UsageError, match=re.escape(value)):
        expected(tmp_path, text)


TODAY = date(2026, 11, 21)
SLOWER = (
    '[[change]]\nreason = "fewer CTAs leave room for kernels"\nreviewer = "A. Reviewer"\nexpires = 2027-01-31\n'
    'operation = "all*"\nbackend = "mpi"\nsizes = "64M-"\nslower_percent = 13.5\n'
)
CASES = [case_of(make_row(size << 20, backend="mpi")) for size in (2, 64, 128)]
NEW_NCCL = Difference(Item.of("software", "nccl nccl"), "2.29", "2.30")
GROUP = suspicion("suspected", "allreduce on mpi, large messages", kind="group", case={}, factors=(1.1,))


def allowed(expected: list[ExpectedChange], *suspicions: Suspicion, today: date = TODAY) -> list[str]:
    return [each.state for each in accepted(suspicions, expected, today, CASES)]


def test_an_announced_slowdown_is_accepted_with_or_without_a_visible_change(tmp_path: Path) -> None:
    (found,) = expected(tmp_path, SLOWER)
    assert (found.slower_percent, found.operation, found.backend, found.smallest, found.largest) == (13.5, "all*", "mpi", 64 << 20, None)
    assert not found.covers(Difference(Item.of("software", "mpi"), "1", "2"), TODAY)
    assert expected(tmp_path, GOOD + "slower_percent = 5\n")[0].covers(NEW_NCCL, TODAY)
    (found,) = accepted([suspicion()], expected(tmp_path, SLOWER), TODAY, CASES)
    assert (found.state, found.announced) == ("accepted", Announcement("fewer CTAs leave room for kernels", "A. Reviewer", "2027-01-31"))
    assert allowed(expected(tmp_path, SLOWER), suspicion("suspected", factors=(1.12, None))) == ["accepted"]


@pytest.mark.parametrize("text", [
    SLOWER.replace("13.5", "11.5"), SLOWER.replace("64M-", "128M-"), SLOWER.replace("all*", "broadcast"), SLOWER.replace('"mpi"', '"nccl"'),
    SLOWER.replace("2027-01-31", "2026-11-20"), GOOD,
])  # fmt: skip
def test_a_larger_unmatched_or_expired_slowdown_is_not_accepted(tmp_path: Path, text: str) -> None:
    assert allowed(expected(tmp_path, text), suspicion()) == ["confirmed"]


def test_groups_are_accepted_by_all_their_cases_and_cleared_ones_come_last(tmp_path: Path) -> None:
    actual = expected(tmp_path, SLOWER)
    states = allowed(actual, suspicion(), suspicion("suspected", factors=(1.5,)), suspicion("cleared", factors=(1.05, 1.0)))
    assert states == ["suspected", "accepted", "cleared"]
    assert allowed(actual, GROUP) == ["suspected"]
    whole = suspicion("confirmed", "all cases", kind="whole", case={}, factors=(1.05, 1.05, 1.05))
    assert allowed(actual, whole) == ["confirmed"]
    actual = expected(tmp_path, SLOWER.replace("64M-", "2M-"))
    assert (allowed(actual, GROUP), allowed(actual, whole)) == (["accepted"], ["accepted"])


def test_an_announcement_counts_on_its_day_of_expiry(tmp_path: Path) -> None:
    actual = expected(tmp_path, GOOD + SLOWER)
    assert unannounced([NEW_NCCL], actual, date(2026, 12, 1)) == []
    assert unannounced([NEW_NCCL], actual, date(2026, 12, 2)) == [NEW_NCCL]
    assert expired(actual, date(2026, 12, 1)) == []
    assert expired(actual, date(2026, 12, 2)) == [ExpiredAnnouncement("ops", "2.30 in week 47", "2026-12-01")]
    assert allowed(actual, suspicion(), today=date(2027, 2, 1)) == ["confirmed"]


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


@pytest.mark.parametrize(("before", "after", "expected"), [
    (("nccl", "mpi"), ("nccl",), ["software nccl: 2.29 → 2.30"]),  # of MPI, which one side did not measure, nothing
    (("nccl",), ("nccl", "mpi"), ["software nccl: 2.29 → 2.30"]),
    (("nccl", "mpi"), ("nccl", "mpi"), ["software nccl: 2.29 → 2.30", "software mpi: MPICH 5.0 → –"]),
])  # fmt: skip
def test_software_of_a_backend_that_one_side_did_not_measure_is_no_change(before, after, expected):
    mpi = {"mpi": "MPICH 5.0"}
    good = with_software("good", *before, nccl="2.29", **(mpi if "mpi" in before else {}))
    new = with_software("new", *after, nccl="2.30", **({} if "mpi" in before else mpi))
    assert sorted(each.sentence() for each in changes(good, new)) == sorted(expected)


BOUND = Ceiling("network", 100e9, "NIC 4×100 Gb/s", "bound", "sysfs")
M = 1 << 20


def case(size: int = 64 * M, **changes: Any) -> CaseKey:
    return case_of(make_row(size, **{"backend": "mpi", **changes}))


def allocation(
    name: str, percents: Mapping[CaseKey, float | None], ceiling: Ceiling | None = NIC, bound: Ceiling | None = BOUND
) -> Allocation:
    shown = {each: ShownFigures(frozenset(), percent, ceiling, bound) for each, percent in percents.items()}
    return Allocation(name, "2026-11-20T03:00:00+00:00", 5, 0, (None,) * 5, {}, {each: CaseTimes((1e-3,) * 5) for each in percents}, shown)


RING_80 = read_floor("ring:80@64M-")


def nights(*percents: float | None, **changes: Any) -> list[Allocation]:
    return [allocation(f"night-{number}", {case(): percent}, **changes) for number, percent in enumerate(percents)]


def states(asked: str, *percents: float | None, **changes: Any) -> list[str]:
    return [each.state for each in floor_states([read_floor(asked)], nights(*percents, **changes))]


def test_the_parts_and_reasons_of_floors() -> None:
    assert read_floor("ring:80@64M-") == Floor("ring:80@64M-", "ring", 80.0, 64 * M, None)
    assert read_floor("hard:60.5@1M-16M/all*+mpi") == Floor("hard:60.5@1M-16M/all*+mpi", "hard", 60.5, M, 16 * M, "all*", "mpi")
    assert read_floor("given:90@-1M+torch-nccl") == Floor("given:90@-1M+torch-nccl", "given", 90.0, 1, M, "*", "torch-nccl")
    assert read_floor("ring:80@64M") == Floor("ring:80@64M", "ring", 80.0, 64 * M, 64 * M)
    first = allocation("night-1", {case(): 70.0, case(M): None})
    suspected, unknown = floor_reasons(floor_states([read_floor("ring:80@1M-")], [first]))
    assert suspected == SuspectedBelowFloor(CaseNames(("allreduce 64 MiB mpi",)))
    assert unknown == FloorUnknown("ring:80@1M-", CaseNames(("allreduce 1 MiB mpi",)))
    assert floor_reasons(floor_states([RING_80], nights(70.0, 70.0, 70.0))) == []


def test_a_floor_is_of_the_ceiling_from_before_where_that_fell() -> None:
    candidate = nights(95.0, 95.0, 95.0)
    was = LinkCeiling("allreduce", "mpi", "all", 4, 1, None, "ring", 2 * (NIC.bytes_per_s or 0), "NIC 8×100 Gb/s")
    assert floor_states([RING_80], candidate) == []
    (state,) = floor_states([RING_80], candidate, before=[was])
    assert (state.state, state.percents) == ("confirmed", (47.5,) * 3)
    assert state.limited_by and state.limited_by.startswith("NIC 8×100 Gb/s")
    assert floor_states([RING_80], candidate, before=[was._replace(bytes_per_s=1.0)]) == []


@pytest.mark.parametrize(("text", "value"), [
    ("80", "MODEL:PERCENT@SIZES"), ("ring:0@64M-", "'0'"),
    ("ring:101@64M-", "'101'"), ("ring:nan@64M-", "'nan'"), ("ring:80@64X-", "'64X'"), ("ring:80@-", "size ''"),
    ("ring:80@16M-1M", "'16M-1M'"), ("ring:80@64M-" * 50, "MODEL:PERCENT@SIZES"),
])  # fmt: skip
def test_an_invalid_floor_is_rejected(text: str, value: str) -> None:
    with pytest.raises(UsageError, match=r"^--min-percent ") as caught:
        read_floor(text)
    assert value in str(caught.value)


@settings(max_examples=60)
@given(st.one_of(st.text(max_size=40), st.from_regex(r"\A[a-z]{1,6}:[0-9.e+-]{1,6}@[0-9KMGx.-]{1,9}(/\w+)?(\+\w+)?\Z")))
def test_any_text_is_a_floor_or_one_sentence(text: str) -> None:
    try:
        assert 0 < read_floor(text).percent <= 100
    except UsageError as error:
        assert str(error).startswith("--min-percent ")


def test_below_confirms_suspects_and_clears_by_the_number_of_allocations_and_jobs() -> None:
    assert states("ring:80@64M-", 79.0, 78.0, 75.0) == ["confirmed"]
    assert states("ring:80@64M-", 79.0, 78.0) == ["suspected"]
    assert states("ring:80@64M-", 79.0, None, 75.0) == ["suspected"]
    assert states("ring:80@64M-", 79.0, 81.0, 75.0) == ["cleared"]
    assert states("ring:80@64M-", 80.0, 70.0, 70.0) == []
    assert [each.state for each in floor_states([RING_80], nights(70.0, 70.0), confirmations=2)] == ["confirmed"]
    of_one_job = [replace(each, jobs=("Slurm job 12",)) for each in nights(70.0, 70.0, 70.0)]
    assert [each.state for each in floor_states([RING_80], of_one_job)] == ["suspected"]


def test_an_unknown_percentage_does_not_pass_and_the_hard_bound_is_another_denominator() -> None:
    assert states("ring:80@64M-", None) == ["no verdict"]
    assert states("ring:80@64M-", 95.0, ceiling=None) == ["no verdict"]
    assert states("ring:80@64M-", None, ceiling=no_ceiling("no speed")) == ["no verdict"]
    assert states("ring:80@64M-", 95.0, ceiling=BOUND) == states("measured:80@64M-", 95.0) == ["no verdict"]
    assert states("hard:30@64M-", 95.0, bound=None) == ["no verdict"]
    assert states("hard:45@64M-", 84.0) == ["suspected"]  # 84 % of 50 GB/s are 42 % of 100
    assert states("hard:40@64M-", 84.0) == states("hard:80@64M-", 84.0, ceiling=BOUND) == states("network:80@64M-", 84.0) == []


def test_a_floor_judges_each_size_of_its_operations_and_backends() -> None:
    first = allocation("night-1", {case(M): 20.0, case(64 * M): 70.0, case(128 * M): 99.0, case(256 * M): 99.0})
    (found,) = floor_states([RING_80], [first])
    assert (found.name, found.percents, found.wanted) == ("allreduce 64 MiB mpi", (70.0,), 80.0)
    assert (found.limited_by, found.model, found.case["size_bytes"]) == ("NIC 4×100 Gb/s", "ring", 64 * M)
    percents = {case(): 70.0, case(backend="gloo"): 60.0, case(operation="broadcast"): 50.0, case(0, operation="barrier"): None}
    first = allocation("night-1", percents)
    found = floor_states([read_floor("ring:80@1-/allreduce+mpi"), read_floor("ring:55@64M-+gl*")], [first])
    assert [(each.name, each.state) for each in found] == [("allreduce 64 MiB mpi", "suspected")]
    names = {each.name for each in floor_states([read_floor("ring:80@1-")], [first])}
    assert names == {"allreduce 64 MiB mpi", "allreduce 64 MiB gloo", "broadcast 64 MiB mpi"}
