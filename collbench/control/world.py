"""The ranks of a launch: how they join, exchange data outside the measured path, and end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from msgspec import convert
from msgspec.structs import asdict, replace

from collbench.addresses import is_loopback, own_addresses
from collbench.control.addresses import await_name, routes_to
from collbench.control.diagnosis import BETWEEN, RankState, began_of, is_stopped
from collbench.control.members import HostKilled, Member, Members, addressed, other_candidates
from collbench.control.security import Secret, secret_of
from collbench.control.watchdog import EndProcess, Watchdog, end_process
from collbench.errors import (
    FAILED,
    INTERRUPTED,
    TERMINATED,
    USAGE,
    CollbenchError,
    Interrupted,
    Orphaned,
    PeerFailed,
    RunFailed,
    UsageError,
    WaitExpired,
    is_out_of_memory,
)
from collbench.launch.detect import LAUNCHER as KUBERNETES
from collbench.launch.detect import is_hydra, left_over_variables
from collbench.launch.info import LaunchInfo
from collbench.launch.limits import cpu_limit
from collbench.launch.shared_memory import remove_abandoned
from collbench.launch.spawn import record_exit
from collbench.launch.supervise import report_error
from collbench.reason import Fact, Text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collbench.control.client import Client
    from collbench.control.server import Server


T = TypeVar("T")
_INQUIRY_S = 10.0  # longer than rank 0 needs to query all ranks
_LONGER = 1.5  # the other ranks wait longer by this factor, since only rank 0 can name the missing ranks
_MOST_REPORTERS = 8  # ranks that report at most if rank 0 cannot
_SECONDARY_CODES = (FAILED, INTERRUPTED, TERMINATED)  # exit codes of errors that another rank may have caused
_UNHEARD_S = 2.5  # longer than rank 0 examines the rank that forwards this rank's messages
_LEAVING_S = 2.0  # for the other ranks of a launch that ends early
_NOTED_S = 5.0  # ranks that were started together have joined by then
_OWN_NAME_S = 10.0  # if the name does not resolve by then, rank 0 listens at every address of its pod


class World(Members):
    """All ranks of one launch: they join, exchange data, and end together with one reason.

    All ranks call each method of an exchange, in the same order; every wait has a deadline.
    """

    def __init__(self, info: LaunchInfo, timeout_s: float, finish_off: Callable[[], None] | None = None) -> None:
        self.info = info
        self.kept: Callable[[], str] | None = None  # returns a text about the stored results: "12 of 40 cases: they are in runs/x"
        self.ending_code = FAILED  # the exit code of a launch that `_end` ends: 4, or that of a signal
        self._signal: Interrupted | None = None
        self.finish_off = finish_off  # makes the launcher kill the ranks that cannot end themselves; None if it does so by itself
        self._reported = threading.Lock()
        self._examined: BaseException | None = None
        if info.local_rank == 0:
            remove_abandoned()
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        me = Member(
            info.rank, socket.gethostname(), info.local_rank, os.getpid(), cpus, cpu_limit=cpu_limit(), began=began_of(os.getpid())
        )  # fmt: skip
        super().__init__(me)
        self.rank = info.rank
        self.size = info.ranks
        self.timeout_s = timeout_s  # of every wait
        self.watchdog = Watchdog(timeout_s, str(me), self._end_alone)
        self._step = 0
        self._patience_s = 0.0
        self._server: Server | None = None
        self._client: Client | None = None
        self.watchdog.suspects = lambda: [str(mate) for mate in self.on_host() if mate != self.me and is_stopped(mate.pid)]
        try:
            if self.size > 1:
                self._join()
        except (CollbenchError, Interrupted) as caught:
            error = self.explained(caught)
            assert isinstance(error, CollbenchError | Interrupted)
            if self.rank == 0:
                self.report_error(str(error), error.exit_code)  # first: a launcher may kill rank 0 as soon as another rank has ended
            error.reported = self.abort(error)  # type: ignore[union-attr]
            self.close()
            if error is caught:
                raise
            raise error from caught

    # Data exchanged outside the measured path: values of all ranks gathered at rank 0, and rank 0's decisions.

    @property
    def longest_s(self) -> float:
        """Return the longest time in seconds that a rank waits for rank 0's message."""
        return _LONGER * (self.timeout_s + self._patience_s) + _INQUIRY_S

    @contextmanager
    def extend_timeout(self, seconds: float) -> Iterator[None]:
        """Extend the deadline of every wait in the block by this time in seconds, for work at the other ranks."""
        self._patience_s = seconds
        try:
            yield
        finally:
            self._patience_s = 0.0

    def gather(self, value: T, phase: str) -> list[T] | None:
        """Return every rank's `value` (JSON), by rank, at rank 0; None elsewhere.

        `phase` appears in errors. It must be the same at all ranks, so it must not contain a value of one host.
        """
        values: dict[int, T] = {self.rank: value}
        self._gather(value, (), phase, lambda rank, received, _: values.update({rank: received}))
        return [values[rank] for rank in range(self.size)] if self.rank == 0 else None

    def gather_array(self, array: NDArray[np.float64], phase: str) -> list[NDArray[np.float64]] | None:
        """Return every rank's array (float64, any number of rows of equal length), by rank, at rank 0; None elsewhere."""
        arrays = {self.rank: array}
        self.gather_into(array, phase, lambda rank, received: arrays.update({rank: received}))
        return [arrays[rank] for rank in range(self.size)] if self.rank == 0 else None

    def gather_into(self, array: NDArray[np.float64], phase: str, take: Callable[[int, NDArray[np.float64]], None]) -> None:
        """Pass each other rank's array (float64, a read-only view of the received bytes) to `take` at rank 0 as it arrives."""
        import numpy as np

        def take_bytes(rank: int, shape: Any, raw: Sequence[memoryview]) -> None:
            try:
                received = np.frombuffer(raw[0], np.float64).reshape(shape)
            except (ValueError, TypeError, IndexError) as error:
                raise RunFailed(
                    f"{phase}: {self.members[rank]} did not send an array of {shape} ({error}): install the same version on all nodes",
                    phase=phase,
                ) from None
            take(rank, received)

        self._gather(list(array.shape), (array.tobytes(),), phase, take_bytes)  # a copy, since the caller may change its array

    def _gather(self, value: Any, raw: Sequence[bytes], phase: str, take: Callable[..., None]) -> None:
        self._step += 1
        if self._server:
            with self.watchdog.elsewhere(phase):
                self._server.collect(self._step, phase, self._patience_s, take)
        elif self._client:
            self._client.send(self._step, phase, value, raw)

    def broadcast(self, value: T, phase: str) -> T:
        """Return rank 0's `value` (JSON) at every rank; the others' values are ignored."""
        self._step += 1
        if self._server:
            self._server.send(self._step, phase, value)
        elif self._client:
            with self.watchdog.elsewhere(phase):
                received: T = self._client.receive(self._step, phase, self.timeout_s, self.longest_s)
            return received
        return value

    def has_message(self) -> bool:
        """Return whether rank 0's next message is here, so that `broadcast` returns at once; always at rank 0."""
        return self._client is None or self._client.has_message()

    def allgather(self, value: T, phase: str) -> list[T]:
        """Return every rank's `value` (JSON), by rank, at every rank. It is also a barrier."""
        return self.broadcast(self.gather(value, phase) or [], phase)

    def first_error(self, reason: T | None, phase: str) -> T | None:
        """Return the first reason that any rank has, the same at all ranks; None when no rank has one."""
        return next((rank_reason for rank_reason in self.allgather(reason, phase) if rank_reason is not None), None)

    def refuse(self, sentence: str) -> NoReturn:
        """End the launch as bad input. All ranks call it with the same reason; only rank 0 reports it.

        Raises UsageError at rank 0 and PeerFailed at the other ranks. With UsageError, another rank could be reported before rank 0.
        """
        raise PeerFailed(sentence, USAGE) if self.rank else UsageError(sentence)

    def remarks(self) -> list[Fact | str]:
        """Return at rank 0 the notes about connections: those refused, ranks started twice, an open listener."""
        return self._server.remarks() if self._server else []

    # How the ranks join.

    def _join(self) -> None:
        info = self.info
        if info.meeting == "mpi":  # mpirun over several hosts does not pass rank 0's address
            from collbench.launch.mpi import with_meeting

            with self.watchdog.phase("joining over MPI"):
                info = with_meeting(info)
        secret = secret_of(info, os.environ)
        ending = EndProcess(self._end, self._report_first, for_all=self.rank == 0)
        if info.launcher == KUBERNETES:
            self._await_name(info.meeting)
        if self.rank == 0:
            self._admit_ranks(info, secret, ending)
        else:
            self._join_rank_0(info, secret, ending)
        self.me = self.members[self.rank]

    def _admit_ranks(self, info: LaunchInfo, secret: Secret, ending: EndProcess) -> None:
        from collbench.control.server import Server

        self._server = Server(info, secret, self._own_state, ending, self.timeout_s)
        with self.watchdog.elsewhere("joining"), self._waiting_for(self._server.missing):
            joined = self._server.admit(self.timeout_s)
        self.members = tuple(addressed([self.me, *(joined[rank] for rank in range(1, self.size))]))
        self._server.expect(self.members, self._other_candidates())
        self._server.send(0, "joining", [asdict(member) for member in self.members])
        self.watchdog.consult = self._server.stalled

    def _join_rank_0(self, info: LaunchInfo, secret: Secret, ending: EndProcess) -> None:
        from collbench.control.client import Client

        self._client = Client(info, secret, self._own_state, ending)
        routes = routes_to(info.meeting)
        leads_other_host = not info.local_rank and not all(is_loopback(address) for address, _ in routes)
        addresses = own_addresses() if leads_other_host else ()
        with self.watchdog.elsewhere("joining"):
            with self._waiting_for(lambda: "rank 0"):
                self._client.join(replace(self.me, routes=routes, addresses=addresses), self.timeout_s)
            self.members = convert(self._client.receive(0, "joining", self.timeout_s, self.longest_s), tuple[Member, ...])
        self._client.set_members(self.members[info.rank], self.members, self._other_candidates())
        self.watchdog.consult = self._client.stalled

    def _other_candidates(self) -> dict[int, HostKilled]:
        return other_candidates(self.members) if is_hydra(self.info) else {}

    @contextmanager
    def _waiting_for(self, missing: Callable[[], str]) -> Iterator[None]:
        """Report which ranks are missing if the block takes long, and that variables of the environment may be the reason."""
        names = left_over_variables(self.info)
        if names is None or not self.is_reporter:
            yield
            return
        variables = " and ".join(f"{name}={os.environ.get(name, '')}" for name in names)
        remedy = f"to measure this host alone: `env -u {names[0]} -u {names[1]} collbench …`"

        def note() -> None:
            report_error(f"waiting for {missing()} of {self.size}, as {variables} are set here; {remedy}")

        timer = threading.Timer(_NOTED_S, note)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _await_name(self, meeting: str) -> None:
        """Wait for the name of rank 0's pod, which may appear late. Raises WaitExpired if it does not appear."""
        patience_s = self.timeout_s if self.rank else min(self.timeout_s, _OWN_NAME_S)
        with self.watchdog.elsewhere("joining"):
            if not await_name(meeting, patience_s) and self.rank:
                raise WaitExpired(
                    f"the name of rank 0's pod ({meeting.removeprefix('tcp://')}) did not resolve within {patience_s:g} s: give its Job a "
                    "headless Service with publishNotReadyAddresses, as `collbench emit kubernetes` does, or raise --timeout"
                )

    def _own_state(self) -> RankState:
        return self.watchdog.state(self.rank, self._step)

    def _end(self, sentence: str, code: int) -> None:
        """End this process instead of its main thread; rank 0 has reported for all."""
        self.ending_code = code
        if self.rank == 0:
            self._report_first(sentence, code)
            if self.finish_off:
                self.finish_off()
        record_exit(code, os.environ)  # mpiexec does not pass it on
        end_process("", code)

    def _report_first(self, sentence: str, code: int) -> None:
        """Report why the launch ends, and store the reason, for a main thread that is inside a call."""
        self.ending_code = code
        if not self._reported.locked():
            self.report_error(sentence, code)  # first, since a launcher may kill this process at any time
            with suppress(CollbenchError):
                (self.watchdog.witness or str)(Text(sentence))

    def _end_alone(self, sentence: str) -> None:
        """End this process for the watchdog. No other rank can add information."""
        self._let_others_report()
        record_exit(FAILED, os.environ)
        if self.finish_off and len(self.members) == 1:  # no rank has joined, and another one may be stopped
            report_error(sentence)
            time.sleep(_LEAVING_S)  # time for the other ranks to report
            self.finish_off()
            sentence = ""
        end_process(sentence if self.is_reporter else "")

    def _let_others_report(self) -> None:
        """Delay the end of a rank that does not report: libraries end a process at once when another's connection closes."""
        if not self.is_reporter:
            time.sleep(_UNHEARD_S)

    def report_error(self, sentence: str, code: int) -> None:
        """Report why the launch ends, once."""
        if self.is_reporter and self._reported.acquire(blocking=False):
            report_error(self.exit_message(sentence, code))
            if self.rank == 0:  # for the parent of a local start: mpiexec may kill this process as soon as other ranks end
                record_exit(code, os.environ)

    @property
    def is_reporter(self) -> bool:
        """Return whether this rank reports if rank 0 cannot: one rank per node, among the first ranks of the launch only."""
        reporter = 1 if self.rank and self.me.host == self.members[0].host else 0  # its rank on this node
        return self.rank < _MOST_REPORTERS and (len(self.members) == 1 or self.info.local_rank == reporter)

    @property
    def facts(self) -> dict[str, Any]:
        """Return the states of all ranks in a hang, and the known cause, for events.jsonl; {} without a hang."""
        return self._server.coordinator.facts if self._server else {}

    def add_informant(self, informant: Callable[[], str | None]) -> None:
        """Add a function that rank 0 calls in a hang, in its own thread. Its result is added to the message."""
        if self._server:
            self._server.coordinator.informants.append(informant)

    def explained(self, error: BaseException) -> BaseException:
        """Return the cause of an error, at rank 0. Another rank's end often causes a library's error or a launcher's signal.

        Takes at most 1.5 s if a rank does not reply, and some seconds more to examine that rank.
        """
        if is_out_of_memory(error):
            phase = self.watchdog.current_phase or BETWEEN
            error = RunFailed(f"{self.me} ran out of memory during {phase}: use smaller sizes or fewer ranks per host", rank=self.rank)
        code = getattr(error, "exit_code", FAILED)
        if not self._server or isinstance(error, PeerFailed | WaitExpired) or error is self._examined or code not in _SECONDARY_CODES:
            return error
        self._examined = error
        typed = error if isinstance(error, CollbenchError | Interrupted) else RunFailed(f"{type(error).__name__}: {error}")
        sentence = self._message_for_others(typed)
        with self.watchdog.elsewhere(self.watchdog.current_phase):
            return self._server.reason(sentence, code) or error

    def exit_message(self, sentence: str, code: int) -> str:
        """Return the message. If a signal ended the launch, a text about the stored results is added."""
        if code not in (INTERRUPTED, TERMINATED):
            return sentence
        sentence = str(self._signal or sentence)  # a launcher sends the signal to all ranks, and another rank may have reported it first
        if self.kept:
            return f"{sentence} after {self.kept()}"
        missing = self._server.not_joined() if self._server else ""
        return f"{sentence} before {missing or 'anything was measured'}"

    def interrupted(self, number: int) -> None:
        """Inform the other ranks of a signal that ends this process, since the main thread may be inside a call. Any thread may call."""
        self._signal = error = Interrupted(number)
        if self._server:
            self._server.signalled(self._message_for_others(error), error.exit_code)
        elif self._client:
            self._client.interrupt(self._message_for_others(error), error.exit_code)

    def _message_for_others(self, error: CollbenchError | Interrupted) -> str:
        if isinstance(error, Interrupted):
            return str(error) if self.rank == 0 else f"{self.me} was {error}"
        if self.size == 1 or isinstance(error, PeerFailed) or error.rank == self.rank:
            return str(error)
        phase = self.watchdog.current_phase if error.exit_code == FAILED and not isinstance(error, WaitExpired) else ""
        during = f", during {phase}" if phase and phase != error.phase else ""
        return f"{self.me}{during}: {error}"

    def abort(self, error: CollbenchError | Interrupted) -> bool:
        """Send the other ranks why this one ends, so that they end with the same message and code at once.

        Returns whether rank 0 has received it. Then rank 0 reports for all and ends first, since a launcher kills all ranks
        when one has ended.
        """
        received = True
        if self._server:
            self._server.interrupt(self._message_for_others(error), error.exit_code)
            if self.finish_off and self._server.see_off(_LEAVING_S):
                self.finish_off()
        elif isinstance(error, Orphaned):
            self._let_others_report()
            self.report_error(str(error), error.exit_code)
        elif self._client:
            reason = error if isinstance(error, PeerFailed) else self._client.abort(self._message_for_others(error), error.exit_code)
            if isinstance(reason, Orphaned):
                self.report_error(str(reason), reason.exit_code)
            received = reason is not None
            self._client.farewell()
        return received

    def close(self) -> None:
        """Leave in order: all messages are sent, and the watchdog has ended."""
        for connection in (self._server, self._client):
            if connection:
                connection.close()
        self.watchdog.close()
