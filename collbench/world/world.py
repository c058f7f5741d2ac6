"""The ranks together: who they are, and what they say to one another outside the measured path."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from collbench.errors import CollbenchError, PeerFailed
from collbench.launch.info import LaunchInfo
from collbench.world.addresses import LOOPBACK, addresses_towards
from collbench.world.watchdog import Watchdog
from collbench.world.wire import ABORT, SAY, Frames, Hub, Spoke

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")
_LONGER = 1.5  # the others wait so much longer than rank 0 does, which alone knows who is missing


@dataclass(frozen=True)
class Member:
    """One rank as it presented itself: its host's name, its rank there, its process, the CPUs it may use (by number).

    address      the address at which the ranks of other hosts reach this one (127.0.0.1 when there are none)
    hub_address  rank 0's address as this rank sees it
    """

    rank: int
    host: str
    local_rank: int
    pid: int
    cpus: tuple[int, ...]
    address: str = LOOPBACK
    hub_address: str = LOOPBACK

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, pid {self.pid})"


class World:
    """All ranks of one launch. Every method is called by all ranks, in the same order; every wait has a deadline.

    rank, size   this rank and how many there are
    members      all ranks, by rank; me: this one
    timeout_s    the deadline of every wait
    """

    def __init__(self, info: LaunchInfo, timeout_s: float) -> None:
        self.info, self.rank, self.size, self.timeout_s = info, info.rank, info.ranks, timeout_s
        self._step = 0
        self._patience_s = 0.0
        self._hub: Hub | None = None
        self._spoke: Spoke | None = None
        me = Member(info.rank, socket.gethostname(), info.local_rank, os.getpid(), tuple(sorted(os.sched_getaffinity(0))))
        self.me = me
        self.members: tuple[Member, ...] = (me,)
        self.watchdog = Watchdog(timeout_s, str(me))
        self.watchdog.suspects = self._stopped
        try:
            if self.size > 1:
                self._join(me)
        except CollbenchError as error:
            self.abort(error)
            self.close()
            raise

    def _join(self, me: Member) -> None:
        info = self.info if self.info.meeting != "mpi" else self._meet_over_mpi()
        if self.rank == 0:
            self._hub = Hub(info.meeting, info.port, info.token)
            said = self._hub.admit(self.size, info.token, self.timeout_s)
            members = addressed([me, *(Member(**said[rank]) for rank in range(1, self.size))])
            self._hub.tell(0, SAY, [asdict(member) for member in members])
        else:
            self._spoke = Spoke()
            mine, hubs = addresses_towards(info.meeting)
            about = asdict(replace(me, address=mine, hub_address=hubs))
            self._spoke.join(info.meeting, info.port, {"token": info.token, "rank": self.rank, "about": about}, self.timeout_s)
            members = [Member(**found) for found in self._spoke.hear(0, "joining", _LONGER * self.timeout_s)]
        self.members = tuple(members)
        self.me = self.members[self.rank]

    def _stopped(self) -> list[str]:
        """The other ranks of this host that are not allowed to run: "rank 1 (node1, pid 7) is stopped"."""
        return [f"{member} is stopped" for member in self.on_host() if member != self.me and _is_stopped(member.pid)]

    def _meet_over_mpi(self) -> LaunchInfo:
        """mpirun over several hosts names no host for rank 0: the ranks tell one another through MPI itself."""
        from collbench.world.over_mpi import meeting_of_rank_0

        with self.watchdog.phase("joining over MPI"):
            meeting, token = meeting_of_rank_0(self.info)
        return replace(self.info, meeting=meeting, token=token)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts, in the order of their first rank."""
        return tuple(dict.fromkeys(member.host for member in self.members))

    def on_host(self, host: str | None = None) -> list[Member]:
        """The ranks of a host (this one by default)."""
        return [member for member in self.members if member.host == (host or self.me.host)]

    @property
    def oversubscribed(self) -> str | None:
        """The first host with more ranks than cores that any of them may use, or None."""
        return next((host for host in self.hosts if len(self.on_host(host)) > self.cores_on(host)), None)

    def cores_on(self, host: str | None = None) -> int:
        """How many cores the ranks of a host (this one by default) may use together: a bound rank adds only its own."""
        return len({cpu for member in self.on_host(host) for cpu in member.cpus})

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """Inside, every wait allows for so many seconds of honest work at the other ranks on top of the deadline."""
        self._patience_s = seconds
        try:
            yield
        finally:
            self._patience_s = 0.0

    def gather(self, value: T, what: str) -> list[T] | None:
        """Every rank's `value` (JSON), by rank, at rank 0; None elsewhere. `what` names the phase in errors."""
        self._step += 1
        if self._hub:
            came = self._collect(self._hub, what)
            return [value, *(came[rank][0] for rank in range(1, self.size))]
        if self._spoke:
            self._spoke.say(self._step, value)
            return None
        return [value]

    def gather_array(self, array: NDArray[np.float64], what: str) -> list[NDArray[np.float64]] | None:
        """Every rank's array (float64, any number of rows of equal length), by rank, at rank 0; None elsewhere."""
        import numpy as np

        self._step += 1
        if self._hub:
            came = self._collect(self._hub, what)
            rest = (came[rank] for rank in range(1, self.size))
            return [array, *(np.frombuffer(raw[0], np.float64).reshape(shape) for shape, raw in rest)]
        if self._spoke:
            self._spoke.say(self._step, list(array.shape), [np.ascontiguousarray(array).data])
            return None
        return [array]

    def _collect(self, hub: Hub, what: str) -> dict[int, tuple[Any, Frames]]:
        with self.watchdog.elsewhere():
            return hub.collect(self._step, what, [str(m) for m in self.members], self.timeout_s + self._patience_s)

    def decide(self, value: T, what: str) -> T:
        """Rank 0's `value` (JSON) at every rank; the others' is ignored."""
        self._step += 1
        if self._hub:
            self._hub.tell(self._step, SAY, value)
        elif self._spoke:
            with self.watchdog.elsewhere():
                heard: T = self._spoke.hear(self._step, what, _LONGER * (self.timeout_s + self._patience_s))
            return heard
        return value

    def agree(self, value: T, what: str) -> list[T]:
        """Every rank's `value` (JSON), by rank, at every rank. A barrier, too."""
        return self.decide(self.gather(value, what) or [], what)

    def first(self, reason: T | None, what: str) -> T | None:
        """The first reason that any rank has, the same at all ranks; None when no rank has one."""
        return next((found for found in self.agree(reason, what) if found is not None), None)

    def abort(self, error: CollbenchError) -> bool:
        """Tells the other ranks why this one ends, so that they end with the same sentence and code at once.

        Returns whether rank 0 knows: it speaks for all.
        """
        sentence = str(error) if isinstance(error, PeerFailed) else f"{self.me}: {error}" if self.size > 1 else str(error)
        if self._hub:
            self._hub.tell(self._step, ABORT, [sentence, error.exit_code])
        elif self._spoke and not isinstance(error, PeerFailed):
            return self._spoke.abort(sentence, error.exit_code)
        return True

    def close(self) -> None:
        """Leaves in order: everything sent is on its way, the watchdog is gone."""
        for end in (self._hub, self._spoke):
            if end:
                end.close()
        self.watchdog.close()


def addressed(members: Sequence[Member]) -> list[Member]:
    """The members with addresses that work between hosts: rank 0's own host is known best by the others."""
    home = members[0].host
    seen = next((member.hub_address for member in members if member.host != home), LOOPBACK)
    return [replace(member, address=seen if member.host == home else member.address) for member in members]


def _is_stopped(pid: int) -> bool:
    """Whether SIGSTOP or a debugger holds the process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False
