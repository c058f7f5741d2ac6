"""The recordings of terminals show what the command prints now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]


@pytest.mark.system
def test_the_recordings_are_those_of_the_command(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "recordings", tmp_path], check=True, cwd=ROOT)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    stored = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "reports" / "terminal").iterdir()}
    assert sorted(made) == ["two-hosts.svg"]
    assert made == stored
