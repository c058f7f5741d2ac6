"""Runs that break off: what is stored stays, what is missing is measured, on the same cluster with the same software alone."""

import errno
import json
import os
import shutil
import socket
import threading
import time
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from collbench import __version__
from collbench.control.diagnosis import RankStalled
from collbench.errors import RunFailed, UsageError
from collbench.machine.model import Machine, Nic, Port
from collbench.machine.snapshot import topology_json
from collbench.measuring import engine
from collbench.measuring import session as launching
from collbench.measuring.request import Budget, Request
from collbench.measuring.resume import difference, resumed_note, rows_by_place, topology_difference
from collbench.measuring.session import LaunchSession, WrongDataStop
from collbench.measuring.tasks.cases import task_of
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.builtin.p2p import P2P_LATENCY
from collbench.operations.data import Mismatch
from collbench.operations.dtypes import DTYPES
from collbench.operations.sweep import Sweep
from collbench.results import store
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.store import LOCK, to_line
from collbench.units import format_bytes
from tests.cli.command import until
from tests.conftest import sample
from tests.measure.launches import RecordingListener, run_alone
from tests.results.rows import make_row

SIZES = (8, 64, 512, 4096)
PLAN = Sweep((ALLREDUCE,), SIZES, (DTYPES["float32"], DTYPES["int8"]), redops=("sum",))
MIXED = replace(PLAN, operations=(ALLREDUCE, P2P_LATENCY), sizes=SIZES[:2], redops=("sum", "band"))


def start(sweep=PLAN, fails_at=None, **more):
    """Measure on 4 virtual ranks; returns exit code, rows in planned order, and reports. Interrupts at the start of a case."""
    request = Request(
        "allreduce", sweep, ("simulated",), frozenset(["simulated"]),
        **{"ranks": 4, "budget": Budget(0.2, 6, 1), "timeout_s": 10.0, **more},
    )  # fmt: skip
    actual = RecordingListener()

    def progress(title, done, total, eta_s):
        if done == fails_at:
            raise RunFailed("the disk burns")

    if fails_at is not None:
        actual.progress = progress
    code = run_alone(task_of, request, actual)
    return SimpleNamespace(code=code, listener=actual, rows=actual.in_order)


def broken_off(folder, after, **more):
    """A run that failed after so many cases."""
    with pytest.raises(RunFailed, match="the disk burns"):
        start(out=folder, fails_at=after, **more)
    return read_run(folder).rows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    start(MIXED, out=folder)
    return folder


def test_what_is_missing_is_measured_the_rest_is_kept_and_the_folder_shows_when_it_was_resumed_and_how_it_had_ended(tmp_path):
    kept = broken_off(tmp_path / "run", 3)
    found = start(resume=tmp_path / "run", order_seed=5, argv=("allreduce", "--resume", "run"))
    assert (len(kept), found.code, len(found.listener.titles), found.listener.titles[-1][2]) == (3, 0, 5, 5)
    assert [(row.dtype, row.size_bytes) for row in found.rows] == [(dtype, size) for dtype in ("float32", "int8") for size in SIZES]
    stored = read_run(tmp_path / "run")
    assert stored.rows[:3] == kept
    assert sorted(map(str, stored.rows)) == sorted(map(str, found.rows))
    assert found.listener.notes[0] == resumed_note(str(tmp_path / "run"), 3, 8)
    (note,) = stored.info["resumed"]
    assert (note["rows"], note["command"], note["order_seed"]) == (3, ["collbench", "allreduce", "--resume", "run"], 5)
    assert note["ended"]["exit_code"] == 4
    assert (stored.info["exit_code"], stored.info["rows"]) == (0, 8)
    assert [event["kind"] for event in stored.events if event["kind"] != "note"] == ["abort", "resumed"]


def test_a_complete_run_is_reported_again_and_left_as_it_is(whole):
    before = contents(whole)
    found = start(MIXED, resume=whole)
    assert (found.code, len(found.listener.titles)) == (0, 0)
    assert found.listener.notes[0] == resumed_note(str(whole), len(found.rows), len(found.rows))
    assert sorted(map(str, found.rows)) == sorted(map(str, read_run(whole).rows))
    assert contents(whole) == before


