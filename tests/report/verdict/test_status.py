"""The line of status that a monitor reads: its state, a text, and figures in the guidelines' form."""

from __future__ import annotations

import re

import pytest

from collbench.gating.reasons import StillSuspected
from collbench.gating.verdict import Verdict
from collbench.reason import Text
from collbench.report.verdict_formats import of_failure, status_lines
from tests.gate.verdicts import regression, suspicion, verdict
from tests.report.verdict.hostile import NASTY, hostile

FIGURE = re.compile(r"\w+=\d+(;\d*){3}")


def line(given: Verdict) -> str:
    (found,) = status_lines(given)
    return found.text


def test_a_pass_is_ok_with_figures() -> None:
    assert line(verdict()) == (
        "COLLBENCH OK - passed | confirmed=0;;0;0 suspected=0;0;;0 accepted=0;0;;0 groups=0;;;0 unknown_groups=0;;;0 cells=6;;;0 "
        "baseline_allocations=6;;;0"
    )


def test_a_regression_is_critical_with_its_cause_and_the_worst() -> None:
    assert line(regression()).startswith(
        "COLLBENCH CRITICAL - regression: 2 confirmed, 1 accepted; the link: large messages are 1.12 times slower on mpi and nccl, small "
        "ones are not; allreduce 64 MiB mpi +12.0 %, +11.0 %, +13.0 % (limit +2.0 %); "
    )


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


def test_a_failure_is_unknown() -> None:
    assert of_failure("nowhere is not a baseline").text == "COLLBENCH UNKNOWN - nowhere is not a baseline"
    assert of_failure(NASTY).text.isprintable() and "|" not in of_failure(NASTY).text
