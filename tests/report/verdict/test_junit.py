"""JUnit XML: valid against Ant's schema, read back by a library of others; what is not known is never green."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from junitparser import Error, Failure, TestSuite
from lxml import etree

from collbench.analysis.differences import Difference, Item
from collbench.gating.reasons import CaseNames, StillSuspected, UnexpectedChange, WrongCases
from collbench.gating.verdict import EXIT_CODES, FloorState, Verdict
from collbench.report.verdict_formats import junit
from tests.gate.verdicts import CASE, group, regression, suspicion, verdict
from tests.report.verdict.hostile import hostile

REFRAME = find_spec("reframe")  # found, not imported: that takes a second
pytestmark = pytest.mark.skipif(REFRAME is None, reason="ReFrame is not installed")
WHOLE = ("the verdict", "comparable: software, clocks, machine state", "all cases")


@pytest.fixture(scope="module")
def ants() -> etree.XMLSchema:
    """The schema that ReFrame ships: windyroad/JUnit-Schema."""
    assert REFRAME and REFRAME.origin
    return etree.XMLSchema(etree.parse(str(Path(REFRAME.origin).parent / "schemas" / "junit.xsd")))


def cases(given: Verdict) -> dict[str, tuple[str, str, str]]:
    """By name what it is ("failure", "error" or ""), its type and its message."""
    suite = TestSuite.fromstring(junit(given).encode())
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
    failure = next(iter(TestSuite.fromstring(junit(regression()).encode()))).result[0]
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
    found = kinds(
        verdict(
            result="no verdict",
            reasons=(UnexpectedChange(Difference(Item.of("software", "mpi"), "4.3", "5.0")),),
            groups=(group("confirmed"),),
        )
    )
    assert found == {WHOLE[0]: "error", WHOLE[1]: "error", WHOLE[2]: "", "allreduce on mpi, large messages": "error"}
    whole = suspicion("suspected", "all cases", kind="whole", case={})
    found = kinds(verdict(result="no verdict", reasons=(StillSuspected(1, 2),), suspicions=(whole,), groups=(group("suspected"),)))
    assert found == {WHOLE[0]: "error", WHOLE[1]: "", WHOLE[2]: "error", "allreduce on mpi, large messages": "error"}
    assert cases(verdict(result="wrong data", reasons=(WrongCases("new", CaseNames(("allreduce 8 B mpi",))),)))["the verdict"][:2] == (
        "failure",
        "wrong data",
    )


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
    ants.assertValid(etree.fromstring(junit(given).encode()))
