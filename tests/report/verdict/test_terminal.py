"""What the gate prints: the result first, what to look at on one screen, and next commands that are correct without edits."""

import json
import shlex
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from collbench.analysis.differences import Difference, Item
from collbench.errors import UsageError
from collbench.gating.conditions import read_expected, unannounced
from collbench.gating.reasons import LaunchesNeeded, StillSuspected, UnexpectedChange
from collbench.gating.verdict import UNDECIDED, Announcement, Change, FloorState, Verdict
from collbench.reason import Text
from collbench.records import document
from collbench.report.forms import json_line
from collbench.report.verdict import GateCommand, arguments_of, expect_template, lines, next_commands
from tests.gate.verdicts import CASE, group, regression, suspicion, verdict
from tests.report.verdict.hostile import hostile


def printed(given: Verdict) -> list[str]:
    return [line.text for line in lines(given)]


def test_a_pass_is_two_lines_json_one_and_no_line_has_a_control_character() -> None:
    assert printed(verdict()) == ["passed", "judged: new; baseline base: 6 allocations, 6 cases"]
    assert all(line.isprintable() for line in printed(hostile(rows=3)))
    assert json.loads(json_line(regression()).text) == json.loads(json.dumps(document(regression())))


def test_a_regression_shows_cause_reasons_suspects_changes_and_groups_in_this_order() -> None:
    given = regression()
    link, nccl = given.changes
    explained = replace(given, changes=(replace(nccl, explains=True), replace(link, explains=True)))
    cause = "topology nic rate: 400 Gb/s → 360 Gb/s (unexpected change)"  # the other one was announced
    assert printed(explained)[0] == f"regression: 2 confirmed, 1 accepted; most plausible cause: {cause}"
    shown = printed(regression())
    beginnings = ["regression", "likely cause", "  allocation night-9", "slower", "  confirmed", "  confirmed", "  accepted", "  cleared",
                  "changes", "  topology", "  software", "groups", "  confirmed", "  no verdict", "--min-percent", "judged",
                  "note"]  # fmt: skip
    assert [line for line, begins in zip(shown, beginnings, strict=True) if not line.startswith(begins)] == []


def test_factors_unknown_floors_thin_and_paired_are_reported() -> None:
    floor = FloorState("allreduce 64 MiB mpi", CASE, "ring:80@64M-", 80.0, (None,), None, None, UNDECIDED)
    line = "  no verdict  allreduce 64 MiB mpi  – of an unknown reference, required: 80 % (ring:80@64M-)"
    assert line in printed(verdict(result=UNDECIDED, floors=(floor,)))
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
    suspicions = (*(suspicion("suspected") for _ in range(50)), whole)
    found = printed(verdict(result=UNDECIDED, suspicions=suspicions, groups=(*[group("suspected")] * 50, slow)))
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


AGAIN = (StillSuspected(1, 2),)
SUSPECTED = {"result": "no verdict", "reasons": AGAIN, "suspicions": (suspicion("suspected"),), "candidates": ("night-8",)}


def commands_of(given: Verdict, **changes: Any) -> list[str]:
    typed: dict[str, Any] = {
        "baseline": Path("base"), "runs": [Path("night-8")], "besides": [], "suite": Path("confirm.toml"), "nameable": True, "html": False,
        "imported": False, "launcher": "local", "options": {"--ranks": "2", "--sizes": "8-1M"}, "slowed": False,
    }  # fmt: skip
    return [line.text for line in next_commands(given, GateCommand(**{**typed, **changes}))]


def test_suspects_are_measured_in_two_fresh_allocations_and_judged_with_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "night-8-again-1").mkdir()
    assert commands_of(verdict(**SUSPECTED), besides=["--min-percent", "ring:80@64M-"]) == [
        "next: measure the suspects again in two fresh allocations, one command in each:",
        "  collbench run confirm.toml --ranks 2 --launches 5 --allocation night-8-again-2 --out night-8-again-2 --quiet",
        "  collbench run confirm.toml --ranks 2 --launches 5 --allocation night-8-again-3 --out night-8-again-3 --quiet",
        "and judge all together:",
        "  collbench gate --baseline base night-8 night-8-again-2 night-8-again-3 --confirm-suite confirm.toml --min-percent ring:80@64M-",
    ]


def test_a_launcher_starts_each_launch_and_a_third_allocation_is_one() -> None:
    two = verdict(**{**SUSPECTED, "candidates": ("482", "483")})
    lines = commands_of(two, launcher="srun", runs=[Path("a b"), Path("second")])
    assert lines[:2] == [
        "next: measure the suspects again in one more fresh allocation:",
        "  for n in 1 2 3 4 5; do srun collbench run confirm.toml --quiet --out 482-again-1/launch-$n; done",
    ]
    assert shlex.split(lines[-1])[4:7] == ["a b", "second", "482-again-1"]


