"""Overlap with computation."""

from __future__ import annotations

from collbench.plugins.overlap.records import (
    AssistanceMissing,
    ComputationMissed,
    ComputationUnsteady,
    CoresSharedWithProgress,
    OverlapWide,
    StepTimeMissed,
    TooFewBlocks,
)
from tests.messages import Message

MESSAGES: dict[str, Message] = {
    "overlap: few blocks": TooFewBlocks(3),
    "overlap: cores shared with threads": CoresSharedWithProgress("node1", 2, 2, 2),
    "overlap: cores shared by ranks": CoresSharedWithProgress("node1", 4, 0, 2),
    "overlap: computation": ComputationMissed(1.2e-3, 4e-3),
    "overlap: step time": StepTimeMissed(0.18, 0.4),
    "overlap: computation faster": ComputationUnsteady(0.7),
    "overlap: wide": OverlapWide(-12.3, 80.2),
    "overlap: no test calls": AssistanceMissing("gloo"),
    "overlap: no test calls on GPUs": AssistanceMissing("nccl", "kernels"),
}
