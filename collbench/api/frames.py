"""Runs as DataFrames, and as tables of Arrow: one definition of each column's kind, unit and description.

pandas and pyarrow are the extra `pandas`; they are imported when a table is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.analysis.launches import Launches
from collbench.errors import UnreadableRun, UsageError
from collbench.plugins.hunt.pairs_text import PAIR_COLUMNS, pair_records
from collbench.plugins.hunt.records import holds_hunt, read_hunt, read_pairs
from collbench.plugins.hunt.text import HUNT_COLUMNS, hunt_records
from collbench.plugins.kv.records import KvRow, holds_kv, read_kv
from collbench.plugins.kv.text import kv_values
from collbench.plugins.kv.text import sorted_rows as transfers_in_order
from collbench.plugins.load.records import SHARES, LoadRow, holds_load, read_load
from collbench.plugins.load.text import load_values
from collbench.plugins.load.text import sorted_rows as loads_in_order
from collbench.plugins.training.kind import step_time_of
from collbench.plugins.training.records import StepRow, holds_workload, read_workload
from collbench.plugins.training.text import step_values
from collbench.report.explain import word_table
from collbench.report.plan import in_print_order
from collbench.report.writers import csv_columns, row_values
from collbench.results.reader import Damage, Run
from collbench.results.store import to_line

if TYPE_CHECKING:
    import pandas
    import pyarrow


# Columns: the kind of the values, and their descriptions in `attrs["columns"]`.


@dataclass(frozen=True)
class ValueKind:
    """A kind of values.

    pandas  the type of a column of a DataFrame
    arrow   the name of the function of pyarrow that makes its type
    types   the types of its values; a stored value of another one is unknown
    """

    pandas: str
    arrow: str
    types: tuple[type, ...]


TEXT = ValueKind("string", "string", (str,))
COUNT = ValueKind("Int64", "int64", (int,))
FLAG = ValueKind("boolean", "bool_", (bool,))
FLOAT = ValueKind("float64", "float64", (int, float))
TIME = ValueKind("datetime64[us, UTC]", "timestamp", (str,))
OBJECT = ValueKind("object", "string", (object,))
# Seconds, and bytes per second, are FLOAT by the ends of their names; all others are TEXT.
_KINDS = {
    COUNT: (
        "root", "size_bytes", "count", "ranks", "nodes", "window", "streams", "n", "launches", "checked", "wrong", "groups_count",
        "overlap_blocks",
        "groups_ranks", "row", "sample", "slowest_rank", "latency_size_bytes", "parameters", "bucket_bytes", "payload_bytes",
        "routings", "trace_ranks", "computing_blocks", "message_bytes", "victims", "aggressor_ranks", "aggressor_nodes", "blocks", "n_off",
        "n_on", "tokens", "block_tokens", "sources", "targets", "block_bytes", "busiest",
    ),
    FLAG: ("in_place", "reached", "ceiling_disturbed"),
    FLOAT: (
        "overlap_percent", "overlap_percent_low", "overlap_percent_high", "overlap_slowdown", "overlap_slowdown_low",
        "overlap_slowdown_high", "overlap_assisted_percent",
        "target", "n_eff", "message_rate", "percent_of_ceiling", "percent_of_hard_bound", "percent_of_expected_time",
        "percent_of_expected_time_low", "percent_of_expected_time_high", "ratio", "ratio_low", "ratio_high", "moved_bytes",
        "scaling_apart", "scaling_apart_low", "scaling_apart_high", "scaling_overlap", "scaling_overlap_low", "scaling_overlap_high",
        "imbalance_tax", "imbalance_tax_low", "imbalance_tax_high", "computing_percent", "computing_percent_low", "computing_percent_high",
        "computing_efficiency", "computing_efficiency_low", "computing_efficiency_high", "level", "achieved", "percent_of_link",
        *(f"{name}_factor{end}" for name in SHARES for end in ("", "_low", "_high")), "first_token_percent", "s_per_block",
    ),
    OBJECT: (
        "modes", "flags", "evidence", "slowest_ranks", "groups_p50_s", "groups_busbw_bytes_per_s", "options", "parts", "staleness",
        "routing", "recorded_parts_s",
    ),
}  # fmt: skip
_OF_RUN = {
    "path": "The run folder.",
    "started_utc": "When the run began.",
    "allocation": "The name of the allocation: launches with the same name repeat one another.",
    "collbench": "The version that measured.",
}
# Descriptions of columns for which `collbench explain` has a page together with other columns, or none.
_TEXTS = {
    "target": "The half-width of the confidence interval that was aimed at, as a share of the median.",
    "reached": "Whether the interval became as narrow as that.",
    "stopped": "Why the sampling stopped: precision, out_of_reach, max_time, most_samples or iterations.",
    "n": "The number of samples.",
    "n_eff": "How many independent samples they are worth.",
    "time_p50_s": "The median time per message of the slowest rank; of an imported row the statistic of its tool.",
    "time_ci_low_s": "The lower end of the 95 % confidence interval of the median.",
    "time_ci_high_s": "The upper end of the 95 % confidence interval of the median.",
    "time_min_s": "The shortest sample.",
    "time_p95_s": "The 95th percentile of the samples.",
    "time_p99_s": "The 99th percentile of the samples.",
    "time_max_s": "The longest sample.",
    "time_rank_mean_s": "The mean over all ranks and samples.",
    "message_rate": "Of multipair: messages per second of all pairs together.",
    "groups_count": "The number of groups that ran at the same time.",
    "groups_ranks": "The number of ranks of each of these groups.",
    "groups_p50_s": "The median time of each group.",
    "groups_busbw_bytes_per_s": "The bus bandwidth of each group.",
    "groups_total_busbw_bytes_per_s": "The bus bandwidth of all groups together, until the last one is done.",
    "overlap_communication_s": "The time of the communication alone (`--overlap`).",
    "overlap_computation_s": "The time of the computation alone.",
    "overlap_percent": "100 · (1 − (both − computation) / communication), not limited to 0–100.",
    "overlap_percent_low": "The lower end of the 95 % confidence interval of `overlap_percent`.",
    "overlap_percent_high": "The upper end of the 95 % confidence interval of `overlap_percent`.",
    "overlap_exposed_s": "The time that the communication adds to the computation.",
    "overlap_exposed_low_s": "The lower end of the 95 % confidence interval of `overlap_exposed_s`.",
    "overlap_exposed_high_s": "The upper end of the 95 % confidence interval of `overlap_exposed_s`.",
    "overlap_slowdown": "The time of the computation during the communication, divided by its time alone.",
    "overlap_slowdown_low": "The lower end of the 95 % confidence interval of `overlap_slowdown`.",
    "overlap_slowdown_high": "The upper end of the 95 % confidence interval of `overlap_slowdown`.",
    "overlap_assisted_percent": "The overlap with test calls between slices of the computation.",
    "overlap_payer": "What takes the exposed time: computation, waiting or none.",
    "overlap_progress": "What moves data while a rank computes: threads or calls of the library.",
    "overlap_blocks": "The number of blocks of one sample of each state.",
    "overlap_outcome": "hidden, partial, exposed or inconclusive.",
    "ceiling_kind": "The kind of expected bandwidth: measured, network, topology, given, simulated or none.",
    "ceiling_bytes_per_s": "The expected bus bandwidth: what a healthy system approaches.",
    "ceiling_limited_by": "The link or resource that sets the expected bandwidth; without a rate, the reason.",
    "ceiling_model": "The algorithm of the expected bandwidth: ring, tree, nvls, nvls_tree or direct; or bound.",
    "ceiling_source": "The origin of its rate.",
    "ceiling_low_bytes_per_s": "The lower end of the interval of a measured reference.",
    "ceiling_high_bytes_per_s": "The upper end of the interval of a measured reference.",
    "ceiling_disturbed": "Whether the repetitions of a measured reference did not agree; the row then lacks a percentage.",
    "ceiling_efficiency": "The share of the links' rate that the algorithm reaches by the library's constants.",
    "ceiling_constants": "The origin of this share.",
    "hard_bound_kind": "The kind of hard limit.",
    "hard_bound_bytes_per_s": "The hard limit: the bus bandwidth that no algorithm can exceed on these links.",
    "hard_bound_limited_by": "The link or resource that sets the hard limit.",
    "hard_bound_model": "How the hard limit was computed.",
    "hard_bound_source": "The origin of the rate of the hard limit.",
    "percent_of_ceiling": "The measured bus bandwidth as a share of the expected one.",
    "percent_of_hard_bound": "The measured bus bandwidth as a share of the hard limit.",
    "expected_time_s": "The time that a model expects of the row's size.",
    "percent_of_expected_time": "The expected time as a share of the measured one: below 100 the row is slower.",
    "percent_of_expected_time_low": "The lower end of its interval, from the interval of the measured time.",
    "percent_of_expected_time_high": "The upper end of its interval.",
    "expected_time_origin": "The model of the expected time; or why there is none.",
    "checked": "The number of iterations of which the data was verified.",
    "wrong": "The number of wrong elements in these iterations; missing if none was verified.",
    "wrong_detail": "The first wrong element, with the expected and the received value.",
    "canary_before_s": "The time of the state probe, which is fixed work, before the case.",
    "canary_after_s": "The time of the state probe after the case.",
    "row": "The index of the case in the rows of its run.",
    "sample": "The number of the sample, from 0, in the order in which they were taken.",
    "time_s": "The time per message of the slowest rank.",
    "mean_s": "The mean over the ranks of the time per message.",
    "slowest_rank": "The rank that took longest.",
    "sender": "The place (rank or node) that sends.",
    "receiver": "The place (rank or node) that receives.",
    "bandwidth_bytes_per_s": "The bandwidth of messages from the sender to the receiver, the median.",
    "bandwidth_low_bytes_per_s": "The lower end of the 95 % interval of the bandwidth.",
    "bandwidth_high_bytes_per_s": "The upper end of the 95 % interval of the bandwidth.",
    "latency_size_bytes": "The size of the messages of the latency.",
    "latency_s": "Half of the round trip, the median.",
    "result": "The result of the hunt: `confirmed`, `nobody` (no slow endpoint or path) or `no verdict`; missing if it stopped early.",
    "state": "The state of the suspect: confirmed, cleared or inconclusive.",
    "code": "The code of the finding; `collbench explain CODE` explains it.",
    "kind": "What is slow.",
    "places": "The suspects: ranks or nodes.",
    "ratio": "The speed of the suspect as a share of that of the others.",
    "ratio_low": "The lower end of the interval of the ratio.",
    "ratio_high": "The upper end of the interval of the ratio.",
    "partners": "The partners with which the suspect was measured.",
    "part": "The interface or part that is slow.",
    "regime": "The training.",
    "model": "The model that is trained.",
    "parameters": "The parameters of the model.",
    "bucket_bytes": "The size of a bucket of gradients.",
    "payload_bytes": "The bytes that the training moves per rank and step.",
    "moved_bytes": "The bytes of the rank that moves most, per step, by the conventions of busbw.",
    "options": "The requested options of the training.",
    "note": "A remark about the training.",
    "ceiling_time_s": "The time of the step at the expected bandwidth of its exchanges.",
    "parts": "The exchanges of a step.",
    "parts_time_s": "The time of all parts alone, one after the other.",
    "trace_format": "For a replay: the format of the trace.",
    "trace_ranks": "For a replay: the number of ranks of the recorded job.",
    "trace_missing": "For a replay: what the trace does not contain.",
    "recorded_step_time_s": "For a replay: the recorded time of the step.",
    "compute_s": "For a replay: the computing time of a step, of the rank that computes longest.",
    "exposed_s": "For a replay: the median time of a step without its computing.",
    "recorded_parts_s": "For a replay: the recorded time of one exchange of each part, in seconds; null where it was not recorded.",
    "staleness": "For asynchronous training: how many updates of others a worker missed.",
    "routing": "For several routings of tokens to experts: the time of each, and its tax.",
    "routings": "The number of routings that were measured.",
    **{
        f"routing_time_{name}{end}_s": f"{which}the {what} over the routings of the median time of a step."
        for name, what in (("p5", "5th percentile"), ("p50", "median"), ("p95", "95th percentile"), ("max", "maximum"))
        for end, which in (
            ("", "Of routed tokens, "),
            ("_low", "The lower end of its interval: "),
            ("_high", "The upper end of its interval: "),
        )
    },
    "even_time_s": "The time of a step with as many tokens that are routed evenly.",
    "even_time_low_s": "The lower end of the interval of even_time_s.",
    "even_time_high_s": "The upper end of the interval of even_time_s.",
    "imbalance_tax": "The time of all routings divided by that of even ones with as many tokens.",
    "imbalance_tax_low": "The lower end of the interval of imbalance_tax.",
    "imbalance_tax_high": "The upper end of the interval of imbalance_tax.",
    "step_time_s": "The computing time of a step.",
    "computing_s": "With `--compute real`: the time of the computation alone.",
    "computing_exchanges_s": "With `--compute real`: the time of the exchanges alone, started and waited for as with the computation.",
    "computing_both_s": "With `--compute real`: the time of a step that computes while it communicates.",
    "computing_outcome": "With `--compute real`: hidden, partial, exposed or inconclusive.",
    "computing_payer": "With `--compute real`: what takes the exposed time: computation, waiting or none.",
    "computing_blocks": "With `--compute real`: the number of blocks of one sample of each state.",
    "computing_exposed_s": "With `--compute real`: the time that the exchanges add to the computation.",
    "computing_percent": "With `--compute real`: the overlap in percent of the exchanges' time, not limited to 0–100.",
    "computing_efficiency": "With `--compute real`: the scaling efficiency, computation alone divided by both.",
    **{
        f"computing_{name}_{end}{unit}": f"The {which} end of the 95 % confidence interval of computing_{name}{unit}."
        for name, unit in (("exposed", "_s"), ("percent", ""), ("efficiency", ""))
        for end, which in (("low", "lower"), ("high", "upper"))
    },
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
    "scaling_apart": "The scaling efficiency without overlap of computing and communication.",
    "scaling_overlap": "The scaling efficiency with perfect overlap.",
    **{
        f"scaling_{kind}_{end}": f"The {which} end of the interval of scaling_{kind}."
        for kind in ("apart", "overlap")
        for end, which in (("low", "lower"), ("high", "upper"))
    },
}
# What differs in a table: kinds and descriptions, by (table, column).
_OTHER_KINDS = {("hunts", "evidence"): TEXT}
_OTHER_TEXTS = {
    ("pairs", "size_bytes"): "The size of the messages of the bandwidth.",
    ("pairs", "wrong"): "The number of wrong elements of the pair, in both directions; missing if nothing was verified.",
    ("hunts", "evidence"): "The evidence, as sentences.",
    ("kv", "blocks"): "The blocks of all ranks.",
    ("kv", "percent_of_link"): "The rate of the transfer as a share of that of the limiting link.",
    ("loads", "blocks"): "The number of pairs of blocks, with aggressors off and on.",
    ("loads", "percent_of_link"): "The rate of the aggressors as a share of the slowest shared link.",
    ("kv", "model"): "The model of the cache.",
    ("kv", "size_bytes"): "The size of all blocks together.",
    ("kv", "time_s"): "The median time until the last target has all blocks.",
    ("kv", "checked"): "The number of transfers of which every byte was verified.",
    ("kv", "wrong"): "The number of wrong bytes in these transfers; missing if none was verified.",
    ("kv", "limited_by"): "The limiting link, with the source of its rate.",
    ("workloads", "time_p50_s"): "The median time of a step; of asynchronous training, of a round of a worker.",
}
_UNITS = (("_bytes_per_s", "bytes per second"), ("_bytes", "bytes"), ("_s", "seconds"), ("_utc", "UTC"))


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: the kind of its values, and what it means, with the unit."""

    kind: ValueKind
    description: str


