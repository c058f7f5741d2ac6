"""The run's folder fails while real processes measure: exit code 4, the measured rows are shown and kept, and --resume continues."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from collbench.results.reader import read_run
from tests.cli.command import Finished, run, running, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

# Ranks; rank 0 acts when it stores its third case, or finds it wrong.
STRUCK = """
import os, sys, time
from pathlib import Path
import collbench.results.folder as folder, collbench.measuring.engine as engine
from collbench.operations.data import Mismatch
append, verify, cases = folder.RunFolder.append, engine.verify, []
def appending(self, row, arrays):
    if self.rows == 2:
        {stored}
    return append(self, row, arrays)
def verifying(ready, world, calls):
    cases.append(ready)
    found = verify(ready, world, calls)
    return [Mismatch(1, 5, 17, "3.0", "2.0")] if {wrong} and found is not None and len(cases) == 3 else found
folder.RunFolder.append, engine.verify = appending, verifying
sys.argv[0] = "collbench"
from collbench.cli.main import main
main()
"""
START = """
import os, sys
from collbench.launch.spawn import start_local
program = [sys.executable, "-c", {code!r}]
sys.exit(start_local(sys.argv[1:], {ranks}, env=os.environ, program=program))
"""
SIMULATED = ("allreduce", "--backend", "simulated", "--ranks", "4", "--sizes", "8-64", "--seed", "1")
GLOO = ("allreduce", "--backend", "gloo", "--sizes", "8-64", "--seed", "1")
Start = Callable[..., Finished]


@pytest.fixture
def start(tmp_path):
    """Measure four cases into the folder `run` with ranks that fail; no process remains."""

    def these(*words, stored="pass", wrong=False, ranks=1):
        code = START.format(code=STRUCK.format(stored=stored, wrong=wrong), ranks=ranks)
        return run(tmp_path, *words, program=(sys.executable, "-c", code), timeout=60)

    yield these
    until(lambda: not running(tmp_path), "the ranks' end", 10)


def resumed(folder, line, name="run"):
    """The rest, measured by ranks that nothing is wrong with."""
    done = run(folder, *line, "--resume", name)
    assert len(read_run(folder / name).rows) == 4, done.stderr
    return done


def test_a_full_disk(start, tmp_path):
    point = tmp_path / "disk"
    point.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", point], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        fills = "subprocess = __import__('subprocess'); subprocess.run(['dd', 'if=/dev/zero', 'of=disk/full'], stderr=subprocess.DEVNULL)"
        done = start(*SIMULATED, "--out", "disk/run", stored=fills)
        assert done.returncode == 4 and done.stdout.count("simulated  float32") == 3
        assert done.stderr.count("can no longer be written") == 1 and "2 finished " in done.stderr
        (point / "full").unlink()
        assert resumed(tmp_path, SIMULATED, "disk/run").returncode == 0
    finally:
        subprocess.run(["umount", "-l", point], check=True)


def test_a_folder_that_is_moved_or_deleted(start, tmp_path):
    done = start(*SIMULATED, "--out", "run", stored="os.rename('run', 'there')")
    assert done.returncode == 4 and done.stdout.count("simulated  float32") == 3
    assert re.search(r"run was moved to \S+/there .*: 2 finished ", done.stderr)
    assert resumed(tmp_path, SIMULATED, "there").returncode == 0
    shutil.rmtree(tmp_path / "there")
    done = start(*SIMULATED, "--out", "run", stored="__import__('shutil').rmtree('run')")
    assert done.returncode == 4 and done.stdout.count("simulated  float32") == 3
    assert "(2 finished " in done.stderr


@pytest.mark.parametrize(("line", "ranks", "timeout"), [(SIMULATED, 1, "2"), pytest.param(GLOO, 2, "10", marks=pytest.mark.long)])
def test_a_disk_that_does_not_answer(start, tmp_path, line, ranks, timeout):
    stuck = "folder.AppendFile.sync = lambda self: time.sleep(3600)"
    done = start(*line, "--out", "run", "--timeout", timeout, stored=stuck, ranks=ranks)
    assert done.returncode == 4
    assert re.search(r"collbench: hang: .*rank 0 .*writing to run\b|collbench: hang: writing to run: .*rank 0", done.stderr), done.stderr
    assert {row.size_bytes for row in read_run(tmp_path / "run").rows} < {8, 16, 32, 64}
    assert resumed(tmp_path, line).returncode == 0


def test_wrong_data_stops_the_run_where_that_is_asked_for(start, tmp_path):
    done = start(*GLOO, "--out", "run", "--stop-on-wrong", wrong=True, ranks=2)
    stored = read_run(tmp_path / "run")
    assert (done.returncode, len(stored.rows), stored.finished, stored.info["exit_code"]) == (4, 3, True, 4)
    assert "(--stop-on-wrong): rank 1: 5 wrong elements, first at 17: wanted 3.0, got 2.0" in done.stderr
    assert resumed(tmp_path, GLOO).returncode == 4


def test_wrong_data_does_not_stop_it_else(start, tmp_path):
    done = start(*GLOO, "--out", "run", wrong=True, ranks=2)
    (wrong,) = [row for row in read_run(tmp_path / "run").rows if row.wrong]
    assert (done.returncode, len(read_run(tmp_path / "run").rows)) == (4, 4)
    first = {"rank": 1, "wrong": 5, "index": 17, "wanted": "3.0", "got": "2.0", "hint": ""}
    assert wrong.evidence["wrong_data"] == {"found": 1, "first": [first]}