def test_cases_that_cannot_be_measured_or_are_wrong_count_as_done_and_the_code_is_that_of_all_rows(tmp_path):
    sweep = replace(PLAN, redops=("band",), dtypes=(DTYPES["float32"],))
    assert start(sweep, out=tmp_path / "n/a").code == 2
    found = start(sweep, resume=tmp_path / "n/a")
    assert (found.code, len(found.listener.titles), len(found.rows)) == (2, 0, 4)
    broken_off(tmp_path / "run", 3)
    (tmp_path / "run" / "topology.json").unlink()  # as if it had not been written yet
    file = tmp_path / "run" / "cells.jsonl"
    first, *others = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in [{**first, "wrong": 7}, *others]))
    assert (start(resume=tmp_path / "run").code, start(resume=tmp_path / "run").code) == (4, 4)
    assert json.loads((tmp_path / "run" / "topology.json").read_text())["schema"] == 1


def _unfinished(folder):
    """run.json as it is while a run goes on."""
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({name: about[name] for name in about if name not in ("finished_utc", "exit_code", "rows")}))


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def torn(folder):
    """A run as a kill leaves it: half a line in both files of lines, and the lock of a process that is gone."""
    _unfinished(folder)
    for name in ("cells.jsonl", "events.jsonl"):
        with (folder / name).open("ab") as file:
            file.write(b'{"half":')
    (folder / LOCK).write_bytes(to_line({"host": socket.gethostname(), "pid": 2**22 + 1}).encode())
    return folder


