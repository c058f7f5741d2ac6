"""How a measured step is shown: table, parts, --step-time, staleness, CSV, JSON, from disk and while it measures; each word explained."""

import csv
import io
import json
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.measuring.session import Plan
from collbench.operations.unsupported import TimelineUnsupported
from collbench.plugins.overlap.records import CoresSharedWithProgress, Overlap, OverlapEstimate, StepOverlap
from collbench.plugins.traces.replay_text import replay_sentences
from collbench.plugins.training import text
from collbench.plugins.training.progress import WorkloadProgressPrinter
from collbench.plugins.training.records import PartRow, ReplayedTrace, Staleness, StepRow
from collbench.plugins.training.text import MOST_SHOWN, STEPS, PlannedStep, PlannedSteps, folded, lines, shown_steps, span, trainings
from collbench.plugins.training.workloads.step import Exchange, Regime, Shape, Step
from collbench.reason import as_json
from collbench.report.explain import page
from collbench.report.forms import FORMATS, write
from collbench.report.frame import Display
from collbench.report.kinds import show_all
from collbench.report.material import Material
from collbench.report.progress import Output
from collbench.report.runs import report_run
from collbench.results.estimate import Estimate
from collbench.results.reader import read_run
from collbench.results.row import Times
from tests.plugins.training.reading import read_workload
from tests.plugins.training.test_records import MOE, ROUTED
from tests.report.test_explain import IDENTITIES

MIB = 1 << 20
NIC = Ceiling("network", 117.6e6, "NIC eth0 1 Gb/s, TCP")
SHAPE = Shape("tiny", 1_000_000, "float32", 4, MIB, (0, 0, 1, 1), options={"update": "sharded", "servers": ""})
ALL = ((0, 1, 2, 3),)
ABOUT = {"backends": ["mpi", "gloo"], "step_time_s": 0.3}
COLUMNS = [*text.step_columns("step"), *text.step_columns("round"), *text.WORKERS]


def times(p50, low=None, high=None):
    return Times(p50, low, high, p50, p50, p50, p50)


PARTS = tuple(PartRow.decoded(values) for values in (
    {"what": "gradients, bucket 1 of 4 … gradients, bucket 3 of 4", "ends": ["gradients, bucket 1 of 4", "gradients, bucket 3 of 4"],
     "operation": "allreduce", "groups": 1, "group_ranks": 2,
     "size_bytes": 25 * MIB, "times": 3, "moved_bytes": 75 * MIB, "time_s": asdict(times(0.230)), "busbw_bytes_per_s": 113.9e6,
     "ceiling": asdict(NIC), "percent_of_ceiling": 96.9},
    {"what": "gradients, bucket 4 of 4", "operation": "allreduce", "groups": 1, "group_ranks": 2, "size_bytes": 24 * MIB, "times": 1,
     "moved_bytes": 24 * MIB, "time_s": None, "busbw_bytes_per_s": None, "ceiling": None, "percent_of_ceiling": None},
))  # fmt: skip
ROW = StepRow(
    regime="data-parallel", model="resnet50", backend="gloo", device="cpu", ranks=2, nodes=2, dtype="float32", parameters=25_557_032,
    bucket_bytes=25 * MIB, payload_bytes=102_228_128, moved_bytes=102_228_128.0, n=12, time_s=times(0.9, 0.89, 0.93), stopped="max_time",
    busbw_bytes_per_s=113.6e6, ceiling=NIC, ceiling_time_s=0.869, percent_of_ceiling=96.6, parts=PARTS, parts_time_s=0.914, checked=1,
    wrong=0, note="buckets one after the other",
)  # fmt: skip
STALE = Staleness.decoded({
    "p50": 2.0, "p95": 3.0, "max": 5.0, "steps_per_s": 12.5, "duration_s": 5.0, "servers": [{"rank": 0, "updates": 62}],
    "workers": [{"rank": 1, "steps": 40, "steps_per_s": 8.0, "p50": 1.0, "p95": 2.0, "max": 3.0},
                {"rank": 2, "steps": 22, "steps_per_s": 4.5, "p50": 2.0, "p95": 3.0, "max": 5.0}],
})  # fmt: skip


def text_of(*rows, format="table", step_time_s=None, **options):
    out = io.StringIO()
    timed = [row.replace(step_time_s=step_time_s) for row in rows]
    write(STEPS, timed, format, out, color=False, **options)
    return out.getvalue()


