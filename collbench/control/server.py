"""The control plane at rank 0: it receives from every node, keeps the state of every rank, and finds the missing ranks in a hang."""

from __future__ import annotations

import math
import os
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

from collbench.addresses import Family, HubAddresses, bracketed, family_of, hub_addresses
from collbench.control import wire
from collbench.control.addresses import candidate_ports, host_of, node_place, open_listener_note
from collbench.control.builds import BuildAddresses, BuildRequest, BuildServer, addresses_of
from collbench.control.diagnosis import ProcessEnd, RankState
from collbench.control.inquiry import HangInquiries, NoOtherCause
from collbench.control.io_thread import IOHandler, IOThread
from collbench.control.members import HostKilled, Member
from collbench.control.security import Keys, Secret
from collbench.control.tree import LARGE_BYTES, ChildConnection, Downlinks, ranks_apart, restarted
from collbench.control.watchdog import EndProcess
from collbench.control.wire import Malformed, Message, check_ranks, decoded, encoded
from collbench.errors import FAILED, PeerFailed, RunFailed, UsageError, WaitExpired
from collbench.launch import software
from collbench.launch.info import LaunchInfo
from collbench.launch.limits import allow_connections, out_of_files
from collbench.reason import Fact

_ROOM_BYTES = 64 << 20  # of large messages in transit: limits rank 0's memory, however many nodes there are
_MOST_LATE = 16  # restarted ranks that are reported at most
_LAST_MESSAGE_S = 0.3  # seconds after a process's end in which its last message may still arrive
_POLL_S = 0.003
_READ_S = 0.003
_AWAKE_S = 3.0  # seconds after this process was stopped: a missed deadline within them is blamed on the stop
_LOST_S = 0.1  # seconds without a node's connection before its process counts as ended


