"""A verdict full of text that would be markup, a command, a control character or another metric, in every place that takes text."""

from msgspec.structs import replace

from collbench.analysis.differences import Item
from collbench.gating.reasons import StoredCause
from collbench.gating.verdict import Announcement, Change, FloorState, Verdict
from collbench.reason import Text
from tests.gate.verdicts import group, suspicion, verdict

NASTY = '\x1b[31m\x00\n::error::|<script>"\'&]]>%0A @all `x` [a](http://x) \u202e\ud800\ufffe{a="b"} # '


def hostile(result: str = "regression", rows: int = 1) -> Verdict:
    """As many of each kind as `rows`."""
    announced = Announcement(NASTY, NASTY, "2027-01-31")
    one = suspicion(name=NASTY, case={"operation": NASTY, NASTY: NASTY, "backend": None}, announced=announced)
    floor = FloorState(NASTY, {}, NASTY, 80.0, (None, 1e9), NASTY, NASTY, "confirmed")
    change = Change(Item.of(NASTY, NASTY), NASTY, NASTY, Text(NASTY), announced)
    states = ("confirmed", "suspected", "no verdict", "passed")
    return verdict(
        result=result, reasons=(Text(NASTY),) * rows, notes=(Text(NASTY),) * rows,
        baseline=NASTY, candidates=(NASTY,) * rows, collbench=NASTY,
        suspicions=tuple(replace(one, kind=kind, state=state) for _ in range(rows)
                         for kind, state in (("cell", "confirmed"), ("group", "suspected"), ("whole", "accepted"), ("cell", "cleared"))),
        groups=tuple(group(state, NASTY, NASTY, name=NASTY, worst=NASTY, size_class=NASTY) for _ in range(rows) for state in states),
        floors=(floor, replace(floor, state="no verdict")) * rows, cause=StoredCause(NASTY, NASTY), changes=(change,) * rows,
    )  # fmt: skip
