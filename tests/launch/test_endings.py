"""The end of a local start with ranks that ignore signals: Ctrl-C twice, a repeated SIGTERM, and the parent's message."""

import signal
import subprocess
import sys
import time

from collbench.launch import supervise
from collbench.launch.supervise import GRACE_S
from tests.launch.test_spawn import PARENT, alive, wait_for

STUBBORN = """
import os, signal, sys, time
from pathlib import Path
from collbench.launch.spawn import record_run
from collbench.launch.supervise import die_with_parent
die_with_parent()
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
record_run(Path("runs/x"), os.environ)
rank = os.environ["COLLBENCH_RANK"]
(Path(sys.argv[1]) / f"rank-{rank}.new").write_text(f"{os.getpid()} ipc:///nowhere/control")
(Path(sys.argv[1]) / f"rank-{rank}.new").rename(Path(sys.argv[1]) / f"rank-{rank}")
time.sleep(60)
"""


def stubborn(folder, grace_s):
    """Start ranks that ignore every signal but SIGKILL."""
    code = PARENT.replace("grace_s=2", f"grace_s={grace_s}")
    line = [sys.executable, "-c", code, str(folder), "0,0", "own", STUBBORN]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: all((folder / f"rank-{i}").exists() for i in range(2)), "two ranks")
    return process


def test_the_second_ctrl_c_kills_at_once_and_the_parent_reports_it(tmp_path):
    process = stubborn(tmp_path, grace_s=60)
    ranks = [int((tmp_path / f"rank-{i}").read_text().split()[0]) for i in range(2)]
    while any(alive(pid) for pid in ranks):  # a second one that arrives before the first is handled does not count
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    said = process.communicate(timeout=8)[1]
    assert process.returncode == 130 and said.count("\n") == 1 and "SIGINT" in said and "runs/x" in said


def test_a_repeated_sigterm_does_not_end_the_grace_time(tmp_path):
    process = stubborn(tmp_path, grace_s=0.3)
    began = time.monotonic()
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    said = process.communicate(timeout=8)[1]
    assert process.returncode == 143 and said.count("\n") == 1 and "SIGTERM" in said and "runs/x" in said
    assert time.monotonic() - began > 0.55


def test_the_end_takes_less_than_its_limit():
    """The hang diagnosis takes at most 5 s, and all processes must end within 10 s of the deadline."""
    assert GRACE_S + supervise._LAST_S <= 4.5
