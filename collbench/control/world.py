"""The ranks together: who they are, and what they say to one another outside the measured path."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from collbench.addresses import is_loopback, own_addresses
from collbench.control.ending import Ending
from collbench.control.members import Member, addressed, beside
from collbench.control.node import began_of, is_stopped
from collbench.control.routes import await_name, routes_to
from collbench.control.secret import secret_of
from collbench.control.standing import Standing
from collbench.control.talk import Talk
from collbench.control.watchdog import Watchdog, end_process
from collbench.errors import (
    FAILED,
    INTERRUPTED,
    TERMINATED,
    CollbenchError,
    Interrupted,
    Orphaned,
    PeerFailed,
    RunFailed,
    UsageError,
    WaitExpired,
)
from collbench.launch.detect import LAUNCHER as KUBERNETES
from collbench.launch.info import LaunchInfo
from collbench.launch.shared_memory import remove_abandoned
from collbench.launch.software import mismatch, own, read_build
from collbench.launch.spawn import record_exit
from collbench.launch.supervise import say

_VOICES = 8  # so many ranks at most say what rank 0 cannot say any longer
_ECHOES = (FAILED, INTERRUPTED, TERMINATED)  # exit codes of what may have another reason
_UNHEARD_S = 2.5  # longer than rank 0 looks at a rank after those behind that one have given up waiting for an answer
_LEAVING_S = 2.0  # for the other ranks of a launch that ends early
_OWN_NAME_S = 10.0  # rank 0 can do without: then it listens at every address of its pod


class World(Talk):
    """All ranks of one launch: they join, talk (talk.py), and end together, with one sentence that says why.

    kept         tells what is stored so far: "12 of 40 cells: they are in runs/x"; None as long as nothing is
    ending_code  the exit code of a launch that `_end` ends: 4, or that of a signal
    finish_off   has the launcher end the ranks that cannot end themselves; None where it does so by itself
    """

    def __init__(self, info: LaunchInfo, timeout_s: float, finish_off: Callable[[], None] | None = None) -> None:
        self.info = info
        self.kept: Callable[[], str] | None = None
        self.ending_code = FAILED
        self._signal: Interrupted | None = None
        self.finish_off = finish_off
        self._spoken = threading.Lock()
        self._asked: BaseException | None = None
        if info.local_rank == 0:
            remove_abandoned()
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        me = Member(info.rank, socket.gethostname(), info.local_rank, os.getpid(), cpus, began=began_of(os.getpid()))
        super().__init__(me, info.ranks, timeout_s, Watchdog(timeout_s, str(me), self._end_alone))
        self.watchdog.suspects = self._stopped
        try:
            if self.size > 1:
                self._join()
        except (CollbenchError, Interrupted) as error:
            if self.rank == 0:
                self.speak(str(error), error.exit_code)  # first: a launcher may end rank 0 as soon as another rank has ended
            error.said = self.abort(error)  # type: ignore[union-attr]
            self.close()
            raise

    def _join(self) -> None:
        info = self.info if self.info.meeting != "mpi" else self._meet_over_mpi()
        secret, ending = secret_of(info, os.environ), Ending(self._end, self._speak, for_all=self.rank == 0)
        if info.launcher == KUBERNETES:
            self._await_name(info.meeting)
        if self.rank == 0:
            from collbench.control.hub_end import HubEnd

            self._hub = HubEnd(info, secret, self._standing, ending, self.timeout_s)
            with self.watchdog.elsewhere("joining"):
                said = self._hub.admit(self.timeout_s)
            self.members = tuple(addressed([self.me, *(Member(**said[rank]) for rank in range(1, self.size))]))
            self._hub.expect(self.members, self._beside())
            first, *others = [asdict(member) for member in self.members]
            self._hub.tell(0, [{**first, "build": self._build}, *others])
        else:
            from collbench.control.spoke_end import SpokeEnd

            self._spoke = SpokeEnd(info, secret, self._standing, ending)
            routes = routes_to(info.meeting)
            addresses = own_addresses() if not info.local_rank and not all(is_loopback(own) for own, _ in routes) else ()
            with self.watchdog.elsewhere("joining"):
                self._spoke.join(asdict(replace(self.me, routes=routes, addresses=addresses)), self.timeout_s)
                found = self._spoke.hear(0, "joining", self.timeout_s, self.longest_s)
            self._check_build(found[0])
            self.members = tuple(Member(**one) for one in found)
            self._spoke.know(self.members[info.rank], self.members, self._beside())
        self.me = self.members[self.rank]
        self.watchdog.consult = (self._hub or self._spoke).stuck  # type: ignore[union-attr]

    @property
    def _build(self) -> list[Any] | None:
        """This rank's build as JSON; None in a local start, whose ranks are all of one build."""
        return own().as_json() if self.info.launcher != "local" else None

    def _check_build(self, rank_0: dict[str, Any]) -> None:
        """Take rank 0's build out of what it says of itself. Raises UsageError where it is an older one, which has not compared them."""
        build = rank_0.pop("build", None)
        if build != self._build:
            raise UsageError(mismatch(self.rank, self.me.host, own(), str(rank_0.get("host")), read_build(build)))

    def _await_name(self, meeting: str) -> None:
        """The names of pods come late. Raises WaitExpired where rank 0's does not."""
        patience_s = self.timeout_s if self.rank else min(self.timeout_s, _OWN_NAME_S)
        with self.watchdog.elsewhere("joining"):
            if not await_name(meeting, patience_s) and self.rank:
                raise WaitExpired(
                    f"the name of rank 0's pod ({meeting.removeprefix('tcp://')}) did not resolve within {patience_s:g} s: give its Job a "
                    "headless Service with publishNotReadyAddresses, as `collbench emit kubernetes` does, or raise --timeout"
                )

    def _beside(self) -> dict[int, str]:
        """MPICH's mpiexec kills all of a host within a millisecond of a death there."""
        return beside(self.members) if self.info.facts.get("mpirun") == "MPICH" else {}

    def _standing(self) -> Standing:
        """Where this rank stands; asked for by the keeper's thread."""
        dog = self.watchdog
        return Standing(self.rank, dog.at, dog.waits, dog.iteration, dog.still_s, self._step, dog.paused_s)

    def _end(self, sentence: str, code: int) -> None:
        """Ends this process, whose main thread does not; rank 0 has spoken for all."""
        self.ending_code = code
        if self.rank == 0:
            self._speak(sentence, code)
        if self.finish_off and self.rank == 0:
            self.finish_off()
        record_exit(code, os.environ)  # mpiexec does not keep it
        end_process("", code)

    def _speak(self, sentence: str, code: int) -> None:
        """For the main thread, which is inside a call: says why everything ends, and keeps it."""
        self.ending_code = code
        if not self._spoken.locked():
            self.speak(sentence, code)  # first: it takes no time, and a launcher may kill this process at any moment
            with suppress(CollbenchError):
                (self.watchdog.witness or str)(sentence)

    def _end_alone(self, sentence: str) -> None:
        """The watchdog's end: nobody else could tell more."""
        self._let_others_speak()
        record_exit(FAILED, os.environ)
        if self.finish_off and len(self.members) == 1:  # nobody has joined: each knows only itself, and somebody may be stopped
            say(sentence)
            time.sleep(_LEAVING_S)  # the others say so, too
            self.finish_off()
            sentence = ""
        end_process(sentence if self._has_voice else "")

    def _let_others_speak(self) -> None:
        """Of whom nobody hears, he does not leave first: libraries end a process at once when another's connection closes."""
        if not self._has_voice:
            time.sleep(_UNHEARD_S)

    def speak(self, sentence: str, code: int) -> None:
        """Says why everything ends, unless that has been said, which it is once only."""
        if self._has_voice and self._spoken.acquire(blocking=False):
            say(self.last_words(sentence, code))
            if self.rank == 0:  # for the parent of a local start: when others end, mpiexec may kill this process at any moment
                record_exit(code, os.environ)

    @property
    def _has_voice(self) -> bool:
        """Whether this rank is one that speaks where rank 0 cannot: of a node one, and not of thousands of nodes."""
        first = 1 if self.rank and self.me.host == self.members[0].host else 0
        return self.rank < _VOICES and (len(self.members) == 1 or self.info.local_rank == first)

    @property
    def facts(self) -> dict[str, Any]:
        """Where all ranks stood when nothing moved, and what was seen of the reason, for events.jsonl; {} without a hang."""
        return self._hub.part.facts if self._hub else {}

    def ask_too(self, informant: Callable[[], str | None]) -> None:
        """When nothing moves rank 0 asks this, too, in a thread of its own, and adds its answer to the sentence."""
        if self._hub:
            self._hub.part.informants.append(informant)

    def explained(self, error: BaseException) -> BaseException:
        """What is behind an error, at rank 0: a library's is often but the echo of another rank's end, and so is a launcher's signal.

        Takes 1.5 s at most where somebody is silent, and some seconds more to look at him.
        """
        if isinstance(error, MemoryError):
            at = self.watchdog.at or "work between two phases"
            error = RunFailed(f"no memory is left for {self.me} during {at}: choose smaller sizes, or fewer ranks per host")
        code = getattr(error, "exit_code", FAILED)
        if not self._hub or isinstance(error, PeerFailed | WaitExpired) or error is self._asked or code not in _ECHOES:
            return error
        self._asked = error
        known = error if isinstance(error, CollbenchError | Interrupted) else RunFailed(f"{type(error).__name__}: {error}")
        sentence = self._told(known)
        with self.watchdog.elsewhere(self.watchdog.at):
            return self._hub.reason(sentence, code) or error

    def last_words(self, sentence: str, code: int) -> str:
        """The sentence; of a launch that a signal ended it goes on with what is stored."""
        if code not in (INTERRUPTED, TERMINATED):
            return sentence
        sentence = str(self._signal or sentence)  # a launcher sends it to all: another rank may have been quicker to tell
        return f"{sentence} after {self.kept()}" if self.kept else f"{sentence} before anything was measured"

    def interrupted(self, number: int) -> None:
        """A signal asks this process to end: tells the others, in case that the main thread is inside a call and cannot. Any thread."""
        self._signal = error = Interrupted(number)
        tell = self._hub.signalled if self._hub else self._spoke.interrupt if self._spoke else None
        if tell:
            tell(self._told(error), error.exit_code)

    def _told(self, error: CollbenchError | Interrupted) -> str:
        """The sentence as the other ranks get it."""
        by_name = isinstance(error, PeerFailed) or str(self.me) in str(error)
        if self.size == 1 or by_name or (self.rank == 0 and isinstance(error, Interrupted)):
            return str(error)
        if isinstance(error, Interrupted):
            return f"{self.me} was {error}"
        at = self.watchdog.at if error.exit_code == FAILED and not isinstance(error, WaitExpired) else ""
        return f"{self.me}{f', during {at}' if at and at not in str(error) else ''}: {error}"

    def _stopped(self) -> list[str]:
        """The other ranks of this host that are not allowed to run: "rank 1 (node1, pid 7) is stopped"."""
        return [f"{member} is stopped" for member in self.on_host() if member != self.me and is_stopped(member.pid)]

    def _meet_over_mpi(self) -> LaunchInfo:
        """mpirun over several hosts passes no address of rank 0: the ranks exchange it through MPI itself."""
        from collbench.control.over_mpi import with_meeting

        with self.watchdog.phase("joining over MPI"):
            return with_meeting(self.info)

    def abort(self, error: CollbenchError | Interrupted) -> bool:
        """Tells the other ranks why this one ends, so that they end with the same sentence and code at once.

        Returns whether rank 0 knows: it speaks for all, and is the first to leave, since a launcher kills all when one has left.
        """
        known = True
        if self._hub:
            self._hub.interrupt(self._told(error), error.exit_code)
            if self.finish_off and self._hub.see_off(_LEAVING_S):
                self.finish_off()
        elif isinstance(error, Orphaned):
            self._let_others_speak()
            self.speak(str(error), error.exit_code)
        elif self._spoke:
            reason = error if isinstance(error, PeerFailed) else self._spoke.abort(self._told(error), error.exit_code)
            if isinstance(reason, Orphaned):
                self.speak(str(reason), reason.exit_code)
            known = reason is not None
            self._spoke.farewell()
        return known

    def close(self) -> None:
        """Leaves in order: everything sent is on its way, the watchdog is gone."""
        for end in (self._hub, self._spoke):
            if end:
                end.close()
        self.watchdog.close()
