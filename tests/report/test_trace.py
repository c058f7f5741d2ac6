"""The timeline of runs as trace events: what a run contains at its time, nothing else, and in the format that viewers open."""

import io
import json
import tracemalloc
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.report.runs import report_run
from collbench.report.trace import trace_text, write_trace
from collbench.report.writers import check_file
from collbench.results.folder import RunFolder
from collbench.results.reader import Run, read_run
from collbench.results.row import Row
from tests.cli.command import run, run_here
from tests.conftest import needs_plugin
from tests.results.rows import make_row, not_measured, store

STARTED = "2026-11-21T07:00:00.000Z"
_US = {"type": "number", "minimum": 0}
_ID = {"type": "integer", "minimum": 0}
_NUMBERS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "number"}}


def event(ph: str, required: Sequence[str], **properties: Any) -> dict[str, Any]:
    """The schema of the events of a phase: the fields that it must have, and no others."""
    common = {"name": {"type": "string", "minLength": 1}, "ph": {"const": ph}, "pid": _ID, "tid": _ID, "args": {"type": "object"}}
    known = {**common, "cat": {"type": "string"}, **properties}
    return {"type": "object", "required": ["name", "ph", "pid", "tid", *required], "properties": known, "additionalProperties": False}


# The Trace Event Format, as far as collbench writes it: complete events, counters, instants, and names of tracks.
EVENTS = [
    event("X", ["cat", "ts", "dur", "args"], ts=_US, dur=_US), event("C", ["ts", "args"], ts=_US, args=_NUMBERS),
    event("i", ["ts", "s"], ts=_US, s={"enum": ["g", "p", "t"]}),
    event("M", ["args"], name={"enum": ["process_name", "thread_name", "process_sort_index"]}),
]  # fmt: skip
SCHEMA = {
    "type": "object", "required": ["traceEvents"], "additionalProperties": False, "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]}, "otherData": {"type": "object"},
        "traceEvents": {"type": "array", "items": {"oneOf": EVENTS}},
    },
}  # fmt: skip


