"""The verdict: what it counts, and the form in which it is kept."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from collbench.analysis.outcome import Outcome
from collbench.errors import UsageError
from collbench.gating import reasons
from collbench.gating.verdict import EXIT_CODES, SCHEMA_FILE, STYLES, Verdict, code_of_failure, exit_code, from_json, read_verdict, schema
from collbench.reason import Text
from collbench.records import document
from collbench.results.store import to_page
from tests.gate.verdicts import ANNOUNCED, CASE, regression, suspicion, verdict
from tests.stored import stored_reports

WAITS = reasons.StillSuspected(1, 2)
SMALL_CASE = reasons.CaseNames(("allreduce 8 B mpi",))


def test_a_stored_cause_that_is_not_valid_is_text() -> None:
    found = read_verdict(stored_reports() / "gate-trials/group-1/verdict.json").cause
    assert isinstance(found, reasons.StoredCause) and found.cause == "backend" and found.sentence.startswith("gloo, or a link")
    actual = document(regression())
    change = {**actual["changes"][0], "plausible": "x", "plausible_fact": {"kind": "matching_rate", "link": 1e9, "measured": 0.1}}
    assert from_json({**actual, "changes": [change]}).changes[0].plausible == Text("x")


@pytest.mark.parametrize("fact", [
    {"kind": "slow_messages", "causes": [], "messages": "large", "contrast": None, "slowdown": [0, 0], "backends": ["mpi"]},
    {"kind": "slow_messages", "causes": ["link"], "messages": "large", "contrast": None, "slowdown": [0, 1e9], "backends": ["mpi"]},
    {"kind": "slow_sizes", "sizes": [8], "series": [], "slowdown": 0.1}, {"kind": "of_a_later_version"}, 7,
])  # fmt: skip
def test_a_cause_that_is_not_valid_is_its_sentence(fact: object) -> None:
    actual = document(regression())
    stored = {**actual, "cause": {"kind": "link", "sentence": "a link", "fact": fact}}
    assert from_json(stored).cause == reasons.StoredCause("link", "a link")


def test_it_counts_states_and_waits_for_a_second_allocation() -> None:
    actual = regression()
    assert [actual.count(state) for state in ("confirmed", "suspected", "accepted", "cleared")] == [2, 0, 1, 1]
    (floor,) = regression().floors
    assert regression().reached == ["ring:50@1M-"]
    assert regression(floors=(replace(floor, state="cleared"),)).reached == ["ring:80@64M-", "ring:50@1M-"]
    assert regression(floors=(replace(floor, state="no verdict"),)).reached == ["ring:50@1M-"]
    undecided = {"result": "no verdict", "suspicions": (suspicion("suspected"),)}
    assert verdict(**undecided, reasons=(WAITS,)).waits
    assert verdict(**undecided, reasons=(WAITS, reasons.SuspectedBelowFloor(SMALL_CASE))).waits
    assert not verdict(**undecided, reasons=(WAITS, reasons.MissingCases("new", SMALL_CASE))).waits
    assert not verdict(**undecided, reasons=(Text("1 suspect"),)).waits
    assert not verdict().waits
    assert not regression(reasons=(WAITS,)).waits


# A verdict.json reads back as it was written; an error of the schema is one sentence with its place.


def written(folder: Path, expected: Any) -> Path:
    path = folder / "verdict.json"
    path.write_text(expected if isinstance(expected, str) else json.dumps(expected))
    return path


def refused(folder: Path, expected: Any) -> str:
    with pytest.raises(UsageError) as error:
        read_verdict(written(folder, expected))
    assert "\n" not in str(error.value)
    return str(error.value).partition("verdict.json ")[2]


def stored_verdict(**changes: Any) -> dict[str, Any]:
    page: dict[str, Any] = json.loads(to_page(document(regression())))
    return {**page, **changes}


@pytest.mark.parametrize(
    "given", [verdict(), regression(), *(verdict(result=result) for result in EXIT_CODES)], ids=lambda each: each.result
)
def test_a_verdict_reads_back_as_it_was_written(given: Verdict, tmp_path: Path) -> None:
    assert read_verdict(written(tmp_path, to_page(document(given)))) == given


@pytest.mark.parametrize("changes", [
    {"reasons": ["x"]}, {"suspicions": stored_verdict()["suspicions"]}, {"floors": stored_verdict()["floors"]},
], ids=["reasons", "cell", "floor"])  # fmt: skip
def test_a_passed_verdict_with_reasons_or_suspects_is_rejected(changes: dict[str, Any], tmp_path: Path) -> None:
    page = json.loads(to_page(document(verdict())))
    assert refused(tmp_path, {**page, **changes}).startswith("has result passed, ")


def test_the_schema_is_one_closed_at_every_level_and_has_every_field() -> None:
    Draft202012Validator.check_schema(schema())
    assert SCHEMA_FILE.is_file()
    objects = [schema(), *(each for each in schema()["$defs"].values() if "properties" in each)]
    facts = schema()["$defs"]["fact"]
    assert len(objects) == 10
    absent_in_older_files = {
        "explains", "margin", "outcome", "outcomes", "ceilings", "reason_facts", "note_facts", "path", "times", "plausible_fact", "fact",
            *Outcome,
    }  # fmt: skip
    for each in (each for each in objects if each is not facts):
        assert each["additionalProperties"] is False
        assert each.get("required", []) == [name for name in each["properties"] if name not in absent_in_older_files]
    assert set(schema()["properties"]) == set(document(regression()))
    assert schema()["properties"]["result"]["enum"] == list(EXIT_CODES)
    codes = {rule["if"]["properties"]["result"]["const"]: rule["then"]["properties"]["exit_code"]["const"] for rule in schema()["allOf"]}
    assert codes == EXIT_CODES


@pytest.mark.parametrize(("changes", "place"), [
    ({"exit_code": 0}, "exit_code is 0"),
    ({"reasons": "none"}, 'reasons is "none"'), ({"allocations": 5.5}, "allocations is 5.5"), ({"candidates": []}, "candidates is []"),
    ({"judged_on": "2026-02-31"}, 'judged_on is "2026-02-31"'), ({"judged_on": "yesterday"}, 'judged_on is "yesterday"'),
    ({"cause": {"kind": "link"}}, "cause lacks sentence"), ({"changes": [{"kind": "software"}]}, "changes[0] lacks what"),
    ({"groups": [{**stored_verdict()["groups"][0], "limit": -1}]}, "groups[0].limit is -1"), ({"collbench": 1}, "collbench is 1"),
])  # fmt: skip
def test_the_error_of_the_schema_has_its_place(changes: dict[str, Any], place: str, tmp_path: Path) -> None:
    assert f"verdict.schema.json: {place}" in refused(tmp_path, stored_verdict(**changes))


def test_numbers_and_fields_of_suspicions_are_checked(tmp_path: Path) -> None:
    assert read_verdict(written(tmp_path, stored_verdict(allocations=6.0))) == regression()
    assert "allocations" in refused(tmp_path, stored_verdict(allocations=1e99))
    first = {**stored_verdict()["suspicions"][0], "cell": {**CASE, "size_bytes": [8]}}
    assert "suspicions[0].cell.size_bytes is [8]" in refused(tmp_path, stored_verdict(suspicions=[first]))


@pytest.mark.parametrize(("text", "words"), [
    ("", "JSONDecodeError"), ("[1]", "JSON object"), ("[" * 100_000, "RecursionError"),
    ("{}", "lacks schema"),
])  # fmt: skip
def test_another_file_is_rejected(text: str, words: str, tmp_path: Path) -> None:
    assert words in refused(tmp_path, text)


def test_what_is_not_a_file_of_a_verdict_is_rejected_and_shows_no_control_characters(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"/dev/zero .*device"):
        read_verdict(Path("/dev/zero"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"/pipe .*pipe"):
        read_verdict(tmp_path / "pipe")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    with pytest.raises(UsageError, match=r"sparse .*64 MiB"):
        read_verdict(tmp_path / "sparse")
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(UsageError, match=why):
            read_verdict(path)
    for changes in ({"\x1b[2J": 1}, {"result": "\x1b[2J"}):
        assert refused(tmp_path, stored_verdict(**changes)).isprintable()


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_value_of_a_field_is_a_verdict_or_one_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    page = stored_verdict()
    where = data.draw(st.sampled_from(["groups", "suspicions", "floors", "changes", None]))
    place = page if where is None else page[where][0]
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(anything)
    path = written(tmp_path_factory.getbasetemp(), page)
    try:
        assert isinstance(document(read_verdict(path)), dict)
    except UsageError as error:
        assert str(error).isprintable()


# Exit codes: collbench's own, a monitor's and a prolog's, of verdicts and of failures.

FUTURE = reasons.BeganInFuture("new", "2026-11-23", "2026-11-21")
ACCEPTED = suspicion("accepted", announced=ANNOUNCED)


@pytest.mark.parametrize(("given", "codes"), [
    (verdict(), (0, 0, 0)), (verdict(suspicions=(suspicion("cleared"),)), (0, 0, 0)), (verdict(suspicions=(ACCEPTED,)), (0, 1, 0)),
    (verdict(result="no verdict", suspicions=(suspicion("suspected"),), reasons=(WAITS,)), (3, 1, 0)),
    (verdict(result="no verdict", suspicions=(suspicion("suspected"),), reasons=(WAITS, FUTURE)), (3, 3, 0)),
    (verdict(result="no verdict", reasons=(reasons.ShortBaseline("base", 3, 4),)), (3, 3, 0)), (verdict(result="no verdict"), (3, 3, 0)),
    (regression(), (1, 2, 1)), (verdict(result="wrong data", reasons=(reasons.WrongCases("new", SMALL_CASE),)), (4, 2, 1)),
])  # fmt: skip
def test_a_verdict_in_every_style(given: Verdict, codes: tuple[int, ...]) -> None:
    assert tuple(exit_code(given, style) for style in STYLES) == codes


@pytest.mark.parametrize(("own", "codes"), [(0, (0, 0, 0)), (2, (2, 3, 0)), (4, (4, 3, 0)), (143, (143, 3, 0))])
def test_a_failure_is_unknown_to_a_monitor_and_drains_no_node(own: int, codes: tuple[int, ...]) -> None:
    assert tuple(code_of_failure(own, style) for style in STYLES) == codes
