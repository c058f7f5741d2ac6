"""Base of the test beds: a number, a mark on every process, commands with a time limit, and a complete clean-up.

Names, addresses and ports follow from the number, so test beds of several test runs can exist at the same time. A number is claimed as a
folder with the name of its owner: the next claim removes what a killed run left, since its owner no longer exists.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self

ROOT = Path("/run/collbench-beds")
MARK = "COLLBENCH_TESTBED"
NUMBERS = range(1, 255)  # the third byte of the test bed's network

Finished = subprocess.CompletedProcess[str]


class Missing(Exception):
    """This machine cannot run the test bed; the text names what is missing."""


class Bed:
    """A claimed number and folder; subclasses build in `up`, and every process they start has the mark."""

    tools: tuple[str, ...] = ()
    package = ""

    number: int
    folder: Path
    stands = False

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise Missing("a bed of namespaces and daemons needs root")
        if absent := [tool for tool in self.tools if not shutil.which(tool)]:
            raise Missing(f"{', '.join(absent)} not found: apt-get install {self.package}")
        self.number = _claim()
        self.folder = ROOT / str(self.number)
        self.stands = True
        try:
            self.up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self.stands:  # the number may belong to another test bed by now
            return
        self.down()
        with _locked():
            _remove(self.number)
        self.stands = False

    def up(self) -> None:
        """Build the test bed."""

    def down(self) -> None:
        """End the processes that need an orderly end before the rest is killed."""

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the caller's environment with the mark and without a launcher's variables."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI", "OMPI_COMM_"))}
        return {**kept, MARK: str(self.folder), **(more or {})}

    def call(self, command: Sequence[str], timeout: float = 60, env: Mapping[str, str] | None = None) -> Finished:
        """Run to the end, or for `timeout` seconds at most (return code 124 or 137).

        Output goes through files: a process that outlives the command would hold a pipe open, and the reader with it.
        """
        limited = ["timeout", "--kill-after=5", str(timeout), *command]
        with TemporaryFile("w+", errors="replace") as out, TemporaryFile("w+", errors="replace") as err:
            done = subprocess.run(
                limited, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.environment(env), timeout=timeout + 30, check=False
            )
            out.seek(0)
            err.seek(0)
            return Finished(list(command), done.returncode, out.read(), err.read())

    def must(self, *command: str, timeout: float = 30, env: Mapping[str, str] | None = None) -> str:
        """Return the output of a command that the test bed needs; raises Missing if it fails."""
        done = self.call(command, timeout, env)
        if done.returncode:
            raise Missing(f"`{' '.join(command)}` failed here (code {done.returncode}): {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout


def processes(folder: Path) -> list[int]:
    """Return the pids of the running processes with this test bed's mark or in one of its namespaces."""
    wanted = f"{MARK}={folder}".encode()
    marked = {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if wanted in _environ(path)}
    inside = {int(pid) for host in namespaces(int(folder.name)) for pid in _ip("netns", "pids", host).split()}
    return sorted(pid for pid in marked | inside if not _gone(pid) and pid != os.getpid())


def namespaces(number: int) -> list[str]:
    """Return the names of a test bed's network namespaces."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"cb{number}h*")) if folder.is_dir() else []


def links(number: int) -> list[str]:
    """Return the bridges, and the machine's ends of the hosts' links."""
    found = [path.name for path in Path("/sys/class/net").iterdir()]
    return [
        name for name in found if name in (f"cb{number}br", f"cb{number}cr") or (name.startswith(f"cb{number}h") and name.endswith("p"))
    ]


def _claim() -> int:
    ROOT.mkdir(exist_ok=True)
    with _locked():
        for left in [int(path.name) for path in ROOT.iterdir() if path.is_dir() and not _owned(path)]:
            _remove(left)
        for number in NUMBERS:
            folder = ROOT / str(number)
            if not folder.exists():
                folder.mkdir(mode=0o755)
                (folder / "owner").write_text(f"{os.getpid()} {_started(os.getpid())}")
                return number
    raise Missing(f"all {len(NUMBERS)} bed numbers are taken: see {ROOT}")


@contextmanager
def _locked() -> Iterator[None]:
    with (ROOT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _owned(folder: Path) -> bool:
    """Whether the claiming process still runs, by pid and start time: the pid alone may have been reused."""
    try:
        pid, started = (folder / "owner").read_text().split()
    except (OSError, ValueError):
        return False
    return _started(int(pid)) == started


def _remove(number: int) -> None:
    folder = ROOT / str(number)
    _end(folder)
    # The machine's end of a link first: this removes both ends at once. The ends of a removed namespace stay for a while, with their names.
    for link in links(number):
        _ip("link", "del", link)
    for host in namespaces(number):
        _ip("netns", "del", host)
    until = time.monotonic() + 3.0
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < until:  # a process that was just killed may have written again
        time.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)


def _end(folder: Path) -> None:
    """End the test bed's processes, with SIGTERM first; repeatedly, since an ending process may start another."""
    for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0), (signal.SIGKILL, 3.0)):
        pids = processes(folder)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        until = time.monotonic() + patience
        while not all(map(_gone, pids)) and time.monotonic() < until:
            time.sleep(0.02)


def _stat(pid: int) -> list[str]:
    """Return the words after the command of /proc/PID/stat: state first, start time at 19; none if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started(pid: int) -> str:
    return (_stat(pid) or ["", *[""] * 19])[19]


def _gone(pid: int) -> bool:
    """Whether the process ended. A zombie counts as ended: in a container no process may ever reap it."""
    return (_stat(pid) or ["Z"])[0] in "ZX"


def _environ(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:
        return []


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False).stdout if shutil.which("ip") else ""
