"""The control plane at every rank except 0: its connection to rank 0, the agent of its node, and its main thread's calls.

The first rank of a node also forwards the messages of the node's other ranks. So each node has one connection to rank
0, and rank 0 gets few messages per node and step. A rank announces a large message, and sends it when rank 0 has room.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any

import zmq
from msgspec import structs

from collbench.addresses import is_loopback, is_loopback_up, listen_at, resolve
from collbench.control import wire
from collbench.control.addresses import host_of, hub_places, node_place
from collbench.control.builds import BuildAddresses, addresses_of, ask_rank_0
from collbench.control.diagnosis import (
    HangCause,
    HangDiagnosis,
    ProcessEnd,
    RankState,
    is_stopped,
    own_stack,
    tool_here,
)
from collbench.control.io_thread import BackgroundCalls, IOHandler, IOThread
from collbench.control.members import HostKilled, Member, above
from collbench.control.path import Probe, tcp_info
from collbench.control.security import SECRET_REMEDY, Keys, Secret, socket_event
from collbench.control.tree import LARGE_BYTES, ChildConnection, Downlinks, bundles, ranks_apart, restarted
from collbench.control.watchdog import EndProcess
from collbench.control.wire import Entry, Malformed, Message, check_ranks, decoded, encoded, frames, parsed
from collbench.errors import FAILED, USAGE, CollbenchError, Orphaned, PeerFailed, RunFailed, UsageError, WaitExpired
from collbench.launch import software
from collbench.launch.info import LaunchInfo

# The connection of a rank to the first rank of its node, or of that rank to rank 0.

_RETRY_MS = 5  # ZeroMQ's default waits at least 100 ms, also for a rank 0 that is still starting
_SLOWEST_RETRY_MS = 200
_AFTER_REFUSAL_S = 1.0  # limits the retries of a rank that has the wrong secret
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class Uplink:
    """The connection to rank 0 or to the first rank of the node. It tries each address in turn until one accepts it.

    Used by one thread. places: addresses, each with the seconds until the next one is tried in addition.
    """

    def __init__(self, context: zmq.Context[Any], keys: Keys, places: Sequence[tuple[str, float]]) -> None:
        self._context = context
        self._keys = keys
        self._candidates = places
        self._due: dict[str, float] = {}  # addresses to try, and when
        self._monitors: dict[Any, Any] = {}  # of the sockets that try to connect, by socket
        self._places: dict[Any, str] = {}  # by monitor
        self._hello: wire.Hello | None = None  # None before `begin`
        self._waiting: list[Message] = []
        self.socket: zmq.Socket[Any] | None = None  # once an address has accepted this rank
        self.place = ""  # that address
        self.refused: list[str] = []  # addresses that replied without this launch's secret
        self.cut: float | None = None  # when the connection was lost; it is not restored, since messages in transit are lost
        self.descriptor = -1  # of the most recent connection, -1 before there is one
        self.second: zmq.Socket[Any] | None = None  # a second connection, once it was opened

    @property
    def sockets(self) -> list[Any]:
        """The sockets to poll."""
        sockets = [*self._monitors, *self._monitors.values()]
        return [*sockets, self.second] if self.second else sockets

    def open_second(self, ranks: Sequence[int]) -> None:
        """Open one more connection to the same place, because a lost packet may block the first one."""
        self.second = self._socket(self.place)
        self.second.setsockopt(zmq.LINGER, 0)
        self.second.connect(self.place)
        self.send_second(wire.Aside(list(ranks)))

    def _socket(self, place: str) -> zmq.Socket[Any]:
        socket: zmq.Socket[Any] = self._context.socket(zmq.DEALER)
        self._keys.secure_caller(socket)
        socket.setsockopt(zmq.IPV6, int("[" in place))
        return socket

    def send_second(self, message: Message) -> None:
        """Send through the second connection, if there is one."""
        if self.second:
            self.second.send_multipart(frames(message), copy=False)

    def begin(self, hello: wire.Hello) -> None:
        """Begin to connect. `hello` is the first message."""
        self._hello = hello
        due = time.monotonic()
        for place, patience_s in self._candidates:
            self._due[place] = due
            due += patience_s

    def connect(self, now: float) -> float:
        """Connect to the addresses that are due, and send the first message. Return when to call again if none has accepted it by then."""
        if self._hello is None:
            return math.inf
        for place in [place for place, due in self._due.items() if due <= now]:
            del self._due[place]
            socket = self._socket(place)
            socket.setsockopt(zmq.RECONNECT_IVL, _RETRY_MS)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, _SLOWEST_RETRY_MS)
            monitor = socket.get_monitor_socket(_REFUSED | zmq.EVENT_DISCONNECTED)
            self._monitors[socket] = monitor
            self._places[monitor] = place
            socket.connect(place)
            socket.send_multipart(frames(self._hello))
        return min(self._due.values(), default=now + _AFTER_REFUSAL_S)

    def send(self, message: Message) -> None:
        """Send to the address that accepted this rank. Before that, store the message."""
        if self.socket:
            self.socket.send_multipart(frames(message), copy=False)
        else:
            self._waiting.append(message)

    def read(self, ready: Any) -> Message | None:
        """Return the message at a polled socket; None for an invalid message, and for events of the connection."""
        if ready in self._places:
            event, _, _ = socket_event(ready)
            if self.socket:
                if event == zmq.EVENT_DISCONNECTED and self.cut is None:
                    self.cut = time.monotonic()
            elif event & _REFUSED:
                place = self._places[ready]
                self.refused.append(place)
                self._drop(next(socket for socket, monitor in self._monitors.items() if monitor is ready), in_vain=True)
                self._due[place] = time.monotonic() + _AFTER_REFUSAL_S * len(self.refused)
        if ready is not self.second and ready not in self._monitors:
            return None
        pieces = ready.recv_multipart(copy=False)
        if ready is not self.second:
            self.descriptor = pieces[0].get(zmq.SRCFD)
        try:
            message = parsed([piece.buffer for piece in pieces])
        except Malformed:
            return None
        if isinstance(message, wire.Welcome) and self.socket is None:
            self._keep(ready)
        return message

    def _keep(self, accepted: Any) -> None:
        """Use the socket that rank 0 has accepted, and drop the others."""
        assert self._hello
        self.place = self._places[self._monitors[accepted]]
        for unused in self._monitors.keys() - {accepted}:
            unused.send_multipart(frames(wire.Moved(self._hello.member.rank)))
            self._drop(unused)
        self.socket = accepted
        self._due.clear()
        for message in self._waiting:
            self.send(message)
        self._waiting.clear()

    def _drop(self, socket: Any, *, in_vain: bool = False) -> None:
        if in_vain:
            socket.setsockopt(zmq.LINGER, 0)  # the peer will never receive the queued messages
        monitor = self._monitors.pop(socket)
        del self._places[monitor]
        socket.disable_monitor()
        monitor.close()
        socket.close()

    def close(self, *, in_vain: bool) -> None:
        """Send the queued messages within one second, unless rank 0 has left, then close."""
        for dealer in list(self._monitors):
            self._drop(dealer, in_vain=in_vain or self.socket is None or self.cut is not None)
        if self.second:
            self.second.close()


_URGENT = (wire.Here, wire.Paths, wire.Stalled, wire.Where, wire.Stack, wire.Probed, wire.Abort)
_SECOND_S = 0.6  # without a reply, or without an acknowledgement of this rank's reply, before a second connection is opened
_STEP_S = 0.05
_LOST_S = 0.05  # seconds from the loss of the connection to the end of this rank: time to read rank 0's last message


class NodeAgent(IOHandler):
    """The I/O handler of a rank other than 0. The inbox has the messages of rank 0."""

    def __init__(
        self, rank: int, up: Uplink, down: Downlinks, own_state: Callable[[], RankState], *, beat_s: float, ending: EndProcess
    ) -> None:
        super().__init__(down, own_state, ending)
        self.rank = rank
        self.up = up
        self._beat_s = beat_s  # seconds between two reports of the state
        self.farewell = threading.Event()  # set when rank 0 will send no more messages
        self.released = threading.Event()  # set when this rank may end, because no other rank's messages pass through it any more
        self.rank_0_replied = threading.Event()  # set when any message of rank 0 arrives
        self.above = "rank 0"  # the name of the other end of the uplink: "rank 0", or the first rank of this node
        self.host_killed: HostKilled | None = None  # other ranks of that host, which may have ended before it
        self.address = ""  # on the first rank of a node: this host's address as rank 0 reaches it
        self._values: dict[int, dict[int, Entry]] = {}  # by step and rank
        self._sent_step = 0  # the last one
        self._offered: dict[int, deque[wire.Values]] = {}  # by step
        self._departures: list[wire.Bye | wire.Moved] = []
        self._beat_at = 0.0
        self._queried_at: float | None = None
        self._answered_at: float | None = None
        self._probes: dict[str, Probe] = {}
        self._probe_listener: socket.socket | None = None
        self._stacks = BackgroundCalls()
        self._welcomed = False
        self._begun = False
        self._leaving = False

    @property
    def sockets(self) -> list[Any]:
        """Return the sockets to poll, in both directions, and the descriptors of this node's processes."""
        return [*self.up.sockets, *super().sockets]

    def send(self, message: Message) -> None:
        """Send a message towards rank 0. Urgent messages also use the second connection if there is one."""
        self.up.send(message)
        if isinstance(message, _URGENT):
            self.up.send_second(message)

    def query(self, question: Message) -> None:
        """Send rank 0 a question, after the state of this rank's connections."""
        self._queried_at = self._queried_at or time.monotonic()
        self._send_paths()
        self.send(question)

    def _send_paths(self) -> None:
        if self.address and self._probe_listener is None:
            with suppress(OSError):
                self._probe_listener = listen_at(self.address, backlog=64)
        port = self._probe_listener.getsockname()[1] if self._probe_listener else 0
        self.send(wire.Paths(self.rank, port, self.connections.reports(), is_loopback_up()))

    def _answer(self) -> None:
        """Send rank 0 this rank's state, and the last known states of the stopped ranks of this node."""
        self._answered_at = self._answered_at or time.monotonic()
        self._send_paths()
        stopped = [structs.replace(self.states.get(rank, RankState(rank)), held=True) for rank in self.node.stopped()]
        self.send(wire.Here([self.own_state(), *stopped]))

    def _open_second_if_unheard(self, now: float) -> float:
        """Open a second connection where the first one does not deliver messages; return when to check again."""
        due = min((sent_at + _SECOND_S for sent_at in (self._queried_at, self._answered_at) if sent_at is not None), default=math.inf)
        if now < due:
            return due
        has_no_reply = self._queried_at is not None and now >= self._queried_at + _SECOND_S
        info = tcp_info(self.up.descriptor)
        is_blocked = info is not None and info.unacked > 0 and info.retransmits > 0
        self._queried_at = self._answered_at = None
        if self.up.place.startswith("tcp://") and not self.up.second and (has_no_reply or is_blocked):
            self.up.open_second([self.rank, *sorted(self._mates())])
            self._answer()
            self.up.send_second(wire.Where())
        return math.inf

    def _step_probes(self, now: float) -> float:
        for address, probe in list(self._probes.items()):
            result = probe.step()
            if result:
                del self._probes[address]
                self.send(wire.Probed(self.rank, address, list(result.passed), list(result.failed)))
        return now + _STEP_S if self._probes else math.inf

    def read(self, ready: Any) -> None:
        """Handle a ready socket: a message from either side, or the end of a process of this node."""
        if ready not in self.up.sockets:
            super().read(ready)
            return
        message = self.up.read(ready)
        if message:
            self._from_above(message)

    def _reject(self, error: Malformed) -> None:
        if self._begun:
            why = f"rank {self.rank} received a message of a rank of its node that cannot be read ({error})"
            self.inbox.put(RunFailed(f"{why}: install the same build on all nodes"))

    def _end_of(self, rank: int, how: ProcessEnd) -> None:
        self.up.send(wire.Gone(rank, how))

    def _from_above(self, message: Message) -> None:
        if isinstance(message, wire.StepAnswer | wire.Where | wire.Here | wire.Abort | wire.Bye):
            self.down.broadcast(message)
        if isinstance(message, wire.StepAnswer | wire.Where | wire.Here):
            self.rank_0_replied.set()
            self._queried_at = None
        match message:
            case wire.StepAnswer():
                self._begun = self._welcomed = True
                self.inbox.put(message)
            case wire.Welcome() if not self._welcomed:
                self._welcomed = True
                self.inbox.put(message)
            case wire.Where():
                self._answer()
            case wire.SendProbe():
                self._probes.setdefault(message.address, Probe(message.address, message.port))
            case wire.Grant() if message.step in self._offered:
                self.up.send(self._offered[message.step].popleft())
                if not self._offered[message.step]:
                    del self._offered[message.step]
            case wire.TakeStack():
                self._take_stack(message)
            case wire.Abort():
                self.inbox.put(PeerFailed(message.sentence, message.code))
                self.ending.begin(message.sentence, message.code, self.node)
            case wire.Bye():
                self.farewell.set()

    def _take_stack(self, request: wire.TakeStack) -> None:
        """Take a rank's stack with a tool, else its Python stack. A debugger never stops this process while its node waits for it."""
        rank = request.rank
        child = self.down.with_rank(rank)
        if rank == self.rank:
            self._stacks.start(partial(own_stack, native=not self._mates()), partial(self._send_stack, rank))
        elif self.node.has(rank) and (tool_here() or child is None):
            self._stacks.start(partial(self.node.stack_of, rank), partial(self._send_stack, rank))
        elif child:
            self.down.send(child, request)

    def _send_stack(self, rank: int, text: str) -> None:
        self.send(wire.Stack(rank, text))

    def _from_below(self, child: ChildConnection, message: Message) -> None:
        match message:
            case wire.Hello():
                self._forward_hello(child, message)
            case wire.Values():
                check_ranks((entry.rank for entry in message.entries), child.ranks)
                self.take(message.step, message.entries)
            case wire.Beat():
                check_ranks((state.rank for state in message.states), child.ranks)
                self.states |= {state.rank: state for state in message.states}
            case wire.Offer():
                self.down.send(child, wire.Grant(message.step))  # grants room for the values of all ranks of a node
            case wire.Bye() | wire.Moved():
                self._leave(child, message)
            case _:
                self.send(message)

    def _forward_hello(self, child: ChildConnection, hello: wire.Hello) -> None:
        if self._begun and self.joined.get(hello.member.rank) != hello.member:
            self.down.refuse(child, restarted(hello.member), FAILED)
        else:
            self._admit(child, hello.member)
        self.up.send(hello)

    def _leave(self, child: ChildConnection, message: wire.Bye | wire.Moved) -> None:
        rank = message.rank or 0
        self._remove(child, rank)
        self.states.pop(rank, None)
        if isinstance(message, wire.Bye):
            self.node.forget(rank)
        self._departures.append(message)
        for step in sorted(self._values):  # a step may have waited for this rank only
            self.take(step, [])

    def take(self, step: int, entries: Sequence[Entry]) -> None:
        """Store values of a step, of this rank or the node's others, and send them when they are complete."""
        by_rank = self._values.setdefault(step, {})
        by_rank.update({entry.rank: entry for entry in entries})
        if step <= self._sent_step or by_rank.keys() >= {self.rank, *self._mates()}:
            del self._values[step]
            self._sent_step = max(self._sent_step, step)
            for bundle in bundles(list(by_rank.values())):
                values = wire.Values(step, bundle)
                if values.size_bytes <= LARGE_BYTES:
                    self.up.send(values)
                else:
                    self._offered.setdefault(step, deque()).append(values)
                    self.up.send(wire.Offer(step, values.size_bytes))

    def _mates(self) -> set[int]:
        return {rank for child in self.down.children.values() for rank in child.ranks}

    def tick(self, now: float) -> float:
        """Do the work that is due: connect, send states, end processes. Return when to call again, on CLOCK_MONOTONIC."""
        due = min(self.ending.tick(now), self._open_second_if_unheard(now), self._step_probes(now))
        if self._stacks.poll():
            due = min(due, now + _STEP_S)
        self._report_departures()
        if self.up.socket is None:
            return min(due, self.up.connect(now))
        if self.up.cut is not None:
            return min(due, self._end_without_rank_0(now, self.up.cut))
        if now >= self._beat_at:
            self._beat_at = now + self._beat_s
            state = self.own_state()
            self.states[self.rank] = state
            self.connections.note(state.still_s, now)
            self.up.send(wire.Beat(list(self.states.values())))
        return min(due, self._beat_at)

    def _report_departures(self) -> None:
        """Report the ranks that left, once their messages are sent. Let this rank end after them if it has asked to leave."""
        all_sent = not (self._offered or self._values)
        if all_sent:
            for message in self._departures:
                self.up.send(message)
            self._departures.clear()
        is_last = all_sent and not self._mates()
        if self._leaving and not self.released.is_set() and (is_last or self.farewell.is_set() or self.ending.begun):
            self.released.set()
            if not self.farewell.is_set():  # else rank 0 has left: ZeroMQ would try to reach it for a second
                self.up.send(wire.Bye(self.rank))

    def _end_without_rank_0(self, now: float, cut: float) -> float:
        """Handle a lost connection to rank 0; return when to check again."""
        if self.farewell.is_set():
            return now + _LOST_S
        if now - cut > _LOST_S:
            self.farewell.set()
            phase = self.own_state().phase
            during = f" during {phase}" if phase else ""
            if self.connections.lossy:
                reason = "it was killed or crashed, or the path between the hosts, which drops packets, lost its last message"
                self.lose(f"the connection to {self.above} closed unexpectedly{during}: {reason}")
            else:
                others = f"; {self.host_killed.render()}" if self.host_killed else ""
                self.lose(f"{self.above} ended unexpectedly{during}: {ProcessEnd().render()}{others}")
        return cut + _LOST_S

    def lose(self, sentence: str) -> None:
        """End this rank and those behind it, because rank 0 has ended or cannot be reached."""
        if self.ending.begun:
            return
        self.ending.report(sentence, FAILED)
        self.inbox.put(Orphaned(sentence))
        self.ending.begin(sentence, FAILED, self.node)
        self.down.broadcast(wire.Abort(sentence, FAILED))

    def leave(self) -> None:
        """Report to rank 0 that this rank leaves. `released` is set as soon as it may end."""
        self._leaving = True

    def close(self) -> None:
        """Close as every handler does, and what goes to rank 0."""
        super().close()
        has_left = self.farewell.is_set()
        self.farewell.set()
        self.released.set()
        self.up.close(in_vain=has_left)
        for probe in self._probes.values():
            probe.close()
        if self._probe_listener:
            self._probe_listener.close()


