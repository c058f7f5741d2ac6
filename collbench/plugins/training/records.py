"""Results of `collbench workload`: a line per training and backend in workload.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Meta, field

from collbench.columns import column, declared, figure
from collbench.machine.peak.ceiling import Ceiling
from collbench.plugins.overlap.records import StepOverlap
from collbench.plugins.traces.recording import RankTimeline, Recording
from collbench.reason import as_json
from collbench.records import Record, stored_field
from collbench.results.estimate import Estimate
from collbench.results.reader import decode_record, with_limits
from collbench.results.row import CEILING_COLUMNS, RateComparison, Times, compared_rates

_Number = Annotated[float, Meta(ge=0)] | None


class PartRow(Record, frozen=True, kw_only=True):
    """The exchanges of a step that differ only in `what`.

    what, ends   the name of the first exchange, and of the last one if they differ; rows of earlier versions have both in `what` only
    operation, groups, group_ranks, size_bytes   what they are, the number of groups, and the ranks of each
    times        how often a step has it; moved_bytes: of a rank, all times
    time_s       of one, alone; None: not measured. busbw_bytes_per_s: moved_bytes of one by that
    """

    what: str
    ends: tuple[str, str] = ("", "")
    operation: str
    groups: int
    group_ranks: int
    size_bytes: int
    times: int
    moved_bytes: float | None
    time_s: Times | None
    busbw_bytes_per_s: float | None
    ceiling: Ceiling | None
    percent_of_ceiling: float | None = None

    @property
    def comparison(self) -> RateComparison | None:
        """The bus bandwidth against the expected one; None if there is none, or no percentage applies."""
        return compared_rates(self.percent_of_ceiling, self.busbw_bytes_per_s, self.ceiling)

    @property
    def names(self) -> tuple[str, str]:
        """The names of the first and the last exchange."""
        if any(self.ends):
            return self.ends
        first, _, last = self.what.partition(" … ")
        return first, last or first

    def as_json(self) -> dict[str, Any]:
        """Return the part as values for JSON, without `ends` if an earlier version stored it."""
        values = super().as_json()
        if not any(self.ends):
            del values["ends"]
        return values


class WorkerPace(Record, frozen=True, kw_only=True):
    """A worker of asynchronous training: its rounds, and quantiles of its staleness."""

    rank: int
    steps: int | None = None
    steps_per_s: _Number = None
    p50: _Number = None
    p95: _Number = None
    max: _Number = None


class ServerUpdates(Record, frozen=True, kw_only=True):
    """A server of asynchronous training: the number of updates that it applied."""

    rank: int
    updates: int


class Staleness(Record, frozen=True, kw_only=True):
    """How many updates of other workers a server had applied between a worker's pull and its next update.

    p50, p95, max   of all workers; steps_per_s: their rounds per second together; duration_s: of the longest
    """

    p50: _Number = None
    p95: _Number = None
    max: _Number = None
    workers: tuple[WorkerPace, ...] = ()
    servers: tuple[ServerUpdates, ...] = ()
    steps_per_s: _Number = None
    duration_s: _Number = None


class TimeQuantiles(msgspec.Struct, frozen=True):
    """Quantiles over the routings. The intervals cover all of them at the same time with 95 %."""

    p5: Annotated[Estimate, column("Of routed tokens, the 5th percentile over the routings of the median time of a step.")]
    p50: Annotated[Estimate, column("Of routed tokens, the median over the routings of the median time of a step.")]
    p95: Annotated[Estimate, column("Of routed tokens, the 95th percentile over the routings of the median time of a step.")]
    max: Annotated[Estimate, column("Of routed tokens, the maximum over the routings of the median time of a step.")]


class RoutedStep(msgspec.Struct, frozen=True):
    """One routing.

    step            its number in the file, or of the generator
    time_s          the median of a step, with its interval
    tax             its time divided by that of a step with as many tokens that are routed evenly
    imbalance       load of the busiest rank of each layer, over all layers, as a multiple of the average
    busiest_rank, busiest_share   the rank with the experts that get most tokens, and its share of all tokens
    moved_bytes     of the rank that moves most, as in a row; busbw_bytes_per_s: that by the median time
    expected_bytes_per_s, percent_of_expected   at the ceilings of its exchanges; None where these are unknown or do not apply
    """

    step: Annotated[int, Meta(ge=0)]
    time_s: Estimate
    tax: Estimate
    imbalance: _Number
    busiest_rank: Annotated[int, Meta(ge=0)]
    busiest_share: _Number
    moved_bytes: _Number
    busbw_bytes_per_s: _Number = None
    expected_bytes_per_s: _Number = None
    percent_of_expected: _Number = None


class WayBytes(msgspec.Struct, frozen=True):
    """Dispatch or combine: the data type on the wire, and the mean bytes of all copies of tokens in a step, also of those that stay."""

    dtype: str
    bytes: _Number


class RoutingResult(msgspec.Struct, frozen=True):
    """The result over several routings.

    name            their source and a hash of the token counts: "zipf:1.2, seed 0:1f2e3d4c"
    experts, layers   of the model
    rounds          how often each routing was measured; in each round all routings, and even ones, in a fixed random order
    time_s          of a step, over the routings; even_time_s: of a step with as many tokens that are routed evenly, the mean over routings
    tax             the time of all routings divided by that of even ones with as many tokens, in the same round
    steps           by routing
    """

    name: str
    experts: int
    layers: int
    rounds: int
    time_s: Annotated[TimeQuantiles, column("", key="routing_time_s")]
    even_time_s: Annotated[Estimate, column("The time of a step with as many tokens that are routed evenly.")]
    tax: Annotated[
        Estimate, column("The time of all routings divided by that of even ones with as many tokens.", key="imbalance_tax", type=float)
    ]
    dispatch: WayBytes
    combine: WayBytes
    steps: tuple[RoutedStep, ...]


class ReplayedTrace(msgspec.Struct, frozen=True):
    """What a replayed step was made from, and the recorded times to compare with.

    form           the format of the trace: "flight-recorder", "chakra" …
    ranks          of the recorded job; absent: those without a trace
    missing        what the trace does not contain, by `traces.model.Part`
    compute        factor of the recorded computing; None: the replay does not compute
    compute_s      the computing time of a step, of the rank that computes longest
    step_time_s    recorded time of the step; None: not recorded, or of another number of ranks
    parts_time_s   recorded time of one exchange of each part (mean over them), None where it was not recorded
    notes          what was assumed, left out and chosen, as facts of `traces.recording`
    timelines      what the first ranks with times did in the recorded step
    """

    form: str
    ranks: int
    absent: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()
    compute: float | None = None
    compute_s: float = 0.0
    step_time_s: float | None = None
    parts_time_s: tuple[float | None, ...] = ()
    notes: tuple[dict[str, Any], ...] = ()
    timelines: tuple[RankTimeline, ...] = ()

    @classmethod
    def of(cls, recording: Recording, parts_time_s: tuple[float | None, ...] = ()) -> ReplayedTrace:
        """Return what is known of the trace of a replay."""
        return cls(
            recording.form, recording.recorded_ranks, recording.absent, recording.missing, recording.compute, recording.compute_s,
            recording.step_time_s, parts_time_s, tuple(map(as_json, recording.notes)), recording.timelines,
        )  # fmt: skip


# Scaling efficiency of a training step, from the times of computing and exchanging.
#
# A step computes for t seconds and exchanges for c. It takes t + c without overlap and max(t, c) with full overlap; real training is
# between these. The efficiency is t over that time, for weak scaling: t is the step's time without a network.


class Share(msgspec.Struct, frozen=True):
    """An efficiency from 0 to 1, and its bounds from the interval of the exchange's time; None if it has no interval."""

    value: Annotated[float, column("{}", key="")]
    low: Annotated[float | None, column("{} The lower end of its interval.")] = None
    high: Annotated[float | None, column("{} The upper end of its interval.")] = None