def fields(line):
    return [case.strip() for case in line.split("  ") if case.strip()]


def test_backends_of_one_training_share_a_table_and_trainings_do_not():
    mpi, other = ROW.replace(backend="mpi", parts=()), ROW.replace(regime="fsdp", parts=())
    assert [[row.backend for row in those] for those in trainings([ROW, other, mpi])] == [["gloo", "mpi"], ["gloo"]]
    lines = text_of(ROW, mpi, other).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["gloo", "mpi"]
    assert "mpi: expected step time: 869.0 ms" in lines
    assert lines[lines.index("") + 1] == "fsdp · resnet50, 25,557,032 parameters · float32 · 2 ranks · 2 nodes", "fsdp has no buckets"


def test_what_cannot_be_measured_or_laid_out_is_a_line_with_its_reason():
    row = ROW.replace(na="gloo has no all-to-all", time_s=None, wrong=None, busbw_bytes_per_s=None, ceiling=None, parts=(),
                  percent_of_ceiling=None, ceiling_time_s=None, parts_time_s=None)  # fmt: skip
    assert text_of(row).splitlines()[2].split(maxsplit=1) == ["gloo", "n/a (gloo has no all-to-all)"]
    row = StepRow("hierarchical", "1M", "gloo", "cpu", 2, 1, "", 0, 0, 0, 0.0, na="one host")
    assert text_of(row).splitlines() == ["hierarchical · 1M · 2 ranks · 1 node", "backend  flags", "gloo     n/a (one host)"]
    row = ROW.replace(percent_of_ceiling=None, ceiling=Ceiling("none", None, "a virtual interface has no rate"), ceiling_time_s=None)
    line = text_of(row).splitlines()[2]
    assert "a virtual interface has no rate" in line and "%" not in line
    assert "expected step time" not in text_of(row)
    several, unmeasured = text_of(ROW).splitlines()[4:6]
    assert fields(several)[1] == "gradients, bucket 1–3 of 4"
    assert fields(unmeasured)[:6] == ["gradients, bucket 4 of 4", "allreduce", "1 of 2 ranks", "24 MiB", "1", "–"]


def test_keys_of_a_newer_collbench_and_columns_of_a_narrow_terminal_are_left_out():
    values = ROW.replace(parts=PARTS[:1]).as_json()
    (part,) = values["parts"]
    part["time_s"]["p99_9"] = 1.0
    part["ceiling"]["colour"] = "red"
    assert text_of(StepRow.decoded(values)) == text_of(ROW.replace(parts=PARTS[:1]))
    shown = [line.text for line in lines([ROW.replace(flags=("drift",))], Display(100))]
    assert fields(shown[1]) == ["backend", "step ms", "wrong", "of expected", "limited by", "flags"]
    assert shown[3] == "not shown on a terminal this narrow: steps, 95 % interval ms, moves, busbw GB/s"
    assert max(map(len, shown[:8])) <= 100


def test_doubt_and_wrong_data_are_loud_and_hostile_names_cannot_move_the_cursor():
    row = ROW.replace(flags=("drift", "few_samples"), wrong=3, wrong_detail="rank 1, element 7: 4.0 instead of 3.0")
    said = text_of(row)
    assert "? 890.0–930.0" in said and "drift, few samples" in said and "\ndrift: the median moved" in said
    assert "wrong data: 3 elements " in said
    part = PARTS[0].replace(what="\x1b[2J", ends=("", ""), operation="\x07")
    hostile = ROW.replace(model="\x1b[31m", na=None, note="\x9b", backend="a\nb", parts=(part,), options={"update": "\x00"})
    assert all(line.isprintable() for line in text_of(hostile).splitlines())


def test_scaling_efficiency_is_a_range_and_reports_of_what():
    lines = text_of(ROW, ROW.replace(backend="mpi", time_s=times(0.06)), step_time_s=0.18).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("scaling efficiency"))
    assert "t = 180.0 ms" in lines[at]
    # 180/(180+900), 180/(180+930), 180/(180+890); 180/900, 180/930, 180/890
    assert fields(lines[at + 2]) == ["gloo", "16.7 % (16.2–16.8 %)", "20.0 % (19.4–20.2 %)"]
    assert fields(lines[at + 3]) == ["mpi", "75.0 %", "100.0 %"]
    assert fields(lines[at + 1]) == ["backend", "no overlap, t/(t+c)", "perfect overlap, t/max(t,c)"]
    assert "scaling" not in text_of(ROW)


