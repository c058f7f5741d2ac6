"""The runs of a folder that is served: those that changed are read again, and a run with a link out of the folder is left out."""

from __future__ import annotations

import os
from itertools import chain, islice
from pathlib import Path

from collbench.analysis.launches import read_all
from collbench.errors import UsageError
from collbench.report.run_list import ListedRun, changed_s, list_run, newest_first, run_folders

_MOST_FILES = 100_000  # of a run


def served_runs(folder: Path, finished: dict[Path, tuple[float, ListedRun]], most: int) -> list[ListedRun]:
    """Return the runs in the folders of `folder`, newest first, without those that cannot be read. Raises UsageError for no folder.

    finished  keeps finished runs with the time of their run.json: a next call with it reads only what changed
    most      at most so many runs are read, by the time of their run.json the newest
    """
    dated = [(changed, path) for path in run_folders(folder) if (changed := changed_s(path)) is not None]
    dated = sorted(dated, key=lambda entry: entry[0], reverse=True)[:most]
    runs: list[ListedRun] = []
    for changed, path in dated:
        if _leads_outside(path, folder):
            continue
        if path in finished and finished[path][0] == changed:
            runs.append(finished[path][1])
            continue
        try:
            run = list_run(path, read_all([path]))
        except UsageError:
            continue
        runs.append(run)
        if run.exit_code is not None:
            finished[path] = changed, run
    return newest_first(runs)


def run_named(folder: Path, name: str) -> Path | None:
    """Return the folder of a run below `folder`; None without one, and for one with a symbolic link to a place outside `folder`."""
    path = next((path for path in run_folders(folder) if path.name == name), None)
    return None if path is None or changed_s(path) is None or _leads_outside(path, folder) else path


def _leads_outside(run: Path, folder: Path) -> bool:
    """Return whether a run, a file of it, or one of a launch in it is a symbolic link to a place outside `folder`, or they are too many."""
    root = os.path.realpath(folder)
    files = list(islice(chain([run], run.glob("*"), run.glob("*/*")), _MOST_FILES))
    links = (file for file in files if file.is_symlink())
    return len(files) == _MOST_FILES or any(not Path(os.path.realpath(link)).is_relative_to(root) for link in links)
