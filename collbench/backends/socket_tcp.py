"""Plain TCP between the two ranks of a pair, without any library: the control that tells what the wire and the kernel give.

One stream is what a plain program would have: TCP_NODELAY, buffers that grow as the kernel lets them, and calls that block. A ping-pong
of 8 B over the loopback of an idle machine took 31 µs with those, 33 µs with calls that do not block and poll, 4 µs with calls that spin,
which few programs do.

Several streams are served by the rank's one thread, and a message is divided evenly, so that its slowest stream ends it. Where the CPU
is the limit they give no more than one: over loopback on two cores, messages of 4 MiB, one stream carried 4.0 GB/s, four streams 3.4, and
four streams with a thread each 4.1. They are for wires: one stream is held back there by its window, its loss or its path.
"""

from __future__ import annotations

import platform
import socket
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.addresses import tcp_socket
from collbench.backends.backend import Available, Settings, Unavailable
from collbench.backends.group import Group
from collbench.backends.linked import LinkedBackend
from collbench.backends.memory import AnyBuffers
from collbench.backends.messages import MessageBinding
from collbench.backends.socket_links import Link, Links
from collbench.backends.socket_messages import explain, messages_over, native
from collbench.machine.interfaces import interface_with
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Program
from collbench.operations.sweep import MOST_STREAMS

if TYPE_CHECKING:
    from collbench.control.world import World

_NAME_BYTES = 16  # TCP_CA_NAME_MAX of the kernel


class SocketBackend(LinkedBackend):
    """Point-to-point over TCP sockets, one or several streams per pair, which live as long as the cell."""

    name = api = "socket"
    takes_streams = True

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Always there."""
        return Available(f"TCP of {platform.system()} {platform.release()}, between pairs of ranks")

    def open(self, world: World, settings: Settings) -> None:
        """Listens, and learns where the others do. Raises RunFailed where a rank cannot listen at its address."""
        self.rank, self.ranks = world.rank, world.size
        self.flags = () if native() else ("python_messages",)
        self._links = Links(world, settings.timeout_s)
        self._about = {"kernel": platform.release(), **path_facts(world.me.address)}

    def connect(self, peer: int, cell: Cell) -> Link:
        """As many streams as the cell has."""
        return self._links.connect(peer, cell.streams or 1)

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> MessageBinding:
        """Addresses, and calls over the pair's link."""
        return MessageBinding(messages_over(group.handle, 2 * (buffers.cell.window or 1)), buffers, slot)

    def bind(self, operation: Operation, cell: Cell, group: Group, buffers: AnyBuffers) -> Program:
        """The operation's messages; errors name the other rank."""
        return replace(super().bind(operation, cell, group, buffers), explain=partial(explain, group.handle))

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """Pairs only, and as many streams as one thread serves."""
        if (cell.streams or 1) > MOST_STREAMS:
            return f"socket has at most {MOST_STREAMS} streams between two ranks"
        return super().supports(operation, cell)


def path_facts(address: str) -> dict[str, str]:
    """What is known of TCP from this address of the host, before anything is connected."""
    with tcp_socket(address) as fresh:
        congestion = fresh.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _NAME_BYTES).split(b"\0")[0].decode("ascii", "replace")
    path = {"interface": interface_with(address), "address": address}
    limits = {name: _limits(name) for name in ("tcp_wmem", "tcp_rmem")}
    return {"congestion_control": congestion, **path, **limits}


def _limits(name: str) -> str:
    """The least, first and largest size of a socket's buffer in bytes: "4096 131072 6291456"."""
    try:
        return " ".join(Path(f"/proc/sys/net/ipv4/{name}").read_text(encoding="ascii").split())
    except OSError:
        return "unknown"
