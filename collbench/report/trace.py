"""The timeline of runs as trace events (JSON), which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each run is a process with a track of its cases, in which their phases are nested, and each of its hosts is a process with a track for each
rank (its samples) and for the gauges of each GPU. Times are in microseconds since the first of the runs began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from collbench import __version__
from collbench.errors import UsageError
from collbench.report.cases import name_of
from collbench.report.headlines import short
from collbench.report.writers import write_whole
from collbench.results.quality import quality_of
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.results.timeline import (
    GpuState,
    TimeSpan,
    number,
    phases_of,
    records_of,
    run_events,
    samples_of,
    seconds_between,
    span_of,
    telemetry_of,
)
from collbench.units import plural
from collbench.untrusted import list_of

Event = dict[str, Any]

_CASES, _EVENTS = 0, 1  # tracks of a run's process
_GAUGES = (("sm_mhz", "SM clock", "MHz"), ("power_w", "power", "W"), ("temperature_c", "temperature", "°C"))
_EPOCH = "1970-01-01T00:00:00+00:00"


def write_trace(runs: Sequence[Run], path: Path) -> list[str]:
    """Write the file in one step, without holding its events in memory. Return a sentence for each part that it lacks.

    Raises UsageError for a file that cannot be written.
    """
    left_out: list[str] = []
    write_whole(path, trace_text(runs, left_out), "--trace")
    return left_out


def trace_text(runs: Sequence[Run], left_out: list[str]) -> Iterator[str]:
    """Yield the file in pieces, an event per line. `left_out` gets a sentence for each part without a known time."""
    about = {"collbench": __version__, "runs": [short(run.path.resolve().name) for run in runs]}
    yield f'{{"displayTimeUnit": "ms", "otherData": {_json(about)}, "traceEvents": [\n'
    separator = ""
    for event in trace_events(runs, left_out):
        yield f"{separator}{_json(event)}"
        separator = ",\n"
    yield "\n]}\n"


def trace_events(runs: Sequence[Run], left_out: list[str]) -> Iterator[Event]:
    """Yield the events of the runs; see `trace_text`."""
    numbers = count(1)
    began = [seconds_between(_EPOCH, run.info.get("started_utc")) for run in runs]
    first_s = min((began_s for began_s in began if began_s is not None), default=0.0)
    for run, began_s in zip(runs, began, strict=True):
        yield from _Process(run, 0.0 if began_s is None else began_s - first_s, numbers).events(left_out)


class _Process:
    """A run as processes of a trace: one for its cases, and one for each host of its ranks."""

    def __init__(self, run: Run, offset_s: float, numbers: Iterator[int]) -> None:
        self._run = run
        self._offset_s = offset_s
        self._numbers = numbers
        self._pid = next(numbers)
        self._hosts: dict[str, int] = {}
        self._ranks: dict[int, int] = {}
        places = list_of(run.info.get("rank_map"), dict)
        self._host_of = {place["rank"]: str(place.get("host")) for place in places if type(place.get("rank")) is int and place["rank"] >= 0}

    def events(self, left_out: list[str]) -> Iterator[Event]:
        """Yield all events: first the names of the tracks."""
        name = self._run.path.resolve().name
        yield from self._name_process(self._pid, name)
        yield self._named("thread_name", self._pid, _CASES, "cases")
        yield self._named("thread_name", self._pid, _EVENTS, "events")
        for rank in self._host_of:
            yield from self._rank(rank)
        unread = list[str]()
        for row in self._run.rows:
            yield from self._case(row, unread)
        rounds = 0
        untimed_rounds = 0
        for record in records_of(self._run):
            rounds += 1
            if record.span:
                yield self._slice(record.span, "round", (self._pid, _CASES), record.facts)
            else:
                untimed_rounds += 1
        yield from self._telemetry()
        for event in run_events(self._run):
            text = {"text": short(event.text)} if event.text else {}
            place = {"ph": "i", "s": "p", "ts": self._us(event.at_s), "pid": self._pid, "tid": _EVENTS}
            yield {"name": short(event.kind), "cat": "event", **place, "args": text}
        untimed_cases = sum(span_of(row) is None for row in self._run.rows)
        for untimed, total in ((untimed_cases, plural(len(self._run.rows), "case")), (untimed_rounds, plural(rounds, "round"))):
            if untimed:
                left_out.append(f"{name}: the times of {untimed} of {total} were not stored; the trace lacks them")
        if unread:
            left_out.append(f"{name}: the samples of {plural(len(unread), 'case')} cannot be read, and the trace lacks them: {unread[0]}")

    def _case(self, row: Row, unread: list[str]) -> Iterator[Event]:
        span = span_of(row, name_of(row))
        if span is None:
            return
        yield self._slice(span, "case", (self._pid, _CASES), _facts(row))
        for phase in phases_of(row):
            yield self._slice(phase, "phase", (self._pid, _CASES), {})
        try:
            samples_by_rank = samples_of(self._run, row)
        except UsageError as error:
            unread.append(short(str(error)))
            return
        name = f"{span.name} {short(row.backend)}"
        for samples in samples_by_rank:
            yield from self._rank(samples.rank)
            track = (self._ranks[samples.rank], samples.rank)
            for index, (begin_s, took_s) in enumerate(zip(samples.begin_s.tolist(), samples.took_s.tolist(), strict=True)):
                yield self._slice(TimeSpan(name, begin_s, begin_s + took_s), "sample", track, {"sample": index})

    def _telemetry(self) -> Iterator[Event]:
        for state in telemetry_of(self._run):
            yield from self._host(state.host)
            for key, title, unit in _GAUGES:
                value = number(state.values.get(key))
                if value is not None:
                    yield self._counter(state, title, unit, value)
            reasons = state.values.get("slowed_by")
            if isinstance(reasons, list):
                yield self._counter(state, "throttled", "reasons", len(reasons))

    def _host(self, host: str) -> Iterator[Event]:
        """Yield the name of the host's process before its first event."""
        if host not in self._hosts:
            self._hosts[host] = next(self._numbers)
            yield from self._name_process(self._hosts[host], host)

    def _rank(self, rank: int) -> Iterator[Event]:
        """Yield the name of the rank's track, in the process of its host, before its first event."""
        if rank not in self._ranks:
            host = self._host_of.get(rank, "unknown host")
            yield from self._host(host)
            self._ranks[rank] = self._hosts[host]
            yield self._named("thread_name", self._ranks[rank], rank, f"rank {rank}")

    def _name_process(self, pid: int, name: str) -> Iterator[Event]:
        yield self._named("process_name", pid, 0, name)
        yield {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": pid}}

    def _named(self, kind: str, pid: int, tid: int, name: str) -> Event:
        return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": short(name)}}

    def _slice(self, span: TimeSpan, category: str, track: tuple[int, int], facts: Mapping[str, Any]) -> Event:
        begin_us = self._us(span.begin_s)
        args = {key: short(value) if isinstance(value, str) else value for key, value in facts.items()}
        place = {"ts": begin_us, "dur": round(self._us(span.end_s) - begin_us, 3), "pid": track[0], "tid": track[1]}
        return {"name": short(span.name), "cat": category, "ph": "X", **place, "args": args}

    def _counter(self, gpu: GpuState, title: str, unit: str, value: float) -> Event:
        place = {"ph": "C", "ts": self._us(gpu.at_s), "pid": self._hosts[gpu.host], "tid": 0}
        return {"name": f"{short(gpu.gpu)} {title}", "cat": "telemetry", **place, "args": {unit: value}}

    def _us(self, at_s: float) -> float:
        return round((self._offset_s + at_s) * 1e6, 3)


def _facts(row: Row) -> dict[str, Any]:
    """Return the known values of a row, for the details of its slice: SI units."""
    quality = quality_of(row)
    facts: dict[str, Any] = {name: getattr(row, name) for name in ("backend", "device", "dtype", "redop", "size_bytes", "ranks", "na")}
    facts |= {
        "median_s": row.time_s and row.time_s.p50, "busbw_bytes_per_s": row.busbw_bytes_per_s, "samples": row.n,
        "percent_of_expected": row.comparison and row.comparison.percent, "quality": quality and quality.word, "flags": " ".join(row.flags),
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
