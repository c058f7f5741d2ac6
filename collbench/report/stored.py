"""Runs whose results are neither rows of cells nor a matrix of pairs: how each kind is told, checked and shown once more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from collbench.errors import UsageError
from collbench.results.folder import HUNT, WORKLOAD
from collbench.results.reader import Run


@dataclass(frozen=True)
class Kind:
    """name    of the command, and of what run.json holds of it
    file    the lines of its results, in the run's folder
    module  where `check_stored(run)` (raises UsageError for a run that does not fit) and `write_stored`, with what `write` takes, are
    what    for sentences: "a hunt"
    """

    name: str
    file: str
    module: str
    what: str

    def check(self, run: Run) -> None:
        """Raises UsageError where the run cannot be shown."""
        self._function("check_stored")(run)

    def write(self, run: Run, format: str, *, out: TextIO, err: TextIO, color: bool, headed: bool = False) -> bool:
        """Shows it. Raises UsageError for a format that it does not have.

        headed: whether a CSV has its header already, from another run of this kind; returns whether it has one now.
        """
        now: bool = self._function("write_stored")(run, format, out=out, err=err, color=color, headed=headed)
        return now

    def _function(self, name: str) -> Any:
        return getattr(import_module(f"collbench.report.{self.module}"), name)  # most reports need none of them


KINDS = (Kind("hunt", HUNT, "hunt_stored", "a hunt"), Kind("workload", WORKLOAD, "workload_stored", "training traffic"))


def kind_of(run: Run) -> Kind | None:
    """Which of them a run is; None: rows, or pairs."""
    return next((kind for kind in KINDS if kind.name in run.info or (run.path / kind.file).is_file()), None)


def of_kinds(runs: Sequence[Run]) -> Iterator[tuple[Run, Kind]]:
    """The runs of these kinds, in their order."""
    yield from ((run, kind) for run in runs if (kind := kind_of(run)))


def not_drawn(runs: Sequence[Run]) -> list[str]:
    """A sentence for each run that a page, Markdown and OpenMetrics leave out."""
    return [f"{run.path} holds {kind.what}, which is shown by `collbench report {run.path}` alone" for run, kind in of_kinds(runs)]


def write_all(runs: Sequence[tuple[Run, Kind]], format: str, *, out: TextIO, err: TextIO, color: bool) -> None:
    """Shows runs one after the other; CSV has one header for those of a kind that follow one another."""
    of: Kind | None = None
    for run, kind in runs:
        headed = kind.write(run, format, out=out, err=err, color=color, headed=kind is of)
        of = kind if headed and format == "csv" else None


def write_csv(runs: Sequence[tuple[Run, Kind]], path: Path, err: TextIO) -> None:
    """Writes runs of one kind to one file, under one header. Raises UsageError when it cannot be written."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            write_all(runs, "csv", out=file, err=err, color=False)
    except OSError as error:
        raise UsageError(f"--csv {path} cannot be written ({error.strerror or error}): choose another file") from error
