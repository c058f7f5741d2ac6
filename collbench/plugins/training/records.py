"""Results of `collbench workload`: a line per training and backend in workload.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from collbench.machine.peak.ceiling import Ceiling
from collbench.plugins.overlap.records import StepOverlap
from collbench.plugins.traces.recording import RankTimeline, Recording
from collbench.plugins.training import FILE
from collbench.reason import as_json
from collbench.results.estimate import Estimate
from collbench.results.reader import Run, check_signs, decode_record, read_lines, read_run, with_limits
from collbench.results.row import Times


@dataclass(frozen=True)
class ReplayedTrace:
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


@dataclass(frozen=True)
class StepRow:
    """One training step's traffic on one backend. If it could not be measured, `na` has the reason, `na_fact` has it as fields, and the
    figures are None.

    regime, model, options   the request: "data-parallel", "bert-large", {"update": "sharded"}
    note            the regime's own remark
    parameters, dtype, bucket_bytes   of the model and its gradients
    payload_bytes   the bytes that the training itself moves, per rank
    moved_bytes     per step, of the rank that moves most, by the conventions of busbw (see workloads.moved): for each exchange the busier
                    direction, since exchanges follow one another. For asynchronous training, the bytes that a worker pushes and pulls in a
                    round
    n, time_s       samples of a whole step, from the ranks' meeting to the end of the slowest. For asynchronous training: rounds of a
                    worker, which does not wait for others
    stopped         why no more samples were taken
    busbw_bytes_per_s   moved_bytes by the time. For asynchronous training, the bytes per second that the busiest server receives, which it
                    also sends
    ceiling_time_s  the time of the step at its exchanges' ceilings, one after the other where they share a rank
    ceiling         moved_bytes by that time, limited by the exchange that takes most of it; its rate is None where one of them has none
    parts           the exchanges of the step; those that differ only in `what` are one: {"what", "ends" (see `part_ends`), "operation",
                    "groups" (their number), "group_ranks" (of each), "size_bytes", "times" (in a step), "moved_bytes" (of a rank, all
                    times), "time_s" (of one, alone; null: not measured), "busbw_bytes_per_s" (moved_bytes of one by that), "ceiling",
                    "percent_of_ceiling"}
    parts_time_s    all parts' times alone, one after the other where they share a rank: the rest of the step is what they cost or save
                    one another
    checked, wrong, wrong_detail   as in a row of cases
    staleness       for asynchronous training: how many updates of others a server had applied between a worker's pull and its next
                    update: {"p50", "p95", "max", "workers": [{"rank", "steps", "steps_per_s", "p50", "p95", "max"}],
                    "servers": [{"rank", "updates"}], "steps_per_s" (of all), "duration_s"}; else empty
    routing         for several routings of tokens to experts: what `RoutingResult` has; else empty. Then `time_s` is over the medians of
                    the routings, n counts the samples of all of them, moved_bytes and ceiling_time_s are means, and busbw is all
                    routings' bytes by all their times
    replay          of a replay its trace, else None
    computing       with `--compute real`: what `overlap.StepOverlap` has; else empty
    """

    regime: str
    model: str
    backend: str
    device: str
    ranks: int
    nodes: int
    dtype: str
    parameters: int
    bucket_bytes: int
    payload_bytes: int
    moved_bytes: float
    options: dict[str, str] = field(default_factory=dict)
    note: str = ""
    na: str | None = None
    n: int = 0
    time_s: Times | None = None
    stopped: str | None = None
    busbw_bytes_per_s: float | None = None
    ceiling: Ceiling | None = None
    ceiling_time_s: float | None = None
    percent_of_ceiling: float | None = None
    parts: list[dict[str, Any]] = field(default_factory=list)
    parts_time_s: float | None = None
    checked: int = 0
    wrong: int | None = None
    wrong_detail: str | None = None
    flags: tuple[str, ...] = ()
    staleness: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    na_fact: dict[str, Any] | None = None
    routing: dict[str, Any] = field(default_factory=dict)
    replay: ReplayedTrace | None = None
    computing: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the row as values for JSON."""
        return {**asdict(replace(self, ceiling=None)), "ceiling": self.ceiling.as_json(complete=True) if self.ceiling else None}


def part_ends(part: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of a part's first and last exchange. Rows of earlier versions have both in one text only."""
    if "ends" in part:
        first, last = part["ends"]
        return first, last
    first, _, last = part["what"].partition(" … ")
    return first, last or first


def read_workload(run: Run | Path) -> tuple[dict[str, Any], list[StepRow], list[str]]:
    """Return (run.json's "workload", the rows up to the last complete one, what could not be read). Raises UsageError without a run."""
    run = read_run(run) if isinstance(run, Path) else run
    about, warnings = run.info.get("workload"), list[str]()
    rows = list(read_lines(run.path / FILE, step_from_json, warnings))
    return about if isinstance(about, dict) else {}, rows, warnings


def step_from_json(values: dict[str, Any]) -> StepRow:
    """Return the row in `values`, with every field checked; unknown keys are left out. Raises ValueError naming the first misfit."""
    row = decode_record(with_limits(values), StepRow)
    shown = {"parts": [with_limits(part) for part in row.parts], "staleness": row.staleness}
    for part in decode_record(shown, _ShownParts).parts:
        check_signs(part, "parts.")
    if row.routing:
        decode_record({"routing": row.routing}, _ShownRouting)
    computing_of(row)
    return row


def computing_of(row: StepRow) -> StepOverlap | None:
    """Return the result with computing; None for a row without. Raises ValueError naming the first misfit."""
    return decode_record(row.computing, StepOverlap) if row.computing else None


def routing_of(row: StepRow) -> RoutingResult | None:
    """Return the result over several routings; None for a row without. Raises ValueError naming the first misfit."""
    return decode_record(row.routing, RoutingResult) if row.routing else None


_Number = Annotated[float, Meta(ge=0)] | None


@dataclass
class _Part:
    """A part, with the keys that it must have."""

    what: str
    operation: str
    groups: int
    group_ranks: int
    size_bytes: int
    times: int
    moved_bytes: float | None
    time_s: Times | None
    busbw_bytes_per_s: float | None
    ceiling: Ceiling | None
    percent_of_ceiling: float | None
    ends: tuple[str, str] = ("", "")


# The result of expert-parallel training over several routings.


@dataclass(frozen=True)
class TimeQuantiles:
    """Quantiles over the routings. The intervals cover all of them at the same time with 95 %."""

    p5: Estimate
    p50: Estimate
    p95: Estimate
    max: Estimate


@dataclass(frozen=True)
class RoutedStep:
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


@dataclass(frozen=True)
class WayBytes:
    """Dispatch or combine: the data type on the wire, and the mean bytes of all copies of tokens in a step, also of those that stay."""

    dtype: str
    bytes: _Number


@dataclass(frozen=True)
class RoutingResult:
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
    time_s: TimeQuantiles
    even_time_s: Estimate
    tax: Estimate
    dispatch: WayBytes
    combine: WayBytes
    steps: tuple[RoutedStep, ...]


@dataclass
class _ShownRouting:
    """The nested values over routings that are shown."""

    routing: RoutingResult


class _Staleness(msgspec.Struct):
    """What a table shows of the staleness."""

    p50: _Number = None
    p95: _Number = None
    max: _Number = None
    steps_per_s: _Number = None
    duration_s: _Number = None
    workers: tuple[dict[str, _Number], ...] = ()
    servers: tuple[dict[str, _Number], ...] = ()


@dataclass
class _ShownParts:
    """The nested values of a row that are shown."""

    parts: list[_Part]
    staleness: _Staleness
