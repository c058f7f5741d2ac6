"""A rank's own log of NCCL: asked for before NCCL is loaded, kept on the node, read at the end, and gone afterwards.

NCCL_DEBUG_SUBSYS is INIT,NET,GRAPH: NCCL says those at the start and when it connects, never once a call is running. TUNING is
different: since 2.20 it writes one line per call (per call of rank 0 until 2.23), from the thread that enqueues, and the file is
flushed after every line (src/debug.cc): a microsecond or more in the very path that is timed. So TUNING is off while anything is
timed. What NCCL chooses is asked in a `witness`: one untimed call with TUNING on, for which the library reads its settings anew.
Libraries before 2.27 cannot do that safely; there `tuning=True` (`--evidence tuning`) has TUNING on throughout, times included.
NCCL opens its file anew, and empties it, whenever it reads its settings: hence a new name each time.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collbench.machine.readers.nccl_log import NcclLog, read_files
from collbench.machine.readers.text import Unreadable, printable
from collbench.measure.nccl_summary import choices_of, summary

RESET = "ncclResetDebugInit"
RESET_SAFE_SINCE = 22703  # ncclGetVersion's number: 2.24 to 2.26 close the file while another thread may write to it
_LEVEL, _SUBSYS, _FILE = "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"
_STARTING, _CALLING, _WITNESS = "INIT,NET,GRAPH", "INIT,NET,GRAPH,TUNING", "TUNING"
_PREFIX = "collbench-nccl-"
_OF_START = "COLLBENCH_LOCAL"  # the folder of a start on this host
_ENOUGH = ("INFO", "TRACE")


class DebugLog:
    """The log that this process's NCCL writes; `why` there is none to read: a sentence with the remedy."""

    def __init__(
        self, env: MutableMapping[str, str], *, folder: Path | None = None, file: Path | None = None, why: str | None = None
    ) -> None:
        self.why = why
        self._env, self._folder, self._file = env, folder, file
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True) if folder else None  # also when Python ends
        self._before: dict[str, str | None] = {}
        self._choices: list[dict[str, Any]] = []
        self._files = 0

    def ask(self, subsystems: str) -> None:
        """Sets what NCCL is to write, into a file that does not exist yet."""
        assert self._folder is not None
        self._files += 1
        pattern = f"{self._folder}/{self._files}.".replace("%", "%%") + "%h.%p.log"
        wanted = {_LEVEL: "INFO", _FILE: pattern, _SUBSYS: subsystems}
        for name in wanted:
            self._before.setdefault(name, _of_user(self._env, name))
        self._env.update({name: value for name, value in wanted.items() if name != _SUBSYS or not self._before[_SUBSYS]})

    @contextmanager
    def witness(self, reset: Callable[[], object] | None) -> Iterator[list[dict[str, Any]]]:
        """Around an untimed call of each kind: the list holds afterwards what NCCL chose, as `choices` in `facts`.

        `reset` is the library's ncclResetDebugInit (see `resetter`); without it, or without a log of our own, the list stays empty.
        """
        found: list[dict[str, Any]] = []
        if reset is None or self._folder is None:
            yield found
            return
        self.ask(_WITNESS)
        reset()
        number = self._files
        try:
            yield found
        finally:
            self.ask(_STARTING)
            reset()
            found += self._seen(number)
            self._choices += found

    def facts(self) -> dict[str, Any]:
        """What this process's log tells, JSON-ready (see `nccl_summary.summary`), or {"host", "why"}. Reads it; never raises."""
        told: dict[str, Any] = {"host": socket.gethostname().partition(".")[0]}
        if self.why:
            return {**told, "why": self.why}
        try:
            found = {**told, **summary(self._read())}
        except Unreadable as why:
            return {**told, "why": str(why)}
        found["choices"] = [*found["choices"], *self._choices]
        return found

    def of_user(self, env: Mapping[str, str]) -> dict[str, str]:
        """`env` as the user gave it, without what was set for this log: that is no difference between two runs."""
        kept = {name: value for name, value in env.items() if name not in self._before}
        return kept | {name: value for name, value in self._before.items() if value is not None}

    def close(self) -> None:
        """Removes the folder and takes back what was set. May be called twice."""
        if _is_ours(self._env, self._folder):
            for name, value in self._before.items():
                self._env.pop(name, None)
                if value is not None:
                    self._env[name] = value
        if self._remove:
            self._remove()

    def _read(self) -> NcclLog:
        there = sorted(self._folder.glob("*.log")) if self._folder else [self._file] if self._file else []
        written = [file for file in there if _size(file)]
        if not written:
            raise Unreadable("NCCL wrote no log: it was not loaded, or the library is not NVIDIA's or AMD's")
        return read_files(written, "NCCL's log")

    def _seen(self, number: int) -> list[dict[str, Any]]:
        """The choices in one file, which is not needed any more."""
        files = list(self._folder.glob(f"{number}.*.log")) if self._folder else []
        try:
            return choices_of(read_files([file for file in files if _size(file)], "NCCL's log"))
        except Unreadable:
            return []
        finally:
            for file in files:
                file.unlink(missing_ok=True)


