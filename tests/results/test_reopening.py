"""A reopened run folder: which processes may open it, what is cut at any byte of a kill or a power loss, and where new rows go."""

import errno
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.plugin import RecordFile
from collbench.results import folder, store
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.row import Row
from collbench.results.store import LOCK, AppendFile, Lock
from tests.conftest import sample
from tests.results.rows import make_row

FILES = {
    "pairs": RecordFile("pairs.jsonl", "round"),
    **{name: RecordFile(f"{name}.jsonl", "row", has_cases=True) for name in ("kv", "load", "workload")},
    "replay": RecordFile("workload.jsonl", "row", has_cases=True),
}


@pytest.fixture
def files_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "record_files", lambda: FILES)


def _half(path: Path) -> RunFolder:
    """A run with one row that was given up."""
    folder = RunFolder.create(path, "allreduce", {"seed": 7})
    folder.append(make_row(8), {"max_s": np.arange(3.0)})
    folder.give_up()
    return folder


@pytest.mark.parametrize("lacks_its_end", [False, True])
def test_what_is_new_goes_behind_what_is_there_also_behind_a_line_that_lacks_only_its_end(tmp_path: Path, lacks_its_end: bool) -> None:
    path = _half(tmp_path / "run").path
    whole = (path / "cells.jsonl").read_bytes()
    (path / "cells.jsonl").write_bytes(whole[:-1] if lacks_its_end else whole)
    folder = RunFolder.reopen(path)
    assert (folder.run["seed"], len(read_run(path).rows), folder.go_on()) == (7, 1, {})
    folder.append(make_row(16), {"max_s": np.arange(5.0)})
    assert (path / "cells.jsonl").read_bytes().startswith(whole)
    run = read_run(path)
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


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", ["cells.jsonl", "samples.bin", "events.jsonl"])
def test_a_link_in_place_of_a_file_leads_nowhere_and_a_pipe_is_not_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    path, ours = _half(tmp_path / "run").path, tmp_path / "ours"
    ours.write_text("half a line")
    (path / name).unlink()
    if kind == "link":
        (path / name).symlink_to(ours)
    else:
        os.mkfifo(path / name)
    with pytest.raises(UsageError, match="it cannot be written"):
        RunFolder.reopen(path).go_on()
    assert ours.read_text() == "half a line"


def test_a_link_in_place_of_a_draft_leads_nowhere(tmp_path: Path) -> None:
    path, ours = _half(tmp_path / "run").path, tmp_path / "ours"
    ours.write_text("half a line")
    (path / ".run.json.new").symlink_to(ours)
    folder = RunFolder.reopen(path)
    folder.go_on()
    folder.resumed()
    assert json.loads((path / "run.json").read_text())["resumed"] and not (path / "run.json").is_symlink()
    assert ours.read_text() == "half a line"


@pytest.mark.usefixtures("files_of_records")
def test_rounds_of_pairs_are_cut_in_the_same_way(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "pairs", {})
    folder.append_record({"round": 0}, "pairs.jsonl")
    folder.give_up()
    file = folder.path / "pairs.jsonl"
    file.write_text(file.read_text() + '{"round":1')
    again = RunFolder.reopen(folder.path)
    assert again.go_on() == {"pairs.jsonl": 10}
    again.append_record({"round": 1}, "pairs.jsonl")
    assert file.read_text() == '{"round":0}\n{"round":1}\n'


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
def test_cases_stay_without_a_row_with_the_number_of_finished_cases(tmp_path: Path, record: bytes, removed: int) -> None:
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


def test_a_folder_in_use_is_refused_until_the_end_which_is_noted_when_the_run_goes_on(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    with pytest.raises(UsageError, match=rf"process {os.getpid()} on \S+ uses \S+run"):
        RunFolder.reopen(tmp_path / "run")
    folder.finish(exit_code=4)
    assert not (tmp_path / "run" / LOCK).exists()
    RunFolder.reopen(tmp_path / "run").give_up()
    assert not (tmp_path / "run" / LOCK).exists()
    folder = RunFolder.reopen(tmp_path / "run")
    folder.go_on()
    folder.resumed(order_seed=3)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert not {"finished_utc", "exit_code"} & set(about)
    assert [(note["order_seed"], note["ended"]["exit_code"]) for note in about["resumed"]] == [(3, 4)]


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


def test_locks_left_behind_are_put_back_or_taken_over(tmp_path: Path) -> None:
    path = _half(tmp_path / "run").path
    left = json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1}) + "\n"
    (path / LOCK).write_text(left)
    RunFolder.reopen(path).give_up()
    assert (path / LOCK).read_text() == left
    assert RunFolder.reopen(path).taken_over == f"process {2**22 + 1} on {socket.gethostname()}"
    (tmp_path / LOCK).write_text("")
    lock = Lock(tmp_path)
    assert (lock.taken_over, json.loads((tmp_path / LOCK).read_text()).keys()) == ("an unknown process", {"host", "pid"})
    lock.release()


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


