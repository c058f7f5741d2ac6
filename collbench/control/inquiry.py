"""Inquiries at rank 0: they request the state of every rank, and derive one diagnosis from the replies and from the missing replies.

1. Request    every rank replies immediately, even if its main thread is busy; the first rank of a node replies for stopped ranks.
2. Examine    the ranks that may be the cause: their stacks, whether their hosts answer, what the libraries report.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import to_builtins

from collbench.addresses import is_loopback_up, own_addresses
from collbench.control.addresses import answering
from collbench.control.diagnosis import (
    BETWEEN,
    HangCause,
    HangDiagnosis,
    HangEvidence,
    ProcessEnd,
    RankPaused,
    RankState,
    diagnose,
    innermost,
    own_stack,
    paused_together_s,
    tool_here,
)
from collbench.control.io_thread import BackgroundCalls
from collbench.control.path import PathEvidence, Probe, ProbeResult, directions, tcp_info
from collbench.control.wire import Paths, Probed, SendProbe, TakeStack, Where
from collbench.errors import FAILED, INTERRUPTED, TERMINATED, PeerFailed
from collbench.reason import as_json

if TYPE_CHECKING:
    from collbench.control.server import Coordinator

_SETTLE_S = 0.01  # time for rank 0 to enter the wait for an ended rank: the diagnosis names that phase
_ANSWER_S = 1.5  # time for a reply, and for the report of a process that has ended on another node
_EXAMINE_S = 2.8
_PROBE_S = 1.0
_MOST_EXAMINED = 2
_POLL_S = 0.05
_MOST_PROBED = 3
_REPORT_S = 4.0  # maximal age of a rank's report of its connections when the inquiry begins
_MAIN_S = 0.5  # time for rank 0's main thread to report, if it waits for the result
_INTERRUPTED_S = 0.05  # the same, if a signal interrupts it: prterun kills all ranks 0.25 s after a signal
_SIGNAL_CODES = (INTERRUPTED, TERMINATED)


class SecondaryError(msgspec.Struct, frozen=True):
    """An error of a rank that another rank's end or silence may have caused. own: it is rank 0's error."""

    sentence: str
    code: int
    own: bool


class NoOtherCause:
    """The message to rank 0's main thread that its own error is the cause."""


