"""A folder that can no longer be written: found before the first result it is bad input, later a failure; what is stored stays whole."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.errors import RunFailed, UsageError
from collbench.results import store
from collbench.results.folder import RunFolder
from collbench.results.reader import read_run
from collbench.results.store import LOCK
from tests.conftest import line_of_command
from tests.results.rows import make_row

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
    """Makes a system call fail with an error number."""

    def fail(call: str, number: int) -> None:
        def refuse(*_: Any) -> Any:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(store.os, call, refuse)

    return fail


REFUSALS = [(call, number) for call in ("write", "fdatasync") for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)]


@pytest.mark.parametrize(("call", "number"), REFUSALS)
def test_later_it_is_a_failure_and_what_is_stored_stays(run: RunFolder, breaks: Break, call: str, number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.undo()
        breaks(call, number)
        with pytest.raises(RunFailed) as actual:
            run.append(make_row(32), {"max_s": np.arange(3.0)})
    assert actual.value.exit_code == 4
    assert f"{run.path} ({os.strerror(number)}): 2 finished " in str(actual.value) and f"--resume {run.path}" in str(actual.value)
    stored = read_run(run.path)
    assert ([row.size_bytes for row in stored.rows], stored.warnings) == ([8, 16], [])


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

    @pytest.mark.contract
    def test_deleted(self, run: RunFolder) -> None:
        subprocess.run(["rm", "-r", run.path], check=True)
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

    @pytest.mark.contract
    def test_unmounted(self, tmp_path: Path) -> None:
        """Its disk comes back elsewhere, and the run goes on there."""
        point, again = tmp_path / "mount", tmp_path / "again"
        point.mkdir()
        again.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", point], capture_output=True, check=False).returncode:
            pytest.skip("mounting a disk needs root")
        try:
            run = RunFolder.create(point / "run", "allreduce", {})
            run.append(make_row(8), {"max_s": np.arange(3.0)})
            subprocess.run(["mount", "--bind", point, again], check=True)
        finally:
            subprocess.run(["umount", "-l", point], check=True)
        try:
            with pytest.raises(RunFailed, match=r"is gone, .*1 finished"):
                run.append(make_row(16), {})
            run.give_up()
            assert RunFolder.reopen(again / "run").go_on() == {}
            assert [row.size_bytes for row in read_run(again / "run").rows] == [8]
        finally:
            subprocess.run(["umount", "-l", again], check=True)


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
    monkeypatch.undo()
    monkeypatch.setattr(store.os, call, strikes)
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
