"""The part of a rank other than 0: passes its own words up; where it is the first of its node, those of the node's other ranks, too.

So each node has one connection to rank 0, and rank 0 gets few messages per node and step. A large message is offered first and sent when
rank 0 has room for it.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from collbench.control.bundle import LARGE_BYTES, Entry, bundles, size_of, started_again
from collbench.control.down import Child, Down
from collbench.control.ending import Ending
from collbench.control.message import Kind, Malformed, Message, entries
from collbench.control.node import Node
from collbench.control.path_probe import Probe, listener
from collbench.control.stack import own_stack, stack, tool_here
from collbench.control.standing import Standing, standings
from collbench.control.tcp_info import ConnectionMonitor, tcp_info
from collbench.control.up import Up
from collbench.errors import FAILED, Orphaned, PeerFailed, RunFailed

_ANSWERS = (Kind.HERE, Kind.PATHS, Kind.STUCK, Kind.WHERE, Kind.STACKED, Kind.PROBED, Kind.ABORT)
_SECOND_S = 0.6  # without an answer, or an acknowledgement of what this rank answered: then a second connection is opened
_STEP_S = 0.05
_LOST_S = 0.05  # how long a connection to rank 0 may be gone before this rank ends: what rank 0 said last is read before


class Relay:
    """Everything here runs in the keeper's thread. `inbox` is what the rank's main thread waits at: messages, or errors to raise.

    stand      tells where this rank stands
    beat_s     how often it is told
    farewell   set when nothing more will come from above
    released   set when this rank may leave: nobody behind it needs it any longer
    hub_heard  set when rank 0 says anything
    address    this host's, as rank 0 reaches it, of the first rank of a node; "" elsewhere
    above      who is at the other end of the way up: "rank 0", or the first rank of this node
    or_else    who else may have died, where the launcher kills all of a host for one
    """

    def __init__(self, rank: int, up: Up, down: Down | None, stand: Callable[[], Standing], *, beat_s: float, ending: Ending) -> None:
        self.rank, self.up, self.down, self._stand, self._beat_s, self.ending = rank, up, down, stand, beat_s, ending
        self.node = Node()
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.farewell, self.released, self.hub_heard = threading.Event(), threading.Event(), threading.Event()
        self.above, self.or_else = "rank 0", ""
        self._hello: Message | None = None
        self._said: dict[int, dict[int, Entry]] = {}
        self._sent = 0
        self._offered: dict[int, deque[Message]] = {}
        self._partings: list[Message] = []
        self._told: dict[int, Standing] = {}
        self._about: dict[int, Any] = {}
        self._beat_at = 0.0
        self.address = ""
        self._connections = ConnectionMonitor()
        self._asked_at: float | None = None
        self._answered_at: float | None = None
        self._probes: dict[str, Probe] = {}
        self._takes_probes: socket.socket | None = None
        self._welcomed = self._begun = self._leaving = False

    @property
    def sockets(self) -> list[Any]:
        """Up, down, and the processes of this node."""
        return [*self.up.sockets, *(self.down.sockets if self.down else ()), *self.node.descriptors]

    def present(self, about: Any, build: Any = 0) -> None:
        """Begins to connect; `build` is this rank's, as JSON. A collbench from before builds were compared ignores it, and sends 0."""
        self._hello = Message(Kind.HELLO, 0, [[self.rank, about, build]])

    def say(self, step: int, value: Any, raw: Sequence[bytes | memoryview] = ()) -> None:
        """What this rank says in a step."""
        self._take(step, [(self.rank, value, raw)])

    def send(self, message: Message) -> None:
        """Send a message up, also through the second connection where it is urgent."""
        self.up.send(message)
        if message.kind in _ANSWERS:
            self.up.send_second(message)

    def ask(self, question: Message) -> None:
        """Send rank 0 a question, after what this rank's connections show."""
        self._asked_at = self._asked_at or time.monotonic()
        self._send_paths()
        self.send(question)

    def _send_paths(self) -> None:
        if self.address and self._takes_probes is None:
            self._takes_probes = listener(self.address)
        port = self._takes_probes.getsockname()[1] if self._takes_probes else 0
        self.send(Message(Kind.PATHS, 0, [self.rank, port, [one.as_json() for one in self._connections.reports()]]))

    def _answer(self) -> None:
        """Send rank 0 where the ranks of this node are."""
        self._answered_at = self._answered_at or time.monotonic()
        self._send_paths()
        self.send(Message(Kind.HERE, 0, [one.as_json() for one in (self._stand(), *self._held())]))

    def _open_second_if_unheard(self, now: float) -> float:
        """Open a second connection where the first one brings no answer, or does not deliver this rank's; returns when to check again."""
        due = min((at + _SECOND_S for at in (self._asked_at, self._answered_at) if at is not None), default=math.inf)
        if now < due:
            return due
        unheard = self._asked_at is not None and now >= self._asked_at + _SECOND_S
        info = tcp_info(self.up.descriptor)
        self._asked_at = self._answered_at = None
        if self.up.place.startswith("tcp://") and not self.up.has_second and (unheard or (info and info.unacked and info.retransmits)):
            self.up.open_second([self.rank, *sorted(self._mates())])
            self._answer()
            self.up.send_second(Message(Kind.WHERE))
        return math.inf

    def _step_probes(self, now: float) -> float:
        for address, probe in list(self._probes.items()):
            if result := probe.step():
                del self._probes[address]
                self.send(Message(Kind.PROBED, 0, [self.rank, address, list(result.passed), list(result.failed)]))
        return now + _STEP_S if self._probes else math.inf

    def read(self, ready: Any) -> None:
        """From above, from below, or a process of this node that has ended."""
        if ready in self.node.descriptors:
            self.up.send(Message(Kind.GONE, 0, list(self.node.ended(ready))))  # perhaps without a word
        elif self.down and ready in self.down.sockets:
            try:
                came = self.down.read(ready)
                if came:
                    self._from_below(*came)
            except Malformed as error:
                if self._begun:
                    why = f"rank {self.rank} received a message of a rank of its node that cannot be read ({error})"
                    self.inbox.put(RunFailed(f"{why}: install the same build on all nodes"))
        else:
            message = self.up.read(ready)
            if message:
                self._from_above(message)

    def _from_above(self, message: Message) -> None:
        if message.kind in (Kind.TELL, Kind.WHERE, Kind.HERE, Kind.ABORT, Kind.BYE) and self.down:
            self.down.tell(message)
        if message.kind in (Kind.TELL, Kind.WHERE, Kind.HERE):
            self.hub_heard.set()
            self._asked_at = None
        if message.kind is Kind.TELL or (message.kind is Kind.WELCOME and not self._welcomed):
            self._begun = self._begun or message.kind is Kind.TELL
            self._welcomed = True
            self.inbox.put(message)
        elif message.kind is Kind.WHERE:
            self._answer()
        elif message.kind is Kind.PROBE:
            self._probes.setdefault(message.body[0], Probe(*message.body))
        elif message.kind is Kind.GRANT:
            self._granted(message.step)
        elif message.kind is Kind.STACK:
            self._stack(message)
        elif message.kind is Kind.ABORT:
            self._abort(message)
        elif message.kind is Kind.BYE:
            self.farewell.set()

    def _granted(self, step: int) -> None:
        offered = self._offered.get(step)
        if offered:
            self.up.send(offered.popleft())
        if not offered:
            self._offered.pop(step, None)

    def _abort(self, message: Message) -> None:
        sentence, code = message.body
        self.inbox.put(PeerFailed(sentence, code))
        self.ending.begin(sentence, code, self.node)

    def _held(self) -> list[Standing]:
        """Those of this node that cannot answer themselves, where they stood when they were last heard of."""
        return [replace(self._told.get(rank, Standing(rank)), held=True) for rank in self.node.stopped()]

    def _stack(self, message: Message) -> None:
        """A tool looks into the rank's process where there is one; otherwise the rank itself tells what Python knows."""
        rank, child = message.body, self.down.with_rank(message.body) if self.down else None
        if rank == self.rank:
            self._tell_stack(rank, f"{own_stack()}{stack(os.getpid()) if tool_here() else ''}")
        elif self.node.has(rank) and (tool_here() or child is None):
            self._tell_stack(rank, self.node.stack_of(rank))
        elif child and self.down:
            self.down.send(child, message)

    def _tell_stack(self, rank: int, text: str) -> None:
        self.send(Message(Kind.STACKED, 0, [rank, text]))

    def _from_below(self, child: Child, message: Message) -> None:
        if message.kind is Kind.HELLO:
            self._admit(child, message)
        elif message.kind is Kind.SAY:
            self._take(message.step, list(entries(message, child.ranks)))
        elif message.kind is Kind.BEAT:
            self._told |= {one.rank: one for one in standings(message.body, child.ranks)}
        elif message.kind is Kind.OFFER and self.down:
            self.down.send(child, Message(Kind.GRANT, message.step))  # here is room for all that the ranks of a node have
        elif message.kind in (Kind.BYE, Kind.MOVED):
            self._leave(child, message)
        else:
            self.send(message)

    def _admit(self, child: Child, message: Message) -> None:
        assert self.down
        for rank, about, _ in message.body:
            if self._begun and self._about.get(rank) != about:
                self.down.refuse(child, started_again(rank, about), FAILED)
                break
            child.ranks.add(rank)
            self._about[rank] = about
            self.node.watch(rank, about)
            self.down.send(child, Message(Kind.WELCOME))
        self.up.send(message)

    def _leave(self, child: Child, message: Message) -> None:
        """A rank leaves in order, or speaks through another connection from now on."""
        assert self.down
        child.ranks.discard(message.body)
        self._told.pop(message.body, None)
        if message.kind is Kind.BYE:
            self.node.forget(message.body)
        if not child.ranks:
            self.down.forget(child)
        self._partings.append(message)
        for step in sorted(self._said):  # which may have waited for this rank alone
            self._take(step, [])

    def _take(self, step: int, said: Sequence[Entry]) -> None:
        waiting = self._said.setdefault(step, {})
        waiting.update({entry[0]: entry for entry in said})
        if step <= self._sent or waiting.keys() >= {self.rank, *self._mates()}:
            del self._said[step]
            self._pass_on(step, list(waiting.values()))

    def _mates(self) -> set[int]:
        return {rank for child in self.down.children.values() for rank in child.ranks} if self.down else set()

    def _pass_on(self, step: int, said: Sequence[Entry]) -> None:
        self._sent = max(self._sent, step)
        for bundle in bundles(said):
            raw = [part for _, _, parts in bundle for part in parts]
            message = Message(Kind.SAY, step, [[rank, value, len(parts)] for rank, value, parts in bundle], raw)
            if size_of(raw) <= LARGE_BYTES:
                self.up.send(message)
            else:
                self._offered.setdefault(step, deque()).append(message)
                self.up.send(Message(Kind.OFFER, step, size_of(raw)))

    def tick(self, now: float) -> float:
        """Knocks, beats, ends what is to end."""
        due = min(self.ending.tick(now), self._open_second_if_unheard(now), self._step_probes(now))
        self._part()
        if self.up.socket is None:
            return min(due, self.up.knock(self._hello, now)) if self._hello else due
        if self.up.cut is not None:
            return min(due, self._without(now, self.up.cut))
        if now >= self._beat_at:
            self._beat_at = now + self._beat_s
            self._told[self.rank] = mine = self._stand()
            self._connections.note(mine.still_s, now)
            self.up.send(Message(Kind.BEAT, 0, [one.as_json() for one in self._told.values()]))
        return min(due, self._beat_at)

    def _part(self) -> None:
        """Tells who has left as soon as nothing of theirs is here any longer; lets this rank go, if it wants to, when it is the last."""
        empty = not (self._offered or self._said)
        if empty and self._partings:
            partings, self._partings = self._partings, []
            for message in partings:
                self.up.send(message)
        last = empty and not self._mates()
        if self._leaving and not self.released.is_set() and (last or self.farewell.is_set() or self.ending.begun):
            self.released.set()
            self.up.send(Message(Kind.BYE, 0, self.rank))

    def _without(self, now: float, cut: float) -> float:
        """There is no connection to rank 0 any longer; returns when this is to be looked at again."""
        if self.farewell.is_set():
            return now + _LOST_S
        if now - cut > _LOST_S:
            self.farewell.set()
            where = self._stand().phase
            during = f" during {where}" if where else ""
            if self._connections.lossy:
                reason = "it was killed or crashed, or the path between the hosts, which drops packets, lost its last message"
                self.lose(f"the connection to {self.above} closed without a farewell{during}: {reason}")
            else:
                self.lose(f"{self.above} ended without a word{during}: killed, crashed or out of memory{self.or_else}")
        return cut + _LOST_S

    def lose(self, sentence: str) -> None:
        """Rank 0 is not there any longer, or cannot be reached: this rank ends, and those behind it."""
        if self.ending.begun:
            return
        self.ending.speak(sentence, FAILED)
        self.inbox.put(Orphaned(sentence))
        self.ending.begin(sentence, FAILED, self.node)
        if self.down:
            self.down.tell(Message(Kind.ABORT, 0, [sentence, FAILED]))

    def leave(self) -> None:
        """This rank wants to leave in order; `released` is set as soon as it may, and rank 0 is told."""
        self._leaving = True

    def close(self) -> None:
        """Ends those of this node that do not, where the launch is broken; closes the sockets."""
        self.ending.leave()
        self.farewell.set()
        self.released.set()
        self.up.close()
        for probe in self._probes.values():
            probe.close()
        if self._takes_probes:
            self._takes_probes.close()
        if self.down:
            self.down.close()
        self.node.close()
