"""What a store keeps of a run folder or a verdict.json, and how to find them below a folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Table

from collbench.analysis.differences import facts
from collbench.analysis.launches import allocation_of, case_of, known
from collbench.columns import value_columns
from collbench.errors import UnreadableRun, UsageError
from collbench.gating.allocation import SLOWED, moment
from collbench.gating.verdict import GroupState, Verdict, read_verdict
from collbench.machine.peak.ceiling import Ceiling
from collbench.plugin import record_files
from collbench.plugins.hunt.kind import HUNT
from collbench.plugins.hunt.records import PairMatrix, place_hosts, read_hunt, read_pairs
from collbench.plugins.store.schema import FIGURES, NODE_PAIRS, SUSPECTS, TELEMETRY, VERDICT_GROUPS, column_of
from collbench.records import document
from collbench.results.folder import CASES, RUN, TOPOLOGY
from collbench.results.quality import quality_of
from collbench.results.reader import Run, read_run
from collbench.results.row import IMPORTED, Row
from collbench.results.store import plain
from collbench.untrusted import dict_of, list_of

VERDICT = "verdict.json"
_DEEPEST = 12  # levels below a folder that are searched
_SMALL = 120  # characters of JSON: a larger part of run.json becomes a document
_RATES = ("bytes_per_s", "low_bytes_per_s", "high_bytes_per_s", "disturbed")
_LARGEST = 2**63 - 1


def find(path: Path) -> Iterator[Path]:
    """Yield the run folders and the files verdict.json in `path` and below, sorted. Links to folders are not followed."""
    start = len(path.parts)
    for name, folders, files in os.walk(path):
        folder = Path(name)
        is_run = RUN in files or CASES in files
        if is_run:
            yield folder
        if VERDICT in files:
            yield folder / VERDICT
        folders[:] = [] if is_run or len(folder.parts) - start >= _DEEPEST else sorted(folders)


def is_verdict(path: Path) -> bool:
    """Return whether the path is that of a verdict, not of a run folder."""
    return path.suffix == ".json"


def stored_path(path: Path) -> str:
    """Return the absolute path that identifies a run in a store. Raises UnreadableRun if it is not UTF-8, which databases need."""
    text = str(path.resolve())
    try:
        text.encode()
    except UnicodeError as error:
        raise UnreadableRun(f"{clean(text)}: the path is not valid UTF-8, so a store cannot keep it: rename the folder") from error
    return text


def fingerprint_of(path: Path) -> str | None:
    """Return a text that changes when a file of a run, or a verdict, changes; None if the run or the verdict does not exist."""
    files = [path]
    if not is_verdict(path):  # samples.bin and events.jsonl are not in a store
        names = dict.fromkeys(file.name for file in record_files().values())
        files = [path / name for name in (RUN, CASES, *names, TOPOLOGY)]
    parts = []
    exists = False
    for file in files:
        try:
            state = file.stat()
        except OSError:
            continue
        parts.append(f"{file.name} {state.st_size} {state.st_mtime_ns}")
        exists = exists or file == path or file.name in (RUN, CASES)
    if not exists:
        return None
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def clean(text: str) -> str:
    """Return text without zero bytes and halves of characters, which databases reject."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()


def as_json(value: Any) -> str:
    """Return JSON of ASCII letters, the same for equal values."""
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":"), sort_keys=True).replace("\\u0000", "?")


def text_of(value: Any) -> str | None:
    """Return a text as a database takes it; None for anything else."""
    return clean(value) if isinstance(value, str) else None


