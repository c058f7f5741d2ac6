"""What the cells of a backend have where the user asked for nothing, known from its class before it is opened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from collbench.backends.backend import in_place_only
from collbench.backends.registry import backend_class
from collbench.operations.plan import CPU, CUDA, Habits


def habits(name: str) -> Habits:
    """Those of nccl-tests for a backend of GPUs alone, else those of CPU benchmarks. Raises UsageError for an unknown name."""
    kind: Any = backend_class(name)  # the class: its steps are known before it is opened
    usual = CPU if "cpu" in kind.devices else CUDA
    usual = replace(usual, tuned=kind.takes_tuning, streamed=kind.takes_streams)
    return replace(usual, in_place_only=lambda operation: in_place_only(kind, operation))
