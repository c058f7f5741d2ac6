"""When the parts of a stored run took place: cases, their phases and samples, rounds, GPU telemetry and events.

All times are in seconds since the run began. A part without a valid time is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from collbench.errors import UsageError
from collbench.plugin import record_files
from collbench.results.reader import Run, read_lines
from collbench.results.row import Row, SampleStarts
from collbench.untrusted import dict_of, list_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LATEST_S = 1e9  # larger values are not times of a run: it would take 30 years


class TimeSpan(NamedTuple):
    """A part of a run: its name, and its begin and end in seconds since the run began."""

    name: str
    begin_s: float
    end_s: float


class RankSamples(msgspec.Struct, frozen=True):
    """The samples of a case at one rank: when they began, in seconds since the run began, and how long each took in seconds."""

    rank: int
    begin_s: NDArray[Any]
    took_s: NDArray[Any]


class GpuState(msgspec.Struct, frozen=True):
    """A sample of a GPU's telemetry: its host, its PCI address, the time, and the values as NVML gave them."""

    host: str
    gpu: str
    at_s: float
    values: Mapping[str, Any]


class RunEvent(msgspec.Struct, frozen=True):
    """An entry of events.jsonl: its kind, the time, and its text; "" if it has none."""

    kind: str
    at_s: float
    text: str


class TimelineRecord(msgspec.Struct, frozen=True):
    """A round of pairs or of a hunt, or a training: its span (None: unknown), and those of its fields that are single values."""

    span: TimeSpan | None
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)


def number(value: Any, most: float = 1e12) -> float | None:
    """Return a stored value as a number if it is finite and at most `most`; else None."""
    is_usable = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and abs(value) <= most
    return float(value) if is_usable else None


def numbers(values: Any) -> list[float] | None:
    """Return a stored list as numbers; None if one of its values is not a number."""
    if not isinstance(values, list):
        return None
    usable = [value for value in map(number, values) if value is not None]
    return usable if len(usable) == len(values) else None


def seconds_between(begin: Any, end: Any) -> float | None:
    """Return the seconds between two stored calendar times; None if one is not valid."""
    try:
        return (datetime.fromisoformat(str(end)) - datetime.fromisoformat(str(begin))).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None


def span_of(row: Row, name: str = "") -> TimeSpan | None:
    """Return when the case of a row was measured, from its set-up until the row was stored; None if that is unknown."""
    return _span(name, row.evidence.get("at_s"))


def phases_of(row: Row) -> list[TimeSpan]:
    """Return the phases of a row's case (set-up, warm-up, samples, verification) that lie inside it, in the order of time."""
    whole = span_of(row)
    last_s = 0.0
    phases: list[TimeSpan] = []
    for phase in list_of(row.evidence.get("phases"), list):
        span = _span(str(phase[0]), phase[1:]) if phase else None
        if whole and span and max(whole.begin_s, last_s) <= span.begin_s and span.end_s <= whole.end_s:
            last_s = span.end_s
            phases.append(span)
    return phases


def samples_of(run: Run, row: Row) -> list[RankSamples]:
    """Return the samples of a row by rank; none if the run does not have their begins (`--trace` stores them).

    Raises UsageError if samples.bin lacks them. Ranks of other hosts than rank 0's are left out, since their clock is another one.
    """

    iterations = number(row.evidence.get("iterations_per_sample"))
    if "start_s" not in row.samples or not row.evidence.get(SampleStarts.KEY) or iterations is None:
        return []
    starts = SampleStarts.of(row.evidence)
    begins = run.array(row, "start_s")
    times = run.array(row, "all_s")
    if starts is None or begins.shape != times.shape or begins.ndim != 2 or len(starts.ranks) != len(begins):
        raise UsageError(f"samples of {row.operation} in {run.path} do not belong together: the row was altered")
    samples = []
    for rank, begin_s, took_s in zip(starts.ranks, begins, times * (starts.messages * iterations), strict=True):
        is_known = (begin_s >= 0) & (begin_s <= _LATEST_S) & (took_s >= 0) & (took_s <= _LATEST_S)  # not NaN
        if is_known.any():
            samples.append(RankSamples(rank, begin_s[is_known], took_s[is_known]))
    return samples


def records_of(run: Run) -> Iterator[TimelineRecord]:
    """Yield the records of plug-ins that timelines have, as measured."""
    for file in {file.name: file for file in record_files().values() if file.named_by}.values():
        for values in read_lines(run.path / file.name, dict, []):
            name = str(values.get(file.named_by))
            if file.named_by == file.unit:
                name = f"{file.unit} {name}"
            facts = {key: value for key, value in values.items() if isinstance(value, str | int | float)}
            yield TimelineRecord(_span(name, values.get("at_s")), facts)


def telemetry_of(run: Run) -> list[GpuState]:
    """Return the samples of all GPUs. The clocks of the hosts are aligned so that no sample is later than the end of its case."""
    samples = list(_telemetry(run))
    offsets: dict[str, float] = {}
    for host, event_s, monotonic_s, _ in samples:
        offsets[host] = min(offsets.get(host, event_s - monotonic_s), event_s - monotonic_s)
    return [
        GpuState(host, gpu, max(0.0, monotonic_s + offsets[host]), values)
        for host, _, monotonic_s, gpus in samples
        for gpu, values in gpus.items()
        if isinstance(values, dict)
    ]


def _telemetry(run: Run) -> Iterator[tuple[str, float, float, dict[str, Any]]]:
    """Yield (host, end of its case on the clock of the run, time on the clock of the host, GPUs), in seconds."""
    for event in run.events:
        ended_s = seconds_between(run.info.get("started_utc"), event.get("utc")) if event.get("kind") == "telemetry" else None
        if ended_s is None:
            continue
        for host, samples in dict_of(event.get("hosts")).items():
            for sample in list_of(samples, dict):
                taken_s = number(sample.get("monotonic_s"))
                gpus = sample.get("gpus")
                if taken_s is not None and isinstance(gpus, dict):
                    yield host, ended_s, taken_s, gpus


def run_events(run: Run) -> Iterator[RunEvent]:
    """Yield the entries of events.jsonl besides telemetry: notes, findings, a hang, the reason for the end."""
    for event in run.events:
        at_s = number(seconds_between(run.info.get("started_utc"), event.get("utc")), _LATEST_S)
        if event.get("kind") != "telemetry" and at_s is not None and at_s >= 0:
            yield RunEvent(str(event.get("kind")), at_s, str(event.get("text", "")))


def _span(name: str, ends: Any) -> TimeSpan | None:
    known_ends = numbers(ends)
    if known_ends is None or len(known_ends) != 2:
        return None
    begin_s, end_s = known_ends
    return TimeSpan(name, begin_s, end_s) if 0 <= begin_s <= end_s <= _LATEST_S else None
