"""The stored rows of a workload, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collbench.plugins.training.records import StepRow
from collbench.plugins.training.text import STEPS
from collbench.results.reader import read_run


def read_workload(path: Path) -> tuple[dict[str, Any], list[StepRow], list[str]]:
    """Return (run.json's "workload", the rows, what could not be read). Raises UsageError without a run."""
    return read_run(path).info.get("workload", {}), *STEPS.read(path)
