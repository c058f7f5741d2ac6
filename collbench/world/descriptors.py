"""How many files and connections this process may have open: rank 0 has one for each node."""

from __future__ import annotations

import resource

from collbench.errors import UsageError

_OTHERS = 1024  # libraries, the run folder, and strangers until they are refused


def allow_connections(count: int) -> None:
    """Raises this process's own limit, as far as it may, to so many connections. Raises UsageError where that is not far enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHERS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < count + _OTHERS // 4:
        raise UsageError(
            f"rank 0 has a connection to each of {count} nodes, and this host allows a process {hard} open files: "
            "raise the hard limit (ulimit -Hn, or LimitNOFILE= of the service that starts the ranks)"
        )
