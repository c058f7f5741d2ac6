"""What `collbench gate --self-test` prints: a line for each thing done to a made-up cluster, or one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator

from collbench.gate.paired import PAIRS
from collbench.gate.self_test import LAUNCHES, Outcome, Recorded, Setting
from collbench.report.table import Line

FORMATS = ("table", "json")
_WIDE = 45
_WANTED = {True: "found", False: "false alarms"}


def head(setting: Setting) -> Iterator[Line]:
    """What the trials are, and the titles."""
    cells = len(setting.scheme.of)
    if setting.paired:
        yield Line(
            f"{cells} cells; an old and a new stack by turns, {PAIRS} pairs of launches in each of two allocations, and only what exceeds "
            f"its limit in both counts"
        )
    else:
        yield Line(
            f"{cells} cells; baseline: {setting.allocations} allocations of {setting.launches} launches; candidate: three allocations of "
            f"{LAUNCHES} launches, and only what exceeds its limit in all three counts"
        )
    yield Line(f"{'done to the candidate':{_WIDE}}  {'':12}  {'%':>6}  95 % interval", "head")


def line(outcome: Outcome, format: str) -> Line:
    """One outcome in `format`, one of FORMATS."""
    low, high = (100 * end for end in outcome.interval)
    if format == "json":
        fields = {"done": outcome.done, "wanted": outcome.wanted, "found": outcome.found, "trials": outcome.trials}
        return Line(json.dumps({**fields, "percent": 100 * outcome.share, "percent_low": low, "percent_high": high}))
    share = f"{100 * outcome.share:6.2f}"
    return Line(
        f"{outcome.done:{_WIDE}}  {_WANTED[outcome.wanted]:12}  {share}  {low:.2f}–{high:.2f} ({outcome.found} of {outcome.trials})"
    )


def limits_of(recorded: Recorded) -> Iterator[Line]:
    """What a table drawn from recorded allocations does not say."""
    allocations, launches = len(recorded.allocation), len(recorded.launch)
    yield Line(
        f"drawn from {launches} launches of {allocations} recorded allocations: what is rarer than one of {launches} launches is not in "
        f"it, nor whether the cluster drifts; few allocations overstate false alarms"
    )
    if recorded.left_out:
        cells, them = ("1 cell", "it") if recorded.left_out == 1 else (f"{recorded.left_out} cells", "them")
        yield Line(f"{cells} left out: fewer than four allocations have {them}")