def computing(outcome="partial", doubt=None):
    known = Overlap(
        0.09, 0.18, 0.225, OverlapEstimate(50.0, 48.0, 52.0), OverlapEstimate(0.045, 0.044, 0.046), OverlapEstimate(1.1, 1.0, 1.2),
        "waiting", "threads", None, None, 40, outcome, doubt,
    )  # fmt: skip
    return StepOverlap(0.18, True, known, OverlapEstimate(0.8, 0.79, 0.81))


def test_a_measured_efficiency_replaces_the_range(tmp_path):
    row = ROW.replace(computing=computing())
    said = text_of(row, step_time_s=0.18).splitlines()
    at = next(number for number, line in enumerate(said) if "exchanges ms" in line)
    assert fields(said[at + 1]) == [
        "gloo", "180.0", "90.00", "225.0", "45 (44–46)", "50 % (48–52)", "+10 %", "partial, waiting pays", "80.0 % (79.0–81.0 %)"
    ]  # fmt: skip
    assert not any("perfect overlap" in line for line in said)
    record = next(csv.DictReader(io.StringIO(text_of(row, format="csv", step_time_s=0.18))))
    assert float(record["computing_efficiency"]) == 0.8 and float(record["computing_exposed_low_s"]) == 0.044
    folder = stored(tmp_path / "run", row, about={"step_time_s": 0.18})
    assert shown(folder)[0] == "run (1 row)\n" + text_of(row, step_time_s=0.18)
    assert read_workload(folder)[1][0].computing == row.computing
    disturbed = replace(row.computing, overlap=replace(row.computing.overlap, percent=OverlapEstimate(-48.3, -60.0, 2.0)))
    _, (again,), warnings = read_workload(stored(tmp_path / "below 0", ROW.replace(computing=disturbed)))
    assert again.computing == disturbed and not warnings


def test_an_inconclusive_efficiency_shows_the_range_and_why():
    shared = ROW.replace(computing=computing("inconclusive", CoresSharedWithProgress("node1", 2, 2, 2)))
    said = text_of(shared, step_time_s=0.18)
    assert "perfect overlap" in said and "80.0 %" not in said and "2 ranks and 2 progress threads share 2 cores" in said
    refused = StepOverlap(0.18, True, refusal=as_json(TimelineUnsupported("simulated")))
    said = text_of(ROW.replace(computing=refused), step_time_s=0.18)
    assert "perfect overlap" in said and TimelineUnsupported("simulated").render() in said and "exchanges ms" not in said


def test_asynchronous_training_shows_how_stale_the_first_workers_are():
    row = ROW.replace(regime="parameter-server", options={"update": "asynchronous", "servers": ""}, staleness=STALE, parts=())
    lines = text_of(row).splitlines()
    assert lines[0].startswith("parameter-server · resnet50, 25,557,032 parameters · float32 · update asynchronous · buckets of 25 MiB")
    assert fields(lines[1])[:4] == ["backend", "rounds", "round ms", "95 % interval ms"]
    assert fields(lines[3]) == ["backend", "worker", "rounds", "rounds/s", "staleness: median", "95 %", "most"]
    assert [fields(line) for line in lines[4:6]] == [["gloo", "rank 1", "40", "8", "1", "2", "3"], ["rank 2", "22", "4.5", "2", "3", "5"]]
    assert (
        "no worker waits for another: 2 workers, 12.5 rounds per second together, for 5 s; staleness, updates of others between a worker's "
        "pull and its next push: median 2, 95 % up to 3, at most 5"
    ) in lines
    workers = tuple(STALE.workers[0].replace(rank=rank) for rank in range(40))
    said = text_of(ROW.replace(staleness=STALE.replace(workers=workers), parts=()))
    assert "rank 15 " in said and "rank 16 " not in said and "40 workers (the first 16 are shown)" in said