class HangInquiry:
    """One inquiry about a hang, in the I/O thread. The caller fills `answers`, `held` and `stacks` by rank."""

    def __init__(self, coordinator: Coordinator, phase: str) -> None:
        self.phase = phase  # without progress; "" if a process has ended or a rank has reported an error
        self.error: SecondaryError | None = None
        self.patient = True  # ends without a result if all ranks make progress
        self._coordinator = coordinator
        self.answers: dict[int, RankState] = {}
        self.held: dict[int, RankState] = {}
        self.stacks: dict[int, str] = {}
        self.probed: dict[tuple[str, str], ProbeResult] = {}  # by (source, target) host names
        self._probes: dict[tuple[str, str], Probe | None] = {}  # by (source, target); None if another rank sends the probes
        self._unreachable: set[int] = set()
        self._elsewhere: dict[int, str | None] = {}  # by rank another address at which its host answers; None without one
        self._remarks: list[str | None] = []  # of the libraries
        self._stacks_requested: set[int] = set()
        self._background = BackgroundCalls()
        self._called_at = time.monotonic()
        self._examined_at = 0.0
        self._own_state = coordinator.own_state()
        self._own_paths = Paths(self._own_state.rank, 0, [])
        self.store(self._own_state)
        if not self._is_certain:
            for rank in coordinator.node.stopped():
                self.held[rank] = coordinator.states.get(rank, RankState(rank))
            coordinator.down.broadcast(Where())

    def store(self, state: RankState) -> None:
        """Store a state. It is from its own rank, or from the first rank of that rank's node."""
        (self.held if state.held else self.answers)[state.rank] = state

    def tick(self, now: float) -> float | None:
        """Continue. Return when to call again; None when all evidence is complete, or when a process was killed."""
        if self._coordinator.gone.keys() - self.held.keys():
            return None if (self._is_certain or now - self._called_at >= _SETTLE_S) else now + _SETTLE_S
        if not self._examined_at:
            if (self._missing or self._coordinator.in_doubt) and now - self._called_at < _ANSWER_S:
                return now + _POLL_S
            self._examined_at = now
            self._examine()
        for direction, probe in self._probes.items():
            result = probe.step() if probe and direction not in self.probed else None
            if result:
                self.probed[direction] = result
        is_incomplete = self._stacks_requested - self.stacks.keys() or self._probes.keys() - self.probed.keys()
        is_busy = self._background.poll() or is_incomplete
        return now + _POLL_S if is_busy and now - self._examined_at < _EXAMINE_S else None

    @property
    def _is_certain(self) -> bool:
        """Return whether a process was killed. Then the inquiry does not wait, since a launcher may be about to kill all others."""
        return any(self._coordinator.how.get(rank, ProcessEnd()).killed for rank in self._coordinator.gone.keys() - self.held.keys())

    @property
    def _missing(self) -> set[int]:
        members = {member.rank for member in self._coordinator.members}
        return members - self.answers.keys() - self.held.keys() - self._coordinator.gone.keys() - self._coordinator.left

    @property
    def _all_work(self) -> bool:
        """Return whether all ranks run and replied, and each that does not wait for others has progressed within the deadline."""
        is_overdue = any(state.still_s > self._coordinator.timeout_s for state in self.answers.values() if not state.waits)
        return not (self._coordinator.gone or self.held or self._missing or is_overdue)

    @property
    def _names_no_rank(self) -> bool:
        """Return whether a rank's error is the cause itself. A signal is, even if other ranks do not reply."""
        silent = not self._is_signal and (self._missing or self.held)
        return self.error is not None and not (self._coordinator.gone or silent)

    @property
    def _explains_error(self) -> bool:
        """Return whether a fault of a path, or a pause of all ranks, may have caused the error.

        After a pause that is longer than the deadline, a library with a deadline fails.
        """
        if self.error is None or self.error.code != FAILED:
            return False
        return self._paths().fault() is not None or paused_together_s(self.answers.values(), self._coordinator.timeout_s) > 0

    @property
    def _is_signal(self) -> bool:
        return self.error is not None and self.error.code in _SIGNAL_CODES

    def _examine(self) -> None:
        """Examine paths and ranks that may be the cause."""
        coordinator = self._coordinator
        for rank in self._missing:
            child = coordinator.down.with_rank(rank)
            info = tcp_info(child.descriptor) if child and child.cut is None else None
            if info and info.unacked:
                self._unreachable.add(rank)
        if (self.patient and self._all_work) or self._is_signal:
            return
        self._own_paths = Paths(self._own_state.rank, 0, coordinator.connections.reports(), is_loopback_up())
        self._probe_paths()
        if self._names_no_rank:
            return
        hang = diagnose(self._evidence())
        if hang.cause is not HangCause.PATH:  # a debugger would stop this process and its probes
            for rank in hang.ranks[:_MOST_EXAMINED] or (self._own_state.rank,):
                self._examine_rank(rank)
        for inform in coordinator.informants:
            self._background.start(inform, self._remarks.append)

    def _examine_rank(self, rank: int) -> None:
        if rank in self._unreachable:
            addresses = self._coordinator.members[rank].addresses
            self._background.start(partial(answering, addresses, _PROBE_S), partial(self._elsewhere.__setitem__, rank))
        elif rank == self._own_state.rank:
            self.stacks[rank] = own_stack()  # without a debugger, which would stop this process while the others wait for it
        elif self._coordinator.node.has(rank) and tool_here():
            self._background.start(partial(self._coordinator.node.stack_of, rank), partial(self.stacks.__setitem__, rank))
        else:
            child = self._coordinator.down.with_rank(rank)
            if child:
                self._coordinator.down.send(child, TakeStack(rank))
                self._stacks_requested.add(rank)

    def _probe_paths(self) -> None:
        """Request probes of several packet sizes on the paths where connections lose packets."""
        coordinator = self._coordinator
        for source, target in self._paths().suspects[:_MOST_PROBED]:
            listener = self._probe_listener(target)
            sender = next((member.rank for member in coordinator.members if member.host == source), None)
            if listener is None or sender is None:
                continue
            self._probes[source, target] = Probe(*listener) if sender == self._own_state.rank else None
            for child in coordinator.down.children.values():
                if sender in child.ranks | child.also:
                    coordinator.down.send(child, SendProbe(*listener))

    def _probe_listener(self, target: str) -> tuple[str, int] | None:
        """Return the address and port at which a host accepts probes; None without one."""
        ports = {rank: paths.port for rank, (paths, _) in self._coordinator.reported.items()}
        ports[self._own_state.rank] = self._coordinator.down.unknown.port or 0
        members = (member for member in self._coordinator.members if member.host == target and ports.get(member.rank))
        return next(((member.address, ports[member.rank]) for member in members), None)

    def note_probes(self, result: Probed) -> None:
        """Store the result of probes that a rank has sent to an address."""
        direction = self._host_of(result.rank), self._hosts_by_address().get(result.address, "")
        if direction in self._probes:
            self.probed[direction] = ProbeResult(tuple(result.passed), tuple(result.failed))

    def _paths(self) -> PathEvidence:
        earliest = self._called_at - _REPORT_S
        recent = {rank: paths for rank, (paths, reported_at) in self._coordinator.reported.items() if reported_at > earliest}
        recent[self._own_state.rank] = self._own_paths
        reports = [(self._host_of(rank), report) for rank, paths in recent.items() for report in paths.reports]
        return PathEvidence(
            directions(reports, self._hosts_by_address()),
            self.probed,
            {self._host_of(rank) for rank in self.answers},
            [self._host_of(rank) for rank, paths in recent.items() if not paths.loopback_up],
        )

    def _host_of(self, rank: int) -> str:
        return self._coordinator.members[rank].host if rank < len(self._coordinator.members) else ""

    def _hosts_by_address(self) -> dict[str, str]:
        """Return the name of each host, by each address at which other hosts may reach it."""
        if not self._coordinator.members:
            return {}
        hosts = dict.fromkeys(own_addresses(), self._host_of(self._own_state.rank))
        return hosts | {address: member.host for member in self._coordinator.members for address in (*member.addresses, member.address)}

    def outcome(self) -> HangDiagnosis | RankPaused | SecondaryError | None:
        """Return the ranks that are late with the cause, or the error itself. None: all ranks replied and may continue."""
        if self.patient and self._all_work:
            return None
        coordinator = self._coordinator
        self.store(coordinator.own_state())
        if self.error and self._names_no_rank and not self._explains_error:
            return self.error
        # rank 0 itself was stopped for longer than the others' deadline
        if coordinator.gone and coordinator.woke_after_s >= coordinator.timeout_s:
            name = str(coordinator.members[0]) if coordinator.members else "rank 0"
            return RankPaused(name, self._own_state.phase or BETWEEN, coordinator.woke_after_s, coordinator.timeout_s)
        return diagnose(self._evidence())

    def _evidence(self) -> HangEvidence:
        coordinator = self._coordinator
        names = {member.rank: str(member) for member in coordinator.members if member.rank not in coordinator.left}
        if coordinator.gone:
            names = {rank: str(member) for rank, member in coordinator.joined.items()} | names
        return HangEvidence(
            what=self.phase,
            timeout_s=coordinator.timeout_s,
            members=names,
            answers={rank: state for rank, state in self.answers.items() if rank not in self.held and rank not in coordinator.gone},
            states=coordinator.states,
            gone=list(coordinator.gone),
            how=coordinator.how,
            other_candidates=coordinator.other_candidates,
            held=frozenset(self.held),
            unreachable=frozenset(self._unreachable - self.answers.keys()),
            elsewhere={rank: address for rank, address in self._elsewhere.items() if address},
            spokesmen={rank: min(child.ranks) for child in coordinator.down.children.values() for rank in child.ranks},
            doing={rank: innermost(text) for rank, text in self.stacks.items()},
            hosts={member.rank: member.host for member in coordinator.members},
            path=self._paths().fault(),
        )

    def sentence(self, hang: HangDiagnosis | RankPaused) -> str:
        """Return the diagnosis and what the libraries report."""
        sentences = [hang.render()]
        if self.error and isinstance(hang, HangDiagnosis) and hang.cause is HangCause.ALL_PAUSED:
            sentences.append(self.error.sentence)
        return "; ".join([*sentences, *filter(None, self._remarks)])

    def facts(self, hang: HangDiagnosis | RankPaused) -> dict[str, Any]:
        """Return the diagnosis with the state and stack of every rank, for events.jsonl."""
        states = {**self.answers, **self.held}
        facts = {
            "diagnosis": as_json(hang),
            "standing": [to_builtins(states[rank]) for rank in sorted(states)],
            "stacks": {str(rank): text for rank, text in self.stacks.items()},
        }
        if self.error:
            facts["met"] = self.error.sentence
        return facts


