"""A verdict as Markdown, GitHub's annotations, a line of status, OpenMetrics and JUnit: read back, short, and never more than text."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from junitparser import Error, Failure, TestSuite
from lxml import etree
from msgspec import ValidationError
from prometheus_client.openmetrics.parser import text_string_to_metric_families as as_openmetrics
from prometheus_client.parser import text_string_to_metric_families as as_text

from collbench.analysis.differences import Difference, Item
from collbench.gating.reasons import CaseNames, ShortBaseline, StillSuspected, UnexpectedChange, WrongCases
from collbench.gating.verdict import EXIT_CODES, FloorState, Verdict, from_json, schema
from collbench.reason import Text
from collbench.records import document
from collbench.report import verdict_formats as formats
from tests.gate.verdicts import CASE, group, regression, suspicion, verdict
from tests.report.verdict.hostile import NASTY, hostile


def test_a_pass_is_short_and_no_verdict_has_its_reasons() -> None:
    assert formats.markdown(verdict()).split("\n") == [
        "## ✅ collbench gate: passed", "", "judged: new; baseline base: 6 allocations, 6 cases", "",
    ]  # fmt: skip
    text = formats.markdown(verdict(result="no verdict", reasons=(ShortBaseline("base", 3, 4),)))
    assert text.startswith("## ❔ collbench gate: no verdict\n\n- base has 3 allocations, ")


def test_a_regression_begins_with_it() -> None:
    lines = formats.markdown(regression()).splitlines()
    assert lines[0] == "## ❌ collbench gate: regression: 2 confirmed, 1 accepted"
    assert lines[2].startswith("Likely cause: the link")
    assert "| confirmed | allreduce 64 MiB mpi | +12.0 %, +11.0 %, +13.0 % (limit +2.0 %) |" in lines
    assert any(line.startswith("- topology nic rate: 400 Gb/s → 360 Gb/s: ") for line in lines)
    assert [line.removeprefix("<details><summary>").removesuffix("</summary>") for line in lines if "<summary>" in line] == [
        "Groups (3)", "Cleared: not slower again (1)", "Notes (1)",
    ]  # fmt: skip


def test_twenty_rows_are_open_and_all_are_below() -> None:
    first, _, folded = formats.markdown(regression(suspicions=tuple(suspicion(name=f"case {n}") for n in range(50)), floors=())).partition(
        "<details>"
    )
    assert [first.count("| confirmed | case"), folded.count("| confirmed | case")] == [20, 50]
    assert "The first 20 of 50, " in first


def test_a_group_is_listed_once_those_that_did_not_pass_first() -> None:
    text = formats.markdown(verdict(groups=(group(), group("no verdict", "gather"), group("confirmed", "reduce"))))
    assert [line.split(" | ")[2].split()[0] for line in text.splitlines() if ", large messages |" in line] == [
        "reduce", "gather", "allreduce",
    ]  # fmt: skip
    slow, fine = group("confirmed", "broadcast"), group()
    text = formats.markdown(verdict(groups=(slow, fine), suspicions=(suspicion(kind="group", name=slow.name, case={}),)))
    assert [text.count(each.name) for each in (slow, fine)] == [1, 1]
    assert "<summary>Other groups (1)</summary>" in text


def test_markdown_is_never_larger_than_github_takes_and_untrusted_text_is_no_markup() -> None:
    text = formats.markdown(hostile(rows=4000))
    assert len(text.encode()) <= formats.LARGEST < 1024 << 10
    assert "does not fit here" in text
    assert text.count("<details>") == text.count("</details>")
    text = formats.markdown(hostile(rows=2))
    assert "<script>" not in text and "[a]" not in text.replace("\\[", "") and "@everyone" not in text
    assert all(line.isprintable() for line in text.splitlines())
    rows = [line for line in text.splitlines() if line.startswith("| confirmed")]
    assert rows and all(line.replace("\\|", "").count("|") in (4, 6) for line in rows)


COMMAND = re.compile(r"::(error|warning|notice) title=([^:,]*)::(.*)")


def annotations_of(given: Verdict) -> list[tuple[str, str, str]]:
    """Kind, title and message of each, as the runner reads them: it undoes the escapes."""
    found = [COMMAND.fullmatch(line.text) for line in formats.annotation_lines(given)]
    assert all(found)
    return [(each[1], *map(unescaped, (each[2], each[3]))) for each in found if each]


def unescaped(text: str) -> str:
    for code, letter in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, letter)
    return text


def test_a_pass_is_a_notice_no_verdict_an_error_a_suspect_a_warning_and_a_regression_all_of_them() -> None:
    words = "passed; judged: new; baseline base: 6 allocations, 6 cases"
    assert annotations_of(verdict()) == [("notice", "collbench gate: passed", words)]
    found = annotations_of(verdict(result="no verdict", suspicions=(suspicion("suspected"),), reasons=(StillSuspected(1, 2),)))
    assert [each[0] for each in found] == ["error", "warning", "warning"]
    found = annotations_of(regression())
    assert found[0][:2] == ("error", "collbench gate: regression")
    assert found[1] == ("error", "confirmed: allreduce 64 MiB mpi", "+12.0 %, +11.0 %, +13.0 % (limit +2.0 %)")
    assert [each[:2] for each in found[2:]] == [
        ("error", "confirmed: allreduce 64 MiB mpi"), ("warning", "no verdict: broadcast on mpi, large messages"),
        ("warning", "collbench gate: reason"), ("notice", "accepted: allreduce 8 B nccl"),
        ("notice", "change since the last good allocation"), ("notice", "change since the last good allocation"),
        ("notice", "collbench gate: note"),
    ]  # fmt: skip


def test_there_are_ten_of_a_kind_at_most_and_untrusted_text_begins_no_command() -> None:
    found = annotations_of(
        regression(suspicions=tuple(suspicion() for _ in range(50)), reasons=(Text("why"),) * 50, notes=(Text("note"),) * 50)
    )
    assert [sum(each[0] == kind for each in found) for kind in ("error", "warning", "notice")] == [10, 10, 10]
    assert found[0][1] == "collbench gate: regression"
    for each in formats.annotation_lines(hostile(rows=3)):
        assert COMMAND.fullmatch(each.text) and each.text.isprintable()


FIGURE = re.compile(r"\w+=\d+(;\d*){3}")


def line(given: Verdict) -> str:
    (found,) = formats.status_lines(given)
    return found.text


def test_the_line_of_a_pass_a_regression_and_a_failure() -> None:
    assert line(verdict()) == (
        "COLLBENCH OK - passed | confirmed=0;;0;0 suspected=0;0;;0 accepted=0;0;;0 groups=0;;;0 unknown_groups=0;;;0 cells=6;;;0 "
        "baseline_allocations=6;;;0"
    )
    assert line(regression()).startswith(
        "COLLBENCH CRITICAL - regression: 2 confirmed, 1 accepted; the link: large messages are 1.12 times slower on mpi and nccl, small "
        "ones are not; allreduce 64 MiB mpi +12.0 %, +11.0 %, +13.0 % (limit +2.0 %); "
    )
    assert formats.of_failure("nowhere is not a baseline").text == "COLLBENCH UNKNOWN - nowhere is not a baseline"
    assert formats.of_failure(NASTY).text.isprintable() and "|" not in formats.of_failure(NASTY).text


@pytest.mark.parametrize(("given", "state"), [
    (verdict(result="no verdict", suspicions=(suspicion("suspected"),), reasons=(StillSuspected(1, 2),)), "WARNING"),
    (verdict(suspicions=(suspicion("accepted"),)), "WARNING"),
    (verdict(result="no verdict", reasons=(Text("a clock is wrong"),)), "UNKNOWN"),
    (verdict(result="wrong data"), "CRITICAL"),
])  # fmt: skip
def test_the_state_is_the_exit_codes(given: Verdict, state: str) -> None:
    assert line(given).startswith(f"COLLBENCH {state} - {given.result}")


def test_untrusted_text_is_one_short_line_with_one_bar() -> None:
    for text in (line(hostile(rows=50)), line(hostile("no verdict"))):
        assert text.isprintable() and len(text) < 1024
        actual, bar, figures = text.partition(" | ")
        assert bar and "|" not in actual + figures
        assert all(FIGURE.fullmatch(each) for each in figures.split(" "))


def samples(given: Verdict) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By name, without the prefix, the labels and values that both parsers find."""
    text = formats.openmetrics(given)
    found = {family.name: [(each.labels, each.value) for each in family.samples] for family in as_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {family.name: [(each.labels, each.value) for each in family.samples] for family in as_text(text)} == found
    return {name.removeprefix("collbench_gate_"): actual for name, actual in found.items()}


@pytest.mark.parametrize("result", EXIT_CODES)
def test_one_of_the_results_is_1(result: str) -> None:
    actual = {labels["result"]: value for labels, value in samples(verdict(result=result))["result"]}
    assert actual == {**dict.fromkeys(("passed", "regression", "no_verdict", "wrong_data"), 0.0), result.replace(" ", "_"): 1.0}


def test_a_regression_has_its_groups_and_suspects_and_what_is_unknown_no_sample() -> None:
    found = samples(regression())
    states = {(labels["operation"], labels["backend"]): labels["state"] for labels, value in found["group_state"] if value}
    assert states == {("allreduce", "mpi"): "confirmed", ("allreduce", "nccl"): "passed", ("broadcast", "mpi"): "no_verdict"}
    large = {"backend": "mpi", "operation": "allreduce", "size_class": "large"}
    assert found["group_time_ratio"][:3] == [({**large, "strike": str(n)}, factor) for n, factor in enumerate((1.03, 1.0, 1.0), 1)]
    assert [value for _, value in found["group_limit_ratio"]] == [1.01, 1.01]
    labels, value = found["suspicion_time_ratio"][0]
    named = {name: labels[name] for name in ("strike", "size_bytes", "placing", "state")}
    assert (value, named) == (1.12, {"strike": "1", "size_bytes": "67108864", "placing": "out of place", "state": "confirmed"})
    counts = {labels["state"]: value for labels, value in found["suspicions"]}
    assert counts == {"confirmed": 2, "suspected": 0, "accepted": 1, "cleared": 1}
    assert [value for _, value in found["of_ceiling_ratio"]] == [0.71, 0.705, 0.72]
    assert found["of_ceiling_wanted_ratio"][0][1] == 0.8
    assert found["unannounced_changes"] == [({}, 1)]
    assert found["judged_timestamp_seconds"] == [({}, 1795219200)]
    times = samples(regression())["suspicion_time_ratio"]
    assert [value for labels, value in times if labels["name"] == "allreduce 8 B nccl"] == [1.04]


def test_untrusted_text_is_a_label_and_no_metric() -> None:
    found = samples(hostile(rows=3))
    assert found["result"][1] == ({"result": "regression"}, 1)
    assert all(set(labels) <= {"kind", "name", "state", "strike", "operation"} for labels, _ in found["suspicion_time_ratio"])


VALUES = st.sampled_from([None, 0, 1, 1e-99, 1e99, 2**62, "", NASTY, "no verdict", [], [None], [1e99, 1e-99], [NASTY], {}])
FITS = Draft202012Validator(schema())


@given(st.lists(st.tuples(st.integers(0), st.integers(0), VALUES), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_every_output_holds_any_verdict(changes: list[tuple[int, int, Any]]) -> None:
    page: dict[str, Any] = json.loads(json.dumps(document(regression())))
    for where, which, value in changes:
        places = [page, *page["groups"], *page["suspicions"], *page["floors"], *page["changes"]]
        place = places[where % len(places)]
        name = sorted(place)[which % len(place)]
        before, place[name] = place[name], value
        if not FITS.is_valid(page):
            place[name] = before
    try:
        actual = from_json(page)
    except ValidationError:  # 1e99 allocations fit the schema, but not an integer
        return
    for format, style in (("table", "collbench"), ("table", "nagios"), ("github", "prolog"), ("json", "collbench")):
        assert all(line.text.isprintable() for line in formats.verdict_lines(actual, format, style))
    assert all(len(made(actual)) > 100 for made in (formats.junit, formats.markdown, formats.openmetrics))


# JUnit XML: valid against Ant's schema, read back by a library of others; what is not known is never green.

WHOLE = ("the verdict", "comparable: software, clocks, machine state", "all cases")


@pytest.fixture(scope="module")
def ants() -> etree.XMLSchema:
    """The schema that ReFrame ships: windyroad/JUnit-Schema."""
    reframe = find_spec("reframe")  # found, not imported: that takes a second
    if reframe is None or reframe.origin is None:
        pytest.skip("ReFrame is not installed")
    return etree.XMLSchema(etree.parse(str(Path(reframe.origin).parent / "schemas" / "junit.xsd")))


def cases(given: Verdict) -> dict[str, tuple[str, str, str]]:
    """By name what it is ("failure", "error" or ""), its type and its message."""
    suite = TestSuite.fromstring(formats.junit(given).encode())
    found = {}
    for case in suite:
        (result,) = case.result or [None]
        kind = {Failure: "failure", Error: "error"}.get(type(result), "")
        found[str(case.name)] = (kind, str(result.type), str(result.message)) if result is not None else ("", "", "")
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (
        len(found), *(sum(each[0] == kind for each in found.values()) for kind in ("failure", "error")), 0,
    )  # fmt: skip
    return found


def kinds(given: Verdict) -> dict[str, str]:
    return {name: kind for name, (kind, _, _) in cases(given).items()}


def test_a_pass_has_no_failure_and_a_regression_its_cause_cases_and_changes() -> None:
    assert kinds(verdict(groups=(group(),))) == {**dict.fromkeys(WHOLE, ""), "allreduce on mpi, large messages": ""}
    failure = next(iter(TestSuite.fromstring(formats.junit(regression()).encode()))).result[0]
    assert isinstance(failure, Failure)
    for words in ("likely cause: the link", "confirmed: allreduce 64 MiB mpi: +12.0 %", "software nccl: 2.29 → 2.30", "judged: night-9"):
        assert words in str(failure.text)


def test_a_regression_fails_where_it_is_and_is_an_error_where_nothing_is_known() -> None:
    found = cases(regression())
    assert {name: kind for name, (kind, _, _) in found.items()} == {
        "the verdict": "failure", "comparable: software, clocks, machine state": "error", "all cases": "",
        "allreduce on mpi, large messages": "failure", "allreduce on nccl, large messages": "",
        "broadcast on mpi, large messages": "error", "ring:80@64M-": "failure", "ring:50@1M-": "",
    }  # fmt: skip
    assert found["the verdict"][1:] == ("regression", "regression: 2 confirmed, 1 accepted")
    assert found["broadcast on mpi, large messages"][1:] == ("no verdict", "cases judged one by one; 3 of 10 cases missing")


def test_what_cannot_be_compared_and_a_suspect_are_errors_however_slow_and_wrong_data_a_failure() -> None:
    changed = UnexpectedChange(Difference(Item.of("software", "mpi"), "4.3", "5.0"))
    found = kinds(verdict(result="no verdict", reasons=(changed,), groups=(group("confirmed"),)))
    assert found == {WHOLE[0]: "error", WHOLE[1]: "error", WHOLE[2]: "", "allreduce on mpi, large messages": "error"}
    whole = suspicion("suspected", "all cases", kind="whole", case={})
    found = kinds(verdict(result="no verdict", reasons=(StillSuspected(1, 2),), suspicions=(whole,), groups=(group("suspected"),)))
    assert found == {WHOLE[0]: "error", WHOLE[1]: "", WHOLE[2]: "error", "allreduce on mpi, large messages": "error"}
    wrong = cases(verdict(result="wrong data", reasons=(WrongCases("new", CaseNames(("allreduce 8 B mpi",))),)))
    assert wrong["the verdict"][:2] == ("failure", "wrong data")


def test_a_floor_is_as_bad_as_its_worst_case() -> None:
    def floor(state: str, asked: str) -> FloorState:
        return FloorState("allreduce 64 MiB mpi", CASE, asked, 80.0, (None,), None, None, state)

    floors = (floor("no verdict", "a"), floor("confirmed", "a"), floor("cleared", "b"), floor("no verdict", "c"))
    found = kinds(regression(groups=(), floors=floors, asked=("a", "b", "c")))
    assert {name: found[name] for name in "abc"} == {"a": "failure", "b": "", "c": "error"}


@pytest.mark.parametrize("result", EXIT_CODES)
def test_no_result_but_a_pass_is_green(result: str) -> None:
    assert (set(kinds(verdict(result=result)).values()) == {""}) == (result == "passed")


@pytest.mark.parametrize("given", [verdict(), regression(), hostile(), hostile("no verdict", 3), hostile("wrong data")])
def test_it_is_valid_with_any_content(given: Verdict, ants: etree.XMLSchema) -> None:
    ants.assertValid(etree.fromstring(formats.junit(given).encode()))