def test_csv_is_a_flat_record_per_training_and_backend_with_one_header():
    hostile = ROW.replace(model="=cmd()", note="a\x1b[31m", staleness=STALE)
    rows = list(csv.DictReader(io.StringIO(text_of(ROW, hostile, format="csv", step_time_s=0.18, run="=run"))))
    assert [(row["run"], next(iter(row))) for row in rows] == [("'=run", "run")] * 2
    assert [float(rows[0][name]) for name in ("scaling_apart", "scaling_overlap_low")] == pytest.approx([180 / 1080, 180 / 930])
    assert (rows[1]["model"], rows[1]["note"]) == ("'=cmd()", "a?[31m")
    assert json.loads(rows[1]["staleness"])["max"] == 5.0
    whole = text_of(ROW, ROW, format="csv")
    assert text_of(ROW, format="csv") + text_of(ROW, format="csv", headed=True) == whole


def test_json_has_the_scaling_if_the_step_was_measured_and_an_unknown_format_is_refused():
    actual = json.loads(text_of(ROW, format="json", step_time_s=0.18))
    assert actual["scaling"]["compute_s"] == 0.18 and actual["scaling"]["apart"]["value"] == pytest.approx(1 / 6)
    without = json.loads(text_of(ROW.replace(time_s=None), format="json", step_time_s=0.18))
    assert "scaling" not in without
    with pytest.raises(UsageError, match=rf"'nccl-tests' .*workload: .*{', '.join(FORMATS)}"):
        text_of(ROW, format="nccl-tests")


def stored(folder, *rows, about=None, tail="", finished=True):
    folder.mkdir()
    end = {"finished_utc": "2026-11-22T00:00:00.000Z"} if finished else {}
    (folder / "run.json").write_text(json.dumps({"schema": 1, "operation": "workload", "workload": about or {}, **end}))
    (folder / "cells.jsonl").write_text("")
    (folder / "workload.jsonl").write_text("".join(json.dumps(row.as_json()) + "\n" for row in rows) + tail)
    return folder


def shown(path, format="table"):
    out, err = io.StringIO(), io.StringIO()
    show_all(Material([read_run(path)], Path()), format, out=out, err=err, color=False)
    return out.getvalue(), err.getvalue()


def test_a_stored_run_reads_as_it_was_measured_and_what_cannot_be_read_is_a_warning(tmp_path):
    folder = stored(tmp_path / "run", ROW, ROW.replace(backend="mpi"), about={"step_time_s": 0.18})
    said, warnings = shown(folder)
    assert said == "run (2 rows)\n" + text_of(ROW, ROW.replace(backend="mpi"), step_time_s=0.18) and warnings == ""
    assert shown(folder, "csv")[0] == text_of(ROW, ROW.replace(backend="mpi"), format="csv", step_time_s=0.18, run="run")
    said, warnings = shown(stored(tmp_path / "cut", ROW, tail='{"regime": 3}\n{"regime": "fsd', finished=False))
    assert said.startswith("cut (1 row, not finished)\n")
    assert "workload.jsonl" in warnings and "line 3" in warnings


@pytest.mark.parametrize("step_time", [None, "0.18", -1, 0, True, float("inf"), [], {}])
def test_a_step_time_that_is_none_is_not_believed(step_time, tmp_path):
    assert shown(stored(tmp_path / "run", ROW, about={"step_time_s": step_time}))[0] == "run (1 row)\n" + text_of(ROW)


def test_the_command_shows_it_and_writes_one_csv_file_with_one_header_even_if_some_runs_are_empty(tmp_path):
    runs = [stored(tmp_path / name, ROW) for name in ("a", "b")]
    out = io.StringIO()
    assert report_run(runs, None, "table", out, err=io.StringIO()) == 0
    assert out.getvalue() == "".join(f"{name} (1 row)\n{text_of(ROW)}" for name in "ab")
    assert report_run(runs[:1], tmp_path / "steps.csv", "json", io.StringIO(), err=io.StringIO()) == 0
    assert (tmp_path / "steps.csv").read_bytes().decode() == text_of(ROW, format="csv", run="a")
    runs = [stored(tmp_path / "none"), runs[0], stored(tmp_path / "c", ROW.replace(backend="mpi"))]
    out = io.StringIO()
    report_run(runs, tmp_path / "steps.csv", "csv", out, err=io.StringIO())
    whole = text_of(ROW, format="csv", run="a") + text_of(ROW.replace(backend="mpi"), format="csv", run="c", headed=True)
    assert out.getvalue() == whole and (tmp_path / "steps.csv").read_bytes().decode() == whole


