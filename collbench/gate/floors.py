"""Floors that need no history: a share of the ceiling that somebody asks for, of stated sizes and a stated model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collbench.errors import UsageError
from collbench.gate.allocation import Allocation
from collbench.gate.verdict import FloorState


@dataclass(frozen=True)
class Floor:
    """asked    as it was typed: "ring:80@64M-"
    model    the ceiling's kind: "ring" …
    percent  of it, at least
    smallest, largest  sizes for which it is asked, bytes
    """

    asked: str
    model: str
    percent: float
    smallest: int
    largest: int | None


def floor_states(asked: Sequence[Floor], candidate: Sequence[Allocation]) -> list[FloorState]:
    """The cells below what is asked for, or of which that is not known, in the order of the first allocation's cells."""
    return []


def read_floor(text: str) -> Floor:
    """ "ring:80@64M-" as a floor. Raises UsageError naming what does not fit."""
    raise UsageError("--min-percent is not there yet")
