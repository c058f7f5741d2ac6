"""A roll call: every rank is asked where it stands; a moment later what they answered, and who did not, is one sentence.

calling    every rank answers at once, however busy its main thread is; the first rank of a node answers for those that are held
looking    into those who seem to be the reason: their stacks, whether their hosts answer, what the libraries know
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from collbench.addresses import own_addresses
from collbench.control.diagnosis import Cause
from collbench.control.message import Kind, Message
from collbench.control.node import KILLED
from collbench.control.path_fault import PathEvidence, directions
from collbench.control.path_probe import Probe, ProbeResult
from collbench.control.reach import answering
from collbench.control.stack import innermost, own_stack, stack, tool_here
from collbench.control.standing import Standing
from collbench.control.tcp_info import PathReport, tcp_info
from collbench.control.verdict import HangEvidence, diagnose
from collbench.errors import FAILED, INTERRUPTED, TERMINATED, PeerFailed

if TYPE_CHECKING:
    from collbench.control.coordinator import Coordinator

_SETTLE_S = 0.01  # for rank 0 to run into the wait for a rank that has ended: that is the phase in which it did
_ANSWER_S = 1.5  # for a rank that is there, and for the news of one that has ended on another node
_LOOK_S = 2.8
_PROBE_S = 1.0
_MOST_LOOKED_AT = 2
_LOOK_AGAIN_S = 0.05
_MOST_PROBED = 3
_REPORT_S = 4.0  # how old a rank's report of its connections may be when the roll call begins
_MAIN_S = 0.5  # for rank 0's main thread, where it waits for what it is told


@dataclass(frozen=True)
class Echo:
    """An error that a rank has met: the reason itself, unless another rank has ended or is silent. `own`: rank 0's."""

    sentence: str
    code: int
    own: bool


@dataclass(frozen=True)
class Outcome:
    """What a roll call came to. facts: for events.jsonl, where every rank stood and what it was doing; echo: nobody else is the reason."""

    sentence: str
    code: int
    facts: dict[str, Any]
    echo: Echo | None = None