@pytest.mark.parametrize("cut", sample(range(1, 40), 3))
def test_samples_that_a_row_has_lost_are_refused_and_nothing_is_touched(tmp_path, whole, cut):
    shutil.copytree(whole, tmp_path / "run")
    content = (whole / "samples.bin").read_bytes()
    (torn(tmp_path / "run") / "samples.bin").write_bytes(content[: len(content) - len(content) * cut // 40])
    before = contents(tmp_path / "run")
    with pytest.raises(UsageError, match="lies outside"):
        start(MIXED, resume=tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_of_a_torn_run_that_is_refused_not_even_half_a_line_is_cut(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "run")
    torn(tmp_path / "run")
    lines = (tmp_path / "run" / "cells.jsonl").read_bytes().splitlines(keepends=True)
    lost = next(line for line in lines if json.loads(line).get("na") is None)  # a case that was measured: the order is shuffled
    (tmp_path / "run" / "cells.jsonl").write_bytes(b"".join(line for line in lines if line is not lost))
    topology = json.loads((whole / "topology.json").read_text())
    topology["machines"][0]["system"]["cpu_model"] = "another one"
    (tmp_path / "run" / "topology.json").write_text(json.dumps(topology))
    before = contents(tmp_path / "run")
    for change, why in (({"check": 2}, "--check was 1 and is 2"), ({}, "then has processor another one, now has ")):
        with pytest.raises(UsageError, match=f"cannot be resumed.*{why}"):
            start(MIXED, resume=tmp_path / "run", **change)
        assert contents(tmp_path / "run") == before
    (tmp_path / "run" / "topology.json").write_bytes((whole / "topology.json").read_bytes())
    found = start(MIXED, resume=tmp_path / "run")
    assert (len(found.listener.titles), len(found.rows), read_run(tmp_path / "run").warnings) == (1, len(lines) - 1, [])


def test_a_complete_run_whose_end_is_not_reported_is_ended_and_shows_when(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "run")
    found = start(MIXED, resume=torn(tmp_path / "run"))
    stored = read_run(tmp_path / "run")
    assert (found.code, len(found.listener.titles), stored.warnings, stored.info["exit_code"]) == (0, 0, [], 0)
    assert stored.info["resumed"][0]["cut_bytes"] == {"cells.jsonl": 8, "events.jsonl": 8}
    assert "cells.jsonl ended with an incomplete line: 8 bytes removed" in found.listener.notes


@pytest.mark.parametrize(("change", "expected"), [
    ({"budget": Budget(0.2, 7, 1)}, "--iterations was 6 and is 7"), ({"check": 2}, "--check was 1 and is 2"),
    ({"sweep": replace(PLAN, sizes=(8, 64))}, "the cases' size_bytes was 8, 64, 512, 4096 and is 8, 64"),
    ({"sweep": replace(PLAN, operations=(BROADCAST,))}, "the cases' operation was allreduce and is broadcast"),
    ({"ranks": 3}, "the number of ranks was 1 and|the cases' ranks was 4 and is 3"),
    ({"seed": 3}, "--seed was 0 and is 3"),
])  # fmt: skip
def test_another_request_is_refused_and_nothing_is_touched(tmp_path, change, expected):
    broken_off(tmp_path / "run", 2)
    before = contents(tmp_path / "run")
    with pytest.raises(UsageError, match=rf"run .*({expected}).*--resume"):
        start(**{"resume": tmp_path / "run", **change})
    assert contents(tmp_path / "run") == before


ABOUT = {
    "collbench": __version__, "operation": "allreduce", "hosts": ["node1", "node2"], "asked": {"cells": 3, "digest": "a", "options": {}},
    "rank_map": [{"rank": 0, "host": "node1", "pid": 7, "cpus": [0, 1]}, {"rank": 1, "host": "node2", "pid": 8, "cpus": [0, 1]}],
    "backends": {"mpi": {"mpi": "MPICH 4.3.2"}}, "environment": {"NCCL_ALGO": "Ring", "SLURM_JOB_ID": "7"},
    "host": {"kernel": "6.1", "hostname": "node1"}, "started_utc": "2026", "suite": {"name": "quick", "digest": "d"},
}  # fmt: skip


def changed(path, value):
    about = json.loads(json.dumps(ABOUT))
    *way, last = path
    inner = about
    for step in way:
        inner = inner[step]
    inner[last] = value
    return about


@pytest.mark.parametrize(("path", "value", "expected"), [
    (["collbench"], "0.0.1", f"collbench was 0.0.1 and is {__version__}"),
    (["operation"], "broadcast", "the command was broadcast and is allreduce"),
    (["hosts"], ["node1", "node3"], "the list of hosts was node1, node3 and is node1, node2"),
    (["rank_map", 1, "host"], "node1", "the host of rank 1 was node1 and is node2"),
    (["rank_map", 1, "cpus"], [0], "the number of CPUs of rank 1 was 1 and is 2"),
    (["backends", "mpi", "mpi"], "MPICH 5", "mpi's mpi was MPICH 5 and is MPICH 4.3.2"),
    (["backends", "mpi"], {"not measured": "srun"},
        "backend mpi was not available and is available, mpi's mpi was not set and is MPICH 4.3.2"),
    (["environment", "NCCL_ALGO"], "Tree", "NCCL_ALGO was Tree and is Ring"),
    (["environment", "NCCL_PROTO"], "LL", "NCCL_PROTO was LL and is not set"),
    (["host", "kernel"], "5.4", "the host's kernel was 5.4 and is 6.1"),
    (["suite", "digest"], "e", "the suite's text (SHA-256) was e and is d"),
    (["suite"], None, "the suite was not set and is quick, the suite's text (SHA-256) was not set and is d"),
    (["asked", "digest"], "b", "how the cases are arranged (SHA-256) was b and is a"),
    (["asked"], None, "what was requested was not recorded and is recorded, the number of cases was None and is 3"),
])  # fmt: skip
def test_what_differs_is_named(path, value, expected):
    assert difference(changed(path, value), ABOUT) == expected


@pytest.mark.parametrize("path", [["rank_map", 0, "pid"], ["environment", "SLURM_JOB_ID"], ["started_utc"], ["host", "hostname"]])
def test_what_is_new_with_every_start_is_no_difference(path):
    assert difference(changed(path, "9"), ABOUT) is None


@pytest.mark.parametrize("content", [{}, {"hosts": 3, "rank_map": [7, {}], "backends": "no", "asked": [1], "environment": None}])
def test_a_run_json_of_another_program_is_a_difference_and_no_traceback(content):
    assert difference(content, ABOUT).startswith("the command was None ")


def test_options_are_named_as_they_were_typed_and_before_the_machine():
    asked = {"cells": 3, "digest": "b", "options": {"--max-time": 3}}
    command = ["collbench", "allreduce", "--max-time=3s", "--sizes", "8", "--out", "a"]
    then = {**ABOUT, "asked": asked, "host": {"kernel": "6.0"}, "command": command}
    now = {**ABOUT, "command": ["collbench", "allreduce", "--resume", "a", "--quiet", "-n", "5"]}
    options = "-n was not set and is 5, --max-time was 3s and is not set, --sizes was 8 and is not set"
    expected = f"{options}, the host's kernel was 6.0 and is 6.1"
    assert difference(then, now) == expected
    same = {**then, "asked": ABOUT["asked"]}  # other words for the same request
    assert difference(same, now) == "the host's kernel was 6.0 and is 6.1"
    many = {**then, "host": {**dict.fromkeys(("kernel", "libc"), "1")}}
    assert difference(many, now).endswith(" and 1 other difference")


def test_another_interface_or_machine_is_named():
    now = {**topology_json([Machine(hostname="node1")]), "interfaces": [{"name": "eth0", "mtu": 1500, "speed_bits_per_s": 1e9}]}
    slower = {**now, "interfaces": [{"name": "eth0", "mtu": 1500, "speed_bits_per_s": 2e9}]}
    machine = Machine(hostname="node1")
    other = topology_json([replace(machine, system=replace(machine.system, kernel="6.1"))])
    here = topology_json([replace(machine, system=replace(machine.system, kernel="6.2"))])
    assert topology_difference(now, now) is None
    assert topology_difference({}, now) is None
    assert "speed_bits_per_s was 2000000000.0 and is 1000000000.0" in topology_difference(slower, now)
    assert topology_difference(other, here).endswith(": then has kernel 6.1, now has kernel 6.2")


def test_virtual_interfaces_come_and_go_with_containers():
    up, down = (Nic("docker0", virtual="bridge", ports=(Port(state=state),)) for state in ("up", "down"))
    then, now = (topology_json([Machine(hostname="node1", nics=(nic,))]) for nic in (up, down))
    real = [topology_json([Machine(hostname="node1", nics=(replace(nic, virtual=None),))]) for nic in (up, down)]
    assert topology_difference(then, now) is None
    assert topology_difference(*real).endswith(": then has docker0 up, now has docker0 down")


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"run\.json is missing"):
        start(resume=tmp_path)
    (tmp_path / "run.json").write_text('{"schema": 1, "coll')
    with pytest.raises(UsageError, match=r"run\.json .*\(not JSON"):
        start(resume=tmp_path)


def test_every_row_shows_what_it_took_in_its_loop_and_beside_it(tmp_path):
    began = time.monotonic()
    walls = [row.evidence["wall_s"] for row in start(MIXED, out=tmp_path / "run").rows]
    elapsed = time.monotonic() - began
    assert all(wall["measured"] >= 0 and wall["harness"] > 0 for wall in walls)
    assert any(wall["measured"] > 0 for wall in walls)
    assert sum(wall["measured"] + wall["harness"] for wall in walls) < elapsed


def test_every_row_shows_when_it_was_measured_by_the_clock_of_the_run_that_was_begun(tmp_path):
    broken_off(tmp_path / "run", 3)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    began = datetime.fromisoformat(info["started_utc"]) - timedelta(hours=1)
    (tmp_path / "run" / "run.json").write_text(json.dumps({**info, "started_utc": began.isoformat()}))
    start(resume=tmp_path / "run")
    times = [row.evidence["at_s"] for row in read_run(tmp_path / "run").rows]
    assert all(begin <= end for begin, end in times)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times))
    assert times[2][1] < 3600 <= times[3][0]


