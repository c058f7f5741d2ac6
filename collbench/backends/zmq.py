"""ZeroMQ between the two ranks of a pair, as Python programs have it: PAIR sockets of pyzmq over TCP, without copies where it can.

What the calls cost in Python is part of the time, and so is the copy of what arrived out of ZeroMQ's memory into the receive buffer.
A send returns before the bytes have left: every operation on pairs ends with an answer of the other rank, which has them by then.
"""

from __future__ import annotations

import platform
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Available, Settings, Unavailable
from collbench.backends.group import Group
from collbench.backends.linked import LinkedBackend
from collbench.backends.memory import AnyBuffers
from collbench.backends.messages import MessageBinding
from collbench.backends.socket_links import Links
from collbench.backends.socket_tcp import path_facts
from collbench.backends.zmq_link import LEAST, LINGER_MS, MAJOR, ZmqLink, joined, window_of
from collbench.operations.cell import Cell
from collbench.operations.program import PythonCall

if TYPE_CHECKING:
    from collbench.control.world import World

_REMEDY = "pip install -U pyzmq, whose wheel brings its own"


class ZmqMessages:
    """The calls of a pair over a link. Memory that is sent stays mapped until ZeroMQ has let go of it: it would abort the process."""

    def __init__(self, link: ZmqLink, keep: object) -> None:
        self._link, self._keep = link, keep
        self._posted: list[memoryview] = []

    def call(self, what: str, *words: int) -> PythonCall:
        """The method of that name."""
        return PythonCall(f"zmq {what}", partial(getattr(self, f"_{what}"), *([self._part(*words)] if words else [])))

    def _part(self, at: int, size: int) -> memoryview:
        import ctypes

        memory = (ctypes.c_char * size).from_address(at)
        memory.keep = self._keep  # type: ignore[attr-defined]
        return memoryview(memory).cast("B")

    def _send(self, part: memoryview) -> None:
        try:
            self._link.socket.send(part, copy=False)
        except self._link.errors as error:
            raise OSError(self._link.explain(error)) from error

    _post_send = _send

    def _receive(self, part: memoryview) -> None:
        try:
            came = self._link.socket.recv(copy=False)
        except self._link.errors as error:
            raise OSError(self._link.explain(error)) from error
        if len(came) != len(part):
            raise OSError(f"{len(came)} bytes came from {self._link.peer} where {len(part)} were due")
        part[:] = came.buffer

    def _post_receive(self, part: memoryview) -> None:
        self._posted.append(part)

    def _waitall(self) -> None:
        posted, self._posted = self._posted, []
        for part in posted:
            self._receive(part)


class ZmqBackend(LinkedBackend):
    """Point-to-point over PAIR sockets, a context of its own apart from the control plane's, one connection per pair."""

    name = api = "zmq"
    flags = ("python_messages",)
    _context: Any = None

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Whether pyzmq loads, with a libzmq that is known here."""
        if find_spec("zmq") is None:
            return Unavailable("pyzmq is not installed", "pip install pyzmq")
        try:
            import zmq
        except Exception as error:  # of whatever kind: it is installed, and broken
            return Unavailable(f"pyzmq does not load ({type(error).__name__}: {error})", "pip install --force-reinstall pyzmq")
        found = zmq.zmq_version_info()
        if found[0] > MAJOR:
            return Unavailable(
                f"libzmq {zmq.zmq_version()} is newer than the {MAJOR}.x known here", "use an older pyzmq, or a newer collbench"
            )
        if found < LEAST:
            return Unavailable(f"libzmq {zmq.zmq_version()} is too old, {'.'.join(map(str, LEAST))} is the least", _REMEDY)
        return Available(f"libzmq {zmq.zmq_version()} by pyzmq {zmq.__version__}, between pairs of ranks")

    def open(self, world: World, settings: Settings) -> None:
        """Listens, so that pairs can find one another. Raises RunFailed where a rank cannot listen at its address."""
        import zmq

        self.rank, self.ranks, self._world = world.rank, world.size, world
        self._links = Links(world, settings.timeout_s)
        self._context = zmq.Context()
        threads = self._context.get(zmq.IO_THREADS)
        self._about = {"libzmq": zmq.zmq_version(), "pyzmq": zmq.__version__, "zmq_io_threads": str(threads),
                       "copied_below_bytes": str(zmq.COPY_THRESHOLD), "kernel": platform.release(),
                       **path_facts(world.me.address)}  # fmt: skip

    def connect(self, peer: int, cell: Cell) -> ZmqLink:
        """A PAIR socket at each end; where it is, is told over a connection of `Links`, which knows who is who."""
        return joined(self._context, self._world, self._links.connect(peer, 1), window_of(cell))

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> MessageBinding:
        """Addresses, and calls over the pair's link."""
        return MessageBinding(ZmqMessages(group.handle, buffers), buffers, slot)

    def close(self) -> None:
        """Closes everything, and ends ZeroMQ's thread, which else might read memory that is gone."""
        super().close()
        if self._context:
            self._context.destroy(linger=LINGER_MS)
