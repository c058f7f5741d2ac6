"""The stored rows of a workload, and the libraries that measure it without a GPU, for tests."""

from importlib.util import find_spec

import pytest

from collbench.plugins.training.text import STEPS
from collbench.results.reader import Run, read_run

MISSING = {"mpi": not find_spec("mpi4py"), "gloo": not find_spec("torch")}
BACKENDS = [pytest.param(name, marks=pytest.mark.skipif(MISSING[name], reason=f"no {name}")) for name in MISSING]


def read_workload(run):
    """Return (run.json's "workload", the rows, what could not be read). Raises UsageError without a run."""
    run = run if isinstance(run, Run) else read_run(run)
    return run.info.get("workload", {}), *STEPS.read(run.path)
