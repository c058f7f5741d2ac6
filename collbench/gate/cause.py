"""What the pattern of slower cells points at: the link, a backend, an operation, the host."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.gate.verdict import Cause, GroupState, Suspicion


def cause_of(suspicions: Sequence[Suspicion], groups: Sequence[GroupState]) -> Cause | None:
    """What is slower, and what is not, as one sentence; None where nothing is, or nothing can be said."""
    return None
