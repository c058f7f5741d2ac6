"""The verdict as JUnit XML, which Jenkins and GitLab read: a test case for each group, for each floor, and for what holds for all.

What is not known is an error: what is skipped looks green. The form is that of Ant's schema (windyroad/JUnit-Schema), and not of
xUnit's, which adds to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError
from collbench.gate.verdict import CONFIRMED, PASSED, REGRESSION, SUSPECTED, UNDECIDED, WRONG_DATA, FloorState, Suspicion, Verdict
from collbench.report.headlines import short
from collbench.report.words import headline, judged, name_of, of, of_change, of_floor, of_group, open_ones, sentences

if TYPE_CHECKING:
    from junitparser import TestCase

_MOST_LINES = 60
_NAMES = {"verdict": "the verdict", "comparable": "comparable: software, clocks, machine state", "whole": "all cells"}


@dataclass(frozen=True)
class _Case:
    """A test case: its class and name, a state (PASSED: nothing is wrong), and why in a sentence and more lines."""

    kind: str
    name: str
    state: str
    why: str = ""
    more: Sequence[str] = ()


def junit(verdict: Verdict) -> str:
    """The whole file. Raises UsageError without the extra `report`."""
    try:
        from junitparser import SystemErr, SystemOut, TestSuite
    except ImportError as error:
        raise UsageError("--junit needs junitparser: pip install 'collbench[report]'") from error
    suite: Any = TestSuite("collbench gate")
    suite.timestamp, suite.hostname = f"{verdict.judged_on[:10]}T00:00:00", "localhost"  # no host judged: the runs are of many
    for name, value in _properties(verdict).items():
        suite.add_property(name, value)
    suite.add_testcases([_written(case, verdict) for case in _cases(verdict)])
    suite.append(SystemOut("\n".join(_everything(verdict))))
    suite.append(SystemErr(""))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + str(suite.tostring(), "utf-8") + "\n"


def _properties(verdict: Verdict) -> dict[str, str]:
    candidates = ", ".join(short(name, 80) for name in verdict.candidates[:6])
    return {
        "result": verdict.result,
        "baseline": short(verdict.baseline),
        "candidates": candidates,
        "collbench": short(verdict.collbench, 40),
    }


def _cases(verdict: Verdict) -> Iterator[_Case]:
    yield _Case("verdict", _NAMES["verdict"], verdict.result, headline(verdict), _everything(verdict))
    open_reasons = [reason for reason in verdict.reasons if not reason.startswith(f"{SUSPECTED}: ")]
    known = PASSED if not open_reasons else UNDECIDED
    yield _Case("verdict", _NAMES["comparable"], known, "; ".join(sentences(open_reasons, 3)), sentences(open_reasons, _MOST_LINES))
    whole = next((each for each in open_ones(verdict) if isinstance(each, Suspicion) and each.kind == "whole"), None)
    yield _Case("verdict", _NAMES["whole"], whole.state if whole else PASSED, of(whole) if whole else "")
    for group in verdict.groups:
        yield _Case("groups", name_of(group), group.state, of_group(group), _cells_of(group.name, verdict))
    yield from _floors(verdict.asked, verdict.floors)


def _floors(all_asked: Sequence[str], floors: Sequence[FloorState]) -> Iterator[_Case]:
    """One for each floor that was asked for: as bad as the worst of its cells."""
    for asked in dict.fromkeys([*all_asked, *(each.asked for each in floors)]):
        cells = [each for each in floors if each.asked == asked]
        state = next((state for state in (CONFIRMED, SUSPECTED, UNDECIDED) if state in {each.state for each in cells}), PASSED)
        told = [f"{each.state}: {name_of(each)}: {of_floor(each)}" for each in cells if each.state in (CONFIRMED, SUSPECTED, UNDECIDED)]
        yield _Case("floors", short(asked, 60), state, told[0] if told else "", sentences(told, _MOST_LINES))


def _cells_of(group: str, verdict: Verdict) -> list[str]:
    """What is told of a group itself and what changed; its cells stand in the verdict's own case."""
    found = [f"{each.state}: {of(each)}" for each in verdict.suspicions if each.kind == "group" and each.name == group]
    return [*found, *(of_change(each) for each in verdict.changes[:_MOST_LINES])]


def _everything(verdict: Verdict) -> list[str]:
    cause = [f"points at {short(verdict.cause.sentence)}"] if verdict.cause is not None else []
    slower = [f"{each.state}: {name_of(each)}: {of(each)}" for each in open_ones(verdict)]
    told = [*cause, *sentences(verdict.reasons, 20), *sentences(slower, _MOST_LINES)]
    return [*told, *(of_change(each) for each in verdict.changes[:_MOST_LINES]), judged(verdict), *sentences(verdict.notes, 20)]


def _written(case: _Case, verdict: Verdict) -> TestCase:
    """Of what cannot be compared nothing is a failure, however slow it is."""
    from junitparser import Error, Failure, TestCase

    written = TestCase(case.name, f"collbench.gate.{case.kind}", 0.0)
    if case.state in (REGRESSION, WRONG_DATA) or (case.state == CONFIRMED and verdict.result in (REGRESSION, WRONG_DATA)):
        result: Failure | Error = Failure(case.why, REGRESSION if case.state == CONFIRMED else case.state)
    elif case.state in (UNDECIDED, SUSPECTED, CONFIRMED):
        result = Error(case.why, case.state)
    else:
        return written
    result.text = "\n".join(case.more)
    written.result = result
    return written
