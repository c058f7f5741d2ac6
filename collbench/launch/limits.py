"""Limits on the number of ranks on this host: memory, processes, cores and open files. They protect a login node from a mistyped number."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from collbench.errors import RunFailed, UsageError
from collbench.units import format_bytes

MOST_PER_CORE = 16
TASKS_PER_RANK = 8  # measured: a rank on MPI or Gloo has 7 or 8 threads, and the kernel counts threads as processes
RANK_BYTES = 40 << 20  # measured: private memory of a rank on MPI, without buffers, which are checked later
TORCH_RANK_BYTES = 150 << 20  # measured: private memory of a rank that has imported torch
# Open files of a rank, measured as base and per rank of the launch: the control plane alone, and what a backend adds.
_RANK_FILES = (20, 2)
_BACKEND_FILES = {"mpi": (26, 1), "gloo": (16, 2)}
_OTHER_FILES = (8, 1)  # plain TCP, ZeroMQ
_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_NO_LIMIT = 1 << 60  # version 1 of cgroups reports no limit as a very large number


def refuse_too_many(ranks: int, option: str, *, torch: bool, oversubscribe: bool, cores: int | None = None) -> None:
    """Raise UsageError if so many ranks do not fit on this host. `option`: the user's option, like "--ranks"."""
    cores = cores or len(os.sched_getaffinity(0))
    fitting, needed = min(_limits(ranks, TORCH_RANK_BYTES if torch else RANK_BYTES), key=lambda limit: limit[0])
    if ranks > max(1, fitting):
        most = max(1, fitting if oversubscribe else min(fitting, MOST_PER_CORE * cores))
        raise UsageError(f"{option} {ranks}: {ranks} ranks need {needed}: start at most {most}")
    if ranks > MOST_PER_CORE * cores and not oversubscribe:
        raise UsageError(
            f"{option} {ranks}: more than {MOST_PER_CORE} ranks per core ({cores} {'core' if cores == 1 else 'cores'} usable here): "
            f"start at most {MOST_PER_CORE * cores}, or add --oversubscribe"
        )


