"""The captured machines in this folder: what each must be read as, its texts, and a folder with its files."""

import shutil
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from collbench.machine.archive import Archive, open_archive

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
_UNPACKED = TemporaryDirectory(prefix="collbench-machines-")  # removed at exit


@cache
def _capture(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def expected(name: str) -> dict[str, Any]:
    """Return the facts that the capture's readers must return."""
    facts: dict[str, Any] = _capture(name)["expected"]
    return facts


def text(name: str, file: str) -> str:
    return str(_capture(name)["files"][file])


def having(file: str) -> tuple[str, ...]:
    return tuple(name for name in NAMES if file in _capture(name).get("files", {}))


@cache
def tree(name: str) -> Archive:
    """Return a capture's files of /sys and /proc."""
    return open_archive(FOLDER / f"{name}.tar.xz")


@cache
def folder(name: str) -> Path:
    made = Path(_UNPACKED.name) / name
    made.mkdir()
    for file, content in _capture(name).get("files", {}).items():
        (made / file).write_text(content, encoding="utf-8")
    for archive in FOLDER.glob(f"{name}.tar.*"):
        shutil.copy(archive, made)
    return made
