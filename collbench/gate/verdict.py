"""What the gate says: the result, why, and who is suspected. `as_json` is verdict.json; all other outputs are made from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from collbench.analysis.differences import Difference
from collbench.errors import FAILED, FINE, NEGATIVE, NO_VERDICT

SCHEMA = 1
PASSED, REGRESSION, UNDECIDED, WRONG_DATA = "passed", "regression", "no verdict", "wrong data"
EXIT_CODES = {PASSED: FINE, REGRESSION: NEGATIVE, UNDECIDED: NO_VERDICT, WRONG_DATA: FAILED}
CONFIRMED, SUSPECTED, CLEARED = "confirmed", "suspected", "cleared"


@dataclass(frozen=True)
class Suspicion:
    """A cell, a group or the whole that exceeded its limit in the first of the candidate's allocations.

    kind     "cell", "group" or "whole"
    name     in words: "allreduce 64 MiB mpi", "allreduce on mpi, large messages", "all cells"
    cell     what names the cell: its columns by name; empty for the others
    factors  by allocation of the candidate, the time over what the baseline says; None where it was not measured
    limit    the factor that may be by chance
    state    "confirmed" (exceeded in three allocations), "suspected" (not measured often enough) or "cleared"
    """

    kind: str
    name: str
    cell: dict[str, Any]
    factors: tuple[float | None, ...]
    limit: float
    state: str


@dataclass(frozen=True)
class Verdict:
    """result      "passed", "regression", "no verdict" or "wrong data"
    reasons     why there is no verdict, or why it does not pass, a sentence each
    suspicions  the surest and worst first
    baseline    its folder; allocations: how many it has; thin: fewer than six
    candidates  the names of the allocations that were judged, in the order in which they began
    cells       how many cells have a history to be judged by
    differences what changed since the last good allocation, announced or not
    """

    result: str
    reasons: tuple[str, ...]
    suspicions: tuple[Suspicion, ...]
    baseline: str
    allocations: int
    thin: bool
    candidates: tuple[str, ...]
    cells: int
    differences: tuple[Difference, ...]

    @property
    def exit_code(self) -> int:
        """What the process returns."""
        return EXIT_CODES[self.result]

    def as_json(self) -> dict[str, Any]:
        """verdict.json."""
        return {"schema": SCHEMA, "exit_code": self.exit_code, **asdict(self)}
