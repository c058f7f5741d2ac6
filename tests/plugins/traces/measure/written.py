"""What `collbench trace` wrote of a job."""

from __future__ import annotations

import json
from pathlib import Path

from collbench.plugins.traces.record import RANKS


def dump_reason(folder: Path, rank: int) -> str:
    """Why `collbench trace` has written the dump of a rank, "" without one."""
    path = folder / RANKS / f"rank_{rank}.json"
    return str(json.loads(path.read_text())["why"]) if path.exists() else ""
