"""A run that broke off, taken up again in its folder: what is stored stays, what is missing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collbench.errors import UsageError
from collbench.measure.request import Request
from collbench.measure.same_run import Key, asked, difference, key_of, topology_difference
from collbench.results.folder import TOPOLOGY, RunFolder
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from collbench.results.store import parse_object, read_object, to_line


@dataclass
class Stored:
    """What a run has already: nothing, but for one that is resumed. All but `done` and `resumed` at rank 0 alone.

    info     what run.json says of this launch
    rows     by the place of their cell in the work; done: these places
    cut      bytes of lines that a kill had left unfinished, by file
    """

    folder: RunFolder | None = None
    info: dict[str, Any] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    done: frozenset[int] = frozenset()
    resumed: bool = False

    def notes(self, total: int) -> list[str]:
        """Sentences for the user about a run that is resumed, of so many cells."""
        if not (self.resumed and self.folder):
            return []
        path, left = self.folder.path, total - len(self.rows)
        known = f"{path} has {len(self.rows)} of {total} cells"
        said = [f"{known}, {left} are measured now" if left else f"{known}: it is complete, nothing is measured"]
        if self.folder.taken_over:
            said.append(f"{path} was held by {self.folder.taken_over}, which has ended without giving it up")
        return said + [f"{name} ended in the middle of a line: {count} bytes were cut off" for name, count in self.cut.items()]

    def go_on(self, topology: dict[str, Any]) -> None:
        """Stores the topology; of a resumed run notes that it goes on. Raises UsageError where its machines were others."""
        assert self.folder is not None
        if not self.resumed:
            self.folder.write_topology(topology)
            return
        _check_topology(self.folder, topology)
        self._change(self.folder)
        if not (self.folder.path / TOPOLOGY).is_file():  # the run broke off before it was there
            self.folder.write_topology(topology)

    def complete(self, code: int) -> RunFolder | None:
        """Of a run to which nothing is added: the folder where it does not say yet that it ended with this code, else None."""
        if self.folder is None:
            return None
        if "finished_utc" in self.folder.run and self.folder.run.get("exit_code") == code:
            self.folder.give_up()
            return None
        self._change(self.folder)
        return self.folder

    def _change(self, folder: RunFolder) -> None:
        """The first that is written into a resumed folder: until here it is as it was found."""
        self.cut = folder.go_on()
        launch = {name: self.info.get(name) for name in ("command", "order_seed", "launcher", "launcher_facts", "allocation_id")}
        folder.resumed(**launch, cut_bytes=self.cut, taken_over_from=folder.taken_over)


def open_folder(request: Request, info: dict[str, Any], planned: Sequence[tuple[Row, Row]]) -> Stored:
    """A new folder, or that of the run to resume, held for this process; at rank 0. `info`: what run.json says of this launch.

    `planned`: as `same_run.planned` names the cells. Raises UsageError for another run, and for one that cannot be gone on with.
    """
    info = {**info, "asked": asked(request, [row for row, _ in planned])}
    earlier = request.earlier
    if earlier is None:
        return Stored(RunFolder.create(request.out, request.command, info), info)
    return _taken_up(earlier, {"operation": request.command, **info}, planned)


def _taken_up(path: Path, info: dict[str, Any], planned: Sequence[tuple[Row, Row]]) -> Stored:
    folder = RunFolder.reopen(path)
    try:
        _refuse_another(folder, info)
        run = read_run(path)
        _refuse_a_cut_one(run)
    except BaseException:
        folder.give_up()
        raise
    folder.rows = len(run.rows)
    return Stored(folder, info, _by_place(run.rows, planned), resumed=True)


def _check_topology(folder: RunFolder, topology: dict[str, Any]) -> None:
    path = folder.path / TOPOLOGY
    if not path.is_file():
        return
    try:
        then = read_object(path)
    except (OSError, ValueError) as error:
        raise UsageError(_refusal(folder, f"its {TOPOLOGY} cannot be read ({error})")) from error
    found = topology_difference(then, parse_object(to_line(topology).encode()))
    if found:
        raise UsageError(_refusal(folder, found))


def _refuse_another(folder: RunFolder, info: dict[str, Any]) -> None:
    found = difference(folder.run, parse_object(to_line(info).encode()))
    if found:
        raise UsageError(_refusal(folder, found))


def _refuse_a_cut_one(run: Run) -> None:
    """Raises UsageError where rows have lost their samples: what is appended would be taken for theirs."""
    for row in run.rows:
        for name in row.samples:
            run.array(row, name)


def _refusal(folder: RunFolder, why: str) -> str:
    return f"{folder.path} cannot be resumed: {why}; start a new run, without --resume"


def _by_place(rows: Sequence[Row], planned: Sequence[tuple[Row, Row]]) -> dict[int, Row]:
    """The rows by the place of their cell, each taken once."""
    stored: dict[Key, list[Row]] = {}
    for row in rows:
        stored.setdefault(key_of(row), []).append(row)
    found: dict[int, Row] = {}
    for place, names in enumerate(planned):
        rows_of_cell = next((stored[key] for name in names if stored.get(key := key_of(name))), None)
        if rows_of_cell:
            found[place] = rows_of_cell.pop(0)
    return found
