"""A copy of the project in a temporary folder, in which mutants are applied: the working tree is never changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_LINKED = (".venv", ".venv-openmpi", ".venv-impi", ".venv-cuda")  # environments of the original: tests only read them
_BUILT = ("collbench/native/*.so",)  # ignored by git, and needed


class CopyError(RuntimeError):
    """The copy cannot be used; the text states why."""


def python_of(root: Path) -> Path:
    """Return the interpreter of the test environment, or the one that runs this."""
    found = root / ".venv/bin/python"
    return found if found.exists() else Path(sys.executable)


def copy_project(root: Path, target: Path) -> None:
    """Copy all files that git does not ignore, and the compiled loops; link the environments."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    built = [str(path.relative_to(root)) for pattern in _BUILT for path in root.glob(pattern)]
    for name in [*filter(None, listed.split("\0")), *built]:
        source, place = root / name, target / name
        if source.is_file() or source.is_symlink():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place, follow_symlinks=False)
    for name in _LINKED:
        if (root / name).exists():
            (target / name).symlink_to((root / name).resolve())
    # Checked by their content: a mutant of the same length, written within the same second, would otherwise not be compiled again.
    command = [str(python_of(target)), "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "collbench", "tests", "tools"]
    subprocess.run(command, cwd=target, env=environment(target), capture_output=True, check=False)


def environment(copy: Path) -> dict[str, str]:
    """Return the variables with which tests import the copy, also in the processes that they start."""
    cleared = {name: value for name, value in os.environ.items() if not name.startswith("COLLBENCH_")}
    return {**cleared, "PYTHONPATH": os.pathsep.join((str(copy), str(copy / "tools"))), "PYTHONDONTWRITEBYTECODE": "1"}


def check_import(copy: Path) -> None:
    """Raise CopyError unless Python imports collbench from the copy, with and without the current folder in its path."""
    for flags in ((), ("-P",)):
        command = [str(python_of(copy)), *flags, "-c", "import collbench; print(collbench.__file__)"]
        told = subprocess.run(command, cwd=copy, env=environment(copy), capture_output=True, text=True, check=False).stdout.strip()
        if not Path(told).is_relative_to(copy):
            raise CopyError(f"tests would import {told or 'no collbench'} and not the copy in {copy}: no result would mean anything")
