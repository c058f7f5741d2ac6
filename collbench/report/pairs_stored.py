"""Pairs runs from disk, shown as they were when they were measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from collbench.errors import UsageError
from collbench.report.flags import printable
from collbench.report.screen import PlainScreen, write_line
from collbench.report.table import Line
from collbench.results.folder import PAIRS
from collbench.results.reader import Run

if TYPE_CHECKING:
    from collbench.analysis.pairs import PairEffects
    from collbench.results.rounds import StoredPairs


def holds_pairs(run: Run) -> bool:
    """Whether it is a run of `collbench pairs`."""
    return "pairs" in run.info or (run.path / PAIRS).is_file()


def write_stored(
    run: Run, stored: StoredPairs, effects: PairEffects, format: str, *, out: TextIO, err: TextIO, color: bool, headed: bool = False
) -> None:
    """Prints the matrix of a pairs run; what could not be read is said on `err`. effects: what the matrix of `stored` means.

    headed: whether a CSV has its header already. Raises UsageError for a format that a matrix does not have.
    """
    from collbench.report.pairs import write_pairs

    for warning in stored.warnings:
        write_line(err, printable(warning))
    if format == "table":
        PlainScreen(out, err, color).data(Line(printable(f"{run.path.resolve().name} ({_rounds(run, stored)})"), "head"))
    about = {**stored.about, "rounds": len({one.round for one in stored.rounds if not one.again})}
    found, unsaid = (effects.findings(), effects.doubts()) if format != "csv" else ([], [])
    name = run.path.resolve().name
    write_pairs(effects.matrix, found, about, format, out, color=color, unsaid=unsaid, theirs=stored.theirs, run=name, headed=headed)


def _rounds(run: Run, stored: StoredPairs) -> str:
    """How many rounds there are, and of how many where the launch broke off: then run.json does not say what was measured."""
    known, planned = len(stored.rounds), stored.about.get("rounds")
    rounds = f"{known} {'round' if known == 1 else 'rounds'}"
    if run.finished and stored.about.get("measured") is not None:
        return rounds
    return f"{f'{known} of {planned} rounds' if isinstance(planned, int) and planned > known else rounds}, not finished"


def write_all(pairs: Iterable[tuple[Run, StoredPairs, PairEffects]], format: str, *, out: TextIO, err: TextIO, color: bool) -> None:
    """Prints the matrices of pairs runs one after the other; CSV has one header for all."""
    for number, (run, stored, effects) in enumerate(pairs):
        write_stored(run, stored, effects, format, out=out, err=err, color=color, headed=number > 0)


def write_csv(pairs: Iterable[tuple[Run, StoredPairs, PairEffects]], path: Path, err: TextIO) -> None:
    """Writes the matrices of pairs runs to one file. Raises UsageError when it cannot be written."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            write_all(pairs, "csv", out=file, err=err, color=False)
    except OSError as error:
        raise UsageError(f"--csv {path} cannot be written ({error.strerror or error}): choose another file") from error
