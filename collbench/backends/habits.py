"""What the cells of a backend have where the user asked for nothing, known from its class before it is opened."""

from __future__ import annotations

from dataclasses import replace

from collbench.backends.registry import backend_class
from collbench.operations.plan import CPU, CUDA, Habits


def habits(name: str) -> Habits:
    """Those of nccl-tests for a backend of GPUs alone, else those of CPU benchmarks. Raises UsageError for an unknown name."""
    kind = backend_class(name)
    return replace(CPU if "cpu" in kind.devices else CUDA, tuned=kind.takes_tuning)