class HangInquiries:
    """Rank 0's inquiries, one at a time, and their results. All methods run in the I/O thread.

    Rank 0 reports before the other ranks are informed that the launch ends. After that a launcher may kill rank 0 at any time.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.current: HangInquiry | None = None
        self._due = math.inf
        self._reason: tuple[str, int] | None = None
        self._report_at = math.inf

    def begin(self, phase: str, error: SecondaryError | None = None, *, patient: bool = False) -> None:
        """Request the state of every rank, to derive the cause. patient: end without a result if all ranks make progress."""
        if self._reason or self._coordinator.ending.begun:
            return
        if self.current is None:
            self.current = HangInquiry(self._coordinator, phase)
            self._due = 0.0
        self.current.error = self.current.error or error
        self.current.patient = self.current.patient and patient

    def examine_error(self, sentence: str, code: int, *, own: bool = False) -> None:
        """End the launch for a rank's error: at once if the error is the cause, after an inquiry if another rank's end may be.

        Another rank's end, which is not known yet, may also have caused a launcher's signal.
        """
        if own and self._reason:
            self._coordinator.inbox.put(PeerFailed(*self._reason))
        elif own and self._coordinator.ending.begun:
            self._coordinator.inbox.put(NoOtherCause())
        elif own or code in (FAILED, *_SIGNAL_CODES):
            self.begin("", SecondaryError(sentence, code, own))
        else:
            self.conclude(sentence, code)

    def conclude(self, sentence: str, code: int) -> None:
        """End the launch for this reason. The main thread reports it; this thread does if the main thread is inside a call."""
        if self._reason is None and not self._coordinator.ending.begun:
            self.current = None
            self._reason = (sentence, code)
            self._report_at = time.monotonic()
            if not self._coordinator.gone:
                if self._coordinator.own_state().waits:
                    self._report_at += _MAIN_S
                elif code in _SIGNAL_CODES:
                    self._report_at += _INTERRUPTED_S
            self._coordinator.inbox.put(PeerFailed(sentence, code))

    def tick(self, now: float) -> float:
        """Continue the inquiry; return when to call again."""
        if self._coordinator.ending.begun:
            if self.current and self.current.error and self.current.error.own:  # the main thread still waits for a result
                self._coordinator.inbox.put(NoOtherCause())
            self.current = None
            return math.inf
        if self.current and now >= self._due:
            due = self.current.tick(now)
            self._due = math.inf if due is None else due
            if due is None:
                self._settle(self.current)
        if self._reason and now >= self._report_at:
            self._coordinator.ending.report(*self._reason)
            self._coordinator.abort_others(*self._reason)
        return min(self._due, self._report_at)

    def _settle(self, inquiry: HangInquiry) -> None:
        cause = inquiry.outcome()
        self.current = None
        if isinstance(cause, SecondaryError):
            self._coordinator.facts = {}
            if cause.own:
                self._coordinator.inbox.put(NoOtherCause())
            else:
                self.conclude(cause.sentence, cause.code)
        elif cause:
            self._coordinator.facts = inquiry.facts(cause)
            self.conclude(inquiry.sentence(cause), FAILED)
