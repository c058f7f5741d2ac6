"""What `collbench trace` wrote of a job."""

import json

from collbench.plugins.traces.record import RANKS


def dump_reason(folder, rank):
    """Why `collbench trace` has written the dump of a rank, "" without one."""
    path = folder / RANKS / f"rank_{rank}.json"
    return str(json.loads(path.read_text())["why"]) if path.exists() else ""
