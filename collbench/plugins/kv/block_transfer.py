"""Ways to move blocks from scattered to scattered memory: MPI messages, derived types, one-sided puts, packing, NIXL, and writev over TCP.

A method makes the calls of one transfer on this rank. A transfer ends when every target has all of its blocks: after a put the source
sends an empty message, as a prefill instance notifies the decode instance.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.backends.backend import Backend
from collbench.backends.mpi import load_mpi
from collbench.backends.socket import ConnectionMaker, Connections
from collbench.control.world import World
from collbench.errors import RunFailed
from collbench.operations.data import Mismatch
from collbench.operations.program import Call, NativeCall, Program, PythonCall
from collbench.operations.unsupported import SharedMemoryTooSmall
from collbench.plugins.kv.models import BlockLink, BlockPlan
from collbench.plugins.libraries.nixl import NixlBackend
from collbench.reason import Fact

_TAG, _DONE = 3, 4
_STATUS_BYTES = 256  # MPI_Status of any library is smaller
_SHARED = "/dev/shm"  # where MPI libraries place the windows of a host
_MOST_PARTS = min(1024, os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 16)
Pool = NDArray[np.uint8]  # [places × bytes of a block]


class TransferMethod(ABC):
    """One method on this rank. Use: `allocate`, `meet`, `bind`, at the end `free`; all ranks call each.

    name, summary   for users; backend: that must be open
    frees_together  whether `free` waits for the other ranks: then it needs the memory of all
    """

    name: str
    backend: str
    summary: str
    frees_together = False

    def __init__(self, plan: BlockPlan, world: World, opened: Backend) -> None:
        self.plan = plan
        self.world = world
        self.rank = world.rank
        self.out = plan.outgoing(world.rank)
        self.into = plan.incoming(world.rank)
        self.pool: Pool = np.empty((0, plan.block_bytes), np.uint8)

    def refusal(self) -> Fact | None:
        """Return why this rank cannot use the method, or None."""
        return None

    def allocate(self) -> None:
        """Make this rank's memory, of as many places as the plan has."""
        self.pool = np.zeros((self.plan.places(self.rank), self.plan.block_bytes), np.uint8)

    def meet(self) -> None:
        """Exchange what ranks must know of one another's memory; all ranks call it when each has its memory."""
        return

    @abstractmethod
    def bind(self) -> Program:
        """Return the calls of a transfer."""

    def arrived(self) -> None:
        """Make the received blocks visible to this rank."""
        return

    def copy_calls(self) -> tuple[Callable[[], object], ...]:
        """Return the copies of a transfer on this rank, which are part of its time. Empty without copies."""
        return ()

    def free(self) -> None:
        """Free what the library holds."""
        return


class _MpiMethod(TransferMethod):
    """Calls of MPI on COMM_WORLD, by pointer."""

    backend = "mpi"

    def __init__(self, plan: BlockPlan, world: World, opened: Backend) -> None:
        super().__init__(plan, world, opened)
        self.mpi = load_mpi()
        self.library = ctypes.CDLL(self.mpi.__file__)
        self.comm = self.mpi._handleof(self.mpi.COMM_WORLD)
        self.byte = self.mpi._handleof(self.mpi.BYTE)
        self.types: list[Any] = []
        self.status = ctypes.create_string_buffer(_STATUS_BYTES)

    def call(self, name: str, *args: int) -> NativeCall:
        """Return a call of the library."""
        return NativeCall(name, ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0, args)

    def address(self, place: int = 0) -> int:
        """Return the address of a place."""
        return int(self.pool.ctypes.data) + int(place) * self.plan.block_bytes

    def scattered(self, places: NDArray[np.int64]) -> int:
        """Return the handle of a type of blocks at these places, relative to the first place of a pool."""
        displacements = (places * self.plan.block_bytes).tolist()
        blocks_type = self.mpi.BYTE.Create_hindexed([self.plan.block_bytes] * len(displacements), displacements).Commit()
        self.types.append(blocks_type)
        return int(self.mpi._handleof(blocks_type))

    def nonblocking(self, calls: Sequence[tuple[str, tuple[int, ...]]]) -> list[Call]:
        """Return calls that each start a message, and one wait for all of them."""
        request_bytes = int(self.mpi._sizeof(self.mpi.Request))
        self.requests = ctypes.create_string_buffer(max(1, request_bytes * len(calls)))
        self.statuses = ctypes.create_string_buffer(_STATUS_BYTES * max(1, len(calls)))
        begin = ctypes.addressof(self.requests)
        posted = [self.call(name, *args, begin + request_bytes * turn) for turn, (name, args) in enumerate(calls)]
        return [*posted, self.call("MPI_Waitall", len(calls), begin, ctypes.addressof(self.statuses))] if calls else []

    def program(self, calls: Sequence[Call]) -> Program:
        """Return the program of these calls."""
        return Program((tuple(calls),), keep=self, explain=self.mpi.Get_error_string)

    def free(self) -> None:
        """Free the types."""
        for blocks_type in self.types:
            blocks_type.Free()
        self.types.clear()


