"""GitHub's annotations: commands of the workflow's runner; untrusted text cannot add another command."""

from __future__ import annotations

import re

from collbench.gating.reasons import StillSuspected
from collbench.gating.verdict import Verdict
from collbench.reason import Text
from collbench.report.verdict_formats import annotation_lines
from tests.gate.verdicts import regression, suspicion, verdict
from tests.report.verdict.hostile import hostile

COMMAND = re.compile(r"::(error|warning|notice) title=([^:,]*)::(.*)")


def annotations_of(given: Verdict) -> list[tuple[str, str, str]]:
    """Kind, title and message of each, as the runner reads them: it undoes the escapes."""
    found = [COMMAND.fullmatch(line.text) for line in annotation_lines(given)]
    assert all(found)
    return [(each[1], *map(unescaped, (each[2], each[3]))) for each in found if each]


def unescaped(text: str) -> str:
    for code, letter in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, letter)
    return text


def test_a_pass_is_a_notice_no_verdict_an_error_and_a_suspect_a_warning() -> None:
    words = "passed; judged: new; baseline base: 6 allocations, 6 cases"
    assert annotations_of(verdict()) == [("notice", "collbench gate: passed", words)]
    found = annotations_of(verdict(result="no verdict", suspicions=(suspicion("suspected"),), reasons=(StillSuspected(1, 2),)))
    assert [each[0] for each in found] == ["error", "warning", "warning"]


def test_a_regression_is_errors_warnings_and_notices() -> None:
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
    for each in annotation_lines(hostile(rows=3)):
        assert COMMAND.fullmatch(each.text) and each.text.isprintable()
