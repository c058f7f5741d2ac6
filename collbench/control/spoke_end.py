"""Any other rank's end of the control plane, as its main thread uses it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from queue import Empty
from typing import Any

import zmq

from collbench.addresses import is_loopback, resolve
from collbench.control.builds import Call, Place, addresses_of, ask
from collbench.control.diagnosis import Cause, HangDiagnosis
from collbench.control.down import Down
from collbench.control.ending import Ending
from collbench.control.io_thread import Keeper
from collbench.control.keys import Keys
from collbench.control.members import Member, above
from collbench.control.message import Kind, Message
from collbench.control.node import is_stopped
from collbench.control.places import hub_places, node_place
from collbench.control.relay import Relay
from collbench.control.routes import host_of
from collbench.control.secret import Secret
from collbench.control.standing import Standing
from collbench.control.tcp_info import tcp_info
from collbench.control.up import Up
from collbench.errors import USAGE, CollbenchError, PeerFailed, RunFailed, UsageError, WaitExpired
from collbench.launch.info import LaunchInfo
from collbench.launch.software import mismatch, own

_FAREWELL_S = 6.0  # how long a rank that fails waits for rank 0 to end with it, which may ask all others first
_ASK_AGAIN_S = 2.0
_LAST_WORD_S = 3.0  # how long it waits for rank 0, which speaks for all, to be the first that leaves
_RELEASE_S = 60.0  # how long the first rank of a node stays for the others there at most
_AT_THE_NODE_S, _AT_A_PORT_S = 5.0, 1.0  # patience at one place before it tries the next one as well
_BEAT_S = 1.0
_UNWELCOME_S = 1.0  # after so long without a welcome the builds are compared apart from the control plane
_HUB_ANSWERS_S = 3.0
_ASK_BEFORE_S = 1.2


class SpokeEnd:
    """What a rank says to rank 0 and hears from it; the first rank of a node speaks for the others there."""

    def __init__(self, info: LaunchInfo, secret: Secret, stand: Callable[[], Standing], ending: Ending) -> None:
        self._info, self._secret, self._context = info, secret, zmq.Context()
        self._places = _places(info, secret)
        keys = Keys.of(secret)
        up = Up(self._context, keys, self._places)
        beat_s = _BEAT_S * max(1.0, info.ranks / info.local_ranks / 200)  # rank 0 reads 200 beats a second at most
        self._part = Relay(info.rank, up, self._leading(keys), stand, beat_s=beat_s, ending=ending)
        self._keeper = Keeper(self._part)
        self._me: Member | None = None
        self._hub: Member | None = None

    def _leading(self, keys: Keys) -> Down | None:
        """Where the other ranks of this node come, if this is its first rank."""
        info = self._info
        if info.local_rank or info.local_ranks == 1 or info.meeting.startswith("ipc://"):
            return None
        down = Down(self._context, keys)
        try:
            down.bind(node_place(info, self._secret))
        except zmq.ZMQError:  # the launcher's two nodes are one: the others find rank 0 by themselves
            down.close()
            return None
        return down

    def know(self, me: Member, members: Sequence[Member], beside: Mapping[int, str]) -> None:
        """Who this rank is, who the others are, and by rank who is beside it: to name them."""
        first = above(me, members)
        self._me, self._hub, self._part.above = me, members[0], str(first)
        if me.host != members[0].host and first == members[0]:
            self._part.address = me.address
        self._part.or_else = beside.get(first.rank, "") if first.host != me.host else ""  # this rank lives: not all of its host were killed

    def join(self, about: Any, deadline_s: float) -> None:
        """Find rank 0 and present this rank.

        Raises WaitExpired where rank 0 does not answer within the deadline, UsageError or PeerFailed where it is of another build.
        """
        compares = self._info.launcher != "local"
        build = own().as_json() if compares else 0
        self._keeper.do(lambda: self._part.present(about, build))
        end, found = time.monotonic() + deadline_s, threading.Event()
        try:
            try:
                self._next(min(end, time.monotonic() + _UNWELCOME_S))  # the welcome
            except Empty:
                if compares:
                    threading.Thread(target=self._compare, args=(found, deadline_s), name="collbench-builds", daemon=True).start()
                self._next(end)
        except Empty:
            raise WaitExpired(self._nobody(deadline_s)) from None
        finally:
            found.set()

    def _compare(self, found: threading.Event, seconds: float) -> None:
        """Ends the wait for a welcome where rank 0 is of another build, which may not be able to read this rank's messages."""
        info, host = self._info, socket.gethostname()
        place = Place(self._secret, info.port, addresses_of([place for place, _ in self._places]))
        answer = ask(place, Call(info.rank, host, own()), found, seconds)
        if answer and answer.build != own() and not found.is_set():
            sentence = mismatch(info.rank, host, own(), answer.host, answer.build)
            self._part.inbox.put(PeerFailed(sentence, USAGE) if answer.noted else UsageError(sentence))  # noted: rank 0 reports it

    def _nobody(self, deadline_s: float) -> str:
        info, where = self._info, next(place for place, _ in self._places if not place.startswith("ipc://@"))
        if self._part.up.refused:
            return (
                f"rank {info.rank} was refused where rank 0 should be ({self._part.up.refused[0]}): the secret of {self._secret.source} is "
                "not the same there, something else listens there, or strangers hold all connections of rank 0; export COLLBENCH_SECRET "
                "with the same 16 characters or more for all ranks, and give a second launch a MASTER_PORT of its own"
            )
        missing = f"rank {info.rank} on {socket.gethostname()} found no rank 0 at {where} within {deadline_s:g} s"
        why = f"{missing}: see whether rank 0 started and its host can be reached, or raise --timeout"
        host = host_of(info.meeting) if info.meeting.startswith("tcp://") else ""
        if not all(map(is_loopback, resolve(host) or ("",))):
            return why
        return (
            f"{why}; '{host}' is a loopback address here, which leads to this host alone: if rank 0 runs on another host, set MASTER_ADDR "
            "to an address of that host in the network between the hosts"
        )

    def say(self, step: int, what: str, value: Any, raw: Sequence[bytes | memoryview] = ()) -> None:
        """What this rank says in a step; rank 0 must be at the same thing there."""
        self._keeper.see_done(lambda: self._part.say(step, [what, value], raw))

    def hear(self, step: int, what: str, first_s: float, deadline_s: float) -> Any:
        """What rank 0 says in this step. Raises WaitExpired, PeerFailed, RunFailed.

        Orphaned where after the first seconds rank 0 does not even say that it is there; it may wait for others itself, up to the deadline.
        """
        end = time.monotonic() + deadline_s
        try:
            message = self._first(time.monotonic() + first_s)
        except Empty:
            message = self._later(what, end, deadline_s)
        if message.step != step:
            raise RunFailed(
                f"{what}: the ranks are not in the same step ({message.step} and {step}); they were started with different arguments"
            )
        return message.body

    def _first(self, end: float) -> Any:
        """Wait for a message; shortly before the end ask rank 0, so that a path that is blocked is known by then."""
        with suppress(Empty):
            return self._next(end - _ASK_BEFORE_S)
        self._keeper.do(lambda: self._part.ask(Message(Kind.WHERE)))
        return self._next(end)

    def _later(self, what: str, end: float, deadline_s: float) -> Any:
        """Asks for rank 0 again and again: it watches itself, but for what it does between two phases."""
        while time.monotonic() < end:
            if not self._is_hub_there(Message(Kind.WHERE)):
                self._keeper.do(lambda: self._part.lose(str(self._silence(what))))
            with suppress(Empty):
                return self._next(time.monotonic() + _ASK_AGAIN_S)
        raise WaitExpired(f"{what}: rank 0 did not answer within {deadline_s:g} s")

    def _is_hub_there(self, question: Message) -> bool:
        """Asks rank 0's keeper something, which answers however busy its main thread is."""
        self._part.hub_heard.clear()
        self._keeper.do(lambda: self._part.ask(question))
        return self._part.hub_heard.wait(_HUB_ANSWERS_S)

    def _silence(self, what: str) -> HangDiagnosis:
        """Return why rank 0 does not answer, as far as this rank can see it."""
        hub, me = self._hub, self._me
        found = HangDiagnosis(Cause.NO_ANSWER, what, (0,), (str(hub or "rank 0"),), reporter=str(me or f"rank {self._info.rank}"))
        if hub and me and hub.host == me.host:
            return replace(found, cause=Cause.STOPPED if is_stopped(hub.pid) else Cause.PROCESS_SILENT)
        if self._info.local_rank:
            return replace(found, cause=Cause.RELAYED)
        info = tcp_info(self._part.up.descriptor)
        cause = Cause.UNREACHABLE if info and info.unacked else Cause.NO_ANSWER
        return replace(found, cause=cause, source=hub.host if hub else "rank 0's host", target=me.host if me else "this host")

    def _next(self, end: float) -> Any:
        one = self._part.inbox.get(timeout=max(0.0, end - time.monotonic()))
        if isinstance(one, BaseException):
            raise one
        return one

    def abort(self, sentence: str, code: int) -> CollbenchError | None:
        """Tells rank 0 why this rank ends. Returns why rank 0 ends, which speaks then; Orphaned where it is gone, None where silent."""
        self.interrupt(sentence, code)
        end = time.monotonic() + (_FAREWELL_S if self._part.up.socket else 0.0)  # nobody hears who was never let in
        try:
            while True:
                self._next(end)
        except Empty:
            return None
        except CollbenchError as reason:
            return reason

    def interrupt(self, sentence: str, code: int) -> None:
        """Tells rank 0 why everything ends, and goes on. Any thread."""
        self._keeper.do(lambda: self._part.send(Message(Kind.ABORT, 0, [sentence, code])))

    def farewell(self) -> None:
        """Waits until rank 0 has left, for a short time: some launchers end all ranks as soon as one has, and rank 0 is to speak."""
        if self._part.up.socket:
            self._part.farewell.wait(_LAST_WORD_S)

    def stuck(self, what: str) -> str | None:
        """This rank's own main thread does not move: asks rank 0 to find out why. None: it does; or a sentence about rank 0. Any thread."""
        return None if self._is_hub_there(Message(Kind.STUCK, 0, what)) else str(self._silence(what))

    def close(self) -> None:
        """Leaves in order: everything said is on its way, that of the ranks behind this one, too."""
        self._keeper.do(self._part.leave)
        self._part.released.wait(_RELEASE_S)
        self._keeper.close()
        self._context.term()


def _places(info: LaunchInfo, secret: Secret) -> list[tuple[str, float]]:
    """Where to knock, and how long to wait there before the next place is tried as well."""
    if info.meeting.startswith("ipc://"):
        return [(info.meeting, _AT_A_PORT_S)]
    node = [(node_place(info, secret), _AT_THE_NODE_S)] if info.local_rank else []
    return [*node, *((place, _AT_A_PORT_S) for place in hub_places(info, secret))]