@cache
def columns_of() -> Mapping[str, Mapping[str, TableColumn]]:
    """Return the columns of each table, by the name of the method of `Runs` that makes it."""
    step = StepRow("", "", "", "", 0, 0, "", 0, 0, 0, 0.0)
    transfer = KvRow("", "", "", "", 0, 0, 0, 0, 0, 0)
    names = {
        "frame": ("run", *_OF_RUN, *csv_columns()[1:]),
        "samples": ("run", "row", "operation", "backend", "size_bytes", "ranks", "sample", "time_s", "mean_s", "slowest_rank"),
        "pairs": PAIR_COLUMNS,
        "hunts": ("run", "result", *HUNT_COLUMNS[1:]),
        "workloads": ("run", *step_values(step, None)),
        "loads": ("run", *load_values(LoadRow("", "", "", 0, "", 0, 0.0, 0))),
        "kv": ("run", *kv_values(transfer)),
    }
    return {table: {name: TableColumn(_kind(table, name), _description(table, name)) for name in each} for table, each in names.items()}


def _kind(table: str, name: str) -> ValueKind:
    found = _OTHER_KINDS.get((table, name)) or next((kind for kind, names in _KINDS.items() if name in names), None)
    return found or (TIME if name.endswith("_utc") else FLOAT if name.endswith("_s") else TEXT)