def events_in(text: str) -> list[dict[str, Any]]:
    """The events of a trace, after a check of each against the format, and of slices that overlap on a track without being nested."""
    document = json.loads(text)
    Draft202012Validator(SCHEMA).validate(document)
    found: list[dict[str, Any]] = document["traceEvents"]
    tracks = defaultdict(list)
    for each in found:
        if each["ph"] == "X":
            tracks[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
    for slices in tracks.values():
        open_until: list[float] = []
        for begin, end in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_until and open_until[-1] <= begin + 0.002:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.002
            open_until.append(end)
    named = {(each["pid"], each["tid"]) for each in found if each["name"] == "thread_name"}
    assert {track for track in tracks if track not in named} == set()
    return found


def trace_of(*runs: Run) -> tuple[list[dict[str, Any]], list[str]]:
    """The events of runs, and what the trace lacks."""
    left_out: list[str] = []
    return events_in("".join(trace_text(runs, left_out))), left_out


def of_kind(events: Sequence[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [each for each in events if each.get("cat") == category]


def row_at(begin: float, end: float, phases: Any = None, **evidence: Any) -> Row:
    """A case from one time of the run to another."""
    known = {} if phases is None else {"phases": phases}
    return make_row(1024, evidence={"at_s": [begin, end], **known, **evidence})


def run_of(path: Path, rows: Sequence[Row], events: Sequence[dict[str, Any]] = (), **info: Any) -> Run:
    """A stored run that began at STARTED."""
    found = read_run(store(path, rows, **info))
    return replace(found, info={**found.info, "started_utc": STARTED}, events=list(events))


PHASES = [["set-up", 1.0, 1.25], ["warm-up", 1.25, 1.5], ["samples", 1.5, 2.5], ["verification", 2.75, 2.875]]


def test_a_case_has_its_phases_inside_it_or_the_reason_why_it_is_unavailable(tmp_path: Path) -> None:
    events, left_out = trace_of(run_of(tmp_path / "run", [row_at(1.0, 3.0, PHASES), row_at(3.0, 3.5)]))
    cases = of_kind(events, "case")
    assert [(each["name"], each["ts"], each["dur"]) for each in cases] == [("allreduce 1 KiB", 1e6, 2e6), ("allreduce 1 KiB", 3e6, 5e5)]
    assert {name: cases[0]["args"][name] for name in ("backend", "size_bytes", "ranks", "median_s", "busbw_bytes_per_s", "samples")} == {
        "backend": "nccl", "size_bytes": 1024, "ranks": 4, "median_s": 2.399e-3, "busbw_bytes_per_s": 42e9, "samples": 200,
    }  # fmt: skip
    assert [(each["name"], each["ts"], each["dur"]) for each in of_kind(events, "phase")] == [
        ("set-up", 1e6, 250e3), ("warm-up", 1.25e6, 250e3), ("samples", 1.5e6, 1e6), ("verification", 2.75e6, 125e3),
    ]  # fmt: skip
    assert {(each["pid"], each["tid"]) for each in of_kind(events, "phase")} == {(cases[0]["pid"], cases[0]["tid"])}
    assert left_out == []
    row = not_measured("no library", evidence={"at_s": [1.0, 1.001]})
    (case,) = of_kind(trace_of(run_of(tmp_path / "other", [row]))[0], "case")
    assert (case["args"]["na"], "median_s" in case["args"]) == ("no library", False)


@pytest.mark.parametrize("phases", [
    "no list", [[]], [["samples"]], [["samples", 2.5, 1.5]], [["samples", 0.5, 1.5]], [["samples", 1.5, 3.5]], [["samples", "1", 2]],
    [["samples", None, 2]], [["samples", 1.5, 1e300]],
])  # fmt: skip
def test_phases_that_do_not_fit_their_case_are_left_out(tmp_path: Path, phases: Any) -> None:
    events, _ = trace_of(run_of(tmp_path / "run", [row_at(1.0, 3.0, phases)]))
    assert (len(of_kind(events, "case")), of_kind(events, "phase")) == (1, [])


@pytest.mark.parametrize("at_s", [None, [1.0], [2.0, 1.0], [-1.0, 1.0], ["a", "b"], [0.0, 1e300], {"begin": 1}])
def test_cases_without_a_valid_time_are_left_out_and_counted(tmp_path: Path, at_s: Any) -> None:
    rows = [make_row(8, evidence={"at_s": at_s}), row_at(1.0, 2.0)]
    events, left_out = trace_of(run_of(tmp_path / "run", rows))
    assert len(of_kind(events, "case")) == 1
    assert left_out == ["run: the times of 1 of 2 cases were not stored; the trace lacks them"]


RANKS = [{"rank": 0, "host": "node1"}, {"rank": 1, "host": "node1"}, {"rank": 2, "host": "node2"}]


def with_samples(path: Path, starts: Any, times: Any, **about: Any) -> Run:
    """A run of one case with samples."""
    folder = RunFolder.create(path, "allreduce", {"rank_map": RANKS})
    known = {"sample_starts": {"ranks": [0, 1], "messages": 2, **about}, "iterations_per_sample": 10}
    folder.append(row_at(1.0, 3.0, PHASES, **known), {"start_s": np.array(starts), "all_s": np.array(times)})
    folder.finish(exit_code=0)
    return read_run(path)


def test_each_rank_has_its_samples_in_the_process_of_its_host_and_a_lost_samples_bin_costs_only_them(tmp_path: Path) -> None:
    found = with_samples(tmp_path / "run", [[1.5, 2.0], [1.6, np.nan]], [[0.001, 0.002], [0.003, 0.001]])
    events, left_out = trace_of(found)
    samples = of_kind(events, "sample")
    assert [(each["tid"], each["ts"], each["dur"], each["args"]) for each in samples] == [
        (0, 1.5e6, 20e3, {"sample": 0}), (0, 2.0e6, 40e3, {"sample": 1}), (1, 1.6e6, 60e3, {"sample": 0}),
    ]  # fmt: skip
    processes = {each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert {processes[each["pid"]] for each in samples} == {"node1"}
    assert sorted(processes.values()) == ["node1", "node2", "run"]
    tracks = {(processes[each["pid"]], each["args"]["name"]) for each in events if each["name"] == "thread_name"}
    assert tracks == {("run", "cases"), ("run", "events"), ("node1", "rank 0"), ("node1", "rank 1"), ("node2", "rank 2")}
    assert left_out == []
    (found.path / "samples.bin").unlink()
    events, left_out = trace_of(found)
    assert (of_kind(events, "sample"), len(of_kind(events, "phase"))) == ([], 4)
    assert left_out[0].startswith("run: the samples of 1 case cannot be read, and the trace lacks them: array 'start_s'")


@pytest.mark.parametrize("change", [{"ranks": [0]}, {"ranks": "all"}, {"messages": None}])
def test_samples_that_do_not_belong_together_are_left_out_with_a_sentence(tmp_path: Path, change: dict[str, Any]) -> None:
    events, left_out = trace_of(with_samples(tmp_path / "run", [[1.5], [1.5]], [[0.001], [0.001]], **change))
    assert (of_kind(events, "sample"), len(of_kind(events, "case")), len(left_out)) == ([], 1, 1)


def test_gauges_of_gpus_are_counters_of_their_host_and_events_instants_with_their_text(tmp_path: Path) -> None:
    state = {"sm_mhz": 1980, "power_w": 612.5, "temperature_c": None, "slowed_by": ["power"], "other": 1}
    samples = {"node1": [{"monotonic_s": 77.0, "gpus": {"17:00": state}}]}
    stored = [
        {"kind": "telemetry", "utc": "2026-11-21T07:00:02.000Z", "hosts": samples},
        {"kind": "note", "utc": "2026-11-21T07:00:01.500Z", "text": "a\x1b[31m note"}, {"kind": "abort", "utc": "junk", "text": "no time"},
        {"kind": "early", "utc": "2026-11-21T06:00:00.000Z"},
    ]  # fmt: skip
    events, _ = trace_of(run_of(tmp_path / "run", [row_at(0, 1)], stored))
    assert [(each["name"], each["ts"], each["args"]) for each in of_kind(events, "telemetry")] == [
        ("17:00 SM clock", 2e6, {"MHz": 1980.0}), ("17:00 power", 2e6, {"W": 612.5}), ("17:00 throttled", 2e6, {"reasons": 1}),
    ]  # fmt: skip
    (note,) = of_kind(events, "event")
    assert (note["name"], note["ts"], note["args"]) == ("note", 1.5e6, {"text": "a?[31m note"})


def test_several_runs_are_processes_on_one_time_axis(tmp_path: Path) -> None:
    one, two = (run_of(tmp_path / name, [row_at(0.0, 1.0)]) for name in ("one", "two"))
    two.info["started_utc"] = "2026-11-21T07:00:10.000Z"
    events, _ = trace_of(two, one)
    assert sorted((each["ts"], each["pid"]) for each in of_kind(events, "case")) == [(0.0, 2), (10e6, 1)]


@needs_plugin("hunt")
@needs_plugin("training")
def test_rounds_and_trainings_are_slices(tmp_path: Path) -> None:
    found = run_of(tmp_path / "run", [])
    (found.path / "pairs.jsonl").write_text('{"round": 3, "at_s": [1, 2], "again": true, "pairs": [[0, 1]]}\n{"round": 4}\n')
    (found.path / "workload.jsonl").write_text('{"regime": "pipeline", "backend": "gloo", "at_s": [2, 4.5]}\n')
    events, left_out = trace_of(found)
    assert left_out == ["run: the times of 1 of 3 rounds were not stored; the trace lacks them"]
    assert [(each["name"], each["ts"], each["dur"], each["args"]) for each in of_kind(events, "round")] == [
        ("round 3", 1e6, 1e6, {"round": 3, "again": True}), ("pipeline", 2e6, 2.5e6, {"regime": "pipeline", "backend": "gloo"}),
    ]  # fmt: skip


def test_the_events_of_a_large_run_are_never_in_memory_together(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = RunFolder.create(path, "allreduce", {"rank_map": RANKS})
    known = {"sample_starts": {"ranks": [0, 1], "messages": 1}, "iterations_per_sample": 1}
    starts = np.tile(np.linspace(1.5, 2.4, 3000), (2, 1))
    for _ in range(4):
        folder.append(row_at(1.0, 3.0, PHASES, **known), {"start_s": starts, "all_s": np.full_like(starts, 1e-4)})
    folder.finish(exit_code=0)
    found = read_run(path)
    tracemalloc.start()
    try:
        assert write_trace([found], tmp_path / "trace.json") == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = (tmp_path / "trace.json").stat().st_size
    assert size > 2 << 20
    assert peak < size / 2


def test_files_that_cannot_be_written_and_what_the_run_lacks_are_reported(tmp_path: Path) -> None:
    found = run_of(tmp_path / "run", [row_at(0, 1)])
    with pytest.raises(UsageError, match=r"--trace .* cannot be written"):
        write_trace([found], tmp_path / "missing" / "trace.json")
    with pytest.raises(UsageError, match="--trace cannot write to stdout"):
        report_run([found.path], None, "table", io.StringIO(), trace=Path("-"))
    assert [each.name for each in tmp_path.iterdir()] == ["run"]
    store(tmp_path / "other", [make_row(8), row_at(1.0, 2.0)])
    done = run_here(tmp_path, "report", "other", "--trace", "trace.json")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-2:] == ["other: the times of 1 of 2 cases were not stored; the trace lacks them", "wrote trace.json"]
    assert len(of_kind(events_in((tmp_path / "trace.json").read_text()), "case")) == 1


@pytest.mark.contract
def test_a_measured_run_writes_its_cases_and_phases(tmp_path: Path) -> None:
    line = ("allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8,64K", "--out", "run", "--trace", "trace.json")
    done = run(tmp_path, *line)
    assert done.returncode == 0, done.stderr
    assert "wrote trace.json" in done.stderr
    events = events_in((tmp_path / "trace.json").read_text())
    assert sorted(each["name"] for each in of_kind(events, "case")) == ["allreduce 64 KiB", "allreduce 8 B"]
    phases = [each["name"] for each in of_kind(events, "phase")]
    assert phases == ["set-up", "warm-up", "samples", "verification"] * 2
    assert of_kind(events, "sample") == []  # virtual time is not that of the run
    again = run_here(tmp_path, "report", "run", "--trace", "again.json")
    assert again.returncode == 0
    assert events_in((tmp_path / "again.json").read_text()) == events


@pytest.mark.parametrize("file", ["-", "missing/trace.json", "."])
def test_a_file_that_can_never_be_written_is_known_beforehand(tmp_path: Path, file: str) -> None:
    check_file(tmp_path / "trace.json", "--trace")
    with pytest.raises(UsageError, match=r"^--trace .*(cannot be written|cannot write to stdout)"):
        check_file(Path("-") if file == "-" else tmp_path / file, "--trace")


@pytest.mark.long
def test_such_a_file_is_rejected_before_the_measurement(tmp_path: Path) -> None:
    line = ("allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8", "--out", "run")
    done = run(tmp_path, *line, "--trace", "missing/trace.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("collbench: --trace missing/trace.json cannot be written")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_real_samples_lie_inside_their_phase_at_both_ranks(tmp_path: Path) -> None:
    line = ("allreduce", "--backend", "gloo", "--ranks", "2", "--sizes", "64K", "-n", "20", "--out", "run", "--trace", "trace.json")
    done = run(tmp_path, *line)
    assert done.returncode == 0, done.stderr
    events = events_in((tmp_path / "trace.json").read_text())
    (phase,) = [each for each in of_kind(events, "phase") if each["name"] == "samples"]
    samples = of_kind(events, "sample")
    assert {tid: sum(each["tid"] == tid for each in samples) for tid in (0, 1)} == {0: 20, 1: 20}
    assert all(phase["ts"] <= each["ts"] and each["ts"] + each["dur"] <= phase["ts"] + phase["dur"] for each in samples if each["tid"] == 0)
    (row,) = read_run(tmp_path / "run").rows
    assert np.median([max(a["dur"], b["dur"]) for a, b in zip(samples[:20], samples[20:], strict=True)]) == pytest.approx(
        1e6 * row.time_s.p50, rel=1e-3
    )


@pytest.mark.long
def test_several_launches_are_in_one_trace(tmp_path: Path) -> None:
    line = ("allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8", "--launches", "2", "--out", "runs")
    done = run(tmp_path, *line, "--trace", "trace.json")
    assert done.returncode == 0, done.stderr
    events = events_in((tmp_path / "trace.json").read_text())
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert {"launch-1", "launch-2"} <= names
    assert len(of_kind(events, "case")) == 2


@pytest.mark.long
@pytest.mark.parametrize("command", ["pairs --budget 5", "workload data-parallel --max-time 0.2 --no-parts --model bert-large"])
def test_rounds_and_trainings_have_their_times(tmp_path: Path, command: str) -> None:
    done = run(tmp_path, *command.split(), "--backend", "gloo", "--ranks", "2", "--out", "run", "--trace", "trace.json")
    assert "wrote trace.json" in done.stderr
    rounds = of_kind(events_in((tmp_path / "trace.json").read_text()), "round")
    assert rounds and all(each["dur"] > 0 for each in rounds)
