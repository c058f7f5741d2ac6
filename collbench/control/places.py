"""Where ranks meet: the ports of a launch, the address that rank 0 listens at, and the place where the ranks of a node meet."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import zmq

from collbench.addresses import Family, HubAddresses, Scope, bracketed, family_of, hub_addresses
from collbench.control.down import Down
from collbench.control.routes import host_of, hub_hosts
from collbench.control.secret import Secret
from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo, meeting_at

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
    """Return where rank 0 may listen for other nodes, the likeliest first."""
    ports = [info.port] if info.port else candidate_ports(secret)
    addresses = hub_hosts(info)
    return [f"{meeting_at(address)}:{port}" for port in ports for address in addresses]


def listen(down: Down, info: LaunchInfo, secret: Secret) -> HubAddresses:
    """Bind rank 0's socket for the other nodes, and return where. Raises UsageError where no port is free."""
    found = hub_addresses(host_of(info.meeting))
    ports = [info.port] if info.port else candidate_ports(secret)
    for port in ports:
        wrong = _bind(down, found.listens, port)
        if wrong is None:
            down.port = port
            return found
    where = f"port {info.port} is taken" if info.port else f"ports {ports} are all taken"
    raise UsageError(f"rank 0 cannot listen for the other ranks: {where} ({wrong}); set MASTER_PORT to a free one")


def note_on(found: HubAddresses) -> str | None:
    """Return a sentence where rank 0 listens at every address of its host; None where it listens at those of its name alone."""
    if found.scope is Scope.GIVEN:
        return None
    why = {
        Scope.NAME_IS_LOOPBACK: f"its name '{found.host}' resolves to loopback there ({', '.join(found.resolved)})",
        Scope.NOT_OWN: f"'{found.host}' is not one of its addresses",
    }[found.scope]
    return f"rank 0 listens at every address of its host, because {why}; set MASTER_ADDR to choose one address"


def _bind(down: Down, addresses: Sequence[str], port: int) -> str | None:
    """Listen at one port of all these addresses, of every address without any; return why that fails, or None."""
    bound: list[str] = []
    for address in addresses or ("*",):
        place = f"tcp://{bracketed(address)}:{port}"
        down.router.setsockopt(zmq.IPV6, int(address == "*" or family_of(address) is Family.IPV6))
        try:
            down.bind(place)
        except zmq.ZMQError as error:
            for earlier in bound:
                down.router.unbind(earlier)
            return os.strerror(error.errno or 0)
        bound.append(place)
    return None