@pytest.mark.parametrize("altered", [None, "yesterday", 5, "2026-11-21"])
def test_a_run_that_does_not_report_when_it_began_cannot_report_when_its_rows_were_measured(tmp_path, altered):
    broken_off(tmp_path / "run", 1)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**info, "started_utc": altered}))
    assert start(resume=tmp_path / "run").code == 0
    assert ["at_s" in row.evidence for row in read_run(tmp_path / "run").rows] == [True] + 7 * [False]


def test_a_stored_row_is_used_once_and_found_by_either_of_its_names():
    """A plan that has a case twice, of which one was measured before the run broke off. Only an open backend shows what is in place."""
    row, other = make_row(8), make_row(64)
    planned = [(row, row), (other, other), (row, row)]
    second = replace(row, n=77)
    apart, in_place = make_row(8, in_place=False), make_row(8, in_place=True)
    assert rows_by_place([row], planned) == {0: row}
    assert rows_by_place([row, second], planned) == {0: row, 2: second}
    assert rows_by_place([], planned) == {}
    assert [rows_by_place([stored], [(apart, in_place)]) for stored in (in_place, apart)] == [{0: in_place}, {0: apart}]


@pytest.mark.parametrize(("records", "sentence"), [
    ((3, 8), "runs/x has 3 of 8 cases: 5 are measured now"), ((7, 8), "runs/x has 7 of 8 cases: 1 is measured now"),
    ((8, 8), "runs/x has 8 of 8 cases: nothing is left to measure"),
    ((3, None, "round"), "runs/x has 3 rounds: the others are measured now"),
    ((3, None, "round", True), "runs/x has 3 rounds: nothing is left to measure"),
])  # fmt: skip
def test_the_note_of_a_resumed_run(records, sentence):
    assert resumed_note("runs/x", *records) == sentence


