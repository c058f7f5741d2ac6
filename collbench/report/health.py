"""Output of `collbench check`: the verdict, the evidence, and what to do next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from collbench.analysis import health
from collbench.analysis.health import CheckOutcome, CheckVerdict
from collbench.errors import UsageError
from collbench.launch.mpi import BackendStartFailed
from collbench.reason import as_json, decode
from collbench.report.frame import Line, text_lines
from collbench.report.screen import print_lines, wants_color, width_of
from collbench.report.writers import write_whole
from collbench.results.store import read_object, to_page

SCHEMA = 1
_NEXT = {
    health.RunFailedEarly: ("doctor", "--launch"), BackendStartFailed: ("doctor", "--launch"), health.NothingMeasured: ("backends",),
    health.HiddenByNoise: ("check", "--total-time", "60"), health.NothingToCompareWith: ("probe",),
}  # fmt: skip
_STYLES = {CheckOutcome.BROKEN: "wrong", CheckOutcome.SLOW: "wrong", CheckOutcome.INCONCLUSIVE: "doubtful", CheckOutcome.OK: "head"}


def write_check(
    verdict: CheckVerdict, run: Path | None, nodes: int, format: str, stream: TextIO, *, color: str = "auto", quiet: bool = False
) -> int:
    """Print the verdict on `stream` as "table" or "json". `run`: the run's folder, if there is one. Returns the exit code.

    quiet: without the line that has the exit code, the folder and the next command
    """
    lines: Iterable[Line] = [Line(json.dumps(_document(verdict, run, nodes), ensure_ascii=False))]
    if format != "json":
        lines = _lines(verdict, run, nodes, width_of(stream), quiet)
    print_lines(lines, stream, wants_color(stream, color))
    return verdict.outcome.exit_code


def _lines(verdict: CheckVerdict, run: Path | None, nodes: int, width: int | None, quiet: bool) -> Iterator[Line]:
    where = f"; run folder: {run}" if run else ""
    end = f"exit code {verdict.outcome.exit_code}{where}; next: {shlex.join(next_command(verdict, run, nodes))}"
    evidence = [(f"  {text}", "", "    ") for text in (*verdict.backend_lines(), *map(str, verdict.evidence))]
    last = () if quiet else ((end, "foot", "  "),)
    for text, style, indent in ((str(verdict), _STYLES[verdict.outcome], "  "), *evidence, *last):
        yield from text_lines(text, width, style, indent)


def next_command(verdict: CheckVerdict, run: Path | None, nodes: int) -> Sequence[str]:
    """Return the command that helps most after this verdict."""
    cause = verdict.causes[0]
    if isinstance(cause, health.SevereProblem):
        return ("collbench", "explain", cause.finding)
    if isinstance(cause, health.MissesExpected):
        return ("collbench", "hunt" if nodes > 2 else "pairs" if nodes > 1 else "doctor")
    return ("collbench", *_NEXT.get(type(cause), ("report", *([str(run)] if run else []))))


# check.json in the run's folder: the verdict, for the pages of the run.

CHECK = "check.json"


def store_check(verdict: CheckVerdict, run: Path, nodes: int) -> None:
    """Write the verdict into the run's folder in one step. Raises UsageError if that fails."""
    write_whole(run / CHECK, to_page(_document(verdict, run, nodes)), "--out")


def read_check(run: Path) -> CheckVerdict | None:
    """Return the verdict in the run's folder; None if no check stored the run. Raises UsageError for a file that is not a verdict."""
    if not (run / CHECK).is_file():
        return None
    document = read_object(run / CHECK)
    try:
        causes: tuple[health.Cause, ...] = decode(document.get("causes"), tuple[health.Cause, ...])
        evidence: tuple[health.Evidence, ...] = decode(document.get("evidence"), tuple[health.Evidence, ...])
    except ValueError as error:
        raise UsageError(f"{run / CHECK} is not the verdict of a check ({error}): remove it to show the run without it") from error
    if not causes:
        raise UsageError(f"{run / CHECK} is not the verdict of a check (it has no cause): remove it to show the run without it")
    return CheckVerdict(causes, evidence)


def _document(verdict: CheckVerdict, run: Path | None, nodes: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "verdict": verdict.outcome.value,
        "exit_code": verdict.outcome.exit_code,
        "text": str(verdict),
        "backends": {backend: outcome.value for backend, outcome in verdict.backends.items()},
        "causes": [as_json(each) | {"text": str(each)} for each in verdict.causes],
        "evidence": [as_json(each) | {"text": str(each)} for each in verdict.evidence],
        "run": run and str(run),
        "nodes": nodes,
        "next": list(next_command(verdict, run, nodes)),
    }