class MpiMessages(_MpiMethod):
    """A message per block, all in flight at the same time."""

    name, summary = "mpi-messages", "MPI_Isend and MPI_Irecv of each block, then MPI_Waitall"

    def bind(self) -> Program:
        """Return the calls."""
        calls = [("MPI_Irecv", self._message(place, link.source)) for link in self.into for place in link.at_target]
        calls += [("MPI_Isend", self._message(place, link.target)) for link in self.out for place in link.at_source]
        return self.program(self.nonblocking(calls))

    def _message(self, place: int, peer: int) -> tuple[int, ...]:
        return self.address(place), self.plan.block_bytes, self.byte, peer, _TAG, self.comm


class MpiTyped(_MpiMethod):
    """A message per pair of ranks, of a derived type with all blocks."""

    name, summary = "mpi-type", "one message of a derived type (MPI_Type_create_hindexed) with all blocks"

    def bind(self) -> Program:
        """Return the calls."""
        base = self.address()
        calls = [("MPI_Irecv", (base, 1, self.scattered(link.at_target), link.source, _TAG, self.comm)) for link in self.into]
        calls += [("MPI_Isend", (base, 1, self.scattered(link.at_source), link.target, _TAG, self.comm)) for link in self.out]
        return self.program(self.nonblocking(calls))


class MpiPut(_MpiMethod):
    """One-sided: the targets expose their memory in a window, and the sources put each block there."""

    name, summary = "mpi-put", "MPI_Put of each block, then MPI_Win_flush and an empty message"
    typed = False
    frees_together = True
    window: Any = None

    def refusal(self) -> Fact | None:
        """Return that /dev/shm is too small for the windows of this host: MPI libraries end the process instead of an error."""
        ranks = [member.rank for member in self.world.on_host() if self.plan.incoming(member.rank)]
        need = len(ranks) * self.plan.target_places * self.plan.block_bytes
        try:
            free = shutil.disk_usage(_SHARED).free
        except OSError:
            return None
        return SharedMemoryTooSmall(_SHARED, len(ranks), need, free) if need > free else None

    def allocate(self) -> None:
        """Make the window; the memory of a source is ordinary."""
        exposed_bytes = self.plan.places(self.rank) * self.plan.block_bytes if self.into else 0
        self.window = self.mpi.Win.Allocate(exposed_bytes, 1, comm=self.mpi.COMM_WORLD)
        self.window.Lock_all()
        self.mpi.COMM_WORLD.Barrier()
        if exposed_bytes:
            self.pool = np.frombuffer(self.window.tomemory(), np.uint8).reshape(-1, self.plan.block_bytes)
        else:
            super().allocate()

    def bind(self) -> Program:
        """Return the calls."""
        calls: list[Call] = []
        win = self.mpi._handleof(self.window)
        size = self.plan.block_bytes
        byte = self.byte
        for link in self.out:
            if self.typed:
                source_type = self.scattered(link.at_source)
                calls.append(self.call("MPI_Put", self.address(), 1, source_type, link.target, 0, 1, self.scattered(link.at_target), win))
                continue
            for source, target in zip(link.at_source, link.at_target, strict=True):
                calls.append(self.call("MPI_Put", self.address(source), size, byte, link.target, int(target) * size, size, byte, win))
        calls += [self.call("MPI_Win_flush", link.target, win) for link in self.out]
        calls += [self.call("MPI_Send", 0, 0, byte, link.target, _DONE, self.comm) for link in self.out]
        status = ctypes.addressof(self.status)
        calls += [self.call("MPI_Recv", 0, 0, byte, link.source, _DONE, self.comm, status) for link in self.into]
        return self.program(calls)

    def arrived(self) -> None:
        """Order this rank's accesses to the window with those of the sources."""
        self.window.Sync()

    def free(self) -> None:
        """Free the window and the types."""
        super().free()
        self.pool = np.empty((0, self.plan.block_bytes), np.uint8)  # its memory goes with the window
        if self.window is not None:
            self.window.Unlock_all()
            self.window.Free()


