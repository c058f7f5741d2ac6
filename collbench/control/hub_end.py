"""Rank 0's end of the control plane, as its main thread uses it: every wait has a deadline, and ends in a sentence."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Empty
from typing import Any

import zmq

from collbench.addresses import HubAddresses
from collbench.control.builds import BuildServer, Call, Place, addresses_of
from collbench.control.coordinator import Came, Coordinator, Joined
from collbench.control.descriptors import allow_connections
from collbench.control.down import Down
from collbench.control.ending import Ending
from collbench.control.inquiry import Cleared
from collbench.control.io_thread import Keeper
from collbench.control.keys import Keys
from collbench.control.members import Member
from collbench.control.message import Kind, Message
from collbench.control.places import listen, node_place, note_on
from collbench.control.secret import Secret
from collbench.control.standing import Standing
from collbench.errors import PeerFailed, RunFailed, UsageError, WaitExpired
from collbench.launch.info import LaunchInfo
from collbench.launch.software import Build, mismatch, own

_ASK_AGAIN_S = 2.0
_LONGEST = 200  # characters of a phase's name that a rank tells
_INQUIRY_S = 8.0  # longer than any takes
Take = Callable[[int, Any, Sequence[bytes | memoryview]], None]


class HubEnd:
    """What rank 0 says and hears."""

    def __init__(self, info: LaunchInfo, secret: Secret, stand: Callable[[], Standing], ending: Ending, timeout_s: float) -> None:
        self._size, self._context = info.ranks, zmq.Context()
        down = Down(self._context, Keys.of(secret))
        self._listens: HubAddresses | None = None
        self._build = own() if info.launcher != "local" else None  # a local start starts itself: all ranks are one build
        try:
            if info.meeting.startswith("tcp://") and info.local_ranks < info.ranks:
                down.expect_ranks(info.ranks, allow_connections(info.ranks))
                self._listens = listen(down, info, secret)
            addresses = self._listens.listens if self._listens and self._listens.listens else addresses_of([down.endpoint])
            if info.local_ranks > 1:
                _bind_here(down, node_place(info, secret))
        except BaseException:
            down.close()
            self._context.term()
            raise
        self.part = Coordinator(down, stand, ending, timeout_s)
        self._keeper = Keeper(self.part)
        self._builds = self._build_server(info, secret, addresses) if self._build else None
        self._early: dict[int, list[Came]] = {}

    def _build_server(self, info: LaunchInfo, secret: Secret, addresses: Sequence[str]) -> BuildServer:
        """What compares builds with ranks whose messages cannot be read, until all have joined."""

        def take(call: Call) -> None:
            if call.build != self._build:
                self.part.inbox.put(self._other_build(call.rank, call.host, call.build))

        me = Call(0, socket.gethostname(), self._build)
        return BuildServer(Place(secret, info.port, addresses), me, take)

    def _other_build(self, rank: int, host: str, build: Build | None) -> UsageError:
        return UsageError(mismatch(rank, host, build, socket.gethostname(), self._build))

    def admit(self, deadline_s: float) -> dict[int, Any]:
        """Wait for the hello of every other rank; return what each said of itself, by rank.

        Raises UsageError for a rank of another build, RunFailed, and WaitExpired with the missing ranks.
        """
        said: dict[int, Any] = {}
        end = time.monotonic() + deadline_s
        while len(said) < self._size - 1:
            try:
                one = self._next(end)
            except Empty:
                missing = [rank for rank in range(1, self._size) if rank not in said]
                late = f"{_ranks(missing)} of {self._size} did not join within {deadline_s:g} s"
                raise WaitExpired(f"{late}: {self._why_missing()}") from None
            if isinstance(one, Joined):
                self._admit_one(one, said)
        if self._builds:
            self._builds.close()
        return said

    def _why_missing(self) -> str:
        why = ["see whether they started, whether they can reach this host, or raise --timeout"]
        if self._listens and self._listens.loopback_only:
            why.append(
                f"rank 0 listens at {self._listens.listens[0]} alone, a loopback address, which other hosts cannot reach: if ranks run on "
                "other hosts, set MASTER_ADDR to an address of rank 0's host in the network between the hosts"
            )
        strangers, unreadable = self.part.down.strangers.sentence(), self.part.unreadable
        other = f"a rank sent a message that cannot be read ({unreadable}): install the same build on all nodes" if unreadable else None
        return "; ".join([*why, *(one for one in (strangers, other) if one)])

    def _admit_one(self, one: Joined, said: dict[int, Any]) -> None:
        rank, about = one.rank, one.about
        if self._build and one.build != self._build:
            raise self._other_build(rank, str(about.get("host")), one.build)
        if not 0 < rank < self._size:
            raise RunFailed(f"a rank {rank} of another launch of {self._size} ranks tried to join; start one launch at a time")
        if rank in said and said[rank] != about:
            raise RunFailed(f"two processes say they are rank {rank}: {said[rank]} and {about}; the launcher started it twice")
        said[rank] = about

    def expect(self, members: Sequence[Member], beside: Mapping[int, str]) -> None:
        """From now on these ranks are asked when nothing moves; by rank which others may have died instead."""
        self._keeper.do(lambda: self.part.expect(members, beside))

    def collect(self, step: int, what: str, patience_s: float, take: Take) -> None:
        """Gives `take` what each other rank says in this step, as it comes: (rank, value, raw arrays). Raises WaitExpired, PeerFailed.

        `patience_s`: for so long beyond the deadline ranks that are there, and move, may let wait.
        """
        missing, end = set(range(1, self._size)), time.monotonic() + self.part.timeout_s
        self._keeper.do(lambda: self.part.want(step))
        for came in self._early.pop(step, []):
            self._taken(came, what, missing, take)
        while missing:
            try:
                came = self._next(end)
            except Empty:
                came = self._expired(what, end + patience_s)
            if not isinstance(came, Came):
                continue
            if came.step < step:
                raise RunFailed(_other_step(what, came.step, step))
            if came.step > step:  # a quick node is ahead of a slow one
                self._early.setdefault(came.step, []).append(came)
            else:
                self._taken(came, what, missing, take)
            if came.room_bytes:
                self._give_back(came.room_bytes)

    def _taken(self, came: Came, what: str, missing: set[int], take: Take) -> None:
        for rank, said, raw in came.said:
            if rank not in missing or not isinstance(said, list) or len(said) != 2:
                raise RunFailed(f"{what}: rank {rank} answered twice, or nonsense: the ranks run different versions of collbench")
            if said[0] != what:
                raise RunFailed(_elsewhere(what, self.part.expected.get(rank, f"rank {rank}"), said[0]))
            missing.discard(rank)
            take(rank, said[1], raw)

    def _give_back(self, room_bytes: int) -> None:
        self._keeper.do(lambda: self.part.made_room(room_bytes))

    def _expired(self, what: str, end: float) -> Any:
        """Has every rank asked where it stands; raises what comes of it, unless somebody answers after all."""
        while time.monotonic() < end:
            self._keeper.do(lambda: self.part.inquiries.begin(what, patient=True))
            with suppress(Empty):
                return self._next(min(end, time.monotonic() + _ASK_AGAIN_S))
        self.stuck(what)
        try:
            return self._next(time.monotonic() + _INQUIRY_S)
        except Empty:
            raise WaitExpired(f"{what}: not all ranks answered") from None

    def _next(self, end: float) -> Any:
        one = self.part.inbox.get(timeout=max(0.0, end - time.monotonic()))
        if isinstance(one, BaseException):
            raise one
        return one

    def tell(self, step: int, value: Any) -> None:
        """The same to every other rank."""
        message = Message(Kind.TELL, step, value)
        self._keeper.see_done(lambda: self.part.down.tell(message))

    def interrupt(self, sentence: str, code: int) -> None:
        """Ends every other rank with this sentence and code; this one's own thread goes on. Any thread."""
        self._keeper.do(lambda: self.part.abort_others(sentence, code))

    def see_off(self, seconds: float) -> list[int]:
        """Has the others leave, and waits for it so long at most; returns the ranks that are still there."""
        self._keeper.do(self.part.see_off)
        self.part.parted.wait(seconds)
        return self.part.still_there()

    def stuck(self, what: str) -> None:
        """This rank's own main thread does not move: asks the others where they stand. Any thread."""
        self._keeper.do(lambda: self.part.inquiries.begin(what))

    def signalled(self, sentence: str, code: int) -> None:
        """The same for a signal, which a launcher may have sent because a rank has ended: then that is the reason. Any thread."""
        self._keeper.do(lambda: self.part.signalled(sentence, code))

    def reason(self, sentence: str, code: int) -> PeerFailed | None:
        """What is behind an error of this rank, or a signal: another rank that has ended, or does not answer; None: nothing."""
        self._keeper.do(lambda: self.part.inquiries.met(sentence, code, own=True))
        end = time.monotonic() + _INQUIRY_S
        while True:
            try:
                if isinstance(self._next(end), Cleared):
                    return None
            except PeerFailed as told:
                return told
            except Empty:
                return None
            except RunFailed:  # a message that nobody understands any longer
                continue

    def remarks(self) -> list[str]:
        """What the user should know of who came, or could have come: sentences."""
        return [one for one in (self._listens and note_on(self._listens), self.part.down.strangers.sentence(), *self.part.late) if one]

    def close(self) -> None:
        """Leave in order: everything said is on its way."""
        if self._builds:
            self._builds.close()
        self._keeper.do(self.part.see_off)
        self._keeper.close()
        self._context.term()


def _bind_here(down: Down, place: str) -> None:
    try:
        down.bind(place)
    except zmq.ZMQError as error:
        raise UsageError(
            f"rank 0 cannot listen for the ranks of its own host ({error}): another launch that looks the same runs here; "
            "let that one end, or give this one a MASTER_PORT of its own"
        ) from None


def _elsewhere(what: str, who: str, theirs: Any) -> str:
    return (
        f"{what}: {who} answers to something else, '{str(theirs)[:_LONGEST]}': it went another way than rank 0, "
        "because it met an error alone or was started with different arguments"
    )


def _other_step(what: str, theirs: int, ours: int) -> str:
    return f"{what}: the ranks are not in the same step ({theirs} and {ours}); they were started with different arguments"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:16])) + (" …" if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
