"""What a report can show of the folders that were named, and a sentence for each that gives nothing: the others are shown all the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from collbench.analysis.launches import check_once, read_all
from collbench.analysis.launches import sentence as resumed
from collbench.errors import UsageError
from collbench.report.kinds import kind_of
from collbench.report.pairs_stored import holds_pairs
from collbench.results.folder import CELLS, PAIRS
from collbench.results.reader import Run


@dataclass(frozen=True)
class Readable:
    """runs      the runs that can be shown; one without any row tells at least of itself
    sentences  one for each folder that cannot be read, and for each run without a row
    whole      whether every folder that was named gives something
    """

    runs: list[Run]
    sentences: list[str]
    whole: bool

    @property
    def warnings(self) -> list[str]:
        """What there is to be said of all of them, a sentence each."""
        return [*self.sentences, *(warning for run in self.runs for warning in (*run.warnings, resumed(run)) if warning)]


def readable(paths: Sequence[Path]) -> Readable:
    """The runs in all of `paths`. Raises UsageError where none of them can be read, and for a launch that is named twice."""
    found: list[Run] = []
    sentences: list[str] = []
    whole = True
    for path in paths:
        try:
            runs = _runs_in(path)
        except UsageError as error:
            sentences.append(str(error))
            whole = False
            continue
        empty = [run for run in runs if _is_empty(run)]
        sentences += [f"{run.path} holds no results: {_why(run)}" for run in empty]
        whole = whole and len(empty) < len(runs)
        found += runs
    if not found:
        raise UsageError("; ".join(sentences))
    check_once(found)
    return Readable(found, sentences, whole)


def _runs_in(path: Path) -> list[Run]:
    """Raises UsageError for a run of pairs, or of another kind, whose run.json does not fit, too."""
    runs = read_all([path])
    for run in runs:
        if kind := kind_of(run):
            kind.check(run)
        if holds_pairs(run):
            from collbench.results.rounds import check_pairs

            check_pairs(run)
    return runs


def _is_empty(run: Run) -> bool:
    if _file(run) == CELLS:
        return not run.rows
    try:
        return (run.path / _file(run)).stat().st_size == 0
    except OSError:
        return True


def _why(run: Run) -> str:
    if run.finished:
        return f"nothing was measured, or its {_file(run)} was lost"
    return "it broke off before its first cell was finished, or has only begun"


def _file(run: Run) -> str:
    """Where a run of its kind has its results."""
    kind = kind_of(run)
    return kind.file if kind else PAIRS if holds_pairs(run) else CELLS
