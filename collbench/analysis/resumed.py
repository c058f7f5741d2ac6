"""A run that broke off and was gone on with: its rows are of several launches, though they stand in one table."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from collbench.results.reader import Run


def rows_by_launch(run: Run) -> list[int]:
    """How many rows each launch has measured, in their order; those that measured none are left out.

    A run.json that cannot be right gives one launch per note, of rows that are not known: zeros.
    """
    notes = _notes(run)
    starts = [0, *(note.get("rows") for note in notes), len(run.rows)]
    sound = [start for start in starts if isinstance(start, int) and not isinstance(start, bool)]
    if len(sound) < len(starts) or any(later < earlier for earlier, later in pairwise(sound)):
        return [0] * (len(notes) + 1)
    return [later - earlier for earlier, later in pairwise(sound) if later > earlier]


def sentence(run: Run) -> str | None:
    """What a reader must know of a run whose rows are of several launches; None for all others."""
    rows = rows_by_launch(run)
    if len(rows) < 2:
        return None
    parts = f": {' + '.join(map(str, rows))}" if all(rows) else ""
    names = {run.info.get("allocation_id"), *(note.get("allocation_id") for note in _notes(run))}
    allocations = len([name for name in names if isinstance(name, str)])
    where = f" in {allocations} allocations" if allocations > 1 else ""
    return (
        f"{run.path} was resumed: its {len(run.rows)} rows are of {len(rows)} launches{where}{parts}; an interval speaks for one launch, "
        "and rows of different launches may differ by more"
    )


def _notes(run: Run) -> list[dict[str, Any]]:
    notes = run.info.get("resumed")
    return [note for note in notes if isinstance(note, dict)] if isinstance(notes, list) else []