def test_a_run_json_that_does_not_fit_and_a_run_without_a_row_are_bad_input(tmp_path):
    folder = stored(tmp_path / "run", ROW)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "operation": "workload", "workload": []}))
    with pytest.raises(UsageError, match=r"no valid 'workload'"):
        report_run([folder], None, "table", io.StringIO(), err=io.StringIO())
    err = io.StringIO()
    assert report_run([stored(tmp_path / "none")], None, "table", io.StringIO(), err=err) == 2
    assert "workload.jsonl" in err.getvalue()


# What --dry-run prints of a step: neighbours that differ only in a number are one line, bytes by hand, and records for programs.

EXCHANGES = (
    Exchange("allreduce", ALL, 2 * MIB, "gradients, bucket 1 of 3", redop="sum"),
    Exchange("allreduce", ALL, 2 * MIB, "gradients, bucket 2 of 3", redop="sum"),
    Exchange("allreduce", ALL, MIB, "gradients, bucket 3 of 3", redop="sum"),
    Exchange("sendrecv", ((0, 2), (1, 3)), MIB, "=activations", times=5),
)


def planned(*exchanges, note=""):
    step = Step(exchanges, 4_000_000, note)
    return PlannedStep(Regime("made-up", "for tests", lambda shape: step), SHAPE, step, "tiny")


def plan_of(*those, format="table"):
    out = io.StringIO()
    PlannedSteps(those).write(format, out, None)
    return out.getvalue()


def test_a_line_per_kind_of_exchange_and_the_bytes_below():
    lines = plan_of(planned(*EXCHANGES, note="a note")).splitlines()
    assert lines[0] == "made-up · tiny, 1,000,000 parameters · float32 · update sharded · 4 ranks · 2 nodes"
    assert [line.split("  ")[0] for line in lines[2:5]] == ["gradients, bucket 1–2 of 3", "gradients, bucket 3 of 3", "=activations"]
    assert lines[2].split()[-3:] == ["2", "6", "MiB"], "two of 2 MiB, 2·3/4 times each"
    assert lines[4].split()[-3:] == ["5", "5", "MiB"]
    # 2·3/4·5 MiB and five messages of 1 MiB, of four ranks
    assert lines[5] == "a step: 3.81 MiB of a rank's own data; the busiest rank moves 12.5 MiB, all ranks 50 MiB"
    assert lines[6:] == ["a note", "moves: what the busiest rank has to send or receive, as busbw counts it; an algorithm may move more"]
    lines = plan_of(planned(*EXCHANGES), planned(EXCHANGES[0])).splitlines()
    assert lines[lines.index("") + 1].startswith("made-up · tiny") and sum(line.startswith("a step: ") for line in lines) == 2


def test_programs_get_every_exchange_for_itself():
    rows = [json.loads(line) for line in plan_of(planned(*EXCHANGES), planned(EXCHANGES[0]), format="json").splitlines()]
    assert [(row["what"], row["moves_bytes"], row["groups"], row["group_ranks"]) for row in rows[2:5]] == [
        ("gradients, bucket 3 of 3", 1.5 * MIB, 1, 4), ("=activations", 5 * MIB, 2, 2), ("gradients, bucket 1 of 3", 3 * MIB, 1, 4),
    ]  # fmt: skip
    records = list(csv.DictReader(io.StringIO(plan_of(planned(*EXCHANGES), format="csv"))))
    assert [(record["what"], record["redop"]) for record in records[2:]] == [("gradients, bucket 3 of 3", "sum"), ("'=activations", "")]