def refuse(number: int) -> Callable[..., None]:
    """A system call that fails."""

    def call(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return call


def test_where_files_cannot_be_locked_a_lock_is_made_but_none_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", refuse(errno.ENOLCK))
    Lock(tmp_path).release()
    assert not (tmp_path / LOCK).exists()
    (tmp_path / LOCK).write_text("")
    with pytest.raises(UsageError, match="still runs"):
        Lock(tmp_path)


def test_a_full_disk_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        Lock(tmp_path)
    assert not (tmp_path / LOCK).exists()


PARTS = 100  # a test takes each hundredth byte


@dataclass
class Disk:
    """Every change that a run made on the disk, in order: (file, bytes added at its end or None: it is new as a whole, its bytes)."""

    steps: list[tuple[str, bool, bytes]] = field(default_factory=list)
    synced: list[tuple[int, str]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def after(self, count: int) -> dict[str, bytes]:
        """What the files hold after so many bytes; a file that is replaced is the old one until the new one is whole."""
        found: dict[str, bytes] = {}
        for name, grows, data in self.steps:
            part = data[:count]
            if grows:
                found[name] = found.get(name, b"") + part
            elif len(part) == len(data):
                found[name] = data
            count -= len(part)
            if not count:
                break
        return found

    def kept(self, count: int) -> dict[str, int]:
        """Up to where the disk surely has each file after so many bytes."""
        begun, sure = 0, dict[str, int]()
        for at, (name, grows, data) in enumerate(self.steps):
            begun += len(data)
            if begun > count:
                break
            if not grows:
                sure[name] = len(data)
            elif (at + 1, name) in self.synced:
                sure[name] = len(self.after(begun)[name])
        return sure

    @property
    def size(self) -> int:
        return sum(len(data) for _, _, data in self.steps)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Disk:
    """A run of four cases, recorded at its system calls."""
    seen, path = Disk(), tmp_path_factory.mktemp("kill") / "run"
    write, fdatasync, replace = os.write, os.fdatasync, folder.replace

    def name(descriptor: int) -> str:
        return Path(f"/proc/self/fd/{descriptor}").readlink().name

    def writing(descriptor: int, data: Any) -> int:
        done = write(descriptor, data)
        seen.steps.append((name(descriptor), True, bytes(data[:done])))
        return done

    def syncing(descriptor: int) -> None:
        fdatasync(descriptor)
        seen.synced.append((len(seen.steps), name(descriptor)))

    def replacing(file: Path, text: str) -> None:
        replace(file, text)
        seen.steps.append((file.name, False, text.encode()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.os, "write", writing)
        patch.setattr(store.os, "fdatasync", syncing)
        patch.setattr(folder, "replace", replacing)
        _record(path, seen)
    return seen


def _record(path: Path, seen: Disk) -> None:
    run = RunFolder.create(path, "allreduce", {"seed": 7})
    run.event("note", text="begun")
    for number in range(4):
        arrays = {"max_s": np.full(number * 3, number + 0.5), "rank": np.arange(number % 2, dtype=np.int32)}
        seen.rows.append(run.append(make_row(8 << number), arrays if number != 2 else {}))
    run.event("finding", text="slow")
    run.finish(exit_code=0)


def _check(path: Path, files: dict[str, bytes], least: int, disk: Disk) -> None:
    """The folder reads back to at least so many rows, those that are whole, and goes on behind them."""
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    (path / LOCK).write_text(json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1}))
    if "run.json" not in files:  # killed before there was a run
        with pytest.raises(UsageError, match=r"run\.json is missing"):
            RunFolder.reopen(path)
        return
    kept = read_run(path).rows
    assert least <= len(kept) and kept == disk.rows[: len(kept)]
    again = RunFolder.reopen(path)
    again.go_on()
    again.event("resumed")
    new = again.append(make_row(1 << 20), {"max_s": np.arange(7.0)})
    run = read_run(path)
    assert (run.rows, run.warnings) == ([*kept, new], [])
    for number, row in enumerate(kept):
        assert "max_s" not in row.samples or run.array(row, "max_s").tolist() == [number + 0.5] * (number * 3)
    assert run.array(new, "max_s").tolist() == list(range(7))
    again.give_up()


def _whole(text: bytes) -> int:
    """How many lines are objects: one that lacks nothing but its end counts."""
    *lines, last = text.split(b"\n")
    return len(lines) + last.endswith(b"}") * (last.count(b"{") == last.count(b"}"))


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of folders need not reach the disk."""
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("part", sample(range(PARTS), 1))
def test_a_kill_at_any_byte(disk: Disk, tmp_path: Path, part: int) -> None:
    for count in range(part, disk.size + 1, PARTS):
        files = disk.after(count)
        _check(tmp_path / str(count), files, _whole(files.get("cells.jsonl", b"")), disk)


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize("part", sample(range(PARTS), 1))
def test_power_lost_at_any_byte(disk: Disk, tmp_path: Path, part: int) -> None:
    """What was not synced may be on the disk in part, or its length may be there without its bytes."""
    draw = random.Random(part)
    for count in range(part, disk.size + 1, PARTS):
        files, sure = disk.after(count), disk.kept(count)
        for name in files.keys() - {"run.json"}:
            data = files[name]
            end = draw.randint(sure.get(name, 0), len(data))
            files[name] = data[:end] + bytes(len(data) - end) * draw.getrandbits(1)
        _check(tmp_path / str(count), files, _whole(disk.after(count).get("cells.jsonl", b"")[: sure.get("cells.jsonl", 0)]), disk)


def test_what_a_row_points_to_is_on_the_disk_before_the_row_is_written(disk: Disk) -> None:
    synced = 0
    for at, (name, _, data) in enumerate(disk.steps):
        if name == "cells.jsonl":
            needed = max((place["offset"] + np.dtype(place["dtype"]).itemsize * int(np.prod(place["shape"]))
                          for place in json.loads(data)["samples"].values()), default=0)  # fmt: skip
            assert needed <= synced
        if (at + 1, "samples.bin") in disk.synced:
            synced = sum(len(part) for of, _, part in disk.steps[: at + 1] if of == "samples.bin")
