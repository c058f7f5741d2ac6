"""What the gate prints: the result first, then what to look at, on one screen."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.gating.verdict import UNDECIDED, FloorState, Verdict
from collbench.reason import Text
from collbench.records import document
from collbench.report.forms import json_line
from collbench.report.verdict import lines
from tests.gate.verdicts import CASE, group, regression, suspicion, verdict
from tests.report.verdict.hostile import hostile


def printed(given: Verdict) -> list[str]:
    return [line.text for line in lines(given)]


def test_a_pass_is_two_lines_json_one_and_no_line_has_a_control_character() -> None:
    assert printed(verdict()) == ["passed", "judged: new; baseline base: 6 allocations, 6 cases"]
    assert all(line.isprintable() for line in printed(hostile(rows=3)))
    assert json.loads(json_line(regression()).text) == json.loads(json.dumps(document(regression())))


def test_a_regression_names_the_unexpected_change_that_explains_it() -> None:
    given = regression()
    link, nccl = given.changes
    explained = replace(given, changes=(replace(nccl, explains=True), replace(link, explains=True)))
    cause = "topology nic rate: 400 Gb/s → 360 Gb/s (unexpected change)"  # the other one was announced
    assert printed(explained)[0] == f"regression: 2 confirmed, 1 accepted; most plausible cause: {cause}"


def test_a_regression_shows_cause_reasons_suspects_changes_and_groups_in_this_order() -> None:
    shown = printed(regression())
    beginnings = ["regression", "likely cause", "  allocation night-9", "slower", "  confirmed", "  confirmed", "  accepted", "  cleared",
                  "changes", "  topology", "  software", "groups", "  confirmed", "  no verdict", "--min-percent", "judged",
                  "note"]  # fmt: skip
    assert [line for line, begins in zip(shown, beginnings, strict=True) if not line.startswith(begins)] == []


def test_factors_unknown_floors_thin_and_paired_are_reported() -> None:
    floor = FloorState("allreduce 64 MiB mpi", CASE, "ring:80@64M-", 80.0, (None,), None, None, UNDECIDED)
    assert "  no verdict  allreduce 64 MiB mpi  – of an unknown reference, required: 80 % (ring:80@64M-)" in printed(
        verdict(result=UNDECIDED, floors=(floor,))
    )
    text = "\n".join(printed(verdict(suspicions=(suspicion(factors=(43.7, 0.97, 2.5)),))))
    assert "×43.7, -3.0 %, +150.0 %" in text
    assert "4 allocations (thin: fewer than 6)" in printed(verdict(allocations=4, thin=True))[-1]
    assert "changes from the old stack to the new one, the most plausible cause first:" in printed(regression(mode="paired"))


def test_a_thousand_of_everything_fit_on_one_screen() -> None:
    actual = regression(
        suspicions=tuple(suspicion() for _ in range(1000)), groups=tuple(group("no verdict") for _ in range(1000)),
        reasons=(Text("why"),) * 1000, notes=(Text("note"),) * 1000, changes=regression().changes * 500, candidates=("night",) * 1000,
    )  # fmt: skip
    found = printed(actual)
    assert len(found) < 60
    for left_out in ("  and 992 more: see --out FILE", "  and 989 more: see --out FILE", "  and 994 more: see --out FILE"):
        assert left_out in found


def test_all_cases_together_and_the_worst_group_are_never_among_the_left_out() -> None:
    slow = group("suspected", "alltoall", factors=(1.3,))
    whole = suspicion("suspected", "all cases", kind="whole", case={}, factors=(1.02,), limit=1.01)
    found = printed(
        verdict(
            result=UNDECIDED, suspicions=(*(suspicion("suspected") for _ in range(50)), whole), groups=(*[group("suspected")] * 50, slow)
        )
    )
    assert found[2] == "  suspected  all cases             +2.0 % (limit +1.0 %)"
    groups = found.index("groups: 51 suspected")
    assert "alltoall on mpi, large messages" in found[groups + 1]


def test_a_slower_group_is_listed_once_with_its_worst_case() -> None:
    name = "allreduce on mpi, large messages"
    slow = suspicion("suspected", name, kind="group", case={}, factors=(1.03,), limit=1.01)
    shown = printed(verdict(result=UNDECIDED, suspicions=(suspicion("suspected"), slow), groups=(group("suspected", factors=(1.03,)),)))
    assert [line.split("  ")[2] for line in shown if line.startswith("  suspected")] == ["allreduce 64 MiB mpi", name]
    assert "worst: allreduce 64 MiB mpi" in next(line for line in shown if name in line)


@given(st.integers(40, 200))
def test_no_line_exceeds_the_width(width: int) -> None:
    for each in (regression(), hostile(rows=3), verdict()):
        assert max(len(line.text) for line in lines(each, width)) <= width