def count_of(value: Any) -> int | None:
    """Return an integer that a database takes; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST else None


def seconds_of(value: Any) -> float | None:
    """Return the seconds since 1970 of an ISO 8601 moment; None for anything else."""
    when = moment(value)
    return None if when is None else when.timestamp()


class Result(msgspec.Struct, frozen=True):
    """A row as a store keeps it: figures by column, and what many rows have in common as JSON (see the table's columns)."""

    case: str
    remark: str
    ceiling: str | None
    hard_bound: str | None
    figures: Mapping[str, Any]


Part = tuple[Table, Mapping[str, Any], str]


class RunRecord(msgspec.Struct, frozen=True):
    """A run folder as a store keeps it.

    columns    of the table runs, by name
    info       run.json by key, as JSON; facts by kind, as JSON
    nodes      hosts
    results    rows, in the order of the folder
    hunt       columns of the table hunts; None for other runs
    parts      (table, its columns, host) of suspects, places of pairs, and GPUs
    warnings   what could not be read
    """

    columns: Mapping[str, Any]
    info: Mapping[str, str]
    facts: Mapping[str, str]
    nodes: Sequence[str]
    results: Sequence[Result]
    hunt: Mapping[str, Any] | None = None
    parts: Sequence[Part] = ()
    warnings: Sequence[str] = ()


def read_folder(path: Path) -> RunRecord:
    """Return what a store keeps of a run folder. Raises UnreadableRun if it cannot be read."""
    fingerprint = fingerprint_of(path)  # before reading: what changes meanwhile is read again by the next sync
    try:
        run = read_run(path)
    except UsageError as error:
        raise UnreadableRun(str(error)) from error
    info = run.info
    warnings = list(run.warnings)
    nodes = [clean(name) for name in dict.fromkeys(list_of(info.get("hosts"), str)) if name]
    hunt, parts = _rounds_of(run, warnings)
    nodes += [host for _, _, host in parts]
    nodes = list(dict.fromkeys(nodes))
    parts += _telemetry(run)
    command = info.get("command")
    rank_map = info.get("rank_map")
    started_s = seconds_of(info.get("started_utc"))
    columns = {
        "path": stored_path(path),
        "name": clean(path.resolve().name),
        "operation": text_of(info.get("operation")),
        "started_s": started_s,
        "finished_s": seconds_of(info.get("finished_utc")),
        "exit_code": count_of(info.get("exit_code")),
        "ranks": len(rank_map) if isinstance(rank_map, list) else None,
        "nodes": len(nodes) or None,
        "results": len(run.rows),
        "fingerprint": fingerprint or "",
        "command": clean(" ".join(map(str, command))) if isinstance(command, list) else None,
        "allocation": text_of(allocation_of(run)),
        "launch_index": count_of(info.get("launch_index")),
        "launches": count_of(info.get("launches")),
        "version": text_of(info.get("collbench")),
        "imported": int(any(IMPORTED in row.flags for row in run.rows)),
        "slowed": int(any(SLOWED in row.flags for row in run.rows)),
        "missing": 0,
    }
    facts_by_kind: dict[str, list[Any]] = {}
    for item, text in facts(run).items():
        facts_by_kind.setdefault(item.kind, []).append([list(item.path), text])
    return RunRecord(
        columns, {clean(name): as_json(value) for name, value in info.items()},
        {kind: as_json(facts_of_kind) for kind, facts_of_kind in facts_by_kind.items()},
        nodes, [result_of(row, started_s) for row in run.rows], hunt, parts, warnings,
    )  # fmt: skip


def is_small(text: str) -> bool:
    """Return whether a part of run.json is kept in its run, not as a document of its own."""
    return len(text) <= _SMALL


_SHARED = ("api", "na", "na_fact", "flags", "stopped", "target", "reached", "launches", "count")  # fields that many rows have in common
_RARE = ("modes", "groups", "message_rate", "interference", "wrong_detail")


def result_of(row: Row, started_s: float | None = None) -> Result:
    """Return what a store keeps of a row: all but samples, slowest ranks, the interval of its ceiling, and most evidence.

    started_s: when its run began, in seconds since 1970; None: unknown.
    """
    quality = quality_of(row)
    span = row.evidence.get("at_s")
    until_s = _finite(span[1]) if isinstance(span, list) and len(span) == 2 else None
    remark = {name: getattr(row, name) for name in _SHARED} | {"quality": quality and quality.word}
    names = ["iterations_per_sample"]  # of the evidence that `quality_of` reads
    if "skew_limited" in row.flags:
        names.append("exit_skew_s")
    if "drift" in row.flags:
        names.append("drift")
    evidence = {name: row.evidence[name] for name in names if row.evidence.get(name) not in (None, 1)}
    rare = {name: getattr(row, name) for name in _RARE} | {"evidence": evidence}
    detail = {name: value for name, value in rare.items() if value}
    figures = {value.name: value.value(row) for value in FIGURES}
    figures |= {
        "probe_before_s": _number(row.canary_s.get("before")),
        "probe_after_s": _number(row.canary_s.get("after")),
        "ended_s": None if started_s is None or until_s is None else started_s + until_s,
        "stolen": _finite(row.evidence.get("stolen")),
        "preempted": count_of(row.evidence.get("preempted")),
        "detail": as_json(detail) if detail else None,
    }
    return Result(as_json(case_of(row).stored()), as_json(remark), _origin(row.ceiling), _origin(row.hard_bound), figures)


def _number(value: Any) -> float | None:
    return float(value) if known(value) else None


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None


def _origin(ceiling: Ceiling | None) -> str | None:
    """Return a ceiling without its rate, as JSON: the same for many rows."""
    if ceiling is None:
        return None
    return as_json({name: value for name, value in ceiling.as_json().items() if name not in _RATES})


_RESULTS = {"confirmed": "confirmed", "nobody": "no suspect", "no verdict": "no verdict"}  # by what run.json has


def _rounds_of(run: Run, warnings: list[str]) -> tuple[dict[str, Any] | None, list[Part]]:
    """Return (columns of hunts, suspects and pairs) of a run; (None, []) for others and for damaged ones."""
    try:
        if HUNT.holds(run):
            stored = read_hunt(run)
            warnings += stored.warnings
            verdict = stored.about.get("verdict") or {}
            result = _RESULTS.get(str(verdict.get("result")))
            return _hunt("hunt", stored.about, len(stored.rounds), result, verdict.get("suspects") or [])
        pairs = read_pairs(run)
    except UsageError as error:
        warnings.append(str(error))
        return None, []
    if pairs is None:
        return None, []
    warnings += pairs.warnings
    rounds = len({measurement.round for measurement in pairs.rounds if not measurement.again})
    hunt, parts = _hunt("pairs", pairs.about, rounds, None, pairs.about.get("judged") or [])
    return hunt, [*parts, *_node_pairs(pairs.matrix())]


def _hunt(
    command: str, about: Mapping[str, Any], rounds: int, result: str | None, suspects: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], list[Part]]:
    hosts = place_hosts(about)
    states = [suspect["state"] for suspect in suspects]
    hunt = {
        "command": command, "result": result, "backend": text_of(about.get("backend")), "compared": text_of(about.get("by")),
        "places": len(about["places"]), "rounds": rounds, "size_bytes": count_of(about.get("size_bytes")),
        "confirmed": states.count("confirmed"), "inconclusive": states.count("inconclusive"),
    }  # fmt: skip
    parts: list[Part] = []
    for number, suspect in enumerate(suspects):
        columns = {"number": number, "kind": clean(suspect["kind"]), "part": clean(suspect["part"]), "state": suspect["state"]}
        columns |= {"ratio": suspect.get("ratio"), "ratio_low": suspect.get("low"), "ratio_high": suspect.get("high")}
        parts += [(SUSPECTS, columns, host) for host in dict.fromkeys(clean(hosts[place]) for place in suspect["places"])]
    return hunt, parts