WRONG = [Mismatch(2, 5, 17, "3.0", "2.0", "rank 0's share is missing"), Mismatch(3, 1, 4, "1.0", "0.0")]
SENTENCES = (
    "rank 2: 5 wrong elements, first at 17: wanted 3.0, got 2.0 (rank 0's share is missing); "
    "rank 3: 1 wrong element, first at 4: wanted 1.0, got 0.0"
)


@pytest.fixture
def wrong(monkeypatch):
    """Makes the data of the case that is measured as the nth (from 1) wrong."""

    def at(number):
        real, cases = engine.verify, []

        def verify(ready, world, checks):
            cases.append(ready.case)
            return list(WRONG) if len(cases) == number else real(ready, world, checks)

        monkeypatch.setattr(engine, "verify", verify)

    return at


def test_a_row_of_wrong_data_has_rank_place_wanted_and_got_and_the_rest_is_measured(tmp_path, wrong):
    wrong(3)
    found = start(out=tmp_path / "run", order_seed=1)
    assert (found.code, len(found.rows)) == (4, 8)
    (row,) = [row for row in read_run(tmp_path / "run").rows if row.wrong]
    assert (row.checked, row.wrong, row.wrong_detail) == (1, 6, SENTENCES)
    assert row.evidence["wrong_data"] == {"found": 2, "first": [one.as_json() for one in WRONG]}
    assert {"rank": 2, "wrong": 5, "index": 17, "wanted": "3.0", "got": "2.0"}.items() <= row.evidence["wrong_data"]["first"][0].items()


def test_wrong_data_ends_the_run_where_that_is_asked_for_and_the_rest_can_be_measured_later(tmp_path, wrong):
    wrong(3)
    found = start(out=tmp_path / "run", order_seed=1, stop_on_wrong=True)
    stored = read_run(tmp_path / "run")
    assert (found.code, len(found.rows), len(stored.rows)) == (4, 3, 3)
    assert (stored.finished, stored.info["exit_code"], stored.info["rows"]) == (True, 4, 3)
    last = stored.rows[-1]
    where = f"allreduce {format_bytes(last.size_bytes)} on simulated"
    assert WrongDataStop(where, 5, SENTENCES).render() in found.listener.notes
    wrong(2)
    found = start(resume=tmp_path / "run", stop_on_wrong=True)
    assert (found.code, len(found.listener.titles), len(read_run(tmp_path / "run").rows)) == (4, 2, 5)
    wrong(0)
    found = start(resume=tmp_path / "run")
    assert (found.code, len(found.listener.titles), len(read_run(tmp_path / "run").rows)) == (4, 3, 8)