def test_only_what_is_alike_is_folded_and_nothing_planned_prints_nothing():
    assert [plan_of(format=format).strip() for format in ("table", "json", "csv")] == ["", "", ""]
    other = Exchange("allreduce", ALL, 2 * MIB, "something else", redop="sum")
    assert [(each.what, each.times) for each in folded([EXCHANGES[0], other, EXCHANGES[1]])] == [
        ("gradients, bucket 1 of 3", 1), ("something else", 1), ("gradients, bucket 2 of 3", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("first", "last", "both"), [
    ("bucket 1 of 14", "bucket 13 of 14", "bucket 1–13 of 14"), ("bucket 1 of 14", "bucket 1 of 14", "bucket 1 of 14"),
    ("forward", "backward", "forward … backward"), ("", "", ""),
])  # fmt: skip
def test_two_names_in_one(first, last, both):
    assert span(first, last) == both


def test_routings_show_the_types_of_both_ways_and_of_many_the_slowest():
    assert "all tokens of a step: dispatch 8 MiB (float8_e4m3fn), combine 16 MiB (bfloat16)" in text_of(MOE).splitlines()
    many = [replace(ROUTED.steps[0], step=number, time_s=Estimate(number / 1000 + 0.001)) for number in range(100)]
    shown = shown_steps(replace(ROUTED, steps=tuple(many)))
    assert [step.step for step in shown] == list(range(100 - MOST_SHOWN, 100))
    assert f"the slowest {MOST_SHOWN} of 100 routings are shown" in text_of(MOE.replace(routing=replace(ROUTED, steps=tuple(many))))


@pytest.mark.parametrize(("compute", "shares"), [(None, 0), (1.0, 1)])
def test_only_a_replay_with_computing_has_an_exposed_share(compute, shares):
    trace = ReplayedTrace("kineto", 2, compute=compute, compute_s=0.6 if compute else 0.0)
    row = ROW.replace(regime="replay", ceiling_time_s=None, replay=trace)
    assert sum("%" in sentence for sentence in replay_sentences(row)) == shares
    assert row.exposed_s == pytest.approx(0.3 if compute else 0.9)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    monkeypatch.setenv("COLLBENCH_TTY", "0")


def quick_row(regime, backend):
    known = Times(0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
    return StepRow(regime, "1M", backend, "cpu", 2, 1, "float32", 10**6, 1 << 20, 4 * 10**6, 4e6, n=9, time_s=known)


def listening(format="table"):
    actual = WorkloadProgressPrinter(Output(format, "never"))
    actual.begin(Plan(2, {"workload": ABOUT}), "run")
    return actual


def heads(text):
    return [line.split(" · ")[0] for line in text.splitlines() if " · " in line]


def test_a_training_is_printed_after_its_last_backend(capsys):
    with listening() as actual:
        actual.progress("fsdp 1M on mpi", 0, 4, None)
        actual.record(quick_row("fsdp", "mpi"), None)
        said = capsys.readouterr()
        assert said.out == "" and "fsdp 1M on mpi" in said.err
        actual.record(quick_row("fsdp", "gloo"), None)
        said = capsys.readouterr().out
        assert heads(said) == ["fsdp"] and "mpi      75.0 %" in said, "300 of 400 ms"
        actual.record(quick_row("pipeline", "mpi"), None)
        actual.record(quick_row("pipeline", "gloo"), None)
        assert capsys.readouterr().out.startswith("\npipeline · 1M")
        actual.end()
        assert capsys.readouterr() == ("", "run folder: run\n")


def test_finished_rows_are_printed_after_an_error(capsys):
    with pytest.raises(RuntimeError), listening() as actual:
        actual.record(quick_row("fsdp", "mpi"), None)
        raise RuntimeError
    assert heads(capsys.readouterr().out) == ["fsdp"]


@pytest.mark.parametrize(("format", "lines"), [("csv", [2, 1, 1]), ("json", [1, 1, 1])])
def test_csv_and_json_rows_are_printed_at_once(format, lines, capsys):
    with listening(format) as actual:
        for count, each in zip(lines, (quick_row("fsdp", "mpi"), quick_row("fsdp", "gloo"), quick_row("pipeline", "mpi")), strict=True):
            actual.record(each, None)
            assert len(capsys.readouterr().out.splitlines()) == count


def test_with_a_live_line_the_tables_are_printed_at_the_end(monkeypatch, capsys):
    monkeypatch.setenv("COLLBENCH_TTY", "stderr")
    with listening() as actual:
        actual.progress("fsdp 1M on mpi", 0, 2, None)
        for backend in ABOUT["backends"]:
            actual.record(quick_row("fsdp", backend), None)
        assert capsys.readouterr().out == ""
        actual.end()
    assert heads(capsys.readouterr().out) == ["fsdp"]


@pytest.mark.parametrize("word", sorted({column.title for column in COLUMNS} - IDENTITIES))
def test_columns_of_steps(word):
    assert page(word)
