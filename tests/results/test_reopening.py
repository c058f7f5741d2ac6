"""A reopened run folder: which processes may open it, what is cut, and where new rows go."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugin import RecordFile
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.store import LOCK, AppendFile, Lock
from tests.results.rows import make_row

FILES = {
    "pairs": RecordFile("pairs.jsonl", "round"),
    **{name: RecordFile(f"{name}.jsonl", "row", has_cases=True) for name in ("kv", "load", "workload")},
    "replay": RecordFile("workload.jsonl", "row", has_cases=True),
}


@pytest.fixture
def files_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collbench.results.folder.record_files", lambda: FILES)


def _half(path: Path) -> RunFolder:
    """A run with one row that was given up."""
    folder = RunFolder.create(path, "allreduce", {"seed": 7})
    folder.append(make_row(8), {"max_s": np.arange(3.0)})
    folder.give_up()
    return folder


def test_what_is_new_goes_behind_what_is_there(tmp_path: Path) -> None:
    _half(tmp_path / "run")
    folder = RunFolder.reopen(tmp_path / "run")
    assert folder.run["seed"] == 7
    assert folder.go_on() == {}
    folder.append(make_row(16), {"max_s": np.arange(5.0)})
    run = read_run(tmp_path / "run")
    assert [row.size_bytes for row in run.rows] == [8, 16]
    assert [run.array(row, "max_s").tolist() for row in run.rows] == [[0, 1, 2], [0, 1, 2, 3, 4]]


def test_half_a_line_is_cut_off_and_samples_that_no_row_has_are_left(tmp_path: Path) -> None:
    path = _half(tmp_path / "run").path
    for name, torn in (("cells.jsonl", b'{"operation":"all'), ("events.jsonl", b'{"utc":"2026"'), ("samples.bin", b"12345")):
        with (path / name).open("ab") as file:
            file.write(torn)
    folder = RunFolder.reopen(path)
    assert folder.go_on() == {"cells.jsonl": 17, "events.jsonl": 13}
    folder.append(make_row(16), {"max_s": np.arange(5.0)})
    folder.event("note")
    run = read_run(path)
    assert (len(run.rows), len(run.events), run.warnings) == (2, 1, [])
    assert run.rows[1].samples["max_s"]["offset"] == 3 * 8 + 5
    assert run.array(run.rows[1], "max_s").tolist() == [0, 1, 2, 3, 4]


def test_a_line_that_lacks_only_its_end_is_kept_and_ended(tmp_path: Path) -> None:
    path = _half(tmp_path / "run").path
    whole = (path / "cells.jsonl").read_bytes()
    (path / "cells.jsonl").write_bytes(whole[:-1])
    folder = RunFolder.reopen(path)
    assert len(read_run(path).rows) == 1
    assert folder.go_on() == {}
    folder.append(make_row(16), {})
    assert (path / "cells.jsonl").read_bytes().startswith(whole)
    assert [row.size_bytes for row in read_run(path).rows] == [8, 16]


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    path = _half(tmp_path / "run").path
    (path / "events.jsonl").unlink()
    os.mkfifo(path / "events.jsonl")
    folder = RunFolder.reopen(path)
    with pytest.raises(UsageError, match="it cannot be written"):
        folder.go_on()


@pytest.mark.parametrize("name", ["cells.jsonl", "samples.bin", "events.jsonl", ".run.json.new"])
def test_a_link_in_place_of_a_file_leads_nowhere(tmp_path: Path, name: str) -> None:
    path, ours = _half(tmp_path / "run").path, tmp_path / "ours"
    ours.write_text("half a line")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(ours)
    folder = RunFolder.reopen(path)
    if name == ".run.json.new":
        folder.go_on()
        folder.resumed()
        assert json.loads((path / "run.json").read_text())["resumed"] and not (path / "run.json").is_symlink()
    else:
        with pytest.raises(UsageError, match="it cannot be written"):
            folder.go_on()
    assert ours.read_text() == "half a line"


@pytest.mark.usefixtures("files_of_records")
def test_rounds_of_pairs_are_cut_in_the_same_way(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "pairs", {})
    folder.append_record({"round": 0}, "pairs.jsonl")
    folder.give_up()
    with (folder.path / "pairs.jsonl").open("ab") as file:
        file.write(b'{"round":1')
    again = RunFolder.reopen(folder.path)
    assert again.go_on() == {"pairs.jsonl": 10}
    again.append_record({"round": 1}, "pairs.jsonl")
    assert (folder.path / "pairs.jsonl").read_text() == '{"round":0}\n{"round":1}\n'


@pytest.mark.usefixtures("files_of_records")
@pytest.mark.parametrize("file", ["kv.jsonl", "load.jsonl", "workload.jsonl"])
def test_cases_of_a_row_that_was_not_finished_are_removed(tmp_path: Path, file: str) -> None:
    operation = {"workload.jsonl": "replay"}.get(file, file.removesuffix(".jsonl"))
    folder = RunFolder.create(tmp_path / "run", operation, {})
    folder.append(make_row(8), {"max_s": np.arange(3.0)})
    folder.append_record({"row": 0}, file)
    folder.append(make_row(16), {"max_s": np.arange(5.0)})
    folder.append(make_row(32), {})
    folder.give_up()
    again = RunFolder.reopen(folder.path)
    assert (again.go_on(), again.unfinished_cases) == ({}, 2)
    again.append(make_row(16), {"max_s": np.arange(6.0)})
    again.append_record({"row": 1}, file)
    again.give_up()
    run = read_run(folder.path)
    assert [row.size_bytes for row in run.rows] == [8, 16]
    assert [run.array(row, "max_s").size for row in run.rows] == [3, 6]
    third = RunFolder.reopen(folder.path)
    assert (third.go_on(), third.unfinished_cases) == ({}, 0)


@pytest.mark.usefixtures("files_of_records")
@pytest.mark.parametrize(("record", "removed"), [(b"", 1), (b'{"row":0}\n', 0), (b'{"row":0,"cases":true}\n', 0), (b"no object\n", 0)])
def test_cases_stay_where_no_row_says_how_many_are_finished(tmp_path: Path, record: bytes, removed: int) -> None:
    folder = RunFolder.create(tmp_path / "run", "kv", {})
    folder.append(make_row(8), {})
    folder.give_up()
    (folder.path / "kv.jsonl").write_bytes(record)
    again = RunFolder.reopen(folder.path)
    again.go_on()
    assert (again.unfinished_cases, len(read_run(folder.path).rows)) == (removed, 1 - removed)


@given(whole=st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=4), torn=st.binary(max_size=200_000))
def test_only_what_follows_the_last_end_of_a_line_is_cut(tmp_path_factory: pytest.TempPathFactory, whole: list[bytes], torn: bytes) -> None:
    path = tmp_path_factory.mktemp("cut") / "file"
    lines, rest = b"".join(line + b"\n" for line in whole), torn.replace(b"\n", b"")
    path.write_bytes(lines + rest)
    file = AppendFile(path, again=True)
    assert file.cut_last_line() == len(rest)
    assert file.append(b"more\n") == len(lines)
    file.close()
    assert path.read_bytes() == lines + b"more\n"


def test_an_end_is_noted_when_the_run_goes_on(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    folder.finish(exit_code=4)
    folder = RunFolder.reopen(tmp_path / "run")
    folder.go_on()
    folder.resumed(order_seed=3)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert not {"finished_utc", "exit_code"} & set(about)
    assert [(note["order_seed"], note["ended"]["exit_code"]) for note in about["resumed"]] == [(3, 4)]


def test_a_folder_in_use_is_refused_and_free_again_after_the_end(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    with pytest.raises(UsageError, match=r"process \d+ on \S+ uses \S+run"):
        RunFolder.reopen(tmp_path / "run")
    folder.finish(exit_code=0)
    assert not (tmp_path / "run" / LOCK).exists()
    RunFolder.reopen(tmp_path / "run").give_up()
    assert not (tmp_path / "run" / LOCK).exists()


_HOLD = """
import sys, time
from pathlib import Path
from collbench.results.store import Lock
lock = Lock(Path(sys.argv[1]))
print(1, flush=True)
time.sleep(60)
"""


@pytest.mark.contract
def test_the_lock_of_a_process_that_was_killed_is_taken_over_and_named(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLD, tmp_path], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(UsageError, match=rf"process {holder.pid} on "):
            Lock(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock = Lock(tmp_path)
    assert lock.taken_over.startswith(f"process {holder.pid} on ")
    lock.release()


@pytest.mark.parametrize("text", ['{"host":"another.example","pid":7}\n', "what is this", '["list"]'])
def test_a_lock_of_another_host_or_program_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)
    with pytest.raises(UsageError, match=r"still runs: .*remove the file"):
        Lock(tmp_path)
    assert (tmp_path / LOCK).read_text() == text


def test_a_lock_that_was_found_left_behind_is_put_back_where_nothing_was_done(tmp_path: Path) -> None:
    path = _half(tmp_path / "run").path
    left = json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1}) + "\n"
    (path / LOCK).write_text(left)
    RunFolder.reopen(path).give_up()
    assert (path / LOCK).read_text() == left
    assert RunFolder.reopen(path).taken_over == f"process {2**22 + 1} on {socket.gethostname()}"


def test_of_two_that_take_one_lock_at_the_same_moment_one_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one comes between the making of the file and the kernel's lock on it, or after the file was given up."""
    flock, others = fcntl.flock, list[Lock]()

    def after_another(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        others.append(Lock(tmp_path))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", after_another)
    with pytest.raises(UsageError, match="another process uses"):
        Lock(tmp_path)
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()

    def after_its_end(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        others[0].release()
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", after_its_end)
    with pytest.raises(UsageError, match=r"process \d+ on \S+ uses"):
        Lock(tmp_path)
    Lock(tmp_path).release()


@pytest.mark.parametrize("left", ["", None])
def test_where_files_cannot_be_locked_a_lock_is_made_but_none_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str | None
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    if left is None:
        Lock(tmp_path).release()
        assert not (tmp_path / LOCK).exists()
    else:
        (tmp_path / LOCK).write_text(left)
        with pytest.raises(UsageError, match="still runs"):
            Lock(tmp_path)


def test_a_full_disk_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, text: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OSError, match="No space left"):
        Lock(tmp_path)
    assert not (tmp_path / LOCK).exists()


def test_a_lock_that_was_just_made_by_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("")
    lock = Lock(tmp_path)
    assert (lock.taken_over, json.loads((tmp_path / LOCK).read_text()).keys()) == ("an unknown process", {"host", "pid"})
    lock.release()