class Efficiency(msgspec.Struct, frozen=True):
    """The share of a training step that is spent on computing.

    apart    computing and exchanging one after the other: t / (t + c), the lowest with this network
    overlap  computing and exchanging at the same time: t / max(t, c), the highest
    """

    compute_s: float
    apart: Annotated[Share, column("The scaling efficiency without overlap of computing and communication.")]
    overlap: Annotated[Share, column("The scaling efficiency with perfect overlap.")]


def efficiency(compute_s: float, exchange_s: float, low_s: float | None = None, high_s: float | None = None) -> Efficiency:
    """Return the efficiency of a step that computes for `compute_s` and exchanges for `exchange_s`, with its interval if known.

    Raises ValueError for a computing time that is not above 0, and for a negative exchange time.
    """
    if not compute_s > 0 or not exchange_s >= 0:
        raise ValueError(f"a step computes for more than 0 s and exchanges for 0 s or more, not {compute_s:g} and {exchange_s:g}")
    # A longer exchange means a lower efficiency, so the ends of the interval are exchanged.
    times = (exchange_s, high_s, low_s)
    apart = Share(*(None if exchange is None else compute_s / (compute_s + exchange) for exchange in times))  # type: ignore[arg-type]  # the first is a number
    overlap = Share(*(None if exchange is None else compute_s / max(compute_s, exchange) for exchange in times))  # type: ignore[arg-type]
    return Efficiency(compute_s, apart, overlap)