class Inquiry:
    """One roll call, in the keeper's thread. `answers` by rank, `held` by rank, `stacks` by rank: whoever receives them puts them here.

    what      the phase that somebody is stuck in, "" where a process has ended or a rank has met an error
    echo      that error
    patient   who is missing may go on with honest work
    """

    def __init__(self, hub: Coordinator, what: str, echo: Echo | None = None, *, patient: bool = False) -> None:
        self.what, self.echo, self.patient, self._hub = what, echo, patient, hub
        self.answers: dict[int, Standing] = {}
        self.held: dict[int, Standing] = {}
        self.stacks: dict[int, str] = {}
        self._unreachable: set[int] = set()
        self._own_paths: list[PathReport] = []
        self._probes: dict[tuple[str, str], Probe | None] = {}  # by (source, target); None: another rank sends them
        self._probed: dict[tuple[str, str], ProbeResult] = {}
        self._elsewhere: dict[int, str] = {}
        self._said: list[str] = []
        self._asked: set[int] = set()
        self._helpers: list[threading.Thread] = []
        self._called_at, self._looked_at = time.monotonic(), 0.0
        self._call()

    def heard(self, one: Standing) -> None:
        """A rank, or the first one of its node, says where it stands."""
        (self.held if one.held else self.answers)[one.rank] = one

    def tick(self, now: float) -> float | None:
        """Goes on; returns when it wants to be called again, None when everything that will be known is known.

        Where a process has ended that is at once: a launcher may be about to kill all others.
        """
        if self._hub.gone.keys() - self.held.keys():
            return None if (self._is_certain or now - self._called_at >= _SETTLE_S) else now + _SETTLE_S
        if not self._looked_at:
            if (self._missing() or self._hub.in_doubt) and now - self._called_at < _ANSWER_S:
                return now + _LOOK_AGAIN_S
            self._look(now)
        self._step_probes()
        busy = any(helper.is_alive() for helper in self._helpers) or not (
            self._asked <= self.stacks.keys() and self._probes.keys() <= self._probed.keys()
        )
        return now + _LOOK_AGAIN_S if busy and now - self._looked_at < _LOOK_S else None

    def _call(self) -> None:
        self._own = self._hub.stand()
        self.heard(self._own)
        if self._is_certain:
            return
        for rank in self._hub.node.stopped():
            self.held[rank] = self._hub.heard.get(rank, (Standing(rank), 0.0))[0]
        self._hub.down.tell(Message(Kind.WHERE))

    @property
    def _is_certain(self) -> bool:
        """Whether a process was killed: there is nothing to wait for, and no time."""
        return any(self._hub.how.get(rank, "").startswith(KILLED) for rank in self._hub.gone.keys() - self.held.keys())

    def _missing(self) -> set[int]:
        return set(self._hub.expected) - self.answers.keys() - self.held.keys() - self._hub.gone.keys() - self._hub.left

    def _look(self, now: float) -> None:
        self._looked_at, hub = now, self._hub
        for rank in self._missing():
            child = hub.down.with_rank(rank)
            info = tcp_info(child.descriptor) if child and child.cut is None else None
            if info and info.unacked:
                self._unreachable.add(rank)
        if self.patient and self._all_work:
            return
        self._own_paths = hub.connections.reports()
        self._probe_paths()
        if self._blames_nobody:
            return
        found = diagnose(self._seen())
        if found.cause is not Cause.PATH:  # a debugger would hold this process, and the probes with it
            for rank in found.ranks[:_MOST_LOOKED_AT]:
                self._look_at(rank)
            if not found.ranks:
                self.stacks[self._own.rank] = own_stack()  # a debugger would hold this process while the others wait for it
        for inform in hub.informants:
            self._help(partial(self._inform, inform))

    def _look_at(self, rank: int) -> None:
        if rank in self._unreachable:
            self._help(partial(self._probe, rank))
        elif rank == self._own.rank:
            self._help(self._look_at_self)
        elif self._hub.node.has(rank) and tool_here():
            self._help(partial(self._take_stack, rank))
        elif child := self._hub.down.with_rank(rank):
            self._hub.down.send(child, Message(Kind.STACK, 0, rank))
            self._asked.add(rank)

    def _help(self, work: Callable[[], None]) -> None:
        """Has a thread do what takes its time, so that the keeper hears everybody meanwhile."""
        self._helpers.append(threading.Thread(target=work, name="collbench-look", daemon=True))
        self._helpers[-1].start()

    def _look_at_self(self) -> None:
        self.stacks[self._own.rank] = own_stack() + (stack(os.getpid()) if tool_here() else "")

    def _probe(self, rank: int) -> None:
        found = answering(self._hub.addresses.get(rank, ()), _PROBE_S)
        if found:
            self._elsewhere[rank] = found

    def probed(self, rank: int, address: str, passed: list[int], failed: list[int]) -> None:
        """A rank has sent probes to an address."""
        source, target = self._host_of(rank), self._hosts_by_address().get(address, "")
        if (source, target) in self._probes:
            self._probed[source, target] = ProbeResult(tuple(passed), tuple(failed))

    def _probe_paths(self) -> None:
        """Have packets of several sizes sent where connections lose some."""
        for one in self._paths().suspects[:_MOST_PROBED]:
            where = self._takes_probes(one.source, one.target)
            sender = next((member.rank for member in self._hub.members if member.host == one.source), None)
            if where is None or sender is None:
                continue
            if sender == self._own.rank:
                self._probes[one.source, one.target] = Probe(*where)
            else:
                self._probes[one.source, one.target] = None
                for child in self._hub.down.children.values():
                    if sender in child.ranks | child.also:
                        self._hub.down.send(child, Message(Kind.PROBE, 0, list(where)))

    def _takes_probes(self, source: str, target: str) -> tuple[str, int] | None:
        """Return the address and port of a host where another one may send probes."""
        hub, home = self._hub, self._host_of(self._own.rank)
        if target == home:
            return (hub.members[0].address, hub.down.port) if hub.members and hub.down.port else None
        for member in hub.members:
            port = hub.reported.get(member.rank, (0, [], 0.0))[0]
            if member.host == target and port:
                return member.address, port
        return None

    def _step_probes(self) -> None:
        for way, probe in self._probes.items():
            if probe and way not in self._probed and (result := probe.step()):
                self._probed[way] = result

    def _paths(self) -> PathEvidence:
        recent = {rank: found for rank, (_, found, at) in self._hub.reported.items() if at > self._called_at - _REPORT_S}
        recent[self._own.rank] = self._own_paths
        reports = [(self._host_of(rank), report) for rank, found in recent.items() for report in found]
        answering_hosts = {self._host_of(rank) for rank in self.answers}
        return PathEvidence(directions(reports, self._hosts_by_address()), self._probed, answering_hosts)

    def _host_of(self, rank: int) -> str:
        return next((member.host for member in self._hub.members if member.rank == rank), "")

    def _hosts_by_address(self) -> dict[str, str]:
        """Return hosts by each address that others may reach them at."""
        if not self._hub.members:
            return {}
        home = dict.fromkeys(own_addresses(), self._host_of(self._own.rank))
        return home | {address: member.host for member in self._hub.members for address in (*member.addresses, member.address)}

    def _take_stack(self, rank: int) -> None:
        self.stacks[rank] = self._hub.node.stack_of(rank)

    def _inform(self, inform: Callable[[], str | None]) -> None:
        if said := inform():
            self._said.append(said)

    @property
    def _blames_nobody(self) -> bool:
        """Whether an error that a rank has met is the reason itself: a signal is one, whoever else is silent."""
        signal = self.echo is not None and self.echo.code in (INTERRUPTED, TERMINATED)
        silent = not signal and (self._missing() or self.held)
        return self.echo is not None and not (self._hub.gone or silent)

    def outcome(self) -> Outcome | None:
        """Who did not arrive, and why as far as can be told; or the error itself. None: everybody is there, and may go on."""
        if self.patient and self._all_work:
            return None
        path = self._paths().fault()
        if self.echo and self._blames_nobody and not (path and self.echo.code == FAILED):
            return Outcome(self.echo.sentence, self.echo.code, {}, self.echo)
        self.heard(self._hub.stand())
        if self._hub.gone and self._hub.woke_after_s >= self._hub.timeout_s:
            return Outcome(self._slept(), FAILED, self._facts())
        found = diagnose(self._seen())
        return Outcome("; ".join([str(found), *self._said]), FAILED, {"diagnosis": found.as_json(), **self._facts()})

    def _slept(self) -> str:
        """Rank 0 stood still itself; the others have waited for it as long as they may."""
        own, name = self._own, self._hub.expected.get(self._own.rank, "rank 0")
        return (
            f"hang: {own.phase or 'work between two phases'}: {name} stood still for {self._hub.woke_after_s:.1f} s (SIGSTOP, a debugger, "
            f"or its machine did), longer than the others wait (--timeout {self._hub.timeout_s:g}): they have ended"
        )

    @property
    def _all_work(self) -> bool:
        """Whether nothing has ended, all have answered, and who does not wait for others has moved within the deadline."""
        still = any(one.still_s > self._hub.timeout_s for one in self.answers.values() if not one.waits)
        return not (self._hub.gone or self.held or self._missing() or still)

    def _seen(self) -> HangEvidence:
        hub = self._hub
        here = {rank: name for rank, name in hub.expected.items() if rank not in hub.left}
        children = list(hub.down.children.values())
        return HangEvidence(
            what=self.what,
            timeout_s=hub.timeout_s,
            members={**hub.names, **here} if hub.gone else here,
            answers={rank: one for rank, one in self.answers.items() if rank not in self.held and rank not in hub.gone},
            heard={rank: one for rank, (one, _) in hub.heard.items()},
            gone=list(hub.gone),
            how=hub.how,
            beside=hub.beside,
            held=frozenset(self.held),
            unreachable=frozenset(self._unreachable - self.answers.keys()),
            elsewhere=self._elsewhere,
            spokesmen={rank: min(child.ranks) for child in children for rank in child.ranks},
            doing={rank: innermost(text) for rank, text in self.stacks.items()},
            hosts={member.rank: member.host for member in hub.members},
            path=self._paths().fault(),
        )

    def _facts(self) -> dict[str, Any]:
        standing = [one.as_json() for _, one in sorted({**self.answers, **self.held}.items())]
        met = {"met": self.echo.sentence} if self.echo else {}
        return {"standing": standing, "stacks": {str(rank): text for rank, text in self.stacks.items()}, **met}


