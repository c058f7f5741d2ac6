"""No history: an old and a new stack side by side, their launches by turns in one allocation, and in a second one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from collbench.errors import UsageError
from collbench.gate.changes import Expected
from collbench.gate.floors import Floor
from collbench.gate.verdict import Verdict


def judge_paired(
    old: Sequence[Path], new: Sequence[Path], expected: Sequence[Expected], today: date, asked: Sequence[Floor] = ()
) -> Verdict:
    """The verdict on `new` against `old`: as many folders of launches each, those at one place of one allocation. Raises UsageError."""
    raise UsageError("--paired is not there yet")
