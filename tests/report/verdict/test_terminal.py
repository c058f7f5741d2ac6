"""What the gate prints: the result first, then what to look at, on one screen."""

from __future__ import annotations

import json
from dataclasses import replace

from collbench.gate.verdict import UNDECIDED, FloorState, Verdict
from collbench.report.verdict import json_line, lines
from tests.gate.verdicts import CELL, group, regression, suspicion, verdict
from tests.report.verdict.hostile import hostile


def printed(given: Verdict) -> list[str]:
    return [line.text for line in lines(given)]


def test_a_pass_is_two_lines() -> None:
    assert printed(verdict()) == ["passed", "judged: new; baseline base: 6 allocations, 6 cells with a history"]


def test_a_regression_names_the_unexpected_change_that_explains_it() -> None:
    given = regression()
    link, nccl = given.changes
    explained = replace(given, changes=(replace(nccl, explains=True), replace(link, explains=True)))
    cause = "topology nic rate: 400 Gb/s → 360 Gb/s (unexpected change)"  # the other one was announced
    assert printed(explained)[0] == f"regression: 2 confirmed, 1 accepted; most plausible cause: {cause}"


def test_a_regression_says_what_and_why_in_the_order_of_need() -> None:
    assert printed(regression()) == [
        "regression: 2 confirmed, 1 accepted",
        "points at the link: large messages are 1.12 times slower on mpi and nccl, small ones are not",
        "  allocation night-9 lacks allreduce 8 B mpi: what is missing never passes",
        "what takes longer, by allocation, and how much may be by chance; the surest and worst first:",
        "  confirmed  allreduce 64 MiB mpi  +12.0 %, +11.0 %, +13.0 %, by chance up to +2.0 %",
        "  confirmed  allreduce 64 MiB mpi  71.0 %, 70.5 %, 72.0 % of ring (NIC 4×100 Gb/s), 80 % asked for (ring:80@64M-)",
        "  accepted   allreduce 8 B nccl    +4.0 %, –, –, by chance up to +2.0 %; announced by A. Reviewer until 2027-01-31: "
        "fewer CTAs leave room for kernels",
        "  cleared, since they did not take longer again: allreduce on mpi, large messages",
        "what changed since the last good one, the most plausible cause first:",
        "  topology nic rate: 400 Gb/s → 360 Gb/s: it is what all slower cells share",
        "  software nccl: 2.29 → 2.30; announced by A. Reviewer until 2027-01-31: fewer CTAs leave room for kernels",
        "groups: 1 confirmed, 1 passed, 1 no verdict",
        "  confirmed   allreduce on mpi, large messages  +3.0 %, +0.0 %, +0.0 %, by chance up to +1.0 %; "
        "worst: allreduce 64 MiB mpi +12.0 % (up to +2.0 %)",
        "  no verdict  broadcast on mpi, large messages  not judged as one; 3 of 10 cells are missing",
        "reached: ring:50@1M-",
        "judged: night-9, night-10, night-11; baseline base: 6 allocations, 6 cells with a history",
        "note: allocation night-9: 1 of 5 launches was left out: the machine was in another state",
    ]


def test_a_floor_of_which_nothing_is_known_is_told() -> None:
    floor = FloorState("allreduce 64 MiB mpi", CELL, "ring:80@64M-", 80.0, (None,), None, None, UNDECIDED)
    assert "  no verdict  allreduce 64 MiB mpi  – of a ceiling that is not known, 80 % asked for (ring:80@64M-)" in printed(
        verdict(result=UNDECIDED, floors=(floor,))
    )


def test_factors_that_no_percentage_tells_are_factors() -> None:
    text = "\n".join(printed(verdict(suspicions=(suspicion(factors=(43.7, 0.97, 2.5)),))))
    assert "×43.7, -3.0 %, +150.0 %" in text


def test_thin_and_paired_are_said() -> None:
    assert "4 allocations (a thin baseline: fewer than 6)" in printed(verdict(allocations=4, thin=True))[-1]
    assert "what differs between the old stack and the new one, the most plausible cause first:" in printed(regression(mode="paired"))


def test_a_thousand_of_everything_fit_on_one_screen() -> None:
    told = regression(
        suspicions=tuple(suspicion() for _ in range(1000)), groups=tuple(group("no verdict") for _ in range(1000)),
        reasons=("why",) * 1000, notes=("note",) * 1000, changes=regression().changes * 500, candidates=("night",) * 1000,
    )  # fmt: skip
    found = printed(told)
    assert len(found) < 60
    for left_out in ("  and 992 more: see --out FILE", "  and 989 more: see --out FILE", "  and 994 more: see --out FILE"):
        assert left_out in found


def test_no_line_has_a_control_character() -> None:
    assert all(line.isprintable() for line in printed(hostile(rows=3)))


def test_json_is_the_file_on_one_line() -> None:
    assert json.loads(json_line(regression()).text) == json.loads(json.dumps(regression().as_json()))


def test_all_cells_together_and_the_worst_group_are_never_among_the_left_out() -> None:
    slow = group("suspected", "alltoall", factors=(1.3,))
    whole = suspicion("suspected", "all cells", kind="whole", cell={}, factors=(1.02,), limit=1.01)
    found = printed(
        verdict(
            result=UNDECIDED, suspicions=(*(suspicion("suspected") for _ in range(50)), whole), groups=(*[group("suspected")] * 50, slow)
        )
    )
    assert found[2] == "  suspected  all cells             +2.0 %, by chance up to +1.0 %"
    groups = found.index("groups: 51 suspected")
    assert "alltoall on mpi, large messages" in found[groups + 1]