class Coordinator(IOHandler):
    """The I/O handler of rank 0. The inbox has `Hello` of the ranks that join, and `Values` of a step."""

    def __init__(self, down: Downlinks, own_state: Callable[[], RankState], ending: EndProcess, timeout_s: float) -> None:
        super().__init__(down, own_state, ending)
        self.timeout_s = timeout_s
        self.members: Sequence[Member] = ()  # all ranks in their order, empty until all have joined
        self.other_candidates: Mapping[int, HostKilled] = {}  # by rank which others may have ended instead
        self.reported: dict[int, tuple[wire.Paths, float]] = {}  # by rank: its connections, and when it reported them
        self.informants: list[Callable[[], str | None]] = []  # return a library's view of a hang; each in its own thread, at most 3 s
        self.facts: dict[str, Any] = {}  # for events.jsonl: the states of all ranks when an inquiry found the cause
        self.unreadable = ""  # why the last message could not be read
        self.gone: dict[int, float] = {}  # ranks that have ended unexpectedly, and when
        self.left: set[int] = set()  # those that left in order
        self.parted = threading.Event()  # set when all ranks that joined have left or ended
        self.late: list[str] = []  # errors about processes that joined as a rank that had joined already
        self.how: dict[int, ProcessEnd] = {}  # by rank how its process ended, if known
        self.woke_after_s = 0.0  # for which this process was stopped, if it has just continued
        self._woke_at = 0.0
        self._paused_s = 0.0
        self._ended: dict[int, float] = {}  # by rank with an ended process: when it ended
        self.inquiries = HangInquiries(self)
        self._offers: dict[int, deque[tuple[ChildConnection, int]]] = {}  # by step: announced large messages, in bytes
        self._requested_step = 0
        self._under_way = 0

    def _reject(self, error: Malformed) -> None:
        if self.members:
            self.inbox.put(RunFailed(unreadable(str(error))))
        self.unreadable = str(error)  # while ranks join, the comparison of builds gives a better error

    def _from_below(self, child: ChildConnection, message: Message) -> None:
        match message:
            case wire.Hello():
                self._hello(child, message)
            case wire.Values():
                check_ranks((entry.rank for entry in message.entries), child.ranks)
                self.inbox.put(message)
            case wire.Offer():
                self._offers.setdefault(message.step, deque()).append((child, message.size_bytes))
                self._grant()
            case wire.Beat() | wire.Here():
                self._note(child, message)
            case wire.Stalled() | wire.Where():
                self._answer_query(child, message)
            case wire.Stack() if self.inquiries.current:
                self.inquiries.current.stacks[message.rank] = message.text
            case wire.Probed() if self.inquiries.current:
                self.inquiries.current.note_probes(message)
            case wire.Aside():
                check_ranks(message.ranks, self.joined)
                child.also |= set(message.ranks)
                self.down.send(child, wire.Where())
            case wire.Paths():
                check_ranks([message.rank], child.ranks | child.also)
                self.reported[message.rank] = message, time.monotonic()
            case wire.Gone():
                check_ranks([message.rank], self.joined)
                self._end_of(message.rank, message.end)
            case wire.Bye() | wire.Moved():
                self._leave(child, message)
            case wire.Abort():
                self.inquiries.examine_error(message.sentence, message.code)

    def _hello(self, child: ChildConnection, hello: wire.Hello) -> None:
        member = hello.member
        if not self.members or self.joined.get(member.rank) == member:
            self._admit(child, member)
            self.inbox.put(hello)
            return
        # another process joins as a rank that has joined: only that process ends
        error = restarted(member)
        if len(self.late) < _MOST_LATE:
            self.late.append(error)
        if not child.ranks:
            self.down.refuse(child, error, FAILED)

    def request(self, step: int) -> None:
        """Accept the values of this step for the main thread. Large messages of later steps wait at their ranks."""
        self._requested_step = step
        self._grant()

    def made_room(self, size_bytes: int) -> None:
        """Allow the next large message, after one was taken."""
        self._under_way -= size_bytes
        self._grant()

    def _grant(self) -> None:
        for step in sorted(step for step in self._offers if step <= self._requested_step):
            offers = self._offers[step]
            while offers and (self._under_way <= 0 or self._under_way + offers[0][1] <= _ROOM_BYTES):
                child, size_bytes = offers.popleft()
                self._under_way += size_bytes
                self.down.send(child, wire.Grant(step))
            if not offers:
                del self._offers[step]

    def _note(self, child: ChildConnection, message: wire.Beat | wire.Here) -> None:
        check_ranks((state.rank for state in message.states), child.ranks | child.also)
        for state in message.states:
            if not state.held:
                self.states[state.rank] = state
            if isinstance(message, wire.Here) and self.inquiries.current:
                self.inquiries.current.store(state)

    def _end_of(self, rank: int, how: ProcessEnd) -> None:
        """Handle the end of a process. Unless it was killed, its last message may still arrive."""
        if rank in self.left:
            return
        self.how[rank] = how
        if how.killed:
            self._gone(rank)
        else:
            self._ended.setdefault(rank, time.monotonic())

    def _answer_query(self, child: ChildConnection, message: wire.Stalled | wire.Where) -> None:
        """Handle the question of a rank that makes no progress, or has waited long. Rank 0 itself may be the cause."""
        state = self.own_state()
        self.down.send(child, wire.Here([state]))
        if isinstance(message, wire.Stalled):
            self.inquiries.begin(message.what)
        elif state.still_s > self.timeout_s and not state.waits:
            self.inquiries.begin("")

    def _gone(self, rank: int) -> None:
        if rank not in self.left and rank not in self.gone:
            for ended in [*self._ended_before(), rank]:  # the earliest end is the cause: a launcher may have killed the others after it
                self.gone.setdefault(ended, time.monotonic())
            self._check_parted()
            self.inquiries.begin("")

    def _is_closed(self, rank: int, now: float) -> bool:
        """Return whether the rank's connection is closed too. Then its last message has been read."""
        child = self.down.with_rank(rank)
        return child is not None and child.cut is not None and now - child.cut > _READ_S

    @property
    def in_doubt(self) -> bool:
        """Return whether the last message of an ended process, or a lost connection, may still arrive."""
        return bool(self._ended or self.down.cut)

    def _leave(self, child: ChildConnection, message: wire.Bye | wire.Moved) -> None:
        rank = message.rank or 0
        if isinstance(message, wire.Bye):
            check_ranks([message.rank], child.ranks)
            self.left.add(rank)
            self._ended.pop(rank, None)
            self._check_parted()
            self.node.forget(rank)
        self._remove(child, rank)

    def _ended_before(self) -> list[int]:
        """Return the ranks that had ended already, in the order of their ends. Their last messages may still arrive."""
        cut = {min(child.ranks): child for child in self.down.cut if child.ranks}
        lost = {rank: child.cut or 0.0 for rank, child in cut.items() if self.down.with_rank(rank) in (child, None)}
        ended_at = lost | self._ended
        return sorted(ended_at.keys() - self.left, key=lambda rank: ended_at[rank])

    def _check_parted(self) -> None:
        may_be_last = len(self.left) + len(self.gone) >= len(self.joined)  # avoids a count for each of thousands of ranks that leave
        if may_be_last and not self.still_there():
            self.parted.set()

    def still_there(self) -> list[int]:
        """Return the ranks that have joined and have not ended."""
        return sorted(set(self.joined) - self.left - set(self.gone))

    def see_off(self) -> None:
        """Inform the other ranks that this rank leaves."""
        self._check_parted()
        self.down.broadcast(wire.Bye())

    def expect(self, members: Sequence[Member], other_candidates: Mapping[int, HostKilled]) -> None:
        """Store the members, in their order, once all have joined."""
        self.members = members
        self.other_candidates = other_candidates
        self.down.complete = True

    def abort_others(self, sentence: str, code: int) -> None:
        """End every other rank with this message and code, which rank 0 has reported. Only the first call has an effect."""
        if not self.ending.begun:
            self.down.broadcast(wire.Abort(sentence, code))
            self.ending.begin(sentence, code, self.node)

    def tick(self, now: float) -> float:
        """Check for ended ranks, continue an inquiry, end processes that are due. Return when to call again."""
        state = self.own_state()
        if now - self._woke_at > _AWAKE_S:
            self.woke_after_s = 0.0
        if state.paused_s > self._paused_s:
            self.woke_after_s += state.paused_s - self._paused_s
            self._woke_at = now
            self._paused_s = state.paused_s
        self.connections.note(state.still_s, now)
        lost = [child for child in self.down.cut if child.cut is not None and now - child.cut > _LOST_S]
        for child in lost:
            self.down.forget(child)
            first = min(child.ranks, default=None)  # the rank of that process; the ranks that send through it end by themselves
            if first is not None and not self.down.with_rank(first):
                self._gone(first)
        silent = [rank for rank, ended_at in self._ended.items() if now - ended_at > _LAST_MESSAGE_S or self._is_closed(rank, now)]
        for rank in silent:
            del self._ended[rank]
            self._gone(rank)
        due = min(self.inquiries.tick(now), now + _POLL_S if self.in_doubt else math.inf)
        return min(self.ending.tick(now), due)

    def close(self) -> None:
        """Close as every handler does; no rank is waited for any longer."""
        super().close()
        self.parted.set()


