"""`Runs.loads` and `Runs.load_rows` of the Python API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from collbench.api.frames import COUNT, FLOAT, RecordTable, check_records, frame_of
from collbench.plugins.load.kind import LOAD
from collbench.plugins.load.records import SHARES, LoadRow, read_load
from collbench.plugins.load.text import load_values, sorted_rows

if TYPE_CHECKING:
    import pandas

    from collbench.api.runs import Runs
    from collbench.results.reader import Run

_COUNTS = ("message_bytes", "victims", "aggressor_ranks", "aggressor_nodes", "blocks", "n_off", "n_on")
_FLOATS = ("level", "achieved", "percent_of_link", *(f"{name}_factor{end}" for name in SHARES for end in ("", "_low", "_high")))


def _rows_of(run: Run, strict: bool) -> list[LoadRow]:
    """Return the rows of a run. Raises UnreadableRun for damaged records, unless not `strict`."""
    if not LOAD.holds(run):
        return []
    _, rows, warnings = read_load(run)
    check_records(warnings, strict)
    return sorted_rows(rows)


def _records_of(run: Run, strict: bool) -> Iterator[Sequence[Any]]:
    """Yield a record per pattern and level of the aggressors."""
    name = run.path.resolve().name
    yield from ([name, *(load_values(row) | {"flags": row.flags}).values()] for row in _rows_of(run, strict))


LOADS_TABLE = RecordTable(
    "loads",
    lambda: ("run", *load_values(LoadRow("", "", "", 0, "", 0, 0.0, 0))),
    _records_of,
    kinds={**dict.fromkeys(_COUNTS, COUNT), **dict.fromkeys(_FLOATS, FLOAT)},
    texts={
        "blocks": "The number of pairs of blocks, with aggressors off and on.",
        "percent_of_link": "The rate of the aggressors as a share of the slowest shared link.",
        "victim": "The operation that the victims time.",
        "aggressors": "The patterns that the aggressors send at the same time, separated by +.",
        "message_bytes": "The size of a message of the aggressors.",
        "level": "The target rate of the aggressors as a share of what they reach alone; 0: none, the control.",
        "preset": "The name of the published test.",
        "victims": "The number of victim ranks.",
        "aggressor_ranks": "The number of aggressor ranks.",
        "aggressor_nodes": "The number of nodes with aggressor ranks.",
        "split": "How the ranks were divided: the text of --split; missing: by node.",
        "verdict": "The outcome: interference, no interference or inconclusive; missing for n/a.",
        "reason": "The reason why the row is inconclusive.",
        "n_off": "The number of samples with aggressors off.",
        "n_on": "The number of samples with aggressors on.",
        "achieved": "The rate of the aggressors while they sent, as a share of what they reach alone.",
        "rate_bytes_per_s": "The rate of the aggressors of the busiest host.",
        "full_bytes_per_s": "The rate that they reach alone.",
        "shared": "The links that both sides use.",
        **{
            f"{name}_{part}{end and '_'}{end}{unit}": f"{which}{what} of the victims' times{how}."
            for name, what in (("p50", "The median"), ("p99", "The 99th percentile"), ("p99_9", "The 99.9th percentile"))
            for part, how, unit in (
                ("off", " with aggressors off", "_s"),
                ("on", " with aggressors on", "_s"),
                ("factor", ", on divided by off: the geometric mean over the pairs of blocks", ""),
            )
            for end, which in (("", ""), ("low", "The lower end of the interval: "), ("high", "The upper end of the interval: "))
        },
    },
)


def loads(self: Runs) -> pandas.DataFrame:
    """Return a DataFrame with a row per pattern and level of runs of `collbench load`: quantiles, aggressors off and on, and factors.

    Raises UsageError without pandas, and UnreadableRun for damaged records.
    """
    return frame_of(LOADS_TABLE, self, self.strict)


def _load_rows(self: Runs) -> list[LoadRow]:
    """The rows of all runs of `collbench load`, as typed values. Raises UnreadableRun for damaged records."""
    return [row for run in self for row in _rows_of(run, self.strict)]


load_rows = property(_load_rows)
