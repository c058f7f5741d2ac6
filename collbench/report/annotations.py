"""The verdict as annotations of a GitHub workflow: lines of commands that its runner reads from the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from collbench.gate.verdict import ACCEPTED, CONFIRMED, PASSED, SUSPECTED, UNDECIDED, Verdict
from collbench.report.headlines import short
from collbench.report.table import Line
from collbench.report.words import headline, judged, name_of, of, of_change, of_floor, of_group, open_ones

_MOST = 10  # of a kind in a step: GitHub shows no more
_LONGEST = 1000
_KINDS = ("error", "warning", "notice")
_OF_STATE = {CONFIRMED: "error", SUSPECTED: "warning", ACCEPTED: "notice"}
_Told = tuple[str, str, str]  # kind, title, message


def lines(verdict: Verdict) -> Iterator[Line]:
    """The result, then what is slower, what is not known, and what changed: at most ten errors, warnings and notices each."""
    told = list(_all(verdict))
    for kind in _KINDS:
        for _, title, message in islice((each for each in told if each[0] == kind), _MOST):
            yield Line(f"::{kind} title={_property(title)}::{_data(message)}")


def _all(verdict: Verdict) -> Iterator[_Told]:
    """The result is the first of its kind, and never cut."""
    cause = [f"points at {verdict.cause.sentence}"] if verdict.cause is not None else []
    told = "; ".join([headline(verdict), *cause, *verdict.reasons[:3], judged(verdict)])
    yield ("notice" if verdict.result == PASSED else "error"), f"collbench gate: {verdict.result}", told
    yield from ((_OF_STATE[each.state], f"{each.state}: {name_of(each)}", of(each)) for each in open_ones(verdict))
    yield from (("warning", f"no verdict: {name_of(each)}", of_group(each)) for each in verdict.groups if each.state == UNDECIDED)
    yield from (("warning", f"no verdict: {name_of(each)}", of_floor(each)) for each in verdict.floors if each.state == UNDECIDED)
    yield from (("warning", "collbench gate: why it does not pass", reason) for reason in verdict.reasons)
    yield from (("notice", "changed since the last good allocation", of_change(each)) for each in verdict.changes)
    yield from (("notice", "collbench gate: note", note) for note in verdict.notes)


def _data(text: str) -> str:
    """What may stand behind the second pair of colons (toolkit/packages/core, escapeData); a new line could begin another command."""
    return short(text, _LONGEST).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """What may stand behind `title=`."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