class MpiPutTyped(MpiPut):
    """One-sided: one put of a derived type per pair of ranks."""

    name, summary = "mpi-put-type", "one MPI_Put of derived types with all blocks, then MPI_Win_flush and an empty message"
    typed = True


class Packed(_MpiMethod):
    """The source copies its blocks into one buffer, sends it in one message, and the target copies them to their places."""

    name, summary = "packed", "copy all blocks into one buffer, one MPI message, copy them to their places"

    def bind(self) -> Program:
        """Return the calls."""
        links = (*self.into, *self.out)
        staged = {(link.source, link.target): np.zeros((len(link.at_source), self.plan.block_bytes), np.uint8) for link in links}

        def pack(link: BlockLink) -> Callable[[], object]:
            return lambda: np.take(self.pool, link.at_source, axis=0, out=staged[link.source, link.target], mode="clip")

        def unpack(link: BlockLink) -> Callable[[], object]:
            return lambda: self.pool.__setitem__(link.at_target, staged[link.source, link.target])

        self.copies = (*map(pack, self.out), *map(unpack, self.into))
        calls = []
        for link in links:
            buffer = staged[link.source, link.target]
            name, peer = ("MPI_Irecv", link.source) if link in self.into else ("MPI_Isend", link.target)
            calls.append((name, (int(buffer.ctypes.data), buffer.nbytes, self.byte, peer, _TAG, self.comm)))
        copies = [PythonCall("copy", copy) for copy in self.copies]
        messages = [_in_python(call, self.mpi.Get_error_string) for call in self.nonblocking(calls)]
        return self.program([*messages, *copies] if self.into else [*copies, *messages])

    def copy_calls(self) -> tuple[Callable[[], object], ...]:
        """Return the copies."""
        return self.copies


def _in_python(call: Call, explain: Callable[[int], str]) -> PythonCall:
    """Return a native call as a Python one: programs with copies run in the Python loop."""
    assert isinstance(call, NativeCall)
    function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * len(call.args))(call.pointer)
    words = [ctypes.c_uint64(word) for word in call.args]

    def run() -> None:
        code = function(*words)
        if code:
            raise RunFailed(f"{call.name} failed: {explain(code)}")

    return PythonCall(call.name, run)


