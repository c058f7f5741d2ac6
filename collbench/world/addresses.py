"""Which addresses two hosts reach one another by."""

from __future__ import annotations

import socket
import time

from collbench.errors import UsageError

LOOPBACK = "127.0.0.1"
_ANY_PORT = 9  # only to ask the kernel for a route: nothing is sent
_ASK_AGAIN_S = 0.2


def addresses_towards(meeting: str) -> tuple[str, str]:
    """(this host's address on the way to the meeting, the meeting's own address); loopback for a meeting on this host.

    Raises UsageError when the meeting's host name does not resolve.
    """
    if not meeting.startswith("tcp://"):
        return LOOPBACK, LOOPBACK
    host = meeting.removeprefix("tcp://").strip("[]")
    try:
        family, _, _, _, target = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise UsageError(f"rank 0's host '{host}' does not resolve to an address here ({error}): set MASTER_ADDR to its address") from error
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target)
        except OSError as error:
            raise UsageError(f"there is no route from this host to rank 0's host '{host}' ({error}): set MASTER_ADDR") from error
        return str(probe.getsockname()[0]), str(target[0])


def resolved(host: str) -> str | None:
    """The address that a host's name or address stands for, the same at every rank: IPv4 before IPv6. None where it stands for none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])


def await_name(meeting: str, patience_s: float) -> bool:
    """Whether the host of a meeting has an address, which is waited for: a pod's name is made known only seconds after its start."""
    if not meeting.startswith("tcp://"):
        return True
    host, end = meeting.removeprefix("tcp://").strip("[]"), time.monotonic() + patience_s
    while resolved(host) is None:
        if time.monotonic() >= end:
            return False
        time.sleep(_ASK_AGAIN_S)
    return True


def own_address() -> str:
    """This host's address as its name resolves, or on its default route; loopback when it has neither."""
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        found = LOOPBACK
    if not found.startswith("127."):
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", _ANY_PORT))  # TEST-NET-1: no packet leaves, the kernel only picks a route
        except OSError:
            return found
        return str(probe.getsockname()[0])
