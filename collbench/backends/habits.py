"""What the cells of a backend have where the user asked for nothing, known from its class before it is opened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from collbench.backends.registry import backend_class
from collbench.operations.operation import Operation
from collbench.operations.sweep import CPU, CUDA, Habits


def habits(name: str) -> Habits:
    """Those of nccl-tests for a backend of GPUs alone, else those of CPU benchmarks. Raises UsageError for an unknown name."""
    kind: Any = backend_class(name)  # the class: its steps are known before it is opened

    def only_in_place(operation: Operation) -> bool:
        from collbench.backends.backend import in_place_only  # here, since `--help` asks for no habits

        return in_place_only(kind, operation)

    usual = CPU if "cpu" in kind.devices else CUDA
    return replace(usual, tuned=kind.takes_tuning, streamed=kind.takes_streams, in_place_only=only_in_place)
