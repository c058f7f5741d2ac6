"""Where ranks meet: the ports of a launch, the address that rank 0 listens at, and the place where the ranks of a node meet."""

from __future__ import annotations

import os
import socket

import zmq

from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo
from collbench.launch.variables import meeting_at
from collbench.world.addresses import resolved
from collbench.world.down import Down
from collbench.world.secret import Secret

_CANDIDATES = 8
_FIRST, _COUNT, _APART = 20000, 12000, 1237  # below the range that kernels hand out themselves
_SHORT = 24  # characters of a name that nobody can guess


def candidate_ports(secret: Secret) -> list[int]:
    """Ports that all ranks of a launch derive from its secret."""
    seed = int.from_bytes(secret.derived("ports")[:8], "big")
    return [_FIRST + (seed + _APART * k) % _COUNT for k in range(_CANDIDATES)]


def node_place(info: LaunchInfo, secret: Secret) -> str:
    """Where the ranks of this node find the first of them: a socket without a file, which ends with its process and stays on the host."""
    if info.meeting.startswith("ipc://"):
        return info.meeting
    return f"ipc://@collbench-{secret.derived(f'node {socket.gethostname()} {info.node}').hex()[:_SHORT]}"


def hub_places(info: LaunchInfo, secret: Secret) -> list[str]:
    """Where rank 0 may be found from other nodes, the likeliest first."""
    ports = [info.port] if info.port else candidate_ports(secret)
    host = _host_of(info)
    return [f"{meeting_at(resolved(host) or host)}:{port}" for port in ports]


def _host_of(info: LaunchInfo) -> str:
    return info.meeting.removeprefix("tcp://").strip("[]")


def listen(down: Down, info: LaunchInfo, secret: Secret) -> str | None:
    """Binds rank 0's socket for the other nodes: at the address of the meeting alone. Raises UsageError when no port is free.

    Returns a sentence where it has to listen at every address of this host: the meeting's name is not one of its own.
    """
    host = _host_of(info)
    address = _own_address_of(host)
    if address and ":" in address:
        down.router.setsockopt(zmq.IPV6, 1)
    for port in [info.port] if info.port else candidate_ports(secret):
        wrong = _bind(down, address, port)
        if wrong is None:
            down.port = port
            return None if address else f"rank 0 listens at every address of its host, because '{host}' is none of its own: set MASTER_ADDR"
    where = f"port {info.port} is taken" if info.port else f"ports {candidate_ports(secret)} are all taken"
    raise UsageError(f"rank 0 cannot listen for the other ranks: {where} ({wrong}); set MASTER_PORT to a free one")


def _bind(down: Down, address: str | None, port: int) -> str | None:
    """None: it listens; else why not."""
    where = f"[{address}]" if address and ":" in address else address or "*"
    try:
        down.bind(f"tcp://{where}:{port}")
    except zmq.ZMQError as error:
        return os.strerror(error.errno or 0)
    return None


def _own_address_of(host: str) -> str | None:
    """The host's address where it is one of this machine that others can reach, or None."""
    address = resolved(host)
    if address is None:
        return None
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return None
    # Debian gives a host's own name 127.0.1.1, where no other host comes; who typed such an address means this host
    return None if address.startswith("127.") and host not in (address, "localhost") else address
