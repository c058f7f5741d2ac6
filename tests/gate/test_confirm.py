"""The suite of suspects: it is one, and it has their cases and no others."""

import tomllib
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from collbench.analysis.launches import case_of
from collbench.gating.allocation import COLUMNS, CaseTimes
from collbench.gating.baseline import Baseline
from collbench.gating.confirm import confirm_suite, suspects
from collbench.gating.reasons import NotInSuite
from collbench.gating.verdict import FloorState, Suspicion, Verdict
from collbench.operations.suite import check_form
from collbench.results.row import CaseKey
from tests.gate.judging import BASE, SIZES, allocation, judged
from tests.gate.verdicts import verdict as made_up
from tests.results.rows import make_row

CASES = [case_of(make_row(size, backend=backend)) for backend in ("nccl", "mpi") for size in (8, 64 << 20, 128 << 20)]


def verdict(*suspicions: Suspicion) -> Verdict:
    return made_up(result="no verdict", suspicions=suspicions)


def suspect(kind: str, name: str, state: str = "suspected", case: tuple[object, ...] = ()) -> Suspicion:
    return Suspicion(kind, name, dict(zip(COLUMNS, case, strict=False)), (1.1,), 1.02, state)


def test_suspects_are_those_of_cases_groups_and_floors() -> None:
    assert suspects(verdict(suspect("cell", "x", case=CASES[1])), CASES) == [CASES[1]]
    assert suspects(verdict(suspect("group", "allreduce on mpi, large messages")), CASES) == CASES[4:]
    assert suspects(verdict(suspect("whole", "all cases")), CASES) == CASES
    assert suspects(verdict(suspect("cell", "x", "cleared", CASES[1]), suspect("whole", "all cases", "confirmed")), CASES) == []
    new = [case_of(make_row(16, root=root)) for root in (1, None)]
    below = [FloorState("x", each._asdict(), "ring:80@64M-", 80.0, (70.0,), None, None, "suspected") for each in (CASES[1], *new)]
    assert suspects(made_up(result="no verdict", floors=tuple(below)), CASES) == [CASES[1], *sorted(new, key=str)]


def sweeps_of(*cases: CaseKey) -> list[dict[str, Any]]:
    """The sweeps of the suite of these cases, which is a valid one."""
    document = tomllib.loads(confirm_suite(cases))
    check_form(document, "confirm.toml")
    return list(document["sweeps"])


def test_a_suite_has_a_sweep_by_size_and_keys_for_traffic_and_pairs() -> None:
    first, second = sweeps_of(CASES[1], CASES[0], CASES[4])
    assert (first["operations"], first["backends"], first["sizes"]) == ("allreduce", "nccl", [8, 64 << 20])
    assert (second["operations"], second["backends"], second["sizes"]) == ("allreduce", "mpi", [64 << 20])
    assert first["in_place"] is False
    text = confirm_suite([case_of(make_row(8, operation="alltoallv", traffic="experts.csv:1f2e3d4c"))])
    assert "# left out" in text and "sweeps" not in tomllib.loads(text)
    assert sweeps_of(case_of(make_row(8, operation="alltoallv", traffic="skew 2")))[0]["skew"] == 2
    assert sweeps_of(case_of(make_row(8, operation="multipair_bandwidth", group="3 pairs")))[0]["pairs"] == 3


def test_the_suite_can_confirm_a_group_and_all_cases() -> None:
    slower = dict.fromkeys(SIZES, 1.018)
    first = judged(allocation("a", slower))
    assert {each.kind for each in first.suspicions} == {"group", "whole"}
    again = [allocation(name, slower) for name in "bc"]
    only = suspects(first, BASE.cases)
    verdict = judged(allocation("a", slower), *(replace(each, cases={case: each.cases[case] for case in only}) for each in again))
    assert {each.state for each in verdict.suspicions} == {"confirmed"}


def test_a_group_of_which_no_suite_can_name_a_case_is_noted() -> None:
    odd = [case_of(make_row(size, operation="alltoallv", traffic="experts.csv:1f2e3d4c")) for size in (64 << 20, 128 << 20, 256 << 20)]
    good, slower = (
        replace(allocation(name), cases=dict.fromkeys(odd, CaseTimes((time_s,) * 5))) for name, time_s in (("good", 0.1), ("a", 0.11))
    )
    base = Baseline(Path("base"), [replace(good, name=f"good-{number}") for number in range(6)])
    (note,) = judged(slower, baseline=base).notes
    assert isinstance(note, NotInSuite) and note.cases.names[0] == "alltoallv 64 MiB nccl experts.csv:1f2e3d4c"
