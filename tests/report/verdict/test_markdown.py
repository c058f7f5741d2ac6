"""Markdown for a step's summary: the result first, 20 rows, the rest folded, and never more than GitHub takes."""

from __future__ import annotations

from collbench.gating.reasons import ShortBaseline
from collbench.report.verdict_formats import LARGEST, markdown
from tests.gate.verdicts import group, regression, suspicion, verdict
from tests.report.verdict.hostile import hostile


def test_a_pass_is_short_and_no_verdict_has_its_reasons() -> None:
    assert markdown(verdict()).split("\n") == [
        "## ✅ collbench gate: passed", "", "judged: new; baseline base: 6 allocations, 6 cases", "",
    ]  # fmt: skip
    text = markdown(verdict(result="no verdict", reasons=(ShortBaseline("base", 3, 4),)))
    assert text.startswith("## ❔ collbench gate: no verdict\n\n- base has 3 allocations, ")


def test_a_regression_begins_with_it() -> None:
    lines = markdown(regression()).splitlines()
    assert lines[0] == "## ❌ collbench gate: regression: 2 confirmed, 1 accepted"
    assert lines[2].startswith("Likely cause: the link")
    assert "| confirmed | allreduce 64 MiB mpi | +12.0 %, +11.0 %, +13.0 % (limit +2.0 %) |" in lines
    assert any(line.startswith("- topology nic rate: 400 Gb/s → 360 Gb/s: ") for line in lines)
    assert [line.removeprefix("<details><summary>").removesuffix("</summary>") for line in lines if "<summary>" in line] == [
        "Groups (3)", "Cleared: not slower again (1)", "Notes (1)",
    ]  # fmt: skip


def test_twenty_rows_are_open_and_all_are_below() -> None:
    first, _, folded = markdown(regression(suspicions=tuple(suspicion(name=f"case {n}") for n in range(50)), floors=())).partition(
        "<details>"
    )
    assert [first.count("| confirmed | case"), folded.count("| confirmed | case")] == [20, 50]
    assert "The first 20 of 50, " in first


def test_a_group_is_listed_once_those_that_did_not_pass_first() -> None:
    text = markdown(verdict(groups=(group(), group("no verdict", "gather"), group("confirmed", "reduce"))))
    assert [line.split(" | ")[2].split()[0] for line in text.splitlines() if ", large messages |" in line] == [
        "reduce",
        "gather",
        "allreduce",
    ]
    slow, fine = group("confirmed", "broadcast"), group()
    text = markdown(verdict(groups=(slow, fine), suspicions=(suspicion(kind="group", name=slow.name, case={}),)))
    assert [text.count(each.name) for each in (slow, fine)] == [1, 1]
    assert "<summary>Other groups (1)</summary>" in text


def test_it_is_never_larger_than_github_takes() -> None:
    text = markdown(hostile(rows=4000))
    assert len(text.encode()) <= LARGEST < 1024 << 10
    assert "does not fit here" in text
    assert text.count("<details>") == text.count("</details>")


def test_untrusted_text_is_no_markup() -> None:
    text = markdown(hostile(rows=2))
    assert "<script>" not in text and "[a]" not in text.replace("\\[", "") and "@everyone" not in text
    assert all(line.isprintable() for line in text.splitlines())
    rows = [line for line in text.splitlines() if line.startswith("| confirmed")]
    assert rows and all(line.replace("\\|", "").count("|") in (4, 6) for line in rows)
