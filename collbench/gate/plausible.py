"""What changed since the last good allocation, the most plausible cause of what became slower first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from collbench.analysis.differences import Difference
from collbench.gate.changes import Expected
from collbench.gate.verdict import Announcement, Cause, Change, Suspicion


def ranked(
    found: Sequence[Difference], expected: Sequence[Expected], today: date, suspicions: Sequence[Suspicion], cause: Cause | None
) -> list[Change]:
    """Each difference with who announced it, and why it may be the cause."""
    return [Change(each.kind, each.what, each.a, each.b, "", _announcement(each, expected, today)) for each in found]


def _announcement(difference: Difference, expected: Sequence[Expected], today: date) -> Announcement | None:
    by = next((each for each in expected if each.covers(difference, today)), None)
    return None if by is None else Announcement(by.reason, by.reviewer, by.expires.isoformat())
