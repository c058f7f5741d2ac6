"""Folders of finished runs, written at once: for rows whose source is still there, so that nothing is lost where the machine fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collbench.errors import FINE, UsageError
from collbench.results.folder import CELLS, RUN, TOPOLOGY, refuse_a_second_run, utc
from collbench.results.jsonl import to_line, to_page
from collbench.results.record import SCHEMA, Row
from collbench.results.writable import cannot_create, refuse_a_full_disk


@dataclass(frozen=True)
class Whole:
    """A run that is at its end: what run.json says beside schema, id, operation, times and number of rows; rows without arrays.

    The exit code is 0 where `info` has none.
    """

    path: Path
    operation: str
    info: Mapping[str, Any]
    rows: Sequence[Row]
    topology: Mapping[str, Any] | None = None

    @property
    def texts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """(name, content in pieces) of the folder's files, run.json last. There are no samples and no events, and so no files for them."""
        if self.topology is not None:
            yield TOPOLOGY, [to_page(self.topology)]
        yield CELLS, (f"{to_line(row.as_json())}\n" for row in self.rows)
        head = {"schema": SCHEMA, "id": self.path.name or self.path.resolve().name, "operation": self.operation, "started_utc": utc()}
        yield RUN, [to_page({**head, "exit_code": FINE, **self.info, "finished_utc": utc(), "rows": len(self.rows)})]


def write_all(runs: Iterable[Whole]) -> None:
    """Writes all of them, or nothing. Raises UsageError where a folder holds a run already, or cannot be written."""
    made: list[Path] = []
    for run in runs:
        try:
            _write(run, made)
        except (OSError, UsageError) as error:
            _undo(made)
            raise error if isinstance(error, UsageError) else UsageError(cannot_create(run.path, error)) from error


def _write(run: Whole, made: list[Path]) -> None:
    if not run.path.parent.is_dir() or run.path.exists():
        _into(run.path, made)
    else:  # the next of many launches: nothing can be in its way
        run.path.mkdir()
        made.append(run.path)
    for name, pieces in run.texts:
        with (run.path / name).open("x", encoding="utf-8") as file:
            made.append(run.path / name)
            file.writelines(pieces)


def _into(path: Path, made: list[Path]) -> None:
    made += reversed([folder for folder in (path, *path.parents) if not folder.exists()])
    path.mkdir(parents=True, exist_ok=True)
    refuse_a_second_run(path)
    refuse_a_full_disk(path)


def _undo(made: Sequence[Path]) -> None:
    for path in reversed(made):
        with suppress(OSError):  # never made, or somebody put something there meanwhile
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
