"""Runs for the gate's tests: launches of an allocation with a row per time, and baselines of several."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.results.rows import make_row, make_times, store


def launch(folder: Path, times_s: Mapping[int, float], allocation: str | None = None, **changes: Any) -> Path:
    """A finished run with an all-reduce for each size (bytes) and its median; `changes` are those of the rows."""
    same = {"canary_s": {"before": 6e-8, "after": 7e-8}, **changes}
    rows = [make_row(size, time_s=make_times(time_s), **same) for size, time_s in times_s.items()]
    return store(folder, rows, allocation_id=allocation, collbench="0.1.0", hosts=["node1", "node2"])


def launches(folder: Path, allocation: str, *times_s: Mapping[int, float]) -> Path:
    for number, each in enumerate(times_s, 1):
        launch(folder / f"launch-{number}", each, allocation)
    return folder


def edit_info(run: Path, **changes: object) -> Path:
    """Change values of its run.json."""
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, **changes}))
    return run
