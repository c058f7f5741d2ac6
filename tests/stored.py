"""Measured runs and trials that are input of tests only: tests/stored.tar.xz has them as `reports` had them, without samples.bin."""

import atexit
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

ARCHIVE = Path(__file__).with_suffix(".tar.xz")


@cache
def stored() -> Path:
    """Unpack the archive once per process, and return its folder; it has `reports` and `predict`, and is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="collbench-stored-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def stored_reports() -> Path:
    """Return the folder with the runs and series of trials, by the names that they had in `reports`."""
    return stored() / "reports"
