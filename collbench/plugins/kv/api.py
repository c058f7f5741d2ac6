"""`Runs.kv` and `Runs.kv_rows` of the Python API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from collbench.api.frames import COUNT, FLOAT, RecordTable, check_records, frame_of
from collbench.plugins.kv.kind import KV
from collbench.plugins.kv.records import KvRow, read_kv
from collbench.plugins.kv.text import kv_values, sorted_rows

if TYPE_CHECKING:
    import pandas

    from collbench.api.runs import Runs
    from collbench.results.reader import Run

_COUNTS = ("tokens", "block_tokens", "sources", "targets", "blocks", "block_bytes", "busiest")
_FLOATS = ("s_per_block", "percent_of_link", "first_token_percent")


def _rows_of(run: Run, strict: bool) -> list[KvRow]:
    """Return the rows of a run. Raises UnreadableRun for damaged records, unless not `strict`."""
    if not KV.holds(run):
        return []
    _, rows, warnings = read_kv(run)
    check_records(warnings, strict)
    return sorted_rows(rows)


def _records_of(run: Run, strict: bool) -> Iterator[Sequence[Any]]:
    """Yield a record per method and blocks."""
    name = run.path.resolve().name
    yield from ([name, *(kv_values(row) | {"flags": row.flags}).values()] for row in _rows_of(run, strict))


KV_TABLE = RecordTable(
    "kv",
    lambda: ("run", *kv_values(KvRow("", "", "", "", 0, 0, 0, 0, 0, 0))),
    _records_of,
    kinds={**dict.fromkeys(_COUNTS, COUNT), **dict.fromkeys(_FLOATS, FLOAT)},
    texts={
        "blocks": "The blocks of all ranks.",
        "percent_of_link": "The rate of the transfer as a share of that of the limiting link.",
        "model": "The model of the cache.",
        "size_bytes": "The size of all blocks together.",
        "time_s": "The median time until the last target has all blocks.",
        "checked": "The number of transfers of which every byte was verified.",
        "wrong": "The number of wrong bytes in these transfers; missing if none was verified.",
        "limited_by": "The limiting link, with the source of its rate.",
        "method": "How the blocks were moved.",
        "pattern": "prefill-decode or broadcast.",
        "layout": "The memory of the cache: layer-first or block-first; plain without a model.",
        "tokens": "The tokens of the request; 0 without a model.",
        "block_tokens": "The tokens of a block of the cache; 0 without a model.",
        "cache_dtype": "The type of the elements of the cache.",
        "sources": "The ranks that send.",
        "targets": "The ranks that receive.",
        "block_bytes": "The size of a block.",
        "busiest": "The blocks of the rank that sends or receives most.",
        "time_low_s": "The lower end of the 95 % confidence interval of the median of a transfer.",
        "time_high_s": "The upper end of the 95 % confidence interval of the median of a transfer.",
        "bytes_per_s": "The bytes of all blocks divided by the median time.",
        "s_per_block": "The median time divided by `busiest`. Unit: seconds.",
        "expected_s": "The time that the limiting link needs for its bytes; missing inside one host.",
        "copy_s": "Of `packed`: the time of packing and unpacking alone.",
        "first_token_percent": "The transfer as a percentage of `--prefill-time` and the transfer, one after the other.",
        "start_skew_s": "The median time between the first and the last rank of a host to begin a sample; missing with one rank per host.",
    },
)


def kv(self: Runs) -> pandas.DataFrame:
    """Return a DataFrame with a row per method and blocks of runs of `collbench kv`.

    Raises UsageError without pandas, and UnreadableRun for damaged records.
    """
    return frame_of(KV_TABLE, self, self.strict)


def _kv_rows(self: Runs) -> list[KvRow]:
    """The rows of all runs of `collbench kv`, as typed values. Raises UnreadableRun for damaged records."""
    return [row for run in self for row in _rows_of(run, self.strict)]


kv_rows = property(_kv_rows)
