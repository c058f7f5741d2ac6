"""`Runs.pairs` and `Runs.hunts` of the Python API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from collbench.api.frames import DeclaredTable
from collbench.columns import column
from collbench.plugins.hunt.kind import HUNT, PAIRS
from collbench.plugins.hunt.records import StoredHunt, SuspectRow
from collbench.plugins.hunt.text import suspect_rows
from collbench.records import Record, RecordKind


class HuntRow(Record, frozen=True):
    """A suspect with the result of its hunt, or the result of a hunt without suspects."""

    result: Annotated[
        str | None,
        column("The result of the hunt: `confirmed`, `nobody` (no slow endpoint or path) or `no verdict`; missing if it stopped early."),
    ]
    suspect: Annotated[SuspectRow | None, column("", key="")] = None


def _hunt_rows(stored: StoredHunt) -> Iterator[HuntRow]:
    result = stored.shown.verdict.result if stored.shown.verdict else None
    suspects: list[SuspectRow | None] = list(suspect_rows(stored))
    for suspect in suspects or [None]:
        yield HuntRow(result, suspect)


PAIRS_TABLE = DeclaredTable("pairs", PAIRS)
HUNTS_TABLE = DeclaredTable("hunts", HUNT, RecordKind("hunts", HuntRow, records=_hunt_rows))
pairs = PAIRS_TABLE.frames(
    "directed pair of runs of `collbench pairs`: bandwidth with its interval, and latency; of a pair that was measured again the faster "
    "figures"
)
hunts = HUNTS_TABLE.frames("suspect of runs of `collbench hunt`; a hunt without suspects has one row with its result")
