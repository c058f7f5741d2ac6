"""What the gate prints: the result, what points at what, who is suspected and by how much, what changed, the groups. One screen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from collbench.gate.verdict import CONFIRMED, PASSED, UNDECIDED, FloorState, Verdict
from collbench.report.headlines import short
from collbench.report.table import Line
from collbench.report.words import (
    cleared,
    describe_outcomes,
    fallen,
    headline,
    judged,
    name_of,
    of,
    of_change,
    of_floor,
    of_group,
    open_ones,
    sentences,
    worst_groups,
)
from collbench.results.store import plain

_MOST_REASONS, _MOST_OPEN, _MOST_CHANGES, _MOST_GROUPS, _MOST_UNKNOWN, _MOST_NOTES = 8, 12, 6, 6, 4, 5
_WIDEST = 44  # letters of a name's column


def json_line(verdict: Verdict) -> Line:
    """What verdict.json holds, on one line."""
    return Line(json.dumps(plain(verdict.as_json()), allow_nan=False))


def lines(verdict: Verdict) -> Iterator[Line]:
    """The verdict for whoever has to decide at 3 a.m.: what to do first, where it stands last."""
    bad = verdict.result != PASSED
    yield Line(headline(verdict), "head")
    if describe_outcomes(verdict):
        yield Line(describe_outcomes(verdict), "head")
    yield from (Line(text, "wrong") for text in fallen(verdict)[:_MOST_REASONS])
    if verdict.cause is not None:
        yield Line(f"points at {short(verdict.cause.sentence)}", "head")
    yield from (Line(f"  {text}", "wrong" if bad else "") for text in sentences(verdict.reasons, _MOST_REASONS))
    yield from _open(verdict)
    yield from _changes(verdict)
    yield from _groups(verdict)
    if verdict.reached:
        yield Line(f"reached: {', '.join(sentences(verdict.reached, _MOST_NOTES))}")
    yield Line(judged(verdict), "foot")
    yield from (Line(f"note: {text}", "foot") for text in sentences(verdict.notes, _MOST_NOTES))


def _open(verdict: Verdict) -> Iterator[Line]:
    told = list(open_ones(verdict))
    if told:
        yield Line("what takes longer, by allocation, and how much may be by chance; the surest and worst first:", "head")
        records = [(each.state, name_of(each), of(each)) for each in told[:_MOST_OPEN]]
        yield from _columns(records)
    if len(told) > _MOST_OPEN:
        yield Line(f"  and {len(told) - _MOST_OPEN} more: see --out FILE")
    again = cleared(verdict)
    if again:
        yield Line(f"  cleared, since they did not take longer again: {', '.join(name_of(each) for each in again[:3])}{_more(again, 3)}")
    yield from _unknown([each for each in verdict.floors if each.state == UNDECIDED])


def _unknown(floors: Sequence[FloorState]) -> Iterator[Line]:
    """Of what the share of the ceiling that was asked for is not known."""
    yield from _columns([(UNDECIDED, name_of(each), of_floor(each)) for each in floors[:_MOST_UNKNOWN]])
    if len(floors) > _MOST_UNKNOWN:
        yield Line(f"  and {len(floors) - _MOST_UNKNOWN} more of which the share of the ceiling is not known: see --out FILE")


def _changes(verdict: Verdict) -> Iterator[Line]:
    if verdict.changes:
        since = "what differs between the old stack and the new one" if verdict.mode == "paired" else "what changed since the last good one"
        yield Line(f"{since}, the most plausible cause first:", "head")
        yield from (Line(f"  {of_change(each)}") for each in verdict.changes[:_MOST_CHANGES])
        if len(verdict.changes) > _MOST_CHANGES:
            yield Line(f"  and {len(verdict.changes) - _MOST_CHANGES} more: see --out FILE")


def _groups(verdict: Verdict) -> Iterator[Line]:
    """How many there are of each state, and those that did not pass."""
    if not verdict.groups:
        return
    counts = Counter(each.state for each in verdict.groups)
    yield Line(f"groups: {', '.join(f'{number} {short(state, 20)}' for state, number in counts.items())}", "head")
    found = worst_groups([each for each in verdict.groups if each.state != PASSED])
    yield from _columns([(each.state, name_of(each), of_group(each)) for each in found[:_MOST_GROUPS]])
    if len(found) > _MOST_GROUPS:
        yield Line(f"  and {len(found) - _MOST_GROUPS} more: see --out FILE")


def _columns(records: Sequence[tuple[str, str, str]]) -> Iterator[Line]:
    """State, name and figures, each below the other."""
    first, second = (min(max((len(each[place]) for each in records), default=0), _WIDEST) for place in (0, 1))
    for state, name, figures in records:
        yield Line(f"  {state:{first}}  {name:{second}}  {figures}", "wrong" if state == CONFIRMED else "doubtful")


def _more(found: Sequence[object], shown: int) -> str:
    return f" and {len(found) - shown} more" if len(found) > shown else ""
