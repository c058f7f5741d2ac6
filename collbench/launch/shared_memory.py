"""Files in /dev/shm that MPI, UCX, PSM and NCCL leave when their processes are killed.

A library removes its files when it is closed in order. Files that all ranks map at the start lose their names then, so that
nothing is left however the ranks end: a mapping outlives the name of its file. If a launch fails, each rank that still runs
removes the files that it has mapped. That is safe, since no rank joins any more. If all ranks of a node were killed, the
parent of a start on this host, or the next start on the node, removes this user's files that no living process maps.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from collbench.units import format_bytes

PREFIXES = ("mpich_shm_", "vader_segment.", "sm_segment.", "ucx_shm_posix_", "psm2_shm.", "psm3_shm.", "nccl-")
_FOLDER = "/dev/shm"
_MAPPED_AT_START = "mpich_shm_"  # MPICH 4 removes the name at the start itself, MPICH 5 at the end
_JUST_MADE_S = 2.0  # between the creation of a file and its mapping
_MARGIN_S = 0.05
_UNSEEN_S = 10.0  # if other containers may share the files: their processes are not visible, but have mapped new files by then
_FIRST_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_DELETED = " (deleted)"

LEAST_BYTES = 1 << 30  # Docker's default is 64 MiB
_LEAST_FREE_BYTES = 64 << 20  # measured: MPICH 5 uses about 5 MiB for each rank when it starts
REMEDY = "in a container: --shm-size=8g or --ipc=host, in Kubernetes an emptyDir of medium Memory; else mount it with size="


def shortage(folder: str = _FOLDER) -> str:
    """Return that the shared memory of this host is small, almost full, read-only or missing, with the remedy; "" if it is not."""
    try:
        space = shutil.disk_usage(folder)
        writable = os.access(folder, os.W_OK)
    except OSError as error:
        return f"{folder} is not usable ({error.strerror}): mount a tmpfs there"
    if not writable:
        return f"{folder} is not writable: mount it read-write"
    if space.total >= LEAST_BYTES and space.free >= _LEAST_FREE_BYTES:
        return ""
    return f"{folder} has {format_bytes(space.total)}, of which {format_bytes(space.free)} are free, which may be too little: {REMEDY}"


def shortage_behind(number: int | None) -> str:
    """Return the shortage if this signal, which ended a rank, may be its result, else ""."""
    return shortage() if number in (signal.SIGBUS, signal.SIGSEGV) else ""


def remove_mapped(folder: str = _FOLDER) -> list[str]:
    """Remove the libraries' files that this process has mapped; return their names. Use it if the libraries cannot be closed."""
    return [name for name in sorted(_mapped("self", folder)) if _remove(folder, name)]


def remove_names(folder: str = _FOLDER) -> list[str]:
    """Remove the names of files that all ranks have mapped by now and that no process opens again; return them."""
    return [name for name in sorted(_mapped("self", folder)) if name.startswith(_MAPPED_AT_START) and _remove(folder, name)]


def remove_left(began_s: float, folder: str = _FOLDER) -> list[str]:
    """Remove what a launch on this host left, all of whose processes have ended; return the names. began_s: its start, as of time.time.

    Waits for up to 2 s until its last file is old enough, since another launch may have just made a file.
    """
    mapped = _mapped_by_any(folder)
    times_s = [_made_s(f"{folder}/{name}") for name in _files(folder) if name not in mapped]
    made = [made_s for made_s in times_s if began_s <= made_s < math.inf]
    if made and _sees_all_processes():
        time.sleep(max(0.0, max(made) + _JUST_MADE_S - time.time()) + _MARGIN_S)
    return remove_abandoned(folder)


def remove_abandoned(folder: str = _FOLDER) -> list[str]:
    """Remove this user's files of libraries that no living process maps; return their names."""
    least_s = _JUST_MADE_S if _sees_all_processes() else _UNSEEN_S
    old = [name for name in _files(folder) if time.time() - _made_s(f"{folder}/{name}") > least_s]
    if not old:
        return []
    mapped = _mapped_by_any(folder)
    return [name for name in old if name not in mapped and _remove(folder, name)]


def _files(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(PREFIXES))  # noqa: PTH208 - Path.iterdir makes a Path per name
    except OSError:
        return []


def _made_s(path: str) -> float:
    """Return when a file of this user was made or last changed, as of time.time; infinity if it is missing, or another user's."""
    try:
        status = os.lstat(path)
    except OSError:
        return math.inf
    return status.st_ctime if status.st_uid == os.geteuid() else math.inf


def _sees_all_processes() -> bool:
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _mapped_by_any(folder: str) -> set[str]:
    return {name for path in Path("/proc").glob("[0-9]*") for name in _mapped(path.name, folder)}


def _mapped(pid: str, folder: str) -> set[str]:
    """Return the names of the libraries' files in the folder that a process maps; empty if its maps are not readable."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    paths = (line.split(maxsplit=5)[-1].removesuffix(_DELETED) for line in lines if f" {folder}/" in line)
    names = (path.removeprefix(f"{folder}/") for path in paths)
    return {name for name in names if "/" not in name and name.startswith(PREFIXES)}


def _remove(folder: str, name: str) -> bool:
    with suppress(OSError):
        os.unlink(f"{folder}/{name}")  # noqa: PTH108
        return True
    return False
