"""The run's folder: its content, what survives a crash, and the error if it cannot be written."""

from __future__ import annotations

import gc
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from collbench.errors import RunFailed, UsageError
from collbench.results.folder import FinishedRun, RunFolder, write_all
from collbench.results.reader import read_run
from collbench.results.row import Row
from tests.conftest import sample
from tests.results.rows import make_row, make_times

ALL_FILES = {"run.json", "cells.jsonl", "samples.bin", "events.jsonl", "lock"}


def test_the_default_folder_is_named_by_time_operation_and_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(None, "allreduce", {"seed": 7})
    assert re.fullmatch(r"runs/\d{8}T\d{6}Z-allreduce-[0-9a-f]{6}", str(folder.path))
    assert {file.name for file in folder.path.iterdir()} == ALL_FILES
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
    assert (last["rows"], last["exit_code"], last["seed"]) == (1, 0, 7)
    assert last["finished_utc"] >= first["started_utc"]


def test_rows_and_arrays_read_back_exactly(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "allreduce", {})
    arrays: dict[str, NDArray[Any]] = {"max_s": np.linspace(1e-6, 2e-6, 5), "slowest_rank": np.array([[0, 1], [2, 3]], dtype=np.int32)}
    first = folder.append(make_row(8), {"max_s": np.zeros(3, dtype=np.float32)})
    second = folder.append(make_row(16, flags=("few_samples",)), arrays)
    run = read_run(folder.path)
    assert run.rows == [first, second]
    assert second.samples["max_s"] == {"offset": 12, "dtype": "<f8", "shape": [5]}
    assert second.samples["slowest_rank"] == {"offset": 52, "dtype": "<i4", "shape": [2, 2]}
    assert np.array_equal(run.array(second, "max_s"), arrays["max_s"])
    assert np.array_equal(run.array(second, "slowest_rank"), arrays["slowest_rank"])
    assert not run.warnings
    assert not run.finished


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
    assert event["monotonic_s"] > 0
    assert event["utc"].endswith("Z")
    assert json.loads((folder.path / "topology.json").read_text()) == {"machines": [{"hostname": "node07"}]}


def test_a_folder_that_holds_a_run_is_not_touched(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "allreduce", {})  # an existing, empty folder is fine
    folder.append(make_row(), {})
    before = (tmp_path / "cells.jsonl").read_bytes()
    with pytest.raises(UsageError, match="already holds a run"):
        RunFolder.create(tmp_path, "allreduce", {})
    assert (tmp_path / "cells.jsonl").read_bytes() == before


def test_out_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"\S+/file/run .*\(Not a directory\): .*--out"):
        RunFolder.create(tmp_path / "file" / "run", "allreduce", {})


def test_a_name_too_long_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="File name too long"):
        RunFolder.create(tmp_path / "new" / ("x" * 300), "allreduce", {})
    assert list(tmp_path.iterdir()) == []


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
def test_a_read_only_disk_is_refused_in_one_sentence(mounted: Callable[[str], Path]) -> None:
    path = mounted("ro,size=4m")
    with pytest.raises(UsageError, match=r"\(Read-only file system\): .*--out"):
        RunFolder.create(path / "run", "allreduce", {})


@pytest.mark.contract
def test_a_full_disk_is_refused_before_the_start_and_left_clean(mounted: Callable[[str], Path]) -> None:
    path = mounted("size=64k")
    with pytest.raises(UsageError, match=r"64 KiB left, .* 1 MiB; .*--out"):
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
    assert 3 < len(rows) < 100
    assert f"{len(rows)} finished cases" in str(actual.value)
    assert run.rows == rows
    assert np.array_equal(run.array(rows[-1], "max_s"), np.ones(30_000))


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root; the read-only disk covers it")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        RunFolder.create(tmp_path / "run", "allreduce", {})


_TOO_LARGE = """
import resource, sys
from pathlib import Path
import numpy as np
from collbench.errors import RunFailed
from collbench.results.folder import RunFolder
from tests.results.rows import make_row
folder = RunFolder.create(Path(sys.argv[1]), "allreduce", {})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    for _ in range(100):
        folder.append(make_row(), {"max_s": np.ones(500)})
except RunFailed as error:
    print(error)
"""


@pytest.mark.contract
def test_a_write_that_fails_half_way_is_taken_back(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _TOO_LARGE, tmp_path / "run"], capture_output=True, text=True, check=True)
    run = read_run(tmp_path / "run")
    assert re.search(r"\(File too large\): 5 finished ", done.stdout)
    assert (len(run.rows), run.warnings) == (5, [])
    assert (tmp_path / "run" / "samples.bin").stat().st_size == 5 * 4000


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
    writers = [(n, path, _start_writer(path)) for n, path in ((n, tmp_path / f"run{n}") for n in sample(range(20), 6))]
    for number, path, writer in writers:
        assert writer.stdout.readline() == "start\n"
        lines = [writer.stdout.readline() for _ in range(number)]  # killed after another number of cases each time
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
        assert writer.wait() == -signal.SIGKILL
        _check_survivors(path, len([line for line in lines if line.endswith("\n")]))


def _start_writer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _ENDLESS, path], stdout=subprocess.PIPE, text=True)


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


def row() -> Row:
    return make_row(1024)


def test_it_reads_back_as_a_run_that_came_to_its_end(tmp_path: Path) -> None:
    write_all([FinishedRun(tmp_path / "new" / "a", "allreduce", {"hosts": ["n1"]}, [row(), row()], {"machines": []})])
    run = read_run(tmp_path / "new" / "a")
    assert (run.rows, run.warnings, run.finished, run.info["rows"], run.info["exit_code"]) == (
        [row(), row()], [], True, 2, 0,
    )  # fmt: skip
    assert (run.info["id"], run.info["operation"], run.info["hosts"]) == ("a", "allreduce", ["n1"])
    assert sorted(path.name for path in run.path.iterdir()) == ["cells.jsonl", "run.json", "topology.json"]


def test_one_that_cannot_be_written_takes_the_others_with_it_and_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "out" / "b").mkdir(parents=True)
    (tmp_path / "out" / "b" / "cells.jsonl").write_text("x")
    (tmp_path / "out" / "mine").write_text("kept")
    with pytest.raises(UsageError, match=r"b already holds a run \(cells\.jsonl\)"):
        write_all([FinishedRun(tmp_path / "out" / name, "allreduce", {}, [row()]) for name in ("a", "b", "c")])
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["b", "cells.jsonl", "mine"]


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageError, match=r"file/a .*\(Not a directory\): .*--out DIR$"):
        write_all([FinishedRun(tmp_path / "file" / "a", "allreduce", {}, [])])
    assert (tmp_path / "file").read_text() == "kept"