class Writev(TransferMethod):
    """A TCP connection per pair of ranks, with gathering writes and scattering reads: no copy into one buffer."""

    name, backend, summary = "writev", "socket", "sendmsg and recvmsg over TCP with the addresses of all blocks (writev, readv)"

    def meet(self) -> None:
        """Make the connections."""
        maker = ConnectionMaker(self.world, self.world.timeout_s)
        self.connections: dict[int, Connections] = {}
        try:
            for link in self.plan.links:  # one after the other: a target that waits for one source rejects the others
                wrong = None
                if self.rank in (link.source, link.target):
                    peer = link.target if self.rank == link.source else link.source
                    try:
                        self.connections[peer] = maker.connect(peer, 1)
                    except RunFailed as error:
                        wrong = str(error)
                reason = self.world.first_error(wrong, "connecting sockets")
                if reason:
                    raise RunFailed(str(reason))
        finally:
            maker.close()

    def bind(self) -> Program:
        """Return the calls."""
        calls = [PythonCall("sendmsg", self._moving(link.target, link.at_source, send=True)) for link in self.out]
        calls += [PythonCall("recvmsg", self._moving(link.source, link.at_target, send=False)) for link in self.into]
        return Program((tuple(calls),), keep=self)

    def _moving(self, peer: int, places: NDArray[np.int64], send: bool) -> Callable[[], None]:
        connection = self.connections[peer].sockets[0]
        blocks = [memoryview(self.pool[place]) for place in places]
        batches = [blocks[first : first + _MOST_PARTS] for first in range(0, len(blocks), _MOST_PARTS)]

        def run() -> None:
            for batch in batches:
                views = batch
                while views:
                    moved = connection.sendmsg(views) if send else connection.recvmsg_into(views, 0, socket.MSG_WAITALL)[0]
                    if moved == 0:
                        raise RunFailed(f"{self.world.members[peer]} closed the connection")
                    views = _after(views, moved)

        return run

    def free(self) -> None:
        """Close the connections."""
        for connections in getattr(self, "connections", {}).values():
            connections.close()


def _after(views: list[memoryview], moved: int) -> list[memoryview]:
    """Return what is left of the views after so many bytes."""
    for number, view in enumerate(views):
        if moved < len(view):
            return [view[moved:], *views[number + 1 :]]
        moved -= len(view)
    return []


class Nixl(TransferMethod):
    """NIXL: a prepared write of all blocks per pair of ranks, and a notification to the target when they are there."""

    name, backend, summary = "nixl", "nixl", "a write of all blocks per pair of ranks, prepared once, with a notification to the target"
    registered: Any = None

    def __init__(self, plan: BlockPlan, world: World, opened: Backend) -> None:
        super().__init__(plan, world, opened)
        assert isinstance(opened, NixlBackend)
        self.agent = opened.agent
        self.names: dict[int, str] = {}  # of the other ranks' agents
        self.writes: list[Any] = []
        self.lists: list[Any] = []
        self.notified: Counter[str] = Counter()

    def allocate(self) -> None:
        """Make the memory, register it with this rank's agent, and get what other agents need to reach it."""
        super().allocate()
        self.registered = self.agent.register_memory([(self.pool.ctypes.data, self.pool.nbytes, 0, "")], "DRAM")
        self.reached_by = {"metadata": self.agent.get_agent_metadata().hex(), "pool": int(self.pool.ctypes.data)}

    def meet(self) -> None:
        """Exchange what the agents need to reach one another and the places of their memory, through the control plane."""
        agents = self.world.allgather(self.reached_by, "exchanging the metadata of NIXL's agents")
        self.pools = [agent["pool"] for agent in agents]
        for peer in {*(link.target for link in self.out), *(link.source for link in self.into)}:
            name = self.agent.add_remote_agent(bytes.fromhex(agents[peer]["metadata"]))
            self.names[peer] = name.decode() if isinstance(name, bytes) else name

    def bind(self) -> Program:
        """Prepare the writes, and return the call that posts and awaits them, or the one that waits for the notifications."""
        for link in self.out:
            numbers = np.arange(len(link.at_source), dtype=np.int32)
            local = self._prepared("NIXL_INIT_AGENT", self.pools[self.rank], link.at_source)
            remote = self._prepared(self.names[link.target], self.pools[link.target], link.at_target)
            self.writes.append(self.agent.make_prepped_xfer("WRITE", local, numbers, remote, numbers, b"kv"))
        sources = [self.names[link.source] for link in self.into]
        calls = [PythonCall("nixl transfer", self._write)] if self.writes else []
        calls += [PythonCall("nixl get_new_notifs", lambda: self.wait_for(sources))] if sources else []
        return Program((tuple(calls),), keep=self)

    def _prepared(self, agent: str, pool: int, places: NDArray[np.int64]) -> Any:
        size = self.plan.block_bytes
        blocks = np.stack([pool + places * size, np.full(len(places), size), np.zeros(len(places), np.int64)], axis=1)
        self.lists.append(self.agent.prep_xfer_dlist(agent, np.ascontiguousarray(blocks, np.uint64), "DRAM"))
        return self.lists[-1]

    def _write(self) -> None:
        states = [self.agent.transfer(write) for write in self.writes]
        for write, posted_state in zip(self.writes, states, strict=True):
            state = posted_state
            while state == "PROC":
                state = self.agent.check_xfer_state(write)
            if state != "DONE":
                raise RunFailed(f"the write ended in state {state}")

    def wait_for(self, sources: Sequence[str]) -> None:
        """Poll until each source has notified this rank once more."""
        while not all(self.notified[name] for name in sources):
            for name, messages in self.agent.get_new_notifs().items():
                self.notified[name] += len(messages)
        self.notified.subtract(sources)

    def free(self) -> None:
        """Release the writes and the lists, and forget the other agents and this rank's memory."""
        for handle in (*self.writes, *self.lists):
            handle.release()
        for name in self.names.values():
            self.agent.remove_remote_agent(name)
        if self.registered is not None:
            self.agent.deregister_memory(self.registered)
        self.writes.clear()
        self.lists.clear()
        self.names.clear()
        self.registered = None