def _description(table: str, name: str) -> str:
    text = _OTHER_TEXTS.get((table, name)) or (_OF_RUN | _TEXTS).get(name) or _words().get(name, "")
    unit = "percent" if name.startswith("percent") else next((unit for end, unit in _UNITS if name.endswith(end)), "")
    return f"{text} Unit: {unit}." if unit else text


@cache
def _words() -> Mapping[str, str]:
    """Return the first sentence of `collbench explain`, by column and by field of CSV."""
    found: dict[str, str] = {}
    for page in word_table():
        if page.group == "column":
            first, dot, _ = " ".join(page.means.split()).partition(". ")
            found |= dict.fromkeys((page.word, *page.names), first + dot.strip())
    return found


# DataFrames.


def _frame(table: str, records: Iterable[Sequence[Any]]) -> pandas.DataFrame:
    """Return the DataFrame of records with a value for each column of the table. Raises UsageError without pandas."""
    try:
        import pandas
    except ImportError as error:
        raise UsageError("a DataFrame needs pandas: pip install 'collbench[pandas]'") from error
    columns = columns_of()[table]
    values = list(zip(*records, strict=True)) or [()] * len(columns)
    frame = pandas.DataFrame({name: _series(pandas, each.kind, own) for (name, each), own in zip(columns.items(), values, strict=True)})
    frame.attrs["columns"] = {name: each.description for name, each in columns.items()}
    return frame


