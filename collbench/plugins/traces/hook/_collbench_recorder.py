"""The recorder inside a rank of a job: starts after init_process_group, and writes what PyTorch has recorded, one file per rank.

It is loaded by `sitecustomize` of this folder, runs in the job's own Python (3.8 or newer, without collbench) and must never end a job:
every error of its own is one line on stderr. Its settings are the variable COLLBENCH_RECORDING, which `traces.record` writes.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from types import FrameType, ModuleType
from typing import Any

# The folders of a recording, and its files. traces/record.py has the same names.
FLIGHT, EXECUTION, KINETO, RANKS, HANG = "flight_recorder", "execution_trace", "kineto", "ranks", "hang.json"
_RENAMED = {"TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}
_RENAMED_IN = (2, 10)
_INTERVAL_S = 0.5  # between two looks for a hang: reading the counters takes about 50 µs
_SETTLE_S = 0.5  # after the observer was stopped, before torch may free it
_STARTED: list[Recorder] = []


def install(distributed: ModuleType) -> None:
    """Replace init_process_group by one that starts the recorder. distributed: torch.distributed.distributed_c10d, just imported."""
    if "COLLBENCH_RECORDING" not in os.environ:
        sys.stderr.write("collbench trace: this rank is not recorded: the launcher must pass COLLBENCH_RECORDING on, too\n")
        return
    settings = json.loads(os.environ["COLLBENCH_RECORDING"])
    _set_variables_for(sys.modules["torch"].__version__, settings["torch"])
    original = distributed.init_process_group

    @wraps(original)
    def init_process_group(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        if not _STARTED:
            _attempt(lambda: Recorder(settings, distributed).start())
        return result

    distributed.init_process_group = init_process_group  # type: ignore[attr-defined]


def _set_variables_for(version: str, variables: dict[str, str]) -> None:
    """Set the variables of torch that are not set, by the names that this version knows: others cause a warning, or have no effect.

    They are set here, and not before the job starts, because some launchers pass on only the variables that the user names.
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    for new, value in variables.items():
        old = _RENAMED.get(new, new)
        os.environ[new if (major, minor) >= _RENAMED_IN else old] = os.environ.get(new) or os.environ.get(old) or value


def _attempt(action: Callable[[], object]) -> None:
    """Run an action. An error of the recorder is a line on stderr, because the job must go on."""
    try:
        action()
    except Exception as error:
        sys.stderr.write(f"collbench trace: {type(error).__name__}: {error}; the job goes on without this part of the recording\n")


