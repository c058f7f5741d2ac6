"""libnccl.so.2: finding and loading it, its version, and its errors in words. What is loaded is recorded with its path."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from collbench.backends.nccl.table import OLDEST, RESULTS, SAYS_WHY, UNIQUE_ID_BYTES, Version, dotted, version_of
from collbench.errors import RunFailed

SONAME = "libnccl.so.2"
CHOSEN = "COLLBENCH_NCCL"
_DEEPEST = 2  # a rank's own group inside that of all ranks of a process
_INSTALL = f"pip install 'collbench[cuda13]' (or cuda12), load your site's module, or set {CHOSEN} to the library's path"


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = [("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES)]


class NcclFailed(RunFailed):
    """A call of NCCL's that was not timed returned an error; the sentence says which and why. `code` is NCCL's, where it gave one."""

    def __init__(self, sentence: str, code: int = 0) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class NcclLibrary:
    """The loaded library: its handle, the file it was loaded from as the kernel names it, its version."""

    handle: ctypes.CDLL
    path: str
    version: Version

    def has(self, name: str) -> bool:
        """Whether this version has a function `name`."""
        return hasattr(self.handle, name)

    def address(self, name: str) -> int:
        """The address of a function."""
        return ctypes.cast(getattr(self.handle, name), ctypes.c_void_p).value or 0

    def call(self, name: str, *words: object) -> None:
        """Calls a function that is not timed. Raises NcclFailed with NCCL's own words."""
        code = getattr(self.handle, name)(*words)
        if code:
            raise NcclFailed(f"{name} of NCCL {dotted(self.version)} failed: {self.explain(code)}", code)

    def explain(self, code: int) -> str:
        """An error code in NCCL's words: "ncclSystemError (2): unhandled system error; it said: …"."""
        self.handle.ncclGetErrorString.restype = ctypes.c_char_p
        name = RESULTS[code].name if code in RESULTS else "a code that nccl.h 2.32 does not have"
        said = self._last_error()
        return f"{name} ({code}): {_text(self.handle.ncclGetErrorString(code))}" + (f"; it said: {said}" if said else "")

    def given_up(self, code: int) -> str:
        """What `explain` says of a call that ended a program early. Ends the groups left open: later calls would only wait in them."""
        words = self.explain(code)
        for _ in range(_DEEPEST):
            self.handle.ncclGroupEnd()
        return words

    def _last_error(self) -> str:
        if self.version < SAYS_WHY:
            return ""
        self.handle.ncclGetLastError.restype = ctypes.c_char_p
        return " ".join(_text(self.handle.ncclGetLastError(None)).split())

    def unique_id(self) -> str:
        """What the ranks of a new communicator find one another by, for the control plane. Raises NcclFailed."""
        made = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(made))
        return bytes(made.internal).hex()


def load_nccl(env: Mapping[str, str]) -> NcclLibrary:
    """The library that COLLBENCH_NCCL names, else the one this process has loaded already, else the wheel's, else the system's.

    Raises RunFailed: there is none, the chosen one does not load, or it is too old.
    """
    handle = _chosen(env[CHOSEN]) if env.get(CHOSEN) else _found()
    path = _loaded_from(handle)
    code = ctypes.c_int()
    if handle.ncclGetVersion(ctypes.byref(code)):
        raise RunFailed(f"{path} does not tell its version: reinstall it, or set {CHOSEN} to another one's path")
    version = version_of(code.value)
    if version < OLDEST:
        raise RunFailed(f"NCCL {dotted(version)} ({path}) is too old, {dotted(OLDEST)} is needed for send and receive: {_INSTALL}")
    return NcclLibrary(handle, path, version)


def _chosen(path: str) -> ctypes.CDLL:
    try:
        return _nccl_of(ctypes.CDLL(path))
    except OSError as error:
        raise RunFailed(f"{CHOSEN}={path} does not load ({error}): correct it, or unset it to take the installed one") from error


def _found() -> ctypes.CDLL:
    """The first that loads. One that the process has already comes before all others: two would not share what they know of the GPUs."""
    wrong = []
    for name, mode in _places():
        try:
            return _nccl_of(ctypes.CDLL(name, mode=mode))
        except OSError as error:
            wrong.append(str(error))
    raise RunFailed(f"no NCCL library is found ({wrong[-1]}): {_INSTALL}")


def _places() -> Iterator[tuple[str, int]]:
    yield SONAME, ctypes.DEFAULT_MODE | os.RTLD_NOLOAD
    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "nccl/lib" / SONAME
        if file.exists():
            yield str(file), ctypes.DEFAULT_MODE
    yield SONAME, ctypes.DEFAULT_MODE


def _nccl_of(handle: ctypes.CDLL) -> ctypes.CDLL:
    """The handle itself, if it is an NCCL. Raises OSError."""
    if not hasattr(handle, "ncclGetVersion"):
        raise OSError(f"{handle._name} has no ncclGetVersion, so it is no NCCL")
    return handle


def _loaded_from(handle: ctypes.CDLL, maps: Path = Path("/proc/self/maps")) -> str:
    """The file behind a loaded library, links followed, as the kernel mapped it; the name it was asked for where there is no /proc."""
    address = ctypes.cast(handle.ncclGetVersion, ctypes.c_void_p).value or 0
    try:
        lines = [line.split(maxsplit=5) for line in maps.read_text(errors="replace").splitlines()]
    except OSError:
        return str(handle._name)
    for fields in lines:
        first, _, after = fields[0].partition("-")
        if len(fields) == 6 and int(first, 16) <= address < int(after, 16):
            return fields[5]
    return str(handle._name)


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace").strip()