def prepare(env: MutableMapping[str, str], *, tuning: bool = False) -> DebugLog:
    """Asks NCCL for a log by `env` (os.environ), before it is loaded. What the user set stays, and is read where that is possible.

    Each library needs a log of its own: call it again before another one is loaded. `tuning`: also a line per call, in the timed
    path. To be closed. NCCL's configuration files count less than the environment, so that a log asked for there goes here.
    The folder lies in the one that a local start removes, so that nothing is left of a rank that was killed.
    """
    level, file = env.get(_LEVEL), env.get(_FILE)
    if (level or file) and not _is_ours(env):
        return _not_ours(env, level, file)
    try:
        log = DebugLog(env, folder=Path(tempfile.mkdtemp(prefix=_PREFIX, dir=env.get(_OF_START) or None)))
    except OSError as why:
        return DebugLog(env, why=f"no folder for NCCL's log in {tempfile.gettempdir()} ({why.strerror}): make room, or set TMPDIR")
    log.ask(_CALLING if tuning else _STARTING)
    return log


def resetter(library: Any, version: int) -> Callable[[], object] | None:
    """The library's (ctypes) function that makes it read NCCL_DEBUG anew; None where it has none, or not a safe one."""
    return getattr(library, RESET, None) if version >= RESET_SAFE_SINCE else None


def _of_user(env: Mapping[str, str], name: str) -> str | None:
    """What the user gave a setting; None for nothing, or what another log of ours set."""
    value = env.get(name)
    ours = _is_ours(env) and (name != _SUBSYS or value in (_STARTING, _CALLING, _WITNESS))
    return None if ours else value


def _not_ours(env: MutableMapping[str, str], level: str | None, file: str | None) -> DebugLog:
    if not level:
        return DebugLog(env, why=f"{_FILE} is set without {_LEVEL}, so that NCCL writes nothing: unset it, or set {_LEVEL}=INFO")
    if level.strip().upper() not in _ENOUGH:
        return DebugLog(env, why=f"{_LEVEL}={printable(level)} is set, which tells no paths: unset it, or set INFO")
    if not file or file.startswith("/dev/"):
        return DebugLog(env, why=f"{_LEVEL} is set and goes to the output: unset it, or set {_FILE}=/tmp/nccl.%h.%p.log, too")
    if "%p" not in file.replace("%%", ""):
        return DebugLog(env, why=f"{_FILE}={printable(file)} has no %p, so that ranks of a host overwrite one another: add it")
    return DebugLog(env, file=Path(_expanded(file)))


def _expanded(pattern: str) -> str:
    """NCCL's words for its file: %h the host, %p the process, %% a %."""
    words = {"h": socket.gethostname().partition(".")[0], "p": str(os.getpid()), "%": "%"}
    first, *rest = pattern.replace("%%", "%\0").split("%")
    return first + "".join(_word(part, words) for part in rest)


def _word(part: str, words: Mapping[str, str]) -> str:
    letter = part[:1].replace("\0", "%")
    return words[letter] + part[1:] if letter in words else f"%{part}"


def _is_ours(env: Mapping[str, str], folder: Path | None = None) -> bool:
    """Whether the file in the environment is one that `prepare` named; of this folder, if one is given."""
    named = Path(env.get(_FILE, "").replace("%%", "%")).parent
    return named.name.startswith(_PREFIX) and folder in (None, named)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
