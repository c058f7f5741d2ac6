"""`Runs.workloads` of the Python API."""

from __future__ import annotations

from collbench.api.frames import DeclaredTable
from collbench.plugins.training.text import TRAINING

WORKLOADS_TABLE = DeclaredTable("workloads", TRAINING)
workloads = WORKLOADS_TABLE.frames("training and backend of runs of `collbench workload`")