def test_what_cannot_be_stored_is_shown_all_the_same(tmp_path, monkeypatch):
    write, actual = os.write, RecordingListener()

    def full(descriptor, data):
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "samples.bin" and len(actual.records) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr("tests.measure.test_resume.RecordingListener", lambda: actual)
    with monkeypatch.context() as patch:
        patch.setattr(store.os, "write", full)
        safe = r"\(No space left on device\): 3 finished cases are safe in it; make room there and go on with `collbench --res"
        with pytest.raises(RunFailed, match=safe):
            start(out=tmp_path / "run", order_seed=1)
    stored = read_run(tmp_path / "run")
    assert (len(actual.records), len(stored.rows), stored.info["exit_code"]) == (4, 3, 4)
    assert [row for _, row in actual.records[:3]] == stored.rows and actual.records[3][1].time_s is not None
    actual.__init__()
    found = start(resume=tmp_path / "run")
    assert (found.code, len(found.rows), len(read_run(tmp_path / "run").rows)) == (0, 8, 8)


def test_a_folder_that_is_moved_meanwhile_is_found_and_gone_on_with(tmp_path, monkeypatch):
    actual = RecordingListener()
    actual.progress = lambda title, done, total, eta_s: done == 3 and (tmp_path / "run").rename(tmp_path / "there")
    monkeypatch.setattr("tests.measure.test_resume.RecordingListener", lambda: actual)
    moved = r"run was moved to \S+/there while the run wrote into it: 3 finished cases are there; leave it and go on"
    with pytest.raises(RunFailed, match=moved):
        start(out=tmp_path / "run")
    monkeypatch.undo()
    assert not (tmp_path / "run").exists()
    found = start(resume=tmp_path / "there")
    assert (found.code, len(found.listener.titles), len(found.rows)) == (0, 5, 8)


STALLED = RankStalled("allreduce 8 B on mpi: measuring", "rank 0 (n1, pid 7)", 60.0)


@pytest.fixture
def hung(tmp_path):
    """A launch with one stored row and a listener, as the verdict finds it."""
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    folder.append(make_row(8), {})
    actual = RecordingListener()
    world = SimpleNamespace(ending_code=4, facts={})
    return LaunchSession(Request("allreduce", PLAN, ("simulated",)), world, actual, folder=folder)


def test_a_hang_is_kept_with_its_end_and_the_rows_that_wait_are_shown(hung):
    hung.hang(STALLED)
    stored = read_run(hung.folder.path)
    assert [(event["kind"], event["text"]) for event in stored.events] == [("hang", STALLED.render())]
    assert (stored.finished, stored.info["exit_code"], len(stored.rows), hung.listener.ended) == (True, 4, 1, True)


@pytest.mark.parametrize("stuck", ["disk", "screen"])
def test_neither_a_disk_nor_a_screen_that_does_not_answer_keeps_the_process_from_ending(hung, monkeypatch, stuck):
    never = threading.Event()
    monkeypatch.setattr(launching, "_PATIENCE_S", 0.1)
    if stuck == "disk":
        monkeypatch.setattr(store.os, "fdatasync", lambda descriptor: never.wait())
    else:
        hung.listener.end = never.wait
    began = time.monotonic()
    hung.hang(STALLED)
    assert time.monotonic() - began < 5
    if stuck == "screen":
        until(lambda: read_run(hung.folder.path).info.get("exit_code") == 4, "its end in the folder")  # a busy disk has longer than we wait
    else:
        assert hung.listener.ended
    never.set()
