"""Start collbench as users do: as a process of its own in a separate folder, with a time limit, leaving no process behind."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from unittest.mock import patch

from collbench.cli import main

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "collbench")
BIN = Path(sys.prefix) / "bin"
EMPTY = Path(__file__).with_name("empty.toml")  # in place of the developer's configuration file
# Short measurements; options that a test types take precedence.
BRIEF = {"COLLBENCH_ITERATIONS": "3", "COLLBENCH_WARMUP": "1"}
_LAUNCHERS = ("COLLBENCH_", "SLURM_", "PMI", "OMPI_COMM_", "MPI_LOCAL", "TORCHELASTIC_")
_OTHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "CUDA_VISIBLE_DEVICES")

Finished = subprocess.CompletedProcess[str]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without a launcher's variables and the user's settings; Open MPI may run as root."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS) and k not in _OTHERS}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    fixed = {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLLBENCH_CONFIG": str(EMPTY)}
    return {**kept, **root, **fixed, "PYTHONPATH": str(ROOT), **BRIEF, **(more or {})}


def run(folder: Path, *argv: str, program: Sequence[str] = PROGRAM, env: Mapping[str, str] | None = None, timeout: float = 60) -> Finished:
    """Run `program argv…` in the folder to its end. Output goes to files: a process that outlives the command cannot block the reader."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        line = ["timeout", "--kill-after=5", str(timeout), *program, *argv]
        done = subprocess.run(line, cwd=folder, env=environment(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False)
        out.seek(0)
        err.seek(0)
        return Finished(line, done.returncode, out.read(), err.read())


def run_here(folder: Path, *argv: str, env: Mapping[str, str] | None = None) -> Finished:
    """Run `collbench argv…` in the folder, but within this process: for commands that load neither MPI nor torch."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            with chdir(folder), patch.dict(os.environ, environment(env), clear=True), redirect_stdout(out), redirect_stderr(err):
                code = main.guarded(list(argv))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        out.seek(0)
        err.seek(0)
        return Finished(["collbench", *argv], code, out.read(), err.read())


def start(folder: Path, *argv: str, program: Sequence[str] = PROGRAM, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start it and return at once; output goes to the files `stdout` and `stderr` of the folder. It ends after at most 90 s."""
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        line = ["timeout", "--kill-after=5", "--foreground", "90", *program, *argv]
        return subprocess.Popen(line, cwd=folder, env=environment(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err)


def until(true: Callable[[], object], what: str, patience_s: float = 30) -> None:
    """Wait until the condition is true; fail after `patience_s`."""
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end, f"waited {patience_s:g} s for {what}"
        time.sleep(0.02)


def running(folder: Path) -> list[int]:
    """Return the PIDs of the processes in the folder: those that a test started there and their children."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").readlink() == folder and (path / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(int(path.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def of_any_rank(text: str) -> str:
    """Return errors without the rank that was the first to report them: where every rank fails, any of them may be."""
    return re.sub(r"\brank \d+ \([^()]*pid \d+\): ", "", text)


def one_sentence(done: Finished) -> str:
    """Return the sentence on stderr; fail unless it is the only one, stdout is empty, and the exit code is 2."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("collbench: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("collbench: ").strip()