def refuse_few_files(ranks: int, option: str, backends: Collection[str], is_installed: Callable[[str], bool]) -> None:
    """Raise UsageError if the limit of open files is below what each of so many ranks needs for those of these backends that are installed.

    `is_installed` loads libraries, so it is asked only if the limit is too low for all of them.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= _files_needed(ranks, backends):
        return
    need = _files_needed(ranks, [name for name in backends if is_installed(name)])
    if limit < need:
        raise UsageError(
            f"{option} {ranks}: each of {ranks} ranks needs about {need} open files and ulimit -n allows {limit}: raise it, "
            f"`ulimit -n {need}`, or LimitNOFILE= of the service that starts collbench"
        )


def _files_needed(ranks: int, backends: Collection[str]) -> int:
    """Return how many files each of so many ranks opens for these backends."""
    parts = [_RANK_FILES, *(_BACKEND_FILES.get(name, _OTHER_FILES) for name in backends)]
    return sum(fixed + per_rank * ranks for fixed, per_rank in parts)


def _limits(ranks: int, each_bytes: int) -> Iterator[tuple[int, str]]:
    """Yield (the number of ranks that fit, the rest of "N ranks need …")."""
    free = free_bytes()
    need = f"about {format_bytes(ranks * each_bytes)} of memory ({format_bytes(each_bytes)} each) and {format_bytes(free)} is available"
    yield free // each_bytes, need
    for room, where in free_tasks():
        yield room // TASKS_PER_RANK, f"about {ranks * TASKS_PER_RANK} processes and threads and {where} leaves {max(0, room)}"


def free_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes of free memory: the minimum of this host and of this process's control groups."""
    lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
    found = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), _NO_LIMIT)
    pairs = [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")]
    groups = [group for limit, used in pairs for group in _rooms("memory", limit, used, proc, cgroups)]
    rooms = [room + _cached_bytes(file.parent) for room, file in groups]
    return max(0, min([found, *rooms]))


def _cached_bytes(group: Path) -> int:
    """Return the bytes of files that a control group has cached: they count as used, but the kernel drops them for processes."""
    try:
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
        values = {name: int(value) for name, value in map(str.split, lines)}
    except (OSError, ValueError):
        return 0
    return sum(values.get(f"total_{name}", values.get(name, 0)) for name in ("inactive_file", "active_file"))  # total_: version 1


def free_tasks(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Iterator[tuple[int, str]]:
    """Yield (how many more processes and threads a limit allows, its name)."""
    for room, file in _rooms("pids", "pids.max", "pids.current", proc, cgroups):
        yield room, f"the control group's pids.max ({file})"
    every = int((proc / "loadavg").read_text(encoding="ascii").split()[3].partition("/")[2])
    for name in ("pid_max", "threads-max"):
        yield _number(proc / "sys/kernel" / name, _NO_LIMIT) - every, f"kernel.{name}"
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() and limit != resource.RLIM_INFINITY:  # the kernel does not apply it to root
        user, found = os.getuid(), 0
        for folder in proc.glob("[0-9]*"):
            try:
                if folder.stat().st_uid == user:
                    found += sum(1 for _ in (folder / "task").iterdir())
            except OSError:
                continue
        yield limit - found, "ulimit -u"


def cpu_limit(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> tuple[int, float] | None:
    """Return the lowest limit of CPU time of this process's control groups: (the group's number on this host, cores); None without one.

    A container has it, like a pod with a limit of CPUs. Once its processes have used their share of a period, the kernel lets none of them
    run until the next one, although each may use every core.
    """
    lowest: tuple[int, float] | None = None
    with suppress(OSError):  # a kernel without control groups
        for group in _groups("cpu", proc, cgroups):
            cores = _cores_allowed(group)
            if cores is not None and (lowest is None or cores < lowest[1]):
                lowest = (group.stat().st_ino, cores)
    return lowest


def _cores_allowed(group: Path) -> float | None:
    """Return how many cores the CPU time of a control group makes; None without a limit."""
    try:
        quota_us, period_us = map(int, (group / "cpu.max").read_text(encoding="ascii").split())  # "max" instead of a number: no limit
    except (OSError, ValueError):
        quota_us = _number(group / "cpu.cfs_quota_us", -1)  # version 1
        period_us = _number(group / "cpu.cfs_period_us", -1)
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _rooms(controller: str, limit: str, used: str, proc: Path, cgroups: Path) -> Iterator[tuple[int, Path]]:
    """Yield the free amount in each control group of this process, from its own to the topmost."""
    for folder in _groups(controller, proc, cgroups):
        most, now = _number(folder / limit, _NO_LIMIT), _number(folder / used, 0)
        if most < _NO_LIMIT:
            yield most - now, folder / limit


def _groups(controller: str, proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, from its own to the topmost. Both versions of cgroups(7) are supported."""
    for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        top = cgroups / controller if number != "0" else cgroups
        inside = top / path.lstrip("/")
        yield from dict.fromkeys([inside, *(parent for parent in inside.parents if parent.is_relative_to(top)), top])


def _number(file: Path, otherwise: int) -> int:
    """Return the number in a file; `otherwise` without one, or for "max"."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return otherwise


# The open-file limit of this process: rank 0 has a connection to each node, and other programs may connect.

_WANTED_FILES = 65536  # more than one address can open to one port
_RESERVE = 256  # for libraries and the run folder
_FULL = (errno.EMFILE, errno.ENFILE)


def allow_connections(count: int) -> int:
    """Raise the soft limit of open files; return how many connections fit in addition to `count` expected ones. Raises UsageError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(_WANTED_FILES, count + 4 * _RESERVE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft == resource.RLIM_INFINITY:
        return _WANTED_FILES
    if soft < count + _RESERVE:
        raise UsageError(
            f"rank 0 needs a connection to each of {count} nodes, but this host allows a process only {hard} open files: "
            "raise the hard limit (ulimit -Hn, or LimitNOFILE= of the service that starts the ranks)"
        )
    opened = _RESERVE
    with suppress(OSError):
        opened = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
    return max(16, (soft - count - opened - _RESERVE) // 2)  # half, since as many may wait in the kernel's queue


def out_of_files(error: BaseException) -> RunFailed | None:
    """Return the error to report if `error` means that no more files can be opened; None for any other error."""
    number = getattr(error, "errno", None)
    if number not in _FULL:
        return None
    if number == errno.ENFILE:
        return RunFailed("this host has no free file descriptors (ENFILE): end the processes that hold them, or raise fs.file-max")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    count = 0
    for descriptor in range(limit):  # /proc cannot be listed when no more files can be opened
        with suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")  # noqa: PTH115 - as text
    return RunFailed(
        f"this process has reached its limit of {limit} open files ({count} are connections): raise it (ulimit -n, or "
        "LimitNOFILE= of the service that starts the ranks); if other programs made the connections, find out which connect to this host"
    )
