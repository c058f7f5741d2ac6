"""The stored rows of a workload, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collbench.plugins.training.records import StepRow
from collbench.plugins.training.text import STEPS
from collbench.results.reader import Run, read_run


def read_workload(run: Run | Path) -> tuple[dict[str, Any], list[StepRow], list[str]]:
    """Return (run.json's "workload", the rows, what could not be read). Raises UsageError without a run."""
    run = run if isinstance(run, Run) else read_run(run)
    return run.info.get("workload", {}), *STEPS.read(run.path)
