"""Golden texts: compared byte for byte; written anew with COLLBENCH_GOLDEN=1."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "golden" / "report"


def assert_golden(name: str, text: str) -> None:
    """The text is the one stored under `name`."""
    path = FOLDER / name
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        path.write_bytes(text.encode())
    assert text == path.read_bytes().decode()