def _node_pairs(matrix: PairMatrix) -> Iterator[Part]:
    """Yield the medians of each place over its partners, with its host."""
    for place, (name, host) in enumerate(zip(matrix.places, matrix.hosts, strict=True)):
        wrong = matrix.wrong[place]
        yield (
            NODE_PAIRS,
            {
                "place": place, "name": clean(name), "partners": int(np.isfinite(matrix.latency_s[place]).sum()),
                "sent_bytes_per_s": _median(matrix.bandwidth[place]), "received_bytes_per_s": _median(matrix.bandwidth[:, place]),
                "latency_s": _median(matrix.latency_s[place]), "wrong": int(np.nansum(wrong)) if np.isfinite(wrong).any() else None,
            },
            clean(host),
        )  # fmt: skip


def _median(values: Any) -> float | None:
    measured = values[np.isfinite(values)]
    return float(np.median(measured)) if len(measured) else None


_LARGEST_READING = 1e6  # larger values are not valid
_READINGS: Mapping[str, Callable[[Any], Any]] = {"sm_mhz": np.median, "power_w": np.max, "temperature_c": np.max}


def _telemetry(run: Run) -> Iterator[Part]:
    """Yield what a store keeps of each GPU of each host in each case."""
    events = [event for event in run.events if event.get("kind") == "telemetry" and isinstance(event.get("hosts"), dict)]
    for number, event in enumerate(events):
        for host, samples in event["hosts"].items():
            states_by_gpu: dict[str, list[dict[str, Any]]] = {}
            for sample in list_of(samples, dict):
                for gpu, state in dict_of(sample.get("gpus")).items():
                    if isinstance(state, dict):
                        states_by_gpu.setdefault(clean(gpu), []).append(state)
            for gpu, states in states_by_gpu.items():
                columns = {"number": number, "gpu": gpu, "ended_s": seconds_of(event.get("utc")), "samples": len(states)}
                columns["throttled"] = sum(bool(state.get("slowed_by")) for state in states) / len(states)
                for name, summary in _READINGS.items():
                    readings = [_finite(state.get(name)) for state in states]
                    valid = [reading for reading in readings if reading is not None and abs(reading) <= _LARGEST_READING]
                    columns[name] = float(summary(valid)) if valid else None
                yield TELEMETRY, columns, clean(host)