_TIMES = {name: spec for name, spec, _ in declared(Times)} | {
    "p50": column(
        "The median time of a step, from the ranks' meeting to the end of the slowest, of several routings over their medians; of "
        "asynchronous training, of a round of a worker, which does not wait for others."
    ),
}
_CEILING = {name: CEILING_COLUMNS[name] for name in ("kind", "bytes_per_s", "limited_by", "model", "source")}
_REPLAY = {
    "form": column("For a replay: the format of the trace.", key="trace_format"),
    "ranks": column("For a replay: the number of ranks of the recorded job.", key="trace_ranks"),
    "missing": column(
        "For a replay: what the trace does not contain.",
        key="trace_missing", value=lambda row: row.replay and ", ".join(row.replay.missing), type=str,
    ),
    "step_time_s": column("For a replay: the recorded time of the step.", key="recorded_step_time_s"),
    "compute_s": column("For a replay: the computing time of a step, of the rank that computes longest."),
    "exposed_s": column(
        "For a replay: the median time of a step without its computing.", value=lambda row: row.exposed_s, type=float
    ),
    "parts_time_s": column(
        "For a replay: the recorded time of one exchange of each part, in seconds; null where it was not recorded.",
        key="recorded_parts_s", value=lambda row: row.replay and list(row.replay.parts_time_s), type=object,
    ),
}  # fmt: skip
_COMPUTING = {
    "overlap": column(
        "",
        key="",
        parts={
            "computation_s": column("With `--compute real`: the time of the computation alone.", key="s"),
            "communication_s": column(
                "With `--compute real`: the time of the exchanges alone, started and waited for as with the computation.", key="exchanges_s"
            ),
            "both_s": column("With `--compute real`: the time of a step that computes while it communicates."),
            "outcome": column("With `--compute real`: hidden, partial, exposed or inconclusive."),
            "payer": column("With `--compute real`: what takes the exposed time: computation, waiting or none."),
            "blocks": column("With `--compute real`: the number of blocks of one sample of each state."),
            "exposed_s": column("With `--compute real`: the time that the exchanges add to the computation."),
            "percent": column("With `--compute real`: the overlap in percent of the exchanges' time, not limited to 0–100."),
        },
    ),
    "efficiency": column("With `--compute real`: the scaling efficiency, computation alone divided by both."),
}