# The control plane of every rank except 0, as its main thread uses it.

_FAREWELL_S = 6.0  # seconds that a failed rank waits for rank 0, which may query all other ranks first
_QUERY_EVERY_S = 2.0
_LAST_WORD_S = 3.0  # seconds that it waits for rank 0, which reports for all ranks, to end first
_RELEASE_S = 60.0  # seconds at most that the first rank of a node waits for the node's other ranks
_AT_THE_NODE_S = 5.0  # seconds at the address of the node's first rank before the next address is tried in addition
_AT_A_PORT_S = 1.0  # the same for each address of rank 0
_BEAT_S = 1.0
_UNWELCOME_S = 1.0  # seconds without a reply from rank 0 before the builds are compared over UDP
_RANK_0_REPLIES_S = 3.0
_QUERY_BEFORE_S = 1.2


class Client:
    """The connection of a rank to rank 0, for its main thread. The first rank of a node forwards the others' messages."""

    def __init__(self, info: LaunchInfo, secret: Secret, own_state: Callable[[], RankState], ending: EndProcess) -> None:
        self._info = info
        self._secret = secret
        self._context = zmq.Context()
        if info.meeting.startswith("ipc://"):
            self._places = [(info.meeting, _AT_A_PORT_S)]
        else:
            node = [(node_place(info, secret), _AT_THE_NODE_S)] if info.local_rank else []
            self._places = [*node, *((place, _AT_A_PORT_S) for place in hub_places(info, secret))]
        keys = Keys.of(secret)
        up = Uplink(self._context, keys, self._places)
        down = Downlinks(self._context, keys)
        if info.local_rank == 0 and info.local_ranks > 1 and not info.meeting.startswith("ipc://"):
            with suppress(zmq.ZMQError):  # the launcher reports one node as two; the other ranks connect to rank 0 directly
                down.bind(node_place(info, secret))
        beat_s = _BEAT_S * max(1.0, info.ranks / info.local_ranks / 200)  # at most 200 state reports per second arrive at rank 0
        self._agent = NodeAgent(info.rank, up, down, own_state, beat_s=beat_s, ending=ending)
        self._io = IOThread(self._agent)
        self._me: Member | None = None
        self._rank_0: Member | None = None

    def set_members(self, me: Member, members: Sequence[Member], other_candidates: Mapping[int, HostKilled]) -> None:
        """Store the members, and by rank the ranks that may have ended instead of it. Errors name them."""
        receiver = above(me, members)
        self._me = me
        self._rank_0 = members[0]
        self._agent.above = str(receiver)
        if me.host != members[0].host and receiver == members[0]:
            self._agent.address = me.address
        if receiver.host != me.host:  # this rank runs, so its own host was not killed
            self._agent.host_killed = other_candidates.get(receiver.rank)

    def join(self, me: Member, deadline_s: float) -> None:
        """Join rank 0. Raises WaitExpired without a reply within the deadline, UsageError or PeerFailed if rank 0 has another build."""
        compares = self._info.launcher != "local"
        hello = wire.Hello(me, software.own().as_json() if compares else 0)
        self._io.do(lambda: self._agent.up.begin(hello))
        end = time.monotonic() + deadline_s
        joined = threading.Event()
        try:
            try:
                self._io.next(min(end, time.monotonic() + _UNWELCOME_S))  # the welcome
            except Empty:
                if compares:
                    threading.Thread(target=self._compare_builds, args=(joined, deadline_s), name="collbench-builds", daemon=True).start()
                self._io.next(end)
        except Empty:
            raise WaitExpired(self._describe_no_answer(deadline_s)) from None
        finally:
            joined.set()

    def _compare_builds(self, joined: threading.Event, seconds: float) -> None:
        """End the wait for rank 0's reply if rank 0 has another build, since it may not be able to read this rank's messages."""
        build = software.own()
        addresses = BuildAddresses(self._secret, self._info.port, addresses_of([place for place, _ in self._places]))
        reply = ask_rank_0(addresses, self._info.rank, build, joined, seconds)
        rank_0_build = software.read_build(reply.build) if reply else None
        if reply and rank_0_build != build and not joined.is_set():
            sentence = software.mismatch(self._info.rank, socket.gethostname(), build, reply.host, rank_0_build)
            self._agent.inbox.put(PeerFailed(sentence, USAGE) if reply.noted else UsageError(sentence))  # noted: rank 0 reports it

    def _describe_no_answer(self, deadline_s: float) -> str:
        info = self._info
        address = next(place for place, _ in self._places if not place.startswith("ipc://@"))
        if self._agent.up.refused:
            return (
                f"rank {info.rank} was refused at the place of rank 0 ({self._agent.up.refused[0]}): rank 0 has another secret than that "
                f"of {self._secret.source}, another program listens there, or rank 0 has no free connection; "
                f"{SECRET_REMEDY}, and give a second launch its own MASTER_PORT"
            )
        missing = f"rank {info.rank} on {socket.gethostname()} cannot connect to rank 0 at {address} within {deadline_s:g} s"
        why = f"{missing}: check that rank 0 started and its host can be reached, or raise --timeout"
        host = host_of(info.meeting) if info.meeting.startswith("tcp://") else ""
        addresses = resolve(host)
        if not addresses or not all(map(is_loopback, addresses)):
            return why
        return (
            f"{why}; '{host}' is a loopback address on this host: if rank 0 runs on another host, set MASTER_ADDR "
            "to an address of that host in the network between the hosts"
        )

    def send(self, step: int, phase: str, value: Any, arrays: Sequence[bytes] = ()) -> None:
        """Send this rank's value of a step. Rank 0 must be in the same phase there."""
        entry = Entry(self._info.rank, phase, encoded(value), [memoryview(array) for array in arrays])
        self._io.see_done(lambda: self._agent.take(step, [entry]))

    def receive(self, step: int, phase: str, reply_s: float, deadline_s: float) -> Any:
        """Return rank 0's value of this step. Raises WaitExpired, PeerFailed, RunFailed.

        Raises Orphaned if no thread of rank 0 replies within `reply_s` seconds. If rank 0 replies but waits for other ranks,
        the wait lasts until the deadline.
        """
        end = time.monotonic() + deadline_s
        reply_end = time.monotonic() + reply_s
        try:
            try:
                message = self._io.next(reply_end - _QUERY_BEFORE_S)
            except Empty:  # query rank 0 shortly before the end, so that a blocked path is detected by then
                self._io.do(lambda: self._agent.query(wire.Where()))
                message = self._io.next(reply_end)
        except Empty:
            message = self._receive_late(phase, end, deadline_s)
        if (message.step, message.what) != (step, phase):
            # rank 0 ends the launch for it, so this rank exchanges nothing more, also if its caller continues
            rank = self._info.rank
            apart = ranks_apart(str(self._me or f"rank {rank}"), (phase, step), str(self._rank_0 or "rank 0"), (message.what, message.step))
            raise self.abort(apart, FAILED) or RunFailed(apart, rank=rank, phase=phase)
        try:
            return decoded(message.value)
        except Malformed as error:
            sentence = f"{phase}: rank 0 sent an invalid answer ({error}): install the same version on all nodes"
            raise RunFailed(sentence, phase=phase) from None

    def has_message(self) -> bool:
        """Return whether `receive` would find a message of rank 0, or an error."""
        return not self._agent.inbox.empty()

    def _receive_late(self, phase: str, end: float, deadline_s: float) -> Any:
        """Query rank 0 repeatedly while waiting. Rank 0's own watchdog does not cover its work between two phases."""
        while time.monotonic() < end:
            if not self._does_rank_0_reply(wire.Where()):
                self._io.do(lambda: self._agent.lose(str(self._diagnose_silence(phase))))
            with suppress(Empty):
                return self._io.next(time.monotonic() + _QUERY_EVERY_S)
        raise WaitExpired(f"{phase}: rank 0 did not answer within {deadline_s:g} s")

    def _does_rank_0_reply(self, question: Message) -> bool:
        """Return whether rank 0's I/O thread replies. It does so even while rank 0's main thread is busy.

        Waits in steps: a stop of this process, by a tool of collbench for example, counts as one step.
        """
        self._agent.rank_0_replied.clear()
        self._io.do(lambda: self._agent.query(question))
        return any(self._agent.rank_0_replied.wait(_STEP_S) for _ in range(round(_RANK_0_REPLIES_S / _STEP_S)))

    def _diagnose_silence(self, phase: str) -> HangDiagnosis:
        """Return the diagnosis of rank 0's silence, as far as this rank can determine it."""
        rank_0 = self._rank_0
        me = self._me
        hang = HangDiagnosis(HangCause.NO_ANSWER, phase, (0,), (str(rank_0 or "rank 0"),), reporter=str(me or f"rank {self._info.rank}"))
        if rank_0 and me and rank_0.host == me.host:
            return structs.replace(hang, cause=HangCause.STOPPED if is_stopped(rank_0.pid) else HangCause.PROCESS_SILENT)
        if self._info.local_rank:
            return structs.replace(hang, cause=HangCause.RELAYED)
        info = tcp_info(self._agent.up.descriptor)
        cause = HangCause.UNREACHABLE if info and info.unacked else HangCause.NO_ANSWER
        source = rank_0.host if rank_0 else "rank 0's host"
        return structs.replace(hang, cause=cause, source=source, target=me.host if me else "this host")

    def abort(self, sentence: str, code: int) -> CollbenchError | None:
        """Report to rank 0 why this rank ends. Return why rank 0 ends, Orphaned if it has ended, or None if it does not reply."""
        self.interrupt(sentence, code)
        end = time.monotonic() + (_FAREWELL_S if self._agent.up.socket else 0.0)  # rank 0 does not know a rank that has not joined
        try:
            while True:
                self._io.next(end)
        except Empty:
            return None
        except CollbenchError as reason:
            return reason

    def interrupt(self, sentence: str, code: int) -> None:
        """Report to rank 0 why the launch ends, and return at once. Any thread may call."""
        self._io.do(lambda: self._agent.send(wire.Abort(sentence, code)))

    def farewell(self) -> None:
        """Wait briefly until rank 0 has ended: some launchers end all ranks when one ends, and rank 0 must report first."""
        if self._agent.up.socket:
            self._agent.farewell.wait(_LAST_WORD_S)

    def stalled(self, phase: str) -> HangDiagnosis | None:
        """Report to rank 0 that this rank makes no progress; return the diagnosis if rank 0 does not reply. Any thread may call."""
        return None if self._does_rank_0_reply(wire.Stalled(phase)) else self._diagnose_silence(phase)

    def close(self) -> None:
        """Leave in order, after all messages are sent, including those of the ranks that send through this one."""
        self._io.do(self._agent.leave)
        self._agent.released.wait(_RELEASE_S)
        self._io.close()
        self._context.term()
