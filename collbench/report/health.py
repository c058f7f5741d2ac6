"""Output of `collbench check`: the verdict, the evidence, and what to do next."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TextIO

from collbench.analysis import health
from collbench.analysis.health import CheckOutcome, CheckVerdict
from collbench.columns import column, figure
from collbench.errors import UsageError
from collbench.launch.mpi import BackendStartFailed
from collbench.reason import decode
from collbench.records import document
from collbench.report.frame import Line, text_lines
from collbench.report.screen import print_lines, wants_color, width_of
from collbench.report.writers import write_whole
from collbench.results.store import plain, read_object, to_page

_NEXT = {
    health.RunFailedEarly: ("doctor", "--launch"), BackendStartFailed: ("doctor", "--launch"), health.NothingMeasured: ("backends",),
    health.HiddenByNoise: ("check", "--total-time", "60"), health.NothingToCompareWith: ("probe",),
}  # fmt: skip
_STYLES = {CheckOutcome.BROKEN: "wrong", CheckOutcome.SLOW: "wrong", CheckOutcome.INCONCLUSIVE: "doubtful", CheckOutcome.OK: "head"}


@dataclass(frozen=True)
class CheckAnswer:
    """The answer of `collbench check`: what it prints, and check.json in the run's folder."""

    schema: Annotated[int, column("The version of this object.")] = field(default=1, init=False)
    verdict: Annotated[CheckVerdict, column("", key="")]
    run: Annotated[Path | None, column("The run's folder; null without one.")]
    nodes: Annotated[int, column("The number of hosts.")]

    @property
    @figure("The words of the command that helps most after this verdict.", key="next", after="nodes")
    def next_command(self) -> Sequence[str]:
        """Return the command that helps most after this verdict."""
        cause = self.verdict.causes[0]
        if isinstance(cause, health.SevereProblem):
            return ("collbench", "explain", cause.finding)
        if isinstance(cause, health.MissesExpected):
            if self.nodes > 1:
                return ("collbench", "hunt" if self.nodes > 2 else "pairs")
            return ("collbench", "doctor")
        report = ("report", str(self.run)) if self.run else ("report",)
        return ("collbench", *_NEXT.get(type(cause), report))


def write_check(answer: CheckAnswer, format: str, stream: TextIO, *, color: str = "auto", quiet: bool = False) -> int:
    """Print the answer on `stream` as "table" or "json". Returns the exit code.

    quiet: without the line that has the exit code, the folder and the next command
    """
    lines: Iterable[Line] = [Line(json.dumps(plain(document(answer)), ensure_ascii=False))]
    if format != "json":
        lines = _lines(answer, width_of(stream), quiet)
    print_lines(lines, stream, wants_color(stream, color))
    return answer.verdict.outcome.exit_code


def _lines(answer: CheckAnswer, width: int | None, quiet: bool) -> Iterator[Line]:
    verdict = answer.verdict
    where = f"; run folder: {answer.run}" if answer.run else ""
    end = f"exit code {verdict.outcome.exit_code}{where}; next: {shlex.join(answer.next_command)}"
    yield from text_lines(str(verdict), width, _STYLES[verdict.outcome])
    for text in (*verdict.backend_lines(), *map(str, verdict.evidence)):
        yield from text_lines(f"  {text}", width, "", "    ")
    if not quiet:
        yield from text_lines(end, width, "foot")


# check.json in the run's folder: the verdict, for the pages of the run.

CHECK = "check.json"


def store_check(answer: CheckAnswer, run: Path) -> None:
    """Write the answer into the run's folder in one step. Raises UsageError if that fails."""
    write_whole(run / CHECK, to_page(document(answer)), "--out")


def read_check(run: Path) -> CheckVerdict | None:
    """Return the verdict in the run's folder; None if no check stored the run. Raises UsageError for a file that is not a verdict."""
    if not (run / CHECK).is_file():
        return None
    try:
        document = read_object(run / CHECK)
        causes: tuple[health.Cause, ...] = decode(document.get("causes"), tuple[health.Cause, ...])
        evidence: tuple[health.Evidence, ...] = decode(document.get("evidence"), tuple[health.Evidence, ...])
    except ValueError as error:
        raise UsageError(f"{run / CHECK} is not the verdict of a check ({error}): remove it to show the run without it") from error
    if not causes:
        raise UsageError(f"{run / CHECK} is not the verdict of a check (it has no cause): remove it to show the run without it")
    return CheckVerdict(causes, evidence)