METHODS: Mapping[str, type[TransferMethod]] = {
    method.name: method for method in (MpiMessages, MpiTyped, MpiPut, MpiPutTyped, Packed, Writev, Nixl)
}


# Verification: each block has its own content, which follows from its source, its place there and the call. Unused places keep theirs.

_UNUSED = 0xA5
_PERIOD = 4093  # prime, so that the contents of adjacent places differ
_STAMP_BYTES = 8


@lru_cache(maxsize=2)
def _noise_of(n_bytes: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, n_bytes, np.uint8)


class BlockPattern(msgspec.Struct, frozen=True):
    """The contents of all blocks in one call. seed: of the run."""

    block_bytes: int
    seed: int

    def block(self, rank: int, place: int) -> NDArray[np.uint8]:
        """Return the content of a rank's place."""
        noise = _noise_of(self.block_bytes + _PERIOD, self.seed)
        start = (place * 31 + rank * 977) % _PERIOD
        content = noise[start : start + self.block_bytes].copy()
        content[:_STAMP_BYTES] = np.frombuffer(np.array([(rank << 40) + place], "<u8").tobytes(), np.uint8)[: self.block_bytes]
        return content

    def fill(self, method: TransferMethod) -> None:
        """Write the blocks of a source, and the same value into all places of a target."""
        if method.out:
            for place in range(len(method.pool)):
                method.pool[place] = self.block(method.rank, place)
        else:
            method.pool[:] = _UNUSED
        method.arrived()

    def check(self, method: TransferMethod) -> Mismatch | None:
        """Return the error in a target's memory, or None. Its index is that of the first wrong byte."""
        method.arrived()
        if not method.into:
            return None
        pool = method.pool
        untouched = np.ones(len(pool), bool)
        wrong = 0
        errors: list[tuple[int, str]] = []  # the index of a wrong byte, and where it is
        for link in method.into:
            untouched[link.at_target] = False
            for source, target in zip(link.at_source.tolist(), link.at_target.tolist(), strict=True):
                differing = pool[target] != self.block(link.source, source)
                if differing.any():
                    wrong += int(differing.sum())
                    index = target * self.block_bytes + int(np.argmax(differing))
                    errors.append((index, f"block {target}, which place {source} of rank {link.source} must fill"))
        overwritten = np.flatnonzero((pool != _UNUSED).any(axis=1) & untouched)
        if len(overwritten):
            wrong += int((pool[overwritten] != _UNUSED).sum())
            errors.append((int(overwritten[0]) * self.block_bytes, f"block {overwritten[0]}, which nothing may fill"))
        if not errors:
            return None
        first, hint = errors[0]
        return Mismatch(method.rank, wrong, first, "another byte", str(int(pool.ravel()[first])), hint)
