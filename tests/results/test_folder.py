"""The run's folder: its content, what survives a crash, and the error if it cannot be written, or no longer."""

import errno
import gc
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from collbench.errors import RunFailed, UsageError
from collbench.results import store
from collbench.results.folder import FinishedRun, RunFolder, write_all
from collbench.results.reader import read_run
from collbench.results.store import LOCK
from tests.conftest import line_of_command, sample
from tests.results.rows import make_row, make_times


def test_the_default_folder_is_named_by_time_operation_and_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(None, "allreduce", {"seed": 7})
    assert re.fullmatch(r"runs/\d{8}T\d{6}Z-allreduce-[0-9a-f]{6}", str(folder.path))
    assert {file.name for file in folder.path.iterdir()} == {"run.json", "cells.jsonl", "samples.bin", "events.jsonl", "lock"}
    assert RunFolder.create(None, "allreduce", {}).path != folder.path


def test_run_json_is_complete_before_the_first_case_and_after_the_last(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a" / "b", "p2p", {"seed": 7, "command": ["collbench", "p2p"], "bad": math.nan})
    first = json.loads((folder.path / "run.json").read_text())
    assert (first["schema"], first["id"], first["operation"], first["seed"], first["bad"]) == (1, "b", "p2p", 7, None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["started_utc"])
    assert "finished_utc" not in first
    folder.append(make_row(), {})
    folder.finish(exit_code=0)
    last = json.loads((folder.path / "run.json").read_text())
    assert (last["rows"], last["exit_code"], last["seed"]) == (1, 0, 7) and last["finished_utc"] >= first["started_utc"]


def test_rows_and_arrays_read_back_exactly(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    arrays: dict[str, NDArray[Any]] = {"max_s": np.linspace(1e-6, 2e-6, 5), "slowest_rank": np.array([[0, 1], [2, 3]], dtype=np.int32)}
    first = folder.append(make_row(8), {"max_s": np.zeros(3, dtype=np.float32)})
    second = folder.append(make_row(16, flags=("few_samples",)), arrays)
    run = read_run(folder.path)
    assert run.rows == [first, second]
    assert second.samples["max_s"] == {"offset": 12, "dtype": "<f8", "shape": [5]}
    assert second.samples["slowest_rank"] == {"offset": 52, "dtype": "<i4", "shape": [2, 2]}
    assert all(np.array_equal(run.array(second, name), array) for name, array in arrays.items())
    assert (run.warnings, run.finished) == ([], False)


def test_nan_and_infinity_become_null(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    folder.append(make_row(time_s=make_times(math.inf), n_eff=math.nan, evidence={"x": [math.nan, np.float32(2)]}), {})
    text = (folder.path / "cells.jsonl").read_text()
    row = json.loads(text)
    assert text.endswith("}\n")
    assert (row["time_s"]["p50"], row["n_eff"], row["evidence"]) == (None, None, {"x": [None, 2.0]})


def test_events_carry_both_clocks_and_topology_is_stored(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    folder.event("hang", rank=13, host="node07", path=Path("/x"))
    folder.write_topology({"machines": [{"hostname": "node07"}]})
    event = read_run(folder.path).events[0]
    assert (event["kind"], event["rank"], event["host"], event["path"]) == ("hang", 13, "node07", "/x")
    assert event["monotonic_s"] > 0 and event["utc"].endswith("Z")
    assert json.loads((folder.path / "topology.json").read_text()) == {"machines": [{"hostname": "node07"}]}


def test_a_folder_that_holds_a_run_is_not_touched(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "allreduce", {})  # an existing, empty folder is fine
    folder.append(make_row(), {})
    before = (tmp_path / "cells.jsonl").read_bytes()
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder.create(tmp_path, "allreduce", {})
    assert (tmp_path / "cells.jsonl").read_bytes() == before


def test_a_file_in_the_way_and_a_name_too_long_are_one_sentence_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="File name too long"):
        RunFolder.create(tmp_path / "new" / ("x" * 300), "allreduce", {})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"\S+/file/run .*\(Not a directory\): .*--out"):
        RunFolder.create(tmp_path / "file" / "run", "allreduce", {})
    with pytest.raises(UsageError, match=r"file/a .*\(Not a directory\): .*--out DIR$"):
        write_all([FinishedRun(tmp_path / "file" / "a", "allreduce", {}, [])])
    assert (tmp_path / "file").read_text() == "mine"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system in memory; skips where that is not allowed."""
    with ExitStack() as stack:

        def mount(options: str) -> Path:
            point = tmp_path / "mount"
            point.mkdir()
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", point], capture_output=True, check=False)
            if done.returncode:
                pytest.skip("mounting a small disk needs root")
            stack.callback(lambda: subprocess.run(["umount", "-l", point], check=True))
            return point

        yield mount


@pytest.mark.contract
@pytest.mark.parametrize(("options", "message"), [
    ("ro,size=4m", r"\(Read-only file system\): .*--out"), ("size=64k", r"64 KiB left, .* 1 MiB; .*--out"),
])  # fmt: skip
def test_a_read_only_or_full_disk_is_refused_before_the_start_and_left_clean(mounted: Callable[[str], Path], options: str, message: str):
    path = mounted(options)
    with pytest.raises(UsageError, match=message):
        RunFolder.create(path / "run", "allreduce", {})
    assert list(path.iterdir()) == []


@pytest.mark.contract
def test_a_disk_that_fills_up_during_the_run_keeps_every_finished_case(mounted: Callable[[str], Path]) -> None:
    folder = RunFolder.create(mounted("size=2m") / "run", "allreduce", {})
    rows = []
    with pytest.raises(RunFailed, match=r"\(No space left on device\): \d+ finished ") as actual:
        for _ in range(100):
            rows.append(folder.append(make_row(), {"max_s": np.ones(30_000)}))
    run = read_run(folder.path)
    assert 3 < len(rows) < 100 and f"{len(rows)} finished cases" in str(actual.value)
    assert run.rows == rows
    assert np.array_equal(run.array(rows[-1], "max_s"), np.ones(30_000))


_ENDLESS = """
import sys
from pathlib import Path
import numpy as np
from collbench.results.folder import RunFolder
from tests.results.rows import make_row
folder = RunFolder.create(Path(sys.argv[1]), "allreduce", {})
print("start", flush=True)
for number in range(10**6):
    folder.append(make_row(8 * number + 8), {"max_s": np.full(number % 7 * 1000, number), "rank": np.arange(number % 3)})
    print(number, flush=True)
"""


@pytest.mark.contract
def test_a_run_killed_at_any_moment_reads_back_every_finished_case(tmp_path: Path) -> None:
    started = {}
    for number in sample(range(20), 6):
        words = [sys.executable, "-c", _ENDLESS, tmp_path / f"run{number}"]
        started[number] = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    for number, writer in started.items():
        assert writer.stdout.readline() == "start\n"
        lines = [writer.stdout.readline() for _ in range(number)]  # killed after another number of cases each time
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
        assert writer.wait() == -signal.SIGKILL
        _check_survivors(tmp_path / f"run{number}", len([line for line in lines if line.endswith("\n")]))


def _check_survivors(path: Path, finished: int) -> None:
    run = read_run(path)
    assert finished <= len(run.rows) <= finished + 1  # the last one may be stored and not yet reported
    assert [row.size_bytes for row in run.rows] == [8 * number + 8 for number in range(len(run.rows))]
    for number, row in enumerate(run.rows):
        assert np.array_equal(run.array(row, "max_s"), np.full(number % 7 * 1000, number))
        assert np.array_equal(run.array(row, "rank"), np.arange(number % 3))
    assert not run.finished


def test_a_finished_folder_without_references_holds_no_file_open(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        RunFolder.create(tmp_path / str(number), "allreduce", {}).finish()
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20


# Finished runs are written at once: all of them, or nothing.


def test_it_reads_back_as_a_run_that_came_to_its_end(tmp_path: Path) -> None:
    write_all([FinishedRun(tmp_path / "new" / "a", "allreduce", {"hosts": ["n1"]}, [make_row(8), make_row(16)], {"machines": []})])
    run = read_run(tmp_path / "new" / "a")
    assert (run.rows, run.warnings, run.finished) == ([make_row(8), make_row(16)], [], True)
    expected = {"rows": 2, "exit_code": 0, "id": "a", "operation": "allreduce", "hosts": ["n1"]}
    assert {name: run.info[name] for name in expected} == expected
    assert sorted(path.name for path in run.path.iterdir()) == ["cells.jsonl", "run.json", "topology.json"]


def test_one_that_cannot_be_written_takes_the_others_with_it_and_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "out" / "b").mkdir(parents=True)
    (tmp_path / "out" / "b" / "cells.jsonl").write_text("x")
    (tmp_path / "out" / "mine").write_text("kept")
    with pytest.raises(UsageError, match=r"b already holds a run \(cells\.jsonl\)"):
        write_all([FinishedRun(tmp_path / "out" / name, "allreduce", {}, [make_row(8)]) for name in ("a", "b", "c")])
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["b", "cells.jsonl", "mine"]


Break = Callable[[str, int], None]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with two finished cases."""
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    for size in (8, 16):
        folder.append(make_row(size), {"max_s": np.arange(3.0)})
    return folder


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Makes a system call fail with an error number, after half of the data if there are some."""
    write, refusals = os.write, list[int]()

    def fail(call: str, number: int) -> None:
        def refuse(descriptor: int, *data: Any) -> int:
            if data and not refusals:
                refusals.append(number)
                return write(descriptor, data[0][: len(data[0]) // 2])
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(store.os, call, refuse)

    return fail


ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
REFUSALS = [(call, number) for call in ("write", "fdatasync") for number in ERRORS]


@pytest.mark.parametrize(("call", "number"), REFUSALS)
def test_later_it_is_a_failure_and_what_is_stored_stays(run: RunFolder, breaks: Break, call: str, number: int) -> None:
    breaks(call, number)
    with pytest.raises(RunFailed) as actual:
        run.append(make_row(32), {"max_s": np.arange(3.0)})
    assert actual.value.exit_code == 4
    assert f"{run.path} ({os.strerror(number)}): 2 finished " in str(actual.value) and f"--resume {run.path}" in str(actual.value)
    stored = read_run(run.path)
    assert ([row.size_bytes for row in stored.rows], stored.warnings) == ([8, 16], [])
    assert (run.path / "samples.bin").stat().st_size == 2 * 3 * 8


@pytest.mark.parametrize(("call", "number"), REFUSALS)
def test_before_the_first_result_it_is_bad_input(tmp_path: Path, breaks: Break, call: str, number: int) -> None:
    run = RunFolder.create(tmp_path / "run", "allreduce", {})
    breaks(call, number)
    with pytest.raises(UsageError, match=r"--out DIR; nothing was measured$") as actual:
        run.event("note", text="begun")
    assert actual.value.exit_code == 2


def test_a_run_that_is_resumed_and_cannot_be_written_is_bad_input(run: RunFolder, breaks: Break) -> None:
    run.give_up()
    again = RunFolder.reopen(run.path)
    again.rows = 2
    again.go_on()
    breaks("write", errno.ENOSPC)
    with pytest.raises(UsageError, match=r"run .*\(No space left on device\)"):
        again.event("resumed")


def test_an_end_that_cannot_be_written_gives_the_folder_up_all_the_same(run: RunFolder, breaks: Break) -> None:
    breaks("write", errno.ENOSPC)
    run.end_early("abort", "the disk is full", 4)
    assert not (run.path / LOCK).exists()
    stored = read_run(run.path)
    assert (stored.info["exit_code"], stored.info["rows"], stored.events) == (4, 2, [])  # run.json goes another way


def test_an_early_end_gives_the_reason_and_how_much_there_is(run: RunFolder) -> None:
    run.end_early("hang", "rank 1 is stopped", 4, ranks=[1])
    stored = read_run(run.path)
    assert (stored.info["exit_code"], stored.info["rows"], stored.finished) == (4, 2, True)
    assert [(event["kind"], event["text"], event["ranks"]) for event in stored.events] == [("hang", "rank 1 is stopped", [1])]


def test_a_signal_is_stored_before_its_cause_and_the_cause_replaces_it(run: RunFolder) -> None:
    run.expect_end(143)
    killed_now = read_run(run.path)
    assert (killed_now.info["exit_code"], killed_now.finished, len(killed_now.rows)) == (143, False, 2)
    run.end_early("abort", "rank 1 was killed", 4)
    run.expect_end(143)
    stored = read_run(run.path)
    assert (stored.info["exit_code"], stored.finished) == (4, True)


class TestVanished:
    """Writes to the open files of a deleted folder succeed: only its path shows the loss."""

    def test_moved_away(self, run: RunFolder, tmp_path: Path) -> None:
        there = tmp_path / "there"
        run.path.rename(there)
        with pytest.raises(RunFailed) as actual:
            run.append(make_row(32), {})
        assert f"{run.path} was moved to {there} " in str(actual.value) and str(actual.value).endswith(f"`collbench --resume {there}`")
        run.end_early("abort", str(actual.value), 4)
        assert len(read_run(there).rows) == 2
        assert RunFolder.reopen(there).go_on() == {}

    def test_deleted(self, run: RunFolder) -> None:
        shutil.rmtree(run.path)
        with pytest.raises(RunFailed, match=r"run is gone, .*2 finished "):
            run.append(make_row(32), {})

    def test_another_folder_in_its_place_is_not_written_to(self, run: RunFolder, tmp_path: Path) -> None:
        run.path.rename(tmp_path / "there")
        run.path.mkdir()
        with pytest.raises(RunFailed, match="was moved to"):
            run.finish(exit_code=0)
        assert list(run.path.iterdir()) == []

    def test_before_the_first_result(self, tmp_path: Path) -> None:
        run = RunFolder.create(tmp_path / "run", "allreduce", {})
        run.path.rename(tmp_path / "there")
        with pytest.raises(UsageError, match=r"\(No such file or directory\).*nothing was measured"):
            run.write_topology({"machines": []})

    def test_a_stale_handle(self, run: RunFolder, breaks: Break) -> None:
        breaks("write", errno.ESTALE)
        with pytest.raises(RunFailed, match="is gone, "):
            run.append(make_row(32), {})


class Struck(BaseException):
    """What a signal's handler raises."""


@pytest.mark.parametrize("call", ["write", "fdatasync"])
@pytest.mark.parametrize("after", [False, True])
def test_a_signal_in_the_middle_leaves_no_half_line(run: RunFolder, monkeypatch: pytest.MonkeyPatch, call: str, after: bool) -> None:
    """Fails once, before or after the call; half of the data is then written."""
    real, struck = getattr(os, call), list[int]()

    def strikes(descriptor: int, *data: Any) -> Any:
        if struck:
            return real(descriptor, *data)
        struck.append(1)
        if after:
            real(descriptor, *(part[: len(part) // 2] for part in data))
        raise Struck

    monkeypatch.setattr(store.os, call, strikes)
    with pytest.raises(Struck):
        run.event("note", text="interrupted")
    run.event("abort", text="interrupted")
    stored = read_run(run.path)
    assert ([event["kind"] for event in stored.events], stored.warnings) == (["abort"], [])
    struck.clear()
    with pytest.raises(Struck):
        run.append(make_row(32), {"max_s": np.arange(4.0)})
    new = run.append(make_row(32), {"max_s": np.arange(4.0)})
    assert read_run(run.path).array(new, "max_s").tolist() == [0, 1, 2, 3]
    assert (run.rows, len(read_run(run.path).rows)) == (3, 3)


def test_every_write_is_watched(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that never comes back is what the watchdog has to find."""
    watched, open_ = list[str](), list[int]()

    @contextmanager
    def watch(what: str) -> Iterator[None]:
        watched.append(what)
        open_.append(1)
        yield
        open_.pop()

    def inside(descriptor: int) -> None:
        assert open_ == [1]

    run.watch = watch
    monkeypatch.setattr(store.os, "fdatasync", inside)
    monkeypatch.setattr(store.os, "fsync", inside)
    run.append(make_row(32), {})
    run.event("note")
    run.write_topology({})
    run.finish(exit_code=0)
    assert watched == [f"writing to {run.path}"] * 4


@pytest.mark.parametrize(("operation", "rows", "sentence"), [
    ("allreduce", 0, "0 of 40 cases; go on with `collbench --resume {path}`"),
    ("allreduce", 1, "1 of 40 cases: it is in {path}; go on with `collbench --resume {path}`"),
    ("run-quick", 12, "12 of 40 cases: they are in {path}; go on with `collbench --resume {path}`"),
    line_of_command("pairs", 3, "3 of 40 rounds: they are in {path}; go on with `collbench --resume {path}`"),
    line_of_command("workload", 3, "3 of 40 rows: they are in {path}; go on with `collbench --resume {path}`"),
])  # fmt: skip
def test_how_far_it_came(tmp_path: Path, operation: str, rows: int, sentence: str) -> None:
    folder = RunFolder.create(tmp_path / "run", operation, {})
    folder.rows = rows
    assert folder.so_far(40) == sentence.format(path=folder.path)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_syncs_no_folders_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = os.fsync

    def refuse(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_dir():
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(store.os, "fsync", refuse)
    RunFolder.create(tmp_path / "new" / "run", "allreduce", {}).finish(exit_code=0)
    assert read_run(tmp_path / "new" / "run").finished
