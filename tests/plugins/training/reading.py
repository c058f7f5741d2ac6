"""The stored rows of a workload, for tests."""

from collbench.plugins.training.text import STEPS
from collbench.results.reader import Run, read_run


def read_workload(run):
    """Return (run.json's "workload", the rows, what could not be read). Raises UsageError without a run."""
    run = run if isinstance(run, Run) else read_run(run)
    return run.info.get("workload", {}), *STEPS.read(run.path)
