"""What a launch does when its results cannot be stored, its data is wrong, or it hangs: the rest is shown, kept, and gone on with."""

import errno
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from collbench.control.diagnosis import RankStalled
from collbench.errors import RunFailed, UsageError
from collbench.measuring import engine
from collbench.measuring import session as launching
from collbench.measuring.request import Request
from collbench.measuring.session import LaunchSession, WrongDataStop
from collbench.operations.data import Mismatch
from collbench.results import store
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.units import format_bytes
from tests.cli.command import until
from tests.measure.launches import RecordingListener
from tests.measure.test_resume import PLAN, start
from tests.results.rows import make_row

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
        with pytest.raises(
            RunFailed,
            match=r"\(No space left on device\): 3 finished cases are safe in it; make room there and go on with `collbench --res",
        ):
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
    with pytest.raises(
        RunFailed, match=r"run was moved to \S+/there while the run wrote into it: 3 finished cases are there; leave it and go on"
    ):
        start(out=tmp_path / "run")
    monkeypatch.undo()
    assert not (tmp_path / "run").exists()
    found = start(resume=tmp_path / "there")
    assert (found.code, len(found.listener.titles), len(found.rows)) == (0, 5, 8)


def test_a_disk_that_fails_before_the_first_case_is_bad_input(tmp_path, monkeypatch):
    monkeypatch.setattr("collbench.measuring.session.Ceilings.topology", lambda self: (tmp_path / "run").rename(tmp_path / "there") and {})
    with pytest.raises(UsageError, match="nothing was measured"):
        start(out=tmp_path / "run")
    assert read_run(tmp_path / "there").rows == []


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