def _series(pandas: Any, kind: ValueKind, values: Sequence[Any]) -> Any:
    """Return a column of a DataFrame; a value of another type, which an altered run may have, is unknown."""
    known = [value if _fits(value, kind) else None for value in values]
    if kind is TIME:
        return pandas.Series(pandas.to_datetime(known, utc=True, errors="coerce", format="ISO8601")).astype(kind.pandas)
    return pandas.Series([_encodable(value) for value in known] if kind is TEXT else known, dtype=kind.pandas)


def _fits(value: Any, kind: ValueKind) -> bool:
    return isinstance(value, kind.types) and (kind in (FLAG, OBJECT) or not isinstance(value, bool))


def _encodable(text: str | None) -> str | None:
    """Return the text with "?" for each half of a surrogate pair, which UTF-8 does not have."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def of_rows(tables: Sequence[Launches], columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """Return a row per row of the tables, ordered as the report prints them; `columns`: names to select, None: all.

    Raises UsageError for an unknown name.
    """
    names = [_known(name) for name in ([columns] if isinstance(columns, str) else columns or ())]
    records = (
        [*of_run, *(value for _, value in row_values(row))] for table, of_run in _heads(tables) for row in in_print_order(table.rows)
    )
    frame = _frame("frame", records)
    if columns is None:
        return frame
    selected = frame[names]
    selected.attrs["columns"] = {name: frame.attrs["columns"][name] for name in names}
    return selected


def _heads(tables: Sequence[Launches]) -> Iterator[tuple[Launches, list[Any]]]:
    for table in tables:
        first = table.runs[0]
        facts = [_text(first.info.get(name)) for name in ("started_utc", "allocation_id", "collbench")]
        yield table, [table.name, str(first.path), *facts]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _known(name: str) -> str:
    names = list(columns_of()["frame"])
    if name in names:
        return name
    near = get_close_matches(str(name), names, 3) or [each for each in names if str(name) in each][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(names)}"
    raise UsageError(f"unknown column {name!r:.60}: {hint}")


def of_samples(runs: Iterable[Run]) -> pandas.DataFrame:
    """Return a row per stored sample."""
    return _frame("samples", (record for run in runs for record in _samples_of(run)))


def _samples_of(run: Run) -> Iterator[Sequence[Any]]:
    name = run.path.resolve().name
    index_of = {id(row): index for index, row in enumerate(run.rows)}
    for row in in_print_order(run.rows):
        if "max_s" not in row.samples:
            continue
        times = run.array(row, "max_s").ravel().tolist()
        means, ranks = (
            run.array(row, each).ravel().tolist() if each in row.samples else [None] * len(times) for each in ("mean_s", "slowest_rank")
        )
        if not len(times) == len(means) == len(ranks):
            raise UsageError(f"{run.path}: the samples of {row.operation} have different lengths: the run was altered")
        about = (name, index_of[id(row)], row.operation, row.backend, row.size_bytes, row.ranks)
        yield from ((*about, number, *each) for number, each in enumerate(zip(times, means, ranks, strict=True)))


def of_pairs(runs: Iterable[Run], strict: bool) -> pandas.DataFrame:
    """Return a row per directed pair with a figure. Raises UnreadableRun for damaged records, unless not `strict`; so do the others."""
    return _frame("pairs", (record for run in runs for record in _pairs_of(run, strict)))


def _pairs_of(run: Run, strict: bool) -> Iterator[Sequence[Any]]:
    stored = read_pairs(run)
    if stored is not None:
        check_records(stored.warnings, strict)
        yield from pair_records(stored.matrix(), run.path.resolve().name)


def of_hunts(runs: Iterable[Run], strict: bool) -> pandas.DataFrame:
    """Return a row per suspect, and a row for a hunt without suspects."""
    return _frame("hunts", (record for run in runs if holds_hunt(run) for record in _suspects_of(run, strict)))


def _suspects_of(run: Run, strict: bool) -> Iterator[Sequence[Any]]:
    stored = read_hunt(run)
    check_records(stored.warnings, strict)
    name, about = run.path.resolve().name, stored.about
    suspects = list(hunt_records(about, name)) or [[name, *[None] * (len(HUNT_COLUMNS) - 1)]]
    result = (about.get("verdict") or {}).get("result")
    return ([name, result, *rest] for _, *rest in suspects)


def of_workloads(runs: Iterable[Run], strict: bool) -> pandas.DataFrame:
    """Return a row per training and backend."""
    return _frame("workloads", (record for run in runs if holds_workload(run) for record in _steps_of(run, strict)))


def _steps_of(run: Run, strict: bool) -> Iterator[Sequence[Any]]:
    about, rows, warnings = read_workload(run)
    check_records(warnings, strict)
    step_time_s = step_time_of(about)
    return ([run.path.resolve().name, *step_values(row, step_time_s).values()] for row in rows)


def of_loads(runs: Iterable[Run], strict: bool) -> pandas.DataFrame:
    """Return a row per pattern and level of the aggressors."""
    return _frame("loads", ([name, *(load_values(row) | {"flags": row.flags}).values()] for name, row in load_rows(runs, strict)))


def load_rows(runs: Iterable[Run], strict: bool) -> Iterator[tuple[str, LoadRow]]:
    """Yield the rows of interference with the name of their run. Raises UnreadableRun for damaged records, unless not `strict`."""
    for run in filter(holds_load, runs):
        _, rows, warnings = read_load(run)
        check_records(warnings, strict)
        yield from ((run.path.resolve().name, row) for row in loads_in_order(rows))


def of_kv(runs: Iterable[Run], strict: bool) -> pandas.DataFrame:
    """Return a row per method and blocks."""
    return _frame("kv", ([name, *(kv_values(row) | {"flags": row.flags}).values()] for name, row in kv_rows(runs, strict)))


def kv_rows(runs: Iterable[Run], strict: bool) -> Iterator[tuple[str, KvRow]]:
    """Yield the rows of block transfers with the name of their run. Raises UnreadableRun for damaged records, unless not `strict`."""
    for run in filter(holds_kv, runs):
        _, rows, warnings = read_kv(run)
        check_records(warnings, strict)
        yield from ((run.path.resolve().name, row) for row in transfers_in_order(rows))


def check_records(warnings: Sequence[str], strict: bool = True) -> None:
    """Raise UnreadableRun, if `strict`, where records of a run cannot be read."""
    if strict and any(isinstance(each, Damage) for each in warnings):
        raise UnreadableRun(f"{'; '.join(warnings)}; use `collbench.read(…, strict=False)` for what can be read")


# Tables of Arrow, and Parquet files.


def to_arrow(frame: pandas.DataFrame) -> pyarrow.Table:
    """Return the DataFrame as a table of Arrow, with types that do not depend on its values. Raises UsageError without pyarrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise UsageError("an Arrow table or a Parquet file needs pyarrow: pip install 'collbench[pandas]'") from error
    fields, arrays = [], []
    for name in frame.columns:
        column = columns_of()["frame"][name]
        kind = column.kind
        made = pyarrow.timestamp("us", "UTC") if kind is TIME else getattr(pyarrow, kind.arrow)()
        values = frame[name].map(_json, na_action=None) if kind is OBJECT else frame[name]
        fields.append(pyarrow.field(name, made, metadata={"description": column.description}))
        arrays.append(pyarrow.array(values, type=made, from_pandas=True))
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))


def _json(value: Any) -> str | None:
    """Return a nested value as JSON; None for an empty one, as in CSV."""
    return to_line({"": value}).removeprefix('{"":').removesuffix("}") if value else None


def write_parquet(table: pyarrow.Table, path: Path) -> Path:
    """Write the table in one step; return the path. Raises UsageError if that fails."""
    from pyarrow import parquet

    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        parquet.write_table(table, draft, compression="zstd")
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror or error}): choose another file") from error
    finally:
        draft.unlink(missing_ok=True)
    return path
