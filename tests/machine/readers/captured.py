"""Captured machines with a tarball of /sys and /proc: each is unpacked once, however many tests read it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from collbench.machine.files import Files, Folder, open_archive
from tests.helpers import CAPTURED_MACHINES


@cache
def captured_files(name: str) -> Files:
    """Its files, whether they lie in a tarball or in a folder. Skips the test where the captured machines are not here."""
    folder = CAPTURED_MACHINES / name
    if not folder.exists():
        pytest.skip("the captured machines are not here: ../shared/machines")
    tarball = folder / "fsroot.tar.bz2"
    return open_archive(tarball) if tarball.exists() else Folder(folder)


@cache
def expected_of(name: str) -> dict[str, Any]:
    """Its EXPECTED.json."""
    found: dict[str, Any] = json.loads((CAPTURED_MACHINES / name / "EXPECTED.json").read_text())
    return found
