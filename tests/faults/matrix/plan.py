"""What a faulty run is: the fault, the phase it strikes in, the rank it strikes, the library and the launcher."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FAULTS = (
    "killed", "stopped", "paused", "link", "link for a moment", "control", "memory", "disk", "wrong data", "early exit"
)  # fmt: skip
PATH_FAULTS = {
    "mtu": "packets above 1000 bytes to its host are dropped",
    "loss 1": "1 % of the packets to its host are dropped",
    "loss 5": "5 % of the packets to its host are dropped",
    "loss 30": "30 % of the packets to its host are dropped",
    "one way": "all packets to its host are dropped",
    "nic 3 s": "its host's link is down for 3 s",
    "nic 60 s": "its host's link is down for 60 s",
    "slow": "its host's link has 40 Mbit/s instead of 1 Gbit/s",
    "duplicates": "20 % of the packets from its host arrive twice",
}
PATH_LIBRARIES = ("gloo", "MPICH", "socket")
PATH_RANKS = 2  # one on each host
NIC_S = 3.0
CUTS = ("link", "control")
PHASES = ("init", "warm-up", "timed", "gather")
LIBRARIES = ("gloo", "MPICH", "Open MPI")
LAUNCHERS = {"gloo": "by hand", "socket": "by hand", "MPICH": "mpiexec", "Intel MPI": "mpiexec", "Open MPI": "mpirun"}

RANKS, HOSTS = 4, 2
SIZES = ("32K", "64K", "96K", "128K")
STRUCK_SIZE = 3  # of SIZES, the first is 1: where a fault strikes
WARM_UP, TIMED = 4, 12  # iterations
TIMEOUT_S, MAX_TIME_S = 5.0, 2.0
WITHIN_S = TIMEOUT_S + 10  # everything must have ended
PAUSE_S = 2.0  # shorter than the deadline: does no harm

STRUCK, DONE = "struck", "done"  # files in the plan's folder

WHAT = {
    "killed": "SIGKILL", "stopped": "SIGSTOP", "paused": f"SIGSTOP, SIGCONT {PAUSE_S:g} s later",
    "link": "the link of the second host is cut", "link for a moment": f"the same for {PAUSE_S:g} s",
    "control": "only the control link of its host is cut", "memory": "the rank's memory is exhausted", "disk": "rank 0's disk is full",
    "wrong data": "the rank receives wrong data", "early exit": "the rank exits with code 0",
}  # fmt: skip


def host_of(rank: int, ranks: int = RANKS) -> int:
    """The ranks fill one host after the other."""
    return rank * HOSTS // ranks


@dataclass(frozen=True)
class Case:
    """One run.

    phase     of case STRUCK_SIZE, or "init"; "" for `after_s` seconds after the victim has loaded its modules
    launcher  "by hand" (RANK and WORLD_SIZE, no launcher ends the others), "mpiexec", "mpirun" or "srun"
    """

    fault: str
    phase: str
    library: str
    launcher: str
    victim: int
    after_s: float = 0.0

    @property
    def name(self) -> str:
        """Unlike any other's: "killed, timed, gloo by hand, rank 2"."""
        when = self.phase or f"after {self.after_s:.2f} s"
        return f"{self.fault}, {when}, {self.library} {self.launcher}, rank {self.victim}"

    @property
    def backend(self) -> str:
        return self.library if self.library in ("gloo", "socket") else "mpi"

    @property
    def operation(self) -> str:
        return "p2p" if self.library == "socket" else "allreduce"

    @property
    def of_path(self) -> bool:
        """Whether it happens to packets between the hosts, and to no rank."""
        return self.fault in PATH_FAULTS

    @property
    def ranks(self) -> int:
        return PATH_RANKS if self.of_path else RANKS

    @property
    def host(self) -> int:
        return host_of(self.victim, self.ranks)

    @property
    def harmless(self) -> bool:
        """Whether the run must come to its end all the same."""
        return self.fault in ("paused", "link for a moment", "slow", "duplicates", "loss 1")

    @property
    def suspects(self) -> tuple[frozenset[int], ...]:
        """The ranks that a sentence may name, some of one set.

        If a link is cut, each side can only report that it does not reach the other. If mpiexec (of MPICH or Intel MPI) kills all ranks of
        a host for one, the ranks of the other host can only report the host, even if the one had ended by itself.
        """
        if self.fault in ("killed", "early exit") and self.launcher == "mpiexec":
            return (frozenset(rank for rank in range(RANKS) if host_of(rank) == host_of(self.victim)),)
        if self.fault in CUTS:
            return tuple(frozenset(rank for rank in range(RANKS) if host_of(rank) == host) for host in range(HOSTS))
        return () if self.fault == "disk" or self.harmless else (frozenset({self.victim}),)

    @property
    def ended(self) -> bool:
        return self.fault in ("killed", "stopped", "early exit")

    @property
    def finished(self) -> int:
        return STRUCK_SIZE - 1 if self.phase not in ("init", "") else 0


@dataclass(frozen=True)
class Plan:
    fault: str
    phase: str
    victim: int
    after_s: float
    folder: Path

    @classmethod
    def of(cls, case: Case, folder: Path) -> Plan:
        return cls(case.fault, case.phase, case.victim, case.after_s, folder)

    @classmethod
    def read(cls, path: Path) -> Plan:
        actual = json.loads(path.read_text())
        return cls(**{**actual, "folder": Path(actual["folder"])})

    def write(self) -> Path:
        path = self.folder / "plan.json"
        path.write_text(json.dumps({**asdict(self), "folder": str(self.folder)}))
        return path


def matrix(slurm: bool) -> list[Case]:
    """Every fault in every phase on every library, each started by its own launcher; and also by srun, one library in turn.

    The victims take turns, too: rank 0, the first rank of the other host, and the ranks behind each. Only where a link is cut while
    rank 0 gathers, the victim is on the other host: the messages of the ranks there would have arrived.
    """
    each = [(fault, phase) for phase in PHASES for fault in FAULTS]
    cases = [
        Case(fault, phase, library, LAUNCHERS[library], _turn(fault, phase, place + turn))
        for turn, library in enumerate(LIBRARIES)
        for place, (fault, phase) in enumerate(each)
    ]
    if slurm:
        cases += [Case(fault, phase, LIBRARIES[place % 3], "srun", _turn(fault, phase, place)) for place, (fault, phase) in enumerate(each)]
    return cases


def intel_matrix() -> list[Case]:
    """Return every fault in every phase on Intel MPI, which is outside the stored matrix: its library is not on every machine."""
    each = [(fault, phase) for phase in PHASES for fault in FAULTS]
    return [
        Case(fault, phase, "Intel MPI", LAUNCHERS["Intel MPI"], _turn(fault, phase, place)) for place, (fault, phase) in enumerate(each)
    ]


def path_matrix() -> list[Case]:
    """Return every fault of a path, at each host, on each library."""
    return [
        Case(fault, "timed", library, LAUNCHERS[library], side) for fault in PATH_FAULTS for library in PATH_LIBRARIES for side in (0, 1)
    ]


def _turn(fault: str, phase: str, place: int) -> int:
    victim = (place + place // len(FAULTS)) % RANKS
    return max(victim, RANKS // HOSTS) if phase == "gather" and fault in CUTS else victim
