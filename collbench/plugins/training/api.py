"""`Runs.workloads` of the Python API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from collbench.api.frames import RecordTable, check_records, frame_of, row_columns
from collbench.columns import RUN_COLUMN, column
from collbench.plugins.training.kind import TRAINING, step_time_of
from collbench.plugins.training.records import read_workload
from collbench.plugins.training.text import step_values

if TYPE_CHECKING:
    import pandas

    from collbench.api.runs import Runs
    from collbench.results.reader import Run


def _steps_of(run: Run, strict: bool) -> Iterator[Sequence[Any]]:
    """Yield a record per training and backend."""
    if not TRAINING.holds(run):
        return
    about, rows, warnings = read_workload(run)
    check_records(warnings, strict)
    step_time_s = step_time_of(about)
    yield from ([run.path.resolve().name, *step_values(row, step_time_s).values()] for row in rows)


WORKLOADS_TABLE = RecordTable(
    "workloads",
    lambda: {
        **RUN_COLUMN,
        "regime": column("The training."),
        "model": column("The model that is trained."),
        **row_columns("backend", "device", "ranks", "nodes", "dtype"),
        "parameters": column("The parameters of the model.", type=int),
        "bucket_bytes": column("The size of a bucket of gradients."),
        "payload_bytes": column("The bytes that the training moves per rank and step."),
        "moved_bytes": column("The bytes of the rank that moves most, per step, by the conventions of busbw.", type=float),
        "options": column("The requested options of the training.", type=object),
        "note": column("A remark about the training."),
        **row_columns("na", "n"),
        "time_p50_s": column("The median time of a step; of asynchronous training, of a round of a worker."),
        **row_columns(
            "time_ci_low_s",
            "time_ci_high_s",
            "time_min_s",
            "time_p95_s",
            "time_p99_s",
            "time_max_s",
            "stopped",
            "busbw_bytes_per_s",
            "ceiling_kind",
            "ceiling_bytes_per_s",
            "ceiling_limited_by",
            "ceiling_model",
            "ceiling_source",
        ),
        "ceiling_time_s": column("The time of the step at the expected bandwidth of its exchanges."),
        **row_columns("percent_of_ceiling"),
        "parts": column("The exchanges of a step.", type=object),
        "parts_time_s": column("The time of all parts alone, one after the other."),
        **row_columns("checked", "wrong", "wrong_detail", "flags"),
        "staleness": column("For asynchronous training: how many updates of others a worker missed.", type=object),
        **row_columns("evidence"),
        "routing": column("For several routings of tokens to experts: the time of each, and its tax.", type=object),
        "step_time_s": column("The computing time of a step."),
        "routings": column("The number of routings that were measured.", type=int),
        "routing_time_p5_s": column("Of routed tokens, the 5th percentile over the routings of the median time of a step."),
        "routing_time_p5_low_s": column(
            "The lower end of its interval: the 5th percentile over the routings of the median time of a step."
        ),
        "routing_time_p5_high_s": column(
            "The upper end of its interval: the 5th percentile over the routings of the median time of a step."
        ),
        "routing_time_p50_s": column("Of routed tokens, the median over the routings of the median time of a step."),
        "routing_time_p50_low_s": column("The lower end of its interval: the median over the routings of the median time of a step."),
        "routing_time_p50_high_s": column("The upper end of its interval: the median over the routings of the median time of a step."),
        "routing_time_p95_s": column("Of routed tokens, the 95th percentile over the routings of the median time of a step."),
        "routing_time_p95_low_s": column(
            "The lower end of its interval: the 95th percentile over the routings of the median time of a step."
        ),
        "routing_time_p95_high_s": column(
            "The upper end of its interval: the 95th percentile over the routings of the median time of a step."
        ),
        "routing_time_max_s": column("Of routed tokens, the maximum over the routings of the median time of a step."),
        "routing_time_max_low_s": column("The lower end of its interval: the maximum over the routings of the median time of a step."),
        "routing_time_max_high_s": column("The upper end of its interval: the maximum over the routings of the median time of a step."),
        "even_time_s": column("The time of a step with as many tokens that are routed evenly."),
        "even_time_low_s": column("The lower end of the interval of even_time_s."),
        "even_time_high_s": column("The upper end of the interval of even_time_s."),
        "imbalance_tax": column("The time of all routings divided by that of even ones with as many tokens.", type=float),
        "imbalance_tax_low": column("The lower end of the interval of imbalance_tax.", type=float),
        "imbalance_tax_high": column("The upper end of the interval of imbalance_tax.", type=float),
        "trace_format": column("For a replay: the format of the trace."),
        "trace_ranks": column("For a replay: the number of ranks of the recorded job.", type=int),
        "trace_missing": column("For a replay: what the trace does not contain."),
        "recorded_step_time_s": column("For a replay: the recorded time of the step."),
        "compute_s": column("For a replay: the computing time of a step, of the rank that computes longest."),
        "exposed_s": column("For a replay: the median time of a step without its computing."),
        "recorded_parts_s": column(
            "For a replay: the recorded time of one exchange of each part, in seconds; null where it was not recorded.", type=object
        ),
        "computing_s": column("With `--compute real`: the time of the computation alone."),
        "computing_exchanges_s": column(
            "With `--compute real`: the time of the exchanges alone, started and waited for as with the computation."
        ),
        "computing_both_s": column("With `--compute real`: the time of a step that computes while it communicates."),
        "computing_outcome": column("With `--compute real`: hidden, partial, exposed or inconclusive."),
        "computing_payer": column("With `--compute real`: what takes the exposed time: computation, waiting or none."),
        "computing_blocks": column("With `--compute real`: the number of blocks of one sample of each state.", type=int),
        "computing_exposed_s": column("With `--compute real`: the time that the exchanges add to the computation."),
        "computing_exposed_low_s": column("The lower end of the 95 % confidence interval of computing_exposed_s."),
        "computing_exposed_high_s": column("The upper end of the 95 % confidence interval of computing_exposed_s."),
        "computing_percent": column("With `--compute real`: the overlap in percent of the exchanges' time, not limited to 0–100."),
        "computing_percent_low": column("The lower end of the 95 % confidence interval of computing_percent.", type=float),
        "computing_percent_high": column("The upper end of the 95 % confidence interval of computing_percent.", type=float),
        "computing_efficiency": column("With `--compute real`: the scaling efficiency, computation alone divided by both.", type=float),
        "computing_efficiency_low": column("The lower end of the 95 % confidence interval of computing_efficiency.", type=float),
        "computing_efficiency_high": column("The upper end of the 95 % confidence interval of computing_efficiency.", type=float),
        "scaling_apart": column("The scaling efficiency without overlap of computing and communication.", type=float),
        "scaling_apart_low": column("The lower end of the interval of scaling_apart.", type=float),
        "scaling_apart_high": column("The upper end of the interval of scaling_apart.", type=float),
        "scaling_overlap": column("The scaling efficiency with perfect overlap.", type=float),
        "scaling_overlap_low": column("The lower end of the interval of scaling_overlap.", type=float),
        "scaling_overlap_high": column("The upper end of the interval of scaling_overlap.", type=float),
    },
    _steps_of,
)


def workloads(self: Runs) -> pandas.DataFrame:
    """Return a DataFrame with a row per training and backend of runs of `collbench workload`.

    Raises UsageError without pandas, and for an invalid run.json.
    """
    return frame_of(WORKLOADS_TABLE, self, self.strict)
