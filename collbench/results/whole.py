"""Writes folders of finished runs at once: for rows whose source still exists, so that nothing is lost where the machine fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.errors import FINE, UsageError
from collbench.results.folder import CELLS, RUN, SAMPLES, TOPOLOGY, refuse_a_second_run, utc
from collbench.results.jsonl import to_line, to_page
from collbench.results.row import SCHEMA, Row
from collbench.results.writable import cannot_create, refuse_a_full_disk

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Whole:
    """A finished run: what run.json says besides schema, id, operation, times and number of rows; the rows, and their arrays by index.

    The exit code is 0 where `info` has none.
    """

    path: Path
    operation: str
    info: Mapping[str, Any]
    rows: Sequence[Row]
    topology: Mapping[str, Any] | None = None
    arrays: Mapping[int, Mapping[str, NDArray[Any]]] = field(default_factory=dict)

    @property
    def samples(self) -> bytes:
        """What samples.bin holds: the arrays in the order of the rows."""
        return b"".join(array.tobytes() for _, arrays in sorted(self.arrays.items()) for array in arrays.values())

    @property
    def stored_rows(self) -> Iterator[Row]:
        """The rows with the places of their arrays in samples.bin."""
        offset = 0
        for index, row in enumerate(self.rows):
            places: dict[str, Any] = {}
            for name, array in self.arrays.get(index, {}).items():
                places[name] = {"offset": offset, "dtype": array.dtype.str, "shape": list(array.shape)}
                offset += array.nbytes
            yield row.with_figures(samples=places) if places else row

    @property
    def texts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """(name, content in pieces) of the folder's text files, run.json last. There are no events, and so there is no file for them."""
        if self.topology is not None:
            yield TOPOLOGY, [to_page(self.topology)]
        yield CELLS, (f"{to_line(row.as_json())}\n" for row in self.stored_rows)
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
    if run.arrays:
        made.append(run.path / SAMPLES)
        (run.path / SAMPLES).write_bytes(run.samples)
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
