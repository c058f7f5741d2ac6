"""Run a user's PyTorch job so that each of its ranks records what it does: a Flight Recorder dump and an execution trace.

The job gets the environment that makes PyTorch record, and `hook` first on PYTHONPATH: a copy in the folder of the traces, which all
nodes of the job must share. The hook writes the files (`hook/_collbench_recorder.py`); nothing of collbench runs in the job.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec

from collbench.errors import UsageError
from collbench.launch.signals import heeded_signals
from collbench.untrusted import parse_json, read_file

# The folders of a recording, and its files. hook/_collbench_recorder.py has the same names.
FLIGHT, EXECUTION, KINETO, RANKS, HANG = "flight_recorder", "execution_trace", "kineto", "ranks", "hang.json"
_HOOK, _JOB = ".hook", "job"
_SHARED_S = 10.0  # until a file of another host is seen
_LARGEST_ABOUT = 1 << 20  # bytes of a file of `ranks`
_BUFFER = 20_000  # operations that the Flight Recorder keeps; each takes a few hundred bytes, more with its Python stack


class RecordRequest(msgspec.Struct, frozen=True):
    """What to record of a job.

    command   the job's command line
    folder    where the traces are written: new or empty, or another host of the job is recording into it
    skip      optimizer steps before the recorded ones: the first ones of a job differ from later ones
    steps     recorded optimizer steps
    seconds   the longest recording
    hang      seconds without progress of an operation after which all ranks write; 0: never
    kineto    whether to record a Kineto trace too
    """

    command: tuple[str, ...]
    folder: Path
    skip: int = 2
    steps: int = 3
    seconds: float = 60.0
    hang: float = 60.0
    kineto: bool = False


class JobRecording(msgspec.Struct, frozen=True):
    """What a job's ranks have written.

    folder    of the traces
    code      the job's exit code, as a shell counts: 128 and the signal's number for one that a signal ended
    seconds   how long the job ran
    flight, execution, kineto   the ranks with a file of each kind, ascending
    hung      whether a rank waited in an operation without progress
    world     the number of ranks of the job, as its ranks have written; 0: none has
    """

    folder: Path
    code: int
    seconds: float
    flight: tuple[int, ...]
    execution: tuple[int, ...]
    kineto: tuple[int, ...]
    hung: bool
    world: int = 0

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have written anything, ascending."""
        return tuple(sorted({*self.flight, *self.execution, *self.kineto}))

    @property
    def absent(self) -> tuple[int, ...]:
        """The ranks of the job that have written nothing, ascending."""
        return tuple(rank for rank in range(self.world) if rank not in self.ranks)


def record(request: RecordRequest) -> JobRecording:
    """Run the job to its end, and return what was recorded.

    Signals go to the job. Raises UsageError for a folder that has files or cannot be written, and a command that cannot be started.
    """
    job_name = _make(request.folder)
    began = time.monotonic()
    try:
        with subprocess.Popen(request.command, env=environment(request, job_name, os.environ)) as job, _forwarded(job):
            code = job.wait()
    except OSError as error:
        _remove(request.folder)
        raise UsageError(f"{request.command[0]}: cannot be started ({error.strerror}): give the command of a job after --") from None
    shutil.rmtree(request.folder / _HOOK, ignore_errors=True)
    hung = (request.folder / HANG).exists()
    flight, execution, kineto = (_ranks(request.folder / name) for name in (FLIGHT, EXECUTION, KINETO))
    world = 0
    for path in (request.folder / RANKS).glob("rank_*.json"):
        with suppress(UsageError, OSError, ValueError, KeyError, TypeError):
            world = max(world, int(parse_json(read_file(path, _LARGEST_ABOUT))["world"]))
    if not flight and not execution and not kineto:
        _remove(request.folder)
    return JobRecording(request.folder, code if code >= 0 else 128 - code, time.monotonic() - began, flight, execution, kineto, hung, world)


def environment(request: RecordRequest, job: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the job's environment: this one, with the two variables that make its ranks record."""
    folder = request.folder.absolute()
    settings = {
        "folder": str(folder), "skip": request.skip, "steps": request.steps, "seconds": request.seconds, "hang": request.hang,
        "kineto": request.kineto, "job": job,
        # the hook sets them, by the names before torch 2.10 if it needs those; NCCL's watchdog adds the rank to the path of its dump
        "torch": {
            "TORCH_FR_BUFFER_SIZE": str(_BUFFER), "TORCH_FR_DUMP_TEMP_FILE": str(folder / FLIGHT / "rank_"),
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        },
    }  # fmt: skip
    path = os.pathsep.join(filter(None, (str(folder / _HOOK), env.get("PYTHONPATH"))))
    return {**env, "COLLBENCH_RECORDING": json.dumps(settings), "PYTHONPATH": path}


def _make(folder: Path) -> str:
    """Make the folder with the hook, or use the one that another host of this job has just made. Return the job's identifier.

    Raises UsageError.
    """
    hook = folder / _HOOK
    copy = folder / f"{_HOOK}-{socket.gethostname()}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(not path.name.startswith(_HOOK) and (path.is_file() or any(path.iterdir())) for path in folder.iterdir()):
            raise UsageError(f"--out {folder}: the folder has files: choose a new one, so that traces of two jobs are not mixed")
        shutil.copytree(Path(__file__).with_name("hook"), copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / _JOB).write_text(secrets.token_hex(8), encoding="utf-8")
        (folder / FLIGHT).mkdir(exist_ok=True)
        with suppress(FileExistsError):
            hook.mkdir()  # of all hosts only one can
            copy.rename(hook)
        shutil.rmtree(copy, ignore_errors=True)
        until = time.monotonic() + _SHARED_S
        while not (hook / _JOB).exists() and time.monotonic() < until:
            time.sleep(0.05)
        return (hook / _JOB).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot be written ({error.strerror}): choose another folder") from None


def _remove(folder: Path) -> None:
    """Remove the folder if it has nothing but what `_make` wrote."""
    shutil.rmtree(folder / _HOOK, ignore_errors=True)
    for path in (*(folder / name for name in (FLIGHT, EXECUTION, KINETO, RANKS)), folder):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _ranks(folder: Path) -> tuple[int, ...]:
    """Return the ranks that have a file in a folder, ascending; partly written files do not count."""
    names = [path.name.removesuffix(".json") for path in folder.glob("rank_*")] if folder.is_dir() else []
    return tuple(sorted(int(name[5:]) for name in names if name[5:].isdecimal()))


@contextmanager
def _forwarded(job: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass this process's signals on to the job until the end of the block, and do not end by them.

    A terminal sends Ctrl-C to the job itself, which is in the same process group.
    """

    def forward(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT or not _in_foreground():
            job.send_signal(number)

    before = {number: signal.signal(number, forward) for number in heeded_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # no terminal, or a closed stdin
        return False
