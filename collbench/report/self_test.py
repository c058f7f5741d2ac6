"""What `collbench gate --self-test` prints: a line for each thing done to a made-up cluster, or one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator

from collbench.gate.self_test import LAUNCHES, Outcome
from collbench.report.table import Line

FORMATS = ("table", "json")
_WIDE = 45
_WANTED = {True: "found", False: "false alarms"}


def head(cells: int, allocations: int, baseline_launches: int) -> Iterator[Line]:
    """What the trials are, and the titles."""
    yield Line(
        f"{cells} cells; baseline: {allocations} allocations of {baseline_launches} launches; candidate: three allocations of "
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
