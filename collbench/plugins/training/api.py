"""`Runs.workloads` of the Python API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from collbench.api.frames import COUNT, FLOAT, OBJECT, RecordTable, check_records, frame_of
from collbench.plugins.training.kind import TRAINING, step_time_of
from collbench.plugins.training.records import StepRow, read_workload
from collbench.plugins.training.text import step_values

if TYPE_CHECKING:
    import pandas

    from collbench.api.runs import Runs
    from collbench.results.reader import Run

_COUNTS = ("parameters", "bucket_bytes", "payload_bytes", "routings", "trace_ranks", "computing_blocks")
_FLOATS = (
    "moved_bytes", "scaling_apart", "scaling_apart_low", "scaling_apart_high", "scaling_overlap", "scaling_overlap_low",
    "scaling_overlap_high", "imbalance_tax", "imbalance_tax_low", "imbalance_tax_high", "computing_percent", "computing_percent_low",
    "computing_percent_high", "computing_efficiency", "computing_efficiency_low", "computing_efficiency_high",
)  # fmt: skip
_OBJECTS = ("options", "parts", "staleness", "routing", "recorded_parts_s")


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
    lambda: ("run", *step_values(StepRow("", "", "", "", 0, 0, "", 0, 0, 0, 0.0), None)),
    _steps_of,
    kinds={**dict.fromkeys(_COUNTS, COUNT), **dict.fromkeys(_FLOATS, FLOAT), **dict.fromkeys(_OBJECTS, OBJECT)},
    texts={
        "time_p50_s": "The median time of a step; of asynchronous training, of a round of a worker.",
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
        "scaling_apart": "The scaling efficiency without overlap of computing and communication.",
        "scaling_overlap": "The scaling efficiency with perfect overlap.",
        **{
            f"scaling_{kind}_{end}": f"The {which} end of the interval of scaling_{kind}."
            for kind in ("apart", "overlap")
            for end, which in (("low", "lower"), ("high", "upper"))
        },
    },
)


def workloads(self: Runs) -> pandas.DataFrame:
    """Return a DataFrame with a row per training and backend of runs of `collbench workload`.

    Raises UsageError without pandas, and for an invalid run.json.
    """
    return frame_of(WORKLOADS_TABLE, self, self.strict)