class Inquiries:
    """Rank 0's roll calls, one at a time, and what comes of them. Everything here runs in the keeper's thread.

    Rank 0 speaks before the others learn that everything ends: then a launcher may kill it at any moment.
    """

    def __init__(self, hub: Coordinator) -> None:
        self._hub = hub
        self._now: Inquiry | None = None
        self._due = math.inf
        self._reason: tuple[str, int] | None = None
        self._speak_at = math.inf

    def begin(self, what: str, echo: Echo | None = None, *, patient: bool = False) -> None:
        """Asks every rank where it stands; the sentence comes a moment later. `patient`: none, where all are there and move."""
        if self._reason or self._hub.ending.begun:
            return
        if self._now is None:
            self._now, self._due = Inquiry(self._hub, what, echo, patient=patient), 0.0
        self._now.echo = self._now.echo or echo
        self._now.patient = self._now.patient and patient

    def met(self, sentence: str, code: int, *, own: bool = False) -> None:
        """A rank ends for this reason: at once where it knows, after a roll call where another rank's end may be behind it.

        A launcher's signal, too, may be the echo of an end that is still to be heard of.
        """
        if own and self._hub.ending.begun:
            self._hub.inbox.put(Cleared())
        elif own or code in (FAILED, INTERRUPTED, TERMINATED):
            self.begin("", Echo(sentence, code, own))
        else:
            self.conclude(sentence, code)

    def heard(self, one: Standing) -> None:
        """A rank, or the first one of its node, has been asked and answers."""
        if self._now:
            self._now.heard(one)

    def probed(self, rank: int, address: str, passed: list[int], failed: list[int]) -> None:
        """A rank has sent probes to an address."""
        if self._now:
            self._now.probed(rank, address, passed, failed)

    def stacked(self, rank: int, text: str) -> None:
        """What a rank is doing."""
        if self._now:
            self._now.stacks[rank] = text

    def conclude(self, sentence: str, code: int) -> None:
        """Everything ends for this reason, which the main thread tells; where it is inside a call, or there is no time, this one does."""
        if self._reason is None and not self._hub.ending.begun:
            self._now, self._reason = None, (sentence, code)
            waits = self._hub.stand().waits and not self._hub.gone
            self._speak_at = time.monotonic() + _MAIN_S if waits else 0.0
            self._hub.inbox.put(PeerFailed(sentence, code))

    def tick(self, now: float) -> float:
        """Goes on; returns when it wants to be called again."""
        if self._hub.ending.begun:
            if self._now and self._now.echo and self._now.echo.own:  # the main thread waits for what nobody looks for any longer
                self._hub.inbox.put(Cleared())
            self._now = None
            return math.inf
        if self._now and now >= self._due:
            due = self._now.tick(now)
            self._due = math.inf if due is None else due
            if due is None:
                self._settle(self._now.outcome())
        if self._reason and now >= self._speak_at:
            self._hub.ending.speak(*self._reason)
            self._hub.abort_others(*self._reason)
        return min(self._due, self._speak_at)

    def _settle(self, outcome: Outcome | None) -> None:
        if outcome is None:
            self._now = None
            return
        self._hub.facts = outcome.facts
        if outcome.echo and outcome.echo.own:
            self._now = None
            self._hub.inbox.put(Cleared())
        else:
            self.conclude(outcome.sentence, outcome.code)


class Cleared:
    """For rank 0's main thread: the error that it has met is the reason itself."""