class Recorder:
    """The recording of one rank.

    settings: "folder"; "skip" and "steps", optimizer steps before the recorded ones, and recorded ones; "seconds", the longest
    recording; "hang", after so many seconds without progress of an operation all ranks write; "kineto"; "job", an identifier
    """

    def __init__(self, settings: dict[str, Any], distributed: ModuleType) -> None:
        self._settings, self._folder = settings, settings["folder"]
        self._rank, self._world = distributed.get_rank(), distributed.get_world_size()
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._observer: Any = None
        self._stopped = 0.0
        self._profile: Any = None
        self._open, self._written = False, False
        self._boundaries: list[int] = []
        self._steps = 0
        self._optimizer: Any = None
        self._began = 0.0
        self._wakeup = -1
        self._completed: dict[str, int] = {}
        self._since = time.monotonic()  # this has been completed, or nothing has been waited for
        self._hung = self._told = False

    def start(self) -> None:
        """Register the end of the recording, then begin it, or wait for the steps that it leaves out."""
        _STARTED.append(self)
        for name in (FLIGHT, EXECUTION, RANKS, *([KINETO] if self._settings["kineto"] else [])):
            os.makedirs(os.path.join(self._folder, name), exist_ok=True)  # noqa: PTH103, PTH118
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._after_step)
        atexit.register(self._at_exit)
        self._watch_exceptions()
        self._watch_signals()
        threading.Thread(target=self._watch, name="collbench-trace", daemon=True).start()
        if not self._settings["skip"]:
            self._begin()

    # The recorded steps

    def _begin(self) -> None:
        with self._lock:
            self._open, self._began = True, time.monotonic()
            self._boundaries.append(time.time_ns())
            _attempt(self._begin_observer)
            if self._settings["kineto"]:
                _attempt(self._begin_profile)

    def _begin_observer(self) -> None:
        from torch.profiler import ExecutionTraceObserver

        observer = ExecutionTraceObserver()
        observer.register_callback(self._path(EXECUTION, ".json") + ".part")
        observer.start()
        self._observer = observer

    def _begin_profile(self) -> None:
        from torch import cuda, profiler

        activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if cuda.is_available() else [])]
        profile = profiler.profile(activities=activities, record_shapes=True)  # Gloo's records lack sizes without
        profile.start()
        self._profile = profile

    def _after_step(self, optimizer: Any, _args: Any, _options: Any) -> None:
        """Count the steps of the first optimizer that made one; a job with several makes a step of each per training step."""
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self._written or id(optimizer) != self._optimizer:
            return
        self._steps += 1
        if not self._open:
            if self._steps == self._settings["skip"]:
                self._begin()
            return
        self._boundaries.append(time.time_ns())
        if len(self._boundaries) > self._settings["steps"] or time.monotonic() - self._began > self._settings["seconds"]:
            self.write("steps recorded")

    # The end

    def write(self, why: str, *, stacks: bool = False, profile: bool = True) -> None:
        """End the recording, and write its files. stacks: with the Python stacks of the operations; profile: also the Kineto trace."""
        if os.getpid() != self._process:  # a child that was forked
            return
        with self._lock:
            if self._observer is not None and not self._stopped:
                _attempt(self._stop_observer)
            if self._profile is not None and profile:
                _attempt(self._end_profile)
            _attempt(lambda: self._write_flight_recorder(why, stacks))
            self._open, self._written = False, True

    def _stop_observer(self) -> None:
        self._observer.stop()
        self._stopped = time.monotonic()

    def _finish_observer(self, *, wait: bool = False) -> None:
        """Complete the execution trace, some time after the observer was stopped.

        Only then: torch frees the observer without regard to other threads that end an operation at the same time (seen in torch 2.13:
        it aborts). wait: until that time is over, at the end of the process.
        """
        with self._lock:
            if self._observer is None or not self._stopped:
                return
            left = self._stopped + _SETTLE_S - time.monotonic()
            if left > 0 and not wait:
                return
            time.sleep(max(0.0, left))
            observer, self._observer = self._observer, None
            observer.unregister_callback()
            target = self._path(EXECUTION, ".json")
            os.replace(target + ".part", target)  # noqa: PTH105

    def _end_profile(self) -> None:
        profile, self._profile = self._profile, None
        profile.stop()
        profile.export_chrome_trace(self._path(KINETO, ".json"))

    def _write_flight_recorder(self, why: str, stacks: bool) -> None:
        dump = _of_torch("_dump_fr_trace", "_dump_nccl_trace")
        if dump is None:
            raise RuntimeError("this torch has no Flight Recorder (it needs 2.5 or newer, for Gloo 2.9)")
        about = {
            "rank": self._rank, "world": self._world, "host": socket.gethostname(), "job": self._settings["job"], "why": why,
            "steps_ns": list(self._boundaries), "written_ns": time.time_ns(),
        }  # fmt: skip
        self._put(self._path(FLIGHT, ""), dump(True, stacks, False))
        self._put(self._path(RANKS, ".json"), json.dumps(about).encode())

    def _put(self, target: str, content: bytes) -> None:
        """Write a file whole: a reader sees the last one, or this one."""
        with open(target + ".part", "wb") as file:  # noqa: PTH123
            file.write(content)
        os.replace(target + ".part", target)  # noqa: PTH105

    def _path(self, kind: str, suffix: str) -> str:
        return os.path.join(self._folder, kind, f"rank_{self._rank}{suffix}")  # noqa: PTH118

    def _at_exit(self) -> None:
        if os.getpid() != self._process:
            return
        if not self._written:
            self.write("exit")
        if self._profile is not None:
            _attempt(self._end_profile)
        _attempt(lambda: self._finish_observer(wait=True))

    # What ends a job, or stops it

    def _watch_exceptions(self) -> None:
        before = sys.excepthook

        def excepthook(kind: Any, error: Any, trace: Any) -> None:
            self.write(f"{kind.__name__}", stacks=True)
            before(kind, error, trace)

        sys.excepthook = excepthook

    def _watch_signals(self) -> None:
        """Have signals reported through a pipe, since the main thread may be in a call of torch that does not end."""
        if threading.current_thread() is not threading.main_thread():
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        others = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        if others != -1:  # the job, or its event loop, uses the pipe itself
            signal.set_wakeup_fd(others)
            return
        self._wakeup = reader
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _wait_for_the_end)
        os.register_at_fork(after_in_child=_leave_signals)

    def _watch(self) -> None:
        """Wait for signals, a hang, and the end of the recorded seconds; runs in a thread."""
        while True:
            if self._wakeup >= 0:
                came, _, _ = select.select([self._wakeup], [], [], _INTERVAL_S)
                for number in os.read(self._wakeup, 64) if came else b"":
                    self._on_signal(number)
            else:
                time.sleep(_INTERVAL_S)
            _attempt(self._look)

    def _on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self.write(signal.Signals(number).name, stacks=True, profile=False)
            _attempt(lambda: self._finish_observer(wait=True))
        if number == signal.SIGTERM and signal.getsignal(number) is _wait_for_the_end:
            ctypes.CDLL(None).signal(number, 0)  # Python's own signal() works in the main thread only
            os.kill(os.getpid(), number)

    def _look(self) -> None:
        self._finish_observer()
        if self._open and time.monotonic() - self._began > self._settings["seconds"] and self._profile is None:
            self.write("time limit of the recording")
        if self._settings["hang"]:
            self._look_for_a_hang()

    def _look_for_a_hang(self) -> None:
        """Write a dump when any rank of the job hangs, and another one when operations complete again: it was a pause.

        The rank that hangs first notifies the others by a file, and removes it when its operations complete again.
        """
        hangs, marker = self._hangs(), os.path.join(self._folder, HANG)  # noqa: PTH118
        told = os.path.exists(marker)  # noqa: PTH110
        if not self._hung and (hangs or told):
            if not told:
                with suppress(FileExistsError), open(marker, "x", encoding="utf-8") as file:  # noqa: PTH123
                    self._told = True
                    json.dump({"rank": self._rank, "host": socket.gethostname(), "time_ns": time.time_ns()}, file)
            self._hung = True
            self._write_flight_recorder("hang", stacks=True)
        elif self._hung and not (hangs if self._told else told):
            if self._told:
                os.remove(marker)  # noqa: PTH107
            self._hung = self._told = False
            self._write_flight_recorder("operations complete again", stacks=False)

    def _hangs(self) -> bool:
        """Return whether an operation was begun, and none completed for the time that counts as a hang."""
        dump = _of_torch("_dump_fr_trace_json", "_dump_nccl_trace_json")
        if dump is None:
            return False
        groups = json.loads(dump(False, False)).get("pg_status", {})
        completed = {name: int(one["last_completed_collective"]) for name, one in groups.items()}
        waiting = any(completed[name] < int(one["last_enqueued_collective"]) for name, one in groups.items())
        now = time.monotonic()
        if not waiting or completed != self._completed:
            self._completed, self._since = completed, now
        limit: float = self._settings["hang"]
        return now - self._since > limit


def _of_torch(*names: str) -> Any:
    """Return the first of these functions that the installed torch has; None if it has none."""
    import torch._C._distributed_c10d as functions

    return next((getattr(functions, name) for name in names if hasattr(functions, name)), None)


def _wait_for_the_end(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the recorder's thread writes the files, then ends the process by the same signal."""


def _leave_signals() -> None:
    """Restore the handling of signals in a child that was forked, such as a worker of a DataLoader."""
    signal.set_wakeup_fd(-1)
    if signal.getsignal(signal.SIGTERM) is _wait_for_the_end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
