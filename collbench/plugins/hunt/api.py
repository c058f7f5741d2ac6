"""`Runs.pairs` and `Runs.hunts` of the Python API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from collbench.api.frames import RUN_COLUMN, RecordTable, check_records, frame_of
from collbench.columns import column
from collbench.plugins.hunt.kind import HUNT
from collbench.plugins.hunt.pairs_text import pair_records
from collbench.plugins.hunt.records import read_hunt, read_pairs
from collbench.plugins.hunt.text import HUNT_COLUMNS, hunt_records

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
    name, about = run.path.resolve().name, stored.about
    suspects = list(hunt_records(about, name)) or [[name, *[None] * (len(HUNT_COLUMNS) - 1)]]
    result = (about.get("verdict") or {}).get("result")
    yield from ([name, result, *rest] for _, *rest in suspects)


PAIRS_TABLE = RecordTable(
    "pairs",
    lambda: {
        **RUN_COLUMN,
        "sender": column("The place (rank or node) that sends."),
        "receiver": column("The place (rank or node) that receives."),
        "size_bytes": column("The size of the messages of the bandwidth."),
        "bandwidth_bytes_per_s": column("The bandwidth of messages from the sender to the receiver, the median."),
        "bandwidth_low_bytes_per_s": column("The lower end of the 95 % interval of the bandwidth."),
        "bandwidth_high_bytes_per_s": column("The upper end of the 95 % interval of the bandwidth."),
        "latency_size_bytes": column("The size of the messages of the latency."),
        "latency_s": column("Half of the round trip, the median."),
        "wrong": column("The number of wrong elements of the pair, in both directions; missing if nothing was verified.", type=int),
    },
    _pairs_of,
)
HUNTS_TABLE = RecordTable(
    "hunts",
    lambda: {
        **RUN_COLUMN,
        "result": column(
            "The result of the hunt: `confirmed`, `nobody` (no slow endpoint or path) or `no verdict`; missing if it stopped early."
        ),
        "state": column("The state of the suspect: confirmed, cleared or inconclusive."),
        "code": column("The code of the finding; `collbench explain CODE` explains it."),
        "kind": column("What is slow."),
        "places": column("The suspects: ranks or nodes."),
        "ratio": column("The speed of the suspect as a share of that of the others.", type=float),
        "ratio_low": column("The lower end of the interval of the ratio.", type=float),
        "ratio_high": column("The upper end of the interval of the ratio.", type=float),
        "partners": column("The partners with which the suspect was measured."),
        "part": column("The interface or part that is slow."),
        "evidence": column("The evidence, as sentences."),
    },
    _suspects_of,
)


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
