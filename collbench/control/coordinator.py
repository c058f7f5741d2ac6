"""The part of rank 0: hears every node, knows where every rank stands, and finds out who is missing when nothing moves."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from collbench.control.bundle import LARGE_BYTES, Entry, size_of, started_again
from collbench.control.down import Child, Down
from collbench.control.ending import Ending
from collbench.control.inquiry import Inquiries
from collbench.control.members import Member
from collbench.control.message import Kind, Malformed, Message, entries
from collbench.control.node import KILLED, Node
from collbench.control.standing import Standing, standings
from collbench.control.tcp_info import ConnectionMonitor, PathReport, path_report
from collbench.errors import FAILED, RunFailed
from collbench.launch.software import Build, read_build

_ROOM_BYTES = 64 << 20  # of large messages under way at a time: what they need is bounded, however many nodes there are
_MOST_LATE = 16  # ranks that come again, of which is told
_WORD_S = 0.3  # how long after a process's end its last word may come
_LOOK_S = 0.003
_READ_S = 0.003
_AWAKE_S = 3.0  # after a pause, in which what went wrong meanwhile is its doing
_LOST_S = 0.1  # how long a node's connection may be gone before its process counts as ended


@dataclass(frozen=True)
class Came:
    """What ranks said in a step, for the main thread; `room_bytes` are to be given back when it has been taken."""

    step: int
    said: list[Entry]
    room_bytes: int


@dataclass(frozen=True)
class Joined:
    """A rank that presented itself, through a connection."""

    rank: int
    about: Any
    child: Child
    build: Build | None = None


class Coordinator:
    """Everything here runs in the keeper's thread. `inbox` is what the main thread waits at: Joined, Came, or an error to raise.

    heard   where each rank stood last, and when that was told
    gone    ranks whose process has ended without a word; left: those that left in order
    parted  set when all who joined have left or are gone
    late    sentences about processes that presented themselves as a rank which had joined already
    how     by rank how its process ended, where that is known
    woke_after_s   for how long this process was held, where that has just ended; else 0

    names, addresses   by rank, how it is named, and where others reach its host
    members            the ranks that have joined; reported: by rank the port for probes, its connections, and when it reported them
    beside             by rank who else may have died, where the launcher kills all of a host for one
    informants         what libraries know when nothing moves: called in threads of their own, in 3 s at most
    unreadable         why the last message could not be read, "" where all could
    facts              for events.jsonl, where all ranks stood when a roll call found the reason
    """

    def __init__(self, down: Down, stand: Callable[[], Standing], ending: Ending, timeout_s: float) -> None:
        self.down, self.stand, self.ending, self.timeout_s = down, stand, ending, timeout_s
        self.expected: Mapping[int, str] = {}
        self.members: Sequence[Member] = ()
        self.reported: dict[int, tuple[int, list[PathReport], float]] = {}
        self.connections = ConnectionMonitor()
        self.names: dict[int, str] = {}
        self.addresses: Mapping[int, Sequence[str]] = {}
        self.beside: Mapping[int, str] = {}
        self.informants: list[Callable[[], str | None]] = []
        self.facts: dict[str, Any] = {}
        self.unreadable = ""
        self.node = Node()
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.heard: dict[int, tuple[Standing, float]] = {}
        self.gone: dict[int, float] = {}
        self.left: set[int] = set()
        self.parted = threading.Event()
        self.late: list[str] = []
        self.how: dict[int, str] = {}
        self.woke_after_s = self._woke_at = self._paused_s = 0.0
        self._ended: dict[int, float] = {}  # ranks whose process has ended, and when
        self.inquiries = Inquiries(self)
        self._about: dict[int, Any] = {}
        self._offers: dict[int, deque[tuple[Child, int]]] = {}  # by step: connections, and bytes
        self._wanted = 0
        self._under_way = 0

    @property
    def sockets(self) -> list[Any]:
        """What listens, and the processes of this node."""
        return [*self.down.sockets, *self.node.descriptors]

    def read(self, ready: Any) -> None:
        """Something from below, or a process of this node that has ended."""
        if ready in self.node.descriptors:
            self._end_of(*self.node.ended(ready))
            return
        try:
            came = self.down.read(ready)
            if came:
                self._from_below(*came)
        except Malformed as error:
            if self.expected:
                self.inbox.put(RunFailed(f"a rank sent a message that cannot be read ({error}): install the same build on all nodes"))
            self.unreadable = str(error)  # before all have joined the builds are compared, which gives the better sentence

    def _from_below(self, child: Child, message: Message) -> None:
        if message.kind is Kind.HELLO:
            self._hello(child, message)
        elif message.kind is Kind.SAY:
            self._said(child, message)
        elif message.kind is Kind.OFFER:
            self._offers.setdefault(message.step, deque()).append((child, message.body))
            self._grant()
        elif message.kind in (Kind.BEAT, Kind.HERE):
            self._note(child, message)
        elif message.kind in (Kind.STUCK, Kind.WHERE):
            self._asked(child, message)
        elif message.kind is Kind.STACKED:
            self.inquiries.stacked(*message.body)
        elif message.kind in (Kind.ASIDE, Kind.PATHS):
            self._about_paths(child, message)
        elif message.kind is Kind.PROBED:
            self.inquiries.probed(*message.body)
        else:
            self._of_an_end(child, message)

    def _of_an_end(self, child: Child, message: Message) -> None:
        if message.kind is Kind.GONE:
            self._end_of(_one_of(message.body[0], self._about), message.body[1])
        elif message.kind is Kind.BYE:
            self._bye(child, _one_of(message.body, child.ranks))
        elif message.kind is Kind.MOVED:
            self._without(child, message.body)
        elif message.kind is Kind.ABORT:
            self.inquiries.met(*message.body)

    def _about_paths(self, child: Child, message: Message) -> None:
        """A second connection of ranks that are not heard, or what a rank's connections show."""
        if message.kind is Kind.ASIDE:
            child.also |= {_one_of(rank, self._about) for rank in message.body}
            self.down.send(child, Message(Kind.WHERE))
        else:
            rank, port, found = message.body
            reports = [one for value in found if (one := path_report(value))]
            self.reported[_one_of(rank, child.ranks | child.also)] = port, reports, time.monotonic()

    def _hello(self, child: Child, message: Message) -> None:
        for rank, about, build in message.body:
            if self.expected and self._about.get(rank) != about:
                self._again(child, rank, about)
                continue
            self._about[rank] = about
            self.names[rank] = f"rank {rank} ({about.get('host')}, pid {about.get('pid')})"
            child.ranks.add(rank)
            self.inbox.put(Joined(rank, about, child, read_build(build)))
            self.node.watch(rank, about)
        if child.ranks:
            self.down.send(child, Message(Kind.WELCOME))

    def _again(self, child: Child, rank: int, about: Any) -> None:
        """Another process says it is a rank that has joined: it alone ends, unless the first rank of its node has told it already."""
        if len(self.late) < _MOST_LATE:
            self.late.append(started_again(rank, about))
        if not child.ranks:
            self.down.refuse(child, started_again(rank, about), FAILED)

    def _said(self, child: Child, message: Message) -> None:
        size = size_of(message.raw)
        self.inbox.put(Came(message.step, list(entries(message, child.ranks)), size if size > LARGE_BYTES else 0))

    def want(self, step: int) -> None:
        """The main thread takes what is said in this step: large messages of later ones stay where they are."""
        self._wanted = step
        self._grant()

    def made_room(self, size_bytes: int) -> None:
        """A large message has been taken: the next one may be sent."""
        self._under_way -= size_bytes
        self._grant()

    def _grant(self) -> None:
        for step in sorted(step for step in self._offers if step <= self._wanted):
            offers = self._offers[step]
            while offers and (self._under_way <= 0 or self._under_way + offers[0][1] <= _ROOM_BYTES):
                child, size = offers.popleft()
                self._under_way += size
                self.down.send(child, Message(Kind.GRANT, step))
            if not offers:
                del self._offers[step]

    def _note(self, child: Child, message: Message) -> None:
        now = time.monotonic()
        for one in standings(message.body, child.ranks | child.also):
            if not one.held:
                self.heard[one.rank] = one, now
            if message.kind is Kind.HERE:
                self.inquiries.heard(one)

    def _end_of(self, rank: int, how: str) -> None:
        """A process has ended; its last word may still be on the way, unless it was killed."""
        if rank in self.left:
            return
        self.how[rank] = how
        if how.startswith(KILLED):
            self._gone(rank)
        else:
            self._ended.setdefault(rank, time.monotonic())

    def _asked(self, child: Child, message: Message) -> None:
        """A rank does not move; or it has waited long, and wants to know whether rank 0 is there: then rank 0 may be what does not move."""
        mine = self.stand()
        self.down.send(child, Message(Kind.HERE, 0, [mine.as_json()]))
        if message.kind is Kind.STUCK:
            self.inquiries.begin(message.body)
        elif mine.still_s > self.timeout_s and not mine.waits:
            self.inquiries.begin("")

    def _gone(self, rank: int) -> None:
        if rank not in self.left and rank not in self.gone:
            for one in [*self._before(), rank]:  # the first one is the reason: a launcher may have killed the others for it
                self.gone.setdefault(one, time.monotonic())
            self._see_who_is_there()
            self.inquiries.begin("")

    def _is_closed(self, rank: int, now: float) -> bool:
        """Whether the connection that it spoke through has been closed, too: then its last word has been read."""
        child = self.down.with_rank(rank)
        return child is not None and child.cut is not None and now - child.cut > _READ_S

    @property
    def in_doubt(self) -> bool:
        """Whether a process has ended whose last word may still come, or a connection is gone that may come back."""
        return bool(self._ended or self.down.cut)

    def _bye(self, child: Child, rank: int) -> None:
        self.left.add(rank)
        self._ended.pop(rank, None)
        self._see_who_is_there()
        self.node.forget(rank)
        self._without(child, rank)

    def _without(self, child: Child, rank: int) -> None:
        """That rank does not speak through this connection any longer."""
        child.ranks.discard(rank)
        if not child.ranks:
            self.down.forget(child)

    def _before(self) -> list[int]:
        """The ranks that had ended already, in the order of their ends, though a last word of them might still have come."""
        cut = {min(child.ranks): child for child in self.down.cut if child.ranks}
        lost = {rank: child.cut or 0.0 for rank, child in cut.items() if self.down.with_rank(rank) in (child, None)}
        ended = {**lost, **self._ended}
        return sorted(ended.keys() - self.left, key=lambda rank: ended[rank])

    def _see_who_is_there(self) -> None:
        many = len(self.left) + len(self.gone) >= len(self._about)  # of thousands that leave the first ones need not count all
        if many and not self.still_there():
            self.parted.set()

    def still_there(self) -> list[int]:
        """The ranks that have joined, and have neither left nor gone."""
        return sorted(set(self._about) - self.left - set(self.gone))

    def see_off(self) -> None:
        """Tells the others that this rank leaves."""
        self._see_who_is_there()
        self.down.tell(Message(Kind.BYE))

    def expect(self, members: Sequence[Member], beside: Mapping[int, str]) -> None:
        """All ranks have joined; by rank which others may have died instead."""
        self.members, self.beside, self.down.complete = members, beside, True
        self.expected = {one.rank: str(one) for one in members}
        self.addresses = {one.rank: one.addresses for one in members}

    def signalled(self, sentence: str, code: int) -> None:
        """A signal asks rank 0 to end; unless a rank has ended, which made a launcher send it."""
        if not (self.gone or self._ended):
            self.abort_others(sentence, code)

    def abort_others(self, sentence: str, code: int) -> None:
        """Ends every other rank with this sentence and code, for which rank 0 has spoken; the first one counts."""
        if not self.ending.begun:
            self.down.tell(Message(Kind.ABORT, 0, [sentence, code]))
            self.ending.begin(sentence, code, self.node)

    def tick(self, now: float) -> float:
        """Sees who is gone, ends an inquiry, ends what is to end."""
        self._see_whether_held(now)
        self.connections.note(self.stand().still_s, now)
        for child in [one for one in self.down.cut if one.cut is not None and now - one.cut > _LOST_S]:
            self.down.forget(child)
            first = min(child.ranks, default=None)  # whose process it was; those behind it end by themselves
            if first is not None and not self.down.with_rank(first):
                self._gone(first)
        for rank in [one for one, at in self._ended.items() if now - at > _WORD_S or self._is_closed(one, now)]:
            del self._ended[rank]
            self._gone(rank)
        due = min(self.inquiries.tick(now), now + _LOOK_S if self.in_doubt else math.inf)
        return min(self.ending.tick(now), due)

    def _see_whether_held(self, now: float) -> None:
        paused_s = self.stand().paused_s
        longer_s, self._paused_s = paused_s - self._paused_s, max(paused_s, self._paused_s)
        if now - self._woke_at > _AWAKE_S:
            self.woke_after_s = 0.0
        if longer_s > 0:
            self.woke_after_s, self._woke_at = self.woke_after_s + longer_s, now

    def close(self) -> None:
        """Ends those of this node that do not, where the launch is broken; closes the sockets."""
        self.ending.leave()
        self.parted.set()
        self.down.close()
        self.node.close()


def _one_of(rank: Any, ranks: Container[int]) -> int:
    if rank not in ranks:
        raise Malformed("somebody else's rank")
    return int(rank)
