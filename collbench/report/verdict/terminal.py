"""What the gate prints: the result, why, who is suspected and by how much, and what changed since the last good allocation."""

from __future__ import annotations

import json
from collections.abc import Iterator

from collbench.gate.verdict import CONFIRMED, Suspicion, Verdict
from collbench.report.flags import printable
from collbench.report.table import Line
from collbench.results.jsonl import plain

FORMATS = ("table", "json")
_MOST, _MOST_DIFFERENCES = 40, 20


def lines(verdict: Verdict, format: str) -> Iterator[Line]:
    """The verdict in `format`, one of FORMATS; in JSON what verdict.json holds, on one line."""
    if format == "json":
        yield Line(json.dumps(plain(verdict.as_json()), allow_nan=False))
        return
    yield Line(_result(verdict), "head")
    yield from (Line(printable(f"  {reason}"), "wrong") for reason in verdict.reasons)
    thin = " (a thin baseline: fewer than 6)" if verdict.thin else ""
    of = f"{verdict.allocations} allocations{thin}, {verdict.cells} cells with a history"
    yield Line(printable(f"judged: {', '.join(verdict.candidates)}; baseline {verdict.baseline}: {of}"), "foot")
    yield from (
        Line(printable(_suspicion(each)), "wrong" if each.state == CONFIRMED else "doubtful") for each in verdict.suspicions[:_MOST]
    )
    if len(verdict.suspicions) > _MOST:
        yield Line(f"and {len(verdict.suspicions) - _MOST} more: see --out FILE")
    if verdict.changes:
        yield Line("what changed since the last good allocation:", "head")
        yield from (Line(printable(f"  {each.sentence()}")) for each in verdict.changes[:_MOST_DIFFERENCES])


def _result(verdict: Verdict) -> str:
    confirmed = sum(each.state == CONFIRMED for each in verdict.suspicions)
    return f"{verdict.result}: {confirmed} confirmed" if confirmed else verdict.result


def _suspicion(each: Suspicion) -> str:
    factors = ", ".join("not measured" if factor is None else f"{factor:.3f}" for factor in each.factors)
    return f"{each.state}: {each.name}: time × {factors}; by chance up to × {each.limit:.3f}"
