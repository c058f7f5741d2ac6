"""Results of `collbench workload` (a line per training and backend in workload.jsonl) and of `collbench probe --measure`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from collbench.machine.peak.ceiling import Ceiling
from collbench.results import folder
from collbench.results.reader import Run, check_signs, decode_record, read_lines, read_run, with_limits
from collbench.results.row import Times

# The measured rate of a communication channel in a node, or between two hosts.

SCHEMA = 1
WRONG = "wrong_data"


@dataclass(frozen=True, slots=True)
class Channel:
    """A row of `collbench probe --measure`; rates in bytes per second of one direction.

    channel         "host_memory", "h2d", "d2h", "h2d_d2h", "gpu_peer", "nic_host_memory_perftest", "nic_host_memory_mpi",
                    "nic_gpu_memory_mpi", "nic_gpu_memory_gdr_on", "nic_gpu_memory_gdr_off", "tcp_1", "tcp_8" (number of streams),
                    "iperf3", "fi_pingpong", "ucx_perftest" (external tools)
    source, target  the places that the bytes leave and reach: "node1/numa0", "node1/gpu3", "node1/mlx5_0", "node1"
    bytes_per_s     the median, with its 95 % interval; None if nothing was measured: `na` has the reason
    of_bytes_per_s  the rate of the limiting link, None if no such figure is valid
    limited_by      that link with the source of its rate; without a rate, the kind of figure
    tool            for an external tool: its request, version, commands and statistic; else empty
    flags           words that `results.flags` explains; WRONG: received data differs from sent data, `na` has the place, the rate is None
    """

    channel: str
    source: str
    target: str
    bytes_per_s: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    of_bytes_per_s: float | None = None
    limited_by: str = ""
    na: str | None = None
    flags: tuple[str, ...] = ()
    tool: dict[str, Any] = field(default_factory=dict)

    @property
    def percent(self) -> float | None:
        """Return the percentage of the link's rate; None if the measured rate exceeds it."""
        if not self.bytes_per_s or not self.of_bytes_per_s or "above_bound" in self.flags:
            return None
        return 100 * self.bytes_per_s / self.of_bytes_per_s

    def to_json(self) -> dict[str, Any]:
        """Return it as in `--format json`; NaN and infinities are null."""
        numbers = {name: _finite(getattr(self, name)) for name in ("bytes_per_s", "ci_low", "ci_high", "of_bytes_per_s", "percent")}
        words = {"limited_by": self.limited_by or None, "na": self.na, "flags": list(self.flags)}
        theirs = {"tool": self.tool} if self.tool else {}
        return {"channel": self.channel, "from": self.source, "to": self.target, **numbers, **words, **theirs}


def document(channels: Sequence[Channel]) -> dict[str, Any]:
    """Return the JSON document of all channels."""
    return {"schema": SCHEMA, "channels": [channel.to_json() for channel in channels]}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


WORKLOAD = folder.WORKLOAD


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


def holds_workload(run: Run) -> bool:
    """Return whether the run measured training's traffic."""
    return isinstance(run.info.get("workload"), dict) or (run.path / WORKLOAD).is_file()


def read_workload(run: Run | Path) -> tuple[dict[str, Any], list[StepRow], list[str]]:
    """Return (run.json's "workload", the rows up to the last complete one, what could not be read). Raises UsageError without a run."""
    run = read_run(run) if isinstance(run, Path) else run
    about, warnings = run.info.get("workload"), list[str]()
    rows = list(read_lines(run.path / WORKLOAD, step_from_json, warnings))
    return about if isinstance(about, dict) else {}, rows, warnings


def step_from_json(values: dict[str, Any]) -> StepRow:
    """Return the row in `values`, with every field checked; unknown keys are left out. Raises ValueError naming the first misfit."""
    row = decode_record(with_limits(values), StepRow)
    shown = {"parts": [with_limits(part) for part in row.parts], "staleness": row.staleness}
    for part in decode_record(shown, _ShownParts).parts:
        check_signs(part, "parts.")
    return row


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
