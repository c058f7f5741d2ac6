"""Output of `collbench check`: the verdict, the evidence, and what to do next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from collbench.analysis.health import (
    CheckOutcome,
    CheckVerdict,
    HiddenByNoise,
    MissesExpected,
    NothingMeasured,
    NothingToCompareWith,
    RunFailedEarly,
    SevereProblem,
)
from collbench.reason import as_json
from collbench.report.frame import Line, text_lines
from collbench.report.screen import print_lines, wants_color, width_of

SCHEMA = 1
_NEXT = {
    RunFailedEarly: ("doctor", "--launch"), NothingMeasured: ("backends",), HiddenByNoise: ("check", "--total-time", "60"),
    NothingToCompareWith: ("probe",),
}  # fmt: skip
_STYLES = {CheckOutcome.BROKEN: "wrong", CheckOutcome.SLOW: "wrong", CheckOutcome.INCONCLUSIVE: "doubtful", CheckOutcome.OK: "head"}


def write_check(verdict: CheckVerdict, run: Path | None, nodes: int, format: str, stream: TextIO, *, color: str = "auto") -> int:
    """Print the verdict on `stream` as "table" or "json". `run`: the run's folder, if there is one. Returns the exit code."""
    lines = [_json_line(verdict, run, nodes)] if format == "json" else _lines(verdict, run, nodes, width_of(stream))
    print_lines(lines, stream, wants_color(stream, color))
    return verdict.outcome.exit_code


def _lines(verdict: CheckVerdict, run: Path | None, nodes: int, width: int | None) -> Iterator[Line]:
    where = f"; run folder: {run}" if run else ""
    end = f"exit code {verdict.outcome.exit_code}{where}; next: {shlex.join(next_command(verdict, run, nodes))}"
    evidence = [(f"  {each}", "", "    ") for each in verdict.evidence]
    for text, style, indent in ((str(verdict), _STYLES[verdict.outcome], "  "), *evidence, (end, "foot", "  ")):
        yield from text_lines(text, width, style, indent)


def next_command(verdict: CheckVerdict, run: Path | None, nodes: int) -> Sequence[str]:
    """Return the command that helps most after this verdict."""
    cause = verdict.causes[0]
    if isinstance(cause, SevereProblem):
        return ("collbench", "explain", cause.finding)
    if isinstance(cause, MissesExpected):
        return ("collbench", "hunt" if nodes > 2 else "pairs" if nodes > 1 else "doctor")
    return ("collbench", *_NEXT.get(type(cause), ("report", *([str(run)] if run else []))))


def _json_line(verdict: CheckVerdict, run: Path | None, nodes: int) -> Line:
    document = {
        "schema": SCHEMA,
        "verdict": verdict.outcome.value,
        "exit_code": verdict.outcome.exit_code,
        "text": str(verdict),
        "causes": [as_json(each) | {"text": str(each)} for each in verdict.causes],
        "evidence": [as_json(each) | {"text": str(each)} for each in verdict.evidence],
        "run": run and str(run),
        "nodes": nodes,
        "next": list(next_command(verdict, run, nodes)),
    }
    return Line(json.dumps(document, ensure_ascii=False))