def unreadable(why: str) -> str:
    """Return the message about a message of this launch that cannot be read."""
    return f"a rank sent a message that cannot be read ({why}): install the same build on all nodes"


# Rank 0's end of the control plane, as its main thread uses it. Every wait has a deadline, and ends with a result or an error.

_QUERY_EVERY_S = 2.0
_INQUIRY_S = 8.0  # longer than any inquiry takes
Take = Callable[[int, Any, Sequence[memoryview]], None]


class Server:
    """Rank 0's end of the control plane, for its main thread."""

    def __init__(self, info: LaunchInfo, secret: Secret, own_state: Callable[[], RankState], ending: EndProcess, timeout_s: float) -> None:
        self._size = info.ranks
        self._context = zmq.Context()
        self._joined: dict[int, Member] = {}
        down = Downlinks(self._context, Keys.of(secret))
        self._listens: HubAddresses | None = None
        self._build = software.own() if info.launcher != "local" else None  # all ranks of a local start are one build
        try:
            if info.meeting.startswith("tcp://") and info.local_ranks < info.ranks:
                down.unknown.expect_ranks(info.ranks, allow_connections(info.ranks))
                self._listens = listen(down, info, secret)
            addresses = self._listens.listens if self._listens and self._listens.listens else addresses_of([down.endpoint])
            if info.local_ranks > 1:
                down.bind(node_place(info, secret))
        except BaseException as error:
            down.close()
            self._context.term()
            if not isinstance(error, zmq.ZMQError):
                raise
            raise out_of_files(error) or UsageError(
                f"rank 0 cannot listen for the ranks of its own host ({error}): another launch with the same settings runs here; "
                "wait for its end, or give this launch its own MASTER_PORT"
            ) from error
        self.coordinator = Coordinator(down, own_state, ending, timeout_s)
        self._io = IOThread(self.coordinator)
        self._builds: BuildServer | None = None
        if self._build:  # until all ranks have joined
            self._builds = BuildServer(BuildAddresses(secret, info.port, addresses), self._build, self._compare)
        self._early: dict[int, list[wire.Values]] = {}
        self._why_ended: str | None = None

    def _compare(self, call: BuildRequest) -> None:
        if software.read_build(call.build) != self._build:
            self.coordinator.inbox.put(self._other_build(call.rank, call.host, software.read_build(call.build)))

    def _other_build(self, rank: int, host: str, build: software.Build | None) -> UsageError:
        return UsageError(software.mismatch(rank, host, build, socket.gethostname(), self._build))

    def admit(self, deadline_s: float) -> dict[int, Member]:
        """Wait until every other rank has joined; return them by rank. Raises UsageError for another build, RunFailed, WaitExpired."""
        joined = self._joined
        end = time.monotonic() + deadline_s
        while len(joined) < self._size - 1:
            try:
                message = self._io.next(end)
            except Empty:
                absent = f"{self.missing()} of {self._size} did not join within {deadline_s:g} s"
                raise WaitExpired(f"{absent}: {self._why_missing()}") from None
            if isinstance(message, wire.Hello):
                member = message.member
                rank = member.rank
                if self._build and software.read_build(message.build) != self._build:
                    raise self._other_build(rank, member.host, software.read_build(message.build))
                if not 0 < rank < self._size:
                    raise RunFailed(
                        f"a process tried to join as rank {rank}, but this launch has {self._size} ranks: run one launch at a time"
                    )
                if joined.setdefault(rank, member) != member:
                    raise RunFailed(f"the launcher started rank {rank} twice: {joined[rank]} and {member}")
        if self._builds:
            self._builds.close()
        return joined

    def missing(self) -> str:
        """Return the ranks that have not joined: "rank 1", "ranks 1 and 2"."""
        ranks = [rank for rank in range(1, self._size) if rank not in self._joined]
        shown = ", ".join(map(str, ranks[:16])) + (" …" if len(ranks) > 16 else "")
        return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"

    def not_joined(self) -> str:
        """Return "rank 2 of 4 had joined" for the ranks that have not joined; "" if all have."""
        return f"{self.missing()} of {self._size} had joined" if len(self._joined) < self._size - 1 else ""

    def _why_missing(self) -> str:
        reasons = ["check that they started and can reach this host, or raise --timeout"]
        if self._listens and self._listens.loopback_only:
            reasons.append(
                f"rank 0 listens only at {self._listens.listens[0]}, a loopback address, which other hosts cannot reach: if ranks run on "
                "other hosts, set MASTER_ADDR to an address of rank 0's host in the network between the hosts"
            )
        refused = self.coordinator.down.unknown.fact()
        if refused:
            reasons.append(refused.render())
        if self.coordinator.unreadable:
            reasons.append(unreadable(self.coordinator.unreadable))
        return "; ".join(reasons)

    def expect(self, members: Sequence[Member], other_candidates: Mapping[int, HostKilled]) -> None:
        """Store the members, which inquiries cover from now on. other_candidates: by rank the ranks that may have ended instead of it."""
        self._io.do(lambda: self.coordinator.expect(members, other_candidates))

    def collect(self, step: int, phase: str, patience_s: float, take: Take) -> None:
        """Pass each other rank's value of this step to `take` as it arrives: (rank, value, raw arrays).

        patience_s: how long ranks that progress may delay the step beyond the deadline. Raises WaitExpired, PeerFailed.
        """
        if self._why_ended is not None:  # the caller of an earlier exchange handled that error: the reason stays the first one
            raise PeerFailed(self._why_ended)
        missing = set(range(1, self._size))
        end = time.monotonic() + self.coordinator.timeout_s
        self._io.do(lambda: self.coordinator.request(step))
        for values in self._early.pop(step, []):
            self._take_entries(values, step, phase, missing, take)
        while missing:
            try:
                values = self._io.next(end)
            except Empty:
                values = self._expired(phase, end + patience_s)
            if not isinstance(values, wire.Values):
                continue
            if values.step > step:  # a fast rank may be one step ahead
                self._early.setdefault(values.step, []).append(values)
            else:
                self._take_entries(values, step, phase, missing, take)
            if values.size_bytes > LARGE_BYTES:
                self._io.do(partial(self.coordinator.made_room, values.size_bytes))

    def _take_entries(self, values: wire.Values, step: int, phase: str, missing: set[int], take: Take) -> None:
        for entry in values.entries:
            if (values.step, entry.what) != (step, phase):
                me = str(self.coordinator.members[0]) if self.coordinator.members else "rank 0"
                apart = ranks_apart(str(self.coordinator.joined[entry.rank]), (entry.what, values.step), me, (phase, step))
                raise self._end_launch(apart)
            if entry.rank not in missing:
                raise self._invalid(phase, entry.rank)
            try:
                value = decoded(entry.value)
            except Malformed:
                raise self._invalid(phase, entry.rank) from None
            missing.discard(entry.rank)
            take(entry.rank, value, entry.arrays)

    def _invalid(self, phase: str, rank: int) -> PeerFailed:
        return self._end_launch(f"{phase}: rank {rank} sent an invalid answer: install the same version on all nodes")

    def _end_launch(self, sentence: str) -> PeerFailed:
        """End the launch for this reason, also if the caller of an exchange handles its error: the ranks cannot exchange data any more."""
        self._why_ended = sentence
        self._io.do(lambda: self.coordinator.inquiries.conclude(sentence, FAILED))
        return PeerFailed(sentence)

    def _expired(self, phase: str, end: float) -> Any:
        """Query the state of every rank after the deadline. Return the awaited message if it arrives, else raise the diagnosis."""
        while time.monotonic() < end:
            self._io.do(lambda: self.coordinator.inquiries.begin(phase, patient=True))
            with suppress(Empty):
                return self._io.next(min(end, time.monotonic() + _QUERY_EVERY_S))
        self.stalled(phase)
        try:
            return self._io.next(time.monotonic() + _INQUIRY_S)
        except Empty:
            raise WaitExpired(f"{phase}: some ranks did not answer") from None

    def send(self, step: int, phase: str, value: Any) -> None:
        """Send the same value to every other rank, which must be in the same phase there."""
        message = wire.StepAnswer(step, phase, encoded(value))
        self._io.see_done(lambda: self.coordinator.down.broadcast(message))

    def interrupt(self, sentence: str, code: int) -> None:
        """End every other rank with this message and code; this rank continues. Any thread may call."""
        self._io.do(lambda: self.coordinator.abort_others(sentence, code))

    def see_off(self, seconds: float) -> list[int]:
        """Inform the other ranks that rank 0 leaves, and wait at most `seconds`. Return the ranks that still run."""
        self._io.do(self.coordinator.see_off)
        self.coordinator.parted.wait(seconds)
        return self.coordinator.still_there()

    def stalled(self, phase: str) -> None:
        """Start an inquiry because this rank's own main thread makes no progress. Any thread may call."""
        self._io.do(lambda: self.coordinator.inquiries.begin(phase))

    def signalled(self, sentence: str, code: int) -> None:
        """Start an inquiry because of a signal. If a rank has ended, its end is reported as the reason. Any thread may call."""
        self._io.do(lambda: self.coordinator.inquiries.examine_error(sentence, code))

    def reason(self, sentence: str, code: int) -> PeerFailed | None:
        """Return the error of the rank that caused this rank's error or a signal; None if no other rank has ended or is silent."""
        self._io.do(lambda: self.coordinator.inquiries.examine_error(sentence, code, own=True))
        end = time.monotonic() + _INQUIRY_S
        while True:
            try:
                if isinstance(self._io.next(end), NoOtherCause):
                    return None
            except PeerFailed as error:
                return error
            except Empty:
                return None
            except RunFailed:  # a message that cannot be read does not matter any more
                continue

    def remarks(self) -> list[Fact | str]:
        """Return the notes about refused connections, restarted ranks, and a listener that is open to other hosts."""
        listener = open_listener_note(self._listens) if self._listens else None
        remarks = (listener, self.coordinator.down.unknown.fact(), *self.coordinator.late)
        return [remark for remark in remarks if remark]

    def close(self) -> None:
        """Leave in order, after all messages are sent."""
        if self._builds:
            self._builds.close()
        self._io.do(self.coordinator.see_off)
        self._io.close()
        self._context.term()


def listen(down: Downlinks, info: LaunchInfo, secret: Secret) -> HubAddresses:
    """Bind rank 0's socket for the other nodes, and return its addresses. Raises UsageError if no port is free."""
    addresses = hub_addresses(host_of(info.meeting))
    ports = [info.port] if info.port else candidate_ports(secret)
    for port in ports:
        error = _bind(down, addresses.listens, port)
        if error is None:
            down.unknown.port = port
            return addresses
    in_use = f"port {info.port} is in use" if info.port else f"ports {ports} are all in use"
    raise UsageError(f"rank 0 cannot listen for the other ranks: {in_use} ({error}); set MASTER_PORT to a free port")


def _bind(down: Downlinks, addresses: Sequence[str], port: int) -> str | None:
    """Listen at one port of all these addresses, or of every address if there are none. Return the error text, or None."""
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