class StepRow(Record, frozen=True):
    """One training step's traffic on one backend. If it could not be measured, `na` has the reason, `na_fact` has it as fields, and the
    figures are None. Rows with several routings are over all of them: n counts the samples of all, and busbw is all their bytes by all
    their times.
    """

    _EMPTY: ClassVar = ("staleness", "routing", "computing")  # without a value they are stored as an empty object

    regime: Annotated[str, column("The training, e.g. data-parallel.")]
    model: Annotated[str, column("The model that is trained.")]
    backend: Annotated[str, column("The library that moves the data: nccl, mpi, gloo, socket, zmq and others.")]
    device: Annotated[str, column("Where the buffers are: `cpu` (host memory) or `cuda` (GPU memory).")]
    ranks: Annotated[int, column("The number of ranks that take part.")]
    nodes: Annotated[int, column("The number of hosts on which these ranks run.")]
    dtype: Annotated[str, column("The data type of the elements: float32, bfloat16, int8 and others.")]
    parameters: Annotated[int, column("The parameters of the model.")]
    bucket_bytes: Annotated[int, column("The size of a bucket of gradients.")]
    payload_bytes: Annotated[int, column("The bytes that the training itself moves per rank and step.")]
    moved_bytes: Annotated[
        float,
        column(
            "The bytes of the rank that moves most, per step, by the conventions of busbw: for each exchange the busier direction, since "
            "exchanges follow one another; the mean of several routings; of asynchronous training, what a worker moves in a round."
        ),
    ]
    options: Annotated[dict[str, str], column("The requested options of the training.")] = field(default_factory=dict)
    note: Annotated[str, column("A remark about the training.")] = ""
    na: Annotated[str | None, column("Why it was not measured.")] = None
    n: Annotated[int, column("The number of samples of a step; of asynchronous training, the rounds of a worker.")] = 0
    time_s: Annotated[Times | None, column("", parts=_TIMES)] = None
    stopped: Annotated[str | None, column("Why the sampling stopped: precision, max_time, most_samples or iterations.")] = None
    busbw_bytes_per_s: Annotated[
        float | None,
        column(
            "The moved bytes divided by the median time; of asynchronous training, the bytes per second that the busiest server receives, "
            "which it also sends."
        ),
    ] = None
    # moved_bytes by ceiling_time_s, limited by the exchange that takes most of it; its rate is None where one of them has none
    ceiling: Annotated[Ceiling | None, column("", parts=_CEILING)] = None
    ceiling_time_s: Annotated[
        float | None,
        column("The time of the step at the expected bandwidth of its exchanges, one after the other where they share a rank."),
    ] = None
    percent_of_ceiling: Annotated[float | None, column("The measured bus bandwidth as a share of the expected one.")] = None
    parts: Annotated[tuple[PartRow, ...], column("The exchanges of a step, by kind.", value=stored_field("parts"))] = ()
    parts_time_s: Annotated[
        float | None,
        column(
            "The time of all parts alone, one after the other where they share a rank: the rest of the step is what they cost or save one "
            "another."
        ),
    ] = None
    checked: Annotated[int, column("The number of iterations of which the data was verified.")] = 0
    wrong: Annotated[int | None, column("The number of wrong elements in these iterations; missing if none was verified.")] = None
    wrong_detail: Annotated[str | None, column("The first wrong element, with the expected and the received value.")] = None
    flags: Annotated[tuple[str, ...], column("Codes of what makes a row less reliable.")] = ()
    staleness: Annotated[
        Staleness | None,
        column(
            "For asynchronous training: how many updates of others a worker missed.",
            value=stored_field("staleness"), parts={}, type=object,
        ),
    ] = None  # fmt: skip
    evidence: Annotated[
        dict[str, Any], column("What was observed while the case ran: counters of NICs and GPUs, CPU time, paths, clocks.")
    ] = field(default_factory=dict)
    na_fact: dict[str, Any] | None = None
    routing: Annotated[
        RoutingResult | None,
        column(
            "For several routings of tokens to experts: the time of each, and its tax.",
            value=stored_field("routing"), parts={}, type=object,
        ),
        column("", key="", after="routing"),
    ] = None  # fmt: skip
    replay: Annotated[ReplayedTrace | None, column("", key="", parts=_REPLAY)] = None
    computing: Annotated[StepOverlap | None, column("", parts=_COMPUTING)] = None
    step_time_s: Annotated[float | None, column("The user's computing time of a step, which run.json has.", after="routing")] = None

    @property
    def comparison(self) -> RateComparison | None:
        """The bus bandwidth against the expected one; None if there is none, or no percentage applies."""
        return compared_rates(self.percent_of_ceiling, self.busbw_bytes_per_s, self.ceiling)

    def compared_with(self, ceiling: Ceiling | None, percent: float | None) -> Self:
        """Return a copy with this expected bandwidth; `percent` is None if it does not apply."""
        return self.replace(ceiling=ceiling, percent_of_ceiling=percent)

    @property
    @figure("The number of routings that were measured.", after="step_time_s", in_json=False)
    def routings(self) -> int | None:
        """The number of routings; None without any."""
        return len(self.routing.steps) if self.routing else None

    @property
    @figure("", after="computing", optional=True)
    def scaling(self) -> Efficiency | None:
        """The efficiency with the user's computing time; None if one of the two times is unknown."""
        if self.step_time_s is None or self.time_s is None:
            return None
        return efficiency(self.step_time_s, self.time_s.p50, self.time_s.ci_low, self.time_s.ci_high)

    @property
    def exposed_s(self) -> float | None:
        """The exposed communication of a replayed step in seconds: its time without that of computing. None without a measurement."""
        if self.time_s is None or self.replay is None:
            return None
        return max(0.0, self.time_s.p50 - self.replay.compute_s)

    def as_json(self) -> dict[str, Any]:
        """Return the row as it is stored: without the user's computing time, which run.json has."""
        values = super().as_json()
        values |= {name: values[name] or {} for name in self._EMPTY}
        values["ceiling"] = self.ceiling.as_json(complete=True) if self.ceiling else None
        del values["step_time_s"]
        return values

    @classmethod
    def decoded(cls, values: Mapping[str, Any]) -> Self:
        """Return the row of a stored line; unknown keys are left out. Raises ValueError naming the first field that does not fit."""
        fields = with_limits(values)
        fields.pop("step_time_s", None)
        fields |= {name: None for name in cls._EMPTY if fields.get(name) == {}}
        if isinstance(fields.get("parts"), list):
            fields["parts"] = [with_limits(part) if isinstance(part, dict) else part for part in fields["parts"]]
        return decode_record(fields, cls)
