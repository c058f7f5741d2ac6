"""Output of `collbench check`: the verdict, the evidence, and what to do next."""

from __future__ import annotations

import json
import shlex
import sys
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
from collbench.report.screen import PlainScreen, wants_color, width_of
from collbench.report.table import Line, printable, wrapped_text

SCHEMA = 1
_NEXT = {
    RunFailedEarly: ("doctor", "--launch"), NothingMeasured: ("backends",), HiddenByNoise: ("check", "--total-time", "60"),
    NothingToCompareWith: ("probe",),
}  # fmt: skip
_STYLES = {CheckOutcome.BROKEN: "wrong", CheckOutcome.SLOW: "wrong", CheckOutcome.INCONCLUSIVE: "doubtful", CheckOutcome.OK: "head"}


def write_check(verdict: CheckVerdict, run: Path | None, nodes: int, format: str, stream: TextIO, *, color: str = "auto") -> int:
    """Print the verdict on `stream` as "table" or "json". `run`: the run's folder, if there is one. Returns the exit code."""
    screen = PlainScreen(stream, sys.stderr, wants_color(stream, color))
    width = width_of(stream)
    for line in [_json_line(verdict, run, nodes)] if format == "json" else _lines(verdict, run, nodes, width):
        screen.data(line)
    return verdict.outcome.exit_code


def _lines(verdict: CheckVerdict, run: Path | None, nodes: int, width: int | None) -> Iterator[Line]:
    yield from (Line(text, _STYLES[verdict.outcome]) for text in wrapped_text(printable(str(verdict)), width, "  "))
    for each in verdict.evidence:
        yield from (Line(text) for text in wrapped_text(printable(f"  {each}"), width, "    "))
    yield from (Line(text, "foot") for text in wrapped_text(printable(_end(verdict, run, nodes)), width, "  "))


def _end(verdict: CheckVerdict, run: Path | None, nodes: int) -> str:
    where = f"; run folder: {run}" if run else ""
    return f"exit code {verdict.outcome.exit_code}{where}; next: {shlex.join(next_command(verdict, run, nodes))}"


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
