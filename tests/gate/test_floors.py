"""Minimum percentages of the expected bandwidth: `--min-percent`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.analysis.ceilings import LinkCeiling
from collbench.analysis.launches import case_of
from collbench.errors import UsageError
from collbench.gating.allocation import Allocation, CaseTimes, ShownFigures
from collbench.gating.conditions import Floor, floor_reasons, floor_states, read_floor
from collbench.gating.reasons import CaseNames, FloorUnknown, SuspectedBelowFloor
from collbench.machine.peak.ceiling import Ceiling, no_ceiling
from collbench.results.row import CaseKey
from tests.results.rows import NIC, make_row

BOUND = Ceiling("network", 100e9, "NIC 4×100 Gb/s", "bound", "sysfs")
M = 1 << 20


def case(size: int = 64 * M, **changes: Any) -> CaseKey:
    return case_of(make_row(size, **{"backend": "mpi", **changes}))


def allocation(
    name: str, percents: Mapping[CaseKey, float | None], ceiling: Ceiling | None = NIC, bound: Ceiling | None = BOUND
) -> Allocation:
    shown = {each: ShownFigures(frozenset(), percent, ceiling, bound) for each, percent in percents.items()}
    return Allocation(name, "2026-11-20T03:00:00+00:00", 5, 0, (None,) * 5, {}, {each: CaseTimes((1e-3,) * 5) for each in percents}, shown)


def states(asked: str, *percents: float | None, **changes: Any) -> list[str]:
    candidate = [allocation(f"night-{number}", {case(): percent}, **changes) for number, percent in enumerate(percents)]
    return [each.state for each in floor_states([read_floor(asked)], candidate)]


def test_a_slower_link_does_not_lower_the_minimum() -> None:
    candidate = [allocation(f"night-{number}", {case(): 95.0}) for number in range(3)]
    floor = read_floor("ring:80@64M-")
    was = LinkCeiling("allreduce", "mpi", "all", 4, 1, None, "ring", 2 * (NIC.bytes_per_s or 0), "NIC 8×100 Gb/s")
    assert floor_states([floor], candidate) == []
    (state,) = floor_states([floor], candidate, before=[was])
    assert (state.state, state.percents) == ("confirmed", (47.5,) * 3)
    assert state.limited_by and state.limited_by.startswith("NIC 8×100 Gb/s")
    assert floor_states([floor], candidate, before=[was._replace(bytes_per_s=1.0)]) == []


def test_the_parts_of_a_floor() -> None:
    assert read_floor("ring:80@64M-") == Floor("ring:80@64M-", "ring", 80.0, 64 * M, None)
    assert read_floor("hard:60.5@1M-16M/all*+mpi") == Floor("hard:60.5@1M-16M/all*+mpi", "hard", 60.5, M, 16 * M, "all*", "mpi")
    assert read_floor("given:90@-1M+torch-nccl") == Floor("given:90@-1M+torch-nccl", "given", 90.0, 1, M, "*", "torch-nccl")
    assert read_floor("ring:80@64M") == Floor("ring:80@64M", "ring", 80.0, 64 * M, 64 * M)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80", "MODEL:PERCENT@SIZES"),
        ("ring:80", "MODEL:PERCENT@SIZES"),
        ("rign:80@64M-", "'rign'"),
        ("ring:0@64M-", "'0'"),
        ("ring:101@64M-", "'101'"),
        ("ring:nan@64M-", "'nan'"),
        ("ring:80@64X-", "'64X'"),
        ("ring:80@-", "size ''"),
        ("ring:80@16M-1M", "'16M-1M'"),
        ("ring:80@64M-" * 50, "MODEL:PERCENT@SIZES"),
    ],
)
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
    both = [allocation(name, {case(): 70.0}) for name in ("first", "second")]
    assert [each.state for each in floor_states([read_floor("ring:80@64M-")], both, confirmations=2)] == ["confirmed"]
    low = [allocation(f"night-{number}", {case(): 70.0}) for number in range(3)]
    floors = [read_floor("ring:80@64M-")]
    assert [each.state for each in floor_states(floors, low)] == ["confirmed"]
    assert [each.state for each in floor_states(floors, [replace(each, jobs=("Slurm job 12",)) for each in low])] == ["suspected"]


def test_an_unknown_percentage_does_not_pass_and_the_hard_bound_is_another_denominator() -> None:
    assert states("ring:80@64M-", None) == ["no verdict"]
    assert states("ring:80@64M-", 95.0, ceiling=None) == ["no verdict"]
    assert states("ring:80@64M-", None, ceiling=no_ceiling("no speed")) == ["no verdict"]
    assert states("ring:80@64M-", 95.0, ceiling=BOUND) == ["no verdict"]
    assert states("measured:80@64M-", 95.0) == ["no verdict"]
    assert states("hard:30@64M-", 95.0, bound=None) == ["no verdict"]
    assert states("hard:45@64M-", 84.0) == ["suspected"]  # 84 % of 50 GB/s are 42 % of 100
    assert states("hard:40@64M-", 84.0) == []
    assert states("hard:80@64M-", 84.0, ceiling=BOUND) == []
    assert states("network:80@64M-", 84.0) == []


def test_a_floor_judges_each_size_of_its_operations_and_backends() -> None:
    first = allocation("night-1", {case(M): 20.0, case(64 * M): 70.0, case(128 * M): 99.0, case(256 * M): 99.0})
    (found,) = floor_states([read_floor("ring:80@64M-")], [first])
    assert (found.name, found.percents, found.wanted) == ("allreduce 64 MiB mpi", (70.0,), 80.0)
    assert (found.limited_by, found.model, found.case["size_bytes"]) == ("NIC 4×100 Gb/s", "ring", 64 * M)
    first = allocation(
        "night-1", {case(): 70.0, case(backend="gloo"): 60.0, case(operation="broadcast"): 50.0, case(0, operation="barrier"): None}
    )
    found = floor_states([read_floor("ring:80@1-/allreduce+mpi"), read_floor("ring:55@64M-+gl*")], [first])
    assert [(each.name, each.state) for each in found] == [("allreduce 64 MiB mpi", "suspected")]
    assert {each.name for each in floor_states([read_floor("ring:80@1-")], [first])} == {
        "allreduce 64 MiB mpi",
        "allreduce 64 MiB gloo",
        "broadcast 64 MiB mpi",
    }
    with pytest.raises(UsageError, match="ring:80@1G-: allocation night-1 "):
        floor_states([read_floor("ring:80@1G-")], [allocation("night-1", {case(): 70.0})])


def test_the_reasons_of_floors_that_do_not_pass() -> None:
    first = allocation("night-1", {case(): 70.0, case(M): None})
    suspected, unknown = floor_reasons(floor_states([read_floor("ring:80@1M-")], [first]))
    assert suspected == SuspectedBelowFloor(CaseNames(("allreduce 64 MiB mpi",)))
    assert unknown == FloorUnknown("ring:80@1M-", CaseNames(("allreduce 1 MiB mpi",)))
    again = [allocation(name, {case(): 70.0}) for name in ("night-1", "night-2", "night-3")]
    assert floor_reasons(floor_states([read_floor("ring:80@64M-")], again)) == []