class VerdictRecord(msgspec.Struct, frozen=True):
    """A verdict.json as a store keeps it: columns of the tables verdicts and verdict_groups, and the whole as JSON."""

    columns: Mapping[str, Any]
    groups: Sequence[Mapping[str, Any]]
    document: str


def read_verdict_file(path: Path) -> VerdictRecord:
    """Return what a store keeps of a verdict. Raises UnreadableRun if it cannot be read."""
    fingerprint = fingerprint_of(path)
    try:
        verdict = read_verdict(path)
    except UsageError as error:
        raise UnreadableRun(str(error)) from error
    counts = {outcome.value: number for outcome, number in verdict.outcomes.items()}
    columns = {
        "path": stored_path(path), "fingerprint": fingerprint or "", "result": verdict.result, "mode": verdict.mode,
        "baseline": clean(verdict.baseline), "candidates": as_json(verdict.candidates), "judged_s": _judged_s(verdict, path),
        "cases": verdict.cases, "confirmed": verdict.count("confirmed"), "suspected": verdict.count("suspected"),
        "slower": counts.get("slower"), "faster": counts.get("faster"), "unchanged": counts.get("no change"),
        "inconclusive": counts.get("inconclusive"), "cause": verdict.cause and clean(verdict.cause.cause), "missing": 0,
    }  # fmt: skip
    groups = [{"number": number, **_group_columns(group)} for number, group in enumerate(verdict.groups)]
    return VerdictRecord(columns, groups, as_json(document(verdict)))


def _group_columns(group: GroupState) -> dict[str, Any]:
    """Return what a store keeps of a group of cases: the columns that the group declares, and its first factor."""
    values = {column_of(value.name): value.value(group) for value in value_columns(GroupState)}
    columns = {name: clean(value) if isinstance(value, str) else value for name, value in values.items() if name in VERDICT_GROUPS.c}
    return columns | {"outcome": group.outcome or None, "factor": group.factors[0] if group.factors else None}


def _judged_s(verdict: Verdict, path: Path) -> float | None:
    """Return when it was judged: when the file was written if that is on the day that it has, else the begin of that day."""
    day = seconds_of(verdict.judged_on)
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return day
    return written.timestamp() if written.date().isoformat() == verdict.judged_on[:10] else day
