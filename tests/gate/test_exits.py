"""Exit codes: collbench's own, a monitor's and a prolog's, of verdicts and of failures."""

from __future__ import annotations

import pytest

from collbench.gate.reasons import BeganInFuture, CaseNames, ShortBaseline, StillSuspected, WrongCases
from collbench.gate.verdict import STYLES, Verdict, code_of_failure, exit_code
from tests.gate.verdicts import ANNOUNCED, regression, suspicion, verdict

WAITS = StillSuspected(1, 2)
FUTURE = BeganInFuture("new", "2026-11-23", "2026-11-21")
ACCEPTED = suspicion("accepted", announced=ANNOUNCED)


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        (verdict(), (0, 0, 0)),
        (verdict(suspicions=(suspicion("cleared"),)), (0, 0, 0)),
        (verdict(suspicions=(ACCEPTED,)), (0, 1, 0)),
        (verdict(result="no verdict", suspicions=(suspicion("suspected"),), reasons=(WAITS,)), (3, 1, 0)),
        (
            verdict(result="no verdict", suspicions=(suspicion("suspected"),), reasons=(WAITS, FUTURE)),
            (3, 3, 0),
        ),
        (verdict(result="no verdict", reasons=(ShortBaseline("base", 3, 4),)), (3, 3, 0)),
        (verdict(result="no verdict"), (3, 3, 0)),
        (regression(), (1, 2, 1)),
        (verdict(result="wrong data", reasons=(WrongCases("new", CaseNames(("allreduce 8 B mpi",))),)), (4, 2, 1)),
    ],
)
def test_a_verdict_in_every_style(given: Verdict, codes: tuple[int, ...]) -> None:
    assert tuple(exit_code(given, style) for style in STYLES) == codes


@pytest.mark.parametrize(("own", "codes"), [(0, (0, 0, 0)), (2, (2, 3, 0)), (4, (4, 3, 0)), (143, (143, 3, 0))])
def test_a_failure_is_unknown_to_a_monitor_and_drains_no_node(own: int, codes: tuple[int, ...]) -> None:
    assert tuple(code_of_failure(own, style) for style in STYLES) == codes