def test_without_a_suite_it_is_written_first_and_what_no_suite_measures_has_none() -> None:
    assert commands_of(verdict(**SUSPECTED), suite=None)[1] == "  collbench gate --baseline base night-8 --confirm-suite confirm.toml"
    assert commands_of(verdict(**SUSPECTED), imported=True) == [] == commands_of(verdict(**SUSPECTED), nameable=False)


def test_a_change_is_announced_by_a_table_that_can_be_read() -> None:
    change = Change(Item.of("software", 'mpi "x" [1]'), "4", "5")
    reasons = (UnexpectedChange(Difference(change.item, change.before, change.after)), *AGAIN)
    given = verdict(**{**SUSPECTED, "reasons": reasons, "changes": (change,)})
    lines = commands_of(given)
    assert lines[0] == "next: if the change is intended, announce it in changes.toml:"
    (table,) = tomllib.loads("\n".join(lines[1:7]))["change"]
    assert (table["kind"], table["what"], table["expires"]) == ("software", 'mpi "x" [[]1]', date(2026, 12, 21))
    assert lines[7:9] == ["and judge again:", "  collbench gate --baseline base night-8 --expect changes.toml"]
    # a slowdown may still be confirmed
    assert lines[9] == "next: measure the suspects again in two fresh allocations, one command in each:"


def test_several_changes_are_announced_by_a_template_that_must_be_completed_and_expected_ones_by_none(tmp_path: Path) -> None:
    items = [Item.of("software", 'mpi "x" [1]'), Item.of("software", "ucx\nversion"), Item.of("topology", "machines * nics (3 times)")]
    changes = tuple(Change(item, "4", "5") for item in items)
    given = verdict(result="no verdict", changes=changes, candidates=("night-8",))
    assert commands_of(given) == [
        "next: if the 3 changes are intended, write a table for each to changes.toml, and complete them:",
        "  collbench gate --baseline base night-8 --expect-template changes.toml",
        "and judge again:",
        "  collbench gate --baseline base night-8 --expect changes.toml",
    ]
    assert commands_of(given, besides=["--expect", "known.toml"])[1:] == [
        "  collbench gate --baseline base night-8 --expect-template more-changes.toml --expect known.toml"
    ]
    text = expect_template(given)
    assert text is not None
    file = tmp_path / "changes.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="change 1: 'reason' is ''"):
        read_expected(file)
    file.write_text(text.replace('reason = ""', 'reason = "upgrade"').replace('reviewer = ""', 'reviewer = "ops"'), encoding="utf-8")
    differences = [Difference(change.item, change.before, change.after) for change in changes]
    assert unannounced(differences, read_expected(file), date(2026, 11, 30)) == []
    announced = Change(Item.of("software", "mpi"), "4", "5", announced=Announcement("upgrade", "ops", "2026-12-01"))
    assert expect_template(verdict(changes=(announced,))) is None
    assert expect_template(verdict(mode="paired", changes=(Change(Item.of("software", "mpi"), "4", "5"),))) is None


def test_what_passed_is_added_a_regression_has_a_page_and_wrong_data_a_table() -> None:
    assert commands_of(verdict()) == ["next: add it to the baseline:", "  collbench baseline add base night-8"]
    assert commands_of(verdict(), slowed=True) == [] == commands_of(verdict(candidates=("a", "b", "c")))
    assert commands_of(verdict(result="no verdict", allocations=2))[1] == "  collbench baseline add base RUN…"
    assert commands_of(verdict(result="regression"))[1] == "  collbench gate --baseline base night-8 --html gate.html"
    assert commands_of(verdict(result="regression"), html=True) == []
    assert commands_of(verdict(result="wrong data")) == ["next: show the cases with wrong data:", "  collbench report night-8"]


def test_launches_that_replace_others_are_measured_as_the_first_ones_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = verdict(result="no verdict", reasons=(LaunchesNeeded("night-8", 1, 2, 2),), candidates=("night-8",))
    words = arguments_of({"command": "run all.toml", "--ranks": "2", "--in-place": "given"})
    assert commands_of(given, commands={"night-8": words}) == [
        "next: measure 2 more launches in night-8:",
        "  collbench run all.toml --ranks 2 --in-place --allocation night-8 --quiet --out night-8-again-1 --launches 2",
        "and judge all together:",
        "  collbench gate --baseline base night-8 night-8-again-1",
    ]
    measured = "collbench run all.toml --ranks 2 --in-place --allocation night-8 --quiet --out night-8-again-1/launch-$n"
    assert commands_of(given, commands={"night-8": words}, launcher="srun")[:2] == [
        "next: measure 2 more launches in night-8, in the same job:",
        f"  for n in 1 2; do srun {measured}; done",
    ]
    assert commands_of(given) == [] == commands_of(given, commands={"night-8": arguments_of({"command": "run", "--ranks": "2 all.toml"})})
