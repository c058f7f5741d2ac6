"""`Runs.pairs` and `Runs.hunts` of the Python API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from collbench.api.frames import RecordTable, check_records, frame_of
from collbench.columns import RUN_COLUMN
from collbench.plugins.hunt.kind import HUNT
from collbench.plugins.hunt.pairs_text import PAIR_COLUMNS, pair_records
from collbench.plugins.hunt.records import read_hunt, read_pairs
from collbench.plugins.hunt.text import HUNT_COLUMNS, RESULT_COLUMN, hunt_records, shown_about

if TYPE_CHECKING:
    import pandas

    from collbench.api.runs import Runs
    from collbench.results.reader import Run


def _pairs_of(run: Run, strict: bool) -> Iterator[Sequence[Any]]:
    """Yield a record per directed pair with a figure."""
    stored = read_pairs(run)
    if stored is not None:
        check_records(stored.warnings, strict)
        yield from pair_records(stored.matrix(), run.path.resolve().name)


def _suspects_of(run: Run, strict: bool) -> Iterator[Sequence[Any]]:
    """Yield a record per suspect, and one for a hunt without suspects."""
    if not HUNT.holds(run):
        return
    stored = read_hunt(run)
    check_records(stored.warnings, strict)
    name, hunt = run.path.resolve().name, shown_about(stored.about)
    suspects = list(hunt_records(hunt, name)) or [[name, *[None] * (len(HUNT_COLUMNS) - 1)]]
    result = hunt.verdict.result if hunt.verdict else None
    yield from ([name, result, *rest] for _, *rest in suspects)


PAIRS_TABLE = RecordTable("pairs", lambda: PAIR_COLUMNS, _pairs_of)
HUNTS_TABLE = RecordTable("hunts", lambda: RUN_COLUMN | RESULT_COLUMN | HUNT_COLUMNS, _suspects_of)


def pairs(self: Runs) -> pandas.DataFrame:
    """Return a DataFrame with a row per directed pair of runs of `collbench pairs`: bandwidth with its interval, and latency.

    A pair that was measured again has its faster figures, as in the matrix that the command prints.
    Raises UsageError without pandas, and for an invalid run.json.
    """
    return frame_of(PAIRS_TABLE, self, self.strict)


def hunts(self: Runs) -> pandas.DataFrame:
    """Return a DataFrame with a row per suspect of runs of `collbench hunt`; a hunt without suspects has one row with its result.

    Raises UsageError without pandas, and for an invalid run.json.
    """
    return frame_of(HUNTS_TABLE, self, self.strict)
