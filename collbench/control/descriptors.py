"""The number of files and connections that this process may have open: rank 0 has a connection to each node, and strangers try."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress

from collbench.errors import RunFailed, UsageError

_WANTED = 65536  # more than one address can open to one port
_RESERVE = 256  # for libraries and the run folder
_FULL = (errno.EMFILE, errno.ENFILE)


def allow_connections(count: int) -> int:
    """Raise this process's soft limit and return how many connections of unknown processes it can hold beside `count` of its own.

    Raises UsageError if the hard limit is too low for `count`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(_WANTED, count + 4 * _RESERVE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    if soft == resource.RLIM_INFINITY:
        return _WANTED
    if soft < count + _RESERVE:
        raise UsageError(
            f"rank 0 has a connection to each of {count} nodes, and this host allows a process {hard} open files: "
            "raise the hard limit (ulimit -Hn, or LimitNOFILE= of the service that starts the ranks)"
        )
    return max(16, (soft - count - _open_now() - _RESERVE) // 2)  # half: as many again may wait in the kernel's queue


def out_of_files(error: BaseException) -> RunFailed | None:
    """Return the sentence for an error that means that no more files can be opened; None for any other error."""
    number = getattr(error, "errno", None)
    if number not in _FULL:
        return None
    if number == errno.ENFILE:
        return RunFailed("this host has no free file descriptors (ENFILE): end what holds them, or raise fs.file-max")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return RunFailed(
        f"this process has reached its limit of {limit} open files, {_open_sockets()} of them connections: raise it (ulimit -n; "
        "LimitNOFILE= of the service that starts the ranks); if the connections are not of this launch, see what connects to this host"
    )


def _open_now() -> int:
    with suppress(OSError):
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
    return _RESERVE


def _open_sockets() -> str:
    """How many of this process's descriptors are sockets, as text. At the limit /proc cannot be listed: each descriptor is read."""
    count = 0
    for descriptor in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        with suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")  # noqa: PTH115 - as text
    return str(count)
